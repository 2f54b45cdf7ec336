//! None of these gets a card, and each says why in one line.

use crate::kubelet::{Entry, Want};
use crate::machine::{Machine, SHARE, until};
use api::Mode;
use api::gpu_node::GpuNode;
use kube::Api;
use kube::api::ListParams;
use sim_gpu::wire::Message;

async fn refused(machine: &Machine, entry: &Entry) -> String {
    let status = machine.kubelet.pre_start(entry).await.unwrap_err();
    assert!(!status.message().contains('\n'));
    assert_eq!(machine.cdi(entry), None);
    status.message().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_without_a_true_grant_gets_nothing() {
    let machine = Machine::new(1).await;
    let shape = [("main", false, SHARE, 1)];
    let part: [(&str, Mode, &[usize], u64); 1] = [("main", Mode::Mps, &[0], 2000)];
    // Placed by someone else.
    let bare = machine.create("bare", &shape).await;
    machine.bind("bare", &bare, None).await;
    let entry = machine.admit("bare", &bare).await;
    assert_eq!(
        refused(&machine, &entry).await,
        "pod default/bare was not placed by Aliquot's scheduler: it has no grant"
    );
    // Altered.
    let altered = machine.create("altered", &shape).await;
    let grant = machine.grant("altered", &altered, &part);
    let more = grant.replace("\"memoryMib\":2000", "\"memoryMib\":9000");
    assert_ne!(grant, more);
    machine.bind("altered", &altered, Some(&more)).await;
    let entry = machine.admit("altered", &altered).await;
    assert_eq!(
        refused(&machine, &entry).await,
        "pod default/altered: grant's signature does not match: it was altered"
    );
    // Copied.
    let copied = machine.create("copied", &shape).await;
    machine.bind("copied", &copied, Some(&grant)).await;
    let entry = machine.admit("copied", &copied).await;
    assert_eq!(
        refused(&machine, &entry).await,
        "pod default/copied: grant is for pod altered, not copied"
    );
    // Replayed after the pod was recreated.
    let old = machine.create("again", &shape).await;
    let grant = machine.grant("again", &old, &part);
    machine.delete("again").await;
    let new = machine.create("again", &shape).await;
    machine.bind("again", &new, Some(&grant)).await;
    let entry = machine.admit("again", &new).await;
    assert_eq!(
        refused(&machine, &entry).await,
        format!("pod default/again: grant is for pod UID {old}, not {new}")
    );
    // Signed by a key that the cluster does not publish: it may only be late.
    let stranger = api::Signer::from_pkcs8(&api::Signer::generate().unwrap()).unwrap();
    let forged = machine.create("forged", &shape).await;
    let peeked = api::Grant::peek(&machine.grant("forged", &forged, &part)).unwrap();
    machine
        .bind("forged", &forged, Some(&stranger.sign(peeked)))
        .await;
    let entry = machine.admit("forged", &forged).await;
    assert_eq!(
        refused(&machine, &entry).await,
        format!(
            "pod default/forged: grant is signed with key {}, which is not in the aliquot-trust ConfigMap",
            stranger.key_id()
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_cards_cannot_honour_is_refused_with_the_figure() {
    let machine = Machine::new(1).await;
    let first = machine.share_pod("first", 0, 10_000).await;
    let entry = machine.admit("first", &first).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    let second = machine.share_pod("second", 0, 10_000).await;
    let entry = machine.admit("second", &second).await;
    let card = &machine.cards[0];
    assert_eq!(
        refused(&machine, &entry).await,
        format!(
            "card {card} has 5022 MiB left of 15022 MiB grantable, 10000 MiB are granted to this container"
        )
    );
    // Neither may hold the card whole.
    let isolated = machine
        .create("isolated", &[("main", false, SHARE, 1)])
        .await;
    let grant = machine.grant(
        "isolated",
        &isolated,
        &[("main", Mode::MpsIsolated, &[0], 1)],
    );
    machine.bind("isolated", &isolated, Some(&grant)).await;
    let entry = machine.admit("isolated", &isolated).await;
    assert_eq!(
        refused(&machine, &entry).await,
        format!(
            "card {} is in mode mps, held by default/first",
            machine.cards[0]
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_card_that_broke_is_refused_and_only_unheld_tokens_are_withdrawn() {
    let machine = Machine::new(2).await;
    let uid = machine.share_pod("p", 0, 2000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.pre_start(&entry).await.unwrap();
    let late = machine.share_pod("late", 1, 2000).await;
    // So that its token is one of its card: any would do as long as its grant is not read.
    let nodes: Api<GpuNode> = Api::all(machine.client.clone());
    until("late's grant is read", || async {
        let status = nodes.list(&ListParams::default()).await.ok()?.items;
        let status = status.into_iter().find_map(|node| node.status)?;
        let grants = status.gpus.iter().flat_map(|gpu| &gpu.grants);
        let mut pods = grants.map(|grant| grant.pod.as_str());
        pods.any(|pod| pod.ends_with("/late")).then_some(())
    })
    .await;
    let other = machine.admit("late", &late).await;
    machine.ctl(&Message::new("ctl-xid").with("index", 1).with("xid", 48));
    until("the sick card's tokens go", || async {
        let on = |index: usize| {
            let healthy = machine.healthy(SHARE);
            healthy
                .iter()
                .filter(|id| id.starts_with(&machine.cards[index]))
                .count()
        };
        (on(1) == 0 && on(0) == 48).then_some(())
    })
    .await;
    assert_eq!(
        refused(&machine, &other).await,
        format!(
            "card {} is unhealthy: XID 48: the card needs a reset",
            machine.cards[1]
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_a_card_are_heard_beside_cards_that_have_no_events() {
    let mut machine = Machine::bare(3).await;
    for (index, key) in [(0, "event-types"), (1, "register-events")] {
        let fault = Message::new("ctl-set").with("index", index);
        machine.ctl(&fault.with("key", key).with("value", 3));
    }
    machine.start_agent();
    machine.registered().await;
    machine.ctl(&Message::new("ctl-xid").with("index", 2).with("xid", 48));
    until("the sick card's tokens go, and no others", || async {
        let healthy = machine.healthy(SHARE);
        let sick = healthy.iter().any(|id| id.starts_with(&machine.cards[2]));
        (healthy.len() == 96 && !sick).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_checkpoint_only_what_cannot_be_confused_starts() {
    let machine = Machine::new(1).await;
    let uid = machine.share_pod("p", 0, 1000).await;
    let entry = machine.admit("p", &uid).await;
    machine.kubelet.put_checkpoint("{\"Data\": 7}");
    machine.kubelet.pre_start(&entry).await.unwrap();
    assert_eq!(
        machine.env(&entry, "ALIQUOT_GPU_MEMORY_MIB").unwrap(),
        "1000"
    );
    let shape = [("init", true, SHARE, 1), ("main", false, SHARE, 1)];
    let uid = machine.create("q", &shape).await;
    let parts: [(&str, Mode, &[usize], u64); 2] = [
        ("init", Mode::Mps, &[0], 500),
        ("main", Mode::Mps, &[0], 500),
    ];
    let grant = machine.grant("q", &uid, &parts);
    machine.bind("q", &uid, Some(&grant)).await;
    let want = |container, init, ids| Want {
        pod_uid: &uid,
        pod: "q",
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
    let again = [id.as_str()];
    machine
        .kubelet
        .allocate(want("main", false, Some(&again)))
        .await
        .unwrap();
    machine.kubelet.put_checkpoint("{\"Data\": 7}");
    assert_eq!(
        refused(&machine, &init).await,
        "the kubelet's checkpoint is unreadable, and PodResources alone does not tell which container of pod default/q this is: delete the pod, or restart the kubelet, which rewrites the file"
    );
}
