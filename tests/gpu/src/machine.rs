//! The machine under test: a real driver, found where this node has it, or the simulated one. In
//! both cases with a driver root of our own, so that the code above does not depend on it.
//!
//! In: paths. Out: [`Machine`]: cards, programs, what they need in their environment.
//! Must never change a setting of a card.

use crate::control;
use crate::transcript::Transcript;
use anyhow::{Context as _, bail};
use sim_gpu::driver::{Driver, Options};
use sim_gpu::hardware::{Hardware, Preset};
use sim_gpu::paths::{ROOT_ENV, Root};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Where drivers put their programs and libraries, beside what `PATH` says.
const PROGRAM_FOLDERS: [&str; 3] = ["/usr/bin", "/usr/local/nvidia/bin", "/opt/bin"];
const LIBRARY_FOLDERS: [&str; 5] = [
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];
/// The branch whose habits the simulated machine has: the oldest whose MPS needs no
/// `/dev/shm` of its own.
const SIMULATED_DRIVER: &str = "580.95.05";
/// The hardware of the simulated machine with slices.
const SLICED: &str = r#"{"cards":[{"preset":"H100-80","mig":true,
    "mig_instances":["3g.40gb","2g.20gb","1g.10gb"]}]}"#;

/// Which EGL is loaded.
const EGL: &str = "libEGL.so.1";
/// For `nvidia-smi`, which takes seconds where nothing keeps the driver loaded.
const SMI: Duration = Duration::from_secs(30);

/// One card, as `nvidia-smi` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// `GPU-...`.
    pub(crate) uuid: String,
    /// Product.
    pub(crate) name: String,
    /// MiB.
    pub(crate) total: u64,
}

/// What there is to ask.
#[derive(Debug)]
pub(crate) struct Machine {
    /// `usr/bin`, `usr/lib64` and `dev` of the driver.
    pub(crate) root: PathBuf,
    /// Everything temporary; a short path, because it contains unix sockets.
    pub(crate) work: PathBuf,
    /// As the driver reports it.
    pub(crate) driver: String,
    pub(crate) cards: Vec<Card>,
    pub(crate) simulated: bool,
    /// All commands, and their output.
    pub(crate) transcript: Transcript,
    /// The compute mode of a card may be changed, and set back.
    pub(crate) may_set_mode: bool,
    /// The deadline of the current check.
    deadline: Mutex<Option<Instant>>,
    _driver: Option<Driver>,
    _folder: tempfile::TempDir,
}

