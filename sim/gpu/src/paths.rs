//! Where things lie under a driver root. Owns the relative paths, nothing else.

use std::path::{Path, PathBuf};

/// The environment variable that names the driver root for programs of the simulation.
pub const ROOT_ENV: &str = "SIM_ROOT";

/// A driver root: `/` inside a container, any folder for tests and the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The root at this folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The root that `SIM_ROOT` names, `/` without it.
    pub fn from_env() -> Self {
        match std::env::var_os(ROOT_ENV) {
            Some(path) if !path.is_empty() => Self::new(path),
            _ => Self::new("/"),
        }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The driver's socket. NVIDIA's generated CDI specs mount this path into
    /// containers, so a real agent's mounts bring it along.
    pub fn socket(&self) -> PathBuf {
        self.0.join("run/nvidia-persistenced/socket")
    }

    /// The folder of device nodes.
    pub fn dev(&self) -> PathBuf {
        self.0.join("dev")
    }

    /// The NVML stand-in.
    pub fn nvml(&self) -> PathBuf {
        self.0.join("usr/lib64/libnvidia-ml.so.1")
    }

    /// The folder of `nvidia-smi` and its kin.
    pub fn bin(&self) -> PathBuf {
        self.0.join("usr/bin")
    }

    /// Minors of the card nodes that exist here, ascending.
    pub fn card_minors(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir(self.dev()) else {
            return Vec::new();
        };
        let mut minors: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix("nvidia")?
                    .parse()
                    .ok()
            })
            .collect();
        minors.sort_unstable();
        minors
    }
}
