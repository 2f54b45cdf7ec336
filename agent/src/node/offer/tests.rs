use super::*;
use crate::gpu::ComputeMode;
use crate::inventory::{Card, DriverLimits, Health};
use crate::ledger::{AllocId, Claim, Turn};
use api::Mib;
use api::grant::PodIdentity;

pub(in crate::node) fn card(index: u32) -> Card {
    Card {
        uuid: GpuUuid::from(format!("GPU-{index}").as_str()),
        index,
        minor: index,
        product: "T4".into(),
        total: Mib(1000),
        reserved: Mib(0),
        used: Mib(0),
        strangers: Vec::new(),
        grantable: Mib(1000),
        health: Health::Healthy,
        compute_mode: ComputeMode::Default,
        mig: false,
        slice: None,
        resource: crate::resource::Resource::Whole,
        cordoned: false,
        hidden_from_other_plugins: false,
        only_mode: None,
        only_front: None,
        switchable: vec![Mode::Exclusive, Mode::Mps],
        driver_limits: DriverLimits::None,
        minimum_fence: None,
        compute_capability: String::new(),
        pci: String::new(),
        numa: Some(index / 2),
        nvlink_peers: Vec::new(),
        server_reserve: Mib(64),
        client_slots: 2,
        context_allowance: Mib(0),
    }
}

fn node() -> Inventory {
    Inventory {
        driver_version: "570".into(),
        cards: (0..3).map(card).collect(),
    }
}

fn claim(pod: &str, mode: Mode, gpus: &[u32]) -> Claim {
    Claim {
        pod: PodIdentity {
            uid: pod.into(),
            namespace: "ns".into(),
            name: pod.into(),
        },
        container: "main".into(),
        turn: Turn::default(),
        gpus: gpus.iter().map(|n| card(*n).uuid).collect(),
        memory: Mib(1),
        kept: Mib(1),
        compute_percent: 100,
        mode,
        claimed: None,
        wishes: crate::ledger::ShareOptions::default(),
        decision: "d".into(),
    }
}

fn key(pod: &str) -> HolderKey {
    claim(pod, Mode::Mps, &[]).key()
}

/// Healthy IDs of both lists.
fn healthy(inventory: &Inventory, ledger: &Ledger, held: &Held) -> (Vec<String>, Vec<String>) {
    let all: BTreeSet<GpuUuid> = inventory.cards.iter().map(|c| c.uuid.clone()).collect();
    let terms = Terms {
        ledger,
        held,
        shared: &all,
        whole: &all,
        slices: &all,
    };
    let lists = devices(inventory, terms);
    let fit = |resource: Resource| {
        let list = lists.get(&resource).into_iter().flatten().cloned();
        list.filter(|d| d.health == HEALTHY).map(|d| d.id).collect()
    };
    (fit(Resource::Share), fit(Resource::Whole))
}

#[test]
fn an_idle_card_is_offered_both_ways() {
    let (share, whole) = healthy(&node(), &Ledger::default(), &Held::new());
    assert_eq!(share.len(), 6);
    assert_eq!(share[0], "GPU-0::0");
    assert_eq!(whole, ["GPU-0", "GPU-1", "GPU-2"]);
}

#[test]
fn a_shared_card_is_not_whole_and_a_whole_one_is_not_shared() {
    let (mut ledger, node) = (Ledger::default(), node());
    ledger.reserve(&claim("a", Mode::Mps, &[0]), &node).unwrap();
    ledger
        .reserve(&claim("b", Mode::Exclusive, &[1]), &node)
        .unwrap();
    let (share, whole) = healthy(&node, &ledger, &Held::new());
    assert_eq!(share, ["GPU-0::0", "GPU-0::1", "GPU-2::0", "GPU-2::1"]);
    assert_eq!(whole, ["GPU-1", "GPU-2"]);
}

#[test]
fn a_held_token_follows_the_card_that_was_granted_not_the_one_it_names() {
    let (mut ledger, mut node) = (Ledger::default(), node());
    // Its token names card 2, its grant card 0.
    ledger
        .bind(&claim("a", Mode::Mps, &[0]), AllocId::new(1), None, &node)
        .unwrap();
    let held = Held::from([((Resource::Share, "GPU-2::1".to_owned()), Some(key("a")))]);
    let sick = Health::Unhealthy {
        reason: "XID 79".into(),
        lasting: true,
    };
    node.cards[2].health = sick.clone();
    let (share, _) = healthy(&node, &ledger, &held);
    assert_eq!(
        share,
        ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1", "GPU-2::1"]
    );
    node.cards[2].health = Health::Healthy;
    node.cards[0].health = sick;
    let (share, whole) = healthy(&node, &ledger, &held);
    assert_eq!(share, ["GPU-1::0", "GPU-1::1", "GPU-2::0"]);
    assert_eq!(whole, ["GPU-1", "GPU-2"]);
}

