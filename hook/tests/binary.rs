//! The binary as a runtime runs it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use cdi::hook::Proof;
use cdi::{ContainerEdits, Device, Hook, OwnDir, Spec};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const ALLOC: &str = "00112233445566778899aabbccddeeff";

struct TestHost {
    tmp: tempfile::TempDir,
    arguments: Vec<String>,
}

impl TestHost {
    /// A share's CDI file with its hook, and a bundle into which it was injected.
    fn new() -> Self {
        let tmp = tempfile::tempdir().unwrap();
        for dir in ["proof", "bundle"] {
            fs::create_dir(tmp.path().join(dir)).unwrap();
        }
        let dir = OwnDir::new(tmp.path().join("cdi"), "aliquot.dev-grant_");
        let proof = tmp.path().join("proof").join(ALLOC);
        let file = dir.path_of(ALLOC).unwrap();
        let args = [
            "aliquot-hook",
            "create-runtime",
            "--pod-uid",
            "u-1",
            "--container",
            "main",
            "--alloc",
            ALLOC,
            "--digest",
            "",
            "--proof",
            proof.to_str().unwrap(),
            "--spec",
            file.to_str().unwrap(),
        ];
        let mut spec = Spec {
            kind: "aliquot.dev/grant".into(),
            devices: vec![Device {
                name: ALLOC.into(),
                container_edits: ContainerEdits {
                    env: vec!["CUDA_VISIBLE_DEVICES=GPU-1".into()],
                    hooks: vec![Hook {
                        hook_name: "createRuntime".into(),
                        path: env!("CARGO_BIN_EXE_aliquot-hook").into(),
                        args: args.map(str::to_owned).to_vec(),
                        ..Hook::default()
                    }],
                    ..ContainerEdits::default()
                },
                ..Device::default()
            }],
            ..Spec::default()
        }
        .with_lowest_version();
        cdi::seal(&mut spec);
        dir.write(ALLOC, &spec).unwrap();
        let arguments = spec.devices[0].container_edits.hooks[0].args[1..].to_vec();
        let scene = Self { tmp, arguments };
        scene.bundle_env("CUDA_VISIBLE_DEVICES=GPU-1");
        scene
    }

    fn bundle_env(&self, pair: &str) {
        let text =
            format!(r#"{{"ociVersion":"1.2.0","process":{{"env":["PATH=/bin","{pair}"]}}}}"#);
        fs::write(self.tmp.path().join("bundle/config.json"), text).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.tmp
            .path()
            .join(format!("cdi/aliquot.dev-grant_{ALLOC}.json"))
    }

    fn proof(&self) -> PathBuf {
        self.tmp.path().join("proof").join(ALLOC)
    }

    fn run(&self, pod_uid: &str, container: &str) -> Output {
        let state = format!(
            r#"{{"ociVersion":"1.2.0","id":"4f1c","status":"creating","pid":4711,"bundle":"{}",
            "annotations":{{"io.kubernetes.cri.sandbox-uid":"{pod_uid}","io.kubernetes.cri.container-name":"{container}"}}}}"#,
            self.tmp.path().join("bundle").display()
        );
        run(&self.arguments, &state)
    }
}

fn run(arguments: &[String], state: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_aliquot-hook"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The hook may refuse before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(state.as_bytes());
    child.wait_with_output().unwrap()
}

fn refused(output: &Output, with: &str) {
    assert_eq!(output.status.code(), Some(1));
    let line = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(
        line.starts_with("aliquot: ") && line.contains(with),
        "{line}"
    );
    assert!(output.stdout.is_empty());
}

fn entries(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn the_holder_passes_and_leaves_proof() {
    let scene = TestHost::new();
    let output = scene.run("u-1", "main");
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).as_ref()
        ),
        (Some(0), "")
    );
    let proof: Proof = serde_json::from_str(&fs::read_to_string(scene.proof()).unwrap()).unwrap();
    assert_eq!(proof.alloc_id, ALLOC);
    assert_eq!(proof.pod_uid, "u-1");
    assert_eq!(proof.container, "main");
    assert_eq!(proof.container_id, "4f1c");
    assert_eq!(proof.pid, 4711);
    assert!(proof.unix_millis > 0);
    // Again, as at a restart of the container; no temporary is left.
    assert_eq!(scene.run("u-1", "main").status.code(), Some(0));
    assert_eq!(entries(&scene.tmp.path().join("proof")), 1);
}

#[test]
fn anyone_else_is_refused_and_leaves_no_proof() {
    let scene = TestHost::new();
    refused(&scene.run("u-2", "main"), "belongs to pod u-1, not u-2");
    refused(
        &scene.run("u-1", "side"),
        "belongs to container main, not side",
    );
    refused(&scene.run("u-1\\n\\u0007x", "main"), "not u-1  x");
    refused(&run(&scene.arguments, "{}"), "OCI state");
    refused(&run(&scene.arguments, &" ".repeat(2 << 20)), "larger than");
    refused(&run(&[], "{}"), "the hook's arguments are invalid");
    assert!(!scene.proof().exists());
}

#[test]
fn a_changed_or_missing_file_is_refused() {
    let scene = TestHost::new();
    let text = fs::read_to_string(scene.file()).unwrap();
    fs::write(scene.file(), text.replace("GPU-1", "GPU-2")).unwrap();
    refused(&scene.run("u-1", "main"), "older version");
    fs::remove_file(scene.file()).unwrap();
    refused(&scene.run("u-1", "main"), "cannot read");
    // White space is not content.
    fs::write(scene.file(), text.replace("  ", " ")).unwrap();
    assert_eq!(scene.run("u-1", "main").status.code(), Some(0));
}

#[test]
fn a_variable_that_something_else_set_is_refused() {
    let scene = TestHost::new();
    scene.bundle_env("CUDA_VISIBLE_DEVICES=all");
    refused(
        &scene.run("u-1", "main"),
        "CUDA_VISIBLE_DEVICES is \"all\" in the container",
    );
}

#[test]
fn no_place_for_proof_is_a_refusal() {
    let scene = TestHost::new();
    fs::remove_dir(scene.tmp.path().join("proof")).unwrap();
    refused(&scene.run("u-1", "main"), "cannot write the proof");
}
