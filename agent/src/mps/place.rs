//! A daemon's directories: `<base>/<name>/{pipe,tenant,shm,log}`.
//!
//! `pipe` is a small file system of its own, mounted afresh at each start of the daemon. Tenants see
//! it as `tenant/pipe`. `tenant` is what is mounted into their containers, with what is mounted in
//! it later: a daemon that starts again is at the same path in existing containers. Both are
//! read-only there. `shm` is shared memory of bounded size where the driver needs that. No tenant sees `log`.
//!
//! In: a name. Out: directories that a tenant of any user can reach. What cannot be mounted
//! is an error: no tenant gets the node's own `/dev/shm` or a directory of its `/run` instead.

use crate::line::one_line;
use api::Mib;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use tracing::warn;

/// Rotated when larger; one older copy is kept.
const MAX_LOG_BYTES: u64 = 4 << 20;
/// What the daemon and its servers write.
const DAEMON_LOG: &str = "daemon.log";
/// A pipe directory holds sockets, a FIFO and small files.
const PIPE_OPTIONS: &str = "size=1m,nr_inodes=64,mode=755";
/// It holds one folder.
const TENANT_OPTIONS: &str = "size=16k,nr_inodes=8,mode=755";
/// No file in them is ever executed.
const PLAIN: MsFlags = MsFlags::MS_NOSUID
    .union(MsFlags::MS_NODEV)
    .union(MsFlags::MS_NOEXEC);

