//! The hook's place on the host: the runtime starts it when the agent is down or replaced,
//! so it lies outside every image, and is replaced by rename.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Puts `binary` at `place`, unless it is there already, byte for byte.
///
/// # Errors
/// The step that failed; what was at `place` before is whole.
pub fn hook(binary: &Path, place: &Path) -> io::Result<bool> {
    let bytes = fs::read(binary)?;
    let executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o111 == 0o111)
    };
    if executable(place) && fs::read(place).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    let folder = place.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let temporary = folder.join(".aliquot-hook.new");
    let put = || -> io::Result<()> {
        fs::write(&temporary, &bytes)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
        fs::File::open(&temporary)?.sync_all()?;
        fs::rename(&temporary, place)
    };
    put().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hook_is_replaced_when_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let (binary, place) = (folder.path().join("b"), folder.path().join("x/y/hook"));
        fs::write(&binary, "one").unwrap();
        assert!(hook(&binary, &place).unwrap());
        assert!(!hook(&binary, &place).unwrap());
        fs::write(&binary, "two").unwrap();
        assert!(hook(&binary, &place).unwrap());
        assert_eq!(fs::read_to_string(&place).unwrap(), "two");
        assert_eq!(
            fs::metadata(&place).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(fs::read_dir(place.parent().unwrap()).unwrap().count(), 1);
    }
}
