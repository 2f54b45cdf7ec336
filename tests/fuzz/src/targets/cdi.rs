//! CDI files: our own, NVIDIA's, and names.

use crate::{Shape, Target};
use cdi::{Digest, QualifiedName, Spec, digest, seal};
use serde_json::{Value, json};

const WORDS: &[&str] = &[
    "cdiVersion",
    "kind",
    "annotations",
    "devices",
    "containerEdits",
    "name",
    "env",
    "deviceNodes",
    "hooks",
    "mounts",
    "intelRdt",
    "additionalGids",
    "netDevices",
    "path",
    "hostPath",
    "containerPath",
    "type",
    "major",
    "minor",
    "fileMode",
    "permissions",
    "rwm",
    "none",
    "uid",
    "gid",
    "hookName",
    "createRuntime",
    "args",
    "--digest",
    "timeout",
    "options",
    "0.3.0",
    "0.5.0",
    "0.7.0",
    "1.1.0",
    "v1.0.0",
    "nvidia.com/gpu",
    "aliquot.dev/grant",
    "GPU-1",
    "A=1",
    "/dev/nvidia0",
    "closID",
    "enableCMT",
    "&a",
    "*a",
    "<<:",
    "!!str",
    "|",
    ">-",
    "- ",
    "---",
    "...",
    "? ",
    "%YAML 1.2",
    "0x1F",
    "0o17",
    "~",
    "y",
    ".inf",
    "1_000",
];

pub(super) const JSON: Target = Target {
    name: "cdi",
    shape: Shape::Json,
    words: WORDS,
    seeds,
    large: crate::target::none,
    heap: 64,
    run: |input| {
        if let Ok(spec) = cdi::dir::parse(input) {
            holds(&spec);
        }
    },
};

pub(super) const YAML: Target = Target {
    name: "cdi-yaml",
    shape: Shape::Text,
    words: WORDS,
    seeds: yaml_seeds,
    large: yaml_large,
    heap: 128,
    run: |input| {
        if let Ok(spec) = cdi::foreign::parse_yaml(input) {
            holds(&spec);
        }
    },
};

pub(super) const NAME: Target = Target {
    name: "cdi-name",
    shape: Shape::Text,
    words: &[
        "nvidia.com/gpu",
        "aliquot.dev/grant",
        "=",
        "/",
        "all",
        "GPU-",
        "0",
        ":",
        ".",
        "-",
        "_",
    ],
    seeds: || {
        [
            "aliquot.dev/grant=0123456789abcdef0123456789abcdef",
            "nvidia.com/gpu=all",
            "v/c.d=x",
            &"0a".repeat(32),
        ]
        .map(|name| name.as_bytes().to_vec())
        .to_vec()
    },
    large: crate::target::none,
    heap: 16,
    run: name,
};

/// What is read, written and read again is the same, by its digest, too; merged, nothing
/// comes in that neither side had.
fn holds(spec: &Spec) {
    let printed = spec.to_json();
    let again = cdi::dir::parse(printed.as_bytes()).expect("what was written is read");
    assert_eq!(again, *spec);
    let told = digest(spec);
    assert_eq!(digest(&again), told);
    let mut sealed = spec.clone();
    assert_eq!(seal(&mut sealed), told);
    assert_eq!(digest(&sealed), told, "sealing changes the digest");
    let lowest = spec.clone().with_lowest_version();
    if spec.check().is_ok() {
        assert_eq!(lowest.check(), Ok(()), "the lowest version is too low");
        let kind: cdi::Kind = spec.kind.parse().expect("it was checked");
        for device in &spec.devices {
            kind.device(&device.name).expect("it was checked");
        }
    }
    let mut merged = spec.container_edits.clone();
    for device in &spec.devices {
        let edits = &device.container_edits;
        merged.merge(edits.clone());
        for pair in &edits.env {
            let name = pair.split_once('=').map_or(pair.as_str(), |(name, _)| name);
            let same =
                |other: &&String| other.split_once('=').map_or(other.as_str(), |(n, _)| n) == name;
            let last = edits.env.iter().rev().find(same);
            let seen: Vec<&String> = merged.env.iter().filter(same).collect();
            assert_eq!(seen, Vec::from_iter(last), "{name} after merging");
            if edits.env.len() > 64 {
                break;
            }
        }
    }
    let once = merged.clone();
    merged
        .env
        .iter()
        .for_each(|pair| assert!(once.env.contains(pair)));
}

