//! The kernel's own files about a cgroup's limit: the second witness beside the driver's answer.
//!
//! In: a cgroup, a card's PCI bus id, MiB. Out: the [`Backend`] that keeps the limit, or one
//! sentence that names the missing part and the command that supplies it. Reads files only.

use cdi::hook::Backend;
use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup of version 2, by its mount and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Where cgroup v2 is mounted.
    pub root: PathBuf,
    /// Below the root, without a leading slash.
    pub path: PathBuf,
}

impl Cgroup {
    /// Returns the folder of the cgroup, which is its name for the driver.
    pub fn folder(&self) -> PathBuf {
        self.root.join(&self.path)
    }

    /// Finds the backend that the driver uses for a card, and checks that its controller reaches
    /// this cgroup. Without the controller a limit is refused in `dmem`; in `misc` it reads back
    /// and holds nobody.
    ///
    /// # Errors
    /// The kernel has neither controller, or some level does not hand it down.
    pub fn backend(&self, pci: &str) -> Result<Backend, String> {
        let capacity = fs::read_to_string(self.root.join("dmem.capacity")).unwrap_or_default();
        let backend = match value(&capacity, pci) {
            Some(_) => Backend::Dmem,
            None => Backend::Misc,
        };
        let name = backend.as_str();
        if !lists(&self.root.join("cgroup.controllers"), name) {
            return Err(format!(
                "the kernel's cgroup v2 at {} has no controller {name}: use Linux 6.14 or later with CONFIG_CGROUP_DMEM, or one with CONFIG_CGROUP_MISC, and do not disable it with cgroup_disable",
                self.root.display()
            ));
        }
        let mut level = self.root.clone();
        for part in &self.path {
            let control = level.join("cgroup.subtree_control");
            if !lists(&control, name) {
                return Err(format!(
                    "the controller {name} does not reach {}: echo +{name} > {}",
                    self.folder().display(),
                    control.display()
                ));
            }
            level.push(part);
        }
        Ok(backend)
    }

    /// Checks that the kernel's file has this limit for a card. The map behind `misc` has no file:
    /// the driver's answer and the controller's reach are all that can be seen of it.
    ///
    /// # Errors
    /// The file is missing or says something else.
    pub fn witness(&self, backend: Backend, pci: &str, mib: u64) -> Result<(), String> {
        if backend == Backend::Misc {
            return Ok(());
        }
        let file = self.folder().join("dmem.max");
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let is = value(&text, pci).unwrap_or("nothing");
        if mib
            .checked_mul(1 << 20)
            .map(|bytes| bytes.to_string())
            .as_deref()
            == Some(is)
        {
            return Ok(());
        }
        Err(format!(
            "the driver reads back {mib} MiB, and {} says {is} for the card at {pci}",
            file.display()
        ))
    }
}

/// Returns the value that a file of the dmem controller has for the card at this PCI address.
fn value<'a>(text: &'a str, pci: &str) -> Option<&'a str> {
    let region = format!("nvidia/{pci}/vidmem");
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        name.eq_ignore_ascii_case(&region).then_some(value)
    })
}

/// Returns true if a list of controllers has this one.
fn lists(file: &Path, controller: &str) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().any(|name| name == controller)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A cgroup `pods/a` in files as the kernel has them, each level with these controllers.
    pub(crate) fn cgroup(root: &Path, controllers: &str) -> Cgroup {
        let path = PathBuf::from("pods/a");
        fs::create_dir_all(root.join(&path)).unwrap();
        fs::write(root.join("cgroup.controllers"), controllers).unwrap();
        for level in ["", "pods"] {
            let control = root.join(level).join("cgroup.subtree_control");
            fs::write(control, controllers).unwrap();
        }
        let root = root.to_owned();
        Cgroup { root, path }
    }

    #[test]
    fn the_missing_part_is_named_with_the_command_that_supplies_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let pci = "00000000:1B:00.0";
        let cgroup = cgroup(root, "cpu dmem misc\n");
        assert_eq!(cgroup.backend(pci), Ok(Backend::Misc));
        let line = "nvidia/00000000:1b:00.0/vidmem";
        fs::write(root.join("dmem.capacity"), format!("{line} 9\n")).unwrap();
        assert_eq!(cgroup.backend(pci), Ok(Backend::Dmem));
        assert_eq!(cgroup.backend("00000000:02:00.0"), Ok(Backend::Misc));
        let control = root.join("pods/cgroup.subtree_control");
        fs::write(&control, "cpu misc\n").unwrap();
        let missing = cgroup.backend(pci).unwrap_err();
        let command = format!("echo +dmem > {}", control.display());
        assert!(missing.ends_with(&command), "{missing}");
        fs::write(root.join("cgroup.controllers"), "cpu\n").unwrap();
        let missing = cgroup.backend(pci).unwrap_err();
        assert!(missing.contains("no controller dmem"), "{missing}");
    }

    #[test]
    fn the_kernels_file_must_have_the_limit_of_this_card() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = cgroup(folder.path(), "dmem\n");
        let pci = "00000000:02:00.0";
        let own = "nvidia/00000000:02:00.0/vidmem";
        for (text, holds) in [
            (format!("{own} 2097152000\n"), true),
            (
                format!("nvidia/00000000:01:00.0/vidmem 9\n{own} 2097152000\n"),
                true,
            ),
            (format!("{own} max\n"), false),
            (format!("{own} 2097152001\n"), false),
            (
                "nvidia/00000000:01:00.0/vidmem 2097152000\n".to_owned(),
                false,
            ),
            (String::new(), false),
        ] {
            fs::write(cgroup.folder().join("dmem.max"), &text).unwrap();
            let seen = cgroup.witness(Backend::Dmem, pci, 2000);
            assert_eq!(seen.is_ok(), holds, "{text:?}: {seen:?}");
        }
        fs::remove_file(cgroup.folder().join("dmem.max")).unwrap();
        assert!(cgroup.witness(Backend::Dmem, pci, 2000).is_err());
        assert_eq!(cgroup.witness(Backend::Misc, pci, 2000), Ok(()));
    }
}
