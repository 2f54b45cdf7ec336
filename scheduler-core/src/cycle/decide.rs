//! Takes one decision: runs the actions in their order, and turns the final state into actions. See
//! [`super`].

use crate::action::{Decision, Promise};
use crate::config::{Config, Step};
use crate::cycle::budget::Budget;
use crate::cycle::fragments::Fragments;
use crate::cycle::memos::Memos;
use crate::cycle::plan::Plan;
use crate::cycle::relax::memory::Relaxations;
use crate::cycle::waiting::Waiting;
use crate::cycle::{Cycle, TriedJobs, background, earlier};
use crate::shares::Shares;
use crate::state::State;
use crate::state::keys::NodeKey;
use crate::state::node_set::NodeSet;
use crate::units::{Duration, Time};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// KAI's schedule period: a pod whose binding was taken back is tried again after this time, even
/// if nothing else has happened.
const PERIOD: Duration = Duration::seconds(1);

/// What one decision leaves for the next.
#[derive(Debug, Default)]
pub(crate) struct CycleCache {
    /// [`Changes::wake`](crate::state::changes::Changes::wake) at the last decision: nothing to do while it has not moved.
    wake_version: Option<u64>,
    /// Nor before this time.
    pub(super) wake: Option<Time>,
    /// The promises of that decision still hold.
    promises: Vec<Promise>,
    /// The jobs that were pending then.
    pub(super) waiting: Waiting,
    /// The relaxations of that decision. One of them knows answers that still hold.
    relaxations: Relaxations,
    /// Where the next decision continues the last one.
    pub(super) turns: TriedJobs,
}

/// Decides.
pub(crate) fn decide(state: &mut State, config: &Config, memory: &mut CycleCache) -> Decision {
    state.end_due_pauses();
    state.refresh_queues();
    state.refresh_idle();
    let due = memory.wake.is_some_and(|wake| wake <= state.now);
    if memory.wake_version == Some(state.changes.wake) && !due {
        return Decision {
            wake_at: earlier(memory.wake, pauses_end(state)),
            promises: memory.promises.clone(),
            ..Decision::default()
        };
    }
    let hidden = background::hide(state);
    #[allow(clippy::cast_precision_loss)]
    let k = config.k_value as f64 / 1e9;
    let mut shares = Shares::compute(state, k);
    shares.priority_in_quota = config.queue_priority_in_quota;
    let fragments = Fragments::of(state, config, shares.smallest_card);
    // Sets of nodes go by the ranks of the index.
    state.refresh_rooms();
    let began = state.changes.touched;
    let nodes: Arc<[NodeKey]> = state.names.nodes.values().copied().collect();
    let mut cycle = Cycle {
        shares,
        all: Arc::new(NodeSet::first(nodes.len())),
        nodes,
        decision: Decision::default(),
        acting: Step::Allocate,
        plan: Plan::default(),
        failures: FxHashMap::default(),
        wake: None,
        budget: Budget::default(),
        memos: Memos {
            fragments,
            relaxations: std::mem::take(&mut memory.relaxations),
            ..Memos::default()
        },
        turns: std::mem::take(&mut memory.turns),
        borrows: true,
        deferred: Cell::new(false),
        passed_over: BTreeSet::new(),
        waiting: std::mem::take(&mut memory.waiting),
        rearranged: 0,
        hidden,
        serves_background: false,
        state,
        config,
    };
    cycle.evict_unwanted();
    for step in &config.actions {
        if *step == Step::StaleGangEviction {
            // A hidden gang is not below its minimum.
            cycle.restore_background();
        }
        cycle.acting = *step;
        cycle.budget.begin_action(config);
        let before = cycle.budget.steps;
        match step {
            Step::Allocate => cycle.allocate(),
            // No pod is evicted for a job that may still fit.
            Step::Consolidation | Step::Reclaim | Step::Preempt if cycle.budget.goes_on => {}
            Step::Consolidation => cycle.consolidate(),
            Step::Reclaim => cycle.reclaim(),
            Step::Preempt => cycle.preempt(),
            Step::StaleGangEviction => cycle.evict_stale(),
        }
        let steps = cycle.budget.steps - before;
        cycle.tally().steps += steps;
    }
    cycle.restore_background();
    cycle.scale_down();
    if cycle.plan.displaced() > 0 {
        cycle.bind_where_nobody_leaves();
        let again = cycle.state.now.after(PERIOD);
        cycle.wake_at(again);
    }
    cycle.commit();
    cycle.remember_evictions();
    cycle.prune_search_backoffs();
    cycle.report_lives();
    cycle.report_reasons();
    cycle.release_promises();
    let wake = cycle.wake;
    let goes_on = cycle.budget.goes_on || cycle.state.has_pending_verdicts();
    cycle.decision.cut_short |= goes_on;
    let mut decision = cycle.decision;
    decision.steps = cycle.budget.steps;
    decision.displaced = cycle.plan.displaced();
    // If bindings were taken back, other pods may be placed in the next decision.
    if cycle.plan.displaced() == 0 {
        memory.waiting = cycle.waiting;
        memory.waiting.keep();
    }
    decision.ruled_out = cycle.memos.relaxations.end_decision(began);
    memory.relaxations = cycle.memos.relaxations;
    let goes_on = goes_on || cycle.budget.search_goes_on;
    if goes_on {
        memory.turns = cycle.turns;
    }
    memory.wake_version = (!goes_on).then_some(state.changes.wake);
    memory.wake = wake;
    memory.promises.clone_from(&decision.promises);
    decision.wake_at = earlier(wake, pauses_end(state));
    decision
}

/// The next pause that ends, or the next idle job that gives way.
fn pauses_end(state: &State) -> Option<Time> {
    let task = state.pauses.tasks.first().map(|(until, _)| *until);
    let card = state.pauses.cards.first().map(|(until, _)| *until);
    earlier(earlier(task, card), state.index.idle.next)
}
