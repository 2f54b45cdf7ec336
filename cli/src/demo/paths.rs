//! The paths of the parts of one simulated node.

use super::place::Place;
use std::path::{Path, PathBuf};

/// The paths of the parts of one node. They are short, because unix sockets stand below them.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub(super) driver: PathBuf,
    pub(super) kubelet: PathBuf,
    pub(super) cdi: PathBuf,
    pub(super) run: PathBuf,
    pub(super) containers: PathBuf,
    pub(super) proc: PathBuf,
    pub(super) token: PathBuf,
    pub(super) hook: PathBuf,
}

impl Paths {
    pub(super) fn of(place: &Place, name: &str) -> Self {
        Self::below(place.path(), name)
    }

    pub(super) fn below(place: &Path, name: &str) -> Self {
        let node = place.join(name.replace("node-", "n"));
        let below = |part: &str| node.join(part);
        Self {
            driver: below("d"),
            kubelet: below("k"),
            cdi: below("cdi"),
            run: below("r"),
            containers: below("c"),
            proc: below("proc"),
            token: below("token"),
            hook: below("bin").join(crate::hook::NAME),
        }
    }

    /// The NVML library of this node. Each node has a file, since libraries of one path share statics.
    pub(super) fn nvml(&self) -> PathBuf {
        self.driver.join("usr/lib64/libnvidia-ml.so.1")
    }

    /// Makes the folders.
    pub(super) fn make(&self) -> std::io::Result<()> {
        let parents = [&self.cdi, &self.run, &self.kubelet];
        parents
            .into_iter()
            .map(PathBuf::as_path)
            .chain(self.hook.parent())
            .try_for_each(|path: &Path| std::fs::create_dir_all(path))?;
        // This very program is the hook, by that name.
        std::os::unix::fs::symlink(std::env::current_exe()?, &self.hook)
    }
}
