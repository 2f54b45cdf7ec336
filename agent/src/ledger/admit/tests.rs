use super::*;
use crate::gpu::ComputeMode;
use crate::inventory::{DriverLimits, Health, Stranger};
use crate::ledger::{Claimed, ShareOptions, Turn};
use cdi::hook::Backend;
use proptest::prelude::*;

fn card(index: u32, total: u64) -> Card {
    Card {
        uuid: GpuUuid::from(format!("GPU-{index}").as_str()),
        index,
        minor: index,
        product: "T4".into(),
        total: Mib(total),
        reserved: Mib(0),
        used: Mib(0),
        strangers: Vec::new(),
        grantable: Mib(total),
        health: Health::Healthy,
        compute_mode: ComputeMode::Default,
        mig: false,
        slice: None,
        resource: crate::resource::Resource::Whole,
        cordoned: false,
        hidden_from_other_plugins: false,
        only_mode: None,
        only_front: None,
        switchable: vec![
            Mode::Exclusive,
            Mode::Mps,
            Mode::MpsIsolated,
            Mode::TimeSlicing,
        ],
        driver_limits: DriverLimits::None,
        minimum_fence: None,
        compute_capability: String::new(),
        pci: String::new(),
        numa: None,
        nvlink_peers: Vec::new(),
        server_reserve: Mib(64),
        client_slots: 3,
        context_allowance: Mib(0),
    }
}

fn node(cards: u32) -> Inventory {
    Inventory {
        driver_version: "570".into(),
        cards: (0..cards).map(|index| card(index, 1000)).collect(),
    }
}

fn claim(pod: u32, mode: Mode, gpus: &[u32], memory: u64) -> Claim {
    Claim {
        pod: PodIdentity {
            uid: format!("u{pod}"),
            namespace: "ns".into(),
            name: format!("p{pod}"),
        },
        container: "main".into(),
        turn: Turn::default(),
        gpus: uuids(gpus),
        memory: Mib(memory),
        kept: Mib(memory),
        compute_percent: 100,
        mode,
        claimed: None,
        wishes: ShareOptions::default(),
        decision: format!("d{pod}"),
    }
}

fn uuids(gpus: &[u32]) -> Vec<GpuUuid> {
    gpus.iter()
        .map(|index| GpuUuid::from(format!("GPU-{index}").as_str()))
        .collect()
}

fn set(gpus: &[u32]) -> BTreeSet<GpuUuid> {
    uuids(gpus).into_iter().collect()
}

#[test]
fn shares_fill_a_card_to_the_last_mib_and_no_further() {
    let (mut ledger, node) = (Ledger::default(), node(1));
    ledger
        .reserve(&claim(1, Mode::Mps, &[0], 600), &node)
        .unwrap();
    ledger
        .reserve(&claim(2, Mode::Mps, &[0], 400), &node)
        .unwrap();
    let refused = ledger
        .reserve(&claim(3, Mode::Mps, &[0], 1), &node)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "card GPU-0 has 0 MiB left of 1000 MiB grantable, 1 MiB are granted to this container"
    );
    assert!(refused.may_pass());
    assert_eq!(ledger.granted(&uuids(&[0])[0]), Mib(1000));
}

#[test]
fn what_is_kept_fills_a_card_and_limits_may_sum_to_more() {
    let (mut ledger, node) = (Ledger::default(), node(1));
    let bursts = |pod, kept| Claim {
        kept: Mib(kept),
        ..claim(pod, Mode::TimeSlicing, &[0], 900)
    };
    ledger.reserve(&bursts(1, 600), &node).unwrap();
    ledger.reserve(&bursts(2, 400), &node).unwrap();
    let refused = ledger.reserve(&bursts(3, 1), &node).unwrap_err();
    assert!(matches!(refused, Refused::Memory { free: Mib(0), .. }));
    assert_eq!(ledger.granted(&uuids(&[0])[0]), Mib(1000));
}