#[test]
fn a_held_id_is_never_withdrawn_for_another_reason() {
    let (mut ledger, node) = (Ledger::default(), node());
    ledger
        .reserve(&claim("b", Mode::Exclusive, &[1]), &node)
        .unwrap();
    let held = Held::from([
        // A holder whose grant is not read yet.
        ((Resource::Share, "GPU-1::0".to_owned()), Some(key("x"))),
        // An answer that is not in the checkpoint yet.
        ((Resource::Share, "GPU-1::1".to_owned()), None),
        ((Resource::Whole, "GPU-0".to_owned()), None),
    ]);
    ledger.reserve(&claim("a", Mode::Mps, &[0]), &node).unwrap();
    let (share, whole) = healthy(&node, &ledger, &held);
    assert!(share.contains(&"GPU-1::0".to_owned()) && share.contains(&"GPU-1::1".to_owned()));
    assert!(whole.contains(&"GPU-0".to_owned()));
}

#[test]
fn a_held_id_of_a_card_that_is_not_seen_yet_is_kept() {
    let held = Held::from([
        ((Resource::Share, "GPU-9::0".to_owned()), Some(key("x"))),
        ((Resource::Whole, "GPU-9".to_owned()), None),
    ]);
    let (share, whole) = healthy(&Inventory::default(), &Ledger::default(), &held);
    assert_eq!((share, whole), (names(&["GPU-9::0"]), names(&["GPU-9"])));
}

#[test]
fn a_mig_card_and_a_pinned_card_are_left_out() {
    let mut node = node();
    node.cards[0].switchable = Vec::new();
    node.cards[1].switchable = vec![Mode::Exclusive];
    node.cards[2].switchable = vec![Mode::Mps];
    let (share, whole) = healthy(&node, &Ledger::default(), &Held::new());
    assert_eq!(share, ["GPU-2::0", "GPU-2::1"]);
    assert_eq!(whole, ["GPU-1"]);
}

fn offer(awaited: &[(Resource, &[u32])]) -> Offer {
    let (ledger, held, inventory) = (Ledger::default(), Held::new(), node());
    let all: BTreeSet<GpuUuid> = inventory.cards.iter().map(|c| c.uuid.clone()).collect();
    let terms = Terms {
        ledger: &ledger,
        held: &held,
        shared: &all,
        whole: &all,
        slices: &all,
    };
    let mut lists = devices(&inventory, terms);
    let mut list = |resource| lists.remove(&resource).unwrap_or_default();
    let (share, whole) = (list(Resource::Share), list(Resource::Whole));
    Offer {
        slices: BTreeMap::new(),
        any_whole: true,
        share,
        whole,
        awaited: awaited
            .iter()
            .map(|(resource, gpus)| Awaited {
                resource: *resource,
                gpus: gpus.iter().map(|n| card(*n).uuid).collect(),
            })
            .collect(),
    }
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|id| (*id).to_owned()).collect()
}

#[test]
fn tokens_are_steered_to_the_card_that_is_awaited_longest() {
    let offer = offer(&[(Resource::Share, &[2]), (Resource::Share, &[1])]);
    let all: Vec<String> = offer.share.iter().map(|d| d.id.clone()).collect();
    assert_eq!(offer.prefer(Resource::Share, &all, &[], 1), ["GPU-2::0"]);
    let left = names(&["GPU-0::0", "GPU-1::1"]);
    assert_eq!(offer.prefer(Resource::Share, &left, &[], 1), ["GPU-1::1"]);
    // An ID that is used again comes first.
    assert_eq!(
        offer.prefer(Resource::Share, &all, &names(&["GPU-0::1"]), 1),
        ["GPU-0::1"]
    );
}

#[test]
fn whole_cards_are_steered_to_the_grant_and_away_from_others() {
    let offer = offer(&[(Resource::Whole, &[1]), (Resource::Whole, &[0, 2])]);
    let all = names(&["GPU-0", "GPU-1", "GPU-2"]);
    assert_eq!(
        offer.prefer(Resource::Whole, &all, &[], 2),
        ["GPU-0", "GPU-2"]
    );
    assert_eq!(offer.prefer(Resource::Whole, &all, &[], 1), ["GPU-1"]);
    // No claim awaits three: what is available.
    assert_eq!(offer.prefer(Resource::Whole, &all, &[], 3).len(), 3);
    // The awaited card is taken: not one that another claim awaits, if there is a choice.
    let offer = self::offer(&[(Resource::Whole, &[0])]);
    assert_eq!(
        offer.prefer(Resource::Whole, &names(&["GPU-1", "GPU-2"]), &[], 1),
        ["GPU-1"]
    );
    assert!(offer.prefer(Resource::Whole, &[], &[], 1).is_empty());
}
