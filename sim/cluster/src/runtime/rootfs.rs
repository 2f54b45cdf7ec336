//! A container's own directory: what CDI and the kubelet put into it, as links.
//!
//! Without privileges there is no mount: a device node is a hard link (the same inode, which the
//! simulated driver checks), if that is impossible a symbolic one; a mount is a symbolic link. In:
//! paths. Never leaves the directory, whatever a path says.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

/// A directory that represents `/` of one container.
#[derive(Debug)]
pub(crate) struct Rootfs(PathBuf);

impl Rootfs {
    /// Makes it, empty.
    pub(crate) fn make(path: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A path of the container, on the host.
    fn inside(&self, path: &Path) -> PathBuf {
        let mut inside = self.0.clone();
        for part in path.components() {
            match part {
                Component::Normal(part) => inside.push(part),
                Component::ParentDir if inside != self.0 => {
                    inside.pop();
                }
                _ => {}
            }
        }
        inside
    }

    /// A device node.
    pub(crate) fn device(&self, host: &Path, container: &Path) -> io::Result<()> {
        let place = self.fresh(container)?;
        if !host.exists() {
            return Err(missing(host));
        }
        std::fs::hard_link(host, &place).or_else(|_| symlink(host, &place))
    }

    /// A bind mount. A later mount at the same place hides an earlier one.
    pub(crate) fn mount(&self, host: &Path, container: &Path) -> io::Result<()> {
        if !host.exists() {
            return Err(missing(host));
        }
        let place = self.fresh(container)?;
        symlink(host, place)
    }

    fn fresh(&self, container: &Path) -> io::Result<PathBuf> {
        let place = self.inside(container);
        if let Some(parent) = place.parent() {
            // A parent that is itself a mount is not ours to write to.
            let mut walked = self.0.clone();
            for part in parent.strip_prefix(&self.0).unwrap_or(Path::new("")) {
                walked.push(part);
                if walked.is_symlink() {
                    return Err(io::Error::other(format!(
                        "{} lies in a mount, which a simulated container cannot nest",
                        container.display()
                    )));
                }
            }
            std::fs::create_dir_all(parent)?;
        }
        if place.is_symlink() || place.is_file() {
            std::fs::remove_file(&place)?;
        }
        Ok(place)
    }
}

fn missing(host: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("{}: no such file or directory", host.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn no_path_leads_out_and_a_later_mount_wins() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "b").unwrap();
        let root = Rootfs::make(dir.path().join("c/rootfs")).unwrap();
        root.mount(&a, Path::new("/../../../etc/x")).unwrap();
        assert_eq!(std::fs::read(root.path().join("etc/x")).unwrap(), b"a");
        root.mount(&b, Path::new("/etc/x")).unwrap();
        assert_eq!(std::fs::read(root.path().join("etc/x")).unwrap(), b"b");
        root.device(&a, Path::new("/dev/n")).unwrap();
        let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&root.path().join("dev/n")), inode(&a));
        assert!(
            root.mount(&dir.path().join("gone"), Path::new("/y"))
                .is_err()
        );
    }
}