#[test]
fn under_a_minimum_fence_a_card_in_mode_mps_takes_shares_of_one_size() {
    let mut node = node(1);
    node.cards[0].minimum_fence = Some(Fence::ServerLimit);
    let mut ledger = Ledger::default();
    let mut reserve = |node: &Inventory, pod, mode, memory| {
        let claim = claim(pod, mode, &[0], memory);
        ledger.reserve(&claim, node).map_err(|why| why.to_string())
    };
    assert_eq!(reserve(&node, 1, Mode::Mps, 300), Ok(()));
    for other in [200, 400] {
        assert_eq!(
            reserve(&node, 2, Mode::Mps, other),
            Err(format!(
                "card GPU-0 takes shares of one size (minimum fence ServerLimit): ns/p1 holds 300 MiB, {other} MiB are granted to this container"
            ))
        );
    }
    assert_eq!(reserve(&node, 2, Mode::Mps, 300), Ok(()));
    node.cards[0].driver_limits = DriverLimits::Kept(Backend::Dmem);
    assert_eq!(reserve(&node, 3, Mode::Mps, 200), Ok(()));
}

#[test]
fn a_card_is_in_one_mode_at_a_time() {
    let (mut ledger, node) = (Ledger::default(), node(2));
    ledger
        .reserve(&claim(1, Mode::Mps, &[0], 10), &node)
        .unwrap();
    let refused = ledger.reserve(&claim(2, Mode::Exclusive, &[0, 1], 1000), &node);
    assert!(matches!(refused, Err(Refused::Taken { is: Mode::Mps, .. })));
    ledger
        .reserve(&claim(3, Mode::Exclusive, &[1], 1000), &node)
        .unwrap();
    for mode in [Mode::Mps, Mode::Exclusive] {
        let refused = ledger.reserve(&claim(4, mode, &[1], 10), &node);
        assert!(matches!(
            refused,
            Err(Refused::Taken {
                is: Mode::Exclusive,
                ..
            })
        ));
    }
}

#[test]
fn containers_of_one_pod_hold_a_whole_card_in_turn() {
    let (mut ledger, node) = (Ledger::default(), node(1));
    let app = claim(1, Mode::Exclusive, &[0], 1000);
    let init = Claim {
        container: "init".into(),
        ..app.clone()
    };
    ledger.reserve(&init, &node).unwrap();
    ledger.reserve(&app, &node).unwrap();
    assert_eq!(ledger.granted(&uuids(&[0])[0]), Mib(1000));
}

/// A pod holds 600 and 400 MiB beside another pod's 300 on a card of 1000.
#[test]
fn shares_of_containers_that_run_in_turn_count_as_the_larger() {
    let node = node(1);
    let turns = |first: bool, second: bool| {
        let mut ledger = Ledger::default();
        ledger
            .reserve(&claim(1, Mode::Mps, &[0], 300), &node)
            .unwrap();
        let of = |container: &str, place, init, memory| Claim {
            container: container.into(),
            turn: Turn { place, init },
            ..claim(2, Mode::Mps, &[0], memory)
        };
        let all = [of("a", 0, first, 600), of("b", 1, second, 400)];
        let both = all
            .iter()
            .try_for_each(|claim| ledger.reserve(claim, &node));
        let free = match both {
            Ok(()) => None,
            Err(Refused::Memory { free, .. }) => Some(free),
            Err(other) => panic!("{other}"),
        };
        let card = &uuids(&[0])[0];
        (free, ledger.granted(card), ledger.slots_used(card))
    };
    assert_eq!(turns(true, false), (None, Mib(900), 2));
    // Both run at once: the second has 100 left.
    assert_eq!(turns(false, false), (Some(Mib(100)), Mib(900), 2));
    assert_eq!(turns(false, true), (Some(Mib(100)), Mib(900), 2));
}

#[test]
fn what_this_agent_cannot_do_is_refused_for_good_with_a_reason() {
    let (mut ledger, node) = (Ledger::default(), node(2));
    for (claim, text) in [
        (
            claim(1, Mode::Mps, &[0, 1], 1),
            "mode mps allows one card per container, not 2: use mps-isolated or time-slicing for several",
        ),
        (claim(1, Mode::Mps, &[], 1), "the grant names no card"),
        (claim(1, Mode::Mps, &[0], 0), "the grant names no memory"),
    ] {
        let refused = ledger.reserve(&claim, &node).unwrap_err();
        assert_eq!(refused.to_string(), text);
        assert!(!refused.may_pass());
    }
    assert_eq!(ledger, Ledger::default());
}

