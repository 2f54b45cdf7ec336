//! The control daemon's command language, protocol 2, behind typed functions.
//!
//! In: what is to be asked. Out: the answer, or why there is none. One program run per
//! exchange, with a time limit: the program blocks when its daemon hangs. Its exit status
//! says only that the daemon was reached, so every value that matters is read back, and an
//! answer of another form than the expected one is a failure. Whoever owns a [`Control`]
//! runs one exchange at a time.
//!
//! Protocol 3 (r615 and later) has other words for the same functions: a second
//! implementation of this file.

use super::audit::Given;
use super::machine::{Client, Limits, ReadBack, ServerStatus, Sight};
use super::program::Program;
use api::Mib;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

/// For an answer; a healthy daemon takes milliseconds.
const ANSWER: Duration = Duration::from_secs(2);
/// Seconds that `quit` gives a server that its clients have left.
const QUIT_SECONDS: u32 = 5;

/// How to reach one control daemon.
#[derive(Clone, Debug)]
pub struct Control {
    program: Program,
    given: Given,
}

/// Why there is no answer. All are worth another try.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The program does not run.
    #[error("cannot run {}: {source}", program.display())]
    Run {
        /// Which.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The daemon hangs.
    #[error("the control daemon does not answer {command:?} within {} s", after.as_secs())]
    TimedOut {
        /// The first of the commands.
        command: String,
        /// The limit.
        after: Duration,
    },
    /// The daemon is not there.
    #[error("the control daemon is not reached: {0}")]
    Unreached(String),
    /// It said something else than it should.
    #[error("the control daemon answers {answer:?} to {command:?}")]
    Unexpected {
        /// What was asked.
        command: String,
        /// All it said.
        answer: String,
    },
    /// A value is not what was set.
    #[error("{what} was set to {wanted} and reads back {answer:?}")]
    NotSet {
        /// Which value.
        what: String,
        /// As set.
        wanted: String,
        /// As read, with what the setting itself answered.
        answer: String,
    },
}

impl Control {
    /// By this program, with the daemon's directories in its environment. What changes
    /// something is added to `given`.
    pub fn new(program: Program, given: Given) -> Self {
        Self { program, given }
    }

    /// Whether the daemon answers at all.
    pub async fn reach(&self) -> Result<(), ControlError> {
        self.server_list().await.map(drop)
    }

    /// Servers, their states, their clients.
    pub async fn look(&self) -> Result<Sight, ControlError> {
        let mut sight = Sight::default();
        for server in self.server_list().await? {
            let commands = [
                format!("get_server_status {server}"),
                format!("get_client_list {server}"),
            ];
            let lines = self.exchange(&commands, ANSWER).await?;
            let Some(found) = parse_server(server, &lines) else {
                // It may have ended between the two questions.
                if self.server_list().await?.contains(&server) {
                    return Err(unexpected(&commands[0], &lines));
                }
                continue;
            };
            sight.servers.push((server, found.0));
            sight.clients.extend(found.1);
        }
        Ok(sight)
    }

    /// Asks for a server of this user. Answers before it is there.
    pub async fn start_server(&self, uid: u32) -> Result<(), ControlError> {
        // What it prints differs between drivers; whether it worked, a look tells.
        let command = format!("start_server -uid {uid}");
        self.exchange(&[command], ANSWER).await.map(drop)
    }

    /// Sets the daemon's defaults for its first `devices` devices, and the same on running
    /// servers for their next clients; reads all of it back.
    pub async fn configure(
        &self,
        limits: Limits,
        devices: usize,
        servers: &[u32],
    ) -> Result<ReadBack, ControlError> {
        let mut read_back = ReadBack::default();
        let percent = limits.thread_percent;
        let targets = std::iter::once(None).chain(servers.iter().copied().map(Some));
        for server in targets {
            // `set_default_x` and `set_x <server>`, `get_default_x` and `get_x <server>`.
            let word = |verb: &str, what: &str| match server {
                None => format!("{verb}_default_{what}"),
                Some(pid) => format!("{verb}_{what} {pid}"),
            };
            if limits.memory > Mib(0) {
                for device in 0..devices {
                    let what = format!("{} {device}", word("set", "device_pinned_mem_limit"));
                    let set = format!("{what} {}M", limits.memory.0);
                    let get = format!("{} {device}", word("get", "device_pinned_mem_limit"));
                    let (said, lines) = self.set_and_get(set, get).await?;
                    let answer = single(&lines).and_then(parse_memory);
                    match answer {
                        Some(answer) if answer.may_be(limits.memory) => {
                            read_back.memory = answer.floor();
                        }
                        _ => {
                            return Err(ControlError::NotSet {
                                what,
                                wanted: limits.memory.to_string(),
                                answer: [said, lines].concat().join("; "),
                            });
                        }
                    }
                }
            }
            let what = word("set", "active_thread_percentage");
            let (said, lines) = self
                .set_and_get(
                    format!("{what} {percent}"),
                    word("get", "active_thread_percentage"),
                )
                .await?;
            match single(&lines).and_then(parse_percent) {
                Some(answer) if answer == percent => read_back.thread_percent = answer,
                _ => {
                    return Err(ControlError::NotSet {
                        what,
                        wanted: format!("{percent} %"),
                        answer: [said, lines].concat().join("; "),
                    });
                }
            }
        }
        Ok(read_back)
    }

