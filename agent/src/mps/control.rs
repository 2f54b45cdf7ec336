//! The control daemon's command language, protocol 2, behind typed functions.
//!
//! In: a command. Out: the answer, or why there is none. Each exchange runs the program once, with
//! a time limit: the program blocks when its daemon hangs. Its exit status says only that the
//! daemon was reached, so every value that matters is read back, and an answer of an unexpected
//! form is a failure. The owner of a [`Control`] runs one exchange at a time.
//!
//! Protocol 3 (r615 and later) has other words for the same functions: a second
//! implementation of this file.

use super::answer::{self, Answered, Value};
use super::audit::IssuedCommands;
use super::machine::{Limits, ProbeResult, ReadBack};
use super::program::Program;
use crate::line::one_line;
use api::Mib;
use proto::mps::Client;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

/// Makes the program the daemon itself, which stays a child.
pub const FOREGROUND: &str = "-f";
/// Makes the daemon start one server for all users. See
/// [`DriverBranch::serves_several_users`](crate::gpu::DriverBranch::serves_several_users).
pub const SEVERAL_USERS: &str = "-multiuser-server";

/// For an answer; a healthy daemon takes milliseconds.
const ANSWER: Duration = Duration::from_secs(2);
/// Seconds that `quit` gives a server that its clients have left.
const QUIT_SECONDS: u32 = 5;
/// Longest part of its output that is reported, in characters.
const SAID: usize = 200;

/// How to reach one control daemon.
#[derive(Clone, Debug)]
pub struct Control {
    program: Program,
    issued: IssuedCommands,
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
    /// The daemon does not run.
    #[error("the control daemon cannot be reached: {0}")]
    Unreached(String),
    /// Unexpected output.
    #[error("the control daemon answers {answer:?} to {command:?}")]
    Unexpected {
        /// The command.
        command: String,
        /// Its whole output.
        answer: String,
    },
    /// A value differs from what was set.
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
    pub fn new(program: Program, issued: IssuedCommands) -> Self {
        Self { program, issued }
    }

    /// Whether the daemon answers at all.
    pub async fn reach(&self) -> Result<(), ControlError> {
        self.server_list().await.map(drop)
    }

