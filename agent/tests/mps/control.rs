//! Claims about the control daemon's command language: NVIDIA's own daemons, and the simulated one.
//!
//! `ALIQUOT_MPS` names the folders of NVIDIA's programs as `BRANCH=FOLDER`, with colons between
//! them; `tests/mps/fetch` has them. A branch that it does not name is ignored. A daemon needs no
//! card until a server of its own does, and a program that sleeps stands in for the server.

use super::mps_node::{MpsNode, until};
use agent::gpu::DriverBranch;
use agent::mps::audit::ForeignCommand;
use agent::mps::control::{Control, ControlError, FOREGROUND, SEVERAL_USERS, environment};
use agent::mps::log::DaemonLog;
use agent::mps::machine::{Limits, ProbeResult, ReadBack, ServerStatus};
use agent::mps::program::Program;
use api::Mib;
use driver_root::DriverRoot;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proto::mps::Client;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const GPU: &str = "GPU-73434bbc-93a8-a022-f13d-7dc939b6de7b";

/// What 535, 550 and 555 answer where no server runs, in this order, each with exit status 0.
const ANSWERS: &[(&str, &str)] = &[
    ("get_server_list", ""),
    ("get_default_active_thread_percentage", "100.0"),
    ("set_default_active_thread_percentage 50", "50.0"),
    // A refused percentage answers the one that still holds.
    ("set_default_active_thread_percentage 0", "50.0"),
    ("set_default_active_thread_percentage 101", "50.0"),
    ("set_default_active_thread_percentage abc", "50.0"),
    ("set_default_active_thread_percentage 33.3", "33.3"),
    ("get_default_active_thread_percentage", "33.3"),
    // A limit is set without a word, whatever it is.
    ("get_default_device_pinned_mem_limit 0", ""),
    ("set_default_device_pinned_mem_limit 0 2000M", ""),
    ("get_default_device_pinned_mem_limit 0", "1G"),
    ("set_default_device_pinned_mem_limit 0 1023M", ""),
    ("get_default_device_pinned_mem_limit 0", "1023M"),
    ("set_default_device_pinned_mem_limit 0 2T", ""),
    ("get_default_device_pinned_mem_limit 0", "2M"),
    ("set_default_device_pinned_mem_limit 0 -1M", ""),
    ("get_default_device_pinned_mem_limit 0", "17179869183G"),
    ("set_default_device_pinned_mem_limit 0 abc", ""),
    ("get_default_device_pinned_mem_limit 0", ""),
    ("set_default_device_pinned_mem_limit 31 3G", ""),
    ("get_default_device_pinned_mem_limit 31", "3G"),
    ("set_default_device_pinned_mem_limit 32 3G", ""),
    ("get_default_device_pinned_mem_limit 32", ""),
    ("set_default_client_priority 1", ""),
    (
        "set_default_client_priority 7",
        "Invalid priority value - must be 0 or 1!",
    ),
    ("get_client_list 1", "Server 1 not found"),
    ("set_active_thread_percentage 1 50", "Server 1 not found"),
    ("get_active_thread_percentage 1", "Server 1 not found"),
    ("set_device_pinned_mem_limit 1 0 2G", "Server 1 not found"),
    ("get_device_pinned_mem_limit 1 0", "Server 1 not found"),
    (
        "terminate_client 1 2",
        "Server 1 not found\nServer 1 not found!\n1",
    ),
    ("nonsense", "Unknown command \"nonsense\""),
    ("namespace list", "Unknown command \"namespace\""),
];

/// Why a test cannot be run here; none for those that are about no daemon of NVIDIA's.
pub(crate) fn lacks(test: &str) -> Option<String> {
    let branch = test.split("the_daemon_of_").nth(1)?.split('_').next()?;
    let missing = programs(branch).is_none();
    missing.then(|| format!("ALIQUOT_MPS has no {branch}= (tests/mps/fetch {branch})"))
}

fn programs(branch: &str) -> Option<PathBuf> {
    let all = std::env::var("ALIQUOT_MPS").ok()?;
    let named = all.split(':').find_map(|one| {
        let (name, folder) = one.split_once('=')?;
        (name == branch).then(|| PathBuf::from(folder))
    });
    named.filter(|folder| !folder.as_os_str().is_empty())
}

pub(crate) async fn the_daemon_of_535_is_told_everything_and_read_back() {
    nvidias(535).await;
}

pub(crate) async fn the_daemon_of_550_is_told_everything_and_read_back() {
    nvidias(550).await;
}

pub(crate) async fn the_daemon_of_555_is_told_everything_and_read_back() {
    nvidias(555).await;
}

