//! Nodes, and what agents say of their cards.

use crate::config::Config;
use crate::fit::card as fit;
use crate::ids::NodeName;
use crate::model::{Amount, Effect, Mode, Node, NodeCards, TopologyManager};
use crate::problem::Problem;
use crate::state::State;
use crate::state::hold::Hold;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::mig::MigStrategy;
use crate::state::rows::{AgentStatus, CardRow, MissingLabels};
use crate::state::task_cell::TaskCell;
use crate::units::NanoGpu;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) fn upsert(state: &mut State, config: &Config, node: Node) {
    let key = state.node(&node.name.clone());
    let Some(row) = state.nodes.get_mut(key) else {
        return;
    };
    if row.node.as_ref() == Some(&node) {
        return;
    }
    row.mig = MigStrategy::of(&node);
    row.lacks = MissingLabels::of(&node, config.workers.as_ref());
    let moved = row.node.as_ref().map(|known| &known.labels) != Some(&node.labels);
    if moved {
        state.count_node(key, false);
    }
    state.index.soft_nodes += usize::from(is_soft(&node));
    let row = state.nodes.get_mut(key);
    let known = row.and_then(|row| row.node.replace(node));
    state.index.soft_nodes -= usize::from(known.is_some_and(|known| is_soft(&known)));
    if moved {
        state.count_node(key, true);
    }
    state.changes.nodes += 1;
    state.refresh_product(key);
    if moved {
        state.reach_volumes(key);
    }
    state.touch_node(key);
    state.changes.capacity_grew();
}

pub(super) fn gone(
    state: &mut State,
    config: &Config,
    name: &NodeName,
    problems: &mut Vec<Problem>,
) {
    let Some(key) = state.names.nodes.get(name).copied() else {
        problems.push(unknown(name));
        return;
    };
    state.count_node(key, false);
    state.changes.nodes += 1;
    let Some(row) = state.nodes.get_mut(key) else {
        return;
    };
    let known = row.node.take();
    row.agent = None;
    row.topology_manager = None;
    state.index.soft_nodes -= usize::from(known.is_some_and(|known| is_soft(&known)));
    state.reach_volumes(key);
    touch_namesakes(state, key);
    forget_cards(state, key, &BTreeSet::new());
    state.refresh_product(key);
    revalue(state, config, key);
    state.touch_node(key);
    state.changes.wake();
    state.release_node(key);
}

pub(super) fn agent_lost(state: &mut State, name: &NodeName, problems: &mut Vec<Problem>) {
    let Some(key) = state.names.nodes.get(name).copied() else {
        problems.push(unknown(name));
        return;
    };
    if let Some(row) = state.nodes.get_mut(key) {
        row.agent = None;
    }
    touch_namesakes(state, key);
    // The cards' facts stay: their holders are still right.
    state.touch_node(key);
    state.changes.wake();
}

/// It has a taint that prefers other pods.
fn is_soft(node: &Node) -> bool {
    let mut taints = node.taints.iter();
    taints.any(|taint| taint.effect == Effect::PreferNoSchedule)
}

fn unknown(name: &NodeName) -> Problem {
    Problem::Unknown {
        what: "node",
        name: name.shared(),
    }
}

pub(super) fn cards(
    state: &mut State,
    config: &Config,
    said: NodeCards,
    problems: &mut Vec<Problem>,
) {
    let key = state.node(&said.node);
    if let Some(row) = state.nodes.get_mut(key) {
        row.agent = Some(AgentStatus {
            default_mode: said.default_mode,
            not_offering: said.not_offering,
        });
        row.topology_manager = said.topology_manager.and_then(topology_manager);
    }
    let mut cards = said.cards;
    cards.sort_by(|one, other| (&one.uuid, one.index).cmp(&(&other.uuid, other.index)));
    let mut seen = BTreeSet::new();
    for mut card in cards {
        let uuid = card.uuid.clone();
        let most = card.total.less(card.reserved);
        if card.reserved > card.total || card.grantable > most {
            problems.push(Problem::CardMemory {
                node: said.node.clone(),
                card: uuid.clone(),
            });
            card.reserved = card.reserved.min(card.total);
            card.grantable = card.grantable.min(card.total.less(card.reserved));
        }
        if !seen.insert(uuid.clone()) {
            problems.push(Problem::DuplicateCard {
                node: said.node.clone(),
                card: uuid,
            });
            continue;
        }
        let card_key = state.card(&uuid, key);
        if let Some(row) = state.cards.get_mut(card_key) {
            row.card = Some(card);
        }
    }
    touch_namesakes(state, key);
    forget_cards(state, key, &seen);
    state.sort_cards(key);
    state.refresh_product(key);
    revalue(state, config, key);
    for card in state
        .nodes
        .get(key)
        .map(|row| row.cards.clone())
        .unwrap_or_default()
    {
        let Some(row) = state.cards.get(card) else {
            continue;
        };
        let used = state.cells.cards.get(card).copied().unwrap_or_default();
        if let Some(owner) = fit::elsewhere(state, row) {
            problems.push(Problem::CardElsewhere {
                node: said.node.clone(),
                card: row.uuid.clone(),
                owner: owner.clone(),
            });
        }
        if row.card.is_none() {
            report_unknown(state, row, key, problems);
        } else if used.held.modes[0] == 0 && used.held.limits > u128::from(fit::memory(row).cap.0) {
            problems.push(Problem::OverCommitted {
                node: said.node.clone(),
                card: row.uuid.clone(),
            });
        }
    }
    state.touch_node(key);
    state.changes.capacity_grew();
}

