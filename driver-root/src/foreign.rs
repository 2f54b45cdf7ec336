//! For tests: a root with another C library than this system's.
//!
//! It is this system's, with the private interface between loader and library renamed: what
//! two releases of glibc differ in. Programs that are dynamically linked run in it with its own
//! loader, and not at all with this system's.

use crate::LIBRARIES;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// Loader and libraries of this process, in `root`.
///
/// # Errors
/// Reading or writing them.
pub fn lay_out(root: &Path) -> io::Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let files = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    for file in files.filter(|file| file.contains(".so")).map(Path::new) {
        let name = file.file_name().unwrap_or_default();
        let is_loader = name.to_string_lossy().starts_with("ld-");
        let folder = if is_loader { "lib64" } else { LIBRARIES[1] };
        let target = root.join(folder).join(name);
        if !target.exists() {
            install(file, &target)?;
        }
    }
    // The default search path of Debian's loader.
    symlink("usr/lib", root.join("lib"))
}

/// A program or a library for such a root.
///
/// # Errors
/// Reading or writing it.
pub fn install(from: &Path, to: &Path) -> io::Result<()> {
    const OLD: &[u8] = b"GLIBC_PRIVATE";
    const NEW: &[u8] = b"GLIBC_PRIVAT0";
    let mut bytes = fs::read(from)?;
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(OLD.len()).position(|w| w == OLD) {
        at += found;
        bytes[at..at + NEW.len()].copy_from_slice(NEW);
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let temporary = to.with_extension("new");
    fs::write(&temporary, bytes)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
    fs::rename(&temporary, to)
}
