//! The known state of a share's fence → its conditions: the pod's condition `IsolationVerified`,
//! written by the scheduler, and the same in a claim's device status, written by the agent.

use crate::units::{Fence, Strength};

/// What an agent read back of one container's fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// The container's name.
    pub container: &'a str,
    /// The fence that is active, as [`Fence`] names it; empty while none is.
    pub fence: &'a str,
    /// What keeps a limit of the driver: `dmem` or `misc`. Empty for other fences.
    pub backend: &'a str,
    /// MiB that were granted.
    pub granted: u64,
    /// MiB that were read back; 0 while none were.
    pub read_back: u64,
    /// MiB that one CUDA process can get to until the watchdog ends it; 0 while not known.
    pub reach: u64,
    /// Containers that have the share together, by one claim; 1: its own.
    pub holders: usize,
}

/// The condition's reason if the node does not honour the grant. The limit that was read back does
/// not matter then.
pub const GRANT_REFUSED: &str = "GrantRefused";

/// The condition's reason while a value that was read back differs from the grant, and while there
/// is none.
const NOT_READ_BACK: &str = "NotReadBack";

/// The condition's reason: the word for the strength of the weakest container's fence. Never claims
/// more than was read back.
pub fn reason<'a>(held: impl IntoIterator<Item = Held<'a>>) -> &'static str {
    let mut weakest = Strength::Hard;
    for one in held {
        let Some(strength) = one.strength() else {
            return NOT_READ_BACK;
        };
        weakest = weakest.max(strength);
    }
    weakest.as_str()
}

/// Whether a condition of this reason is true: only a limit that the driver or the kernel holds is
/// verified. What MPS holds, a program can work around.
pub fn is_verified(reason: &str) -> bool {
    reason == Strength::Hard.as_str()
}

impl Held<'_> {
    /// `None`: not what was granted was read back.
    fn strength(self) -> Option<Strength> {
        let fence = Fence::parse(self.fence)?;
        match fence {
            // The server's default is that of a larger share, or there is none.
            Fence::ClientLimit | Fence::WatchdogOnly => Some(fence.strength()),
            Fence::DriverLimit | Fence::ServerLimit => {
                (self.read_back == self.granted).then(|| fence.strength())
            }
        }
    }

    /// The container's line in the condition's message.
    pub fn line(self) -> String {
        let strength = self.strength().map(Strength::as_str);
        let mut fence = match (strength, self.fence) {
            (_, "") => "no fence".to_owned(),
            (None, fence) => fence.to_owned(),
            (Some(strength), fence) => format!("{strength} by {fence}"),
        };
        if !self.backend.is_empty() {
            fence = format!("{fence} in {}", self.backend);
        }
        let read_back = match self.read_back {
            0 => "no limit read back".to_owned(),
            mib => format!("{mib} MiB read back"),
        };
        let reach = match self.reach {
            0 => "reach not known".to_owned(),
            mib if mib <= self.granted => format!("reach {mib} MiB"),
            mib => format!("reach {mib} MiB until the watchdog acts"),
        };
        let together = match self.holders {
            0 | 1 => String::new(),
            many => format!(", one limit for the {many} containers of its claim together"),
        };
        format!(
            "container {}: {fence}, {} MiB granted, {read_back}, {reach}{together}",
            self.container, self.granted
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_that_the_driver_holds_is_verified_and_the_weakest_container_counts() {
        let held = |fence, read_back| Held {
            container: "main",
            fence,
            backend: "",
            granted: 2000,
            read_back,
            reach: 2000,
            holders: 1,
        };
        let (hard, guarded) = (held("DriverLimit", 2000), held("ServerLimit", 2000));
        let (lent, watched) = (held("ClientLimit", 8000), held("WatchdogOnly", 0));
        let unread = held("DriverLimit", 1900);
        for (all, expected, verified) in [
            (&[hard][..], "Hard", true),
            (&[guarded], "Guarded", false),
            (&[lent], "Guarded", false),
            (&[watched], "Watched", false),
            (&[hard, guarded], "Guarded", false),
            (&[guarded, watched], "Watched", false),
            (&[watched, unread], "NotReadBack", false),
            (&[held("", 0)], "NotReadBack", false),
        ] {
            let reason = reason(all.iter().copied());
            assert_eq!(
                (reason, is_verified(reason)),
                (expected, verified),
                "{all:?}"
            );
        }
        let line = Held {
            backend: "dmem",
            ..hard
        }
        .line();
        let words = "container main: Hard by DriverLimit in dmem, 2000 MiB granted, 2000 MiB read back, reach 2000 MiB";
        assert_eq!(line, words);
    }
}
