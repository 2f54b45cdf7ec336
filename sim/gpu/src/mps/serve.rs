//! `nvidia-cuda-mps-control -f`: the process.
//!
//! In: clients and the CLI on `control`. Out: admissions, answers. A client of another user than the
//! server's waits until the server has none left; `-multiuser-server` has one server of the
//! daemon's user for all users. A process with the daemon's user id, or of root, may command it:
//! this is the real one's weakness, and it is kept.

use std::io::{BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::commands;
use super::daemon::{Client, Daemon, DriverBehaviour, Inner};
use super::limits::{Limits, effective};
use super::log::Log;
use super::pipe::ServerPipe;
use crate::client::{Driver, read_message};
use crate::cuda::CudaError;
use crate::paths::{self, Root};
use crate::wire::Message;

/// Starts of a server that a client waits for before it gives up.
const START_ATTEMPTS: usize = 6;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    pid: i32,
    uid: u32,
    gid: u32,
}

/// Runs the daemon in this process.
pub(super) fn run(pipe: &Path, log_folder: &Path, multiuser: bool, foreground: bool) -> ExitCode {
    match start(pipe, log_folder, multiuser, foreground) {
        Ok(daemon) => {
            daemon.wait_for_end();
            daemon.clean_up();
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn start(
    pipe: &Path,
    log_folder: &Path,
    multiuser: bool,
    foreground: bool,
) -> Result<Arc<Daemon>, String> {
    for folder in [pipe, log_folder] {
        if !folder.exists() {
            std::fs::create_dir(folder)
                .map_err(|e| format!("Failed to create {}: {e}", folder.display()))?;
        }
    }
    let control = pipe.join("control");
    if paths::connect(&control).is_ok() {
        return Err("An instance of this daemon is already running".to_owned());
    }
    let log = Log::open(log_folder, foreground);
    let root = Root::from_env();
    // A daemon starts without a driver; its servers will not.
    let habits = Driver::connect(&root)
        .and_then(|mut d| d.call(&Message::new("habits")))
        .ok();
    let flag = |key: &str, otherwise: bool| {
        habits
            .as_ref()
            .and_then(|h| h.get(key))
            .map_or(otherwise, |text| text == "true")
    };
    let daemon = Arc::new(Daemon {
        pipe: pipe.to_owned(),
        log,
        habits: DriverBehaviour {
            needs_shm: flag("needs_shm", true),
            in_gib: flag("limits_read_back_in_gib", true),
        },
        multiuser,
        inner: Mutex::new(Inner {
            defaults: Limits::of_environment(|key| std::env::var(key).ok()),
            ..Inner::default()
        }),
        changed: Condvar::new(),
    });
    for (name, mode) in [("control", 0o666), ("control_privileged", 0o755)] {
        let path = pipe.join(name);
        let _ = std::fs::remove_file(&path);
        let listener =
            paths::bind(&path).map_err(|e| format!("Failed to bind {}: {e}", path.display()))?;
        let _ = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        let daemon = Arc::clone(&daemon);
        std::thread::spawn(move || accept_all(&listener, &daemon));
    }
    let _ = std::fs::write(pipe.join("control_lock"), []);
    super::log::discard(&pipe.join("log"))?;
    let pid = std::process::id();
    std::fs::write(pipe.join("nvidia-cuda-mps-control.pid"), format!("{pid}\n"))
        .map_err(|e| e.to_string())?;
    let version = habits
        .as_ref()
        .and_then(|h| h.get("cuda"))
        .map_or(0, |cuda| {
            let mut parts = cuda.split('.').map(|p| p.parse::<u32>().unwrap_or(0));
            parts.next().unwrap_or(0) * 1000 + parts.next().unwrap_or(0) * 10
        });
    daemon.log.control(&format!(
        "Starting control daemon using socket {}",
        control.display()
    ));
    daemon.log.control(&format!(
        "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={}",
        pipe.display()
    ));
    daemon
        .log
        .control(&format!("CUDA MPS Control binary version: {version}"));
    Ok(daemon)
}

fn accept_all(listener: &UnixListener, daemon: &Arc<Daemon>) {
    for stream in listener.incoming().flatten() {
        daemon.log.control("Accepting connection...");
        let daemon = Arc::clone(daemon);
        std::thread::spawn(move || daemon.connection(stream));
    }
}

impl Daemon {
    fn wait_for_end(&self) {
        let mut inner = self.inner();
        while !inner.ended {
            inner = self.wait(inner, Duration::from_mins(1));
        }
    }

    fn clean_up(&self) {
        self.log.control("Exiting");
        for name in [
            "control",
            "control_privileged",
            "log",
            "control_lock",
            "nvidia-cuda-mps-control.pid",
        ] {
            let _ = std::fs::remove_file(self.pipe.join(name));
        }
    }

    fn connection(self: &Arc<Self>, stream: UnixStream) {
        let Ok(credentials) =
            nix::sys::socket::getsockopt(&stream, nix::sys::socket::sockopt::PeerCredentials)
        else {
            return;
        };
        let peer = Peer {
            pid: credentials.pid(),
            uid: credentials.uid(),
            gid: credentials.gid(),
        };
        let Ok(mut writer) = stream.try_clone() else {
            return;
        };
        let mut reader = BufReader::new(stream);
        let mut ui = false;
        while let Ok(request) = read_message(&mut reader) {
            self.hang_if_told();
            let answer = match request.verb.as_str() {
                "UI" => {
                    if !ui {
                        self.log.control("NEW UI");
                        ui = true;
                    }
                    self.command(peer, &request)
                }
                "CLIENT" => {
                    self.client(peer, &mut reader, &mut writer);
                    return;
                }
                "SERVER" => return,
                _ => {
                    self.log.control("User did not send valid credentials");
                    return;
                }
            };
            if writer.write_all(format!("{answer}\n").as_bytes()).is_err() {
                break;
            }
            // The answer to `quit` is out; now the process may end.
            if self.inner().quitting && self.inner().server.is_none() {
                self.inner().ended = true;
                self.notify();
            }
        }
        if ui {
            self.log.control("UI closed");
        }
    }

    fn hang_if_told(&self) {
        let mut inner = self.inner();
        while inner.hanging {
            inner = self.wait(inner, Duration::from_mins(1));
        }
    }

    fn command(self: &Arc<Self>, peer: Peer, request: &Message) -> Message {
        if peer.uid != 0 && peer.uid != nix::unistd::geteuid().as_raw() {
            let text = format!(
                "Insufficient privileges for UID {}. Control deamon settings can only be modified \
                 by the user who started it or by the root user.",
                peer.uid
            );
            self.log.control(&text);
            return Message::ok().with_rows("lines", &[vec![text]]);
        }
        let command = request.get("command").unwrap_or_default();
        self.log.control(&format!("Cmd:{command}"));
        let lines = commands::run(self, &command);
        for line in &lines {
            self.log.control(line);
        }
        let rows: Vec<Vec<String>> = lines.into_iter().map(|line| vec![line]).collect();
        Message::ok().with_rows("lines", &rows)
    }

    /// One client, from its first word to its end.
    fn client(
        self: &Arc<Self>,
        peer: Peer,
        reader: &mut BufReader<UnixStream>,
        writer: &mut UnixStream,
    ) {
        let refuse = |writer: &mut UnixStream, code: u32, text: &str| {
            let _ = writer.write_all(
                format!("{}\n", Message::err(code, CudaError::name_of(code), text)).as_bytes(),
            );
        };
        let (server, devices, shm) = match self.admit(peer) {
            Ok(admitted) => admitted,
            Err((code, text)) => return refuse(writer, code, &text),
        };
        let rows: Vec<Vec<String>> = devices.iter().map(|uuid| vec![uuid.clone()]).collect();
        let welcome = Message::ok()
            .with("server", server.pid)
            .with_rows("devices", &rows)
            .with_some("shm", shm.as_ref().map(|(path, _)| path.display()));
        if writer.write_all(format!("{welcome}\n").as_bytes()).is_err() {
            return;
        }
        let Ok(request) = read_message(reader) else {
            return;
        };
        if shm.is_some_and(|(_, secret)| request.get("shm").as_deref() != Some(&secret)) {
            let text = "the server's shared memory is not in this process's /dev/shm";
            return refuse(writer, CudaError::MpsConnectionFailed.code(), text);
        }
        let answer = self.attach(&server, &devices, &request);
        let ticket = answer.as_ref().ok().and_then(|a| a.get("ticket"));
        match (answer, ticket) {
            (Ok(answer), Some(ticket)) => {
                let log = |text: &str| {
                    self.log
                        .server(&super::log::line("Server", server.pid, text));
                };
                let who = format!("{{PID: {}, Context ID: 0}}", peer.pid);
                log(&format!("Received new client request for {who}"));
                log(&format!("Client {who} connected"));
                self.inner().clients.push(Client {
                    server: server.pid,
                    ticket: ticket.clone(),
                    pid: peer.pid,
                });
                if writer.write_all(format!("{answer}\n").as_bytes()).is_ok() {
                    // Nothing more comes but the end of the client.
                    let _ = read_message(reader);
                }
                log("Receive command failed, assuming client exit");
                log("Client process disconnected");
                self.inner().clients.retain(|c| c.ticket != ticket);
                self.notify();
            }
            (Ok(_), None) => {}
            (Err((code, text)), _) => refuse(writer, code, &text),
        }
    }

    fn attach(
        &self,
        server: &Arc<ServerPipe>,
        devices: &[String],
        request: &Message,
    ) -> Result<Message, (u32, String)> {
        let limits = match self
            .inner()
            .server
            .as_ref()
            .filter(|s| s.pipe.pid == server.pid)
        {
            Some(server) => server.limits.clone(),
            None => {
                return Err((
                    CudaError::MpsRpcFailure.code(),
                    "the server died".to_owned(),
                ));
            }
        };
        let visible: Vec<usize> = request
            .rows("visible")
            .into_iter()
            .filter_map(|row| devices.iter().position(|d| Some(d) == row.first()))
            .collect();
        let (memory, percent) = effective(
            &limits,
            devices,
            &visible,
            request.get("pinned").as_deref(),
            request.get("percent").as_deref(),
        );
        let rows: Vec<Vec<String>> = memory
            .into_iter()
            .map(|(ordinal, mib)| vec![devices[ordinal].clone(), mib.to_string()])
            .collect();
        server
            .call(
                &Message::new("attach")
                    .with_rows("limits", &rows)
                    .with("percent", percent),
            )
            .map_err(|e| (e.code(), e.to_string()))
    }

    /// Finds or makes the server for this user, and waits for it.
    #[allow(clippy::type_complexity)]
    fn admit(
        self: &Arc<Self>,
        peer: Peer,
    ) -> Result<(Arc<ServerPipe>, Vec<String>, Option<(PathBuf, String)>), (u32, String)> {
        let own = nix::unistd::geteuid().as_raw();
        let uid = if self.multiuser { own } else { peer.uid };
        let refused = |text: String| (CudaError::MpsConnectionFailed.code(), text);
        let mut told = false;
        let mut attempts = 0;
        let mut inner = self.inner();
        loop {
            if inner.quitting {
                return Err(refused("the control daemon is shutting down".to_owned()));
            }
            if let Some(server) = &mut inner.server {
                if server.uid == uid
                    && !server.draining
                    && let Some(devices) = &server.devices
                {
                    if !told {
                        let who = format!("NEW CLIENT {} from user {}", peer.pid, peer.uid);
                        self.log.control(&format!("{who}: Server already exists"));
                    }
                    return Ok((
                        Arc::clone(&server.pipe),
                        devices.clone(),
                        server.shm.clone(),
                    ));
                }
                if server.uid != uid && server.devices.is_some() && !server.draining {
                    server.draining = true;
                    let pipe = Arc::clone(&server.pipe);
                    // Its answer does not matter: it ends, or it is dead already.
                    std::thread::spawn(move || pipe.call(&Message::new("drain")).map(drop));
                }
            } else {
                if attempts == START_ATTEMPTS {
                    return Err(refused("the MPS server does not start".to_owned()));
                }
                attempts += 1;
                self.spawn(&mut inner, uid, peer.gid).map_err(refused)?;
            }
            if !told {
                told = true;
                let who = format!("NEW CLIENT {} from user {}", peer.pid, peer.uid);
                self.log.control(&format!(
                    "{who}: Server is not ready, push client to pending list"
                ));
            }
            inner = self.wait(inner, Duration::from_millis(500));
        }
    }
}
