//! One decision over the state as it is: KAI's actions, one after another.
//!
//! In: the state. Out: a [`Decision`], and the state as if its actions had succeeded.
//! 1. Pauses that are over end; pods that an agent refused for good, or wants gone,
//!    are evicted.
//! 2. Fair shares of all queues, once.
//! 3. The configured actions: [`allocate`], [`consolidate`], [`reclaim`], [`preempt`],
//!    [`stale`]; the three in the middle search with [`solve`],
//!    [`scenario`], [`trial`] and [`settle`], where none of [`ceiling`], [`repack`],
//!    [`hopeless`] and [`swap`] says no before; [`rest`] gives each its turn. [`keep`] is
//!    ours: empty nodes that stay empty where moving will do.
//! 4. Promises are reported and let go: the next decision makes them anew from what is
//!    leaving by then, so they hold until bound, outranked or void.
//! 5. Pods that stay have a reason; changed reasons are returned.

mod act;
mod allocate;
mod ceiling;
mod consolidate;
mod find;
mod fragments;
mod hopeless;
mod keep;
mod place;
mod preempt;
mod reason;
mod reclaim;
mod repack;
mod rest;
mod runtime;
mod scenario;
mod settle;
mod solve;
mod stale;
mod swap;
mod topology;
mod trial;

use crate::action::{Decision, Promise, ReasonKind};
use crate::config::{Config, Step};
use crate::gang::{self, Gang, Pick};
use crate::job_queue::{Entry, JobRank, Line};
use crate::shares::{Shares, plus};
use crate::state::State;
use crate::state::cell::Status;
use crate::state::rows::{JobKey, NodeKey, QueueKey, SpecKey, TaskKey};
use crate::units::{Duration, Time};
pub(crate) use act::{bind, grants};
pub(crate) use fragments::Fragments;
pub(crate) use reason::{hindrance, no_fit_line, released_line};
use rest::Found;
use rustc_hash::{FxHashMap, FxHashSet};
use slotmap::SecondaryMap;
use solve::Like;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// KAI's schedule period: after so long a pod is looked at again whose binding was taken
/// back, though nothing else has happened.
const PERIOD: Duration = Duration::seconds(1);

/// What one decision leaves for the next.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// [`State::stirred`] at the last decision: nothing to do while it has not moved.
    stirred: Option<u64>,
    /// Nor before this time.
    wake: Option<Time>,
    /// What was promised then still holds.
    promises: Vec<Promise>,
    /// What was computed of nodes then.
    fragments: Option<Fragments>,
    /// What was computed of jobs then.
    known: Jobs,
    /// Who could sit nowhere then, whoever leaves.
    ceilings: ceiling::Ceilings,
}

/// What follows from where the pods of jobs are, as long as nothing else that it depends
/// on has changed.
#[derive(Debug, Default)]
struct Jobs {
    /// [`State::hindered`], and what GPU memory counts for.
    at: (u64, u128),
    of: SecondaryMap<JobKey, Known>,
}

/// What follows from where the pods of a job are.
#[derive(Clone, Debug)]
struct Known {
    /// [`crate::state::rows::JobRow::stamp`] at that time.
    stamp: u64,
    ready: bool,
    next: Arc<[TaskKey]>,
    /// What the first of these asks for.
    first: Option<SpecKey>,
    entry: Entry,
}

/// Jobs that are ready to be placed.
#[derive(Clone)]
struct Ready {
    /// [`State::settled`] at that time.
    at: u64,
    jobs: Arc<[JobKey]>,
    /// One of each kind of them that may be placed.
    kinds: Arc<[JobKey]>,
    /// Queues of those that wait and are not.
    passed_over: BTreeSet<QueueKey>,
}

/// See [`Cycle::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    queue: Option<QueueKey>,
    spec: SpecKey,
    priority: i32,
    preemptible: bool,
}

