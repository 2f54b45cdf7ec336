//! The only owner of the core: takes facts in, decides when they have settled, hands
//! decisions on.
//!
//! In: facts, agents' words, outcomes, questions. Out: [`Work`], the state of this part. Changes
//! are coalesced: a decision comes after a quiet moment, or when patience ends. Nothing is decided
//! before every kind of object was listed, nor without the lease. Where another scheduler is
//! observed, nothing is passed on at all.

mod answer;
mod decided;
mod forecast;
mod granted;
mod group_feed;
mod look;
mod question;
mod standstill;

pub use question::Question;

use crate::act::{AwaitedClaims, Work};
use crate::clock::{Clock, Wall};
use crate::convert::World;
use crate::forecast::Line as ForecastLine;
use crate::mig_layout;
use crate::observe::Observer;
use crate::report::{GroupReport, Views};
use crate::scale_up;
use crate::status::{Meters, Status};
use crate::telemetry::{AgentEvent, AgentEventReceiver};
use crate::usage::{UsageClient, UsageResult};
use crate::watch::{Fact, Key as _, Seen};
use granted::Granted;
use group_feed::GroupFeed;
use scheduler_core::ids::QueueName;
use scheduler_core::units::Time;
use scheduler_core::{Core, Event, Outcome, Problem};
use standstill::{Line, Standstill};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Events that are applied before the time is read again.
const BATCH: usize = 4096;
/// Time between two reports of queues, and of the groups that have changed.
const REPORT: Duration = Duration::from_secs(1);
/// Interval at which lasting differences are checked again, with an observed scheduler.
const OBSERVED_AGAIN: Duration = Duration::from_secs(5);
/// Time between two checks of the sums. Each check walks every pod while nothing is decided, so it
/// is rare.
const SWEEP: Duration = Duration::from_mins(5);
/// A queue's parent may be created after it: for this time the problem is not reported.
const PARENT_WITHIN: Duration = Duration::from_secs(5);
/// Problems are logged once each; this many are remembered.
const KNOWN_PROBLEMS: usize = 10_000;

/// Where everything comes from.
#[derive(Debug)]
pub struct CycleInputs {
    /// Of the API server.
    pub facts: channel::Receiver<Fact>,
    /// Of the agents.
    pub heard: AgentEventReceiver,
    /// Of actions.
    pub outcomes: channel::Receiver<Outcome>,
    /// Of people.
    pub questions: mpsc::Receiver<Question>,
    /// Whether this replica acts.
    pub leading: watch::Receiver<bool>,
    /// Past use of queues: set when a shard begins.
    pub(crate) usage: UsageClient,
    /// The task that requests nodes. `None`: none.
    pub(crate) scale_up: Option<scale_up::Line>,
    /// The task that chooses MIG layouts. `None`: none.
    pub(crate) layouts: Option<mig_layout::Line>,
    /// The channels to the task that estimates start times. `None`: no such task runs.
    pub(crate) forecasts: Option<ForecastLine>,
    /// The time.
    pub wall: Wall,
}

/// Where everything goes.
#[derive(Clone, Debug)]
pub struct CycleOutputs {
    /// Lists pods and groups again.
    pub relist: watch::Sender<u64>,
    /// Things to do.
    pub work: channel::Sender<Work>,
    /// Claims on volumes that bindings wait for.
    pub awaited: AwaitedClaims,
    /// For health.
    pub status: watch::Sender<Status>,
    /// Queues, for the tasks that report them.
    pub views: watch::Sender<Views>,
    /// Pod groups whose statuses are to be written.
    pub groups: mpsc::Sender<GroupReport>,
    /// For metrics.
    pub meters: Arc<Meters>,
    /// The shard's node pool, for metrics: set when a shard begins.
    pub pool: String,
}

/// How changes are coalesced.
#[derive(Clone, Copy, Debug)]
pub struct CoalesceWindow {
    /// Time without a change.
    pub quiet: Duration,
    /// Longest time after the first change.
    pub patience: Duration,
}

