//! A daemon's directories: `<base>/<name>/{pipe,shm,log}`.
//!
//! In: a name. Out: directories that a tenant of any user can reach and no tenant can
//! write into but where it must; stale files gone; logs of bounded size. Without the right
//! to mount, shared memory is the node's own `/dev/shm`, and a warning says so.

use api::Mib;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tracing::warn;

/// Rotated when larger; one older copy is kept.
const MAX_LOG_BYTES: u64 = 4 << 20;
/// The daemon's own, which does not rotate them, and what it writes to standard error.
const LOGS: [&str; 3] = ["control.log", "server.log", DAEMON_LOG];
/// Standard error of the daemon.
pub const DAEMON_LOG: &str = "daemon.log";
/// What a daemon makes in its pipe directory and leaves when it is killed.
const PIPE_FILES: [&str; 5] = [
    "control",
    "control_lock",
    "control_privileged",
    "log",
    "nvidia-cuda-mps-control.pid",
];

/// One daemon's directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    dir: PathBuf,
}

/// Why they cannot be made or removed. Worth another try.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {source}", path.display())]
pub struct PlaceError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Place {
    /// Below `base`; `None` for a name that would lead elsewhere.
    pub fn new(base: &Path, name: &str) -> Option<Self> {
        let good = !name.is_empty()
            && name.len() <= 128
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        good.then(|| Self {
            dir: base.join(name),
        })
    }

    /// Every place below `base`, by name, sorted.
    pub fn all(base: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(base)
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| Self::new(base, name).is_some_and(|place| place.pipe().is_dir()))
            .collect();
        names.sort_unstable();
        names
    }

    /// Where the daemon listens.
    pub fn pipe(&self) -> PathBuf {
        self.dir.join("pipe")
    }

    /// Where it logs.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The daemon's own shared memory, if it is mounted.
    pub fn private_shm(&self) -> Option<PathBuf> {
        let shm = self.dir.join("shm");
        is_mounted(&shm).then_some(shm)
    }

    /// What tenants must have at `/dev/shm`.
    pub fn shm(&self) -> PathBuf {
        self.private_shm()
            .unwrap_or_else(|| PathBuf::from("/dev/shm"))
    }

    /// Makes the directories and mounts shared memory of half the node's memory at most.
    /// What a dead daemon left in them is removed. Call it while no daemon runs here.
    ///
    /// # Errors
    /// What could not be made; a mount that is not permitted is a warning.
    pub fn prepare(&self) -> Result<(), PlaceError> {
        for dir in [&self.dir, &self.pipe(), &self.log(), &self.dir.join("shm")] {
            fs::create_dir_all(dir).map_err(|e| error("make", dir, e))?;
            // The server takes its client's user id, so every user must get through.
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
                .map_err(|e| error("open to all users", dir, e))?;
        }
        if let Some(parent) = self.dir.parent() {
            let mode = fs::metadata(parent).map_err(|e| error("read", parent, e))?;
            if mode.permissions().mode() & 0o055 != 0o055
                && let Err(source) = fs::set_permissions(parent, fs::Permissions::from_mode(0o755))
            {
                warn!(dir = %parent.display(), %source, "users other than ours cannot reach MPS");
            }
        }
        for name in PIPE_FILES {
            let path = self.pipe().join(name);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(error("remove", &path, e));
                }
                _ => {}
            }
        }
        let shm = self.dir.join("shm");
        // Tenants of before and a server share what is mounted: it is never mounted anew.
        if !is_mounted(&shm)
            && let Err(source) = mount(
                Some("tmpfs"),
                &shm,
                Some("tmpfs"),
                MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
                Some("mode=1777,size=50%"),
            )
        {
            warn!(
                dir = %shm.display(), %source,
                "no shared memory of its own for the MPS server: it uses the node's /dev/shm"
            );
        }
        Ok(())
    }

    /// Takes everything away. Call it while no daemon runs here.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn remove(&self) -> Result<(), PlaceError> {
        let shm = self.dir.join("shm");
        if is_mounted(&shm) {
            // Tenants that still end keep it in their own namespaces.
            umount2(&shm, MntFlags::MNT_DETACH)
                .map_err(|e| error("unmount", &shm, io::Error::from(e)))?;
        }
        match fs::remove_dir_all(&self.dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error("remove", &self.dir, e)),
            _ => Ok(()),
        }
    }

    /// Cuts logs that have grown too long, keeping one older copy. The daemon goes on
    /// writing to the same file, at its new end.
    pub fn rotate_logs(&self) {
        for name in LOGS {
            let path = self.log().join(name);
            let long = fs::metadata(&path).is_ok_and(|meta| meta.len() > MAX_LOG_BYTES);
            if !long {
                continue;
            }
            let older = self.log().join(format!("{name}.1"));
            let cut = fs::copy(&path, &older)
                .and_then(|_| fs::OpenOptions::new().write(true).open(&path))
                .and_then(|file| file.set_len(0));
            if let Err(source) = cut {
                warn!(log = %path.display(), %source, "cannot rotate");
            }
        }
    }

    /// The memory limit that a server says it started with, the same on all its devices;
    /// `None` where its log does not say so.
    pub fn limit_in_log(&self, server: u32, devices: usize) -> Option<Mib> {
        let text = fs::read(self.log().join("server.log")).ok()?;
        let tail = &text[text.len().saturating_sub(64 << 10)..];
        let limits = limits_in(&String::from_utf8_lossy(tail), server);
        let first = *limits.values().next()?;
        let all = (0..devices).all(|device| limits.get(&device) == Some(&first));
        all.then_some(first)
    }

    /// The last line that the daemon wrote to standard error, for a reason.
    pub fn last_words(&self) -> String {
        let text = fs::read(self.log().join(DAEMON_LOG)).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(4096)..];
        String::from_utf8_lossy(tail)
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .chars()
            .filter(|c| !c.is_control())
            .take(200)
            .collect()
    }
}

