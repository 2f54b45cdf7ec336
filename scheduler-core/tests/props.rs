//! What must hold for every sequence of events. All properties are one program: its tests keep all
//! cores busy, and Cargo would run several programs one after another.
#![allow(
    clippy::unwrap_used,
    clippy::manual_is_multiple_of,
    clippy::cast_possible_truncation
)] // A test from its first line to its last.

mod bursts;
mod by_claim;
mod cases;
mod fairness;
mod full;
mod idle;
mod pod_rules;
mod relax;
mod scale_down;
mod storage;
mod world;

use cases::{tried, tried_less};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use scheduler_core::ids::{ClaimUid, GpuUuid, PodUid};
use scheduler_core::model::{Allocation, Amount, Ask, Mode, Phase};
use scheduler_core::units::Time;
use scheduler_core::{Action, Config, Core, Decision, Event, EvictCause, text};
use std::cell::RefCell;
use std::collections::BTreeMap;
use storage::{claim, volumes};
use world::{World, at_once, card, nodes, pod, run, run_with, steps};

proptest! {
    #![proptest_config(tried_less(256))]

    /// And however many matches of selectors are counted: then a reason may be told as it was
    /// when the pod had its turn. The world checks every invariant, too.
    #[test]
    fn the_same_events_give_the_same_actions(nodes in nodes(), steps in steps(60), few in 0_u8..12) {
        let few = few.checked_sub(1).map_or(u64::MAX, u64::from);
        let (all, few, same) = (run(&nodes, &steps, u64::MAX).log, run(&nodes, &steps, few).log, few == u64::MAX);
        let told = |line: &&str| same || !line.starts_with("waits ");
        prop_assert!(all.lines().filter(told).eq(few.lines().filter(told)), "{}\n{}", all, few);
    }

    #[test]
    fn a_fork_and_a_core_rebuilt_from_its_snapshot_decide_as_the_one_that_lived(nodes in nodes(), steps in steps(60), more in steps(6), background in any::<bool>()) {
        let config = |config: Config| Config { background: background.then(pod_rules::background), ..config };
        let mut lived = run_with(&nodes, &steps, config(pod_rules::counting(5)));
        let snapshot = lived.core.snapshot();
        let mut rebuilt = Core::new(config(Config::verified()));
        for event in snapshot.clone() {
            let _ = rebuilt.apply(event);
        }
        prop_assert_eq!(text::write(&rebuilt.snapshot()), text::write(&snapshot));
        let mut fork = lived.core.fork();
        // Every pod is seen once more, as after a watch has restarted.
        for pod in lived.pods.values() {
            let event = Event::Pod(Box::new(pod.clone()));
            let _ = rebuilt.apply(event.clone());
            let _ = fork.apply(event.clone());
            let _ = lived.core.apply(event);
        }
        for step in more {
            // Pods that have not been seen yet, and time.
            let event = Event::Pod(Box::new(pod(100 + step.which % 24, step.what, step.size)));
            let _ = rebuilt.apply(event.clone());
            let _ = fork.apply(event.clone());
            let _ = lived.core.apply(event);
        }
        let now = Time(lived.now + 100_000);
        let untouched = text::write(&lived.core.snapshot());
        let of_fork = fork.decide(now);
        prop_assert_eq!(&untouched, &text::write(&lived.core.snapshot()));
        prop_assert_eq!(fork.violations(), Vec::<String>::new());
        let (one, two) = (rebuilt.decide(now), lived.core.decide(now));
        // A fork has no results of earlier decisions: it may report a reason again.
        let done = |decision: &Decision| -> Vec<String> {
            let lines = text::decision(decision);
            let lines = lines.lines().filter(|line| !line.starts_with("waits "));
            lines.map(str::to_owned).collect()
        };
        prop_assert_eq!(done(&of_fork), done(&two), "{}", lived.log);
        prop_assert_eq!(text::write(&fork.snapshot()), text::write(&lived.core.snapshot()));
        let said = |decision: &Decision| -> Vec<(PodUid, String, String)> {
            decision.actions.iter().filter_map(|action| match action {
                Action::Bind(bind) => Some((bind.pod.clone(), bind.node.to_string(), format!("{:?} {:?} {:?}", bind.grants, bind.claims, bind.devices))),
                // Those that are under way are decided again.
                Action::Evict(evict) if evict.cause == EvictCause::GrantRefused => None,
                Action::Evict(evict) => Some((evict.pod.clone(), evict.cause.as_str().to_owned(), format!("{:?}", evict.in_favour_of))),
            }).collect()
        };
        prop_assert_eq!(said(&one), said(&two), "{}\nsnapshot\n{}", lived.log, text::write(&snapshot));
        for uid in lived.pods.keys() {
            prop_assert_eq!(rebuilt.explain(uid), lived.core.explain(uid), "{}\nsnapshot\n{}\n{}\n{}", lived.log, text::write(&snapshot), text::decision(&one), text::decision(&two));
        }
    }
}

