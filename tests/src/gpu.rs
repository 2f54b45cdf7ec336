//! The GPU side of the node: the simulated driver, the MPS daemon, the agent.
//!
//! In: the hardware. Out: the three processes, as the `DaemonSet`s would run them, with a token
//! bound to the node as a pod's would be. Must never lend the agent more rights than `deploy/`
//! gives its service account.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kube::Client;
use proto::names::{NAMESPACE, object, telemetry};
use serde_json::Value;

use crate::control_plane;
use crate::daemon::{Command, Daemon};
use crate::programs::{Place, Programs};
use crate::token::{self, AccountToken, Credential, Refresher};
use crate::{node, ports};

/// Where the driver's files are, as the GPU operator's driver container has them.
pub const DRIVER_ROOT: &str = "/run/nvidia/driver";
/// Where the agent shows its metrics and its health.
pub const METRICS: &str = "127.0.0.1:9400";

/// Hardware as the simulated driver reads it, and how the agent offers the slices of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    file: Value,
    mig_strategy: &'static str,
}

impl Hardware {
    /// `count` cards of one product: `T4`, `L4`, `RTX-6000-Ada`, `A100-40`, `A100-80`, `H100-80`.
    pub fn preset(name: &str, count: u32) -> Self {
        Self::described(serde_json::json!({ "cards": [{ "preset": name, "count": count }] }))
    }

    /// The same under another driver, `major.minor.patch`, whose branch says which rules the
    /// simulated driver keeps.
    #[must_use]
    pub fn driver(mut self, version: &str) -> Self {
        self.file["driver_version"] = version.into();
        self
    }

    /// The same with the agent's flag `--mig-strategy`.
    #[must_use]
    pub fn mig_strategy(mut self, strategy: &'static str) -> Self {
        self.mig_strategy = strategy;
        self
    }

    /// How many devices the node offers as whole GPUs.
    pub fn gpus(&self) -> u32 {
        let cards = self.file["cards"].as_array().into_iter().flatten();
        let instances = cards.filter_map(|card| card["mig_instances"].as_array());
        let slices = instances.map(Vec::len).sum::<usize>();
        match self.mig_strategy {
            "single" => u32::try_from(slices).unwrap_or(u32::MAX),
            _ => self.cards(),
        }
    }

    /// How many cards it has that are not in MIG mode.
    pub fn cards(&self) -> u32 {
        let cards = self.file["cards"].as_array().into_iter().flatten();
        cards
            .filter(|card| card["mig"] != true)
            .map(|card| {
                card["count"]
                    .as_u64()
                    .map_or(1, |count| u32::try_from(count).unwrap_or(u32::MAX))
            })
            .sum()
    }

    /// The file that the simulated driver reads.
    pub(crate) fn json(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec_pretty(&self.file)?)
    }

    /// A whole hardware file.
    pub fn described(file: Value) -> Self {
        Self {
            file,
            mig_strategy: "none",
        }
    }
}

/// The running GPU side.
#[derive(Debug)]
pub struct Gpus {
    pub hardware: Hardware,
    pub driver: Driver,
    pub mps: Daemon,
    pub agent: Daemon,
    _tokens: Refresher,
}

impl Gpus {
    /// Starts driver, MPS daemon and agent, in the order in which a node has them.
    pub async fn start(client: &Client, place: &Place<'_>, hardware: Hardware) -> Result<Self> {
        let folder = place.state.join("gpu");
        fs::create_dir_all(&folder)?;
        let driver = Driver::start(place, &hardware).await?;

        let mps = ["daemonset.yaml", "aliquot-mps", "mps"];
        let mps = agent_command("mps", "mps", place)
            .memory(place.memory(mps, "mps")?)
            .start(place.logs)?;

        let (api, stream) = (folder.join("agent.token"), folder.join("telemetry.token"));
        let account = AccountToken {
            namespace: NAMESPACE.to_owned(),
            account: object::AGENT_ACCOUNT.to_owned(),
            node: Some(node::NAME.to_owned()),
            audience: None,
            file: api.clone(),
        };
        let audience = AccountToken {
            audience: Some(telemetry::AUDIENCE.to_owned()),
            file: stream.clone(),
            ..account.clone()
        };
        let tokens = Refresher::start(client.clone(), vec![account, audience]).await?;
        let kubeconfig = folder.join("agent.kubeconfig");
        token::write_kubeconfig(
            &kubeconfig,
            &control_plane::url(),
            &place.authority,
            &Credential::File(api),
        )?;
        let agent = agent_command("agent", "run", place)
            .flag("--telemetry-endpoint", ports::telemetry_endpoint())
            .flag("--telemetry-token-file", stream)
            .flag("--listen", METRICS)
            .flag("--mig-strategy", hardware.mig_strategy)
            .env("KUBECONFIG", kubeconfig)
            .memory(place.memory(["daemonset.yaml", "aliquot-agent", "agent"], "agent")?)
            .start(place.logs)?;
        Ok(Self {
            hardware,
            driver,
            mps,
            agent,
            _tokens: tokens,
        })
    }

