//! Shares, from grant to CDI file.

use crate::kubelet::Want;
use crate::machine::{Machine, SHARE, WHOLE, until};
use api::{GpuNode, Mode};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams};
use proto::mps::{ServerPhase, TerminateRequest};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_granted_share_gets_its_card_its_limit_and_its_guard() {
    let machine = Machine::new(2).await;
    let uid = machine.share_pod("p", 1, 2000).await;
    let entry = machine.admit("p", &uid).await;
    assert_eq!(entry.response.envs["NVIDIA_VISIBLE_DEVICES"], "void");
    assert!(entry.response.mounts.is_empty() && entry.response.devices.is_empty());
    assert_eq!(
        machine.cdi(&entry),
        None,
        "nothing is decided before PreStartContainer"
    );
    machine.kubelet.pre_start(&entry).await.unwrap();
    let card = machine.cards[1].clone();
    assert_eq!(
        machine.env(&entry, "CUDA_VISIBLE_DEVICES"),
        Some(card.clone())
    );
    assert_eq!(
        machine
            .env(&entry, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
            .unwrap(),
        "0=2000M"
    );
    assert_eq!(
        machine.env(&entry, "CUDA_MPS_PIPE_DIRECTORY").unwrap(),
        "/run/aliquot/mps/pipe"
    );
    // Frameworks size their pools by the card's total where nothing tells them otherwise.
    let hint = machine.env(&entry, "XLA_CLIENT_MEM_FRACTION").unwrap();
    assert_eq!(hint, "0.0968", "2000 less the context's 512, of 15360");
    let spec = machine.cdi(&entry).unwrap();
    let edits = &spec["devices"][0]["containerEdits"];
    let nodes: Vec<&str> = edits["deviceNodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        nodes,
        [
            "/dev/nvidia1",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools"
        ]
    );
    let mounts: Vec<&str> = edits["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["containerPath"].as_str().unwrap())
        .collect();
    for path in [
        "/run/nvidia-persistenced/socket",
        "/usr/lib64/libnvidia-ml.so.1",
        "/run/aliquot/mps",
        "/run/aliquot/share.json",
    ] {
        assert!(mounts.contains(&path), "{path} in {mounts:?}");
    }
    let args = edits["hooks"][0]["args"].as_array().unwrap();
    assert!(args.contains(&json!(uid)) && args.contains(&json!(entry.alloc())));
    let plan = machine.mps.plan.lock().unwrap().clone();
    assert_eq!(plan.servers[0].name, card);
    assert_eq!(plan.servers[0].default_memory_mib, 2000);
    // A container that starts again finds the same file.
    let before = std::fs::metadata(
        machine
            .config
            .cdi_dir
            .join(format!("aliquot.dev-grant_{}.json", entry.alloc())),
    )
    .unwrap()
    .modified()
    .unwrap();
    machine.kubelet.pre_start(&entry).await.unwrap();
    let file = machine
        .config
        .cdi_dir
        .join(format!("aliquot.dev-grant_{}.json", entry.alloc()));
    assert_eq!(std::fs::metadata(file).unwrap().modified().unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pods_of_one_shape_bound_in_reverse_order_each_get_their_own_card() {
    let machine = Machine::new(2).await;
    let first = machine.create("first", &[("main", false, SHARE, 1)]).await;
    let second = machine.create("second", &[("main", false, SHARE, 1)]).await;
    for (name, uid, card) in [("second", &second, 1), ("first", &first, 0)] {
        let grant = machine.grant(name, uid, &[("main", Mode::Mps, &[card], 2000)]);
        machine.bind(name, uid, Some(&grant)).await;
    }
    // The kubelet may admit them in any order, and even give both one ID.
    let token = machine.healthy(SHARE).into_iter().next().unwrap();
    let mut entries = Vec::new();
    for (name, uid) in [("first", &first), ("second", &second)] {
        let want = Want {
            pod_uid: uid,
            pod: name,
            container: "main",
            init: false,
            resource: SHARE,
            count: 1,
            ids: Some(&[&token]),
        };
        entries.push(machine.kubelet.allocate(want).await.unwrap());
    }
    machine.kubelet.pre_start(&entries[0]).await.unwrap();
    for (entry, card) in entries.iter().zip([0, 1]) {
        assert_eq!(
            machine.env(entry, "CUDA_VISIBLE_DEVICES").unwrap(),
            machine.cards[card]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_init_container_and_its_app_with_one_token_each_get_their_own_grant() {
    let machine = Machine::new(2).await;
    let shape = [("init", true, SHARE, 1), ("main", false, SHARE, 1)];
    let uid = machine.create("p", &shape).await;
    let parts: [(&str, Mode, &[usize], u64); 2] = [
        ("init", Mode::Mps, &[0], 500),
        ("main", Mode::Mps, &[1], 3000),
    ];
    let grant = machine.grant("p", &uid, &parts);
    machine.bind("p", &uid, Some(&grant)).await;
    let want = |container, init, ids| Want {
        pod_uid: &uid,
        pod: "p",
        container,
        init,
        resource: SHARE,
        count: 1,
        ids,
    };
    let init = machine
        .kubelet
        .allocate(want("init", true, None))
        .await
        .unwrap();
    let id = init.ids.first().unwrap().clone();
    // The kubelet gives an init container's ID to the app.
    let again = [id.as_str()];
    let main = machine
        .kubelet
        .allocate(want("main", false, Some(&again)))
        .await
        .unwrap();
    assert_ne!(init.alloc(), main.alloc());
    machine.kubelet.pre_start(&init).await.unwrap();
    machine.kubelet.pre_start(&main).await.unwrap();
    let limit = |entry| machine.env(entry, "ALIQUOT_GPU_MEMORY_MIB").unwrap();
    assert_eq!(
        (limit(&init), limit(&main)),
        ("500".to_owned(), "3000".to_owned())
    );
    let card = |entry| machine.env(entry, "CUDA_VISIBLE_DEVICES").unwrap();
    assert_eq!(
        (card(&init), card(&main)),
        (machine.cards[0].clone(), machine.cards[1].clone())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_steered_to_the_granted_card() {
    let machine = Machine::new(3).await;
    let uid = machine.share_pod("p", 2, 100).await;
    // The steering follows the watch.
    until("the grant is seen", || async {
        (!machine.healthy(WHOLE).contains(&machine.cards[2])).then_some(())
    })
    .await;
    let entry = machine.admit("p", &uid).await;
    let id = entry.ids.first().unwrap();
    assert!(id.starts_with(&machine.cards[2]), "{id}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_pod_held_is_free_and_nothing_of_it_stays() {
    let machine = Machine::new(1).await;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    machine.prove(&entry);
    assert!(
        !machine.healthy(WHOLE).contains(&machine.cards[0]),
        "a shared card is not whole"
    );
    machine.delete("p").await;
    machine.kubelet.forget(&uid);
    until("the card is whole again", || async {
        machine
            .healthy(WHOLE)
            .contains(&machine.cards[0])
            .then_some(())
    })
    .await;
    until("nothing of it is on disk", || async {
        let share = machine.config.share_dir().join(entry.alloc());
        let proof = machine.config.proof_dir().join(entry.alloc());
        (machine.cdi(&entry).is_none() && !share.exists() && !proof.exists()).then_some(())
    })
    .await;
    until("no server is planned", || async {
        machine
            .mps
            .plan
            .lock()
            .unwrap()
            .servers
            .is_empty()
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prestart_waits_for_what_is_only_late() {
    let machine = Machine::new(1).await;
    *machine.mps.phase.lock().unwrap() = ServerPhase::Starting;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    let refused = machine.kubelet.pre_start(&entry).await.unwrap_err();
    let expected = format!("the MPS server of card {} is Starting", machine.cards[0]);
    assert_eq!(refused.message(), expected);
    let (waiting, ()) = tokio::join!(machine.kubelet.pre_start(&entry), async {
        until("it waits", || async {
            let planned = machine.mps.plan.lock().unwrap().servers.len();
            (planned == 1).then_some(())
        })
        .await;
        *machine.mps.phase.lock().unwrap() = ServerPhase::Ready;
    });
    waiting.unwrap();
    // A predecessor that leaves.
    let full = machine.share_pod("full", 0, 12_000).await;
    let big = machine.share_pod("big", 0, 12_000).await;
    let first = machine.admit("full", &full).await;
    machine.kubelet.pre_start(&first).await.unwrap();
    let second = machine.admit("big", &big).await;
    let (waiting, ()) = tokio::join!(machine.kubelet.pre_start(&second), async {
        machine.delete("full").await;
        machine.kubelet.forget(&full);
    });
    waiting.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_says_what_its_cards_have() {
    let machine = Machine::new(2).await;
    let nodes: Api<Node> = Api::all(machine.client.clone());
    // A T4: 15360 MiB, 258 of the driver's, 64 for the MPS server.
    let expected = (2 * (15_360 - 258 - 80)).to_string();
    until("the opaque capacities", || async {
        let node = nodes.get("n1").await.unwrap();
        let capacity = node.status?.capacity?;
        let of = |name: &str| capacity.get(name).map(|amount| amount.0.clone());
        let milli = of("aliquot.dev/gpu-milli")?;
        (of("aliquot.dev/gpu-memory-mib")? == expected && (milli == "2000" || milli == "2k"))
            .then_some(())
    })
    .await;
    let gpu_nodes: Api<GpuNode> = Api::all(machine.client.clone());
    let made = until("the GpuNode", || async {
        gpu_nodes.get_opt("n1").await.unwrap()
    })
    .await;
    let owner = made.metadata.owner_references.unwrap().remove(0);
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Node", "n1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_never_met_the_hook_closes_the_node() {
    let machine = Machine::new(1).await;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    // It has a process, by the kernel's word.
    let id = "c".repeat(64);
    let process = machine.config.proc_root.join("77");
    std::fs::create_dir(&process).unwrap();
    let pod = "0f6b1c1e-4d5c-4f5e-9a64-3a1f0e5d7c21";
    let line = format!("0::/kubepods/burstable/pod{pod}/{id}\n");
    std::fs::write(process.join("cgroup"), line).unwrap();
    let running = json!({"phase": "Running", "containerStatuses": [{"name": "main", "image": "x",
        "imageID": "", "ready": true, "restartCount": 0, "containerID": format!("containerd://{id}"),
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]});
    machine.set_status("p", running).await;
    until("nothing more is offered", || async {
        let held = entry.ids.clone();
        (machine.healthy(SHARE) == held).then_some(())
    })
    .await;
    machine.prove_as(&entry, &id);
    until("the proof opens it again", || async {
        (machine.healthy(SHARE).len() == 48).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_pods_clients_are_drained_at_the_end_of_its_grace_period() {
    let machine = Machine::new(1).await;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    let container = "c".repeat(64);
    machine.prove_as(&entry, &container);
    let _process = machine.join(&uid, &container);
    let drained = || machine.mps.terminated.lock().unwrap().clone();
    assert_eq!(drained(), []);
    let before = Instant::now();
    let params = DeleteParams::default().grace_period(2);
    machine.pods().delete("p", &params).await.unwrap();
    let requests = until("the client is drained", || async {
        let requests = drained();
        (!requests.is_empty()).then_some(requests)
    })
    .await;
    // The program has the first second to itself.
    assert!(before.elapsed() >= Duration::from_secs(1));
    let expected = TerminateRequest {
        server: machine.cards[0].clone(),
        pids: vec![std::process::id()],
    };
    assert_eq!(requests, [expected]);
}
