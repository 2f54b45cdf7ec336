//! Can it go there: every rule of a node and of its cards, and every "no" as a typed
//! reason.
//!
//! In: the state, a request signature, a node. Out: what the pod would hold there, or
//! why not. Changes nothing; `decide` and `explain` ask the same functions.

use crate::ids::ContainerName;
use crate::ledger::{self, CardMemory, Granted, Offer};
use crate::model::{
    Ask, Effect, Mode, Node, NodeRules, NodeTerm, Operator, Pool, Requirement, Share, Taint,
    Toleration,
};
use crate::reason::{CardNo, NodeNo, NodeVerdict};
use crate::state::State;
use crate::state::cell::CardUse;
use crate::state::rows::{CardKey, CardRow, Hold, NodeKey, Spec};
use crate::units::{Mib, NanoGpu, Percent};
use crate::whole;
use std::collections::BTreeMap;
use std::sync::Arc;

/// MiB that one GPU of a product counts for in queues, where the configuration says so.
pub(crate) type Bases = BTreeMap<String, u64>;

/// What a pod would hold on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seat {
    pub holds: Vec<Hold>,
    /// True when a share of it joins a card that is shared already.
    pub joins: bool,
}

/// What is tentatively taken while the containers of one pod are seated, one after
/// another.
type Scratch = BTreeMap<CardKey, CardUse>;

/// Everything that a node must say yes to.
pub(crate) fn node(
    state: &State,
    spec: &Spec,
    key: NodeKey,
    bases: &Bases,
) -> Result<Seat, NodeVerdict> {
    let no = |why: Vec<NodeNo>| NodeVerdict {
        why,
        cards: Vec::new(),
    };
    let Some(row) = state.nodes.get(key) else {
        return Err(no(vec![NodeNo::NoGpus]));
    };
    let Some(node) = &row.node else {
        return Err(no(vec![NodeNo::Unschedulable]));
    };
    rules(node, spec).map_err(|why| no(vec![why]))?;
    let short = resources(state, spec, key, node);
    if !short.is_empty() {
        return Err(no(short));
    }
    gpus(state, spec, key, bases)
}

/// Rules of the node that no pod's coming or going changes.
pub(crate) fn rules(node: &Node, spec: &Spec) -> Result<(), NodeNo> {
    if let Some(why) = node.not_ready.first() {
        return Err(NodeNo::NotReady(Arc::clone(why)));
    }
    if node.unschedulable && !tolerates_unschedulable(&spec.tolerations) {
        return Err(NodeNo::Unschedulable);
    }
    if let Some(taint) = node.taints.iter().find(|taint| {
        !spec
            .tolerations
            .iter()
            .any(|toleration| tolerates(toleration, taint))
    }) {
        return Err(NodeNo::Taint(taint.clone()));
    }
    if !selects(&spec.rules, node) {
        return Err(NodeNo::Selector);
    }
    Ok(())
}

/// Kubernetes' own taint for the flag.
fn tolerates_unschedulable(tolerations: &[Toleration]) -> bool {
    let taint = Taint {
        key: Arc::from("node.kubernetes.io/unschedulable"),
        value: Arc::from(""),
        effect: Effect::NoSchedule,
    };
    tolerations
        .iter()
        .any(|toleration| tolerates(toleration, &taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    toleration
        .effect
        .is_none_or(|effect| effect == taint.effect)
        && match (&toleration.key, &toleration.value) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(key), None) => *key == taint.key,
            (Some(key), Some(value)) => *key == taint.key && *value == taint.value,
        }
}

fn selects(rules: &NodeRules, node: &Node) -> bool {
    rules
        .selector
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value))
        && rules
            .terms
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|term| matches(term, node)))
}

fn matches(term: &NodeTerm, node: &Node) -> bool {
    if term.labels.is_empty() && term.name.is_empty() {
        return false;
    }
    term.labels.iter().all(|requirement| {
        meets(
            requirement,
            node.labels.get(&requirement.key).map(|value| &**value),
        )
    }) && term
        .name
        .iter()
        .all(|requirement| meets(requirement, Some(node.name.as_str())))
}