proptest! {
    #![proptest_config(tried(256))]

    #[test]
    fn snapshots_survive_their_text(nodes in nodes(), steps in steps(40)) {
        let snapshot = run(&nodes, &steps, 5).core.snapshot();
        let written = text::write(&snapshot);
        let read = text::read(&written);
        prop_assert_eq!(read, Ok(snapshot), "{}", written);
    }

    #[test]
    fn the_order_of_independent_events_makes_no_difference(
        nodes in nodes(),
        pods in prop::collection::vec((any::<u8>(), any::<u16>()), 1..12),
        order in prop::collection::vec(any::<u32>(), 32),
    ) {
        // Some pods are already placed; which and where comes from a first core.
        let mut first = World::new(&nodes, 5);
        for (index, (kind, size)) in pods.iter().enumerate() {
            first.show(pod(u8::try_from(index).unwrap(), *kind, *size));
            if index == pods.len() / 2 {
                first.decide();
                for action in std::mem::take(&mut first.open) {
                    if let Action::Bind(bind) = action {
                        first.bound(&bind, true);
                    }
                }
            }
        }
        let mut events: Vec<Event> = first.core.snapshot().into_iter().filter(|event| {
            matches!(event, Event::Node(_) | Event::Cards(_) | Event::Queue(_) | Event::Volume(_) | Event::Namespace(_) | Event::Pod(_) | Event::Devices(_) | Event::Allocated(_))
        }).collect();
        let decide = |events: &[Event]| {
            let mut core = Core::new(Config::verified());
            for event in events {
                let _ = core.apply(event.clone());
            }
            text::decision(&core.decide(Time(1)))
        };
        let straight = decide(&events);
        for (index, swap) in order.iter().enumerate() {
            let length = events.len();
            events.swap(index % length, *swap as usize % length);
        }
        prop_assert_eq!(decide(&events), straight);
    }

    /// Sums of limits over cards, and claims of volumes, from what was decided alone.
    #[test]
    fn nothing_is_given_more_than_it_has(nodes in nodes(), pods in prop::collection::vec((any::<u8>(), any::<u16>()), 1..24)) {
        let mut world = World::new(&nodes, 5);
        for (index, (kind, size)) in pods.iter().enumerate() {
            world.show(pod(u8::try_from(index).unwrap(), *kind, *size));
        }
        let mut sums: BTreeMap<GpuUuid, u64> = BTreeMap::new();
        let mut whole: BTreeMap<GpuUuid, u32> = BTreeMap::new();
        let (mut bound, mut owners) = (BTreeMap::new(), BTreeMap::new());
        let mut claims: BTreeMap<ClaimUid, Allocation> = BTreeMap::new();
        for action in world.decide().actions {
            let Action::Bind(bind) = action else { continue };
            for claim in by_claim::allocations(&bind) {
                let same = claims.entry(claim.claim.clone()).or_insert_with(|| claim.clone());
                prop_assert_eq!(&same.devices, &claim.devices);
            }
            for claim in &bind.claims {
                let wanted = (0..7).map(self::claim).find(|one| one.uid == claim.uid).unwrap().wants;
                let at = (bind.node.clone(), claim.volume.clone());
                prop_assert_eq!(bound.entry(claim.uid.clone()).or_insert_with(|| at.clone()), &at);
                prop_assert_eq!(wanted.is_some(), claim.volume.is_some());
                if let (Some(want), Some(volume)) = (wanted, &claim.volume) {
                    let owner = owners.entry(volume.clone()).or_insert_with(|| claim.uid.clone());
                    prop_assert_eq!(&*owner, &claim.uid);
                    let volume = volumes().find(|one| one.name == *volume).unwrap();
                    prop_assert!(volume.shape.size >= want.shape.size);
                    prop_assert!(volume.nodes.is_none() || volume.name.as_str()[1..2] == bind.node.as_str()[1..]);
                }
            }
            let mut of_pod = Vec::new();
            for grant in &bind.grants {
                let mut cards = grant.cards.clone();
                cards.sort();
                cards.dedup();
                prop_assert_eq!(cards.len(), grant.cards.len(), "distinct cards");
                for card in &grant.cards {
                    if grant.mode == Mode::Exclusive && !of_pod.contains(card) {
                        *whole.entry(card.clone()).or_default() += 1;
                        of_pod.push(card.clone());
                    }
                }
            }
            let shares: Vec<_> = bind.grants.iter().filter(|grant| grant.mode != Mode::Exclusive).cloned().collect();
            for (card, most) in at_once(&world.pods[&bind.pod], &shares) {
                *sums.entry(card).or_default() += most;
            }
        }
        for (uuid, sum) in &sums {
            let parts: Vec<u8> = uuid.as_str().split('-').skip(1).map(|part| part.parse().unwrap()).collect();
            prop_assert!(*sum <= card(parts[0], parts[1]).grantable.0);
            prop_assert!(!whole.contains_key(uuid), "whole and shared at once");
        }
        prop_assert!(whole.values().all(|pods| *pods == 1));
        let pools: Vec<_> = (0..3).map(|node| by_claim::pool(node, 0)).chain([by_claim::network()]).collect();
        let claims: Vec<Allocation> = claims.into_values().collect();
        prop_assert_eq!(by_claim::beyond(&pools, &claims), None);
        for uuid in claims.iter().flat_map(|claim| &*claim.devices).filter_map(|one| one.device.as_str().strip_suffix("/card")) {
            let card = GpuUuid::new(format!("GPU-{}-0", uuid.rsplit('n').next().unwrap()));
            prop_assert!(!sums.contains_key(&card) && !whole.contains_key(&card), "granted and claimed: {}", card);
        }
    }

    /// Shares that come one after the other end on as few cards as in one decision. There are cards
    /// enough: where they are not, one decision may place a share again for another one's room.
    #[test]
    fn a_burst_opens_no_more_cards_than_one_decision(nodes in prop::collection::vec(1_u8..5, 1..4), sizes in prop::collection::vec(any::<u16>(), 1..20)) {
        let nodes = [nodes, vec![20]].concat();
        let (at_once, placed) = bursts::opened(&nodes, &sizes, true);
        prop_assert_eq!(placed, sizes.len());
        let (in_turn, placed_in_turn) = bursts::opened(&nodes, &sizes, false);
        prop_assert_eq!(placed_in_turn, placed);
        prop_assert!(in_turn.len() <= at_once.len(), "{:?} in turn, {:?} at once", in_turn, at_once);
    }

    /// A pod that fits alone on an idle cluster is placed there.
    #[test]
    fn what_fits_alone_is_placed(nodes in nodes(), kind in any::<u8>(), size in any::<u16>()) {
        let mut world = World::new(&nodes, 5);
        let pod = pod(1, kind, size);
        let uid = pod.uid.clone();
        world.show(pod);
        let fits = world.core.explain(&uid).unwrap().nodes.iter().any(|node| node.fits);
        prop_assert_eq!(world.decide().actions.len() == 1, fits);
    }
}

