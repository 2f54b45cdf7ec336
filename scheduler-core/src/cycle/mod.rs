//! One decision over the current state: KAI's actions, one after another.
//!
//! Input: the state. Output: a [`Decision`], and the state as if all of its actions had succeeded.
//! 1. Expired pauses end. Pods whose grant was refused permanently, or whose agent requests it, are
//!    evicted.
//! 2. Fair shares of all queues are computed once. The ordered list of pending jobs ([`waiting`]) is
//!    brought up to date for the jobs that have changed.
//!    Before that, [`background`] pods are taken out of what is decided about, to be put back after
//!    the actions.
//! 3. The configured actions run: [`allocate`], [`consolidate`], [`reclaim`], [`preempt`], [`stale`].
//!    The middle three search with [`solve`], [`scenario`], [`trial`] and [`settle`], unless
//!    [`relax`] rules the search out; [`history`] pauses evictions that gain nothing, and
//!    [`search_budget`] limits each search. [`empty_nodes`] is ours: it keeps nodes empty where
//!    moving pods is enough.
//!    Where nothing waits, [`scale_down`], ours too, empties a node for an autoscaler.
//! 4. The final state becomes actions, once: [`plan`], [`change`], [`commit`].
//! 5. Promises are reported and released. The next decision makes them again from what is then being
//!    released, so a promise holds until its pod is bound, outranked, or can no longer be served.
//! 6. Pods that stay pending get a [`reason`]; changed reasons are returned.

mod allocate;
mod assign;
mod background;
mod budget;
mod change;
pub(crate) mod commit;
mod consolidate;
pub(crate) mod decide;
mod empty_nodes;
mod evict_requests;
mod find;
pub(crate) mod fragments;
mod generate;
mod gpu_sum;
pub(crate) mod hindrance;
pub(crate) mod history;
mod losses;
mod memos;
mod pending;
mod place;
mod plan;
mod preempt;
mod reason;
mod reclaim;
mod refusals;
pub(crate) mod relax;
mod runtime;
mod scale_down;
mod scenario;
mod search;
mod search_budget;
mod settle;
mod solve;
mod stale;
mod topology;
mod trial;
mod waiting;

use crate::action::{Decision, EvictCause, Tally};
use crate::config::{Config, Step};
use crate::cycle::budget::Budget;
use crate::cycle::hindrance::hindrance;
use crate::cycle::memos::Memos;
use crate::cycle::plan::Plan;
use crate::cycle::waiting::Waiting;
use crate::gang::{self, Gang};
use crate::reason::WaitReason;
use crate::shares::{QueueAmounts, Shares, plus};
use crate::state::State;
use crate::state::keys::{JobKey, NodeKey, QueueKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::task_cell::Status;
use crate::units::Time;
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Which jobs were tried in a decision and in those that it continues: no job fails twice before
/// all were tried.
#[derive(Debug, Default)]
pub(super) struct TriedJobs {
    /// Jobs with rules about other pods that were not placed, and (true) those that were
    /// promised a place; each by [`Cycle::borrows`].
    placed: FxHashMap<(JobKey, bool), bool>,
    /// Jobs for which no room was found.
    searched: BTreeSet<(JobKey, EvictCause)>,
}

/// A decision in the making.
pub(crate) struct Cycle<'a> {
    pub state: &'a mut State,
    pub config: &'a Config,
    pub shares: Shares,
    pub decision: Decision,
    /// The action to continue.
    acting: Step,
    /// All nodes, in order of name.
    pub nodes: Arc<[NodeKey]>,
    /// The same as a set.
    all: Arc<NodeSet>,
    /// The decisions so far.
    plan: Plan,
    /// Why a job was not placed, for its pods.
    failures: FxHashMap<JobKey, Arc<WaitReason>>,
    /// When something will change by time alone.
    wake: Option<Time>,
    /// The work that this decision may do, and has done.
    budget: Budget,
    /// Results that this decision has computed and asks for again.
    memos: Memos,
    /// The jobs that this decision, and those that it continues, have tried.
    turns: TriedJobs,
    /// Pods may bring queues above their quota of a product. False in a first round, where queues
    /// name products, so that GPUs go to the queues that are guaranteed them.
    borrows: bool,
    /// A pod was not placed in this round because of that.
    deferred: Cell<bool>,
    /// Queues in which jobs wait that are not served now.
    passed_over: BTreeSet<QueueKey>,
    /// The pending jobs.
    waiting: Waiting,
    /// How often running pods were evicted or moved to make room.
    rearranged: u64,
    /// Background pods that have left their places until the others are placed.
    hidden: Vec<TaskKey>,
    /// Background pods that wait are placed, and no others.
    serves_background: bool,
}