fn meets(requirement: &Requirement, value: Option<&str>) -> bool {
    let integer = || value.and_then(|value| value.parse::<i64>().ok());
    match &requirement.operator {
        Operator::In(values) => value.is_some_and(|value| values.iter().any(|one| **one == *value)),
        Operator::NotIn(values) => {
            !value.is_some_and(|value| values.iter().any(|one| **one == *value))
        }
        Operator::Exists => value.is_some(),
        Operator::DoesNotExist => value.is_none(),
        Operator::Above(bound) => integer().is_some_and(|value| value > *bound),
        Operator::Below(bound) => integer().is_some_and(|value| value < *bound),
    }
}

/// CPU, memory, pods and other resources that are short.
fn resources(state: &State, spec: &Spec, key: NodeKey, node: &Node) -> Vec<NodeNo> {
    let used = state.node_use.get(key).copied().unwrap_or_default().used;
    let mut short = Vec::new();
    if used.pods + 1 > u128::from(node.pods) {
        short.push(NodeNo::Pods);
    }
    if spec.cpu.0 > 0 && used.cpu + u128::from(spec.cpu.0) > u128::from(node.cpu.0) {
        short.push(NodeNo::Cpu);
    }
    if spec.memory.0 > 0 && used.memory + u128::from(spec.memory.0) > u128::from(node.memory.0) {
        short.push(NodeNo::Memory);
    }
    for (name, amount) in &spec.extended {
        let taken = state
            .extra_use
            .get(&(key, name.clone()))
            .copied()
            .unwrap_or_default()
            .used;
        let has = node.extended.get(name).copied().unwrap_or(0);
        if *amount > 0 && taken + u128::from(*amount) > u128::from(has) {
            short.push(NodeNo::Extended(name.clone()));
        }
    }
    short
}

/// The cards, container by container: larger wishes first, so that a small one does not
/// take the only card that holds a large one.
fn gpus(state: &State, spec: &Spec, key: NodeKey, bases: &Bases) -> Result<Seat, NodeVerdict> {
    let mut seat = Seat::default();
    let wants_cards = spec
        .gpus
        .iter()
        .any(|ask| !matches!(ask.ask, Ask::Whole(0)));
    let Some(row) = state.nodes.get(key) else {
        return Ok(seat);
    };
    let Some(node) = &row.node else {
        return Ok(seat);
    };
    if !wants_cards {
        return Ok(seat);
    }
    let no = |why, cards| NodeVerdict {
        why: vec![why],
        cards,
    };
    if !node.managed {
        let wanted = crate::state::transition::whole_gpus(spec);
        if spec.gpus.iter().any(|ask| matches!(ask.ask, Ask::Share(_))) {
            return Err(no(
                if node.gpus == 0 {
                    NodeNo::NoGpus
                } else {
                    NodeNo::GpuMemory
                },
                Vec::new(),
            ));
        }
        let used = state
            .node_use
            .get(key)
            .copied()
            .unwrap_or_default()
            .used
            .gpus;
        if used + u128::from(wanted) > u128::from(node.gpus) {
            return Err(no(NodeNo::Gpus, Vec::new()));
        }
        return Ok(seat);
    }
    let Some(agent) = &row.agent else {
        return Err(no(NodeNo::AgentSilent, Vec::new()));
    };

    let mut scratch = Scratch::new();
    seat_whole(state, spec, key, bases, &mut scratch, &mut seat)
        .map_err(|cards| no(NodeNo::Gpus, cards))?;
    let mut shares: Vec<(&ContainerName, &Share)> = spec
        .gpus
        .iter()
        .filter_map(|ask| match &ask.ask {
            Ask::Share(share) => Some((&ask.container, share)),
            Ask::Whole(_) => None,
        })
        .collect();
    if !shares.is_empty()
        && let Some(why) = &agent.not_offering
    {
        return Err(no(NodeNo::NotOffering(Arc::clone(why)), Vec::new()));
    }
    let largest = row
        .cards
        .iter()
        .filter_map(|card| state.cards.get(*card)?.card.as_ref())
        .map(|card| card.total)
        .max()
        .unwrap_or_default();
    let yardstick = CardMemory {
        total: largest,
        ..CardMemory::default()
    };
    shares.sort_by_key(|(_, share)| {
        std::cmp::Reverse((share.devices, yardstick.nominal(share.amount)))
    });
    for (container, share) in shares {
        seat_share(
            state,
            container,
            share,
            key,
            agent.default_mode,
            bases,
            &mut scratch,
            &mut seat,
        )
        .map_err(|cards| {
            no(
                if cards.is_empty() {
                    NodeNo::NoGpus
                } else {
                    NodeNo::GpuMemory
                },
                cards,
            )
        })?;
    }
    seat.holds.sort_by_key(|hold| {
        spec.gpus
            .iter()
            .position(|ask| ask.container == hold.container)
    });
    Ok(seat)
}

