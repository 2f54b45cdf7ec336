//! Carries decisions out.
//!
//! - `context`: what every write needs.
//! - `bind`: one `Binding` with its signed grant; `volume`, `claim`: the claims on volumes and
//!   devices that come before it; `evict`, over `eviction`: one pod deleted, or told;
//!   `eviction_batch`: which of them go together, and whether the disruption budgets let them.
//! - `condition`: why a pod waits, and what fences a share; `report_schedule`: when that is written.
//! - `report`: conditions of an admin's objects.
//! - `group`: annotations of pod groups; `event`: Kubernetes events, best effort.
//!
//! In: [`Work`]. Out: exactly one [`Outcome`] for each action, when the API server has given
//! its word: an action whose answer is lost has no outcome until one is had. Decides nothing.

pub(crate) mod answer;
mod awaited_claims;
mod bind;
mod claim;
mod condition;
mod context;
pub(crate) mod event;
mod evict;
mod eviction;
mod eviction_batch;
mod group;
mod permit;
mod report;
mod report_schedule;
mod stamps;
mod volume;

use crate::clock::Wall;
use crate::convert::{ClaimTerms, OwedCondition, Shown, Stray};
use crate::group::Stamps;
use crate::shard::Report;
use crate::status::Meters;
use crate::trust::Trust;
use answer::Answer;
pub use awaited_claims::AwaitedClaims;
use context::WriteContext;
use eviction_batch::EvictionBatch;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use permit::Permit;
use report_schedule::{ReportSchedule, Told};
use scheduler_core::ids::{DecisionId, GroupName, PodUid};
use scheduler_core::{Bind, Evict, Outcome, OutcomeResult, PodReason};
pub use stamps::GroupStamp;
use stamps::StampSchedule;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, info_span};

/// Writes without an outcome that are under way at once: each is a connection of its own,
/// and thousands fall due together where thousands of pods wait.
const CHORES: usize = 16;
/// Before an action whose task broke is begun again.
const BROKEN_PAUSE: Duration = Duration::from_secs(5);
/// After a stop, writes under way have so long.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Work {
    /// A binding, with what is written of its claims' devices beside what the core says. It
    /// wants an outcome.
    Bind(Box<Bind>, Vec<ClaimTerms>),
    /// Devices of a claim whose pods are not bound.
    Free(Stray),
    /// Evictions that make room for one workload: all of them, or none. Each wants an
    /// outcome.
    Evictions(Vec<Evict>),
    /// Why a pod waits; a line per card follows the reason where there is one.
    Reason(PodReason, Vec<String>, Option<Shown>),
    /// The reason that the watch shows on a waiting pod has changed. `None`: the pod has none.
    Shown(PodUid, Option<Shown>),
    /// A stamp for the annotations of a group.
    Stamp(GroupName, GroupStamp),
    /// A condition that follows from an agent's report on a pod.
    Condition(OwedCondition),
    /// What an admin's object is told.
    Report(Box<Report>),
}

/// Settings of this part.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In events.
    pub scheduler_name: String,
    /// Of this process, in events.
    pub identity: String,
    /// Writes under way at once.
    pub at_once: usize,
    /// For volumes to be bound.
    pub volume_timeout: Duration,
    /// The claims whose changes the cycle tells.
    pub awaited: AwaitedClaims,
    /// Evictions ask for leave of disruption budgets.
    pub respect_budgets: bool,
    /// Node pools by the epoch in decisions' names.
    pub pools: BTreeMap<u64, String>,
    /// The groups, which are annotated here, and whose members their pods become by a binding.
    pub grouping: crate::group::Shared,
    /// Placeholders say to autoscalers what waits, and the pods that wait must not.
    pub asks_for_nodes: bool,
    /// Told whether most of these writes are under way: what can wait does.
    pub busy: watch::Sender<bool>,
    /// For stamps.
    pub wall: Wall,
}

