//! The known state of a share's fence → its conditions: the pod's condition `IsolationVerified`,
//! written by the scheduler, and the same in a claim's device status, written by the agent.

/// What an agent read back of one container's fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'a> {
    /// The container's name.
    pub container: &'a str,
    /// The fence that is active, as [`crate::units::Fence`] names it; empty while none is.
    pub fence: &'a str,
    /// MiB that were granted.
    pub granted: u64,
    /// MiB that were read back; 0 while none were.
    pub read_back: u64,
    /// MiB that one CUDA process can get to until the watchdog ends it; 0 while not known.
    pub reach: u64,
    /// Containers that have the share together, by one claim; 1: its own.
    pub holders: usize,
}

/// The reason of a condition that is true.
pub const READ_BACK: &str = "LimitReadBack";

/// The condition's reason if the node does not honour the grant. The limit that was read back does
/// not matter then.
pub const GRANT_REFUSED: &str = "GrantRefused";

/// Why a share's limit is not verified, by how little is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unverified {
    /// Only its own environment keeps it from what its server lets it have.
    ClientLimit,
    /// Nothing but the watchdog holds it.
    WatchdogOnly,
    /// The value read back differs from the grant, or there is none yet.
    NotReadBack,
}

/// The condition's reason: [`READ_BACK`] where every container's limit is held by a fence that
/// its tenant cannot lift and was read back as granted, else the weakest one's. Never claims
/// more than was read back.
pub fn reason<'a>(held: impl IntoIterator<Item = Held<'a>>) -> &'static str {
    match held.into_iter().filter_map(Held::doubt).max() {
        None => READ_BACK,
        Some(Unverified::ClientLimit) => "ClientLimit",
        Some(Unverified::WatchdogOnly) => "WatchdogOnly",
        Some(Unverified::NotReadBack) => "NotReadBack",
    }
}

impl Held<'_> {
    fn doubt(self) -> Option<Unverified> {
        match self.fence {
            "DriverLimit" | "ServerLimit" if self.read_back == self.granted => None,
            "ClientLimit" => Some(Unverified::ClientLimit),
            "WatchdogOnly" => Some(Unverified::WatchdogOnly),
            _ => Some(Unverified::NotReadBack),
        }
    }

    /// The container's line in the condition's message.
    pub fn line(self) -> String {
        let fence = match self.fence {
            "" => "no fence",
            fence => fence,
        };
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