fn card_use(state: &State, scratch: &Scratch, key: CardKey) -> CardUse {
    scratch
        .get(&key)
        .or_else(|| state.card_use.get(key))
        .copied()
        .unwrap_or_default()
}

/// What the card has, for the ledger's rules.
pub(crate) fn memory(row: &CardRow) -> CardMemory {
    row.card
        .as_ref()
        .map_or_else(CardMemory::default, |card| CardMemory {
            total: card.total,
            reserved: card.reserved,
            cap: card.grantable.min(card.total.less(card.reserved)),
            allowance: card.allowance,
        })
}

/// Whether what is granted on a card is within what it has.
pub(crate) fn within(row: &CardRow, used: CardUse) -> bool {
    used.modes[0] <= 1
        && (used.modes[0] == 0 || used.holders() == 1)
        && used.limits <= u128::from(memory(row).cap.0)
}

/// Reasons that hold for whole and shared use alike.
fn usable(state: &State, row: &CardRow) -> Result<(), CardNo> {
    let Some(card) = &row.card else {
        return Err(CardNo::Unknown);
    };
    if card.mig {
        return Err(CardNo::Mig);
    }
    if let Some(why) = &card.unhealthy {
        return Err(CardNo::Unhealthy(Arc::clone(why)));
    }
    if card.cordoned {
        return Err(CardNo::Cordoned);
    }
    if card.pool == Pool::None {
        return Err(CardNo::PoolNone);
    }
    if let Some(pause) = &row.pause
        && pause.until.is_none_or(|until| until > state.now)
    {
        return Err(CardNo::Paused {
            reason: Arc::clone(&pause.reason),
            until: pause.until,
        });
    }
    Ok(())
}

/// Whether a card may be taken whole.
pub(crate) fn whole_card(state: &State, row: &CardRow, used: CardUse) -> Result<(), CardNo> {
    usable(state, row)?;
    let Some(card) = &row.card else {
        return Err(CardNo::Unknown);
    };
    if used.modes[0] > 0 {
        return Err(CardNo::HeldWhole);
    }
    if used.holders() > 0 {
        return Err(CardNo::Shared {
            shares: used.holders(),
        });
    }
    if card.strangers > Mib(0) {
        return Err(CardNo::Strangers(card.strangers));
    }
    if !card.switchable.contains(&Mode::Exclusive) && card.mode != Some(Mode::Exclusive) {
        return Err(CardNo::NoMode(Mode::Exclusive));
    }
    if card.pool == Pool::Shared {
        return Err(CardNo::PoolShared);
    }
    Ok(())
}

/// Whether a share may be put on a card in that mode, and what it would get.
pub(crate) fn share_card(
    state: &State,
    row: &CardRow,
    used: CardUse,
    share: &Share,
    wanted: Mode,
) -> Result<Offer, CardNo> {
    usable(state, row)?;
    let Some(card) = &row.card else {
        return Err(CardNo::Unknown);
    };
    if used.modes[0] > 0 {
        return Err(CardNo::HeldWhole);
    }
    let in_use = Mode::ALL
        .into_iter()
        .zip(used.modes)
        .find(|(mode, holds)| *holds > 0 && *mode != wanted);
    if let Some((is, _)) = in_use {
        if is == Mode::Mps && share.devices > 1 {
            return Err(CardNo::SeveralOnMps);
        }
        return Err(CardNo::InMode { is, wanted });
    }
    if !card.switchable.contains(&wanted) && card.mode != Some(wanted) {
        return Err(CardNo::NoMode(wanted));
    }
    if used.holders() > 0 && !card.ready {
        return Err(CardNo::NotReady);
    }
    let clients = matches!(wanted, Mode::Mps | Mode::MpsIsolated);
    if clients && card.client_slots > 0 && used.holders() >= card.client_slots {
        return Err(CardNo::Slots {
            slots: card.client_slots,
        });
    }
    let memory = memory(row);
    let granted = Granted {
        limits: Mib(u64::try_from(used.limits).unwrap_or(u64::MAX)),
        nominal: Mib(u64::try_from(used.nominal).unwrap_or(u64::MAX)),
    };
    memory
        .offer(granted, share.amount)
        .map_err(|short| CardNo::Memory {
            short,
            cap: memory.cap,
        })
}