/// Carries out what comes until `stop`, or until all senders are gone.
pub async fn run(
    settings: Settings,
    client: Client,
    trust: Trust,
    meters: Arc<Meters>,
    work: channel::Receiver<Work>,
    outcomes: channel::Sender<Outcome>,
    stop: CancellationToken,
) {
    let (events, publishing) = event::channel(
        client.clone(),
        settings.scheduler_name.clone(),
        settings.identity.clone(),
        Arc::clone(&meters),
    );
    let labels_apart = labels_apart(&client).await;
    let context = WriteContext {
        client,
        trust,
        events,
        labels_apart,
        meters,
        wall: settings.wall.clone(),
        volume_timeout: settings.volume_timeout,
        awaited: settings.awaited,
        budgets: settings.respect_budgets,
        pools: Arc::new(settings.pools),
        grouping: settings.grouping,
        asks_for_nodes: settings.asks_for_nodes,
        claims: claim::Locks::default(),
        permits: Arc::new(Semaphore::new(settings.at_once.max(1))),
    };
    let actor = Actor {
        context,
        at_once: settings.at_once.max(1),
        busy: settings.busy,
        outcomes,
        actions: JoinSet::new(),
        under_way: HashMap::new(),
        background: JoinSet::new(),
        waiting: VecDeque::new(),
        schedule: ReportSchedule::new(settings.wall),
        stamps: StampSchedule::default(),
    };
    tokio::select! {
        biased;
        () = actor.run(work, stop) => {}
        () = publishing => {}
    }
}

/// Servers before 1.35 drop a Binding's labels
/// (KEP-4742's change to `assignPod`; its annotations have been copied since 1.0).
async fn labels_apart(client: &Client) -> bool {
    let version = match answer::of(client.apiserver_version()).await {
        Answer::Done(version) => version,
        Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
            tracing::warn!(
                why,
                "the API server's version is not known; labels are written apart"
            );
            return true;
        }
    };
    let number = |text: &str| -> Option<u32> {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        text.get(..end)?.parse().ok()
    };
    match (number(&version.major), number(&version.minor)) {
        (Some(1), Some(minor)) => minor < 35,
        (Some(major), _) => major < 1,
        _ => true,
    }
}

/// Of the pod's trace; all that is logged on the way has it.
fn span_of(task: &Task) -> Span {
    let (span, pod) = match task {
        Task::Bind(bind, _) => {
            let pod = format!("{}/{}", bind.namespace, bind.name);
            let (uid, node) = (bind.pod.as_str(), bind.node.as_str());
            (
                info_span!(target: trace::TARGET, "bind", decision = %bind.decision, pod, uid, node),
                &bind.pod,
            )
        }
        Task::Evict(evict, _) => {
            let pod = format!("{}/{}", evict.namespace, evict.name);
            let (uid, cause) = (evict.pod.as_str(), evict.cause.as_str());
            (
                info_span!(target: trace::TARGET, "evict", decision = %evict.decision, pod, uid, cause),
                &evict.pod,
            )
        }
    };
    trace::of_pod(&span, pod.as_str());
    span
}

struct Actor {
    context: WriteContext,
    at_once: usize,
    busy: watch::Sender<bool>,
    outcomes: channel::Sender<Outcome>,
    actions: JoinSet<OutcomeResult>,
    /// What is under way, so that a task that broke is begun again.
    under_way: HashMap<Id, (Arc<Task>, Instant)>,
    /// Writes that have no outcome for the core.
    background: JoinSet<Written>,
    /// Such writes, but for reasons, that wait for a permit.
    waiting: VecDeque<BackgroundWrite>,
    schedule: ReportSchedule,
    stamps: StampSchedule,
}

/// A finished write that has no outcome for the core, and whether the API server took it.
enum Written {
    Reason(PodUid, bool),
    Stamps(GroupName, Stamps, bool),
    /// The write is repeated by its own task, or not at all.
    Other,
}

/// An action that wants an outcome.
enum Task {
    Bind(Box<Bind>, Vec<ClaimTerms>),
    /// With what is asked of disruption budgets before.
    Evict(Box<Evict>, Arc<EvictionBatch>),
}

impl Task {
    fn decision(&self) -> DecisionId {
        match self {
            Self::Bind(bind, _) => bind.decision,
            Self::Evict(evict, _) => evict.decision,
        }
    }
}

