//! A container runtime without containers: what CDI says is really resolved and applied,
//! hooks really run, the container's process really lives, in a directory of its own.
//!
//! - `cdi`: specs and names; `rootfs`: devices and mounts as links; `hook`: createRuntime.
//! - [`Runtime`]: create, start, wait, stop, remove.
//!
//! What it is not: there are no namespaces and no cgroups, so a container is not confined, and no
//! image is pulled: every image is the workload that the configuration names. The cgroup that a
//! container would have is written beside (`<proc_dir>/<pid>/cgroup`), for components that
//! attribute processes.

mod cdi;
mod hook;
mod rootfs;

pub use cdi::CdiError;

use rootfs::Rootfs;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// How a node's runtime is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Everything of its containers is below. Keep it short: it contains unix sockets.
    pub root: PathBuf,
    /// CDI directories, lowest priority first.
    pub cdi_dirs: Vec<PathBuf>,
    /// Where the cgroup of each process is written.
    pub proc_dir: PathBuf,
    /// Holds a process back until its hooks have run: waits for a line on standard input,
    /// then becomes the program that its further arguments name.
    pub init: Vec<String>,
    /// What every image is; a container's own arguments follow.
    pub workload: Vec<String>,
}

/// The specification of a container.
#[derive(Clone, Debug, Default)]
pub struct ContainerConfig {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// `metadata.namespace`.
    pub pod_namespace: String,
    /// `metadata.name`.
    pub pod_name: String,
    /// In the pod.
    pub name: String,
    /// Shown to hooks.
    pub image: String,
    /// `command` and `args` in one.
    pub arguments: Vec<String>,
    /// The plugins' first, then the pod's: a later one wins.
    pub env: Vec<(String, String)>,
    /// Host path, container path.
    pub devices: Vec<(PathBuf, PathBuf)>,
    /// Host path, container path.
    pub mounts: Vec<(PathBuf, PathBuf)>,
    /// `vendor/class=name`.
    pub cdi_devices: Vec<String>,
}

/// 64 hexadecimal digits, as in every runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerId(pub String);

/// Why there is no container, or none that runs.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A CDI name cannot be resolved.
    #[error("failed to generate container \"{id}\" spec: failed to generate spec: {source}")]
    Cdi {
        /// The container that is not made.
        id: String,
        /// Which names.
        #[source]
        source: CdiError,
    },
    /// A hook refused, or an injected file is missing.
    #[error(
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: {0}"
    )]
    Create(String),
    /// There is no such container.
    #[error("container \"{0}\" not found")]
    Unknown(String),
    /// The runtime does not start anything any more.
    #[error("the runtime is being shut down")]
    Closed,
    /// The disk, or the process table.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// How a container ended: an exit code, 128 + n for signal n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit(pub i32);

/// A node's runtime. Outlives a kubelet; its processes end with it.
#[derive(Clone, Debug)]
pub struct Runtime {
    config: Arc<Config>,
    containers: Arc<Mutex<Containers>>,
    /// One task per process, which waits for its end.
    reapers: TaskTracker,
}

#[derive(Debug, Default)]
struct Containers {
    made: u64,
    /// True if the runtime is being shut down, so that a kubelet that still runs starts nothing any
    /// more.
    closed: bool,
    table: BTreeMap<ContainerId, Container>,
}

#[derive(Debug)]
struct Container {
    config: ContainerConfig,
    rootfs: PathBuf,
    bundle: PathBuf,
    env: BTreeMap<String, String>,
    hooks: Vec<cdi::Hook>,
    pid: Option<i32>,
    exit: watch::Receiver<Option<Exit>>,
    /// Taken by the task that waits for the process.
    ended: Option<watch::Sender<Option<Exit>>>,
}

/// A container that lives, for a kubelet that has just started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Which.
    pub id: ContainerId,
    /// Whose.
    pub pod_uid: String,
    /// Its name there.
    pub name: String,
}

impl Runtime {
    /// Makes the directories.
    ///
    /// # Errors
    /// The disk.
    pub fn new(config: Config) -> Result<Self, RuntimeError> {
        std::fs::create_dir_all(&config.root)?;
        std::fs::create_dir_all(&config.proc_dir)?;
        Ok(Self {
            config: Arc::new(config),
            containers: Arc::default(),
            reapers: TaskTracker::new(),
        })
    }

