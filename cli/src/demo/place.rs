//! The demo's directory: everything temporary is below it, and its name is short, because it
//! contains unix sockets, whose paths have at most 107 bytes.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// How its name begins.
const PREFIX: &str = "aliquot-";
/// In every such directory, and in no other: only what has it is ever cleaned away.
const MARK: &str = ".aliquot-demo";
/// Longest directory that leaves room for what is below.
const LONGEST_BASE: usize = 24;

/// The directory of one demo.
#[derive(Debug)]
pub(super) struct Place(PathBuf);

impl Place {
    /// Makes a fresh one, for this user alone.
    pub(super) fn make() -> io::Result<Self> {
        let base = std::env::temp_dir();
        let base = if base.as_os_str().len() > LONGEST_BASE {
            PathBuf::from("/tmp")
        } else {
            base
        };
        for attempt in 0..100_u32 {
            let path = base.join(format!(
                "{PREFIX}{:x}{}",
                std::process::id(),
                suffix(attempt)
            ));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    std::fs::write(path.join(MARK), "made by aliquot demo\n")?;
                    return Ok(Self(path));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!(
            "no free name for a directory in {}",
            base.display()
        )))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// What the parts log.
    pub(super) fn log(&self) -> PathBuf {
        self.0.join("demo.log")
    }
}

/// Whether a directory is a demo's.
pub(super) fn is_ours(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
        && path.join(MARK).is_file()
}

/// Four characters that differ from one run to the next.
fn suffix(attempt: u32) -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u32(attempt);
    format!("{:04x}", hasher.finish() & 0xffff)
}
