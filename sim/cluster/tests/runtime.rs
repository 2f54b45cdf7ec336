//! The runtime: CDI resolved, hooks run, processes made and ended.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use serde_json::{Value, json};
use sim_cluster::runtime::{Config, ContainerConfig, Exit, Runtime, RuntimeError};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

struct Node {
    dir: tempfile::TempDir,
    runtime: Runtime,
}

impl Node {
    /// Whose every image is a shell script.
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        let runtime = Runtime::new(Config {
            root: dir.path().join("c"),
            cdi_dirs: vec![dir.path().join("cdi")],
            proc_dir: dir.path().join("proc"),
            init: words(&["/bin/sh", "-c", "read -r _ && exec \"$0\" \"$@\""]),
            workload: words(&["/bin/sh", "-c", script, "workload"]),
        })
        .unwrap();
        std::fs::create_dir(dir.path().join("cdi")).unwrap();
        Self { dir, runtime }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn hook(&self, script: &str) -> Value {
        let path = self.write("hook", &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        json!({"hookName": "createRuntime", "path": path, "args": ["aliquot-hook", "--expect", "u1"], "env": ["H=1"]})
    }

    fn device(&self, edits: &Value) {
        let spec = json!({"cdiVersion": "0.6.0", "kind": "aliquot.dev/grant", "devices": [{"name": "d", "containerEdits": edits}]});
        self.write("cdi/aliquot.dev-grant_d.json", &spec.to_string());
    }

    fn pod() -> ContainerConfig {
        ContainerConfig {
            pod_uid: "u1".into(),
            pod_namespace: "ns".into(),
            pod_name: "p".into(),
            name: "main".into(),
            cdi_devices: vec!["aliquot.dev/grant=d".into()],
            ..ContainerConfig::default()
        }
    }
}

#[tokio::test]
async fn cdi_environment_wins_and_mounts_and_devices_are_there() {
    let node =
        Node::new("echo \"$A $B\"; cat \"$SIM_ROOT/etc/share\" \"$SIM_ROOT/dev/nvidia0\"; exit 7");
    let share = node.write("share", "mounted ");
    let card = node.write("card", "device");
    node.device(&json!({
        "env": ["A=cdi"],
        "mounts": [{"hostPath": share, "containerPath": "/etc/share", "options": ["ro", "bind"]}],
        "deviceNodes": [{"path": "/dev/nvidia0", "hostPath": card}],
    }));
    let mut pod = Node::pod();
    pod.env = vec![
        ("A".into(), "plugin".into()),
        ("A".into(), "pod".into()),
        ("B".into(), "pod".into()),
    ];
    let id = node.runtime.create(pod).unwrap();
    assert_eq!(id.0.len(), 64);
    node.runtime.start(&id).await.unwrap();
    assert_eq!(node.runtime.wait(&id).await, Some(Exit(7)));
    assert_eq!(node.runtime.log(&id).unwrap(), "cdi pod\nmounted device");
    node.runtime.remove(&id);
    assert_eq!(std::fs::read_dir(node.path("c")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_name_that_stands_for_nothing_makes_no_container() {
    let node = Node::new("true");
    let error = node.runtime.create(Node::pod()).unwrap_err();
    assert!(matches!(error, RuntimeError::Cdi { .. }), "{error}");
    assert!(
        error
            .to_string()
            .ends_with("unresolvable CDI devices aliquot.dev/grant=d"),
        "{error}"
    );
    assert!(node.runtime.running().is_empty());
}

#[tokio::test]
async fn a_hook_sees_the_oci_state_before_the_process_runs() {
    let node = Node::new("echo ran");
    let out = node.path("state");
    node.device(&json!({"hooks": [node.hook(&format!(
        "cat > {0}; echo \"$0 $* $H\" > {0}.args; kill -0 $(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/' {0}) && touch {0}.alive",
        out.display()
    ))]}));
    let id = node.runtime.create(Node::pod()).unwrap();
    node.runtime.start(&id).await.unwrap();
    assert_eq!(node.runtime.wait(&id).await, Some(Exit(0)));
    let state: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(state["id"], id.0);
    assert_eq!(state["annotations"]["io.kubernetes.cri.sandbox-uid"], "u1");
    assert_eq!(
        state["annotations"]["io.kubernetes.cri.container-name"],
        "main"
    );
    assert!(
        node.path("state.alive").exists(),
        "the process is there when the hook runs"
    );
    let args = std::fs::read_to_string(node.path("state.args")).unwrap();
    assert!(args.trim().ends_with("--expect u1 1"), "{args}");
}

#[tokio::test]
async fn a_hook_that_refuses_ends_the_container_before_it_ran() {
    let node = Node::new("touch \"$SIM_ROOT/ran\"");
    node.device(&json!({"hooks": [node.hook("echo 'not this pod' >&2; exit 1")]}));
    let id = node.runtime.create(Node::pod()).unwrap();
    let error = node.runtime.start(&id).await.unwrap_err().to_string();
    assert!(
        error.contains(
            "error running createRuntime hook #0: exit status 1, stdout: , stderr: not this pod"
        ),
        "{error}"
    );
    assert_eq!(node.runtime.wait(&id).await, Some(Exit(128)));
    assert!(node.runtime.running().is_empty());
    let bundle = node.path("c").join(&id.0[..8]);
    assert!(!bundle.join("r/ran").exists());
}

#[tokio::test]
async fn a_process_is_attributed_to_its_container_and_stops_when_told() {
    let node = Node::new("trap '' TERM; echo up; while :; do read -r x; done < \"$SIM_ROOT/fifo\"");
    node.device(&json!({"env": []}));
    let id = node.runtime.create(Node::pod()).unwrap();
    nix::unistd::mkfifo(
        &node.path("c").join(&id.0[..8]).join("r/fifo"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    node.runtime.start(&id).await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while node.runtime.log(&id).is_none_or(|log| !log.contains("up")) {
        assert!(
            std::time::Instant::now() < deadline,
            "the process never said that it is up"
        );
        tokio::task::yield_now().await;
    }
    assert_eq!(node.runtime.running()[0].name, "main");
    let place = std::fs::read_dir(node.path("proc"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let cgroup = std::fs::read_to_string(place.join("cgroup")).unwrap();
    assert_eq!(cgroup, format!("0::/kubepods/besteffort/podu1/{}\n", id.0));
    // It ignores SIGTERM, so the grace runs out and SIGKILL follows.
    node.runtime.stop(&id, Duration::from_millis(50)).await;
    assert_eq!(node.runtime.wait(&id).await, Some(Exit(137)));
    assert!(!place.exists());
}