pub(super) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}

impl Cycle<'_> {
    /// Whether the job has background pods.
    pub(super) fn is_background(&self, job: JobKey) -> bool {
        let background = &self.state.index.background;
        let row = self.state.jobs.get(job).filter(|_| !background.is_empty());
        row.is_some_and(|row| row.tasks.iter().any(|task| background.contains(task)))
    }

    /// Whether the job is placed before or after this stage of the decision.
    pub(super) fn is_out_of_turn(&self, job: JobKey) -> bool {
        self.is_background(job) != self.serves_background
    }

    /// Returns the hidden pods to their places, or evicts those whose places were taken, and places
    /// the ones that wait. Called again, it does nothing.
    pub(super) fn restore_background(&mut self) {
        if self.serves_background || self.state.index.background.is_empty() {
            return;
        }
        self.serves_background = true;
        for task in std::mem::take(&mut self.hidden) {
            let status = self.state.cell(task).status;
            // An agent may want it gone, or a search may have moved it or evicted it.
            if !matches!(status, Status::Victim | Status::Promised) {
                continue;
            }
            self.plan.breaks_promise(task);
            if self.goes_back(task) {
                self.stays(task);
            } else {
                self.make_victim(task);
                self.evict(task, None, EvictCause::Background, background::MESSAGE);
            }
        }
        let background = &self.state.index.background;
        let waits = background
            .iter()
            .any(|task| self.state.index.pending.contains(task));
        // As after any other action that has more to do.
        if waits && !self.budget.goes_on && self.config.actions.contains(&Step::Allocate) {
            self.acting = Step::Allocate;
            self.allocate();
        }
    }

    /// Of the current action.
    fn tally(&mut self) -> &mut Tally {
        self.decision.tallies.entry(self.acting).or_default()
    }

    /// A workload was tried, with or without success.
    fn tried(&mut self, placed: bool) -> bool {
        let tally = self.tally();
        tally.tried += 1;
        tally.placed += u64::from(placed);
        placed
    }

    /// Something will change at that time even if nothing happens.
    fn wake_at(&mut self, time: Time) {
        if time > self.state.now {
            self.wake = earlier(self.wake, Some(time));
        }
    }

    fn is_gated(&self, task: TaskKey) -> bool {
        self.state.tasks.get(task).is_none_or(|row| row.gated)
    }

    /// True while the pod may be placed: no gate, no pause, nothing wrong with it.
    fn may(&self, task: TaskKey) -> bool {
        !self.plan.has_displaced(task)
            && self
                .state
                .tasks
                .get(task)
                .is_some_and(|row| hindrance(self.state, row).is_none())
    }

    fn gang(&self, job: JobKey) -> Gang {
        gang::of(self.state, job)
    }

    /// The job waits, and is not served by this action.
    fn pass_over(&mut self, job: JobKey) {
        if let Some(queue) = self.state.jobs.get(job).and_then(|row| row.queue) {
            self.passed_over.insert(queue);
        }
    }

    /// What the allocated pods of a gang hold, in the count of queues.
    fn held_by_gang(&self, gang: &Gang) -> QueueAmounts {
        gang.tasks()
            .map(|(task, status)| self.held_by_pod(task, status))
            .fold([0; 3], plus)
    }

    /// What a pod of that status holds, in the count of queues.
    fn held_by_pod(&self, task: TaskKey, status: Status) -> QueueAmounts {
        match status {
            Status::Assumed | Status::Bound | Status::Running => {
                self.shares.wanted(self.state, &[task], 0)
            }
            _ => [0; 3],
        }
    }

    /// Returns whether no pod may be evicted for the job, either ever or until its delay is over.
    fn within_delay(&mut self, job: JobKey) -> bool {
        if self.state.is_returning(job) {
            return true;
        }
        let Some(row) = self.state.jobs.get(job) else {
            return false;
        };
        let Some(group) = row.group.as_ref() else {
            return row
                .only(self.state)
                .is_some_and(|pod| pod.facts.never_preempts);
        };
        if group.spec.never_preempts {
            return true;
        }
        let since = row.last_evicted().max(Some(group.created));
        let until = since.unwrap_or_default().after(group.spec.preemption_delay);
        let young = group.spec.preemption_delay.0 > 0 && self.state.now < until;
        if young {
            self.wake_at(until);
        }
        young
    }
}
