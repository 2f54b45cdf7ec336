//! The memory limits that `deploy/` gives the programs, held by the kernel.
//!
//! In: a workload and a container of a manifest. Out: a cgroup with the container's limit, in which a
//! process is put when it starts. A program that exceeds it is killed, as in a pod.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::manifest::documents;
use crate::namespace::cgroup_hierarchies;

/// A cgroup with a limit.
#[derive(Debug, Clone)]
pub struct MemoryLimit {
    folder: PathBuf,
    /// In bytes.
    pub bytes: u64,
}

impl MemoryLimit {
    /// The limit of a container of `deploy/`, in a cgroup of that name below the run's own.
    pub fn deployed(
        tree: &Path,
        [file, workload, container]: [&str; 3],
        cgroup: &str,
        name: &str,
    ) -> Result<Self> {
        let file = tree.join("deploy").join(file);
        let yaml = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let limit = documents(&yaml)?
            .iter()
            .filter(|one| one["metadata"]["name"] == workload)
            .filter_map(|one| one["spec"]["template"]["spec"]["containers"].as_array())
            .flatten()
            .find(|one| one["name"] == container)
            .map(|one| one["resources"]["limits"]["memory"].clone())
            .as_ref()
            .and_then(Value::as_str)
            .and_then(bytes)
            .with_context(|| format!("{workload}/{container} has no memory limit"))?;
        let hierarchy = memory_hierarchy().context("no hierarchy of cgroups counts memory")?;
        let folder = hierarchy.join(cgroup).join(format!("aliquot-{name}"));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let one = Self {
            folder,
            bytes: limit,
        };
        let file = one.file("memory.max", "memory.limit_in_bytes");
        fs::write(&file, limit.to_string()).with_context(|| file.display().to_string())?;
        Ok(one)
    }

    /// Puts a process there, with all its threads.
    pub fn take(&self, pid: u32) -> Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("{pid} into {}", self.folder.display()))
    }

    /// How often the kernel killed a process for it.
    pub fn kills(&self) -> Result<u64> {
        let text = fs::read_to_string(self.file("memory.events", "memory.oom_control"))?;
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(kills.context("no oom_kill")?.trim().parse()?)
    }

    /// The most bytes that were in use since the last call.
    pub fn peak(&self) -> Result<u64> {
        let file = self.file("memory.peak", "memory.max_usage_in_bytes");
        let peak = fs::read_to_string(&file)?.trim().parse()?;
        // Kernels before 6.12 keep that of version 2 for good.
        let _ = fs::write(&file, "0");
        Ok(peak)
    }

    /// By version 2, or by version 1.
    fn file(&self, two: &str, one: &str) -> PathBuf {
        let two = self.folder.join(two);
        if two.exists() {
            two
        } else {
            self.folder.join(one)
        }
    }
}

/// Of a quantity such as `256Mi`.
fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let shift = match unit {
        "Mi" => 20,
        "Gi" => 30,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? << shift)
}

fn memory_hierarchy() -> Option<PathBuf> {
    cgroup_hierarchies().into_iter().find(|hierarchy| {
        let two = fs::read_to_string(hierarchy.join("cgroup.controllers"));
        hierarchy.join("memory.limit_in_bytes").exists()
            || two.is_ok_and(|all| all.split_whitespace().any(|one| one == "memory"))
    })
}
