//! One control daemon: the task that owns it.
//!
//! In: its part of the plan, requests to terminate clients. Out: a [`Report`] whenever the visible
//! state has changed. It asks [`Machine`] for one action, carries it out, reports the result to the
//! machine, and repeats; nothing else decides.

use super::cgroup::DaemonCgroups;
use super::control::{self, Control};
use super::log::{DaemonLog, Heard};
use super::machine::{Action, Desired, Event, Machine, ProbeResult, Time};
use super::place::{Mounting, Place};
use super::process::{Process, Processes};
use super::program::Program;
use super::smi::{Smi, shares_memory_by_name};
use crate::gpu::{ComputeMode, DriverBranch};
use api::Mib;
use proto::mps::{Client, ServerState};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use tokio::process::Child;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{info, warn};

/// What all daemons of a node share.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `nvidia-cuda-mps-control`.
    pub control: Program,
    /// `nvidia-smi`.
    pub smi: Smi,
    /// The node's.
    pub processes: Processes,
    /// Above the daemons' directories.
    pub base: PathBuf,
    /// How they are created.
    pub mounting: Mounting,
    /// Where daemons outlive this container.
    pub cgroups: DaemonCgroups,
}

/// What a daemon serves; does not change while it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The cards.
    pub gpu_uuids: Vec<String>,
    /// One server for all users.
    pub multiuser: bool,
    /// `EXCLUSIVE_PROCESS`: the only server of its cards.
    pub exclusive: bool,
}

/// What the plan says, with the number of the plan.
#[derive(Clone, Debug)]
pub struct Order {
    /// Rises with each plan.
    pub generation: u64,
    /// `None`: as it was.
    pub spec: Option<Spec>,
    /// Whether and how.
    pub desired: Desired,
    /// How often its cards were seen in another compute mode than was set.
    pub mode_faults: u32,
}

/// What others see of a daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Of the last order that this takes into account.
    pub generation: u64,
    /// As the service answers it.
    pub state: ServerState,
}

/// Break off these clients' work; answers those that were.
#[derive(Debug)]
pub struct Terminate {
    /// On the host.
    pub pids: Vec<u32>,
    /// Dropped when the daemon cannot be reached.
    pub reply: oneshot::Sender<Vec<u32>>,
}

/// One daemon.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    spec: Spec,
    place: Place,
    tools: Arc<Tools>,
    machine: Machine,
    process: Option<Process>,
    /// While it is our child: to be reaped.
    child: Option<Child>,
    /// Clients that were seen, so that a pid used again is not taken for one of them.
    known: BTreeMap<u32, Process>,
    /// Servers that were seen.
    servers: Vec<Process>,
    /// What it and its servers write.
    log: DaemonLog,
    /// A server wrote something since that was last asked.
    server_wrote: bool,
    driver_version: String,
    mode_faults: u32,
    generation: u64,
    start: Instant,
}

impl Daemon {
    /// One that does not run.
    pub fn absent(name: &str, spec: Spec, place: Place, tools: Arc<Tools>) -> Self {
        Self::new(name, spec, place, tools, Machine::absent(), None)
    }

    /// The state of an existing place: a running daemon, or the files of an ended one.
    pub fn found(name: &str, spec: Spec, place: Place, tools: Arc<Tools>) -> Self {
        let process = tools.processes.daemon_of(&place.pipe());
        let machine = match process {
            Some(process) => {
                info!(server = name, pid = process.pid, "adopting an MPS daemon");
                Machine::adopted(Time::ZERO)
            }
            None => Machine::leftover(),
        };
        Self::new(name, spec, place, tools, machine, process)
    }