pub(crate) async fn the_simulated_daemon_answers_as_nvidias_do() {
    let node = MpsNode::new(1).await;
    let root = ("SIM_ROOT", node.config.driver_root.as_os_str());
    let folder = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(folder.path(), &node.config.mps_control(), &[root], &[]).await;
    daemon.answers();
    daemon.takes_limits().await;
    daemon.hears_others();
    daemon.ends().await;
    node.end().await;
}

pub(crate) async fn a_driver_without_a_server_for_several_users_is_refused_by_name() {
    if !nix::unistd::geteuid().is_root() {
        // Without root a server is for one user with every driver.
        return;
    }
    let node = MpsNode::with_driver(1, "550.163.01").await;
    let seen = node.ensure(&[(0, 2000, 50)]).await;
    let reason = &seen.servers[0].reason;
    assert!(
        reason.contains("driver 550.163.01") && reason.contains("r555 or later"),
        "{reason}"
    );
    node.client.ensure(node.plan(&[])).await.unwrap();
    until("the server is gone", async || {
        let seen = node.client.observe().await.unwrap();
        seen.servers.is_empty().then_some(())
    })
    .await;
    node.end().await;
}

/// Everything that the agent says to a daemon, and every parser over what NVIDIA's answers.
async fn nvidias(branch: u32) {
    let folder = tempfile::tempdir().unwrap();
    let programs = programs(&branch.to_string()).unwrap();
    let control = programs.join("nvidia-cuda-mps-control");
    let stand_in = folder.path().join("bin");
    std::fs::create_dir(&stand_in).unwrap();
    let server = stand_in.join("nvidia-cuda-mps-server");
    std::fs::write(&server, "#!/bin/sh\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&server, Permissions::from_mode(0o755)).unwrap();
    let path = OsString::from(format!("{}:/usr/bin:/bin", stand_in.display()));
    let env = [("PATH", path.as_os_str())];
    let several = DriverBranch(branch).serves_several_users();
    if !several {
        // It takes itself for a client where it does not know the option.
        let started = Command::new(&control)
            .args([FOREGROUND, SEVERAL_USERS])
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.path())
            .output()
            .unwrap();
        assert!(!started.status.success(), "{started:?}");
        let said = String::from_utf8_lossy(&started.stderr);
        assert_eq!(said.trim(), "Cannot find MPS control daemon process");
    }
    let option = [SEVERAL_USERS];
    // Only root may give it.
    let options = if several && nix::unistd::geteuid().is_root() {
        &option[..]
    } else {
        &[]
    };
    let mut daemon = Daemon::start(folder.path(), &control, &env, options).await;
    daemon.answers();
    daemon.takes_limits().await;
    daemon.starts_a_server(branch).await;
    daemon.hears_others();
    daemon.ends().await;
}

/// A daemon that this test started, and the agent's ways to it.
struct Daemon {
    program: Program,
    child: Child,
    log: DaemonLog,
    control: Control,
}

