//! The MPS supervisor over its socket, against the simulated control daemon, driver and
//! tenants. Nothing here needs a GPU; without root, servers take one user's clients only.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(clippy::print_stdout, reason = "it is its own test runner")]

use agent::Config;
use agent::mps::{Client, ClientError, ServeError, serve};
use proto::mps::{Observation, Plan, Server, ServerState};
use serde_json::Value;
use sim_gpu::driver::{Driver, Options};
use sim_gpu::hardware::{Hardware, Preset};
use std::future::Future;
use std::io::{BufRead, BufReader, Write as _};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

type Test = fn() -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        const TESTS: &[(&str, Test)] = &[$((stringify!($name), || Box::pin($name()))),*];
    };
}

tests![
    a_planned_card_gets_a_ready_server_and_holds_its_tenant_to_the_limit,
    a_larger_limit_reaches_the_next_client_without_a_restart,
    a_card_out_of_the_plan_keeps_its_server_until_its_clients_end,
    a_daemon_that_died_is_seen_within_a_second_and_comes_back_after_its_clients,
    a_supervisor_that_returns_adopts_what_runs,
    a_hung_daemon_is_told_and_does_not_hold_up_another_card,
    a_limit_that_the_daemon_refuses_is_not_called_ready,
    a_terminated_client_loses_its_work_and_its_neighbour_does_not,
    a_fault_is_told_until_its_clients_are_gone,
    an_impossible_plan_is_refused_whole,
    only_one_supervisor_runs,
    a_missing_program_is_a_reason_and_not_an_end,
    isolated_servers_share_a_card_and_each_holds_its_own_tenant,
    a_card_without_a_server_gets_its_mode_and_its_slice_and_gives_it_back,
    a_limit_that_somebody_else_sets_is_told_and_set_right,
    a_killed_server_is_seen_at_once_and_comes_back,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if sim_gpu::is_multicall(&arguments) {
        return sim_gpu::multicall(arguments);
    }
    let filter = arguments
        .iter()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in TESTS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in TESTS {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(test())));
        if outcome.is_ok() {
            passed += 1;
            println!("test {name} ... ok");
        } else {
            failed += 1;
            println!("test {name} ... FAILED");
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed\n");
    ExitCode::from(u8::from(failed > 0))
}

/// A node with a simulated driver, and a supervisor on it.
struct Bench {
    folder: tempfile::TempDir,
    config: Config,
    cards: Vec<String>,
    client: Client,
    running: Option<(CancellationToken, JoinHandle<Result<(), ServeError>>)>,
    /// Dropped last but for the folder.
    driver: Option<Driver>,
}

