//! Files of ours in a directory that others use too.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use cdi::{ContainerEdits, Device, DirError, OwnDir, Spec, Written};
use std::fs;
use std::os::unix::fs::MetadataExt as _;

const PREFIX: &str = "aliquot.dev-grant_";

fn spec(value: &str) -> Spec {
    Spec {
        kind: "aliquot.dev/grant".into(),
        devices: vec![Device {
            name: "0a".into(),
            container_edits: ContainerEdits {
                env: vec![format!("A={value}")],
                ..ContainerEdits::default()
            },
            ..Device::default()
        }],
        ..Spec::default()
    }
    .with_lowest_version()
}

fn names(path: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_spec_is_created_kept_replaced_and_removed() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = OwnDir::new(tmp.path().join("cdi"), PREFIX);
    assert_eq!(dir.ids().unwrap(), Vec::<String>::new());
    assert_eq!(dir.read("0a").unwrap(), None);
    assert_eq!(dir.write("0a", &spec("1")).unwrap(), Written::Created);
    let path = dir.path_of("0a").unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    assert_eq!(dir.write("0a", &spec("1")).unwrap(), Written::Unchanged);
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(dir.write("0a", &spec("2")).unwrap(), Written::Replaced);
    assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(dir.read("0a").unwrap(), Some(spec("2")));
    assert_eq!(names(dir.path()), ["aliquot.dev-grant_0a.json"]);
    assert!(dir.remove("0a").unwrap());
    assert!(!dir.remove("0a").unwrap());
    assert!(names(dir.path()).is_empty());
}

#[test]
fn files_of_others_are_neither_listed_nor_swept_nor_reachable() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = OwnDir::new(tmp.path(), PREFIX);
    dir.write("b", &spec("1")).unwrap();
    dir.write("a", &spec("1")).unwrap();
    let others = [
        "nvidia.yaml",
        "nvidia.com-gpu_0a.json",
        ".nvidia.tmp",
        "aliquot.dev-grant_x.yaml",
    ];
    for name in others {
        fs::write(tmp.path().join(name), "theirs").unwrap();
    }
    fs::write(tmp.path().join(".aliquot.dev-grant_c.tmp"), "half").unwrap();
    assert_eq!(dir.ids().unwrap(), ["a", "b"]);
    assert_eq!(dir.sweep_temporaries().unwrap(), 1);
    for name in others {
        assert_eq!(fs::read_to_string(tmp.path().join(name)).unwrap(), "theirs");
    }
    for id in ["", "../x", "a/b", ".", "a.b", "é", &"a".repeat(129)] {
        assert!(matches!(dir.remove(id), Err(DirError::Id(_))), "{id:?}");
        assert!(matches!(dir.write(id, &spec("1")), Err(DirError::Id(_))));
    }
}

#[test]
fn a_spec_that_a_runtime_would_refuse_is_not_written() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = OwnDir::new(tmp.path(), PREFIX);
    dir.write("a", &spec("1")).unwrap();
    let mut empty = spec("1");
    empty.devices[0].container_edits = ContainerEdits::default();
    let error = dir.write("a", &empty).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec of a is not valid: device \"0a\" edits nothing"
    );
    assert_eq!(dir.read("a").unwrap(), Some(spec("1")));
}

#[test]
fn noise_in_our_file_is_an_error_and_not_an_empty_spec() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = OwnDir::new(tmp.path(), PREFIX);
    fs::write(dir.path_of("a").unwrap(), "{").unwrap();
    assert!(matches!(dir.read("a"), Err(DirError::Unreadable { .. })));
    // And it is replaced by the next write.
    assert_eq!(dir.write("a", &spec("1")).unwrap(), Written::Replaced);
}

#[test]
fn a_failed_write_leaves_the_old_file_and_no_temporary() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = OwnDir::new(tmp.path(), PREFIX);
    // A directory in the way of the final name: reading it fails before anything is made.
    fs::create_dir(dir.path_of("a").unwrap()).unwrap();
    assert!(matches!(
        dir.write("a", &spec("1")),
        Err(DirError::Io { doing: "read", .. })
    ));
    // A directory in the way of the temporary: making it fails.
    dir.write("b", &spec("1")).unwrap();
    fs::create_dir(tmp.path().join(".aliquot.dev-grant_b.tmp")).unwrap();
    assert!(matches!(
        dir.write("b", &spec("2")),
        Err(DirError::Io { doing: "write", .. })
    ));
    assert_eq!(dir.read("b").unwrap(), Some(spec("1")));
}