    fn new(
        name: &str,
        spec: Spec,
        place: Place,
        tools: Arc<Tools>,
        machine: Machine,
        process: Option<Process>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            spec,
            log: DaemonLog::begin(place.log_file()),
            server_wrote: false,
            place,
            tools,
            machine,
            process,
            child: None,
            known: BTreeMap::new(),
            servers: Vec::new(),
            driver_version: String::new(),
            mode_faults: 0,
            generation: 0,
            start: Instant::now(),
        }
    }

    /// Runs until the daemon is no longer wanted and has ended, or the supervisor leaves it to its
    /// clients.
    pub async fn run(
        mut self,
        mut orders: watch::Receiver<Order>,
        mut requests: mpsc::Receiver<Terminate>,
        reports: mpsc::Sender<Report>,
    ) -> String {
        let mut last = None;
        orders.mark_changed();
        loop {
            if orders.has_changed().unwrap_or(false) {
                let order = orders.borrow_and_update().clone();
                self.take(order);
            }
            if let Some(reason) = self.ended() {
                warn!(server = self.name, reason, "MPS daemon ended");
                self.machine.on(self.start.elapsed(), Event::Exited(reason));
            }
            if self.stirred() {
                self.machine.on(self.start.elapsed(), Event::Stirred);
            }
            let report = self.report();
            if last.as_ref() != Some(&report) {
                // A supervisor that has ended does not need it.
                let _ = reports.send(report.clone()).await;
                last = Some(report);
            }
            match self.machine.next(self.start.elapsed()) {
                Action::Finish => return self.name,
                Action::Wait(pause) => {
                    tokio::select! {
                        changed = orders.changed() => if changed.is_err() { return self.name },
                        Some(request) = requests.recv() => self.terminate(request).await,
                        () = tokio::time::sleep(pause) => {}
                    }
                    orders.mark_changed();
                }
                action => {
                    let event = self.act(action).await;
                    self.machine.on(self.start.elapsed(), event);
                }
            }
        }
    }

    fn take(&mut self, order: Order) {
        self.generation = order.generation;
        // An agent that starts again counts from 0 again, so any other number is news. An
        // order that wants nothing of the daemon has none.
        let wanted = matches!(order.desired, Desired::Wanted(_));
        if wanted && order.mode_faults != self.mode_faults {
            self.mode_faults = order.mode_faults;
            self.machine.on(self.start.elapsed(), Event::ModeLost);
        }
        if let Some(spec) = order.spec {
            self.spec = spec;
        }
        self.machine
            .on(self.start.elapsed(), Event::Desired(order.desired));
    }

    /// Reads the log on, and reports a command that was not ours and a client that faulted to the
    /// machine.
    fn listen(&mut self) {
        let Heard {
            foreign,
            server_wrote,
            faulter,
        } = self.log.look();
        self.server_wrote |= server_wrote;
        if let Some(pid) = faulter {
            let event = Event::ClientFaulted(pid);
            self.machine.on(self.start.elapsed(), event);
        }
        if let Some(foreign) = foreign {
            let command = foreign.command;
            warn!(
                server = self.name,
                command, "unexpected command on the MPS control pipe"
            );
            let what = format!("unexpected command on the MPS control pipe: {command:?}");
            let event = Event::Driven(what, foreign.sets);
            self.machine.on(self.start.elapsed(), event);
        }
    }

    async fn act(&mut self, action: Action) -> Event {
        let quiet = matches!(
            action,
            Action::Look | Action::Reach | Action::FindLeftovers(_) | Action::Verify(..)
        );
        if !quiet {
            info!(server = self.name, ?action, "MPS");
        }
        let done = |result: Result<(), String>| match result {
            Ok(()) => Event::Done,
            Err(reason) => Event::Failed(reason),
        };
        let control = self.control();
        let event = match action {
            Action::Prepare => done(self.prepare().await),
            Action::SetMode => done(self.set_mode(self.mode()).await),
            Action::Spawn => done(self.spawn().map_err(|e| self.cannot_spawn(&e))),
            Action::Reach => done(control.reach().await.map_err(|e| e.to_string())),
            Action::Configure(limits, servers) => {
                let devices = self.spec.gpu_uuids.len();
                // What servers have logged so far is about the previous limits.
                self.listen();
                self.log.forget_limits();
                match control.configure(limits, devices, &servers).await {
                    Ok(read_back) => Event::Configured(limits, read_back),
                    Err(error) => Event::Failed(error.to_string()),
                }
            }
            Action::StartServer => {
                let uid = nix::unistd::geteuid().as_raw();
                done(control.start_server(uid).await.map_err(|e| e.to_string()))
            }
            Action::Look => match control.look().await {
                Ok(sight) => {
                    self.remember(&sight);
                    // What a server wrote of its fault comes before its state.
                    self.listen();
                    let place = self.place.clone();
                    place.rotate_log(|len| {
                        self.listen();
                        self.log.has_read(len)
                    });
                    Event::Seen(sight)
                }
                Err(error) => Event::Failed(error.to_string()),
            },
            Action::Verify(limits, servers) => {
                let devices = self.spec.gpu_uuids.len();
                match control.verify(limits, devices, &servers).await {
                    Ok(verdict) => {
                        if let Err(what) = &verdict {
                            warn!(
                                server = self.name,
                                what, "MPS limits are not as they were set"
                            );
                        }
                        Event::Verified(verdict)
                    }
                    Err(error) => Event::Failed(error.to_string()),
                }
            }
            Action::Quit => done(control.quit().await.map_err(|e| e.to_string())),
            Action::Kill => {
                if let Some(process) = self.process {
                    self.tools.processes.kill(process);
                }
                Event::Done
            }
            Action::FindLeftovers(clients) => self.leftovers(clients),
            Action::KillServers(pids) => {
                for server in self.tools.processes.servers_of(&self.place.pipe()) {
                    if pids.contains(&server.pid) {
                        self.tools.processes.kill(server);
                    }
                }
                Event::Done
            }
            Action::CleanUp => {
                // On an exclusive card without a server, the first process would take it. A card of
                // another server has its mode already.
                let mode = if self.spec.exclusive {
                    self.set_mode(ComputeMode::Default).await
                } else {
                    Ok(())
                };
                self.tools.cgroups.remove(&self.name);
                done(mode.and_then(|()| self.place.remove().map_err(|e| e.to_string())))
            }
            Action::Wait(_) | Action::Finish => Event::Done,
        };
        if let Event::Failed(reason) = &event
            && !quiet
        {
            warn!(server = self.name, reason, "MPS");
        }
        event
    }

    async fn prepare(&mut self) -> Result<(), String> {
        let card = self.spec.gpu_uuids.first().ok_or("it has no cards")?;
        let version = self.tools.smi.driver_version(card).await;
        self.driver_version = version.map_err(|e| e.to_string())?;
        let branch = DriverBranch::of(&self.driver_version);
        let branch = branch.ok_or_else(|| {
            format!(
                "the driver's version {:?} is not understood",
                self.driver_version
            )
        })?;
        if self.starts_for_several_users() && !branch.serves_several_users() {
            return Err(format!(
                "the MPS server of driver {} takes clients of one user only (no -multiuser-server): upgrade the driver to r555 or later, or set the cards' mode to time-slicing in GpuNode.spec",
                self.driver_version
            ));
        }
        let shares_memory = shares_memory_by_name(branch);
        self.place
            .prepare(self.tools.mounting, shares_memory)
            .map_err(|e| e.to_string())
    }

    /// Returns whether the daemon is started with the option that only root may give.
    fn starts_for_several_users(&self) -> bool {
        self.spec.multiuser && nix::unistd::geteuid().is_root()
    }

    fn mode(&self) -> ComputeMode {
        if self.spec.exclusive {
            ComputeMode::ExclusiveProcess
        } else {
            ComputeMode::Default
        }
    }

    async fn set_mode(&mut self, mode: ComputeMode) -> Result<(), String> {
        for uuid in &self.spec.gpu_uuids {
            self.driver_version = self
                .tools
                .smi
                .set_compute_mode(uuid, mode)
                .await
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn control(&self) -> Control {
        Control::new(self.program(), self.log.given())
    }

    fn program(&self) -> Program {
        let (pipe, log) = (self.place.pipe(), self.place.log());
        let env = control::environment(&pipe, &log, &self.spec.gpu_uuids);
        self.tools.control.clone().with(env)
    }

    /// In the foreground and in a process group of its own: a child that a signal to us does not
    /// reach. It may outlive us: the next supervisor adopts it.
    fn spawn(&mut self) -> io::Result<()> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.place.log_file())?;
        log.set_len(0)?;
        self.log = DaemonLog::begin(self.place.log_file());
        let shm = self.place.shm();
        let mut command = self.program().command(shm.as_deref())?;
        command
            .arg(control::FOREGROUND)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        if self.starts_for_several_users() {
            command.arg(control::SEVERAL_USERS);
        } else if self.spec.multiuser {
            warn!(
                server = self.name,
                "not root: the MPS server takes only clients of this user"
            );
        }
        let child = command.spawn()?;
        // Before it starts a server.
        if let Some(pid) = child.id()
            && let Err(error) = self.tools.cgroups.take(pid, &self.name)
        {
            warn!(server = self.name, %error, "the MPS daemon cannot be moved out of this container's cgroup and would end with the container");
        }
        self.process = child.id().and_then(|pid| self.tools.processes.find(pid));
        self.child = Some(child);
        Ok(())
    }

    fn cannot_spawn(&self, error: &io::Error) -> String {
        format!(
            "cannot run {}: {error}",
            self.tools.control.path().display()
        )
    }

    /// Why, once its process is gone.
    fn ended(&mut self) -> Option<String> {
        if let Some(child) = &mut self.child {
            let status = match child.try_wait() {
                Ok(None) => return None,
                Ok(Some(status)) => status.to_string(),
                Err(error) => error.to_string(),
            };
            self.child = None;
            self.process = None;
            let words = self.place.last_words();
            return Some(format!("the control daemon ended: {status}: {words}"));
        }
        let process = self.process?;
        if self.tools.processes.lives(process) {
            return None;
        }
        self.process = None;
        Some("the control daemon ended".to_owned())
    }

    /// Whether a known server has ended, or a server wrote something: both are cheap to check, and
    /// a query to the daemon is not.
    fn stirred(&mut self) -> bool {
        let processes = &self.tools.processes;
        let before = self.servers.len();
        self.servers.retain(|server| processes.lives(*server));
        self.listen();
        std::mem::take(&mut self.server_wrote) || self.servers.len() < before
    }

    fn remember(&mut self, sight: &ProbeResult) {
        self.servers = sight
            .servers
            .iter()
            .filter_map(|(pid, _)| self.tools.processes.find(*pid))
            .collect();
        let pids: Vec<u32> = sight.clients.iter().map(|client| client.pid).collect();
        self.known.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            if let Some(process) = self.tools.processes.find(pid) {
                self.known.entry(pid).or_insert(process);
            }
        }
    }

    fn leftovers(&self, clients: Option<Vec<Client>>) -> Event {
        let processes = &self.tools.processes;
        let clients = match clients {
            Some(clients) => clients
                .into_iter()
                .filter(|client| {
                    self.known
                        .get(&client.pid)
                        .is_some_and(|process| processes.lives(*process))
                })
                .collect(),
            None => processes
                .with_mount_of(&self.place.pipe())
                .into_iter()
                .map(|process| Client {
                    pid: process.pid,
                    server_pid: 0,
                })
                .collect(),
        };
        let servers = processes.servers_of(&self.place.pipe());
        Event::Leftovers(clients, servers.into_iter().map(|s| s.pid).collect())
    }

    async fn terminate(&self, request: Terminate) {
        let control = self.control();
        let sight = match control.look().await {
            Ok(sight) => sight,
            Err(error) => {
                warn!(server = self.name, %error, "cannot terminate clients");
                return;
            }
        };
        let mut terminated = Vec::new();
        for client in sight.clients {
            if !request.pids.contains(&client.pid) {
                continue;
            }
            match control.terminate(client).await {
                Ok(true) => terminated.push(client.pid),
                Ok(false) => warn!(server = self.name, pid = client.pid, "not terminated"),
                Err(error) => warn!(server = self.name, pid = client.pid, %error, "not terminated"),
            }
        }
        // The caller may have given up.
        let _ = request.reply.send(terminated);
    }

    fn report(&self) -> Report {
        let view = self.machine.view();
        // A daemon answers in whole GiB; what its server wrote is used where both agree.
        let floor = view.observed.memory;
        // Where the log does not name commands, one that sets a limit would go unnoticed.
        let exact = match view.servers[..] {
            [server] if self.log.hears() => self.log.limit_of(server, self.spec.gpu_uuids.len()),
            _ => None,
        };
        let memory = exact.filter(|limit| limit.0 >> 10 == floor.0 >> 10);
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Report {
            generation: self.generation,
            state: ServerState {
                name: self.name.clone(),
                gpu_uuids: self.spec.gpu_uuids.clone(),
                phase: view.phase.into(),
                reason: view.reason,
                observed_default_memory_mib: memory.filter(|_| floor > Mib(0)).unwrap_or(floor).0,
                observed_default_thread_percent: view.observed.thread_percent.into(),
                clients: view.clients,
                driver_version: self.driver_version.clone(),
                restarts: view.restarts,
                pipe_dir: text(self.place.pipe()),
                tenant_dir: text(self.place.tenant()),
                shm_dir: self.place.shm().map_or_else(String::new, text),
                log_dir: text(self.place.log()),
                blamed_pid: view.blamed,
                tampered: view.tampered,
                losses: view.losses,
                server_pids: view.servers,
                ..ServerState::default()
            },
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