/// How directories are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mounting {
    /// Off for trials without the right to mount: tenants then have plain folders and the
    /// node's `/dev/shm`.
    pub on: bool,
    /// Most that is in the shared memory of one server.
    pub shm: Mib,
}

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

    /// What containers have at `/run/aliquot/mps`.
    pub fn tenant(&self) -> PathBuf {
        self.dir.join("tenant")
    }

    /// Where it logs.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// What the daemon and its servers write to, its standard output and error.
    pub fn log_file(&self) -> PathBuf {
        self.log().join(DAEMON_LOG)
    }

    /// What the daemon and its tenants have at `/dev/shm`, if it is mounted.
    pub fn shm(&self) -> Option<PathBuf> {
        let shm = self.dir.join("shm");
        is_mounted(&shm).then_some(shm)
    }

    /// Makes the directories, with nothing of a dead daemon in them; shared memory where
    /// `shares_memory` says that the driver needs it. Call it while no daemon runs here.
    ///
    /// # Errors
    /// What could not be made or mounted.
    pub fn prepare(&self, mounting: Mounting, shares_memory: bool) -> Result<(), PlaceError> {
        let shm = self.dir.join("shm");
        for dir in [&self.dir, &self.pipe(), &self.tenant(), &self.log(), &shm] {
            fs::create_dir_all(dir).map_err(|e| error("make", dir, e))?;
            // The server takes its client's user id, so every user must get through.
            open_to_all(dir)?;
        }
        if let Some(parent) = self.dir.parent()
            && let Err(error) = open_to_all(parent)
        {
            warn!(%error, "users other than ours cannot reach MPS");
        }
        if !mounting.on {
            return self.clear_pipe();
        }
        self.mount_pipe()?;
        // Existing tenants and a server share the mount: it is never mounted again.
        match (shares_memory, is_mounted(&shm)) {
            (true, false) => {
                let options = format!("mode=1777,size={}m", mounting.shm.0);
                tmpfs(&shm, &options)
            }
            (false, true) => unmount(&shm),
            _ => Ok(()),
        }
    }

    /// A new file system for the daemon's pipes, and the same one, read-only, where tenants look:
    /// their programs only connect there (checked on driver 580.159.04, and one of another user
    /// than root can write to no pipe directory of root on any driver).
    fn mount_pipe(&self) -> Result<(), PlaceError> {
        const NOTHING: Option<&Path> = None;
        let (pipe, seen) = (self.pipe(), self.tenant().join("pipe"));
        self.mount_tenant()?;
        unmount(&seen)?;
        unmount(&pipe)?;
        tmpfs(&pipe, PIPE_OPTIONS)?;
        let bind = |from: &Path, to: &Path| {
            mount(Some(from), to, NOTHING, MsFlags::MS_BIND, NOTHING)
                .map_err(|e| error("mount", to, e.into()))
        };
        // Containers get a copy at once, as it is: it must be read-only before it is there.
        let staged = self.dir.join("staged");
        fs::create_dir_all(&staged).map_err(|e| error("make", &staged, e))?;
        // It may still be there from a try that failed.
        unmount(&staged)?;
        let shown = bind(&pipe, &staged)
            .and_then(|()| close(&staged))
            .and_then(|()| bind(&staged, &seen));
        shown.and(unmount(&staged))
    }

    /// What tenants see, with an empty folder for the pipes. It stays as long as the place:
    /// containers have it mounted. One that was left half made is mounted again: no container
    /// uses that one.
    fn mount_tenant(&self) -> Result<(), PlaceError> {
        let tenant = self.tenant();
        let seen = tenant.join("pipe");
        if !(is_mounted(&tenant) && seen.is_dir()) {
            unmount(&tenant)?;
            tmpfs(&tenant, TENANT_OPTIONS)?;
            fs::create_dir(&seen).map_err(|e| error("make", &seen, e))?;
        }
        close(&tenant)
    }

    /// Without the right to mount: the same folder, emptied.
    fn clear_pipe(&self) -> Result<(), PlaceError> {
        let (pipe, seen) = (self.pipe(), self.tenant().join("pipe"));
        for entry in fs::read_dir(&pipe).map_err(|e| error("read", &pipe, e))? {
            let entry = entry.map_err(|e| error("read", &pipe, e))?;
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let path = entry.path();
            let removed = if is_dir {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            removed.map_err(|e| error("remove", &path, e))?;
        }
        match std::os::unix::fs::symlink(&pipe, &seen) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(error("make", &seen, e)),
            _ => Ok(()),
        }
    }

    /// Takes everything away. Call it while no daemon runs here.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn remove(&self) -> Result<(), PlaceError> {
        for part in ["tenant/pipe", "tenant", "staged", "pipe", "shm"] {
            unmount(&self.dir.join(part))?;
        }
        match fs::remove_dir_all(&self.dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error("remove", &self.dir, e)),
            _ => Ok(()),
        }
    }

    /// Cuts a log that has grown too long, keeping one older copy. The daemon goes on writing to
    /// the same file, at its new end. `is_read` reads the log and says whether it has read all of
    /// so many bytes: a command in what is cut away would go unnoticed.
    pub fn rotate_log(&self, is_read: impl FnOnce(u64) -> bool) {
        let path = self.log_file();
        let long = fs::metadata(&path).is_ok_and(|meta| meta.len() > MAX_LOG_BYTES);
        if !long {
            return;
        }
        let cut = || {
            fs::copy(&path, path.with_extension("log.1"))?;
            let file = fs::OpenOptions::new().write(true).open(&path)?;
            if is_read(file.metadata()?.len()) {
                file.set_len(0)
            } else {
                // There is a next time.
                Ok(())
            }
        };
        if let Err(source) = cut() {
            warn!(log = %path.display(), %source, "cannot rotate");
        }
    }

    /// The last line that was written, for a reason.
    pub fn last_words(&self) -> String {
        let text = fs::read(self.log_file()).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(4096)..];
        let text = String::from_utf8_lossy(tail);
        let mut lines = text.lines().rev();
        let last = lines.find(|line| !line.trim().is_empty());
        one_line(last.unwrap_or_default(), 200)
    }
}

