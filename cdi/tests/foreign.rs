//! One GPU's edits out of NVIDIA's generated specs.
#![cfg(feature = "foreign")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use cdi::foreign::find_gpu;
use std::fs;
use std::path::{Path, PathBuf};

/// The head of what `nvidia-ctk cdi generate` prints, shortened.
const TOOLKIT: &str = r#"---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - update-ldcache
    - --folder
    - /usr/lib64
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib64/libcuda.so.580.65.06
    hostPath: /usr/lib64/libcuda.so.580.65.06
    options: [ro, nosuid, nodev, rbind, rprivate]
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-aaaa
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
  name: all
kind: nvidia.com/gpu
"#;

fn json(kind: &str, device: &str, node: &str) -> String {
    format!(
        r#"{{"cdiVersion":"0.3.0","kind":"{kind}","devices":[{{"name":"{device}","containerEdits":{{"deviceNodes":[{{"path":"{node}"}}]}}}}]}}"#
    )
}

fn nodes(dirs: &[PathBuf], uuid: &str) -> Option<Vec<String>> {
    let found = find_gpu(dirs, uuid).unwrap().found?;
    Some(
        found
            .edits
            .device_nodes
            .into_iter()
            .map(|node| node.path)
            .collect(),
    )
}

fn dirs(tmp: &Path) -> [PathBuf; 2] {
    let dirs = [tmp.join("etc"), tmp.join("run")];
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
    }
    dirs
}

#[test]
fn the_toolkits_yaml_gives_one_gpu_with_the_global_edits() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = dirs(tmp.path());
    fs::write(dirs[1].join("nvidia.yaml"), TOOLKIT).unwrap();
    let search = find_gpu(&dirs, "GPU-aaaa").unwrap();
    assert_eq!(search.complaints, Vec::<String>::new());
    let found = search.found.unwrap();
    assert_eq!(found.name.to_string(), "nvidia.com/gpu=GPU-aaaa");
    let paths: Vec<&str> = found
        .edits
        .device_nodes
        .iter()
        .map(|node| node.path.as_str())
        .collect();
    assert_eq!(paths, ["/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia0"]);
    assert_eq!(found.edits.hooks[0].args[3], "/usr/lib64");
    assert_eq!(found.edits.mounts.len(), 1);
    assert_eq!(nodes(&dirs, "GPU-bbbb"), None);
}

#[test]
fn a_later_directory_wins_and_the_toolkit_wins_over_the_plugin() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = dirs(tmp.path());
    let plugin = "k8s.device-plugin.nvidia.com/gpu";
    fs::write(dirs[1].join("plugin.json"), json(plugin, "GPU-1", "/dev/p")).unwrap();
    assert_eq!(nodes(&dirs, "GPU-1").unwrap(), ["/dev/p"]);
    fs::write(
        dirs[0].join("a.json"),
        json("nvidia.com/gpu", "GPU-1", "/dev/etc"),
    )
    .unwrap();
    assert_eq!(nodes(&dirs, "GPU-1").unwrap(), ["/dev/etc"]);
    fs::write(
        dirs[1].join("a.json"),
        json("nvidia.com/gpu", "GPU-1", "/dev/run"),
    )
    .unwrap();
    assert_eq!(nodes(&dirs, "GPU-1").unwrap(), ["/dev/run"]);
}

#[test]
fn two_definitions_in_one_directory_are_a_conflict_that_is_told() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = dirs(tmp.path());
    for name in ["a.json", "b.json"] {
        let text = json("nvidia.com/gpu", "GPU-1", "/dev/x");
        fs::write(dirs[1].join(name), text).unwrap();
    }
    let search = find_gpu(&dirs, "GPU-1").unwrap();
    assert!(search.found.is_none());
    assert!(search.complaints[0].contains("a runtime takes neither"));
}

#[test]
fn management_specs_and_our_own_are_never_used() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = dirs(tmp.path());
    for (file, kind) in [
        ("m.json", "management.nvidia.com/gpu"),
        ("o.json", "aliquot.dev/grant"),
    ] {
        fs::write(dirs[1].join(file), json(kind, "GPU-1", "/dev/x")).unwrap();
    }
    assert_eq!(nodes(&dirs, "GPU-1"), None);
}

#[test]
fn a_broken_file_is_a_complaint_and_hides_no_other() {
    let tmp = tempfile::tempdir().unwrap();
    let dirs = dirs(tmp.path());
    fs::write(dirs[0].join("broken.yaml"), "devices: [").unwrap();
    fs::write(dirs[0].join("broken.json"), "{").unwrap();
    fs::write(dirs[0].join("note.txt"), "not read").unwrap();
    fs::write(
        dirs[1].join("a.json"),
        json("nvidia.com/gpu", "GPU-1", "/dev/x"),
    )
    .unwrap();
    let search = find_gpu(&dirs, "GPU-1").unwrap();
    assert!(search.found.is_some());
    assert_eq!(search.complaints.len(), 2);
}