/// In order, and `None` where the kubelet itself would not align. Without zones, these are not known
/// yet: nothing that is aligned fits.
fn topology_manager(mut manager: TopologyManager) -> Option<Arc<TopologyManager>> {
    manager.zones.sort_unstable_by_key(|zone| zone.id);
    manager.zones.dedup_by_key(|zone| zone.id);
    manager.used.sort_unstable();
    (manager.zones.len() <= TopologyManager::MOST_ZONES).then(|| Arc::new(manager))
}

fn report_unknown(state: &State, row: &CardRow, node: NodeKey, problems: &mut Vec<Problem>) {
    let mut holders: Vec<_> = state
        .index
        .on_node
        .get(node)
        .into_iter()
        .flatten()
        .filter(|task| {
            state.cells.tasks.get(**task).is_some_and(|cell| {
                cell.holds().iter().any(|hold| {
                    state
                        .cards
                        .get(hold.card)
                        .is_some_and(|card| card.uuid == row.uuid)
                })
            })
        })
        .filter_map(|task| state.tasks.get(*task))
        .map(|task| task.uid.of_pod())
        .collect();
    holders.sort();
    problems.extend(holders.into_iter().map(|pod| Problem::UnknownCard {
        pod,
        card: row.uuid.clone(),
    }));
}

/// See [`State::touch_namesakes`].
fn touch_namesakes(state: &mut State, node: NodeKey) {
    let cards = state.nodes.get(node).map(|row| row.cards.clone());
    for card in cards.unwrap_or_default() {
        state.touch_namesakes(card);
    }
}

/// Cards of the node that are not named lose their facts, and cards without a holder also their
/// rows.
fn forget_cards(state: &mut State, node: NodeKey, named: &BTreeSet<crate::ids::GpuUuid>) {
    let cards = state
        .nodes
        .get(node)
        .map(|row| row.cards.clone())
        .unwrap_or_default();
    for card in cards {
        if let Some(row) = state.cards.get_mut(card)
            && !named.contains(&row.uuid)
        {
            row.card = None;
            row.pause = None;
            state.release_card(card);
        }
    }
}

/// What holds are worth depends on what their cards have: counted again when that came
/// or changed, so that the order of events makes no difference.
fn revalue(state: &mut State, config: &Config, node: NodeKey) {
    let tasks: Vec<TaskKey> = state.index.pods_on(node).collect();
    for task in tasks {
        let Some(cell) = state.cells.tasks.get(task).cloned() else {
            continue;
        };
        let holds: Vec<Hold> = cell
            .holds()
            .iter()
            .map(|hold| worth(state, config, hold.clone()))
            .collect();
        if holds != cell.holds() {
            state.transition(
                task,
                TaskCell {
                    holds: Some(Arc::from(holds)),
                    ..cell
                },
            );
        }
    }
}

/// Sets the nominal value of a hold and its charge to queues: from the grant, never from its pod's
/// current annotations.
pub(super) fn worth(state: &State, config: &Config, mut hold: Hold) -> Hold {
    let Some(row) = state.cards.get(hold.card) else {
        return hold;
    };
    let memory = fit::memory(row);
    if hold.mode == Mode::Exclusive {
        hold.nominal = memory.total;
        hold.nano = NanoGpu::ONE.0;
        return hold;
    }
    let amount = hold.asked.unwrap_or(Amount::Memory(hold.limit));
    hold.nominal = match amount {
        Amount::Fraction(_) if row.card.is_none() => hold.limit,
        _ => memory.nominal(amount),
    };
    hold.nano = fit::nano(row, amount, &config.bases);
    hold
}