/// The modes in which a share may use a card, best first.
fn modes(share: &Share, row: &CardRow, default: Mode) -> Vec<Mode> {
    let several = share.devices > 1;
    match share.mode {
        Some(Mode::Mps) if several => vec![Mode::MpsIsolated],
        Some(mode) => vec![mode],
        None if several => match default {
            Mode::TimeSlicing => vec![Mode::TimeSlicing, Mode::MpsIsolated],
            _ => vec![Mode::MpsIsolated, Mode::TimeSlicing],
        },
        None => {
            let mut pinned = row
                .card
                .iter()
                .flat_map(|card| &card.switchable)
                .filter(|mode| **mode != Mode::Exclusive);
            // The admin pinned the card to one way of sharing: that wins over the default.
            match (pinned.next(), pinned.next()) {
                (Some(only), None) => vec![*only],
                _ => vec![default],
            }
        }
    }
}

/// A whole pod's compute ceiling on its share.
fn compute(share: &Share, mode: Mode) -> Percent {
    if let Some(percent) = share.compute {
        return percent;
    }
    match (share.amount, mode) {
        (crate::model::Amount::Fraction(part), Mode::Mps | Mode::MpsIsolated) => {
            let percent = part.0.saturating_mul(100) / NanoGpu::ONE.0;
            Percent::new(u8::try_from(percent.clamp(1, 100)).unwrap_or(100))
                .unwrap_or(Percent::FULL)
        }
        _ => Percent::FULL,
    }
}

/// A card's name for people, before a colon.
pub(crate) fn card_name(row: &CardRow) -> String {
    match &row.card {
        Some(card) if !card.product.is_empty() => format!("{} ({})", row.uuid, card.product),
        _ => row.uuid.to_string(),
    }
}

fn base(row: &CardRow, bases: &Bases) -> Mib {
    row.card.as_ref().map_or(Mib(0), |card| {
        bases
            .get(&*card.product)
            .map_or(card.total, |base| Mib(*base))
    })
}

/// What queues count for an amount on this card.
pub(crate) fn nano(row: &CardRow, amount: crate::model::Amount, bases: &Bases) -> u64 {
    ledger::nano(amount, base(row, bases)).0
}

/// Seats the containers that want whole cards. On failure, a line per card.
fn seat_whole(
    state: &State,
    spec: &Spec,
    key: NodeKey,
    bases: &Bases,
    scratch: &mut Scratch,
    seat: &mut Seat,
) -> Result<(), Vec<String>> {
    let _ = bases;
    let wanted = crate::state::transition::whole_gpus(spec) as usize;
    if wanted == 0 {
        return Ok(());
    }
    let Some(node) = state.nodes.get(key) else {
        return Err(Vec::new());
    };
    let mut free = Vec::new();
    let mut lines = Vec::new();
    for card in &node.cards {
        let Some(row) = state.cards.get(*card) else {
            continue;
        };
        match whole_card(state, row, card_use(state, scratch, *card)) {
            Ok(()) => free.push(*card),
            Err(no) => lines.push(format!("{}: {no}", card_name(row))),
        }
    }
    if free.len() < wanted {
        lines.push(format!("{} of {wanted} whole GPUs free", free.len()));
        return Err(lines);
    }
    let chosen = whole::choose(state, &free, wanted);
    let mut next = 0;
    for ask in &spec.gpus {
        let Ask::Whole(count) = ask.ask else {
            continue;
        };
        let count = count as usize;
        // An init container is lent the first cards; app containers get their own.
        let from = if ask.init { 0 } else { next };
        for card in chosen.iter().skip(from).take(count) {
            let Some(row) = state.cards.get(*card) else {
                continue;
            };
            let memory = memory(row);
            let lent = scratch.contains_key(card);
            seat.holds.push(Hold {
                container: ask.container.clone(),
                card: *card,
                limit: memory.cap,
                nominal: memory.total,
                nano: NanoGpu::ONE.0,
                compute: Percent::FULL,
                mode: Mode::Exclusive,
                note: None,
                lent,
            });
            let mut used = card_use(state, scratch, *card);
            used.modes[0] = used.modes[0].saturating_add(1);
            scratch.insert(*card, used);
        }
        if !ask.init {
            next += count;
        }
    }
    Ok(())
}