    fn containers(&self) -> MutexGuard<'_, Containers> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves CDI and lays out the container's files.
    ///
    /// # Errors
    /// [`RuntimeError::Cdi`], or the disk.
    pub fn create(&self, config: ContainerConfig) -> Result<ContainerId, RuntimeError> {
        let id = self.fresh_id();
        let edits = cdi::resolve(&self.config.cdi_dirs, &config.cdi_devices).map_err(|source| {
            RuntimeError::Cdi {
                id: id.0.clone(),
                source,
            }
        })?;
        let bundle = self.config.root.join(&id.0[..8]);
        let rootfs = Rootfs::make(bundle.join("r"))?;
        let injected =
            |what: std::io::Result<()>| what.map_err(|e| RuntimeError::Create(e.to_string()));
        for (host, inside) in &config.devices {
            injected(rootfs.device(host, inside))?;
        }
        for (host, inside) in &config.mounts {
            injected(rootfs.mount(host, inside))?;
        }
        for node in &edits.device_nodes {
            let host = node.host_path.as_ref().unwrap_or(&node.path);
            injected(rootfs.device(host, &node.path))?;
        }
        for mount in &edits.mounts {
            injected(rootfs.mount(&mount.host_path, &mount.container_path))?;
        }
        let mut env: BTreeMap<String, String> = config.env.iter().cloned().collect();
        env.extend(
            edits
                .env
                .iter()
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let document = json!({
            "ociVersion": "1.2.0", "hostname": config.pod_name, "root": {"path": rootfs.path()},
            "annotations": annotations(&config),
            "process": {"env": env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
                "args": config.arguments},
        });
        std::fs::write(bundle.join("config.json"), document.to_string())?;
        let (ended, exit) = watch::channel(None);
        let container = Container {
            rootfs: rootfs.path().to_owned(),
            config,
            bundle,
            env,
            hooks: edits.hooks,
            pid: None,
            exit,
            ended: Some(ended),
        };
        self.containers().table.insert(id.clone(), container);
        Ok(id)
    }

    /// Makes the process, runs the hooks, lets the process go.
    ///
    /// # Errors [`RuntimeError::Create`] when a hook refuses; the process has ended then.
    ///
    /// # Panics
    /// Never: standard input is piped.
    pub async fn start(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let unknown = || RuntimeError::Unknown(id.0.clone());
        let (mut command, hooks, bundle, config, ended) = {
            let mut containers = self.containers();
            if containers.closed {
                return Err(RuntimeError::Closed);
            }
            let container = containers.table.get_mut(id).ok_or_else(unknown)?;
            let ended = container.ended.take().ok_or_else(unknown)?;
            (
                self.command(container)?,
                container.hooks.clone(),
                container.bundle.clone(),
                container.config.clone(),
                ended,
            )
        };
        let mut child = command.spawn()?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .ok_or_else(|| std::io::Error::other("a process without a pid"))?;
        self.attribute(pid, &config.pod_uid, id)?;
        let closed = {
            let mut containers = self.containers();
            if let Some(container) = containers.table.get_mut(id) {
                container.pid = Some(pid);
            }
            containers.closed
        };
        if closed {
            // The process was started during the shutdown, which has not ended it.
            let _ = child.kill().await;
            self.forget(pid);
            let _ = ended.send(Some(Exit(128)));
            return Err(RuntimeError::Closed);
        }
        let state = json!({
            "ociVersion": "1.2.0", "id": id.0, "status": "creating", "pid": pid, "bundle": bundle,
            "annotations": annotations(&config),
        });
        let creating = hooks
            .iter()
            .filter(|hook| hook.name == "createRuntime")
            .enumerate();
        for (position, hook) in creating {
            if let Err(why) = hook::run(position, hook, &state, &bundle).await {
                let _ = child.kill().await;
                self.forget(pid);
                let _ = ended.send(Some(Exit(128)));
                return Err(RuntimeError::Create(why));
            }
        }
        let gate = child.stdin.take().expect("stdin is piped");
        go(gate).await?;
        let runtime = self.clone();
        self.reapers
            .spawn(async move { runtime.reap(child, pid, &ended).await });
        Ok(())
    }

    fn command(&self, container: &Container) -> Result<Command, RuntimeError> {
        let (program, first) = self
            .config
            .init
            .split_first()
            .ok_or_else(|| std::io::Error::other("no init program is configured"))?;
        let log = std::fs::File::create(container.bundle.join("log"))?;
        let mut command = Command::new(program);
        command
            .args(first)
            .args(&self.config.workload)
            .args(workload_arguments(&container.config.arguments))
            .env_clear()
            .envs(&container.env)
            .env("SIM_ROOT", &container.rootfs)
            .current_dir(&container.rootfs)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        Ok(command)
    }

    async fn reap(&self, mut child: Child, pid: i32, ended: &watch::Sender<Option<Exit>>) {
        let status = child.wait().await;
        self.forget(pid);
        let code = status.map_or(255, |status| {
            status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
        });
        let _ = ended.send(Some(Exit(code)));
    }

    /// Waits for a container's end. `None` for one that is not known.
    pub async fn wait(&self, id: &ContainerId) -> Option<Exit> {
        let mut exit = self.containers().table.get(id)?.exit.clone();
        let seen = exit.wait_for(Option::is_some).await.ok()?;
        *seen
    }

    /// SIGTERM, after the grace SIGKILL; returns when the process has ended.
    pub async fn stop(&self, id: &ContainerId, grace: Duration) {
        use nix::sys::signal::Signal;
        self.signal(id, Signal::SIGTERM);
        if tokio::time::timeout(grace, self.wait(id)).await.is_err() {
            self.signal(id, Signal::SIGKILL);
            self.wait(id).await;
        }
    }

    fn signal(&self, id: &ContainerId, signal: nix::sys::signal::Signal) {
        let pid = {
            let containers = self.containers();
            let Some(container) = containers.table.get(id) else {
                return;
            };
            if container.exit.borrow().is_some() {
                return;
            }
            container.pid
        };
        if let Some(pid) = pid {
            // The process group: a workload may have forked.
            let _ = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(pid), signal);
        }
    }

