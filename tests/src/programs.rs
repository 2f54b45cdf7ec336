//! The programs of a run lie in these folders; [`Place`] is what those under test are told.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::memory::MemoryLimit;

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The daemons that `tests/cluster/tools/build` made.
    pub daemons: PathBuf,
    /// This workspace's programs.
    pub ours: PathBuf,
    /// This workspace's programs that are linked statically.
    pub ours_static: PathBuf,
    /// The output folder of `tests/cluster/tools/operators`, if it was run.
    pub operators: Option<PathBuf>,
    /// The output folder of `tests/cluster/tools/extended`, if it was run.
    pub extended: Option<PathBuf>,
    /// The layout of the image that `deploy/image/build` made, where it was run.
    pub image: Option<PathBuf>,
    /// The pinned helm, where it was built.
    pub helm: Option<PathBuf>,
    /// The root of the source tree.
    pub tree: PathBuf,
}

impl Programs {
    /// A file that came with an operator or was built for it.
    pub fn operator_file(&self, path: &str) -> Result<PathBuf> {
        let folder = self.operators.as_ref().context(
            "the operators were not built: tests/cluster/run builds them when its filter is empty or has `seed` in it",
        )?;
        let file = folder.join(path);
        Ok(match &self.extended {
            Some(more) if !file.exists() => more.join(path),
            _ => file,
        })
    }
}

/// The settings of a program under test.
#[derive(Debug)]
pub struct Place<'a> {
    pub programs: &'a Programs,
    pub state: &'a Path,
    pub logs: &'a Path,
    /// Certificate authority of the API server.
    pub authority: PathBuf,
    /// Name of this run's cgroup folder.
    pub cgroup: String,
}

impl Place<'_> {
    /// The resources that `deploy/` gives a container of a workload.
    pub(crate) fn memory(&self, container: [&str; 3], name: &str) -> Result<MemoryLimit> {
        MemoryLimit::deployed(&self.programs.tree, container, &self.cgroup, name)
    }
}
