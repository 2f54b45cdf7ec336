//! Paths under a driver root, and sockets at any depth below it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
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

    /// The root that `SIM_ROOT` names; `/` without it, and where there is no such folder: a
    /// program that was started inside of the root still has the name that it has outside.
    pub fn from_env() -> Self {
        let named = std::env::var_os(ROOT_ENV).map(PathBuf::from);
        Self::new(named.filter(|path| path.is_dir()).unwrap_or("/".into()))
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

    /// An absolute path of this root's inside: below the root where it exists
    /// there, else as it is. A container without a mount namespace has its files
    /// below its root and names them as if they were not.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        let inside = self.0.join(path.strip_prefix("/").unwrap_or(path));
        if inside.exists() {
            inside
        } else {
            path.to_owned()
        }
    }

    /// The nodes of MIG capabilities that exist here.
    pub fn capabilities(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.dev().join("nvidia-caps"));
        let mut nodes: Vec<PathBuf> = entries
            .into_iter()
            .flat_map(Iterator::flatten)
            .map(|entry| entry.path())
            .collect();
        nodes.sort_unstable();
        nodes
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

/// Longest path that fits a socket address.
const SOCKET_PATH: usize = 107;

/// Connects to a socket, however long its path is.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (path, _folder) = short(path)?;
    UnixStream::connect(path)
}

/// Listens on a socket, however long its path is.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let (path, _folder) = short(path)?;
    UnixListener::bind(path)
}

/// A path that fits: by way of its folder's descriptor, which must live as long.
fn short(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok((path.to_owned(), None));
    };
    if path.as_os_str().len() <= SOCKET_PATH {
        return Ok((path.to_owned(), None));
    }
    let folder = OpenOptions::new()
        .read(true)
        .custom_flags(nix::fcntl::OFlag::O_PATH.bits())
        .open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    Ok((path, Some(folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_may_lie_deeper_than_an_address_is_long() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let socket = deep.join("control");
        let _listener = bind(&socket).unwrap();
        assert!(socket.exists());
        connect(&socket).unwrap();
        let root = Root::new(folder.path());
        let inside = Path::new("/").join("d".repeat(100));
        assert_eq!(root.resolve(&inside), folder.path().join("d".repeat(100)));
        assert_eq!(root.resolve(Path::new("/nowhere")), Path::new("/nowhere"));
    }
}