/// Runs until `stop` or until an input ends. With an `observer`, whose world must be an observer's
/// too, nothing is passed on.
pub async fn run(
    core: Core,
    world: World,
    observer: Option<Observer>,
    pace: CoalesceWindow,
    mut inputs: CycleInputs,
    outputs: CycleOutputs,
    stop: CancellationToken,
) {
    let mut cycle = Cycle {
        core,
        world,
        observer,
        pace,
        outputs,
        change: None,
        wake_at: None,
        said: BTreeSet::new(),
        orphans: BTreeMap::new(),
        report_at: None,
        reported: Instant::now(),
        group_feed: GroupFeed::default(),
        clock: Clock::start(inputs.wall.clone()),
        scale_up: inputs.scale_up.take(),
        layouts: inputs.layouts.take(),
        forecasts: inputs.forecasts.take(),
        forecast_at: None,
        forecasted: None,
        look_at: None,
        looked: Instant::now(),
        look_took: Duration::ZERO,
        taking_in: Duration::ZERO,
        observed: Instant::now(),
        swept: Instant::now(),
        granted: Granted::default(),
        standstill: Standstill::default(),
        idle_at: None,
    };
    // A replica that leads from the start has listed nothing before.
    let mut led = *inputs.leading.borrow();
    if led {
        cycle.group_feed.begins_to_lead(Instant::now());
    }
    loop {
        let leading = *inputs.leading.borrow_and_update();
        if leading && !led {
            // In this order: a listing that was begun before counts for nothing.
            cycle.world.begins_to_lead();
            cycle.group_feed.begins_to_lead(Instant::now());
            cycle.outputs.relist.send_modify(|count| *count += 1);
        }
        if led && !leading {
            cycle.look_away();
            cycle.group_feed.stop();
        }
        led = leading;
        cycle.publish(leading);
        inputs.usage.settings.send_if_modified(|asked| {
            let settings = cycle.world.usage();
            let changed = asked.as_ref() != settings;
            *asked = settings.cloned();
            changed
        });
        let acts = leading && cycle.observer.is_none();
        cycle.compare_reasons(acts);
        if acts {
            cycle.write_conditions();
        }
        let conditions_due = if acts { cycle.conditions_due() } else { None };
        let due = if leading || cycle.observer.is_some() {
            cycle.see_whether_it_waits();
            cycle.due()
        } else {
            cycle.standstill = Standstill::default();
            None
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            // Before a decision: a process that was suspended may have lost the lease in the
            // meantime.
            changed = inputs.leading.changed() => match changed {
                // Anything missed is handled now.
                Ok(()) => {
                    cycle.changed();
                    cycle.report_at = Some(Instant::now());
                }
                Err(_) => return,
            },
            () = at(due) => if cycle.observer.is_some() { cycle.observe() } else { cycle.decide() },
            () = at(cycle.report_at) => cycle.report(leading),
            () = at(cycle.groups_due()) => cycle.report_groups(),
            () = at(cycle.look_at) => cycle.look(),
            () = at(cycle.forecast_at) => cycle.forecast(),
            // Writes at the beginning of each round.
            () = at(conditions_due) => {}
            () = at(cycle.idle_at) => cycle.warn_idle(),
            // Looks at the beginning of each round.
            () = at(cycle.standstill.due()) => {}
            () = at(cycle.orphans.values().min().copied()) => cycle.look_for_parents(),
            Ok(()) = inputs.usage.told.changed() => {
                let told = inputs.usage.told.borrow_and_update().clone();
                cycle.use_told(told);
            }
            Some(outcome) = inputs.outcomes.recv() => {
                cycle.end(outcome);
                for _ in 0..BATCH {
                    let Ok(outcome) = inputs.outcomes.try_recv() else { break };
                    cycle.end(outcome);
                }
            }
            heard = inputs.heard.recv() => match heard {
                Some(heard) => cycle.hear(heard),
                None => return,
            },
            fact = inputs.facts.recv() => match fact {
                Some(fact) => {
                    cycle.take(fact);
                    for _ in 0..BATCH {
                        let Ok(fact) = inputs.facts.try_recv() else { break };
                        cycle.take(fact);
                    }
                }
                None => return,
            },
            // Questions come last, because an answer takes time and clients without a token can
            // send any number.
            Some(question) = inputs.questions.recv() => cycle.answer(question, leading),
        }
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Cycle {
    core: Core,
    world: World,
    observer: Option<Observer>,
    pace: CoalesceWindow,
    outputs: CycleOutputs,
    /// The first and the last change since the last decision.
    change: Option<(Instant, Instant)>,
    /// The time of the next decision that the core has asked for.
    wake_at: Option<Instant>,
    said: BTreeSet<String>,
    /// Queues whose parent was missing, and when that is reported.
    orphans: BTreeMap<QueueName, Instant>,
    /// Something changed that was not reported.
    report_at: Option<Instant>,
    reported: Instant,
    group_feed: GroupFeed,
    clock: Clock,
    scale_up: Option<scale_up::Line>,
    layouts: Option<mig_layout::Line>,
    forecasts: Option<ForecastLine>,
    /// The time of the next forecast of start times, and of the last one.
    forecast_at: Option<Instant>,
    forecasted: Option<Instant>,
    /// The time of the next check for pods without room.
    look_at: Option<Instant>,
    looked: Instant,
    /// What the last of these checks took.
    look_took: Duration,
    /// What taking in changes took since the last decision.
    taking_in: Duration,
    /// An observer decides again no sooner.
    observed: Instant,
    swept: Instant,
    granted: Granted,
    standstill: Standstill,
    /// The time at which the next idle pod is warned or gives way.
    idle_at: Option<Instant>,
}

impl Cycle {
    fn take(&mut self, fact: Fact) {
        if let Some(observer) = &mut self.observer {
            observer.hear(&fact, self.clock.now());
        }
        match &fact {
            Fact::Claim(Seen::There(claim)) => self.outputs.awaited.tell(&claim.key()),
            Fact::Claim(Seen::Gone(name)) => self.outputs.awaited.tell(name),
            _ => {}
        }
        self.world.tell_time(self.clock.now());
        let admins = matches!(fact, Fact::Shard(_) | Fact::Config(_));
        for event in self.world.take(fact) {
            self.apply(event);
        }
        // The status of the previous one is written, and pods are tried again, with the next
        // decision.
        if admins && self.world.report_due().is_some() || self.world.is_due() {
            self.changed();
        }
    }

    fn hear(&mut self, heard: AgentEvent) {
        self.world.tell_time(self.clock.now());
        for event in self.world.hear(heard) {
            self.apply(event);
        }
    }

    /// Passes changed reasons on, so that they are compared with those that were written. Only the
    /// replica that leads may write.
    fn compare_reasons(&mut self, acts: bool) {
        for pod in self.world.reasons_shown() {
            if acts {
                let shown = self.world.shown_reason(&pod);
                self.send(Work::Shown(pod, shown));
            }
        }
    }

    /// Has the conditions written that are not as they are to be. Only who leads may write.
    fn write_conditions(&mut self) {
        let now = self.clock.now();
        for owed in self.world.owed_conditions(now) {
            self.send(Work::Condition(owed));
        }
    }

    /// Sets the conditions of idle pods.
    fn warn_idle(&mut self) {
        let now = self.clock.now();
        let next = self.world.warn_idle(&self.core.idle_pods(), now);
        // Not before the next millisecond.
        let wait = |at: Time| Duration::from_millis(at.0.saturating_sub(now.0).max(1));
        self.idle_at = next.map(|at| Instant::now() + wait(at));
    }

    /// When there is one to write, for who leads.
    fn conditions_due(&mut self) -> Option<Instant> {
        let at = self.world.conditions_due()?;
        let now = self.clock.now();
        Some(Instant::now() + Duration::from_millis(at.0.saturating_sub(now.0)))
    }

    fn use_told(&mut self, told: Option<UsageResult>) {
        let events = told.map(|told| self.world.told_usage(told));
        for event in events.into_iter().flatten() {
            self.apply(event);
        }
        if self.world.report_due().is_some() {
            self.changed();
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.apply(Event::Outcome(outcome));
    }

    fn apply(&mut self, event: Event) {
        let Some(observer) = &mut self.observer else {
            return self.put(event);
        };
        for event in observer.take(&self.core, event, self.clock.now()) {
            self.put(event);
        }
    }

    fn put(&mut self, event: Event) {
        self.outputs.meters.event();
        let begin = Instant::now();
        let problems = self.core.apply(event);
        self.taking_in += begin.elapsed();
        for problem in problems {
            self.complain(&problem);
        }
        self.changed();
    }

    fn changed(&mut self) {
        let now = Instant::now();
        self.report_at
            .get_or_insert(now.max(self.reported + REPORT));
        self.change = Some((self.change.map_or(now, |(first, _)| first), now));
    }

    fn complain(&mut self, problem: &Problem) {
        match problem {
            // The effect of an action is seen before its answer arrives: an eviction that takes no
            // time.
            Problem::UnknownDecision(_) => tracing::debug!("{problem}"),
            Problem::QueueOrphan(queue) => {
                let at = Instant::now() + PARENT_WITHIN;
                self.orphans.entry(queue.clone()).or_insert(at);
            }
            problem => self.warn(problem),
        }
    }

    /// The parents that have not come meanwhile are missed.
    fn look_for_parents(&mut self) {
        let now = Instant::now();
        let queues = self.core.queues();
        let is_there = |name: &QueueName| queues.iter().any(|view| view.queue == *name);
        let lost: Vec<QueueName> = (self.orphans.extract_if(.., |_, at| *at <= now))
            .map(|(name, _)| name)
            .filter(|name| {
                let view = queues.iter().find(|view| view.queue == *name);
                let parent = view.and_then(|view| view.parent.as_ref());
                parent.is_some_and(|parent| !is_there(parent))
            })
            .collect();
        for queue in lost {
            self.warn(&Problem::QueueOrphan(queue));
        }
    }

    fn warn(&mut self, problem: &Problem) {
        self.outputs.meters.problem();
        let text = problem.to_string();
        if self.said.len() >= KNOWN_PROBLEMS {
            self.said.clear();
        }
        if !self.said.contains(&text) {
            tracing::warn!("{text}");
            self.said.insert(text);
        }
    }

    fn see_whether_it_waits(&mut self) {
        let line = self.standstill.look(&self.world.awaited(), Instant::now());
        match line {
            Some(Line::Waits(text)) => tracing::warn!("{text}"),
            Some(Line::GoesOn(text)) => tracing::info!("{text}"),
            None => {}
        }
    }

    /// When to decide next; `None`: only after a change.
    fn due(&self) -> Option<Instant> {
        if !self.world.awaited().is_empty() {
            return None;
        }
        let settled = self
            .change
            .map(|(first, last)| (last + self.pace.quiet).min(first + self.pace.patience));
        let settled = settled.map(|settled| settled.max(self.observed));
        match (settled, self.wake_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    fn decide(&mut self) {
        let begin = Instant::now();
        let now = self.clock.now();
        for event in self.world.elapse(now) {
            self.apply(event);
        }
        for event in self.world.read_shares_again() {
            self.apply(event);
        }
        for report in self.world.reports() {
            self.send(Work::Report(Box::new(report)));
        }
        for stray in self.world.stray_claims() {
            self.send(Work::Free(stray));
        }
        self.change = None;
        let decision = self.core.decide(now);
        self.warn_idle();
        let taking_in = std::mem::take(&mut self.taking_in);
        let took = begin.elapsed();
        self.outputs.meters.decided(&decision, taking_in, took);
        if !decision.actions.is_empty() {
            tracing::info!(
                actions = decision.actions.len(),
                steps = decision.steps,
                micros = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX),
                "decided"
            );
        }
        let wake_at = decision.wake_at.into_iter().chain(self.world.wake_at());
        self.wake_at = wake_at.min().map(|time| {
            // Not before the next millisecond: a time that has come is no reason to spin.
            begin + Duration::from_millis(time.0.saturating_sub(now.0).max(1))
        });
        if decision.cut_short || self.world.is_due() {
            self.changed();
        }
        self.count(&decision, now);
        self.count_errors(&decision, now);
        let handing_on = Instant::now();
        let look_pace = self.look_pace(&decision);
        self.hand_on(decision);
        let all = taking_in + begin.elapsed();
        self.outputs.meters.handed_on(handing_on.elapsed(), all);
        if self.scale_up.is_some() || self.layouts.is_some() && self.world.may_change_layouts() {
            let next = self.looked + look_pace;
            let next = self.look_at.map_or(next, |at| at.min(next));
            self.look_at = Some(next.max(Instant::now()));
        }
        if self.swept.elapsed() >= SWEEP {
            self.sweep();
        }
    }

    /// Recomputes the sums that decisions use. A difference is a defect of the core, and is
    /// reported once; a restart begins with new sums.
    fn sweep(&mut self) {
        self.swept = Instant::now();
        for wrong in self.core.violations() {
            self.outputs.meters.contradiction();
            if self.said.insert(wrong.clone()) {
                tracing::error!(wrong, "the scheduler's sums contradict each other");
            }
        }
    }

    /// Decides without acting, and tells only the observer.
    fn observe(&mut self) {
        let begin = Instant::now();
        let now = self.clock.now();
        for event in self.world.elapse(now) {
            self.apply(event);
        }
        self.put(Event::Tick(now));
        self.change = None;
        if self.world.is_due() {
            self.changed();
        }
        let Some(observer) = &mut self.observer else {
            return;
        };
        observer.decide(&self.core, now);
        self.observed = Instant::now() + observer.pause();
        self.wake_at = Some(begin + OBSERVED_AGAIN);
    }

    fn send(&self, work: Work) {
        // Its receiver ends only when everything ends.
        let _ = self.outputs.work.send(work);
    }

    fn report(&mut self, leading: bool) {
        self.report_at = None;
        self.reported = Instant::now();
        if self.world.missing().is_empty() {
            let (pool, core) = (self.outputs.pool.as_str(), &self.core);
            self.outputs
                .meters
                .groups(pool, |name| core.has_group(name));
            self.outputs.views.send_replace(Views {
                queues: self.core.queues(),
                capacity: self.core.capacity(),
                shown: self.world.queue_conditions().clone(),
                leading,
            });
            self.plan_forecast(leading);
            if leading {
                self.report_groups();
            }
        }
    }

    /// When to report groups though nothing has happened. Before all is read they seem to have
    /// less than they do.
    fn groups_due(&self) -> Option<Instant> {
        let due = self.group_feed.due();
        due.filter(|_| self.world.missing().is_empty())
    }

    fn report_groups(&mut self) {
        let (pool, reports) = (self.outputs.pool.as_str(), &self.outputs.groups);
        self.group_feed
            .feed(&mut self.core, pool, reports, Instant::now());
    }

    fn publish(&self, leading: bool) {
        let status = Status {
            missing: self.world.missing(),
            leading,
            agents: self.world.agents(),
        };
        self.outputs.status.send_if_modified(|old| {
            let changed = *old != status;
            *old = status;
            changed
        });
    }
}

#[cfg(test)]
mod tests;