    /// Removes the files of a container that has ended.
    pub fn remove(&self, id: &ContainerId) {
        let gone = self.containers().table.remove(id);
        if let Some(container) = gone {
            let _ = std::fs::remove_dir_all(container.bundle);
        }
    }

    /// The containers whose process lives.
    pub fn running(&self) -> Vec<Running> {
        self.containers()
            .table
            .iter()
            .filter(|(_, one)| one.pid.is_some() && one.exit.borrow().is_none())
            .map(|(id, one)| Running {
                id: id.clone(),
                pod_uid: one.config.pod_uid.clone(),
                name: one.config.name.clone(),
            })
            .collect()
    }

    /// What a container's process wrote.
    pub fn log(&self, id: &ContainerId) -> Option<String> {
        let path = self.containers().table.get(id)?.bundle.join("log");
        std::fs::read_to_string(path).ok()
    }

    /// Ends all processes at once, and starts none any more: otherwise a kubelet that still runs
    /// would start the first container again while the second is being ended.
    pub async fn shut_down(&self) {
        self.containers().closed = true;
        for one in self.running() {
            self.stop(&one.id, Duration::ZERO).await;
        }
        self.reapers.close();
        self.reapers.wait().await;
    }

    fn fresh_id(&self) -> ContainerId {
        let mut containers = self.containers();
        containers.made += 1;
        // Odd multipliers spread a counter over all digits, and no two counters meet.
        let spread = |factor: u64| containers.made.wrapping_mul(factor);
        ContainerId(format!(
            "{:016x}{:016x}{:016x}{:016x}",
            spread(0x9e37_79b9_7f4a_7c15),
            spread(0xbf58_476d_1ce4_e5b9),
            spread(0x94d0_49bb_1331_11eb),
            spread(0xd6e8_feb8_6659_fd93)
        ))
    }

    fn attribute(&self, pid: i32, pod_uid: &str, id: &ContainerId) -> std::io::Result<()> {
        let place = self.config.proc_dir.join(pid.to_string());
        std::fs::create_dir_all(&place)?;
        for same in ["stat", "status", "comm", "cmdline"] {
            let link = place.join(same);
            if !link.is_symlink() {
                std::os::unix::fs::symlink(
                    Path::new("/proc").join(pid.to_string()).join(same),
                    link,
                )?;
            }
        }
        std::fs::write(
            place.join("cgroup"),
            format!("0::/kubepods/besteffort/pod{pod_uid}/{}\n", id.0),
        )
    }

    fn forget(&self, pid: i32) {
        let _ = std::fs::remove_dir_all(self.config.proc_dir.join(pid.to_string()));
    }
}

async fn go(mut gate: ChildStdin) -> std::io::Result<()> {
    gate.write_all(b"go\n").await
}

/// `workload` as the first word names what is run anyway.
fn workload_arguments(arguments: &[String]) -> &[String] {
    match arguments.split_first() {
        Some((first, rest)) if first.rsplit('/').next() == Some("workload") => rest,
        _ => arguments,
    }
}

/// containerd's annotations, which reach hooks.
fn annotations(config: &ContainerConfig) -> Value {
    json!({
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": config.name,
        "io.kubernetes.cri.image-name": config.image,
        "io.kubernetes.cri.sandbox-id": config.pod_uid.replace('-', ""),
        "io.kubernetes.cri.sandbox-name": config.pod_name,
        "io.kubernetes.cri.sandbox-namespace": config.pod_namespace,
        "io.kubernetes.cri.sandbox-uid": config.pod_uid,
    })
}
