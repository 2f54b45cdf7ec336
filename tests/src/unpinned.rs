//! Containers of this runtime class are not pinned to processors that the test machine lacks.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The runtime class of pods that get exclusive CPUs or pinned memory.
pub const RUNTIME_CLASS: &str = "unpinned";

/// Writes the runtime of [`RUNTIME_CLASS`]: runc, without the processors and memory nodes that a
/// container is to be kept on.
pub fn write_runtime(folder: &Path) -> Result<PathBuf> {
    let script = r#"#!/bin/sh
unpin='s/"\(cpus\|mems\)":"[0-9,-]*"/"\1":""/g'
before=
for argument; do
    [ "$before" != --bundle ] || sed -i "$unpin" "$argument/config.json"
    before=$argument
done
case " $* " in
    *" --resources"[=\ ]"- "*) sed "$unpin" | runc "$@" ;;
    *) exec runc "$@" ;;
esac
"#;
    let path = folder.join("unpinned");
    fs::write(&path, script)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