impl Daemon {
    async fn start(
        folder: &Path,
        control: &Path,
        env: &[(&str, &std::ffi::OsStr)],
        options: &[&str],
    ) -> Self {
        let at = |name: &str| {
            let path = folder.join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let own = std::env::vars_os();
        let extra: Vec<_> = env
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .collect();
        let directories = environment(&at("pipe"), &at("log"), &[GPU.to_owned()]);
        let root = DriverRoot::at(Path::new("/"));
        let program = Program::new(root, control.to_owned(), own, &extra, folder.to_owned());
        let program = program.with(directories);
        let path = folder.join("control.log");
        let output = File::create(&path).unwrap();
        let log = DaemonLog::begin(path);
        let child = program
            .command(None)
            .unwrap()
            .into_std()
            .arg(FOREGROUND)
            .args(options)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let control = Control::new(program.clone(), log.given());
        let daemon = Self {
            program,
            child,
            log,
            control,
        };
        until("the daemon answers", async || {
            daemon.control.reach().await.ok()
        })
        .await;
        daemon
    }

    /// A command as anyone gives it, past the agent.
    fn say(&self, command: &str) -> String {
        let mut child = self
            .program
            .command(None)
            .unwrap()
            .into_std()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{command}").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
        lines.join("\n")
    }

    fn answers(&self) {
        for (command, answer) in ANSWERS {
            assert_eq!(self.say(command), *answer, "{command}");
        }
    }

    /// Limits as the agent sets them read back as such, and others do not pass for them.
    async fn takes_limits(&self) {
        let control = &self.control;
        assert_eq!(control.look().await.unwrap(), ProbeResult::default());
        let of = |memory, thread_percent| Limits {
            memory: Mib(memory),
            thread_percent,
        };
        for (memory, floor) in [
            (1, 1),
            (1000, 1000),
            (1023, 1023),
            (1024, 1024),
            (2000, 1024),
            (28_752, 28_672),
            (81_559, 80_896),
            (294_912, 294_912),
        ] {
            let limits = of(memory, 50);
            let read = control.configure(limits, 2, &[]).await.unwrap();
            let expected = ReadBack {
                memory: Mib(floor),
                thread_percent: 50,
            };
            assert_eq!(read, expected, "{memory}");
            assert_eq!(control.verify(limits, 2, &[]).await.unwrap(), Ok(()));
        }
        let limits = of(2000, 50);
        control.configure(limits, 2, &[]).await.unwrap();
        for (foreign, what) in [
            ("set_default_device_pinned_mem_limit 1 2T", "memory limit"),
            ("set_default_device_pinned_mem_limit 1 0", "memory limit"),
            ("set_default_device_pinned_mem_limit 1 4G", "memory limit"),
            (
                "set_default_active_thread_percentage 60",
                "thread percentage",
            ),
            (
                "set_default_active_thread_percentage 50.5",
                "thread percentage",
            ),
        ] {
            self.say(foreign);
            let verdict = control.verify(limits, 2, &[]).await.unwrap().unwrap_err();
            assert!(verdict.contains(what), "{foreign}: {verdict}");
            control.configure(limits, 2, &[]).await.unwrap();
        }
        // What the daemon refuses is not called set, though it answers a number.
        for refused in [0, 101] {
            let error = control.configure(of(0, refused), 2, &[]).await.unwrap_err();
            let ControlError::NotSet { answer, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(answer, "50.0; 50.0", "{refused}");
        }
        // There is no such server, and no device 32.
        for (devices, servers) in [(1, &[1][..]), (33, &[])] {
            let error = control.configure(limits, devices, servers).await;
            let refused = matches!(error, Err(ControlError::NotSet { .. }));
            assert!(refused, "{devices} {servers:?}: {error:?}");
        }
        control.configure(limits, 2, &[]).await.unwrap();
        let client = Client {
            pid: 2,
            server_pid: 1,
        };
        assert!(!control.terminate(client).await.unwrap());
    }

    /// A server is started for the user, is seen, and takes neither limits nor commands while it
    /// starts, which it never ends to do here.
    async fn starts_a_server(&self, branch: u32) {
        let control = &self.control;
        let uid = nix::unistd::geteuid().as_raw();
        control.start_server(uid).await.unwrap();
        let pid: u32 = until("the server is listed", async || {
            self.say("get_server_list").parse().ok()
        })
        .await;
        let seen = control.look().await;
        if branch < 550 {
            // A server whose state cannot be asked for is not taken for one that is up.
            let error = seen.unwrap_err().to_string();
            assert!(error.contains("Unknown command"), "{error}");
        } else {
            let expected = ProbeResult {
                servers: vec![(pid, ServerStatus::Initializing)],
                clients: Vec::new(),
            };
            assert_eq!(seen.unwrap(), expected);
        }
        let limits = Limits {
            memory: Mib(2000),
            thread_percent: 50,
        };
        let error = control.configure(limits, 1, &[pid]).await.unwrap_err();
        assert!(matches!(error, ControlError::NotSet { .. }), "{error}");
        let client = Client {
            pid: 2,
            server_pid: pid,
        };
        assert!(!control.terminate(client).await.unwrap());
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
        until("the server is gone", async || {
            control.look().await.ok()?.servers.is_empty().then_some(())
        })
        .await;
    }

    /// The log names our commands, and the one that was not ours.
    fn hears_others(&mut self) {
        // The other commands of this test were nobody's either.
        self.log.look();
        assert!(self.log.hears());
        assert_eq!(self.log.look().foreign, None);
        self.say("set_default_active_thread_percentage   70 ");
        let expected = ForeignCommand {
            command: "set_default_active_thread_percentage 70".to_owned(),
            sets: true,
        };
        assert_eq!(self.log.look().foreign, Some(expected));
    }

    async fn ends(&mut self) {
        self.control.quit().await.unwrap();
        let status = until("the daemon ends", async || self.child.try_wait().unwrap()).await;
        assert!(status.success(), "{status}");
        let error = self.control.reach().await.unwrap_err().to_string();
        assert!(error.contains("Cannot find MPS control daemon"), "{error}");
    }
}

impl Drop for Daemon {
    /// A test that failed leaves no daemon behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
