//! The hook: its input from the runtime and our own agent, and the proof that it writes.

use crate::{Shape, Target};
use agent::ledger::{AllocId, Share};
use aliquot_hook::{Bundle, State, admit, judge};
use cdi::Spec;
use cdi::hook::{Arguments, Proof, ShareOwner};
use serde_json::{Value, json};

pub(super) const GUARD: Target = Target {
    name: "guard",
    shape: Shape::Json,
    words: &[
        "id",
        "pid",
        "bundle",
        "annotations",
        "io.kubernetes.cri.sandbox-uid",
        "io.kubernetes.pod.uid",
        "io.kubernetes.cri.container-name",
        "io.kubernetes.container.name",
        "u-1",
        "u-2",
        "main",
        "other",
        "process",
        "env",
        "LIMIT=2000",
        "LIMIT=9000",
        "LIMIT",
        "EMPTY=",
        "PATH=/bin",
        "LIMIT=",
        "state",
        "config",
        "devices",
        "containerEdits",
    ],
    seeds,
    large,
    heap: 64,
    run: guard,
};

pub(super) const ARGUMENTS: Target = Target {
    name: "arguments",
    shape: Shape::Text,
    words: &[
        "create-runtime",
        "--pod-uid",
        "--container",
        "--holders",
        "--alloc",
        "--digest",
        "--proof",
        "--spec",
        "--limit-mib",
        "--limit-gpus",
        "--limit-smi",
        "--limit-needed",
        "true",
        "false",
        "/p",
        "GPU-a,GPU-b",
        "2000",
        "4bfca2f7d5d6f3a73082d9babc5b8604e4bf110c09a30e964e230b4ff0736a90",
    ],
    seeds: argument_seeds,
    large: crate::target::none,
    heap: 128,
    run: arguments,
};

pub(super) const PROOF: Target = Target {
    name: "proof",
    shape: Shape::Json,
    words: &[
        "version",
        "allocId",
        "podUid",
        "container",
        "containerId",
        "pid",
        "digest",
        "unixMillis",
        "limited",
        "mib",
        "error",
        "pod",
        "uid",
        "namespace",
        "name",
        "gpus",
        "memoryMib",
        "computePercent",
        "mode",
        "mps",
        "exclusive",
        "decision",
        "u1",
        "main",
        "GPU-1",
    ],
    seeds: proof_seeds,
    large: crate::target::none,
    heap: 32,
    run: proof,
};

/// The share that is guarded: of pod u-1, container main.
fn share() -> (Arguments, Spec) {
    let spec: Spec =
        serde_json::from_value(json!({"cdiVersion": "0.5.0", "kind": "aliquot.dev/grant",
        "devices": [{"name": "0a", "containerEdits": {"env": ["LIMIT=2000", "EMPTY="]}}]}))
        .expect("a spec");
    let expected = Arguments {
        whose: ShareOwner::Container {
            pod_uid: "u-1".into(),
            container: "main".into(),
        },
        alloc: "0a".into(),
        digest: Some(cdi::digest(&spec)),
        proof: "/p".into(),
        spec: Some("/s".into()),
        limit: None,
    };
    (expected, spec)
}

/// serde reads a struct from an array of its fields, too. No program writes one so, and
/// what a target compares by name is not named there.
fn listed(value: &Value) -> bool {
    value.is_array()
}

/// State, `config.json` and CDI file in one: a container that is let through is the holder, with
/// the share's environment.
fn guard(input: &[u8]) {
    let Ok(parts) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    let text = |part: &str| serde_json::to_vec(&parts[part]).expect("it prints");
    let (state, config) = (text("state"), text("config"));
    let (Ok(state), Ok(bundle)) = (State::read(state.as_slice()), Bundle::parse(&config)) else {
        return;
    };
    let (expected, own) = share();
    let spec = match &parts["spec"] {
        Value::Null => own.clone(),
        other => match cdi::dir::parse(other.to_string().as_bytes()) {
            Ok(spec) => spec,
            Err(_) => return,
        },
    };
    let admitted = admit(&expected, &state, std::time::Instant::now());
    if admitted.is_err() || judge(&expected, Some((&spec, &bundle))).is_err() {
        return;
    }
    assert_eq!(spec, own, "another CDI file than was promised");
    let (state, config) = (&parts["state"], &parts["config"]);
    if listed(state) || listed(config) || listed(&config["process"]) {
        return;
    }
    let annotations = &state["annotations"];
    for (keys, value) in [
        (
            ["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"],
            "u-1",
        ),
        (
            [
                "io.kubernetes.cri.container-name",
                "io.kubernetes.container.name",
            ],
            "main",
        ),
    ] {
        let said: Vec<&Value> = keys.iter().filter_map(|key| annotations.get(key)).collect();
        assert!(
            !said.is_empty() && said.iter().all(|said| **said == value),
            "{parts}"
        );
    }
    let env = config["process"]["env"].as_array();
    let limits: Vec<&str> = env
        .into_iter()
        .flatten()
        .filter_map(|pair| pair.as_str()?.strip_prefix("LIMIT="))
        .collect();
    assert!(
        !limits.is_empty() && limits.iter().all(|limit| *limit == "2000"),
        "{parts}"
    );
}

