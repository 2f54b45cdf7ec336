//! The entry points.

use crate::action::{Decision, ReasonKind};
use crate::capacity::{self, Request};
use crate::config::{Config, Plugin};
use crate::cycle::decide::{CycleCache, decide};
use crate::event::Event;
use crate::explain::{self, Explanation};
use crate::groups::{self, GroupChange, GroupView};
use crate::ids::{GroupName, NodeName, PodUid, QueueName};
use crate::model::Pod;
use crate::problem::Problem;
use crate::queues::{self, QueueView};
use crate::scale_up::{self, Groups, Scope, Shortage};
use crate::state::State;
use crate::state::idle::IdlePod;
use crate::units::{Mib, Time};
use crate::{apply, shares, snapshot};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One scheduler: the whole state of one shard, and every decision about it.
#[derive(Debug)]
pub struct Core {
    config: Config,
    state: State,
    memory: CycleCache,
}

impl Core {
    /// An empty cluster.
    pub fn new(config: Config) -> Self {
        let mut state = State::default();
        state.cells.pod_counts.most_members = config.most_counted;
        state.by_priority = config.has(Plugin::Priority);
        Self {
            config,
            state,
            memory: CycleCache::default(),
        }
    }

    /// Applies one event. Unusable parts are reported, the rest is applied.
    pub fn apply(&mut self, event: Event) -> Vec<Problem> {
        if let Event::Config(config) = event {
            self.configure(*config);
            return Vec::new();
        }
        apply::event(&mut self.state, &self.config, event)
    }