#[test]
fn isolated_shares_leave_room_for_their_servers_and_may_span_cards() {
    let (mut ledger, node) = (Ledger::default(), node(2));
    let card = &node.cards[0];
    let isolated = |pod, gpus: &[u32], mib| claim(pod, Mode::MpsIsolated, gpus, mib);
    ledger.reserve(&isolated(1, &[0, 1], 400), &node).unwrap();
    // The first one's server is in the reserve, the second one's comes on top.
    assert_eq!(ledger.grantable(card), Mib(936));
    let refused = ledger.reserve(&isolated(2, &[0], 537), &node).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "card GPU-0 has 536 MiB left of 936 MiB grantable, 537 MiB are granted to this container"
    );
    ledger.reserve(&isolated(2, &[0], 536), &node).unwrap();
    assert_eq!(ledger.granted(&card.uuid), Mib(936));
    // What is granted stays granted, and there is no room for a third.
    assert_eq!(ledger.grantable(card), Mib(936));
    assert!(ledger.reserve(&isolated(3, &[0], 1), &node).is_err());
    // One mode at a time.
    assert!(matches!(
        ledger.reserve(&claim(4, Mode::TimeSlicing, &[1], 1), &node),
        Err(Refused::Taken { .. })
    ));
}

#[test]
fn slices_share_a_card_without_slots_and_may_span_cards() {
    let (mut ledger, node) = (Ledger::default(), node(2));
    for pod in 1..=8 {
        let claim = claim(pod, Mode::TimeSlicing, &[0, 1], 125);
        ledger.reserve(&claim, &node).unwrap();
    }
    let more = ledger.reserve(&claim(9, Mode::TimeSlicing, &[0], 1), &node);
    assert!(matches!(more, Err(Refused::Memory { .. })));
}

#[test]
fn strangers_sick_cards_slots_and_policy_are_reasons() {
    let mut node = node(2);
    let mut ledger = Ledger::default();
    node.cards[0].strangers = vec![Stranger {
        pid: 1,
        command: "x".into(),
        pod_uid: None,
        container_id: None,
        memory: Mib(300),
    }];
    node.cards[0].grantable = Mib(700);
    assert!(matches!(
        ledger.reserve(&claim(1, Mode::Mps, &[0], 701), &node),
        Err(Refused::Memory { free: Mib(700), .. })
    ));
    // A card with a stranger is not whole.
    assert!(
        ledger
            .reserve(&claim(1, Mode::Exclusive, &[0], 1000), &node)
            .is_err()
    );
    node.cards[1].health = Health::Unhealthy {
        reason: "XID 79".into(),
        lasting: true,
    };
    assert_eq!(
        ledger
            .reserve(&claim(1, Mode::Mps, &[1], 1), &node)
            .unwrap_err()
            .to_string(),
        "card GPU-1 is unhealthy: XID 79"
    );
    for pod in 0..3 {
        ledger
            .reserve(&claim(pod, Mode::Mps, &[0], 1), &node)
            .unwrap();
    }
    assert!(matches!(
        ledger.reserve(&claim(9, Mode::Mps, &[0], 1), &node),
        Err(Refused::Slots { slots: 3, .. })
    ));
    node.cards[0].switchable = vec![Mode::Exclusive];
    assert!(matches!(
        ledger.reserve(&claim(9, Mode::Mps, &[0], 1), &node),
        Err(Refused::NotSwitchable { .. })
    ));
    assert!(matches!(
        ledger.reserve(&claim(9, Mode::Mps, &[7], 1), &node),
        Err(Refused::UnknownCard(_))
    ));
}

#[test]
fn a_free_card_that_the_kubelet_picked_is_adopted() {
    let (mut ledger, node) = (Ledger::default(), node(3));
    let granted = claim(1, Mode::Exclusive, &[0, 1], 1000);
    ledger.reserve(&granted, &node).unwrap();
    let share = ledger
        .bind(&granted, AllocId::new(1), Some(&set(&[2, 1])), &node)
        .unwrap();
    assert_eq!(share.gpus, uuids(&[1, 2]));
    assert_eq!(ledger.on(&uuids(&[0])[0]).count(), 0);
}

#[test]
fn two_whole_pods_whose_cards_the_kubelet_swapped_both_start() {
    let (mut ledger, node) = (Ledger::default(), node(2));
    let (a, b) = (
        claim(1, Mode::Exclusive, &[0], 1000),
        claim(2, Mode::Exclusive, &[1], 1000),
    );
    ledger.reserve(&a, &node).unwrap();
    ledger.reserve(&b, &node).unwrap();
    let first = ledger
        .bind(&a, AllocId::new(1), Some(&set(&[1])), &node)
        .unwrap();
    let second = ledger
        .bind(&b, AllocId::new(2), Some(&set(&[0])), &node)
        .unwrap();
    assert_eq!((first.gpus, second.gpus), (uuids(&[1]), uuids(&[0])));
}

