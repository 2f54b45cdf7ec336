//! The state of the daemon: the pipe directory, the defaults, and at most one server at a time
//! (protocol 2), with its clients. Must never: keep anything over its own end.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::limits::Limits;
use super::log::Log;
use super::pipe::ServerPipe;
use crate::wire::Message;

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) pipe: PathBuf,
    pub(super) log: Log,
    pub(super) habits: DriverBehaviour,
    pub(super) multiuser: bool,
    pub(super) inner: Mutex<Inner>,
    pub(super) changed: Condvar,
}

/// What differs between drivers.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriverBehaviour {
    pub(super) needs_shm: bool,
    pub(super) in_gib: bool,
}

/// Everything that changes.
#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) defaults: Limits,
    pub(super) server: Option<Server>,
    pub(super) clients: Vec<Client>,
    pub(super) quitting: bool,
    pub(super) ended: bool,
    // Faults that a test asked for.
    pub(super) hanging: bool,
    pub(super) rejected: Option<String>,
}

/// The one server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) pipe: Arc<ServerPipe>,
    pub(super) uid: u32,
    pub(super) limits: Limits,
    /// Set once it is ready.
    pub(super) devices: Option<Vec<String>>,
    /// No new clients; it ends after the last.
    pub(super) draining: bool,
    /// It was seen to be in FAULT.
    pub(super) faulted: bool,
    pub(super) shm: Option<(PathBuf, String)>,
}

/// A client that was let in.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) server: u32,
    pub(super) ticket: String,
    /// As this daemon's pid namespace knows it, 0 where it does not.
    pub(super) pid: i32,
}

impl Daemon {
    /// The lock on everything that changes.
    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies all that wait for a server or an end.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits on the lock for a change, at most this long.
    pub(super) fn wait<'a>(
        &self,
        inner: MutexGuard<'a, Inner>,
        most: Duration,
    ) -> MutexGuard<'a, Inner> {
        self.changed
            .wait_timeout(inner, most)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Starts a server for a user. Ready is what its own lines say.
    pub(super) fn spawn(
        self: &Arc<Self>,
        inner: &mut Inner,
        uid: u32,
        gid: u32,
    ) -> Result<(), String> {
        let (pipe, lines) = ServerPipe::spawn(uid, gid, &self.pipe)?;
        self.log
            .control(&format!("Starting new server {} for user {uid}", pipe.pid));
        inner.server = Some(Server {
            pipe: Arc::clone(&pipe),
            uid,
            limits: inner.defaults.clone(),
            devices: None,
            draining: false,
            faulted: false,
            shm: None,
        });
        let daemon = Arc::clone(self);
        std::thread::spawn(move || {
            pipe.read(
                lines,
                |line| daemon.log.server(line),
                |devices| daemon.server_ready(pipe.pid, devices),
            );
            let status = pipe.reap();
            daemon
                .log
                .control(&format!("Server {} exited with status {status}", pipe.pid));
            let mut inner = daemon.inner();
            if let Some(server) = inner.server.take_if(|s| s.pipe.pid == pipe.pid)
                && let Some((path, _)) = server.shm
            {
                let _ = std::fs::remove_file(path);
            }
            drop(inner);
            daemon.notify();
        });
        Ok(())
    }

    /// The user of servers when all users share one.
    pub(super) fn shared_user(&self) -> Option<u32> {
        self.multiuser.then(|| nix::unistd::geteuid().as_raw())
    }

    fn server_ready(&self, pid: u32, devices: Vec<String>) {
        let mut inner = self.inner();
        let Some(server) = inner.server.as_mut().filter(|s| s.pipe.pid == pid) else {
            return;
        };
        let log = |text: &str| self.log.server(&super::log::line("Server", pid, text));
        if self.habits.needs_shm {
            let path = super::server::shared_memory(server.uid, pid);
            let nonce = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
            // Where it cannot be written, clients will not find it and be refused.
            let _ = std::fs::write(&path, &nonce).and_then(|()| {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))
            });
            // Its server's, which ends it even when this daemon is gone.
            let _ = std::os::unix::fs::chown(&path, Some(server.uid), None);
            log(&format!(
                "Created shared memory region cuda.shm.{:x}.{pid:x}.1",
                server.uid
            ));
            server.shm = Some((path, nonce.trim().to_owned()));
        } else {
            log(&format!(
                "Created anonymous shared memory region mps.shm.{}.{pid}",
                server.uid
            ));
        }
        log(&format!(
            "Active Threads Percentage set to {:.1}",
            server.limits.percent
        ));
        server.devices = Some(devices);
        self.log_limits(server);
        log(&format!(
            "Server Priority set to {}",
            server.limits.priority
        ));
        log("Server has started");
        drop(inner);
        self.log.control(&format!("NEW SERVER {pid}: Ready"));
        self.notify();
    }

    /// Writes a server's memory limits, as it does at its start and when one is set.
    pub(super) fn log_limits(&self, server: &Server) {
        let devices = server.devices.as_deref().unwrap_or_default();
        for ordinal in 0..devices.len() {
            if let Some(mib) = server.limits.memory_of(devices, ordinal) {
                let said = format!(
                    "Device pinned memory limit for device {ordinal} set to 0x{:x} bytes",
                    mib << 20
                );
                let line = super::log::line("Server", server.pipe.pid, &said);
                self.log.server(&line);
            }
        }
    }

    /// `quit`: no new clients, then the end of the server, waited for or, after
    /// `patience`, forced. The daemon ends once its answer is out.
    pub(super) fn quit(&self, patience: Option<Duration>) {
        let deadline = patience.map(|p| Instant::now() + p);
        let mut inner = self.inner();
        inner.quitting = true;
        if let Some(server) = &mut inner.server {
            server.draining = true;
            let pipe = Arc::clone(&server.pipe);
            std::thread::spawn(move || pipe.call(&Message::new("drain")).map(drop));
        }
        while let Some(server) = &inner.server {
            if deadline.is_some_and(|d| Instant::now() >= d) {
                server.pipe.kill();
            }
            inner = self.wait(inner, Duration::from_millis(20));
        }
        drop(inner);
        self.notify();
    }
}