    /// Whether the daemon's defaults and the servers' own limits still are as they were set:
    /// whoever reaches the control pipe as its user can set others. `Err` inside: what is not.
    pub async fn verify(
        &self,
        limits: Limits,
        devices: usize,
        servers: &[u32],
    ) -> Result<Result<(), String>, ControlError> {
        let targets = std::iter::once(None).chain(servers.iter().copied().map(Some));
        for server in targets {
            let word = |what: &str| match server {
                None => format!("get_default_{what}"),
                Some(pid) => format!("get_{what} {pid}"),
            };
            let whose = server.map_or("by default".to_owned(), |pid| format!("of server {pid}"));
            if limits.memory > Mib(0) {
                for device in 0..devices {
                    let get = format!("{} {device}", word("device_pinned_mem_limit"));
                    let lines = self.exchange(&[get], ANSWER).await?;
                    let answer = single(&lines).and_then(parse_memory);
                    if !answer.is_some_and(|answer| answer.may_be(limits.memory)) {
                        let now = one_line(&lines.join("; "));
                        return Ok(Err(format!(
                            "the memory limit {whose} was set to {} and reads {now:?}",
                            limits.memory
                        )));
                    }
                }
            }
            let lines = self
                .exchange(&[word("active_thread_percentage")], ANSWER)
                .await?;
            if single(&lines).and_then(parse_percent) != Some(limits.thread_percent) {
                let now = one_line(&lines.join("; "));
                return Ok(Err(format!(
                    "the thread percentage {whose} was set to {} and reads {now:?}",
                    limits.thread_percent
                )));
            }
        }
        Ok(Ok(()))
    }

    /// Breaks off a client's GPU work; true when the daemon says that it did.
    pub async fn terminate(&self, client: Client) -> Result<bool, ControlError> {
        let command = format!("terminate_client {} {}", client.server, client.pid);
        let lines = self.exchange(&[command], ANSWER).await?;
        Ok(single(&lines) == Some("0"))
    }

    /// Ends the daemon and its servers.
    pub async fn quit(&self) -> Result<(), ControlError> {
        let limit = ANSWER + Duration::from_secs(u64::from(QUIT_SECONDS));
        let command = format!("quit -t {QUIT_SECONDS}");
        self.exchange(&[command], limit).await.map(drop)
    }

    async fn server_list(&self) -> Result<Vec<u32>, ControlError> {
        let command = "get_server_list".to_owned();
        let lines = self
            .exchange(std::slice::from_ref(&command), ANSWER)
            .await?;
        parse_pids(&lines).ok_or_else(|| unexpected(&command, &lines))
    }

    /// What the setting answered, which no two drivers word alike, and the value.
    async fn set_and_get(
        &self,
        set: String,
        get: String,
    ) -> Result<(Vec<String>, Vec<String>), ControlError> {
        let said = self.exchange(&[set], ANSWER).await?;
        let lines = self.exchange(&[get], ANSWER).await?;
        Ok((said, lines))
    }

    async fn exchange(
        &self,
        commands: &[String],
        limit: Duration,
    ) -> Result<Vec<String>, ControlError> {
        let run = |source| ControlError::Run {
            program: self.program.path().to_owned(),
            source,
        };
        let mut child = self
            .program
            .command(None)
            .map_err(run)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A program that was given up on must not wait for its daemon for ever.
            .kill_on_drop(true)
            .spawn()
            .map_err(run)?;
        for command in commands {
            self.given.add(command);
        }
        let mut text = commands.join("\n");
        text.push('\n');
        let whole = async {
            if let Some(mut input) = child.stdin.take() {
                // It may end before it has read: its answer and status tell.
                let _ = input.write_all(text.as_bytes()).await;
            }
            child.wait_with_output().await
        };
        let output = match tokio::time::timeout(limit, whole).await {
            Ok(output) => output.map_err(run)?,
            Err(_) => {
                return Err(ControlError::TimedOut {
                    command: commands.first().cloned().unwrap_or_default(),
                    after: limit,
                });
            }
        };
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let text = format!("{} {}", said.trim(), complaint.trim());
            return Err(ControlError::Unreached(one_line(&text)));
        }
        Ok(said
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect())
    }
}

