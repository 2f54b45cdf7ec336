//! `deploy/image/build`: the same programs give the same image, with all that they load.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Builds an image of stand-ins for the four programs; answers its index.
fn build(programs: &Path, out: &Path) -> String {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(tree.join("deploy/image/build"))
        .arg("--out")
        .arg(out)
        .arg("--programs")
        .arg(programs)
        .arg("--static-programs")
        .arg(programs)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    fs::read_to_string(out.join("layout/index.json")).unwrap()
}

#[test]
fn the_same_programs_give_the_same_image_and_others_another() {
    let there = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    if let Some(missing) = ["zstd", "strip", "readelf", "gcc"]
        .iter()
        .find(|tool| !there(tool))
    {
        eprintln!("no {missing}: no image is built");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("programs");
    fs::create_dir(&programs).unwrap();
    for name in [
        "aliquot",
        "aliquot-agent",
        "aliquot-hook",
        "aliquot-scheduler",
    ] {
        fs::copy("/bin/sh", programs.join(name)).unwrap();
    }
    let first = build(&programs, &folder.path().join("a"));
    assert_eq!(build(&programs, &folder.path().join("b")), first);
    let root = folder.path().join("a/root");
    let libc = ["lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64"];
    assert!(
        libc.iter()
            .any(|dir| root.join(dir).join("libc.so.6").exists()),
        "the C library is not in it"
    );
    fs::copy("/bin/cat", programs.join("aliquot")).unwrap();
    assert_ne!(build(&programs, &folder.path().join("c")), first);
}