    /// Servers, their states, their clients.
    pub async fn look(&self) -> Result<ProbeResult, ControlError> {
        let mut sight = ProbeResult::default();
        for server in self.server_list().await? {
            let commands = [
                format!("get_server_status {server}"),
                format!("get_client_list {server}"),
            ];
            let lines = self.exchange(&commands, ANSWER).await?;
            let Some(found) = answer::server(server, &lines) else {
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
        // The output differs between drivers; whether it worked is read back.
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
        let settings = settings(limits, devices, servers);
        let commands: Vec<String> = settings.iter().map(Setting::command).collect();
        self.issued.settings_are(&commands);
        let mut read_back = ReadBack::default();
        for (setting, command) in settings.into_iter().zip(commands) {
            // The wording of its answer differs between drivers.
            let said = self.exchange(&[command], ANSWER).await?;
            let lines = self.exchange(&[setting.question()], ANSWER).await?;
            match setting.value.read(&lines) {
                Some(Answered::Memory(memory)) => read_back.memory = memory,
                Some(Answered::Percent(percent)) => read_back.thread_percent = percent,
                None => {
                    return Err(ControlError::NotSet {
                        what: setting.name("set"),
                        wanted: setting.value.to_string(),
                        answer: one_line(&[said, lines].concat().join("; "), SAID),
                    });
                }
            }
        }
        Ok(read_back)
    }

    /// Whether the daemon's defaults and the servers' own limits are still as they were set: a
    /// process that reaches the control pipe as the daemon's user can change them. `Err` inside:
    /// the one that differs.
    pub async fn verify(
        &self,
        limits: Limits,
        devices: usize,
        servers: &[u32],
    ) -> Result<Result<(), String>, ControlError> {
        for setting in settings(limits, devices, servers) {
            let lines = self.exchange(&[setting.question()], ANSWER).await?;
            if setting.value.read(&lines).is_none() {
                let what = match setting.value {
                    Value::Memory(_) => "memory limit",
                    Value::Percent(_) => "thread percentage",
                };
                let server = setting.server;
                let whose =
                    server.map_or("by default".to_owned(), |pid| format!("of server {pid}"));
                return Ok(Err(format!(
                    "the {what} {whose} was set to {} and reads {:?}",
                    setting.value,
                    one_line(&lines.join("; "), SAID)
                )));
            }
        }
        Ok(Ok(()))
    }

    /// Breaks off a client's GPU work; true when the daemon says that it did.
    pub async fn terminate(&self, client: Client) -> Result<bool, ControlError> {
        let command = format!("terminate_client {} {}", client.server_pid, client.pid);
        let lines = self.exchange(&[command], ANSWER).await?;
        Ok(answer::single(&lines) == Some("0"))
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
        answer::pids(&lines).ok_or_else(|| unexpected(&command, &lines))
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
            // A program whose time limit has passed must not wait for its daemon without end.
            .kill_on_drop(true)
            .spawn()
            .map_err(run)?;
        for command in commands {
            self.issued.add(command);
        }
        let mut text = commands.join("\n");
        text.push('\n');
        let whole = async {
            if let Some(mut input) = child.stdin.take() {
                // It may end before it has read: its output and status show that.
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
            return Err(ControlError::Unreached(one_line(&text, SAID)));
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

/// One limit of a daemon, or of one of its servers.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// `None`: the default of those that start.
    server: Option<u32>,
    /// Which device's, where it is a device's.
    device: Option<usize>,
    value: Value,
}

/// All that these limits are, in the order in which they are set.
fn settings(limits: Limits, devices: usize, servers: &[u32]) -> Vec<Setting> {
    let targets = std::iter::once(None).chain(servers.iter().copied().map(Some));
    let devices = if limits.memory > Mib(0) { devices } else { 0 };
    let of_one = move |server| {
        let memory = (0..devices).map(move |device| Setting {
            server,
            device: Some(device),
            value: Value::Memory(limits.memory),
        });
        memory.chain([Setting {
            server,
            device: None,
            value: Value::Percent(limits.thread_percent),
        }])
    };
    targets.flat_map(of_one).collect()
}

impl Setting {
    /// `set_default_x` and `set_x <server>`, `get_default_x` and `get_x <server>`.
    fn name(&self, verb: &str) -> String {
        let what = match self.value {
            Value::Memory(_) => "device_pinned_mem_limit",
            Value::Percent(_) => "active_thread_percentage",
        };
        let name = match self.server {
            None => format!("{verb}_default_{what}"),
            Some(pid) => format!("{verb}_{what} {pid}"),
        };
        match self.device {
            None => name,
            Some(device) => format!("{name} {device}"),
        }
    }

    fn command(&self) -> String {
        let value = match self.value {
            Value::Memory(memory) => format!("{}M", memory.0),
            Value::Percent(percent) => percent.to_string(),
        };
        format!("{} {value}", self.name("set"))
    }

    fn question(&self) -> String {
        self.name("get")
    }
}

fn unexpected(command: &str, lines: &[String]) -> ControlError {
    ControlError::Unexpected {
        command: command.to_owned(),
        answer: one_line(&lines.join("; "), SAID),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_set_by_default_and_then_on_each_server() {
        let limits = Limits {
            memory: Mib(2000),
            thread_percent: 50,
        };
        let commands = |limits, devices, servers: &[u32]| -> Vec<String> {
            let settings = settings(limits, devices, servers);
            settings.iter().map(Setting::command).collect()
        };
        assert_eq!(
            commands(limits, 2, &[7]),
            [
                "set_default_device_pinned_mem_limit 0 2000M",
                "set_default_device_pinned_mem_limit 1 2000M",
                "set_default_active_thread_percentage 50",
                "set_device_pinned_mem_limit 7 0 2000M",
                "set_device_pinned_mem_limit 7 1 2000M",
                "set_active_thread_percentage 7 50",
            ]
        );
        let unlimited = Limits {
            memory: Mib(0),
            ..limits
        };
        let percent = ["set_default_active_thread_percentage 50"];
        assert_eq!(commands(unlimited, 2, &[]), percent);
    }
}
