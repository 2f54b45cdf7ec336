//! Inputs and outputs of the machine: plain data.

use api::Mib;
use proto::mps::{Client, ServerPhase};
use std::time::Duration;

/// What every client of a server gets at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Per card; 0: none.
    pub memory: Mib,
    /// 1 to 100.
    pub thread_percent: u8,
}

/// What the plan says of this daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Desired {
    /// No plan came yet: an adopted daemon is left as it is.
    Unknown,
    /// In the plan.
    Wanted(Limits),
    /// Not in the plan.
    Unwanted,
    /// The supervisor ends: a daemon without clients goes, one with clients stays.
    Leave,
}

/// A server's own word for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStatus {
    /// Not taking clients yet.
    Initializing,
    /// Taking clients.
    Active,
    /// A client's fault affected all; no new ones until they have ended.
    Fault,
}

/// The result of a check of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeResult {
    /// Its servers by pid; at most one under protocol 2 that takes clients.
    pub servers: Vec<(u32, ServerStatus)>,
    /// Of all its servers.
    pub clients: Vec<Client>,
}

/// The limits as the daemon answered them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// MiB, 0 for none; whole GiB if the daemon reports no more.
    pub memory: Mib,
    /// Per cent.
    pub thread_percent: u8,
}

/// What to do next; exactly one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing, for at most this long.
    Wait(Duration),
    /// Nothing any more: this daemon's task ends.
    Finish,
    /// Directories, shared memory; nothing stale left in them.
    Prepare,
    /// The cards' compute mode, read back.
    SetMode,
    /// The process.
    Spawn,
    /// Ask anything.
    Reach,
    /// Defaults and, where servers run, their own; read back and compared.
    Configure(Limits, Vec<u32>),
    /// So that no tenant pays for it, and no card is open for lack of it.
    StartServer,
    /// Servers, their states, their clients.
    Look,
    /// Whether the limits still read back as they were set.
    Verify(Limits, Vec<u32>),
    /// `quit`, with a time limit.
    Quit,
    /// The daemon's process group, at once.
    Kill,
    /// Which processes of a daemon that ended are still there; `None`: its clients were
    /// never known.
    FindLeftovers(Option<Vec<Client>>),
    /// Servers that outlived their daemon.
    KillServers(Vec<u32>),
    /// Compute mode back, directories away.
    CleanUp,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The plan.
    Desired(Desired),
    /// The last action is done; those that answer more have their own event.
    Done,
    /// By `Configure`.
    Configured(Limits, ReadBack),
    /// By `Look`.
    Seen(ProbeResult),
    /// By `Verify`: as set, or what is not.
    Verified(Result<(), String>),
    /// A card of it was seen in another compute mode than was set.
    ModeLost,
    /// The daemon was given a command that is not ours; whether it may have changed a limit.
    Driven(String, bool),
    /// A server says that this client of it broke it.
    ClientFaulted(u32),
    /// Something changed without a command: a server's process has ended, or its log has a new
    /// line. To be checked.
    Stirred,
    /// By `FindLeftovers`: clients and servers that still live.
    Leftovers(Vec<Client>, Vec<u32>),
    /// The last action failed.
    Failed(String),
    /// The daemon's process is gone.
    Exited(String),
}

/// What others see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Never `Unspecified`.
    pub phase: ServerPhase,
    /// Why it is so, where that is not plain.
    pub reason: String,
    /// As the daemon answered.
    pub observed: ReadBack,
    /// Using it now.
    pub clients: Vec<Client>,
    /// Its servers, by pid.
    pub servers: Vec<u32>,
    /// Starts after the first.
    pub restarts: u32,
    /// While faulted or dead: the client that must have done it, as it was the only one; 0
    /// where there were several.
    pub blamed: u32,
    /// How often clients have lost their work.
    pub losses: u32,
    /// Settings and commands of others on this daemon; settings are restored. Empty if there were
    /// none.
    pub tampered: String,
}