/// Through which every user gets.
fn open_to_all(dir: &Path) -> Result<(), PlaceError> {
    let meta = fs::metadata(dir).map_err(|e| error("read", dir, e))?;
    if meta.permissions().mode() & 0o055 == 0o055 {
        return Ok(());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
        .map_err(|e| error("open to all users", dir, e))
}

fn tmpfs(at: &Path, options: &str) -> Result<(), PlaceError> {
    mount(Some("tmpfs"), at, Some("tmpfs"), PLAIN, Some(options))
        .map_err(|e| error("mount", at, e.into()))
}

/// Makes this mount read-only; what is mounted inside it stays as it is.
fn close(at: &Path) -> Result<(), PlaceError> {
    const NOTHING: Option<&Path> = None;
    let closed = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | PLAIN;
    mount(NOTHING, at, NOTHING, closed, NOTHING).map_err(|e| error("close", at, e.into()))
}

/// All that is mounted there. Tenants that still end keep it in their own namespaces.
fn unmount(at: &Path) -> Result<(), PlaceError> {
    while is_mounted(at) {
        umount2(at, MntFlags::MNT_DETACH).map_err(|e| error("unmount", at, e.into()))?;
    }
    Ok(())
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

    const WITHOUT: Mounting = Mounting {
        on: false,
        shm: Mib(16),
    };

    #[test]
    fn a_place_is_made_reachable_cleared_of_old_files_and_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::new(tmp.path(), "GPU-1").unwrap();
        place.prepare(WITHOUT, true).unwrap();
        // What a tenant may have put there: none of it is followed or in the way.
        let outside = tmp.path().join("outside");
        fs::write(&outside, "1").unwrap();
        fs::create_dir_all(place.pipe().join("control/deep")).unwrap();
        let pid = place.pipe().join("nvidia-cuda-mps-control.pid");
        std::os::unix::fs::symlink(&outside, pid).unwrap();
        let mode = fs::metadata(place.pipe()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        place.prepare(WITHOUT, true).unwrap();
        assert_eq!(
            fs::read_dir(place.tenant().join("pipe")).unwrap().count(),
            0
        );
        assert!(outside.exists());
        assert_eq!(place.shm(), None);
        assert_eq!(Place::all(tmp.path()), ["GPU-1"]);
        place.remove().unwrap();
        place.remove().unwrap();
        assert_eq!(Place::all(tmp.path()), Vec::<String>::new());
    }

    /// With the right to mount.
    #[test]
    fn tenants_change_nothing_and_what_they_see_is_new_at_each_start() {
        if !crate::mps::may_mount() {
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::new(tmp.path(), "GPU-1").unwrap();
        let mounting = Mounting {
            on: true,
            shm: Mib(1),
        };
        place.prepare(mounting, true).unwrap();
        let seen = place.tenant().join("pipe");
        fs::write(place.pipe().join("control"), "").unwrap();
        for change in [
            fs::write(seen.join("x"), ""),
            fs::create_dir(seen.join("x")),
            fs::remove_file(seen.join("control")),
            fs::rename(seen.join("control"), seen.join("x")),
            fs::create_dir(place.tenant().join("x")),
        ] {
            let kind = change.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::ReadOnlyFilesystem);
        }
        let shm = place.shm().unwrap();
        let written = fs::write(shm.join("x"), vec![0; 2 << 20]);
        assert!(written.is_err(), "2 MiB in it");
        // A start recreates the pipe directory, and keeps what tenants already share.
        place.prepare(mounting, true).unwrap();
        assert_eq!(fs::read_dir(&seen).unwrap().count(), 0);
        assert!(shm.join("x").exists());
        // A driver that needs no shared memory has none.
        place.prepare(mounting, false).unwrap();
        assert_eq!(place.shm(), None);
        place.remove().unwrap();
        assert!(!tmp.path().join("GPU-1").exists());
    }

    /// With the right to mount.
    #[test]
    fn what_was_left_half_made_is_made_whole_and_taken_away() {
        if !crate::mps::may_mount() {
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::new(tmp.path(), "GPU-1").unwrap();
        let mounting = Mounting {
            on: true,
            shm: Mib(1),
        };
        let staged = tmp.path().join("GPU-1/staged");
        for dir in [&place.tenant(), &staged] {
            fs::create_dir_all(dir).unwrap();
            tmpfs(dir, TENANT_OPTIONS).unwrap();
        }
        place.prepare(mounting, false).unwrap();
        assert!(!is_mounted(&staged));
        fs::write(place.pipe().join("control"), "").unwrap();
        assert!(place.tenant().join("pipe/control").exists());
        assert!(fs::create_dir(place.tenant().join("y")).is_err());
        tmpfs(&staged, TENANT_OPTIONS).unwrap();
        place.remove().unwrap();
        assert!(!tmp.path().join("GPU-1").exists());
    }

    #[test]
    fn a_long_log_is_cut_and_its_last_line_found() {
        let tmp = tempfile::tempdir().unwrap();
        let place = Place::new(tmp.path(), "GPU-1").unwrap();
        fs::create_dir_all(place.log()).unwrap();
        let path = place.log_file();
        let len = || fs::metadata(&path).unwrap().len();
        fs::write(&path, "one\ntwo\u{7}\n\n").unwrap();
        assert_eq!(place.last_words(), "two");
        place.rotate_log(|_| true);
        assert_eq!(len(), 10);
        let long = vec![b'x'; usize::try_from(MAX_LOG_BYTES).unwrap() + 1];
        fs::write(&path, &long).unwrap();
        place.rotate_log(|_| false);
        assert!(len() > 0, "its end was not read yet");
        place.rotate_log(|len| len > MAX_LOG_BYTES);
        assert_eq!(len(), 0);
        assert!(place.log().join("daemon.log.1").exists());
    }
}
