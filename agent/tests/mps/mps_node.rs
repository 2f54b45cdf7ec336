//! A node with a simulated driver and a supervisor on it, and tenants.

use agent::Config;
use agent::mps::{ServeError, SupervisorClient, serve};
use proto::mps::{Observation, Plan, Server, ServerPhase, ServerState};
use serde_json::Value;
use sim_gpu::driver::{Driver, Options};
use sim_gpu::hardware::{Hardware, Preset};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A node with a simulated driver, and a supervisor on it.
pub(crate) struct MpsNode {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) config: Config,
    pub(crate) cards: Vec<String>,
    pub(crate) client: SupervisorClient,
    pub(crate) running: Option<(CancellationToken, JoinHandle<Result<(), ServeError>>)>,
    /// Dropped last but for the folder.
    pub(crate) driver: Option<Driver>,
}

impl MpsNode {
    pub(crate) async fn new(cards: u32) -> Self {
        Self::of(Hardware::of(Preset::Rtx6000Ada, cards)).await
    }

    pub(crate) async fn with_driver(cards: u32, version: &str) -> Self {
        Self::of(Hardware {
            driver_version: version.to_owned(),
            ..Hardware::of(Preset::Rtx6000Ada, cards)
        })
        .await
    }

    async fn of(hardware: Hardware) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let driver = Driver::start(Options {
            root: root.clone(),
            hardware,
            nvml_library: None,
            plain_nodes: true,
            binary: Some(std::env::current_exe().unwrap()),
        })
        .unwrap();
        let cards = driver
            .cards()
            .iter()
            .map(|card| card.uuid.clone())
            .collect();
        let config = Config {
            run_dir: folder.path().join("run"),
            driver_root: root.clone(),
            mps_env: vec![format!("SIM_ROOT={}", root.display())],
            mps_mounts: agent::mps::may_mount(),
            ..Config::for_node("n1")
        };
        let client = SupervisorClient::new(&config.mps_socket()).unwrap();
        let mut bench = Self {
            folder,
            config,
            cards,
            client,
            running: None,
            driver: Some(driver),
        };
        bench.start().await;
        bench
    }

    pub(crate) async fn start(&mut self) {
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(self.config.clone(), stop.clone()));
        self.running = Some((stop, task));
        until("the service answers", async || {
            self.client.observe().await.ok()
        })
        .await;
    }

    pub(crate) async fn stop(&mut self) {
        let (stop, task) = self.running.take().unwrap();
        stop.cancel();
        task.await.unwrap().unwrap();
    }

    /// Ensures until the plan's servers are all in a state that stays.
    pub(crate) async fn ensure(&self, servers: &[(usize, u64, u32)]) -> Observation {
        let plan = self.plan(servers);
        until("the plan is carried out", async || {
            let seen = self.client.ensure(plan.clone()).await.unwrap();
            let done = seen.servers.len() == plan.servers.len()
                && seen
                    .servers
                    .iter()
                    .all(|server| server.phase() != ServerPhase::Starting);
            done.then_some(seen)
        })
        .await
    }

    pub(crate) fn plan(&self, servers: &[(usize, u64, u32)]) -> Plan {
        let servers = servers
            .iter()
            .map(|(card, memory, percent)| Server {
                name: self.cards[*card].clone(),
                gpu_uuids: vec![self.cards[*card].clone()],
                multiuser: true,
                exclusive: true,
                default_memory_mib: *memory,
                default_thread_percent: *percent,
                compute_mode_faults: 0,
            })
            .collect();
        Plan {
            probes: Vec::new(),
            servers,
            cards: Vec::new(),
        }
    }

    /// One card's server, once it is so.
    pub(crate) async fn server(
        &self,
        card: usize,
        what: &str,
        so: impl Fn(&ServerState) -> bool,
    ) -> ServerState {
        until(what, async || {
            let seen = self.client.observe().await.unwrap();
            let name = &self.cards[card];
            seen.servers
                .into_iter()
                .find(|server| server.name == *name && so(server))
        })
        .await
    }

    /// A workload with this card and this server's directories, as a container would be.
    pub(crate) fn tenant(&self, card: usize, server: &ServerState, script: &str) -> Tenant {
        let root = self
            .folder
            .path()
            .join("containers")
            .join(script.replace([' ', '/'], "_"));
        let link = |from: &Path, to: &str| {
            let to = root.join(to);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            let _ = std::fs::remove_file(&to);
            std::os::unix::fs::symlink(from, to).unwrap();
        };
        let driver = &self.config.driver_root;
        for node in ["nvidiactl", "nvidia-uvm", &format!("nvidia{card}")] {
            link(&driver.join("dev").join(node), &format!("dev/{node}"));
        }
        let socket = "run/nvidia-persistenced/socket";
        link(&driver.join(socket), socket);
        if !server.shm_dir.is_empty() {
            link(Path::new(&server.shm_dir), "dev/shm");
        }
        link(Path::new(&server.pipe_dir), "run/aliquot/mps/pipe");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["sim-gpu", "workload"])
            .env("SIM_ROOT", &root)
            .env("SIM_WORKLOAD", script)
            .env("CUDA_MPS_PIPE_DIRECTORY", "/run/aliquot/mps/pipe")
            .env("CUDA_VISIBLE_DEVICES", &self.cards[card])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Tenant { child, lines }
    }

    /// The control daemon's command line, as an administrator would use it.
    pub(crate) fn cli(&self, card: usize, command: &str) {
        let place = self.config.mps_dir().join(&self.cards[card]);
        let mut child = Command::new(self.config.mps_control())
            .env("CUDA_MPS_PIPE_DIRECTORY", place.join("pipe"))
            .env("SIM_ROOT", &self.config.driver_root)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let _ = writeln!(child.stdin.take().unwrap(), "{command}");
        child.wait().unwrap();
    }

    pub(crate) fn daemon_pid(&self, card: usize) -> u32 {
        let place = self.config.mps_dir().join(&self.cards[card]);
        let text = std::fs::read_to_string(place.join("pipe/nvidia-cuda-mps-control.pid"));
        text.unwrap().trim().parse().unwrap()
    }

    pub(crate) fn compute_mode(&self, card: usize) -> String {
        let output = Command::new(self.config.driver_root.join("usr/bin/nvidia-smi"))
            .args(["-i", &self.cards[card]])
            .args(["--query-gpu=compute_mode", "--format=csv,noheader"])
            .env("SIM_ROOT", &self.config.driver_root)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(crate) fn place(&self, card: usize) -> PathBuf {
        self.config.mps_dir().join(&self.cards[card])
    }

    /// Ends the supervisor and with it, since no tenant is left, every daemon.
    pub(crate) async fn end(mut self) {
        self.stop().await;
        assert_eq!(std::fs::read_dir(self.config.mps_dir()).unwrap().count(), 0);
    }
}

impl Drop for MpsNode {
    /// A test that failed leaves no daemon behind.
    fn drop(&mut self) {
        for card in 0..self.cards.len() {
            let file = self.place(card).join("pipe/nvidia-cuda-mps-control.pid");
            let pid = std::fs::read_to_string(file).ok();
            if let Some(pid) = pid.and_then(|text| text.trim().parse().ok()) {
                let group = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            }
            for part in ["tenant/pipe", "tenant", "pipe", "shm"] {
                let _ = nix::mount::umount(&self.place(card).join(part));
            }
        }
        drop(self.driver.take());
    }
}

/// A running workload.
pub(crate) struct Tenant {
    pub(crate) child: Child,
    pub(crate) lines: BufReader<ChildStdout>,
}

impl Tenant {
    /// Reads up to the line of this verb.
    pub(crate) fn reach(&mut self, verb: &str) -> Value {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "the workload ended before `{verb}`");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["do"] == verb {
                return line;
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn end(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn until<T>(what: &str, mut so: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = so().await {
            return value;
        }
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn pids(server: &ServerState) -> Vec<u32> {
    server.clients.iter().map(|client| client.pid).collect()
}
