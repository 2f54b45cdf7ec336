//! Commands that a control daemon was given by others than us.
//!
//! Any process that runs as the daemon's user and reaches its pipe may command it. Its log has a
//! line `Cmd:<command>` for every command. In: the commands that we give, and those that the log
//! names. Out: those that were not ours.

use crate::line::one_line;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Longest part of a command that is reported, in characters.
const SAID: usize = 120;

/// Commands that we give one daemon, counted until its log shows them.
#[derive(Clone, Debug, Default)]
pub struct IssuedCommands(Arc<Mutex<BTreeMap<String, u32>>>);

impl IssuedCommands {
    /// To be called before the command is sent. One that the daemon does not log, because it was
    /// not reached in time, counts until it is logged: it may be logged late.
    pub fn add(&self, command: &str) {
        if let Some(command) = changing(command) {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *all.entry(command).or_default() += 1;
        }
    }

    /// These are the settings from now on. One of them given again, even by a tenant, changes
    /// nothing; an older one would be a change, even if we had given it.
    pub fn settings_are(&self, commands: &[String]) {
        let commands: Vec<String> = commands.iter().filter_map(|one| changing(one)).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|issued, _| !sets(issued) || commands.contains(issued));
    }

    /// Whether this command was ours; it counts no more.
    pub(super) fn take(&self, command: &str) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(count) = all.get_mut(command) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            all.remove(command);
        }
        true
    }
}

/// A command that we did not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignCommand {
    /// The command, on one line.
    pub command: String,
    /// It may have changed a limit.
    pub sets: bool,
}

impl ForeignCommand {
    /// Of a command as [`changing`] answers it.
    pub(super) fn new(command: &str) -> Self {
        Self {
            sets: sets(command),
            command: one_line(command, SAID),
        }
    }
}

fn sets(command: &str) -> bool {
    command.starts_with("set_")
}

/// The command with single spaces, if it is one that changes something.
pub(super) fn changing(command: &str) -> Option<String> {
    let verb = command.split_whitespace().next()?;
    let changes = sets(verb)
        || matches!(
            verb,
            "terminate_client" | "shutdown_server" | "start_server" | "quit"
        );
    changes.then(|| command.split_whitespace().collect::<Vec<_>>().join(" "))
}
