//! Which idle card in MIG mode gets which slices, for pods that wait for one.
//!
//! In: a [`Shortage`] of such pods ([`crate::Core::slice_shortage`]), the cards, and the layouts that
//! the admin allows each. Out: for some cards another layout. As with new nodes, the plan is what this
//! core decides in a cluster of its own once the slices are there: no rule of placement is written
//! down twice.

use crate::action::Action;
use crate::config::Config;
use crate::core::Core;
use crate::event::Event;
use crate::ids::{GpuUuid, NodeName, PodUid, ResourceName};
use crate::model::Node;
use crate::scale_up::{DECISIONS, Shortage, trial};
use crate::state::mig::mig_slices;
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Layouts that one plan tries. Each is a cluster of its own.
const TRIES: usize = 256;

/// Slices by resource, `nvidia.com/mig-1g.10gb`.
pub type Slices = BTreeMap<ResourceName, u64>;

/// A card in MIG mode that nothing uses, or that is being given other slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigCard {
    /// Its node.
    pub node: NodeName,
    /// Which card.
    pub card: GpuUuid,
    /// Its slices in what the node offers now.
    pub offered: Slices,
    /// Those that it has, or is being given.
    pub slices: Slices,
    /// Those that it may have instead, in order of preference. None of a card that is being given
    /// some.
    pub layouts: Vec<Slices>,
}

/// Other slices for a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutChoice {
    /// Its node.
    pub node: NodeName,
    /// Which card.
    pub card: GpuUuid,
    /// Which of [`MigCard::layouts`].
    pub layout: usize,
    /// The pods that have room then and had none before.
    pub pods: Vec<PodUid>,
}

/// What [`plan`] has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutPlan {
    /// The cards that should have other slices.
    pub choices: Vec<LayoutChoice>,
    /// The pods for which a card has room once it has the slices that it is being given, with its
    /// index in the list of cards.
    pub awaiting: BTreeMap<PodUid, usize>,
}

/// The cards that should have other slices. One after another, the change that lets most pods run, and
/// of such the one that leaves fewest GPU slices without a pod; a change after which a pod has no room
/// that had it before is none. `config`: that of the scheduler.
pub fn plan(shortage: &Shortage, cards: &[MigCard], config: &Config) -> LayoutPlan {
    let wanted: BTreeSet<&ResourceName> = shortage
        .waiting()
        .flat_map(|pod| pod.extended.keys())
        .collect();
    let mut trials = Trials {
        shortage,
        cards,
        config,
        left: TRIES,
    };
    let mut slices: Vec<&Slices> = cards.iter().map(|card| &card.slices).collect();
    let mut choices: BTreeMap<usize, LayoutChoice> = BTreeMap::new();
    let Some(placed) = trials.place(&slices) else {
        return LayoutPlan::default();
    };
    let awaiting = awaiting(shortage, cards, &placed);
    let mut placed: BTreeSet<PodUid> = placed.into_keys().collect();
    loop {
        let mut best: Option<Change<'_>> = None;
        for (at, card) in cards.iter().enumerate() {
            if choices.contains_key(&at) || is_repeated(cards, &slices, at, &choices) {
                continue;
            }
            for (number, layout) in card.layouts.iter().enumerate() {
                let is_wanted = layout.keys().any(|name| wanted.contains(name));
                if !is_wanted || slices.get(at).is_some_and(|slices| *slices == layout) {
                    continue;
                }
                let mut changed = slices.clone();
                if let Some(slices) = changed.get_mut(at) {
                    *slices = layout;
                }
                let Some(then) = trials.place(&changed) else {
                    continue;
                };
                let then: BTreeSet<PodUid> = then.into_keys().collect();
                if then.len() <= placed.len() || !placed.is_subset(&then) {
                    continue;
                }
                let change = Change {
                    rank: (usize::MAX - then.len(), total(layout), at, number),
                    slices: changed,
                    placed: then,
                };
                if best.as_ref().is_none_or(|best| change.rank < best.rank) {
                    best = Some(change);
                }
            }
        }
        let Some(change) = best else {
            let choices = choices.into_values().collect();
            return LayoutPlan { choices, awaiting };
        };
        let (_, _, at, layout) = change.rank;
        if let Some(card) = cards.get(at) {
            let choice = LayoutChoice {
                node: card.node.clone(),
                card: card.card.clone(),
                layout,
                pods: change.placed.difference(&placed).cloned().collect(),
            };
            choices.insert(at, choice);
        }
        (slices, placed) = (change.slices, change.placed);
    }
}

