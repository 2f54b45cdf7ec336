//! Every sum, added up again from the tasks, without the code that moves sums.

use crate::ids::ResourceName;
use crate::state::State;
use crate::state::cell::{CardUse, ExtraUse, NodeUse, QueueUse, Status, TaskCell};
use crate::state::rows::{CardKey, Hold, NodeKey, QueueKey, Spec, TaskKey};
use crate::state::transition::whole_gpus;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// How a place counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Taken,
    Leaving,
    Promised,
}

/// What the tasks add up to.
#[derive(Default)]
struct Sums {
    nodes: BTreeMap<NodeKey, NodeUse>,
    extras: BTreeMap<(NodeKey, ResourceName), ExtraUse>,
    cards: BTreeMap<CardKey, CardUse>,
    queues: BTreeMap<QueueKey, QueueUse>,
}

/// Each sum that is another than that of its tasks, a sentence each.
pub(super) fn check(state: &State, wrong: &mut Vec<String>) {
    let sums = Sums::of(state);
    let mut differs = |what: &str, name: &str, is: &dyn Debug, should: &dyn Debug| {
        wrong.push(format!(
            "{what} {name} has {is:?}, its pods have {should:?}"
        ));
    };
    for (key, is) in &state.node_use {
        let should = sums.nodes.get(&key).copied().unwrap_or_default();
        if *is != should {
            let name = state.nodes.get(key).map_or("", |row| row.name.as_str());
            differs("node", name, is, &should);
        }
    }
    for (key, is) in &state.card_use {
        let should = sums.cards.get(&key).copied().unwrap_or_default();
        if *is != should {
            let name = state.cards.get(key).map_or("", |row| row.uuid.as_str());
            differs("card", name, is, &should);
        }
    }
    for (key, should) in &sums.extras {
        let is = state.extra_use.get(key).copied().unwrap_or_default();
        if is != *should {
            differs("resource", key.1.as_str(), &is, should);
        }
    }
    let counted = |extra: &&ExtraUse| **extra != ExtraUse::default();
    let (are, should) = (
        state.extra_use.len(),
        sums.extras.values().filter(counted).count(),
    );
    if are != should {
        differs("the number of", "resources in use", &are, &should);
    }
    // They are rebuilt before anybody reads them.
    if state.queues_dirty {
        return;
    }
    for (key, is) in &state.queue_use {
        let should = sums.queues.get(&key).copied().unwrap_or_default();
        if *is != should {
            let name = state.queues.get(key).map_or("", |row| row.name.as_str());
            differs("queue", name, is, &should);
        }
    }
}

impl Sums {
    fn of(state: &State) -> Self {
        let mut sums = Self::default();
        for (key, cell) in &state.task_cells {
            sums.count(state, key, cell);
        }
        sums
    }

    fn count(&mut self, state: &State, key: TaskKey, cell: &TaskCell) {
        let Some(row) = state.tasks.get(key) else {
            return;
        };
        let Some(spec) = state.specs.get(row.spec) else {
            return;
        };
        let chain = || {
            let queue = state.queues.get(state.jobs.get(row.job?)?.queue?)?;
            Some(queue.chain.as_slice())
        };
        let holds = cell.holds();
        if let Some(leaving) = &cell.leaving {
            self.place(leaving.node, &spec.spec, leaving.holds(), As::Leaving);
        }
        let how = match cell.status {
            Status::Assumed | Status::Bound | Status::Running | Status::Stuck => Some(As::Taken),
            Status::Releasing => Some(As::Leaving),
            Status::Promised => Some(As::Promised),
            Status::Pending | Status::Victim | Status::Done | Status::Detached => None,
        };
        if let (Some(node), Some(how)) = (cell.node, how) {
            self.place(node, &spec.spec, holds, how);
            if !row.ours {
                let foreign = &mut self.nodes.entry(node).or_default().foreign;
                add(foreign, state.charge(key, holds));
            }
            if cell.status.is_allocated() {
                for queue in chain().unwrap_or_default() {
                    let of = self.queues.entry(*queue).or_default();
                    add(&mut of.allocated, state.charge(key, holds));
                    if !state.preemptible(row) {
                        add(&mut of.non_preemptible, state.charge(key, holds));
                    }
                }
            }
        }
        if cell.status == Status::Pending && !row.gated {
            for queue in chain().unwrap_or_default() {
                let of = self.queues.entry(*queue).or_default();
                add(&mut of.pending, spec.request());
                of.pending_mib += spec.share_mib;
            }
        }
    }

    fn place(&mut self, node: NodeKey, spec: &Spec, holds: &[Hold], how: As) {
        let (taken, leaving) = (how != As::Promised, how == As::Leaving);
        let counts = [taken, leaving, !taken];
        let whole = if holds.is_empty() {
            whole_gpus(spec)
        } else {
            0
        };
        let of = self.nodes.entry(node).or_default();
        for (sums, counts) in [&mut of.used, &mut of.releasing, &mut of.promised]
            .into_iter()
            .zip(counts)
        {
            if counts {
                sums.cpu += u128::from(spec.cpu.0);
                sums.memory += u128::from(spec.memory.0);
                sums.pods += 1;
                sums.gpus += u128::from(whole);
            }
        }
        for (name, amount) in &spec.extended {
            let of = self.extras.entry((node, name.clone())).or_default();
            for (sum, counts) in [&mut of.used, &mut of.releasing, &mut of.promised]
                .into_iter()
                .zip(counts)
            {
                *sum += if counts { u128::from(*amount) } else { 0 };
            }
        }
        for hold in holds.iter().filter(|hold| !hold.lent) {
            let of = self.cards.entry(hold.card).or_default();
            for (sums, counts) in [&mut of.held, &mut of.releasing, &mut of.promised]
                .into_iter()
                .zip(counts)
            {
                if counts {
                    sums.add(hold.limit, hold.nominal, hold.mode);
                }
            }
        }
    }
}

fn add(sums: &mut [u128; 3], amounts: [u128; 3]) {
    for (sum, amount) in sums.iter_mut().zip(amounts) {
        *sum += amount;
    }
}