/// `[… Server 42] Device pinned memory limit for device 0 set to 0x7d000000 bytes`
fn limits_in(text: &str, server: u32) -> BTreeMap<usize, Mib> {
    let one = |line: &str| {
        let (head, said) = line.split_once("] ")?;
        if head.split_whitespace().last()? != server.to_string() {
            return None;
        }
        let said = said.strip_prefix("Device pinned memory limit for device ")?;
        let (device, said) = said.split_once(" set to 0x")?;
        let bytes = u64::from_str_radix(said.strip_suffix(" bytes")?, 16).ok()?;
        let whole = bytes % (1 << 20) == 0;
        Some((device.parse().ok()?, whole.then_some(Mib(bytes >> 20))?))
    };
    text.lines().filter_map(one).collect()
}

/// Whether something is mounted there: it is on another file system than its parent.
fn is_mounted(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    match (device(path), path.parent().and_then(device)) {
        (Some(here), Some(above)) => here != above,
        _ => false,
    }
}

fn error(doing: &'static str, path: &Path, source: io::Error) -> PlaceError {
    PlaceError {
        doing,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_lead_elsewhere() {
        for bad in ["", ".", "..", "a/b", "a.b", "é", &"a".repeat(129)] {
            assert_eq!(Place::new(Path::new("/x"), bad), None, "{bad}");
        }
        let place = Place::new(Path::new("/x"), "GPU-0a").unwrap();
        assert_eq!(place.pipe(), Path::new("/x/GPU-0a/pipe"));
    }

    #[test]
    fn a_place_is_made_reachable_cleared_of_old_files_and_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::new(tmp.path(), "GPU-1").unwrap();
        place.prepare().unwrap();
        fs::write(place.pipe().join("control"), "").unwrap();
        fs::write(place.pipe().join("nvidia-cuda-mps-control.pid"), "1").unwrap();
        let mode = fs::metadata(place.pipe()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        place.prepare().unwrap();
        assert_eq!(fs::read_dir(place.pipe()).unwrap().count(), 0);
        assert_eq!(Place::all(tmp.path()), ["GPU-1"]);
        place.remove().unwrap();
        place.remove().unwrap();
        assert_eq!(Place::all(tmp.path()), Vec::<String>::new());
    }

    #[test]
    fn shared_memory_is_private_where_mounting_is_allowed_and_the_nodes_where_not() {
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::new(tmp.path(), "GPU-1").unwrap();
        assert_eq!(place.shm(), Path::new("/dev/shm"));
        place.prepare().unwrap();
        match place.private_shm() {
            Some(shm) => {
                assert_eq!(place.shm(), shm);
                fs::write(shm.join("x"), "").unwrap();
                // Preparing again must not hide what tenants already share.
                place.prepare().unwrap();
                assert!(shm.join("x").exists());
            }
            None => assert_eq!(place.shm(), Path::new("/dev/shm")),
        }
        place.remove().unwrap();
        assert!(!tmp.path().join("GPU-1").exists());
    }

    #[test]
    fn a_servers_log_tells_its_limit_to_the_mib() {
        let log = "[2026-02-06 09:34:17.770 Server    42] Device pinned memory limit for device 0 set to 0x7d000000 bytes\n\
                   [2026-02-06 09:34:18.770 Server    43] Device pinned memory limit for device 0 set to 0x40000000 bytes\n\
                   [2026-02-06 09:34:18.770 Server    43] Device pinned memory limit for device 1 set to 0x40000001 bytes\n\
                   noise\n[x] Device pinned";
        assert_eq!(limits_in(log, 42), BTreeMap::from([(0, Mib(2000))]));
        assert_eq!(limits_in(log, 43), BTreeMap::from([(0, Mib(1024))]));
        assert!(limits_in(log, 4).is_empty());
    }

    #[test]
    fn a_long_log_is_cut_and_its_last_line_found() {
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::new(tmp.path(), "GPU-1").unwrap();
        fs::create_dir_all(place.log()).unwrap();
        let path = place.log().join(DAEMON_LOG);
        fs::write(&path, "one\ntwo\u{7}\n\n").unwrap();
        assert_eq!(place.last_words(), "two");
        place.rotate_logs();
        assert_eq!(fs::metadata(&path).unwrap().len(), 10);
        let long = vec![b'x'; usize::try_from(MAX_LOG_BYTES).unwrap() + 1];
        fs::write(&path, long).unwrap();
        place.rotate_logs();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert!(place.log().join("daemon.log.1").exists());
    }
}
