//! Commands that somebody else gave a control daemon, by the daemon's own log.
//!
//! Whoever is the daemon's user and reaches its pipe may command it, and what it answers in
//! whole GiB hides a limit that was raised by less. Its `control.log`, which no tenant can
//! reach, has a line `Cmd:<command>` for every one. In: what we give, what the log says. Out:
//! what was not ours.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// More than this between two looks is not read: 1 MiB is some ten thousand commands.
const MAX_STEP: u64 = 1 << 20;

/// Commands that we give one daemon, counted until its log shows them.
#[derive(Clone, Debug, Default)]
pub struct Given(Arc<Mutex<BTreeMap<String, u32>>>);

impl Given {
    /// To be called before the daemon hears of it: what came to nothing does no harm, since
    /// somebody else's command of the same words would change nothing.
    pub fn add(&self, command: &str) {
        if let Some(command) = changing(command) {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *all.entry(command).or_default() += 1;
        }
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

/// Somebody else's command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// What was given, on one line.
    pub command: String,
    /// It may have changed a limit.
    pub sets: bool,
}

/// Where one daemon's log was read to.
#[derive(Debug, Default)]
pub struct Audit {
    given: Given,
    offset: u64,
    /// A line that was not written to its end.
    partial: Vec<u8>,
    /// A command of ours was found: the log is what it is taken for.
    hears: bool,
}

impl Audit {
    /// What we give the daemon is to be added here.
    pub fn given(&self) -> Given {
        self.given.clone()
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

    /// The first command since the last look that was not ours.
    pub fn look(&mut self, log: &Path) -> Option<Foreign> {
        let len = std::fs::metadata(log).ok()?.len();
        if len < self.offset {
            // It was cut.
            self.offset = 0;
            self.partial.clear();
        }
        if len - self.offset > MAX_STEP {
            self.offset = len;
            self.partial.clear();
            return Some(Foreign {
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
            if self.given.take(&command) {
                self.hears = true;
            } else {
                first.get_or_insert_with(|| Foreign {
                    sets: command.starts_with("set_"),
                    command: command
                        .chars()
                        .map(|c| if c.is_control() { ' ' } else { c })
                        .take(120)
                        .collect(),
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

/// The command with single spaces, if it is one that changes something.
fn changing(command: &str) -> Option<String> {
    let verb = command.split_whitespace().next()?;
    let changes = verb.starts_with("set_")
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

    struct Scene {
        folder: tempfile::TempDir,
        audit: Audit,
    }

    impl Scene {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("control.log"), "Cmd:quit\n").unwrap();
            let mut audit = Audit::default();
            audit.begin(&folder.path().join("control.log"));
            Self { folder, audit }
        }

        fn logged(&mut self, text: &str) -> Option<Foreign> {
            let log = self.folder.path().join("control.log");
            let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            self.audit.look(&log)
        }
    }

    fn foreign(command: &str, sets: bool) -> Foreign {
        let command = command.to_owned();
        Foreign { command, sets }
    }

    #[test]
    fn what_we_did_not_give_is_told_and_what_only_asks_is_not() {
        let mut scene = Scene::new();
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
    fn half_a_line_a_cut_log_and_a_flood_hide_nothing() {
        let mut scene = Scene::new();
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