impl Bench {
    async fn new(cards: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let driver = Driver::start(Options {
            root: root.clone(),
            hardware: Hardware::of(Preset::Rtx6000Ada, cards),
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
            ..Config::for_node("n1")
        };
        let client = Client::new(&config.mps_socket()).unwrap();
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

    async fn start(&mut self) {
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(self.config.clone(), stop.clone()));
        self.running = Some((stop, task));
        until("the service answers", async || {
            self.client.observe().await.ok()
        })
        .await;
    }

    async fn stop(&mut self) {
        let (stop, task) = self.running.take().unwrap();
        stop.cancel();
        task.await.unwrap().unwrap();
    }

    /// Ensures until the plan's servers are all in a state that stays.
    async fn ensure(&self, servers: &[(usize, u64, u32)]) -> Observation {
        let plan = self.plan(servers);
        until("the plan is carried out", async || {
            let seen = self.client.ensure(plan.clone()).await.unwrap();
            let done = seen.servers.len() == plan.servers.len()
                && seen.servers.iter().all(|server| server.state != "Starting");
            done.then_some(seen)
        })
        .await
    }

    fn plan(&self, servers: &[(usize, u64, u32)]) -> Plan {
        let servers = servers
            .iter()
            .map(|(card, memory, percent)| Server {
                name: self.cards[*card].clone(),
                gpu_uuids: vec![self.cards[*card].clone()],
                multiuser: true,
                exclusive: true,
                default_memory_mib: *memory,
                default_thread_percent: *percent,
            })
            .collect();
        Plan {
            servers,
            cards: Vec::new(),
        }
    }

    /// One card's server, once it is so.
    async fn server(
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
    fn tenant(&self, card: usize, server: &ServerState, script: &str) -> Tenant {
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
        link(Path::new(&server.shm_dir), "dev/shm");
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
    fn cli(&self, card: usize, command: &str) {
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

    fn daemon_pid(&self, card: usize) -> u32 {
        let place = self.config.mps_dir().join(&self.cards[card]);
        let text = std::fs::read_to_string(place.join("pipe/nvidia-cuda-mps-control.pid"));
        text.unwrap().trim().parse().unwrap()
    }

    fn compute_mode(&self, card: usize) -> String {
        let output = Command::new(self.config.driver_root.join("usr/bin/nvidia-smi"))
            .args(["-i", &self.cards[card]])
            .args(["--query-gpu=compute_mode", "--format=csv,noheader"])
            .env("SIM_ROOT", &self.config.driver_root)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn place(&self, card: usize) -> PathBuf {
        self.config.mps_dir().join(&self.cards[card])
    }

    /// Ends the supervisor and with it, since no tenant is left, every daemon.
    async fn end(mut self) {
        self.stop().await;
        assert_eq!(std::fs::read_dir(self.config.mps_dir()).unwrap().count(), 0);
    }
}

impl Drop for Bench {
    /// A test that failed leaves no daemon behind.
    fn drop(&mut self) {
        for card in 0..self.cards.len() {
            let file = self.place(card).join("pipe/nvidia-cuda-mps-control.pid");
            let pid = std::fs::read_to_string(file).ok();
            if let Some(pid) = pid.and_then(|text| text.trim().parse().ok()) {
                let group = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            }
            let _ = nix::mount::umount(&self.place(card).join("shm"));
        }
        drop(self.driver.take());
    }
}

/// A running workload.
struct Tenant {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Tenant {
    /// Reads up to the line of this verb.
    fn reach(&mut self, verb: &str) -> Value {
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

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn end(mut self) {
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

async fn until<T>(what: &str, mut so: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(value) = so().await {
            return value;
        }
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pids(server: &ServerState) -> Vec<u32> {
    server.clients.iter().map(|client| client.pid).collect()
}

async fn a_planned_card_gets_a_ready_server_and_holds_its_tenant_to_the_limit() {
    let bench = Bench::new(2).await;
    let seen = bench.ensure(&[(0, 2000, 50)]).await;
    let server = &seen.servers[0];
    assert_eq!(
        (server.state.as_str(), server.reason.as_str()),
        ("Ready", "")
    );
    // It reads back in whole GiB, rounded down, as on a real one; the log says the rest.
    assert_eq!(server.observed_default_memory_mib, 2000);
    assert_eq!(server.observed_default_thread_percent, 50);
    assert_eq!(server.restarts, 0);
    assert!(!server.driver_version.is_empty());
    assert_eq!(bench.compute_mode(0), "Exclusive_Process");
    assert_eq!(bench.compute_mode(1), "Default");
    let mut tenant = bench.tenant(0, server, "grow 100 hold");
    let refused = tenant.reach("grow");
    assert_eq!(refused["held_mib"].as_u64().unwrap() / 100, 19, "{refused}");
    let server = bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    assert_eq!(pids(&server), [tenant.pid()]);
    tenant.end();
    bench.end().await;
}

async fn a_larger_limit_reaches_the_next_client_without_a_restart() {
    let bench = Bench::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 50)]).await;
    let daemon = bench.daemon_pid(0);
    let mut small = bench.tenant(0, &seen.servers[0], "alloc 1000 hold");
    assert_eq!(small.reach("alloc")["ok"], true);
    let seen = bench.ensure(&[(0, 8192, 100)]).await;
    assert_eq!(seen.servers[0].observed_default_memory_mib, 8192);
    assert_eq!(seen.servers[0].observed_default_thread_percent, 100);
    let mut large = bench.tenant(0, &seen.servers[0], "alloc 7000 hold");
    assert_eq!(large.reach("alloc")["ok"], true);
    assert_eq!(bench.daemon_pid(0), daemon);
    small.end();
    large.end();
    bench.end().await;
}

async fn a_card_out_of_the_plan_keeps_its_server_until_its_clients_end() {
    let bench = Bench::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 await go alloc 100 hold");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    let seen = bench.client.ensure(Plan::default()).await.unwrap();
    assert_eq!(seen.servers[0].state, "Draining");
    assert_eq!(seen.servers[0].reason, "waits for 1 clients to end");
    assert_eq!(bench.compute_mode(0), "Exclusive_Process");
    tenant.end();
    until("the server is gone", async || {
        let seen = bench.client.observe().await.unwrap();
        seen.servers.is_empty().then_some(())
    })
    .await;
    assert_eq!(bench.compute_mode(0), "Default");
    assert!(!bench.place(0).exists());
    bench.end().await;
}

async fn a_daemon_that_died_is_seen_within_a_second_and_comes_back_after_its_clients() {
    let bench = Bench::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    let killed = Instant::now();
    bench.cli(0, "sim die");
    let dead = bench
        .server(0, "its death is seen", |s| s.state == "Dead")
        .await;
    // Within a second where the machine has nothing else to do; this one may be busy.
    assert!(
        killed.elapsed() < Duration::from_secs(3),
        "{:?}",
        killed.elapsed()
    );
    assert!(
        dead.reason.starts_with("the control daemon ended"),
        "{}",
        dead.reason
    );
    bench
        .server(0, "it waits for the client", |s| {
            s.reason.ends_with("waits for 1 clients of it")
        })
        .await;
    tenant.end();
    let back = bench.server(0, "it is back", |s| s.state == "Ready").await;
    assert_eq!(back.restarts, 1);
    let mut tenant = bench.tenant(0, &back, "alloc 101 hold");
    assert_eq!(tenant.reach("alloc")["ok"], true);
    tenant.end();
    bench.end().await;
}

async fn a_supervisor_that_returns_adopts_what_runs() {
    let mut bench = Bench::new(2).await;
    let seen = bench.ensure(&[(0, 2000, 50), (1, 2000, 50)]).await;
    let daemon = bench.daemon_pid(0);
    let of_first = seen
        .servers
        .iter()
        .find(|s| s.name == bench.cards[0])
        .unwrap();
    let mut tenant = bench.tenant(0, of_first, "alloc 100 sleep 1000");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    bench.stop().await;
    // The idle one ended with its supervisor, the other one did not.
    assert!(!bench.place(1).exists());
    bench.start().await;
    // Before the agent has a plan nothing changes.
    let adopted = bench
        .server(0, "it is adopted", |s| s.state == "Ready")
        .await;
    assert_eq!(pids(&adopted), [tenant.pid()]);
    let seen = bench.ensure(&[(0, 2000, 50)]).await;
    assert_eq!(seen.servers[0].state, "Ready");
    assert_eq!(seen.servers[0].restarts, 0);
    assert_eq!(bench.daemon_pid(0), daemon);
    tenant.end();
    bench.end().await;
}

async fn a_hung_daemon_is_told_and_does_not_hold_up_another_card() {
    let bench = Bench::new(2).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    // It hangs before it answers, so the command line would too.
    let place = bench.place(0);
    let mut hanging = Command::new(bench.config.mps_control())
        .env("CUDA_MPS_PIPE_DIRECTORY", place.join("pipe"))
        .env("SIM_ROOT", &bench.config.driver_root)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(hanging.stdin.as_mut().unwrap(), "sim hang").unwrap();
    let started = Instant::now();
    let plan = bench.plan(&[(0, 2000, 100), (1, 2000, 100)]);
    bench.client.ensure(plan).await.unwrap();
    bench
        .server(1, "the other card is ready", |s| s.state == "Ready")
        .await;
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let hung = bench
        .server(0, "it is told", |s| s.state == "ServerFault")
        .await;
    assert!(hung.reason.contains("does not answer"), "{}", hung.reason);
    // With its client gone it cannot say so: it is ended by hand, and comes back.
    tenant.end();
    let pid = nix::unistd::Pid::from_raw(bench.daemon_pid(0).cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    bench
        .server(0, "it is back", |s| s.state == "Ready" && s.restarts == 1)
        .await;
    let _ = hanging.kill();
    hanging.wait().unwrap();
    bench.end().await;
}

async fn a_limit_that_the_daemon_refuses_is_not_called_ready() {
    let bench = Bench::new(1).await;
    bench.ensure(&[(0, 2000, 100)]).await;
    bench.cli(0, "sim reject set_default_device_pinned_mem_limit");
    bench
        .client
        .ensure(bench.plan(&[(0, 9000, 100)]))
        .await
        .unwrap();
    let server = bench
        .server(0, "it is told", |s| !s.reason.is_empty())
        .await;
    assert_eq!(server.state, "Starting");
    assert!(
        server.reason.contains("was set to 9000 MiB and reads back"),
        "{}",
        server.reason
    );
    bench.cli(0, "sim reject nothing");
    bench.server(0, "it is ready", |s| s.state == "Ready").await;
    bench.end().await;
}

async fn a_terminated_client_loses_its_work_and_its_neighbour_does_not() {
    let bench = Bench::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let name = bench.cards[0].as_str();
    let go = bench.folder.path().join("go");
    let script = format!("alloc 100 await {} alloc 50 hold", go.display());
    let mut one = bench.tenant(0, &seen.servers[0], &script);
    let mut other = bench.tenant(0, &seen.servers[0], &format!("report {script}"));
    one.reach("alloc");
    other.reach("alloc");
    bench
        .server(0, "both are seen", |s| s.clients.len() == 2)
        .await;
    let gone = bench
        .client
        .terminate(name, vec![one.pid(), 1])
        .await
        .unwrap();
    assert_eq!(gone, [one.pid()]);
    std::fs::write(&go, "").unwrap();
    assert_eq!(one.reach("alloc")["ok"], false);
    assert_eq!(other.reach("alloc")["ok"], true);
    let nobody = bench.client.terminate("GPU-none", vec![1]).await;
    assert!(
        matches!(nobody, Err(ClientError::Unreachable(_))),
        "{nobody:?}"
    );
    one.end();
    other.end();
    bench.end().await;
}

async fn a_fault_is_told_until_its_clients_are_gone() {
    let bench = Bench::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
    tenant.reach("alloc");
    bench
        .server(0, "the client is seen", |s| !s.clients.is_empty())
        .await;
    bench.cli(0, "sim fault");
    let fault = bench
        .server(0, "it is told", |s| s.state == "ServerFault")
        .await;
    assert_eq!(
        fault.reason,
        "the server faulted; waits for 1 clients to end"
    );
    tenant.end();
    bench.server(0, "it is ready", |s| s.state == "Ready").await;
    bench.end().await;
}

async fn an_impossible_plan_is_refused_whole() {
    let bench = Bench::new(1).await;
    let good = bench.plan(&[(0, 2000, 100)]).servers[0].clone();
    let server = |change: fn(&mut Server)| {
        let mut server = good.clone();
        change(&mut server);
        server
    };
    for bad in [
        server(|s| s.name = "../x".into()),
        server(|s| s.default_thread_percent = 0),
        server(|s| s.default_thread_percent = 101),
        server(|s| s.gpu_uuids.clear()),
        good.clone(),
    ] {
        let servers = vec![good.clone(), bad.clone()];
        let answer = bench
            .client
            .ensure(Plan {
                servers,
                cards: Vec::new(),
            })
            .await;
        assert!(
            matches!(answer, Err(ClientError::Refused(_))),
            "{bad:?}: {answer:?}"
        );
    }
    assert_eq!(
        bench.client.observe().await.unwrap(),
        Observation::default()
    );
    bench.end().await;
}

async fn only_one_supervisor_runs() {
    let bench = Bench::new(1).await;
    let second = serve(bench.config.clone(), CancellationToken::new()).await;
    assert!(matches!(second, Err(ServeError::Running(_))), "{second:?}");
    bench.client.observe().await.unwrap();
    bench.end().await;
}

async fn a_missing_program_is_a_reason_and_not_an_end() {
    let mut bench = Bench::new(1).await;
    bench.stop().await;
    bench.config.mps_control = Some("/nowhere/nvidia-cuda-mps-control".into());
    bench.start().await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    assert_eq!(seen.servers[0].state, "Dead");
    let reason = &seen.servers[0].reason;
    assert!(
        reason.contains("/nowhere/nvidia-cuda-mps-control"),
        "{reason}"
    );
    until("it is given up", async || {
        let seen = bench.client.ensure(Plan::default()).await.unwrap();
        seen.servers.is_empty().then_some(())
    })
    .await;
    bench.end().await;
}

/// The plan of one share's own server.
fn isolated(bench: &Bench, name: &str, memory: u64) -> Server {
    Server {
        name: name.into(),
        gpu_uuids: vec![bench.cards[0].clone()],
        multiuser: true,
        exclusive: false,
        default_memory_mib: memory,
        default_thread_percent: 50,
    }
}

async fn isolated_servers_share_a_card_and_each_holds_its_own_tenant() {
    let bench = Bench::new(1).await;
    let plan = Plan {
        servers: vec![isolated(&bench, "aa", 2000), isolated(&bench, "bb", 3000)],
        cards: Vec::new(),
    };
    let seen = until("both are ready", async || {
        let seen = bench.client.ensure(plan.clone()).await.unwrap();
        seen.servers
            .iter()
            .all(|s| s.state == "Ready")
            .then_some(seen)
    })
    .await;
    assert_eq!(bench.compute_mode(0), "Default");
    for (server, limit) in seen.servers.iter().zip([2000, 3000]) {
        assert_eq!(server.observed_default_memory_mib, limit);
        let mut tenant = bench.tenant(0, server, "grow 100 hold");
        let grown = tenant.reach("grow");
        let held = grown["held_mib"].as_u64().unwrap();
        assert!(held <= limit && held > limit - 200, "{grown}");
        // A fault of one is the end of one.
        if limit == 2000 {
            tenant.end();
            let mut faulty = bench.tenant(0, server, "context fault hold");
            faulty.reach("fault");
        }
    }
    let both = Plan {
        servers: vec![
            isolated(&bench, "aa", 2000),
            Server {
                name: bench.cards[0].clone(),
                exclusive: true,
                ..isolated(&bench, "", 2000)
            },
        ],
        cards: Vec::new(),
    };
    let refused = bench.client.ensure(both).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(_)), "{refused}");
    bench.client.ensure(Plan::default()).await.unwrap();
    until("both are gone", async || {
        let seen = bench.client.observe().await.unwrap();
        seen.servers.is_empty().then_some(())
    })
    .await;
    bench.end().await;
}

async fn a_card_without_a_server_gets_its_mode_and_its_slice_and_gives_it_back() {
    let bench = Bench::new(1).await;
    let smi = |arguments: &[&str]| {
        let output = Command::new(bench.config.driver_root.join("usr/bin/nvidia-smi"))
            .args(arguments)
            .env("SIM_ROOT", &bench.config.driver_root)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    // As an agent that was killed may have left it.
    smi(&["-i", "0", "-c", "EXCLUSIVE_PROCESS"]);
    let plan = Plan {
        servers: Vec::new(),
        cards: vec![proto::mps::Card {
            uuid: bench.cards[0].clone(),
            time_slice: Some(3),
        }],
    };
    let seen = bench.client.ensure(plan).await.unwrap();
    assert!(seen.cards[0].ready, "{seen:?}");
    assert_eq!(bench.compute_mode(0), "Default");
    assert!(smi(&["compute-policy", "-l"]).contains("LONG"));
    bench.client.ensure(Plan::default()).await.unwrap();
    until("the driver's own slice is back", async || {
        smi(&["compute-policy", "-l"])
            .contains("DEFAULT")
            .then_some(())
    })
    .await;
    let wrong = Plan {
        servers: Vec::new(),
        cards: vec![proto::mps::Card {
            uuid: bench.cards[0].clone(),
            time_slice: Some(4),
        }],
    };
    let refused = bench.client.ensure(wrong).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused(_)), "{refused}");
    bench.end().await;
}

async fn a_limit_that_somebody_else_sets_is_told_and_set_right() {
    let bench = Bench::new(1).await;
    bench.ensure(&[(0, 2000, 100)]).await;
    bench.cli(0, "set_default_device_pinned_mem_limit 0 30000M");
    let told = bench
        .server(0, "it is told", |server| {
            !server.tampered.is_empty() && server.state == "Ready"
        })
        .await;
    assert_eq!(
        told.tampered,
        "the memory limit by default was set to 2000 MiB and reads \"29G\""
    );
    let mut tenant = bench.tenant(0, &told, "grow 100 hold");
    let held = tenant.reach("grow")["held_mib"].as_u64().unwrap();
    assert!(held <= 2000, "{held}");
    tenant.end();
    bench.client.ensure(Plan::default()).await.unwrap();
    bench.end().await;
}

async fn a_killed_server_is_seen_at_once_and_comes_back() {
    let bench = Bench::new(1).await;
    let seen = bench.ensure(&[(0, 2000, 100)]).await;
    let mut tenant = bench.tenant(0, &seen.servers[0], "alloc 100 hold");
    tenant.reach("hold");
    let client = bench
        .server(0, "its client", |server| !server.clients.is_empty())
        .await
        .clients[0];
    let server = nix::unistd::Pid::from_raw(client.server_pid.cast_signed());
    let mut changes = bench.client.watch().await.unwrap();
    let killed = Instant::now();
    nix::sys::signal::kill(server, nix::sys::signal::Signal::SIGKILL).unwrap();
    loop {
        let seen = changes.message().await.unwrap().unwrap();
        if seen.servers[0].state != "Ready" {
            break;
        }
    }
    assert!(
        killed.elapsed() < Duration::from_secs(1),
        "{:?}",
        killed.elapsed()
    );
    bench
        .server(0, "another one", |server| {
            server.state == "Ready" && server.clients.is_empty()
        })
        .await;
    tenant.end();
    bench.client.ensure(Plan::default()).await.unwrap();
    bench.end().await;
}
