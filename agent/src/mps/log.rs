//! What a control daemon and its servers write, in one file.
//!
//! A daemon in the foreground (`-f`) writes its lines and its servers' to standard output; only
//! one in the background (`-d`) has a `control.log` and a `server.log` (seen on driver 580). No
//! tenant can reach the file. In: the commands that we give, and the file. Out: commands that were
//! not ours; the limits that each server says it has, to the MiB (answers on the control pipe are
//! in whole GiB and hide a limit that was raised by less); the client that broke a server, which
//! no answer names.

use super::answer;
use super::audit::{ForeignCommand, IssuedCommands, changing};
use api::Mib;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// More than this between two readings is not read: 1 MiB is about ten thousand commands.
const MAX_STEP: u64 = 1 << 20;
/// Servers whose limits are kept. A daemon has one, and one more while it changes.
const MAX_SERVERS: usize = 16;

/// A server's limits by device; `None`: it said something of them that is not understood.
type ServerLimits = Option<BTreeMap<usize, Mib>>;

/// Where one daemon's log was read to, and what it said.
#[derive(Debug)]
pub struct DaemonLog {
    path: PathBuf,
    issued: IssuedCommands,
    offset: u64,
    /// A line that was not written to its end.
    partial: Vec<u8>,
    /// A command of ours was found: it is the right log.
    hears: bool,
    limits: BTreeMap<u32, ServerLimits>,
}

/// What was written since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The first command that was not ours.
    pub foreign: Option<ForeignCommand>,
    /// A server wrote a line: a client came, went or failed.
    pub server_wrote: bool,
    /// The client that a server says broke it, by its pid.
    pub faulter: Option<u32>,
}

impl DaemonLog {
    /// From the file's present end on: a daemon begins, or we take one over.
    pub fn begin(path: PathBuf) -> Self {
        Self {
            offset: std::fs::metadata(&path).map_or(0, |meta| meta.len()),
            path,
            issued: IssuedCommands::default(),
            partial: Vec::new(),
            hears: false,
            limits: BTreeMap::new(),
        }
    }

    /// What we give the daemon is to be added here.
    pub fn given(&self) -> IssuedCommands {
        self.issued.clone()
    }

    /// Whether the log names commands: without that, nothing is known of others.
    pub fn hears(&self) -> bool {
        self.hears
    }

    /// Whether all of a log of this many bytes was read.
    pub fn has_read(&self, len: u64) -> bool {
        self.offset == len && self.partial.is_empty()
    }

    /// The memory limit that a server last said it has, the same on each of its `devices`
    /// devices; `None` where it did not say so, or in words that are not understood.
    pub fn limit_of(&self, server: u32, devices: usize) -> Option<Mib> {
        let limits = self.limits.get(&server)?.as_ref()?;
        let first = *limits.values().next()?;
        let same = limits.values().all(|limit| *limit == first);
        (same && limits.keys().copied().eq(0..devices)).then_some(first)
    }

    /// Forgets what servers said so far: their limits are set again.
    pub fn forget_limits(&mut self) {
        self.limits.clear();
    }

    /// Reads on.
    pub fn look(&mut self) -> Heard {
        let mut heard = Heard::default();
        let Ok(len) = std::fs::metadata(&self.path).map(|meta| meta.len()) else {
            return heard;
        };
        if len < self.offset {
            // It was cut.
            self.offset = 0;
            self.partial.clear();
        }
        if len - self.offset > MAX_STEP {
            self.offset = len;
            self.partial.clear();
            self.limits.clear();
            heard.foreign = Some(ForeignCommand {
                command: "more than its log can be searched for".to_owned(),
                sets: true,
            });
            return heard;
        }
        let mut text = std::mem::take(&mut self.partial);
        // What cannot be read now is read at the next look.
        let read = read_from(&self.path, self.offset, len - self.offset, &mut text).unwrap_or(0);
        self.offset += read;
        let end = text.iter().rposition(|byte| *byte == b'\n');
        self.partial = text.split_off(end.map_or(0, |end| end + 1));
        for line in String::from_utf8_lossy(&text).lines() {
            self.apply(line, &mut heard);
        }
        heard
    }

    fn apply(&mut self, line: &str, heard: &mut Heard) {
        if let Some((server, said)) = of_server(line) {
            heard.server_wrote = true;
            heard.faulter = faulter(said).or(heard.faulter);
            let known = self.limits.contains_key(&server) || self.limits.len() < MAX_SERVERS;
            if let Some(limit) = limit(said).filter(|_| known) {
                let all = self
                    .limits
                    .entry(server)
                    .or_insert_with(|| Some(BTreeMap::new()));
                match (limit, all.as_mut()) {
                    (Some((device, mib)), Some(all)) => drop(all.insert(device, mib)),
                    _ => *all = None,
                }
            }
            return;
        }
        let said = line.split_once("Cmd:").and_then(|(_, said)| changing(said));
        if let Some(command) = said {
            if self.issued.take(&command) {
                self.hears = true;
            } else {
                heard
                    .foreign
                    .get_or_insert_with(|| ForeignCommand::new(&command));
            }
        }
    }
}

fn read_from(log: &Path, offset: u64, most: u64, into: &mut Vec<u8>) -> io::Result<u64> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(offset))?;
    Ok(file.take(most).read_to_end(into)? as u64)
}

/// `[2026-11-27 11:33:57.500 Server   520] …`: the server's pid, and what it says.
pub fn of_server(line: &str) -> Option<(u32, &str)> {
    let (head, said) = line.strip_prefix('[')?.split_once("] ")?;
    let mut words = head.split_whitespace().rev();
    let pid = answer::number(words.next()?)?;
    (words.next()? == "Server").then_some((pid, said))
}

/// `Client {PID: 2503, Context: 1} encountered a fatal GPU error.`
pub fn faulter(said: &str) -> Option<u32> {
    let client = said.strip_suffix(" encountered a fatal GPU error.")?;
    let (pid, _) = client.strip_prefix("Client {PID: ")?.split_once(',')?;
    answer::number(pid)
}

/// `Device pinned memory limit for device 0 set to 0x7d000000 bytes`: which device's, and how
/// much. `Some(None)`: it is about a limit and is not understood.
pub fn limit(said: &str) -> Option<Option<(usize, Mib)>> {
    let said = said.strip_prefix("Device pinned memory limit")?;
    let read = || {
        let (device, bytes) = said
            .strip_prefix(" for device ")?
            .split_once(" set to 0x")?;
        let digits = bytes.strip_suffix(" bytes")?;
        // A sign would be read, too.
        let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes = u64::from_str_radix(digits, 16).ok().filter(|_| hex)?;
        let whole = bytes % (1 << 20) == 0;
        Some((answer::number(device)?, whole.then_some(Mib(bytes >> 20))?))
    };
    Some(read())
}

#[cfg(test)]
mod tests;