/// Each relaxation in the list rules something out in these clusters, and the full search, which
/// the core runs then, finds nothing.
#[test]
fn what_a_relaxation_rules_out_no_search_finds() {
    let ruled_out = RefCell::new(BTreeMap::<&str, u64>::new());
    let tried = TestRunner::new(tried(512)).run(&relax::case(), |case| {
        for (name, times) in relax::run(&case) {
            *ruled_out.borrow_mut().entry(name).or_default() += times;
        }
        Ok(())
    });
    tried.unwrap();
    let ruled_out = ruled_out.into_inner();
    for name in scheduler_core::relaxations() {
        assert!(ruled_out.contains_key(name), "{name} not in {ruled_out:?}");
    }
}

/// A card is explained as fitting only if it has room for a part of the pod's request, even on a
/// node with another card for the pod. This test counts the room from the grants alone.
#[test]
fn no_card_without_room_is_explained_as_fitting() {
    let refused = RefCell::new(0);
    let tried = TestRunner::new(tried(256)).run(&(nodes(), steps(60)), |(nodes, steps)| {
        let world = run(&nodes, &steps, 5);
        let mut held = BTreeMap::<GpuUuid, Vec<u64>>::new();
        let mut cards = BTreeMap::new();
        for event in world.core.snapshot() {
            let takes = match event {
                Event::Cards(node) => {
                    cards.insert(node.node, node.cards);
                    continue;
                }
                Event::Assumed(bind) => at_once(&world.pods[&bind.pod], &bind.grants),
                Event::Pod(pod) => match &pod.phase {
                    Phase::Bound(at) | Phase::Running(at) | Phase::Releasing(Some(at)) => {
                        at_once(&pod, &at.grants)
                    }
                    _ => continue,
                },
                _ => continue,
            };
            for (card, most) in takes {
                held.entry(card).or_default().push(most);
            }
        }
        for (uid, pod) in &world.pods {
            let explanation = world.core.explain(uid).unwrap();
            if pod.gpus.is_empty() || !pod.devices.is_empty() {
                continue;
            }
            for node in explanation.nodes.iter().filter(|node| node.fits) {
                for card in cards.get(&node.node).into_iter().flatten() {
                    let is_it = |line: &std::sync::Arc<str>| line.starts_with(card.uuid.as_str());
                    if node.cards.iter().any(is_it) {
                        *refused.borrow_mut() += 1;
                        continue;
                    }
                    let on_it = held.get(&card.uuid).map_or(&[][..], Vec::as_slice);
                    let free = card.grantable.0.saturating_sub(on_it.iter().sum());
                    // The last share of a card may get less than it asked for, since its amount
                    // includes the reserved memory and the allowances for contexts.
                    let shares = 1 + on_it.len() as u64;
                    let slack = card.reserved.0 + card.allowance.0 * shares;
                    let has_room = pod.gpus.iter().any(|ask| match &ask.ask {
                        Ask::Whole(_) => on_it.is_empty(),
                        Ask::Share(share) => match share.amount {
                            Amount::Memory(mib) => free > 0 && mib.0 <= free + slack,
                            Amount::Fraction(_) => free > 0,
                        },
                    });
                    prop_assert!(
                        has_room,
                        "{} has {} MiB free for {:?}\n{}",
                        card.uuid,
                        free,
                        pod.gpus,
                        world.log
                    );
                }
            }
        }
        Ok(())
    });
    tried.unwrap();
    let refused = refused.into_inner();
    assert!(refused > 4, "{refused} cards are full beside one that fits");
}

/// Nodes are emptied for an autoscaler one after another, until no more can be.
#[test]
fn the_pods_of_an_emptied_node_go_to_nodes_in_use_and_stay() {
    let emptied = RefCell::new(0);
    let tried = TestRunner::new(tried(512)).run(&scale_down::case(), |case| {
        *emptied.borrow_mut() += scale_down::run(&case);
        Ok(())
    });
    tried.unwrap();
    assert!(emptied.into_inner() > 20, "hardly any node is emptied");
}
