//! Which cards in MIG mode are given other slices, for pods that wait for one.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.

use scheduler_core::ids::{GpuUuid, NodeName, ResourceName};
use scheduler_core::mig_layout::{LayoutChoice, LayoutPlan, MigCard, Slices, plan};
use scheduler_core::units::{Mib, Time};
use scheduler_core::{Config, Core, text};
use std::collections::BTreeSet;
use std::fmt::Write as _;

const CLUSTER: &str = "
queue q
queue small gpu=1000000000/1000000000/1
node n cpu=64000 memory=274877906944 pods=110 managed extended.nvidia.com/mig-1g.10gb=SMALL label.nvidia.com/mig.strategy=mixed
";

fn slices(layout: &[(&str, u64)]) -> Slices {
    let name = |profile: &str| ResourceName::new(format!("nvidia.com/mig-{profile}"));
    layout
        .iter()
        .map(|(profile, count)| (name(profile), *count))
        .collect()
}

/// A card with seven small slices, which may have other layouts.
fn card(name: &str, layouts: &[&[(&str, u64)]]) -> MigCard {
    let seven = slices(&[("1g.10gb", 7)]);
    MigCard {
        node: NodeName::new("n"),
        card: GpuUuid::new(name),
        offered: seven.clone(),
        slices: seven,
        layouts: layouts.iter().map(|layout| slices(layout)).collect(),
    }
}

/// The plan for pods of a queue that each ask for one slice of a profile. The node lists so many small
/// ones.
fn planned(queue: &str, small: u32, pods: &[&str], cards: &[MigCard]) -> LayoutPlan {
    let mut lines = CLUSTER.replace("SMALL", &small.to_string());
    for (at, profile) in pods.iter().enumerate() {
        let _ = writeln!(
            lines,
            "pod p{at} queue={queue} created={at} cpu=100 extended.nvidia.com/mig-{profile}=1"
        );
    }
    let mut core = Core::new(Config::verified());
    for event in text::read(&lines).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core.decide(Time(1_000));
    let nodes: BTreeSet<NodeName> = [NodeName::new("n")].into();
    let shortage = core.slice_shortage(&nodes, 1_000, Mib(10_000));
    plan(&shortage, cards, core.config())
}

/// What is chosen, by card, layout and number of pods.
fn chosen(
    queue: &str,
    small: u32,
    pods: &[&str],
    cards: &[MigCard],
) -> Vec<(String, usize, usize)> {
    let choices = planned(queue, small, pods, cards).choices;
    let told = |choice: LayoutChoice| (choice.card.to_string(), choice.layout, choice.pods.len());
    choices.into_iter().map(told).collect()
}

const HALVES: &[(&str, u64)] = &[("3g.40gb", 2)];
const ONE: &[(&str, u64)] = &[("3g.40gb", 1)];
const MIXED: &[(&str, u64)] = &[("3g.40gb", 1), ("1g.10gb", 4)];

fn told(card: &str, layout: usize, pods: usize) -> (String, usize, usize) {
    (card.to_owned(), layout, pods)
}

#[test]
fn a_card_gets_the_slices_that_let_most_pods_run_and_no_more_of_them_than_needed() {
    let one = [card("a", &[HALVES, ONE])];
    assert_eq!(
        chosen("q", 7, &["3g.40gb", "3g.40gb"], &one),
        [told("a", 0, 2)]
    );
    assert_eq!(chosen("q", 7, &["3g.40gb"], &one), [told("a", 1, 1)]);
    // Of two that leave as much idle, the one that the admin prefers.
    let alike = [card("a", &[MIXED, &[("3g.40gb", 1), ("2g.20gb", 2)]])];
    assert_eq!(chosen("q", 7, &["3g.40gb"], &alike), [told("a", 0, 1)]);
}

#[test]
fn as_many_cards_as_are_needed_change() {
    let two = [card("a", &[HALVES]), card("b", &[HALVES])];
    assert_eq!(chosen("q", 14, &["3g.40gb"; 2], &two), [told("a", 0, 2)]);
    assert_eq!(
        chosen("q", 14, &["3g.40gb"; 3], &two),
        [told("a", 0, 2), told("b", 0, 1)]
    );
}

#[test]
fn nothing_changes_where_it_would_not_help() {
    let one = [card("a", &[HALVES])];
    // No layout has it; it runs as it is; the queue may not have it.
    for (queue, pod) in [("q", "2g.20gb"), ("q", "1g.10gb"), ("small", "3g.40gb")] {
        assert_eq!(chosen(queue, 7, &[pod], &one), [], "{queue} {pod}");
    }
    // Its slices are being created.
    let coming = [MigCard {
        offered: Slices::new(),
        slices: slices(HALVES),
        ..card("a", &[])
    }];
    assert_eq!(chosen("q", 0, &["3g.40gb"; 2], &coming), []);
    let beside = [coming[0].clone(), card("b", &[HALVES])];
    assert_eq!(chosen("q", 7, &["3g.40gb"; 3], &beside), [told("b", 0, 1)]);
}

#[test]
fn a_pod_awaits_the_slices_that_a_card_is_being_given() {
    let coming = |name: &str, layout| MigCard {
        offered: Slices::new(),
        slices: slices(layout),
        ..card(name, &[])
    };
    let pods = &[
        "2g.20gb", "3g.40gb", "3g.40gb", "3g.40gb", "3g.40gb", "3g.40gb",
    ];
    let cards = [card("a", &[]), coming("b", HALVES), coming("c", HALVES)];
    let awaiting = planned("q", 7, pods, &cards).awaiting;
    // One has no room, and a card no more of them than it has slices.
    assert_eq!(awaiting.into_values().collect::<Vec<_>>(), [1, 1, 2, 2]);
    // A card that stays as it is is awaited by none, although its slices are free.
    let stays = [card("a", &[]), coming("b", HALVES)];
    assert_eq!(planned("q", 7, &["1g.10gb"], &stays).awaiting.len(), 0);
}