fn seeds() -> Vec<Vec<u8>> {
    let containerd = json!({"ociVersion": "1.2.0", "id": "4f1c", "status": "creating", "pid": 4711,
        "bundle": "/run/containerd/4f1c", "annotations": {"io.kubernetes.cri.container-name": "main",
            "io.kubernetes.cri.sandbox-uid": "u-1", "io.kubernetes.cri.sandbox-name": "p"}});
    let crio = json!({"ociVersion": "1.2.0", "id": "4f1c", "pid": 4711, "bundle": "/b",
        "annotations": {"io.kubernetes.pod.uid": "u-1", "io.kubernetes.container.name": "main"}});
    let stranger = json!({"id": "x", "annotations": {"io.kubernetes.cri.sandbox-uid": "u-2",
        "io.kubernetes.cri.container-name": "main"}});
    let config = |env: Value| json!({"ociVersion": "1.2.0", "process": {"env": env, "args": ["sh"]}, "mounts": []});
    let good = config(json!(["PATH=/bin", "LIMIT=2000", "EMPTY="]));
    let bad = config(json!(["LIMIT=9000", "EMPTY="]));
    let (_, spec) = share();
    [
        json!({"state": containerd, "config": good}),
        json!({"state": crio, "config": good, "spec": spec}),
        json!({"state": stranger, "config": good}),
        json!({"state": containerd, "config": bad}),
    ]
    .iter()
    .map(|parts| serde_json::to_vec(parts).expect("it prints"))
    .collect()
}

/// An environment of many variables, of which none is the share's until the end.
fn large(size: usize) -> Vec<Vec<u8>> {
    let mut env: Vec<String> = (0..size / 12).map(|at| format!("V{at}=x")).collect();
    env.push("LIMIT=2000".to_owned());
    env.push("EMPTY=".to_owned());
    let parts = json!({"state": {"id": "x", "annotations": {"io.kubernetes.pod.uid": "u-1",
        "io.kubernetes.container.name": "main"}}, "config": {"process": {"env": env}}});
    vec![serde_json::to_vec(&parts).expect("it prints")]
}

/// One argument a line. What is taken is all there, and printed again it is taken again.
fn arguments(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let arguments: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let Ok(read) = Arguments::parse(&arguments) else {
        return;
    };
    let printed = read.print();
    assert_eq!(Arguments::parse(&printed), Ok(read));
    assert!(
        arguments.len() == printed.len(),
        "an argument was overlooked: {text:?}"
    );
}

fn argument_seeds() -> Vec<Vec<u8>> {
    let digest = "0".repeat(64);
    let full = format!(
        "create-runtime\n--pod-uid\nu\n--container\nc\n--alloc\n0a\n--digest\n{digest}\n--proof\n/p\n--spec\n/s"
    );
    let limited = format!(
        "{full}\n--limit-mib\n2000\n--limit-gpus\nGPU-a=00000000:01:00.0,GPU-b=00000000:02:00.0\n--limit-smi\n/usr/bin/nvidia-smi\n--limit-needed\ntrue"
    );
    let listed = full.replace("--pod-uid\nu\n--container\nc", "--holders\n/h");
    vec![full.into_bytes(), limited.into_bytes(), listed.into_bytes()]
}

/// The proof as the hook writes it and the agent reads it; a CDI file's record of a share.
fn proof(input: &[u8]) {
    if let Ok(proof) = Proof::parse(input) {
        assert_eq!(Proof::parse(proof.to_json().as_bytes()), Ok(proof.clone()));
        let Ok(value) = serde_json::from_slice::<Value>(input) else {
            return;
        };
        if listed(&value) {
            return;
        }
        for (key, read) in [
            ("allocId", &proof.alloc_id),
            ("podUid", &proof.pod_uid),
            ("container", &proof.container),
            ("containerId", &proof.container_id),
        ] {
            assert_eq!(value[key], read.as_str(), "{key}");
        }
        let limited = proof.limited.and_then(|limited| limited.mib);
        assert!(
            listed(&value["limited"]) || value["limited"]["mib"].as_u64() == limited,
            "a limit that the proof does not name"
        );
    }
    let alloc = AllocId::new(7);
    let text = String::from_utf8_lossy(input);
    if let Some(share) = Share::from_record(alloc, &text) {
        assert_eq!(
            Share::from_record(alloc, &share.to_record()),
            Some(share.clone())
        );
        let value: Value = serde_json::from_str(&text).expect("it was read");
        if !listed(&value) {
            assert_eq!(value["memoryMib"], share.memory.0);
            let pod = &value["pod"];
            assert!(listed(pod) || pod["uid"] == share.pod.uid.as_str());
        }
        assert!(
            (1..=100).contains(&share.compute_percent),
            "a ceiling of {} per cent",
            share.compute_percent
        );
    }
}

fn proof_seeds() -> Vec<Vec<u8>> {
    [
        json!({"version": 1, "allocId": "000102030405060708090a0b0c0d0e0f", "podUid": "u1", "container": "main",
            "containerId": "4f1c", "pid": 4711, "digest": "0".repeat(64), "unixMillis": 1_700_000_000_000_u64}),
        json!({"version": 1, "allocId": "000102030405060708090a0b0c0d0e0f", "podUid": "u1", "container": "main",
            "containerId": "4f1c", "pid": 4711, "digest": "", "unixMillis": 1, "limited": {"mib": 2000, "error": ""}}),
        json!({"version": 1, "pod": {"uid": "u1", "namespace": "ns", "name": "p"}, "container": "main",
            "gpus": ["GPU-1"], "memoryMib": 2000, "computePercent": 100, "mode": "mps", "decision": "7-1"}),
    ]
    .iter()
    .map(|value| serde_json::to_vec(value).expect("it prints"))
    .collect()
}
