//! Commands that a control daemon was given by others than us, by its own log.
//!
//! Any process that runs as the daemon's user and reaches its pipe may command it, and its
//! answers in whole GiB hide a limit that was raised by less. Its `control.log`, which no
//! tenant can reach, has a line `Cmd:<command>` for every command. In: the commands we give,
//! and the log. Out: the commands that were not ours.

use crate::line::one_line;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// More than this between two readings is not read: 1 MiB is about ten thousand commands.
const MAX_STEP: u64 = 1 << 20;
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

    fn take(&self, command: &str) -> bool {
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

/// Where one daemon's log was read to.
#[derive(Debug, Default)]
pub struct Audit {
    issued: IssuedCommands,
    offset: u64,
    /// A line that was not written to its end.
    partial: Vec<u8>,
    /// A command of ours was found: it is the right log.
    hears: bool,
}

impl Audit {
    /// What we give the daemon is to be added here.
    pub fn given(&self) -> IssuedCommands {
        self.issued.clone()
    }

    /// Whether the log names commands: without that, nothing is known of others.
    pub fn hears(&self) -> bool {
        self.hears
    }

    /// From the log's present end on: a daemon begins, or we take one over.
    pub fn begin(&mut self, log: &Path) {
        *self = Self {
            offset: std::fs::metadata(log).map_or(0, |meta| meta.len()),
            ..Self::default()
        };
    }

    /// Whether all of a log of this many bytes was read.
    pub fn has_read(&self, len: u64) -> bool {
        self.offset == len && self.partial.is_empty()
    }

    /// The first command since the last look that was not ours.
    pub fn look(&mut self, log: &Path) -> Option<ForeignCommand> {
        let len = std::fs::metadata(log).ok()?.len();
        if len < self.offset {
            // It was cut.
            self.offset = 0;
            self.partial.clear();
        }
        if len - self.offset > MAX_STEP {
            self.offset = len;
            self.partial.clear();
            return Some(ForeignCommand {
                command: "more than its log can be searched for".to_owned(),
                sets: true,
            });
        }
        let mut text = std::mem::take(&mut self.partial);
        // What cannot be read now is read at the next look.
        let read = read_from(log, self.offset, len - self.offset, &mut text).unwrap_or(0);
        self.offset += read;
        let end = text.iter().rposition(|byte| *byte == b'\n');
        self.partial = text.split_off(end.map_or(0, |end| end + 1));
        let mut first = None;
        for line in String::from_utf8_lossy(&text).lines() {
            let said = line.split_once("Cmd:").and_then(|(_, said)| changing(said));
            let Some(command) = said else { continue };
            if self.issued.take(&command) {
                self.hears = true;
            } else {
                first.get_or_insert_with(|| ForeignCommand {
                    sets: sets(&command),
                    command: one_line(&command, SAID),
                });
            }
        }
        first
    }
}

fn read_from(log: &Path, offset: u64, most: u64, into: &mut Vec<u8>) -> io::Result<u64> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(offset))?;
    Ok(file.take(most).read_to_end(into)? as u64)
}

fn sets(command: &str) -> bool {
    command.starts_with("set_")
}

/// The command with single spaces, if it is one that changes something.
fn changing(command: &str) -> Option<String> {
    let verb = command.split_whitespace().next()?;
    let changes = sets(verb)
        || matches!(
            verb,
            "terminate_client" | "shutdown_server" | "start_server" | "quit"
        );
    changes.then(|| command.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    struct Fixture {
        folder: tempfile::TempDir,
        audit: Audit,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("control.log"), "Cmd:quit\n").unwrap();
            let mut audit = Audit::default();
            audit.begin(&folder.path().join("control.log"));
            Self { folder, audit }
        }

        fn logged(&mut self, text: &str) -> Option<ForeignCommand> {
            let log = self.folder.path().join("control.log");
            let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            self.audit.look(&log)
        }
    }

    fn foreign(command: &str, sets: bool) -> ForeignCommand {
        let command = command.to_owned();
        ForeignCommand { command, sets }
    }

    #[test]
    fn what_we_did_not_give_is_reported_and_what_only_asks_is_not() {
        let mut scene = Fixture::new();
        scene
            .audit
            .given()
            .add("set_device_pinned_mem_limit 7 0 2000M");
        let line = |command: &str| format!("[2026-02-06 09:34:17.770 Control 261] Cmd:{command}\n");
        assert_eq!(scene.logged(&line("get_server_list")), None);
        assert!(!scene.audit.hears());
        let ours = line("set_device_pinned_mem_limit 7 0 2000M");
        assert_eq!(scene.logged(&ours), None);
        assert!(scene.audit.hears());
        // Given once.
        let again = foreign("set_device_pinned_mem_limit 7 0 2000M", true);
        assert_eq!(scene.logged(&ours), Some(again));
        let raise = line("set_device_pinned_mem_limit  7 0 2040M");
        let told = foreign("set_device_pinned_mem_limit 7 0 2040M", true);
        assert_eq!(scene.logged(&raise), Some(told));
        assert_eq!(
            scene.logged(&line("terminate_client 7 9")),
            Some(foreign("terminate_client 7 9", false))
        );
        assert_eq!(scene.logged(""), None);
    }

    #[test]
    fn a_setting_of_ours_that_came_to_nothing_is_nobodys_licence_to_give_it_later() {
        let mut scene = Fixture::new();
        let set = |mib: u32| format!("set_default_device_pinned_mem_limit 0 {mib}M");
        let issued = scene.audit.given();
        // The daemon hung; by now another limit is wanted, which it was told twice.
        issued.add(&set(3900));
        issued.add("start_server -uid 0");
        for _ in 0..2 {
            issued.settings_are(&[set(3200)]);
            issued.add(&set(3200));
        }
        let late = format!("Cmd:{}\n", set(3200)).repeat(2);
        assert_eq!(scene.logged(&late), None);
        assert_eq!(scene.logged("Cmd:start_server -uid 0\n"), None);
        let raise = foreign(&set(3900), true);
        assert_eq!(scene.logged(&format!("Cmd:{}\n", set(3900))), Some(raise));
    }

    #[test]
    fn what_was_written_since_the_last_look_is_not_read() {
        let mut scene = Fixture::new();
        let len = |scene: &Fixture| {
            let log = scene.folder.path().join("control.log");
            std::fs::metadata(log).unwrap().len()
        };
        scene.logged("Cmd:get_server_list\n");
        assert!(scene.audit.has_read(len(&scene)));
        assert!(!scene.audit.has_read(len(&scene) + 1));
        scene.logged("Cmd:qu");
        assert!(!scene.audit.has_read(len(&scene)), "half a line");
    }

    #[test]
    fn half_a_line_a_cut_log_and_a_flood_hide_nothing() {
        let mut scene = Fixture::new();
        assert_eq!(scene.logged("x] Cmd:qu"), None);
        assert_eq!(scene.logged("it -t 0\n"), Some(foreign("quit -t 0", false)));
        let log = scene.folder.path().join("control.log");
        std::fs::write(&log, "").unwrap();
        assert_eq!(scene.logged("Cmd:quit\n"), Some(foreign("quit", false)));
        let flood = "Cmd:get_server_list\n".repeat(100_000);
        assert!(scene.logged(&flood).is_some_and(|told| told.sets));
        assert_eq!(scene.logged("Cmd:quit\n"), Some(foreign("quit", false)));
    }
}