/// A decision in the making.
pub(crate) struct Cycle<'a> {
    pub state: &'a mut State,
    pub config: &'a Config,
    pub shares: Shares,
    /// Where a placement asks for it.
    fragments: Option<Fragments>,
    pub decision: Decision,
    /// All nodes, in order of name.
    pub nodes: Arc<[NodeKey]>,
    /// Who was promised a place, in order.
    promised: Vec<TaskKey>,
    /// The last sequence number of the decisions before this one.
    since: u64,
    /// Whose binding this decision took back: they wait for the next one, as a pod does
    /// that was evicted.
    withdrawn: BTreeSet<TaskKey>,
    /// Jobs that this decision started, and when they had started before.
    starts: Vec<(JobKey, Option<Time>)>,
    /// Why a job did not get what it wanted, for its pods.
    failures: FxHashMap<JobKey, (ReasonKind, Arc<str>)>,
    /// When something will change by time alone.
    wake: Option<Time>,
    /// By queue, the job for which no room was found last, while nothing has moved since:
    /// the next in line that is its like finds none either.
    hopeless: FxHashMap<QueueKey, (Like, Found)>,
    /// The steps at which the search that goes on is cut short, and whether it was.
    search_until: u64,
    search_cut: bool,
    /// What searches took beside steps, in about as long pieces: sets that were made, and
    /// victims that were looked at.
    pondered: u64,
    /// What searches took, of both.
    searched: u64,
    /// Queues in which jobs wait that are not served now.
    passed_over: BTreeSet<QueueKey>,
    /// What follows from where the pods of a job are.
    known: SecondaryMap<JobKey, Known>,
    /// How often running work was told to make room.
    rearranged: u64,
    /// Jobs that are ready, while nothing has moved.
    ready: Option<Ready>,
    /// Whether anything can come of a search for victims, while nothing has moved.
    outlook: hopeless::Outlook,
    /// Who could sit nowhere, whoever leaves.
    ceilings: ceiling::Ceilings,
    /// Who may be moved, and for which requests that may help, while nothing has moved.
    moves: Option<consolidate::Moves>,
    /// All jobs that wait, sorted, while nothing has moved.
    line: Option<(u64, Arc<Line>)>,
    /// Preferred topology domains of the job being placed: node scores by set name.
    scores: FxHashMap<String, BTreeMap<NodeKey, u8>>,
}

/// Decides.
pub(crate) fn decide(state: &mut State, config: &Config, memory: &mut Memory) -> Decision {
    state.end_due_pauses();
    state.refresh_queues();
    let due = memory.wake.is_some_and(|wake| wake <= state.now);
    if memory.stirred == Some(state.stirred) && !due {
        return Decision {
            wake_at: earlier(memory.wake, pauses_end(state)),
            promises: memory.promises.clone(),
            ..Decision::default()
        };
    }
    #[allow(clippy::cast_precision_loss)]
    let k = config.k_value as f64 / 1e9;
    let shares = Shares::compute(state, k);
    let fragments = Fragments::of(state, config, shares.smallest_card, memory.fragments.take());
    let nodes: Arc<[NodeKey]> = state.node_names.values().copied().collect();
    let known = memory.known.take(state, shares.smallest_card);
    let began = state.touched;
    let mut cycle = Cycle {
        shares,
        fragments,
        nodes,
        decision: Decision::default(),
        promised: Vec::new(),
        since: state.sequence,
        withdrawn: BTreeSet::new(),
        starts: Vec::new(),
        failures: FxHashMap::default(),
        wake: None,
        hopeless: FxHashMap::default(),
        search_until: 0,
        search_cut: false,
        pondered: 0,
        searched: 0,
        passed_over: BTreeSet::new(),
        known,
        rearranged: 0,
        ready: None,
        outlook: hopeless::Outlook::default(),
        ceilings: std::mem::take(&mut memory.ceilings),
        moves: None,
        line: None,
        scores: FxHashMap::default(),
        state,
        config,
    };
    cycle.evict_unwanted();
    for step in &config.actions {
        match step {
            Step::Allocate => cycle.allocate(),
            Step::Consolidation => cycle.consolidate(),
            Step::Reclaim => cycle.reclaim(),
            Step::Preempt => cycle.preempt(),
            Step::StaleGangEviction => cycle.evict_stale(),
        }
    }
    if !cycle.withdrawn.is_empty() {
        let again = cycle.state.now.after(PERIOD);
        cycle.wake_at(again);
    }
    cycle.remember_swaps();
    cycle.wake_the_gone();
    cycle.say_why();
    cycle.let_go_of_promises();
    let wake = cycle.wake;
    let mut decision = cycle.decision;
    memory.known = Jobs::keep(cycle.state, cycle.shares.smallest_card, cycle.known);
    if !cycle.withdrawn.is_empty() {
        // Who may be placed is another question in the next decision.
        memory.known.of.clear();
    }
    memory.ceilings = cycle.ceilings.keep(began);
    memory.fragments = cycle.fragments;
    memory.stirred = Some(state.stirred);
    memory.wake = wake;
    memory.promises.clone_from(&decision.promises);
    decision.wake_at = earlier(wake, pauses_end(state));
    decision
}