/// Which card that is being given slices each of these pods has room on.
fn awaiting(
    shortage: &Shortage,
    cards: &[MigCard],
    placed: &BTreeMap<PodUid, NodeName>,
) -> BTreeMap<PodUid, usize> {
    let given = |card: &MigCard| {
        if card.slices == card.offered {
            Slices::new()
        } else {
            card.slices.clone()
        }
    };
    let mut left: Vec<Slices> = cards.iter().map(given).collect();
    let mut found = BTreeMap::new();
    for pod in shortage.waiting() {
        let Some(node) = placed.get(&pod.uid) else {
            continue;
        };
        let room = cards.iter().zip(&mut left).position(|(card, left)| {
            let mut wanted = pod.extended.iter();
            card.node == *node
                && wanted.any(|(name, count)| match left.get_mut(name) {
                    Some(left) if *left >= *count && *count > 0 => {
                        *left -= *count;
                        true
                    }
                    _ => false,
                })
        });
        if let Some(at) = room {
            found.insert(pod.uid.clone(), at);
        }
    }
    found
}

/// What one card's other slices would change.
struct Change<'a> {
    /// The least is best: pods without room, GPU slices of the layout, which card, which layout.
    rank: (usize, u64, usize, usize),
    slices: Vec<&'a Slices>,
    placed: BTreeSet<PodUid>,
}

/// Another card of its node is in every way like it, and stands before it.
fn is_repeated(
    cards: &[MigCard],
    slices: &[&Slices],
    at: usize,
    choices: &BTreeMap<usize, LayoutChoice>,
) -> bool {
    let Some((card, own)) = cards.get(at).zip(slices.get(at)) else {
        return false;
    };
    let mut before = cards.iter().zip(slices).enumerate().take(at);
    before.any(|(other, (like, slices))| {
        let alike = like.node == card.node && like.layouts == card.layouts && slices == own;
        alike && !choices.contains_key(&other)
    })
}

/// GPU slices of a layout. With the same pods placed, more of them means more without a pod.
fn total(layout: &Slices) -> u64 {
    let of =
        |(name, count): (&ResourceName, &u64)| mig_slices(name.as_str()).saturating_mul(*count);
    layout.iter().map(of).fold(0, u64::saturating_add)
}

/// The shortage's cluster, as often as there are layouts to try.
struct Trials<'a> {
    shortage: &'a Shortage,
    cards: &'a [MigCard],
    config: &'a Config,
    left: usize,
}

impl Trials<'_> {
    /// The pods that have room when the cards have these slices, with the node. `None`: enough was
    /// tried.
    fn place(&mut self, slices: &[&Slices]) -> Option<BTreeMap<PodUid, NodeName>> {
        self.left = self.left.checked_sub(1)?;
        let mut core = Core::new(trial(self.config));
        for event in &self.shortage.events {
            core.apply(match event {
                Event::Node(node) => Event::Node(self.with(node, slices)),
                event => event.clone(),
            });
        }
        let waiting: BTreeSet<&PodUid> = self.shortage.waiting().map(|pod| &pod.uid).collect();
        let mut placed = BTreeMap::new();
        for turn in 0..DECISIONS {
            let decision = core.decide(Time(turn));
            let bound = decision.actions.iter().filter_map(|action| match action {
                Action::Bind(bind) => Some((bind.pod.clone(), bind.node.clone())),
                Action::Evict(_) => None,
            });
            placed.extend(bound.filter(|(pod, _)| waiting.contains(pod)));
            if !decision.cut_short {
                break;
            }
        }
        Some(placed)
    }

    /// A node with other slices.
    fn with(&self, node: &Node, slices: &[&Slices]) -> Node {
        let mut node = node.clone();
        let cards = self.cards.iter().zip(slices);
        for (card, slices) in cards.filter(|(card, _)| card.node == node.name) {
            for (name, count) in &card.offered {
                if let Some(amount) = node.extended.get_mut(name) {
                    *amount = amount.saturating_sub(*count);
                }
            }
            for (name, count) in *slices {
                let amount = node.extended.entry(name.clone()).or_default();
                *amount = amount.saturating_add(*count);
            }
        }
        node
    }
}