/// What this machine lacks or does not allow: the part is skipped, and reported as such.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl Missing {
    pub(crate) fn error(what: impl Into<String>) -> anyhow::Error {
        Self(what.into()).into()
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The stand-ins of the simulated machine.
#[derive(Clone, Debug)]
pub(crate) struct StandIns {
    /// NVML.
    pub(crate) nvml: PathBuf,
    /// libcuda.
    pub(crate) cuda: PathBuf,
}

impl Machine {
    /// This node's own driver.
    pub(crate) fn real() -> anyhow::Result<Self> {
        let folder = folder()?;
        let root = folder.path().join("d");
        let (bin, lib, dev) = (
            root.join("usr/bin"),
            root.join("usr/lib64"),
            root.join("dev"),
        );
        for place in [&bin, &lib, &dev] {
            std::fs::create_dir_all(place)?;
        }
        for name in [
            "nvidia-smi",
            "nvidia-cuda-mps-control",
            "nvidia-cuda-mps-server",
        ] {
            // Without those of MPS the rest can be checked.
            if let Some(found) = program(name) {
                symlink(found, bin.join(name))?;
            }
        }
        for place in LIBRARY_FOLDERS.map(Path::new) {
            let Ok(entries) = std::fs::read_dir(place) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let text = name.to_string_lossy();
                let ours = text.starts_with("libcuda.so") || text.starts_with("libnvidia-");
                if ours && !lib.join(&name).exists() {
                    symlink(entry.path(), lib.join(&name))?;
                }
            }
        }
        if !bin.join("nvidia-smi").exists() {
            bail!("this machine has no nvidia-smi");
        }
        for entry in std::fs::read_dir("/dev")?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("nvidia") {
                symlink(entry.path(), dev.join(entry.file_name()))?;
            }
        }
        Self::new(folder, root, None)
    }

    /// A simulated driver with two cards, in this process; with `mig`, with one that has slices.
    pub(crate) fn simulated(parts: &StandIns, mig: bool) -> anyhow::Result<Self> {
        let folder = folder()?;
        let root = folder.path().join("d");
        let driver = sim_gpu::driver::serve(Options {
            root: root.clone(),
            hardware: Hardware {
                driver_version: SIMULATED_DRIVER.to_owned(),
                ..if mig {
                    Hardware::parse(SLICED)?
                } else {
                    Hardware::of(Preset::L4, 2)
                }
            },
            nvml_library: Some(parts.nvml.clone()),
            plain_nodes: true,
            binary: Some(std::env::current_exe()?),
        })?;
        for name in ["libcuda.so.1", EGL] {
            std::fs::copy(&parts.cuda, Root::new(&root).nvml().with_file_name(name))
                .with_context(|| format!("{}", parts.cuda.display()))?;
        }
        Self::new(folder, root, Some(driver))
    }

    fn new(
        folder: tempfile::TempDir,
        root: PathBuf,
        driver: Option<Driver>,
    ) -> anyhow::Result<Self> {
        let mut machine = Self {
            root,
            work: folder.path().to_owned(),
            driver: String::new(),
            cards: Vec::new(),
            simulated: driver.is_some(),
            transcript: Transcript::default(),
            may_set_mode: false,
            deadline: Mutex::new(None),
            _driver: driver,
            _folder: folder,
        };
        let told = machine.smi(&[
            "--query-gpu=uuid,name,memory.total,driver_version",
            "--format=csv,noheader,nounits",
        ])?;
        for line in told.lines() {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            if let [uuid, name, total, driver] = cells.as_slice() {
                (*driver).clone_into(&mut machine.driver);
                machine.cards.push(Card {
                    uuid: (*uuid).to_owned(),
                    name: (*name).to_owned(),
                    total: total
                        .parse()
                        .with_context(|| format!("memory in {line:?}"))?,
                });
            }
        }
        if machine.cards.is_empty() {
            bail!("nvidia-smi names no card: {told:?}");
        }
        Ok(machine)
    }

    /// What the driver's programs need to find this root.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let below = |part: &str| self.root.join(part).display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut env = vec![
            ("PATH".to_owned(), format!("{}:{path}", below("usr/bin"))),
            ("LD_LIBRARY_PATH".to_owned(), below("usr/lib64")),
        ];
        if self.simulated {
            env.push((ROOT_ENV.to_owned(), self.root.display().to_string()));
        }
        env
    }

    /// Sets the time limit of the next check.
    pub(crate) fn within(&self, limit: Duration) {
        *self.deadline() = Some(Instant::now() + limit);
    }

    /// So much time, or what is left of it.
    pub(crate) fn left(&self, limit: Duration) -> Duration {
        let deadline = *self.deadline();
        deadline.map_or(limit, |at| {
            limit.min(at.saturating_duration_since(Instant::now()))
        })
    }

    fn deadline(&self) -> MutexGuard<'_, Option<Instant>> {
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `libcuda.so.1`.
    pub(crate) fn cuda(&self) -> anyhow::Result<PathBuf> {
        self.there("usr/lib64/libcuda.so.1")
    }

    /// `nvidia-cuda-mps-control`.
    pub(crate) fn control(&self) -> anyhow::Result<PathBuf> {
        self.there("usr/bin/nvidia-cuda-mps-control")
    }

    /// `libEGL.so.1`, which is the system's and not the driver's.
    pub(crate) fn egl(&self) -> anyhow::Result<PathBuf> {
        let system = LIBRARY_FOLDERS.map(|folder| Path::new(folder).join(EGL));
        let system = system.into_iter().find(|path| path.exists());
        match system.filter(|_| !self.simulated) {
            Some(path) => Ok(path),
            None => self.there(&format!("usr/lib64/{EGL}")),
        }
    }

    fn there(&self, part: &str) -> anyhow::Result<PathBuf> {
        let path = self.root.join(part);
        if path.exists() {
            return Ok(path);
        }
        let name = part.rsplit('/').next().unwrap_or(part);
        Err(Missing::error(format!("this machine has no {name}")))
    }

    /// `nvidia-smi`; what it says on either output, whatever its end.
    pub(crate) fn smi_said(&self, arguments: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
        let child = Command::new(self.root.join("usr/bin/nvidia-smi"))
            .args(arguments)
            .envs(self.env())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("nvidia-smi")?;
        let output = control::ended(child, self.left(SMI))?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        let line = format!("nvidia-smi {}", arguments.join(" "));
        self.transcript.ran(&line, output.status.code(), &said);
        Ok((output.status.code(), said))
    }

    /// `nvidia-smi`, where anything but success is an error.
    pub(crate) fn smi(&self, arguments: &[&str]) -> anyhow::Result<String> {
        match self.smi_said(arguments)? {
            (Some(0), said) => Ok(said),
            (_, said) => bail!("nvidia-smi {}: {}", arguments.join(" "), said.trim()),
        }
    }

    /// Every setting of every card that any part of this could touch.
    pub(crate) fn settings(&self) -> anyhow::Result<String> {
        self.smi(&[
            "--query-gpu=uuid,compute_mode,persistence_mode,mig.mode.current",
            "--format=csv,noheader",
        ])
    }

    /// MiB in use on a card.
    pub(crate) fn used(&self, card: &Card) -> anyhow::Result<u64> {
        let told = self.smi(&[
            "-i",
            &card.uuid,
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
        ])?;
        told.trim()
            .parse()
            .with_context(|| format!("memory.used: {told:?}"))
    }

    /// Processes on cards: pid, the card's UUID, MiB if reported.
    pub(crate) fn apps(&self) -> anyhow::Result<Vec<(u32, String, Option<u64>)>> {
        let told = self.smi(&[
            "--query-compute-apps=pid,gpu_uuid,used_memory",
            "--format=csv,noheader,nounits",
        ])?;
        let row = |line: &str| {
            let cells: Vec<&str> = line.split(',').map(str::trim).collect();
            match cells.as_slice() {
                [pid, uuid, used] => {
                    Some((pid.parse().ok()?, (*uuid).to_owned(), used.parse().ok()))
                }
                _ => None,
            }
        };
        Ok(told.lines().filter_map(row).collect())
    }

    /// So much of a card, in twentieths, that sizes fit small cards and large ones. MiB.
    pub(crate) fn part(&self, twentieths: u64) -> u64 {
        self.cards
            .first()
            .map_or(0, |card| card.total / 20 * twentieths)
    }

    /// Step of a program that takes all it gets.
    pub(crate) fn step(&self) -> u64 {
        (self.part(1) / 16).max(16)
    }
}

fn folder() -> anyhow::Result<tempfile::TempDir> {
    let folder = tempfile::Builder::new().prefix("ag").tempdir_in("/tmp")?;
    // MPS servers and programs of other users must get through.
    std::fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )?;
    Ok(folder)
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(PROGRAM_FOLDERS);
    folders
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
}