#[test]
fn a_card_that_someone_started_on_is_not_adopted() {
    let (mut ledger, node) = (Ledger::default(), node(2));
    let (a, b) = (
        claim(1, Mode::Exclusive, &[0], 1000),
        claim(2, Mode::Exclusive, &[1], 1000),
    );
    ledger
        .bind(&b, AllocId::new(2), Some(&set(&[1])), &node)
        .unwrap();
    let before = ledger.clone();
    let refused = ledger.bind(&a, AllocId::new(1), Some(&set(&[1])), &node);
    assert!(matches!(refused, Err(Refused::Taken { .. })));
    assert_eq!(ledger, before);
}

#[test]
fn a_container_that_starts_again_keeps_what_it_holds_beside_a_stranger() {
    let (mut ledger, mut node) = (Ledger::default(), node(1));
    let mine = claim(1, Mode::Mps, &[0], 900);
    ledger.bind(&mine, AllocId::new(1), None, &node).unwrap();
    node.cards[0].grantable = Mib(500);
    let share = ledger.bind(&mine, AllocId::new(1), None, &node).unwrap();
    assert_eq!(share.phase, SharePhase::Prepared);
    // A new allocation is a new question.
    assert!(ledger.bind(&mine, AllocId::new(2), None, &node).is_err());
    node.cards[0].health = Health::Unhealthy {
        reason: "XID 48".into(),
        lasting: true,
    };
    assert!(ledger.bind(&mine, AllocId::new(1), None, &node).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Reserve(u32, bool, u32, u64),
    Bind(u32, bool, u32, u64, u32),
    Release(u32),
    Stranger(u32, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pod = 0..6_u32;
    let gpu = 0..3_u32;
    let one = prop_oneof![
        (pod.clone(), any::<bool>(), gpu.clone(), 1..1200_u64)
            .prop_map(|(p, w, g, m)| Step::Reserve(p, w, g, m)),
        (
            pod.clone(),
            any::<bool>(),
            gpu.clone(),
            1..1200_u64,
            gpu.clone()
        )
            .prop_map(|(p, w, g, m, k)| Step::Bind(p, w, g, m, k)),
        pod.prop_map(Step::Release),
        (gpu, 0..400_u64).prop_map(|(g, m)| Step::Stranger(g, m)),
    ];
    prop::collection::vec(one, 0..60)
}

proptest! {
    #[test]
    fn limits_never_sum_to_more_than_was_grantable_when_granted(steps in steps()) {
        let (mut ledger, mut node) = (Ledger::default(), node(3));
        for step in steps {
            let before = ledger.clone();
            let outcome = match &step {
                Step::Reserve(pod, whole, gpu, mib) => {
                    let mode = if *whole { Mode::Exclusive } else { Mode::Mps };
                    ledger.reserve(&claim(*pod, mode, &[*gpu], *mib), &node)
                }
                Step::Bind(pod, whole, gpu, mib, pick) => {
                    let mode = if *whole { Mode::Exclusive } else { Mode::Mps };
                    let picked = whole.then(|| set(&[*pick]));
                    ledger
                        .bind(&claim(*pod, mode, &[*gpu], *mib), AllocId::new(u128::from(*mib)), picked.as_ref(), &node)
                        .map(|_| ())
                }
                Step::Release(pod) => {
                    ledger.release(&claim(*pod, Mode::Mps, &[0], 1).key());
                    Ok(())
                }
                Step::Stranger(gpu, mib) => {
                    node.cards[*gpu as usize].grantable = Mib(1000 - mib);
                    Ok(())
                }
            };
            if outcome.is_err() {
                prop_assert_eq!(&ledger, &before);
            }
            for card in &node.cards {
                let (was, is) = (before.granted(&card.uuid), ledger.granted(&card.uuid));
                // What a stranger takes later is a condition; a grant never is.
                if is > was && !matches!(step, Step::Stranger(..)) {
                    prop_assert!(is <= card.capacity());
                    let whole = ledger.mode_of(&card.uuid) == Some(Mode::Exclusive);
                    prop_assert!(whole || is <= card.grantable, "{is} on {card:?}");
                }
                let modes: BTreeSet<_> = ledger.on(&card.uuid).map(|share| share.mode).collect();
                prop_assert!(modes.len() <= 1);
                prop_assert!(ledger.slots_used(&card.uuid) <= card.client_slots);
            }
        }
    }
}

/// The same by claim, for one of its containers.
fn of_claim(uid: u32, container: &str, claim: Claim) -> Claim {
    Claim {
        container: container.into(),
        claimed: Some(Claimed {
            uid: uid.to_string(),
            name: "c".into(),
            requests: ["gpu".to_owned()].into(),
        }),
        ..claim
    }
}

#[test]
fn what_several_containers_of_a_claim_have_counts_once() {
    for mode in [Mode::Mps, Mode::MpsIsolated, Mode::TimeSlicing] {
        let (mut ledger, node) = (Ledger::default(), node(1));
        let card = &uuids(&[0])[0];
        let mut bind = |uid: u32, container: &str, memory| {
            let claim = of_claim(uid, container, claim(1, mode, &[0], memory));
            let alloc = AllocId::new(uid.into());
            ledger
                .bind(&claim, alloc, None, &node)
                .map_err(|why| why.to_string())
        };
        // The server of another isolated share takes 64 MiB.
        bind(1, "main", 900).unwrap();
        bind(1, "side", 900).unwrap();
        let why = bind(2, "third", 101).unwrap_err();
        assert!(why.contains("left of"), "{why}");
        let room = if mode == Mode::MpsIsolated { 36 } else { 100 };
        bind(2, "third", room).unwrap();
        assert_eq!(ledger.granted(card), Mib(900 + room));
        assert_eq!(ledger.slots_used(card), 2);
        assert_eq!(
            (ledger.on(card).count(), ledger.holds_on(card).count()),
            (3, 2)
        );
        let one = ledger.by_alloc(AllocId::new(1)).next().cloned().unwrap();
        ledger.join(&one, claim(9, mode, &[0], 0).pod, "main".into());
        assert_eq!(ledger.granted(card), Mib(900 + room));
        assert_eq!(ledger.holders(&one.limit_scope()).count(), 3);
    }
}

#[test]
fn a_claim_that_asks_for_a_fence_keeps_it_whatever_comes_later() {
    let (mut ledger, node) = (Ledger::default(), node(1));
    let mut bind = |uid: u32, minimum, memory| {
        let mut claim = of_claim(uid, "main", claim(uid, Mode::Mps, &[0], memory));
        claim.wishes.minimum_fence = minimum;
        let alloc = AllocId::new(uid.into());
        ledger
            .bind(&claim, alloc, None, &node)
            .map(drop)
            .map_err(|why| why.to_string())
    };
    bind(1, Some(Fence::ServerLimit), 200).unwrap();
    let why = bind(2, None, 100).unwrap_err();
    assert!(
        why.contains("one size (minimum fence ServerLimit): ns/p1 holds 200 MiB"),
        "{why}"
    );
    bind(2, None, 200).unwrap();
    let why = bind(3, Some(Fence::ServerLimit), 100).unwrap_err();
    assert!(why.contains("one size"), "{why}");
    bind(3, Some(Fence::ClientLimit), 200).unwrap();
}

#[test]
fn who_only_sees_a_card_is_not_counted_and_not_in_the_way() {
    let (mut ledger, node) = (Ledger::default(), node(1));
    let card = &uuids(&[0])[0];
    ledger
        .reserve(&claim(1, Mode::Mps, &[0], 1000), &node)
        .unwrap();
    let mut look = of_claim(2, "main", claim(2, Mode::Exclusive, &[0], 0));
    look.wishes.observes = true;
    let mut sick = node.clone();
    sick.cards[0].health = Health::Unhealthy {
        reason: "lost".into(),
        lasting: true,
    };
    ledger.bind(&look, AllocId::new(2), None, &sick).unwrap();
    assert_eq!(ledger.mode_of(card), Some(Mode::Mps));
    assert_eq!(ledger.front_of(card), Some(Front::Plugin));
    assert_eq!((ledger.shares().count(), ledger.all().count()), (1, 2));
    assert_eq!(ledger.slots_used(card), 1);
    look.gpus = uuids(&[7]);
    let why = ledger.bind(&look, AllocId::new(3), None, &node);
    assert!(why.is_err());
}