/// Seats one container's share: the fullest card that still holds it, cards that are
/// shared already before idle ones. On failure, a line per card.
#[allow(clippy::too_many_arguments)]
fn seat_share(
    state: &State,
    container: &ContainerName,
    share: &Share,
    key: NodeKey,
    default: Mode,
    bases: &Bases,
    scratch: &mut Scratch,
    seat: &mut Seat,
) -> Result<(), Vec<String>> {
    let Some(node) = state.nodes.get(key) else {
        return Err(Vec::new());
    };
    let wanted = share.devices as usize;
    let mut tried: BTreeMap<Mode, Vec<(CardKey, Offer)>> = BTreeMap::new();
    let mut order: Vec<Mode> = Vec::new();
    let mut lines = Vec::new();
    for card in &node.cards {
        let Some(row) = state.cards.get(*card) else {
            continue;
        };
        let used = card_use(state, scratch, *card);
        let mut first_no = None;
        let mut fits = false;
        for mode in modes(share, row, default) {
            if !order.contains(&mode) {
                order.push(mode);
            }
            match share_card(state, row, used, share, mode) {
                Ok(offer) => {
                    tried.entry(mode).or_default().push((*card, offer));
                    fits = true;
                }
                Err(no) => {
                    first_no.get_or_insert(no);
                }
            }
        }
        if let (false, Some(no)) = (fits, first_no) {
            lines.push(format!("{}: {no}", card_name(row)));
        }
    }
    let Some((mode, mut offers)) = order
        .iter()
        .filter_map(|mode| Some((*mode, tried.remove(mode)?)))
        .find(|(_, offers)| offers.len() >= wanted)
    else {
        if wanted > 1 {
            lines.push(format!("{wanted} cards in one mode needed"));
        }
        return Err(lines);
    };
    offers.sort_by_key(|(card, _)| {
        let used = card_use(state, scratch, *card);
        let cap = state.cards.get(*card).map(memory).unwrap_or_default().cap;
        let free = u128::from(cap.0).saturating_sub(used.limits);
        (used.holders() == 0, free)
    });
    offers.truncate(wanted);
    seat.joins |= offers.iter().any(|(card, _)| {
        state
            .card_use
            .get(*card)
            .is_some_and(|used| used.holders() > 0)
    });
    // One limit for all of the container's cards: the smallest of the offers.
    let limit = offers
        .iter()
        .map(|(_, offer)| offer.limit)
        .min()
        .unwrap_or_default();
    let note = offers.iter().find(|(_, offer)| limit < offer.nominal).map(|(_, offer)| {
        Arc::from(format!(
            "the last share of its card: {} of {} MiB, the rest is reserve and context allowances",
            limit.0, offer.nominal.0
        ))
    });
    for (card, offer) in offers {
        let Some(row) = state.cards.get(card) else {
            continue;
        };
        seat.holds.push(Hold {
            container: container.clone(),
            card,
            limit,
            nominal: offer.nominal,
            nano: nano(row, share.amount, bases),
            compute: compute(share, mode),
            mode,
            note: note.clone(),
            lent: false,
        });
        let mut used = card_use(state, scratch, card);
        used.limits += u128::from(limit.0);
        used.nominal += u128::from(offer.nominal.0);
        for (candidate, count) in Mode::ALL.into_iter().zip(&mut used.modes) {
            if candidate == mode {
                *count = count.saturating_add(1);
            }
        }
        scratch.insert(card, used);
    }
    Ok(())
}
