//! pid → cgroup → pod and container.
//!
//! - [`cgroup`]: pure: the text of `/proc/<pid>/cgroup` → [`cgroup::Place`].
//! - [`origin`]: the two small reads around it; [`living`]: the containers of all processes;
//!   [`pids`]: all processes.
//!
//! Must never guess: a process whose cgroup names no pod belongs to none.

pub mod cgroup;

use crate::line::one_line;
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::fs::{DirEntry, File};
use std::io::{self, Read as _};
use std::path::Path;

/// A `/proc` file of ours is never longer; what is, was not written by a kernel.
const MAX_BYTES: u64 = 64 << 10;
/// More than the name of a process has.
const MAX_NAME: usize = 64;

/// Where a process belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// UID of its pod, where its cgroup names one.
    pub pod_uid: Option<String>,
    /// Its container, without the runtime's prefix.
    pub container_id: Option<String>,
    /// Its name, at most 15 bytes by the kernel's rule; empty when it is gone.
    pub command: String,
}

/// Reads where `pid` belongs. Blocking, two small files. All empty for a process that is
/// gone: the caller's next observation no longer has it.
pub fn origin(proc_root: &Path, pid: u32) -> Origin {
    let process = proc_root.join(pid.to_string());
    let text = |name| read(&process.join(name)).ok().flatten().unwrap_or_default();
    let place = cgroup::parse(&text("cgroup"));
    let (pod_uid, container_id) = match place {
        Some(place) => (Some(place.pod_uid), place.container_id),
        None => (None, None),
    };
    Origin {
        pod_uid,
        container_id,
        // The tenant's own text.
        command: one_line(&text("comm"), MAX_NAME),
    }
}

/// The container of one process; `None` when it is gone or in none. Blocking, one small file.
///
/// # Errors
/// The process is there, and where it belongs cannot be read.
pub fn container_of(proc_root: &Path, pid: u32) -> io::Result<Option<String>> {
    let file = proc_root.join(pid.to_string()).join("cgroup");
    let place = read(&file)?.and_then(|text| cgroup::parse(&text));
    Ok(place.and_then(|place| place.container_id))
}

/// Every container with at least one process. Blocking, a small file of every process.
///
/// # Errors
/// Processes cannot be listed, or one of them cannot be read.
pub fn living(proc_root: &Path) -> io::Result<BTreeSet<String>> {
    let mut living = BTreeSet::new();
    for pid in pids(proc_root)? {
        living.extend(container_of(proc_root, pid)?);
    }
    Ok(living)
}

/// Every process. Blocking.
///
/// # Errors
/// They cannot be listed.
pub fn pids(proc_root: &Path) -> io::Result<Vec<u32>> {
    let pid = |entry: io::Result<DirEntry>| match entry {
        // Everything else there has a name that is not a number.
        Ok(entry) => Some(Ok(entry.file_name().to_str()?.parse().ok()?)),
        Err(error) => Some(Err(error)),
    };
    std::fs::read_dir(proc_root)?.filter_map(pid).collect()
}

/// `None`: the process is gone. It may go between the opening and the reading.
fn read(path: &Path) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_process_is_placed_by_its_own_files() {
        let tmp = tempfile::tempdir().unwrap();
        let process = tmp.path().join("42");
        fs::create_dir(&process).unwrap();
        let uid = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
        let id = "a".repeat(64);
        let line = format!("0::/kubepods/burstable/pod{uid}/{id}\n");
        fs::write(process.join("cgroup"), line).unwrap();
        fs::write(process.join("comm"), "py\u{7}thon\n").unwrap();
        let expected = Origin {
            pod_uid: Some(uid.into()),
            container_id: Some(id),
            command: "py thon".into(),
        };
        assert_eq!(origin(tmp.path(), 42), expected);
    }

    #[test]
    fn a_process_that_is_gone_belongs_to_no_one() {
        let tmp = tempfile::tempdir().unwrap();
        assert_eq!(origin(tmp.path(), 42), Origin::default());
    }

    #[test]
    fn this_very_process_is_read_from_the_real_proc() {
        assert!(
            !origin(Path::new("/proc"), std::process::id())
                .command
                .is_empty()
        );
    }
}