    /// The same cluster once more, for trials: neither knows what becomes of the other. It takes
    /// the same actions, and begins without the results that this one has kept of earlier decisions:
    /// it may say again why a pod waits.
    /// Copies the state, about 0.3 us per pod.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            config: self.config.clone(),
            state: self.state.clone(),
            memory: CycleCache::default(),
        }
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A rebuilt core decides as the one that lived, so that this is one that had the new
    /// settings from the start. Costs as much as a restart's events, without the listing.
    fn configure(&mut self, config: Config) {
        let config = config.of_process(&self.config);
        if config == self.config {
            return;
        }
        let before = std::mem::replace(self, Self::new(config));
        snapshot::events(&before.state, |event| {
            // The settings changed: other jobs may be entitled now.
            if !matches!(event, Event::Evicted(_)) {
                // Unusable parts were reported when they arrived.
                self.apply(event);
            }
        });
        let contradictions = before.state.outputs.contradictions;
        self.state.outputs.contradictions.extend(contradictions);
    }

    /// Decides on everything that may have changed since the last time; cheap when
    /// nothing did. What the actions take counts as taken from now on. A `now` before
    /// an earlier one counts as that one.
    pub fn decide(&mut self, now: Time) -> Decision {
        self.state.now = self.state.now.max(now);
        self.state.cells.deciding = true;
        let decision = decide(&mut self.state, &self.config, &mut self.memory);
        self.state.cells.deciding = false;
        // Not after each event, too: what an event breaks is found here, and to look at the whole
        // state for each of a burst of events takes longer than the burst.
        if self.config.verify {
            let mut wrong = crate::invariant::check_decided(&self.state, &decision);
            wrong.extend(self.violations());
            debug_assert_eq!(wrong, Vec::<String>::new());
            for wrong in wrong {
                self.state.contradicts(&wrong);
            }
        }
        decision
    }

    /// Actions that were handed on and are not closed: no outcome came yet, or the pod was not
    /// seen bound yet.
    pub fn open_decisions(&self) -> usize {
        self.state.open.len()
    }

    /// When a pod was made. `None`: no such pod.
    pub fn created(&self, pod: &PodUid) -> Option<Time> {
        let task = self.state.task_of(pod)?;
        Some(self.state.tasks.get(task)?.created)
    }

    /// Namespace and name of a pod. `None`: no such pod.
    pub fn name_of(&self, pod: &PodUid) -> Option<(Arc<str>, Arc<str>)> {
        let task = self.state.task_of(pod)?;
        let row = self.state.tasks.get(task)?;
        Some((Arc::clone(&row.facts.namespace), Arc::clone(&row.name)))
    }

    /// Why a pod waits, node by node and card by card. `None`: no such pod.
    pub fn explain(&self, pod: &PodUid) -> Option<Explanation> {
        explain::explain(&self.state, &self.config, pod)
    }

    /// Returns the kind of the reason why a pod waits, as the last decision gave it. `None`: no decision
    /// gave one.
    pub fn told_kind(&self, pod: &PodUid) -> Option<ReasonKind> {
        let task = self.state.task_of(pod)?;
        Some(self.state.outputs.said.get(&task)?.kind)
    }

    /// Whether a placed pod may have that much in all. `Err`: why not, in KAI's words for a limit
    /// or a quota of its queue or of one above it. `None`: no such pod. `granted`: amounts that
    /// were granted to pods before; they count as far as the pods do not show them yet.
    pub fn may_have(
        &mut self,
        pod: &PodUid,
        request: Request,
        granted: &[(PodUid, Request)],
    ) -> Option<Result<(), Arc<str>>> {
        self.state.refresh_queues();
        capacity::may_have(&self.state, pod, request, granted)
    }

    /// The lines of [`Core::explain`] about cards, each with its node, and about pods that may
    /// not make room. Without lines about cards where there are more than `most`. Empty for a
    /// pod that does not wait.
    pub fn explain_cards(&self, pod: &PodUid, most: usize) -> Vec<String> {
        explain::cards(&self.state, &self.config, pod, most)
    }

    /// Pods for which the last decision found no room and whose queues are within quota with
    /// them, for [`scale_up::plan`]: whole jobs in the order in which pods wait, at most `most`
    /// pods. GPU memory counts towards quotas over the smallest card, and over one of `card` MiB
    /// in a cluster without.
    pub fn shortage(&mut self, groups: &Groups, most: usize, card: Mib) -> Shortage {
        self.state.refresh_queues();
        scale_up::shortage(&mut self.state, Scope::NewNodes(groups), most, card)
    }

    /// The same of pods that ask for slices of cards in MIG mode, beside these nodes too and
    /// whatever the quotas, for [`mig_layout::plan`](crate::mig_layout::plan).
    pub fn slice_shortage(
        &mut self,
        nodes: &BTreeSet<NodeName>,
        most: usize,
        card: Mib,
    ) -> Shortage {
        self.state.refresh_queues();
        scale_up::shortage(&mut self.state, Scope::Slices(nodes), most, card)
    }

    /// What each queue has, wants and may have now. Changes nothing but what the next
    /// decision would compute first.
    pub fn queues(&mut self) -> Vec<QueueView> {
        self.state.refresh_queues();
        queues::views(&self.state, &self.config)
    }

    /// True if that queue is there.
    pub fn has_queue(&self, name: &QueueName) -> bool {
        let key = self.state.names.queues.get(name);
        key.and_then(|key| self.state.queues.get(*key))
            .is_some_and(|row| row.queue.is_some())
    }

    /// What all nodes have together, ready or not: GPU (nano), CPU (milli), memory (bytes).
    pub fn capacity(&self) -> [u128; 3] {
        shares::capacity(&self.state)
    }

    /// What each pod group has, wants and waits for.
    pub fn groups(&self) -> Vec<GroupView> {
        groups::views(&self.state)
    }

    /// The pod groups whose views are other ones than those that were taken last: all that
    /// [`Core::groups`] returns in the beginning. At most `most` groups are looked at, and nothing
    /// is done for others: those that are gone first, then those that changed first.
    pub fn take_changed_groups(&mut self, most: usize) -> Vec<GroupChange> {
        groups::take_changed(&mut self.state, most)
    }

    /// True if that pod group is there.
    pub fn has_group(&self, name: &GroupName) -> bool {
        let job = self.state.job_of(name);
        job.and_then(|job| self.state.jobs.get(job))
            .is_some_and(groups::is_there)
    }

    /// True if some are left for [`Core::take_changed_groups`] to look at.
    pub fn has_changed_groups(&self) -> bool {
        !self.state.outputs.changed_groups.is_empty()
    }

    /// [`Core::take_changed_groups`] returns all groups again. For a replica that begins to lead:
    /// it does not know what others have made of their views.
    pub fn forget_taken_groups(&mut self) {
        groups::forget_taken(&mut self.state);
    }

    /// The events from which an equal core can be built: settings, objects, open decisions,
    /// pauses, time. In a defined order.
    pub fn snapshot(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.snapshot_to(|event| events.push(event));
        events
    }

    /// [`Core::snapshot`], one event after the other. For a large cluster: all its events take
    /// several times the core's memory.
    pub fn snapshot_to(&self, mut each: impl FnMut(Event)) {
        let settings = self.config.clone().of_process(&Config::default());
        each(Event::Config(Box::new(settings)));
        snapshot::events(&self.state, each);
    }

    /// The time of the last decision, or a later one of which an event spoke.
    pub fn now(&self) -> Time {
        self.state.now
    }

    /// The pod as its events describe it. `None`: no such pod.
    pub fn pod(&self, uid: &PodUid) -> Option<Pod> {
        let key = self.state.task_of(uid)?;
        let row = self.state.tasks.get(key)?;
        snapshot::pod(&self.state, row, &self.state.cell(key))
    }

    /// The queue of the pod, or of its group. `None`: no such pod.
    pub fn queue_of(&self, uid: &PodUid) -> Option<QueueName> {
        let row = self.state.tasks.get(self.state.task_of(uid)?)?;
        let job = row.job.and_then(|job| self.state.jobs.get(job));
        let queue = job.and_then(|job| self.state.queues.get(job.queue?));
        Some(queue.map_or_else(|| row.facts.queue.clone(), |row| row.name.clone()))
    }

    /// Returns the placed pods that are idle while their queues have a rule about that, in order of
    /// their UIDs.
    pub fn idle_pods(&self) -> Vec<IdlePod> {
        self.state.idle_pods()
    }

    /// True if a search for victims was cut short, and continues in a later decision.
    pub fn is_searching(&self) -> bool {
        !self.state.pauses.searches.is_empty()
    }

    /// All contradictions in the state, and those that were found before
    pub fn violations(&self) -> Vec<String> {
        crate::invariant::check(&self.state)
    }

    #[cfg(test)]
    pub(crate) fn state_for_tests(&mut self) -> &mut State {
        &mut self.state
    }
}
