//! The release branch of NVIDIA's driver decides which features a node has.

/// The release branch of a driver: 570 of `570.172.08`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverBranch(pub u32);

impl DriverBranch {
    /// The first branch whose MPS server can serve several users.
    pub const SEVERAL_USERS: Self = Self(555);

    /// `None` for what is no version: at least two numbers with dots between them.
    pub fn of(version: &str) -> Option<Self> {
        let (branch, rest) = version.split_once('.')?;
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let numbers = is_number(branch) && rest.split('.').all(is_number);
        numbers.then(|| branch.parse().ok().map(Self)).flatten()
    }

    /// Returns whether the MPS server of this driver can serve several users
    /// (`-multiuser-server`). The control programs of 535 and 550 do not know the option: they take
    /// themselves for a client of a daemon and end. The program of 555 knows it. The option belongs to
    /// the program that comes with the driver, so that the version decides; whether a server runs is
    /// seen when it is started.
    pub fn serves_several_users(self) -> bool {
        self >= Self::SEVERAL_USERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_a_branch_and_what_is_no_version_has_none() {
        for (version, branch) in [
            ("570.172.08", Some(570)),
            ("615.1", Some(615)),
            ("615", None),
            ("", None),
            ("[N/A]", None),
            ("615.", None),
            ("615.x", None),
            ("+615.71", None),
            ("Driver 615.71", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(
                DriverBranch::of(version),
                branch.map(DriverBranch),
                "{version:?}"
            );
        }
    }
}