/// Binds a pod once its claims have their devices; takes them back where that is refused.
async fn with_claims(context: &WriteContext, bind: &Bind, terms: &[ClaimTerms]) -> OutcomeResult {
    let _held = context.claims.hold(bind).await;
    let ready = match claim::reserve(context, bind, terms).await {
        Ok(()) => claim::ready(context, bind, terms).await,
        Err(refused) => Err(refused),
    };
    let result = match ready {
        Ok(()) => {
            let mut permit = Permit::acquire(&context.permits).await;
            bind::bind(context, bind, &mut permit).await
        }
        Err(refused) => refused,
    };
    if result != OutcomeResult::Confirmed {
        claim::undo(context, bind).await;
    }
    result
}

/// A write without an outcome that is no reason.
type BackgroundWrite = BoxFuture<'static, ()>;

impl Actor {
    async fn run(mut self, mut work: channel::Receiver<Work>, stop: CancellationToken) {
        loop {
            let taken = self.at_once - self.context.permits.available_permits();
            let busy = taken > self.at_once / 2;
            self.busy
                .send_if_modified(|old| std::mem::replace(old, busy) != busy);
            self.begin_background();
            let begun = self.under_way.len() + self.waiting.len();
            self.context.meters.actions_begun(begun);
            // A write that frees its permit wakes this loop too.
            let next = self.schedule.next().into_iter().chain(self.stamps.next());
            let next = next.min().filter(|_| self.background_permits() > 0);
            let wake = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(done) = self.actions.join_next_with_id() => self.settle(done),
                Some(done) = self.background.join_next() => self.put_down(done),
                item = work.recv() => match item {
                    Some(item) => self.take(item),
                    None => break,
                },
                () = wake => {}
            }
        }
        let rest = async {
            while let Some(done) = self.actions.join_next_with_id().await {
                self.settle(done);
            }
        };
        if tokio::time::timeout(LAST_WORDS, rest).await.is_err() {
            tracing::warn!("some bindings did not end in time");
        }
    }

    fn take(&mut self, work: Work) {
        match work {
            Work::Bind(bind, terms) => {
                self.act(Arc::new(Task::Bind(bind, terms)), Duration::ZERO);
            }
            Work::Free(stray) => {
                let context = self.context.clone();
                let write = async move { claim::free(&context, &stray).await };
                self.waiting.push_back(write.boxed());
            }
            Work::Evictions(evictions) => {
                let batch = Arc::new(EvictionBatch::new(evictions.clone()));
                for evict in evictions {
                    let task = Task::Evict(Box::new(evict), Arc::clone(&batch));
                    self.act(Arc::new(task), Duration::ZERO);
                }
            }
            Work::Shown(pod, shown) => {
                let context = &self.context;
                let says = |reason: &PodReason, cards: &[String]| {
                    shown.is_some_and(|shown| condition::is_shown(context, reason, cards, &shown))
                };
                self.schedule.shown(&pod, says, Instant::now());
            }
            Work::Reason(reason, cards, shown) => {
                let told = shown.map(|shown| Told {
                    since: shown.since,
                    same: condition::is_shown(&self.context, &reason, &cards, &shown),
                });
                self.schedule.say(reason, cards, told, Instant::now());
            }
            Work::Stamp(group, stamp) => {
                if let GroupStamp::Stale(Some(since)) = stamp {
                    group::stale(&self.context, &group, since);
                }
                // A lone pod that is its own group has no group object.
                if group.as_str().contains('/') {
                    self.stamps.owe(group, &stamp, Instant::now());
                }
            }
            Work::Condition(owed) => {
                let context = self.context.clone();
                let write = async move { condition::owed(&context, &owed).await };
                self.waiting.push_back(write.boxed());
            }
            Work::Report(report) => {
                let context = self.context.clone();
                let write = async move { report::write(&context, *report).await };
                self.waiting.push_back(write.boxed());
            }
        }
    }

    fn background_permits(&self) -> usize {
        // Who is placed comes before who is told why not.
        if *self.busy.borrow() {
            return 0;
        }
        CHORES.saturating_sub(self.background.len())
    }

    /// Reasons first: people wait for them.
    fn begin_background(&mut self) {
        for reason in self.schedule.due(Instant::now(), self.background_permits()) {
            self.report(reason);
        }
        for (group, stamps) in self.stamps.due(Instant::now(), self.background_permits()) {
            let groups = Arc::clone(&self.context.grouping.groups);
            self.background.spawn(async move {
                let taken = groups.stamp(&group, &stamps).await;
                Written::Stamps(group, stamps, taken)
            });
        }
        while self.background_permits() > 0
            && let Some(write) = self.waiting.pop_front()
        {
            self.background.spawn(async move {
                write.await;
                Written::Other
            });
        }
    }

    fn act(&mut self, task: Arc<Task>, pause: Duration) {
        let again = Arc::clone(&task);
        let context = self.context.clone();
        // A reason under way would come after the binding and say that the pod waits.
        let before = match &*task {
            Task::Bind(bind, _) => self.schedule.bound(&bind.pod),
            Task::Evict(..) => None,
        };
        let span = span_of(&task);
        let carry_out = async move {
            tokio::time::sleep(pause).await;
            if let Some(reported) = before {
                let _ = reported.await;
            }
            if let Task::Bind(bind, _) = &*task
                && !bind.claims.is_empty()
                && let Err(refused) = volume::bound(&context, bind).await
            {
                return refused;
            }
            if let Task::Bind(bind, terms) = &*task
                && !bind.devices.is_empty()
            {
                return with_claims(&context, bind, terms).await;
            }
            if let Task::Evict(evict, batch) = &*task
                && context.keeps_budgets(evict.cause)
                && let Err(refused) = batch.given(&context).await
            {
                return refused;
            }
            let mut permit = Permit::acquire(&context.permits).await;
            match &*task {
                Task::Bind(bind, _) => bind::bind(&context, bind, &mut permit).await,
                Task::Evict(evict, batch) => {
                    evict::evict(&context, evict, batch, &mut permit).await
                }
            }
        };
        let handle = self.actions.spawn(carry_out.instrument(span));
        self.under_way.insert(handle.id(), (again, Instant::now()));
    }

    /// Every action ends here. One whose task panicked is begun again: it is unknown how far it
    /// came, and the same writes twice do no harm.
    fn settle(&mut self, done: Result<(Id, OutcomeResult), tokio::task::JoinError>) {
        let (id, result) = match done {
            Ok(done) => done,
            Err(error) => {
                tracing::error!(%error, "an action's task broke; it is begun again");
                if let Some((task, _)) = self.under_way.remove(&error.id()) {
                    self.act(task, BROKEN_PAUSE);
                }
                return;
            }
        };
        let Some((task, begun)) = self.under_way.remove(&id) else {
            return;
        };
        let decision = task.decision();
        self.context.meters.outcome(&result);
        let refused = match &result {
            OutcomeResult::Refused { reason, .. } => {
                tracing::warn!(%decision, %reason, "refused");
                Some(Arc::clone(reason))
            }
            OutcomeResult::Confirmed | OutcomeResult::Stays => None,
        };
        if let Task::Bind(bind, _) = &*task {
            if refused.is_none() {
                self.context.meters.bound(begun.elapsed());
            }
            bind::tell(&self.context, bind, refused.as_deref());
        }
        // The cycle is gone only when everything ends.
        let _ = self.outcomes.send(Outcome { decision, result });
    }

    fn report(&mut self, due: report_schedule::DueReport) {
        let context = self.context.clone();
        let (done, reported) = oneshot::channel();
        self.schedule.writing(&due.reason.pod, reported);
        self.background.spawn(async move {
            let taken = condition::waiting(&context, &due).await;
            // There may be no receiver.
            let _ = done.send(());
            Written::Reason(due.reason.pod, taken)
        });
    }

    fn put_down(&mut self, done: Result<Written, tokio::task::JoinError>) {
        let now = Instant::now();
        match done {
            Ok(Written::Reason(pod, taken)) => self.schedule.written(&pod, taken, now),
            Ok(Written::Stamps(group, sent, taken)) => {
                self.stamps.written(group, &sent, taken, now);
            }
            Ok(Written::Other) => {}
            Err(error) => tracing::error!(%error, "a write's task broke"),
        }
    }
}

#[cfg(test)]
mod tests;