impl Jobs {
    /// What still holds.
    fn take(&mut self, state: &State, smallest_card: u128) -> SecondaryMap<JobKey, Known> {
        let known = std::mem::take(&mut self.of);
        if self.at == (state.hindered, smallest_card) {
            known
        } else {
            SecondaryMap::new()
        }
    }

    fn keep(state: &State, smallest_card: u128, mut of: SecondaryMap<JobKey, Known>) -> Self {
        // Jobs that are gone, or have all they want, are not asked for again.
        if of.len() > 2 * state.pending.len() + 64 {
            of.retain(|job, known| !known.next.is_empty() && state.jobs.contains_key(job));
        }
        Self {
            at: (state.hindered, smallest_card),
            of,
        }
    }
}

fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}

/// The next pause that ends.
fn pauses_end(state: &State) -> Option<Time> {
    let task = state.task_pauses.first().map(|(until, _)| *until);
    let card = state.card_pauses.first().map(|(until, _)| *until);
    earlier(task, card)
}

impl Cycle<'_> {
    /// Something will change at that time even if nothing happens.
    fn wake_at(&mut self, time: Time) {
        if time > self.state.now {
            self.wake = earlier(self.wake, Some(time));
        }
    }

    /// True while the pod may be placed: no gate, no pause, nothing wrong with it.
    fn may(&self, task: TaskKey) -> bool {
        !self.withdrawn.contains(&task)
            && self
                .state
                .tasks
                .get(task)
                .is_some_and(|row| hindrance(self.state, row).is_none())
    }

    fn gang(&self, job: JobKey) -> Gang {
        gang::of(self.state, job)
    }

    /// Jobs with waiting pods, each once, in a defined order.
    fn waiting_jobs(&self) -> Vec<JobKey> {
        let mut seen = FxHashSet::default();
        let mut last = None;
        self.state
            .pending
            .iter()
            .filter_map(|(_, task)| self.state.tasks.get(*task))
            .filter(|row| !row.gated)
            .filter_map(|row| row.job)
            .filter(|job| last.replace(*job) != Some(*job) && seen.insert(*job))
            .collect()
    }

    /// Waiting jobs that are ready to be placed.
    fn ready_jobs(&mut self) -> Arc<[JobKey]> {
        let at = self.state.settled;
        if let Some(ready) = self.ready.clone().filter(|ready| ready.at == at) {
            self.passed_over.extend(ready.passed_over);
            return ready.jobs;
        }
        let (mut jobs, mut passed_over) = (Vec::new(), BTreeSet::new());
        let (mut kinds, mut seen) = (Vec::new(), FxHashSet::default());
        for job in self.waiting_jobs() {
            if self.known(job).ready {
                jobs.push(job);
                let may = self.known(job).first.is_some();
                if may && self.kind(job).is_none_or(|kind| seen.insert(kind)) {
                    kinds.push(job);
                }
                continue;
            }
            passed_over.extend(self.state.jobs.get(job).and_then(|row| row.queue));
            if !self.state.jobs.get(job).is_some_and(|row| row.single) {
                let gated = |task| self.state.tasks.get(task).is_none_or(|row| row.gated);
                let line = reason::not_ready_line(&self.gang(job), &gated);
                self.failures.insert(job, (ReasonKind::NotReady, line));
            }
        }
        let jobs: Arc<[JobKey]> = Arc::from(jobs);
        self.passed_over.extend(passed_over.iter().copied());
        self.ready = Some(Ready {
            at,
            jobs: Arc::clone(&jobs),
            kinds: Arc::from(kinds),
            passed_over,
        });
        jobs
    }

    /// One of each kind of ready jobs. Whoever has a kind is alone in its job; whoever has
    /// none is here itself.
    fn ready_kinds(&mut self) -> Arc<[JobKey]> {
        let _ = self.ready_jobs();
        let kinds = self.ready.as_ref().map(|ready| Arc::clone(&ready.kinds));
        kinds.unwrap_or_default()
    }

    /// What a pod of its own has alike with others as far as it matters whether it can be
    /// placed at all. `None`: it is no such pod, or hindered.
    fn kind(&mut self, job: JobKey) -> Option<Kind> {
        let spec = self.known(job).first?;
        let row = self.state.jobs.get(job)?;
        (row.single && row.group.is_none()).then(|| Kind {
            queue: row.queue,
            spec,
            priority: row.priority(self.state),
            preemptible: row.is_preemptible(self.state),
        })
    }

    /// Waiting jobs that are ready, and old enough to evict others for.
    fn old_enough(&mut self) -> Vec<JobKey> {
        let ready = self.ready_jobs();
        let mut jobs = Vec::with_capacity(ready.len());
        for job in ready.iter() {
            if self.within_delay(*job) {
                self.pass_over(*job);
            } else {
                jobs.push(*job);
            }
        }
        jobs
    }

    /// All jobs that wait, sorted, as long as nothing moves. Not inside a trial.
    fn line(&mut self) -> Arc<Line> {
        let at = self.state.settled;
        if let Some((_, line)) = self.line.as_ref().filter(|(known, _)| *known == at) {
            return Arc::clone(line);
        }
        let jobs = self.waiting_jobs();
        let entries = jobs.into_iter().map(|job| self.entry(job)).collect();
        let line = Arc::new(Line::new(self.state, entries));
        self.line = Some((at, Arc::clone(&line)));
        line
    }

    /// The job waits, and is not served by this action.
    fn pass_over(&mut self, job: JobKey) {
        if let Some(queue) = self.state.jobs.get(job).and_then(|row| row.queue) {
            self.passed_over.insert(queue);
        }
    }

    /// A job as it stands in the queue of those that want something.
    fn entry(&mut self, job: JobKey) -> Entry {
        self.known(job).entry.clone()
    }

    /// The pods that a job would place next, victims of the trial among them.
    fn next_tasks(&mut self, job: JobKey) -> Arc<[TaskKey]> {
        Arc::clone(&self.known(job).next)
    }

    /// What follows from where a job's pods are; computed again when one has moved.
    fn known(&mut self, job: JobKey) -> &Known {
        let stamp = self.state.jobs.get(job).map_or(0, |row| row.stamp);
        if self.known.get(job).is_none_or(|known| known.stamp != stamp) {
            let known = self.learn(job, stamp);
            self.known.insert(job, known);
        }
        &self.known[job]
    }

    fn learn(&self, job: JobKey, stamp: u64) -> Known {
        let gang = self.gang(job);
        let gated = |task| self.state.tasks.get(task).is_none_or(|row| row.gated);
        let next = gang.next(Pick::WaitingAndVictims, &|task| self.may(task));
        let wanted = self
            .shares
            .wanted(self.state, &next, self.shares.smallest_card);
        Known {
            stamp,
            ready: gang.is_ready(&gated),
            first: next
                .first()
                .and_then(|task| Some(self.state.tasks.get(*task)?.spec)),
            next: Arc::from(next),
            entry: Entry {
                job,
                rank: self.rank(job, &gang),
                wanted,
                held: [0; 3],
                part: None,
            },
        }
    }

    fn rank(&self, job: JobKey, gang: &Gang) -> JobRank {
        let row = self.state.jobs.get(job);
        let (created, uid) = row.map_or((Time(0), Arc::from("")), |row| match &row.group {
            Some(group) => (group.created, Arc::clone(&group.uid)),
            None => row
                .only(self.state)
                .map_or((Time(0), Arc::from("")), |task| {
                    (task.created, task.uid.shared())
                }),
        });
        JobRank {
            priority: Reverse(row.map_or(0, |row| row.priority(self.state))),
            growth: gang.growth(),
            created,
            uid,
        }
    }

    /// A job as it stands in the queue of victims, by what its allocated pods hold.
    fn victim_entry(&self, job: JobKey, gang: &Gang, part: Option<Arc<[TaskKey]>>) -> Entry {
        let held = gang
            .tasks()
            .filter(|(_, status)| {
                matches!(status, Status::Assumed | Status::Bound | Status::Running)
            })
            .map(|(task, _)| self.shares.wanted(self.state, &[task], 0))
            .fold([0; 3], plus);
        Entry {
            job,
            rank: self.rank(job, gang),
            wanted: [0; 3],
            held,
            part,
        }
    }

    /// The job is too young to evict others for.
    fn within_delay(&mut self, job: JobKey) -> bool {
        let Some(group) = self.state.jobs.get(job).and_then(|row| row.group.as_ref()) else {
            return false;
        };
        let until = group.created.after(group.preemption_delay);
        let young = group.preemption_delay.0 > 0 && self.state.now < until;
        if young {
            self.wake_at(until);
        }
        young
    }
}
