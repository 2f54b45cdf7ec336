//! Which containers still have a process. Blocking, as reads from disk.

use crate::attribute;
use crate::reconcile::Proof;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

/// Asks the kernel, one small file per container while its first process lives.
#[derive(Debug)]
pub(super) struct Containers {
    proc_root: PathBuf,
    /// They had no process once. A container's name is never used again, and the hook writes its
    /// proof when the first process exists.
    ended: BTreeSet<String>,
}

impl Containers {
    /// By this `/proc`.
    pub(super) fn new(proc_root: PathBuf) -> Self {
        Self {
            proc_root,
            ended: BTreeSet::new(),
        }
    }

    /// Those with a process: of the ones that proofs name, and of `doubted`.
    ///
    /// # Errors
    /// Processes cannot be listed or read; nothing is known to have ended then.
    pub(super) fn living<'a>(
        &mut self,
        proofs: impl Iterator<Item = &'a Proof>,
        doubted: &'a BTreeSet<String>,
    ) -> io::Result<BTreeSet<String>> {
        let mut asked: BTreeMap<&str, Option<u32>> =
            doubted.iter().map(|id| (id.as_str(), None)).collect();
        asked.extend(proofs.map(|proof| (proof.container_id.as_str(), Some(proof.pid))));
        self.ended.retain(|id| asked.contains_key(id.as_str()));
        asked.retain(|id, _| !self.ended.contains(*id));
        let mut living = BTreeSet::new();
        let mut others = Vec::new();
        for (id, pid) in asked {
            let container = match pid {
                Some(pid) => attribute::container_of(&self.proc_root, pid)?,
                None => None,
            };
            if container.as_deref() == Some(id) {
                living.insert(id.to_owned());
            } else {
                others.push(id);
            }
        }
        if others.is_empty() {
            return Ok(living);
        }
        // Its first process may be gone and another one not, or have another number here.
        let all = attribute::living(&self.proc_root)?;
        for id in others {
            if all.contains(id) {
                living.insert(id.to_owned());
            } else {
                self.ended.insert(id.to_owned());
            }
        }
        Ok(living)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn process(proc_root: &Path, pid: u32, container: &str) {
        let folder = proc_root.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        let pod = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
        let line = format!("0::/kubepods/burstable/pod{pod}/{container}\n");
        fs::write(folder.join("cgroup"), line).unwrap();
    }

    #[test]
    fn a_container_lives_until_its_last_process_ends_and_never_again() {
        let tmp = tempfile::tempdir().unwrap();
        let (one, two) = ("a".repeat(64), "b".repeat(64));
        process(tmp.path(), 10, &one);
        process(tmp.path(), 11, &one);
        process(tmp.path(), 20, &two);
        let proof = Proof {
            container_id: one.clone(),
            pid: 10,
            ..Proof::default()
        };
        let doubted = BTreeSet::from([two.clone(), "c".repeat(64)]);
        let mut containers = Containers::new(tmp.path().to_owned());
        let none = BTreeSet::new();
        let mut living = |doubted| containers.living([&proof].into_iter(), doubted).unwrap();
        assert_eq!(living(&doubted), BTreeSet::from([one.clone(), two]));
        // Its number is another's by now.
        process(tmp.path(), 10, &"d".repeat(64));
        assert_eq!(living(&none), BTreeSet::from([one.clone()]));
        fs::remove_dir_all(tmp.path().join("11")).unwrap();
        assert!(living(&none).is_empty());
        process(tmp.path(), 12, &one);
        assert!(living(&none).is_empty());
    }

    #[test]
    fn where_processes_cannot_be_listed_nobody_has_ended() {
        let tmp = tempfile::tempdir().unwrap();
        let proof = Proof {
            container_id: "a".repeat(64),
            ..Proof::default()
        };
        let (mut containers, none) = (Containers::new(tmp.path().join("none")), BTreeSet::new());
        let living = containers.living([&proof].into_iter(), &none);
        assert!(living.is_err() && containers.ended.is_empty());
    }

    #[test]
    fn where_one_process_cannot_be_read_nobody_has_ended() {
        let tmp = tempfile::tempdir().unwrap();
        // Not even root can read a folder: what the kernel says while files are exhausted is
        // as little an answer.
        fs::create_dir_all(tmp.path().join("10/cgroup")).unwrap();
        for pid in [10, 11] {
            let proof = Proof {
                container_id: "a".repeat(64),
                pid,
                ..Proof::default()
            };
            let (mut containers, none) = (Containers::new(tmp.path().to_owned()), BTreeSet::new());
            let living = containers.living([&proof].into_iter(), &none);
            assert!(living.is_err() && containers.ended.is_empty(), "{pid}");
        }
    }
}