/// What a daemon and its command line have in their environment.
pub fn environment(pipe: &Path, log: &Path, gpu_uuids: &[String]) -> [(&'static str, OsString); 3] {
    [
        ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_os_str().to_owned()),
        ("CUDA_MPS_LOG_DIRECTORY", log.as_os_str().to_owned()),
        ("CUDA_VISIBLE_DEVICES", gpu_uuids.join(",").into()),
    ]
}

/// A memory limit as a daemon prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// To the MiB.
    Exact(Mib),
    /// In whole GiB, rounded down: what `3840M` reads back as on real ones is `3G`.
    WholeGib(u64),
}

impl Answered {
    fn floor(self) -> Mib {
        match self {
            Self::Exact(mib) => mib,
            Self::WholeGib(gib) => Mib(gib << 10),
        }
    }

    fn may_be(self, wanted: Mib) -> bool {
        match self {
            Self::Exact(mib) => mib == wanted,
            Self::WholeGib(gib) => wanted.0 >> 10 == gib,
        }
    }
}

/// `3G`, `2000M`, `2000MB`.
fn parse_memory(text: &str) -> Option<Answered> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "G" | "GB" if number < 1 << 20 => Some(Answered::WholeGib(number)),
        "M" | "MB" => Some(Answered::Exact(Mib(number))),
        _ => None,
    }
}

/// `50.0`.
fn parse_percent(text: &str) -> Option<u8> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let whole: u8 = whole.parse().ok()?;
    (part.bytes().all(|byte| byte == b'0') && whole <= 100).then_some(whole)
}

fn parse_pids(lines: &[String]) -> Option<Vec<u32>> {
    lines.iter().map(|line| line.parse().ok()).collect()
}

/// A status, then client pids.
fn parse_server(server: u32, lines: &[String]) -> Option<(ServerStatus, Vec<Client>)> {
    let (first, rest) = lines.split_first()?;
    let status = match first.as_str() {
        "INITIALIZING" => ServerStatus::Initializing,
        "ACTIVE" => ServerStatus::Active,
        "FAULT" => ServerStatus::Fault,
        _ => return None,
    };
    let clients = parse_pids(rest)?
        .into_iter()
        .map(|pid| Client { pid, server })
        .collect();
    Some((status, clients))
}

fn single(lines: &[String]) -> Option<&str> {
    match lines {
        [line] => Some(line),
        _ => None,
    }
}

fn unexpected(command: &str, lines: &[String]) -> ControlError {
    ControlError::Unexpected {
        command: command.to_owned(),
        answer: one_line(&lines.join("; ")),
    }
}

fn one_line(text: &str) -> String {
    text.trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn memory_answers_are_read_in_every_form_that_was_seen() {
        let table = [
            ("2000M", Some(Answered::Exact(Mib(2000)))),
            ("2000MB", Some(Answered::Exact(Mib(2000)))),
            ("3G", Some(Answered::WholeGib(3))),
            ("", None),
            ("G", None),
            ("-1M", None),
            ("2000", None),
            ("set to 3G", None),
            ("99999999999999999999G", None),
            ("18446744073709551615G", None),
        ];
        for (text, answer) in table {
            assert_eq!(parse_memory(text), answer, "{text}");
        }
    }

    #[test]
    fn whole_gib_stand_for_every_limit_they_round_down_from() {
        let answer = Answered::WholeGib(3);
        assert!(answer.may_be(Mib(3072)) && answer.may_be(Mib(3840)) && answer.may_be(Mib(4095)));
        assert!(!answer.may_be(Mib(3071)) && !answer.may_be(Mib(4096)));
        assert_eq!(answer.floor(), Mib(3072));
    }

    #[test]
    fn percentages_are_whole_or_nothing() {
        assert_eq!(parse_percent("50.0"), Some(50));
        assert_eq!(parse_percent("100"), Some(100));
        for noise in ["", "50.5", "101.0", "-1", "nan", "Unknown command"] {
            assert_eq!(parse_percent(noise), None, "{noise}");
        }
    }

    #[test]
    fn a_servers_answer_is_its_status_and_its_clients() {
        let client = |pid| Client { pid, server: 7 };
        assert_eq!(
            parse_server(7, &lines("ACTIVE\n42\n43")),
            Some((ServerStatus::Active, vec![client(42), client(43)]))
        );
        assert_eq!(
            parse_server(7, &lines("FAULT")),
            Some((ServerStatus::Fault, vec![]))
        );
        for noise in ["", "42", "Server 7 not found", "ACTIVE\nnone"] {
            assert_eq!(parse_server(7, &lines(noise)), None, "{noise}");
        }
    }
}