fn name(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(name) = text.parse::<QualifiedName>() {
        assert_eq!(name.to_string(), text);
        assert!(!name.device().contains(['/', '=']) && !name.device().starts_with('.'));
        let made = cdi::Kind::new(name.kind().vendor(), name.kind().class());
        assert_eq!(made.and_then(|kind| kind.device(name.device())), Ok(name));
    }
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string(), text);
    }
}

fn specs() -> Vec<Value> {
    vec![
        json!({"cdiVersion": "0.5.0", "kind": "aliquot.dev/grant", "annotations": {"aliquot.dev/share": "{}"},
            "devices": [{"name": "000102030405060708090a0b0c0d0e0f", "containerEdits": {
                "env": ["CUDA_MPS_PIPE_DIRECTORY=/run/aliquot/mps/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2000M"],
                "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0,
                    "fileMode": 438, "permissions": "rw", "uid": 0, "gid": 0}],
                "mounts": [{"hostPath": "/run/aliquot/mps", "containerPath": "/run/aliquot/mps", "options": ["rw", "bind"], "type": "bind"}],
                "hooks": [{"hookName": "createRuntime", "path": "/hook", "args": ["aliquot-hook", "create-runtime",
                    "--digest", "4bfca2f7d5d6f3a73082d9babc5b8604e4bf110c09a30e964e230b4ff0736a90", "--pod-uid", "u"],
                    "env": ["A=1"], "timeout": 10}]}}]}),
        json!({"cdiVersion": "1.1.0", "kind": "nvidia.com/gpu", "devices": [
                {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}},
                {"name": "GPU-1", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}], "env": ["A=2"]}}],
            "containerEdits": {"env": ["A=1", "NVIDIA_VISIBLE_DEVICES=void"], "additionalGids": [44],
                "intelRdt": {"closID": "x", "enableMonitoring": true, "schemata": ["L3:0=f"]},
                "netDevices": [{"hostInterfaceName": "eth0", "name": "eth1"}],
                "deviceNodes": [{"path": "/dev/nvidiactl"}],
                "mounts": [{"hostPath": "/lib/x.so", "containerPath": "/lib/x.so", "options": ["ro"]}]}}),
    ]
}

fn seeds() -> Vec<Vec<u8>> {
    specs()
        .iter()
        .map(|spec| serde_json::to_vec(spec).expect("it prints"))
        .collect()
}

fn yaml_seeds() -> Vec<Vec<u8>> {
    let text = "\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: \"0\"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: /dev/nvidia0
- name: GPU-1
  containerEdits: &edits
    env: [A=1, 'B=2']
    mounts:
    - {hostPath: /lib/x.so, containerPath: /lib/x.so, options: [ro, nosuid]}
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
    args: [nvidia-cdi-hook, update-ldcache, --folder, /lib]
    timeout: 0x10
";
    let aliased = text.replace(
        "- name: GPU-1",
        "- {name: GPU-2, containerEdits: *edits}\n- name: GPU-1",
    );
    let mut seeds = seeds();
    seeds.extend([text.into(), aliased.into()]);
    seeds
}

/// Aliases that grow by each other, deep nesting, long keys.
fn yaml_large(size: usize) -> Vec<Vec<u8>> {
    use std::fmt::Write as _;
    let mut laughs = "cdiVersion: 0.5.0\nkind: v/c\nannotations: {a: &a0 x}\ndevices:\n".to_owned();
    laughs.push_str("x0: &x0 [a, a, a, a, a, a, a, a, a]\n");
    for at in 1..40 {
        let before = at - 1;
        let _ = writeln!(
            laughs,
            "x{at}: &x{at} [{}]",
            format!("*x{before}, ").repeat(9)
        );
    }
    let mut env =
        "cdiVersion: 0.5.0\nkind: v/c\ndevices:\n- name: a\n  containerEdits:\n    env: &e\n"
            .to_owned();
    for at in 0..size / 40 {
        let _ = writeln!(env, "    - A{at}=1");
    }
    for at in 0..size / 60 {
        let _ = writeln!(env, "- {{name: b{at}, containerEdits: {{env: *e}}}}");
    }
    let spaces = format!("kind: {}\n", " ".repeat(size));
    let mut keys = String::new();
    let mut anchors = String::new();
    for at in 0..size / 12 {
        let _ = write!(keys, "? k{at}\n: v\n");
        let _ = writeln!(anchors, "a{at}: &a{at} b");
    }
    let flow = format!("devices: {}", "[".repeat(size));
    [laughs, env, spaces, keys, flow, anchors]
        .map(String::into_bytes)
        .to_vec()
}