    /// Ends all three, the agent first.
    pub async fn stop(&mut self) -> Result<()> {
        self.agent.stop().await?;
        self.mps.stop().await?;
        self.driver.daemon.stop().await
    }

    /// Fails if one of them has ended.
    pub fn alive(&mut self) -> Result<()> {
        self.driver.daemon.alive()?;
        self.mps.alive()?;
        self.agent.alive()
    }

    /// What the agent's metrics page says.
    pub async fn metrics(&self) -> Result<String> {
        crate::http::get(METRICS, "/metrics").await
    }
}

/// Both subcommands read the same flags, as both `DaemonSet`s have them.
fn agent_command(name: &str, action: &str, place: &Place<'_>) -> Command {
    Command::new(name, place.programs.ours.join("aliquot-agent"))
        .arg(action)
        .flag("--node-name", node::NAME)
        .flag("--driver-root", DRIVER_ROOT)
        .flag(
            "--nvml",
            Path::new(DRIVER_ROOT).join("usr/lib64/libnvidia-ml.so.1"),
        )
        .flag("--nvidia-cdi-dirs", "/var/run/cdi")
        .flag(
            "--hook-binary",
            place.programs.ours_static.join("aliquot-hook"),
        )
        // The stand-ins of NVIDIA's programs find their driver by it.
        .env("SIM_ROOT", DRIVER_ROOT)
        // As the DaemonSets have it.
        .env("MALLOC_ARENA_MAX", "1")
        .env("RUST_LOG", "info")
}

/// The simulated driver.
#[derive(Debug)]
pub struct Driver {
    pub daemon: Daemon,
    program: PathBuf,
}

impl Driver {
    /// Starts it on this hardware and waits until it answers.
    pub async fn start(place: &Place<'_>, hardware: &Hardware) -> Result<Self> {
        // A new machine: what the last one left under its root is not this one's.
        let root = Path::new(DRIVER_ROOT);
        if root.exists() {
            fs::remove_dir_all(root)?;
        }
        fs::create_dir_all(root)?;
        let folder = place.state.join("gpu");
        fs::create_dir_all(&folder)?;
        let file = folder.join("hardware.json");
        fs::write(&file, hardware.json()?)?;
        let program = place.programs.ours_static.join("sim-gpu");
        let mut daemon = Command::new("driver", &program)
            .arg("driver")
            .flag("--root", DRIVER_ROOT)
            .flag("--hardware", file)
            .flag(
                "--nvml-library",
                place.programs.ours.join("libnvidia_ml.so"),
            )
            .flag("--binary", &program)
            .start(place.logs)?;
        crate::wait::until(
            "the simulated driver",
            std::time::Duration::from_secs(30),
            || {
                let alive = daemon.alive();
                let said = daemon.said();
                async move {
                    Ok(match alive {
                        Err(dead) => crate::wait::Seen::Never(dead),
                        Ok(()) => crate::wait::Seen::when(
                            said?.lines().any(|line| line == "ready"),
                            "not ready",
                        ),
                    })
                }
            },
        )
        .await?;
        lay_out_programs(place.programs, root)?;
        Ok(Self { daemon, program })
    }

    /// Changes the hardware while it runs: `sim-gpu ctl`, as a person would call it.
    pub async fn control(&self, words: &[&str]) -> Result<String> {
        run(
            &self.program,
            [&["ctl", "--root", DRIVER_ROOT], words].concat(),
        )
        .await
    }

    /// `nvidia-smi` on the host.
    pub async fn smi(&self, words: &[&str]) -> Result<String> {
        run(
            &Path::new(DRIVER_ROOT).join("usr/bin/nvidia-smi"),
            words.to_vec(),
        )
        .await
    }
}

/// Puts the driver's programs below its root, instead of links to them.
///
/// A driver's programs are files below its root: a process in there follows no link out of it. What
/// tenants run is mounted into their containers and brings its C library along; what the MPS
/// supervisor alone runs has another one than this system.
pub(crate) fn lay_out_programs(programs: &Programs, root: &Path) -> Result<()> {
    let smi = root.join("usr/bin/nvidia-smi");
    if smi.is_symlink() {
        fs::remove_file(&smi)?;
    }
    fs::create_dir_all(root.join("usr/bin"))?;
    fs::copy(programs.ours_static.join("sim-gpu"), &smi)?;
    driver_root::foreign::lay_out(root)?;
    for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        let target = root.join("usr/bin").join(name);
        driver_root::foreign::install(&programs.ours.join("sim-gpu"), &target)?;
    }
    Ok(())
}

async fn run(program: &Path, words: Vec<&str>) -> Result<String> {
    let output = tokio::process::Command::new(program)
        .args(&words)
        .env("SIM_ROOT", DRIVER_ROOT)
        .output()
        .await
        .with_context(|| program.display().to_string())?;
    if !output.status.success() {
        bail!(
            "{} {}: {}",
            program.display(),
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
