//! Slices of cards in MIG mode, from NVML to the CDI file.

use crate::kubelet::{Entry, Want};
use crate::machine::{Machine, SHARE, WHOLE, until};
use agent::gpu::MigStrategy;
use api::GpuNode;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use sim_gpu::hardware::Hardware;
use sim_gpu::wire::Message;
use std::collections::BTreeSet;
use std::time::Duration;

const SMALL: &str = "nvidia.com/mig-1g.5gb";
const LARGE: &str = "nvidia.com/mig-3g.20gb";
/// Looks of the agent at its cards that are waited for where nothing is to happen.
const LOOKS: u32 = 50;

/// A card with three slices beside one without.
async fn sliced(strategy: MigStrategy, cards: &str) -> Machine {
    let hardware = Hardware::parse(&format!(r#"{{"cards":[{cards}]}}"#)).unwrap();
    let mut machine = Machine::on(hardware).await;
    machine.config.mig_strategy = strategy;
    machine.start_agent();
    machine
}

const MIXED: &str = r#"{"preset":"A100-40","mig":true,
    "mig_instances":["3g.20gb","1g.5gb","1g.5gb"]},{"preset":"A100-40"}"#;

async fn offered(machine: &Machine, resource: &str, count: usize) -> BTreeSet<String> {
    until(&format!("{count} of {resource}"), || async {
        let healthy = machine.healthy(resource);
        (healthy.len() == count).then_some(healthy)
    })
    .await
}

async fn admit(machine: &Machine, name: &str, resource: &str) -> Entry {
    let uid = machine.create(name, &[("main", false, resource, 1)]).await;
    machine.bind(name, &uid, None).await;
    let want = Want {
        pod_uid: &uid,
        pod: name,
        container: "main",
        init: false,
        resource,
        count: 1,
        ids: None,
    };
    machine.kubelet.allocate(want).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_a_grant_gets_its_slice_with_the_nodes_of_that_one_alone() {
    let mut machine = sliced(MigStrategy::Mixed, MIXED).await;
    let small = offered(&machine, SMALL, 2).await;
    offered(&machine, LARGE, 1).await;
    offered(&machine, WHOLE, 1).await;
    offered(&machine, SHARE, 48).await;
    let entry = admit(&machine, "p", SMALL).await;
    assert!(entry.ids.is_subset(&small));
    machine.kubelet.pre_start(&entry).await.unwrap();
    let mine = entry.ids.first().unwrap().clone();
    assert_eq!(
        machine.env(&entry, "CUDA_VISIBLE_DEVICES"),
        Some(mine.clone())
    );
    let spec = machine.cdi(&entry).unwrap();
    let nodes = spec["devices"][0]["containerEdits"]["deviceNodes"].clone();
    let paths: Vec<&str> = (nodes.as_array().unwrap().iter())
        .map(|node| node["path"].as_str().unwrap())
        .collect();
    let of = |prefix: &str| paths.iter().filter(|path| path.starts_with(prefix)).count();
    assert_eq!(of("/dev/nvidia-caps/"), 2, "{paths:?}");
    assert!(
        paths.contains(&"/dev/nvidia0") && !paths.contains(&"/dev/nvidia1"),
        "{paths:?}"
    );
    machine.prove(&entry);

    // A fault of it is no other's, and a restarted agent knows whose it is.
    machine.ctl(&Message::new("ctl-xid").with("gpu", &mine).with("xid", 95));
    let left = offered(&machine, SMALL, 1).await;
    assert!(!left.contains(&mine));
    offered(&machine, LARGE, 1).await;
    machine.kill_agent().await;
    machine.start_agent();
    offered(&machine, SMALL, 2).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_strategy_a_card_in_mig_mode_is_left_to_others() {
    let machine = sliced(MigStrategy::None, MIXED).await;
    machine.registered().await;
    assert_eq!(machine.healthy(WHOLE).len(), 1);
    assert_eq!(machine.kubelet.healthy(SMALL), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_strategy_single_slices_are_gpus_and_follow_the_layout() {
    let single = r#"{"preset":"A100-40","mig":true,"mig_instances":["3g.20gb","3g.20gb"]}"#;
    let machine = sliced(MigStrategy::Single, single).await;
    let slices = offered(&machine, WHOLE, 2).await;
    assert!(slices.iter().all(|id| id.starts_with("MIG-")));
    assert!(machine.healthy(SHARE).is_empty());
    let off = Message::new("ctl-set").with("index", 0).with("key", "mig");
    machine.ctl(&off.with("value", 0));
    // One look may find the first slice still there and the second gone.
    let card: BTreeSet<String> = machine.cards.iter().cloned().collect();
    until("the card itself", || async {
        (machine.healthy(WHOLE) == card).then_some(())
    })
    .await;
    offered(&machine, SHARE, 48).await;
}

/// Slices are not taken for destroyed because a call failed while they were listed, and an agent
/// that starts meanwhile finds them when the call works again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_that_the_driver_does_not_list_for_a_while_stay() {
    let mut machine = sliced(MigStrategy::Mixed, MIXED).await;
    let before = offered(&machine, SMALL, 2).await;
    let fault = Message::new("ctl-set").with("index", 0);
    let fault = fault.with("key", "mig-device");
    machine.ctl(&fault.clone().with("value", 999));
    let until = tokio::time::Instant::now() + LOOKS * machine.config.nvml_interval();
    while tokio::time::Instant::now() < until {
        assert_eq!(machine.healthy(SMALL), before);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    machine.kill_agent().await;
    machine.start_agent();
    machine.registered().await;
    // Nor does it take them for the wrong ones.
    wants(&machine, json!({ "3g.20gb": 1, "1g.5gb": 2 })).await;
    says(&machine, "not all of its slices can be read").await;
    machine.ctl(&fault.with("value", 0));
    assert_eq!(offered(&machine, SMALL, 2).await, before);
    offered(&machine, LARGE, 1).await;
    says(&machine, "").await;
}

/// Which layout the card has is not known then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_layout_is_made_on_a_card_with_a_slice_that_cannot_be_identified() {
    let mut machine = sliced(MigStrategy::Mixed, MIXED).await;
    let small = offered(&machine, SMALL, 2).await;
    let fault = Message::new("ctl-set").with("gpu", small.first().unwrap());
    machine.ctl(&fault.with("key", "attributes").with("value", 999));
    machine.kill_agent().await;
    machine.start_agent();
    // All but that one are offered as ever.
    offered(&machine, SMALL, 1).await;
    offered(&machine, LARGE, 1).await;
    wants(&machine, json!({ "2g.10gb": 3 })).await;
    says(&machine, "not all of its slices can be read").await;
}

const MEDIUM: &str = "nvidia.com/mig-2g.10gb";

/// The admin writes which slices the first card is to have.
async fn wants(machine: &Machine, layout: serde_json::Value) {
    let nodes: Api<GpuNode> = Api::all(machine.client.clone());
    until("the GpuNode", || async {
        nodes.get_opt("n1").await.unwrap()
    })
    .await;
    let gpus = json!([{ "uuid": machine.cards[0], "migLayout": layout }]);
    let patch = Patch::Merge(json!({ "spec": { "gpus": gpus } }));
    let written = nodes.patch("n1", &PatchParams::default(), &patch).await;
    written.unwrap();
}

/// Waits until the agent says this of the first card's layout.
async fn says(machine: &Machine, word: &str) {
    let nodes: Api<GpuNode> = Api::all(machine.client.clone());
    until(&format!("the card's row says `{word}`"), || async {
        let status = nodes.get("n1").await.unwrap().status?;
        let row = status
            .gpus
            .iter()
            .find(|row| row.uuid == machine.cards[0])?;
        let message = &row.mig_layout_message;
        (message.contains(word) && message.is_empty() == word.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_card_is_given_the_slices_that_the_admin_wants() {
    let machine = sliced(MigStrategy::Mixed, MIXED).await;
    offered(&machine, SMALL, 2).await;
    wants(&machine, json!({ "2g.10gb": 3, "1g.5gb": 1 })).await;
    let medium = offered(&machine, MEDIUM, 3).await;
    offered(&machine, SMALL, 1).await;
    offered(&machine, LARGE, 0).await;
    says(&machine, "").await;

    // One that a pod has stays, with the layout, until that pod has ended.
    let entry = admit(&machine, "p", MEDIUM).await;
    assert!(entry.ids.is_subset(&medium));
    machine.kubelet.pre_start(&entry).await.unwrap();
    wants(&machine, json!({ "1g.5gb": 7 })).await;
    says(&machine, "pod default/p has slice MIG-").await;
    offered(&machine, MEDIUM, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layout_that_the_card_cannot_have_leaves_it_as_it_was() {
    let machine = sliced(MigStrategy::Mixed, MIXED).await;
    let before = offered(&machine, SMALL, 2).await;
    for (layout, why) in [
        (
            json!({ "3g.40gb": 1 }),
            "the card has no MIG profile 3g.40gb: use 7g.40gb, 4g.20gb",
        ),
        // Larger than the card: the last is not created, and the first two go again.
        (
            json!({ "3g.20gb": 2, "1g.5gb": 1 }),
            "a slice 1g.5gb cannot be created: the card has no room left for it",
        ),
        (
            json!({ "3g.20gb": 3 }),
            "the card can have at most 2 slices 3g.20gb",
        ),
        (
            json!({ "1g.5gb": 4_000_000_000_u32 }),
            "the card can have at most 7 slices 1g.5gb",
        ),
        (json!({ "small": 1 }), "small is no MIG profile"),
    ] {
        wants(&machine, layout).await;
        says(&machine, why).await;
        assert_eq!(offered(&machine, SMALL, 2).await, before);
        offered(&machine, LARGE, 1).await;
    }
    // The driver refuses altogether.
    let broken = Message::new("ctl-set").with("index", 0);
    let broken = broken.with("key", "create-instance");
    machine.ctl(&broken.with("value", 999));
    wants(&machine, json!({ "2g.10gb": 1 })).await;
    says(&machine, "cannot be created again").await;
}
