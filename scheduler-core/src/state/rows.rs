//! What is known of each object: facts from events, never moved by a decision.
//!
//! A row may stand before its object was announced (a pod names a queue that is not
//! there yet): then its fact is `None`, and it goes away with the last that names it.

use crate::config::Workers;
use crate::event::EvictRequest;
use crate::ids::{DecisionId, GpuUuid, GroupName, NodeName, QueueName, SetName};
use crate::model::{Card, Mode, Node, Pod, Preemptibility, Queue, TaskOrder, TopologyManager};
use crate::state::counted::CountKey;
use crate::state::keys::{CardKey, JobKey, NodeKey, QueueKey, SpecKey};
pub(super) use crate::state::mig::MigStrategy;
use crate::state::pod_labels::PodLabels;
use crate::state::products::Product;
use crate::state::uid::Uid;
use crate::units::Time;
use std::ops::Deref;
use std::sync::Arc;

/// A node and its cards.
#[derive(Clone, Debug)]
pub(crate) struct NodeRow {
    pub name: NodeName,
    /// `None` until announced, and after it is gone while pods stand on it.
    pub node: Option<Node>,
    /// The agent's word; `None` while it is not heard.
    pub agent: Option<AgentStatus>,
    /// The agent's last word on what the kubelet aligns, which stands while it is not heard.
    pub topology_manager: Option<Arc<TopologyManager>>,
    /// What its labels say of MIG.
    pub mig: MigStrategy,
    /// Of the labels of [`crate::config::Workers`], those that it lacks.
    pub lacks: MissingLabels,
    /// Of its GPUs, by its label or its cards. `None`: it is not known, or there are none.
    pub product: Option<Product>,
    /// All cards that are known of it, by index, then UUID.
    pub cards: Vec<CardKey>,
    /// Changes with every fact or sum that a placement here may depend on.
    pub generation: u64,
    /// Changes with every fact.
    pub facts: u64,
    /// Changes with every sum of a card, and of resources other than CPU, memory and pods.
    pub parts: u64,
    /// It is on the list of [`super::verdicts::VerdictCache`].
    pub is_dirty: bool,
}

impl NodeRow {
    /// It has no GPUs, and offers no MIG.
    pub(crate) fn is_plain(&self) -> bool {
        let gpus = match &self.node {
            Some(node) if node.managed => self.cards.len(),
            Some(node) => node.gpus as usize,
            None => 0,
        };
        gpus == 0 && self.mig == MigStrategy::Off
    }
}

/// Which pods a node is closed to, each by the label that would open it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingLabels {
    /// To those with GPUs.
    pub gpu: Option<Arc<str>>,
    /// To those without.
    pub cpu: Option<Arc<str>>,
}

impl MissingLabels {
    pub(crate) fn of(node: &Node, workers: Option<&Workers>) -> Self {
        let lacks =
            |label: &Arc<str>| (!node.labels.contains_key(label)).then(|| Arc::clone(label));
        Self {
            gpu: workers.and_then(|workers| lacks(&workers.gpu)),
            cpu: workers.and_then(|workers| lacks(&workers.cpu)),
        }
    }
}

/// What an agent says of its node as a whole.
#[derive(Clone, Debug)]
pub(crate) struct AgentStatus {
    pub default_mode: Mode,
    pub not_offering: Option<Arc<str>>,
}

/// A card.
#[derive(Clone, Debug)]
pub(crate) struct CardRow {
    pub uuid: GpuUuid,
    pub node: NodeKey,
    /// Another node has a row of the same card. See [`crate::fit::card::elsewhere`].
    pub is_named_twice: bool,
    /// `None`: a pod holds it, no agent has spoken of it.
    pub card: Option<Card>,
    /// After a refused grant: not before then, how often in a row, and why.
    pub pause: Option<Pause>,
}

impl CardRow {
    /// A card's name for people, before a colon.
    pub(crate) fn shown_name(&self) -> String {
        match &self.card {
            Some(card) if !card.product.is_empty() => format!("{} ({})", self.uuid, card.product),
            _ => self.uuid.to_string(),
        }
    }
}

/// Something that is not tried for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub refusals: u32,
    /// `None`: not before something changes.
    pub until: Option<Time>,
    pub reason: Arc<str>,
    /// The workload that an eviction, which was refused, would have made room for.
    pub in_favour_of: Option<GroupName>,
}

/// A pod: what is its own. What many pods have alike is its [`Spec`](super::spec::Spec).
#[derive(Clone, Debug)]
pub(crate) struct TaskRow {
    pub uid: Uid,
    pub name: Arc<str>,
    pub facts: Arc<PodFacts>,
    pub spec: SpecKey,
    pub labels: PodLabels,
    /// Where it is counted as one that a selector matches. `None`: nowhere.
    pub counted_in: Option<Arc<Vec<CountKey>>>,
    /// `None` for pods of other schedulers, and while the row is being made.
    pub job: Option<JobKey>,
    pub created: Time,
    pub gated: bool,
    /// What the API server showed last.
    pub seen: Seen,
    pub rare: Rare,
}

impl TaskRow {
    /// What orders the pods of a job.
    pub(crate) fn in_job(&self) -> (TaskOrder, Time, &Uid) {
        (self.facts.in_order, self.created, &self.uid)
    }
}

/// What the pods of one owner have alike. The fields are those of [`crate::model::Pod`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodFacts {
    pub namespace: Arc<str>,
    /// False for pods of other schedulers.
    pub ours: bool,
    pub set: Option<SetName>,
    pub queue: QueueName,
    /// Of a pod of ours: its job's name.
    pub foreign_group: Option<GroupName>,
    pub priority: i32,
    pub preemptibility: Preemptibility,
    pub safe_to_evict: bool,
    pub never_preempts: bool,
    pub immovable: bool,
    pub task_order: TaskOrder,
    /// The same without what plugins that are switched off say.
    pub in_order: TaskOrder,
}

impl PodFacts {
    pub(crate) fn of(pod: &Pod, in_order: TaskOrder) -> Self {
        Self {
            namespace: Arc::clone(&pod.namespace),
            ours: pod.ours,
            set: pod.sub_group.clone(),
            queue: pod.queue.clone(),
            foreign_group: pod.group.clone().filter(|_| !pod.ours),
            priority: pod.priority,
            preemptibility: pod.preemptibility,
            safe_to_evict: pod.safe_to_evict,
            never_preempts: pod.never_preempts,
            immovable: pod.immovable,
            task_order: pod.task_order,
            in_order,
        }
    }

    pub(crate) fn are(&self, pod: &Pod) -> bool {
        self.namespace == pod.namespace
            && self.ours == pod.ours
            && self.set == pod.sub_group
            && self.queue == pod.queue
            && (pod.ours || self.foreign_group == pod.group)
            && self.priority == pod.priority
            && self.preemptibility == pod.preemptibility
            && self.safe_to_evict == pod.safe_to_evict
            && self.never_preempts == pod.never_preempts
            && self.immovable == pod.immovable
            && self.task_order == pod.task_order
    }
}

/// [`RareFacts`] of a pod that has some. Most have none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rare(Option<Box<RareFacts>>);

/// What grants, refusals, evictions and agents' wishes left of a pod.
#[derive(Clone, Debug)]
pub(crate) struct RareFacts {
    /// The decision in its grant, as seen.
    pub granted_by: Option<DecisionId>,
    /// After a refusal.
    pub pause: Option<Box<Pause>>,
    /// Nodes that refused it, least recent first.
    pub avoid: Vec<NodeName>,
    /// Its eviction is under way, whatever the API server shows.
    pub evicting: Option<DecisionId>,
    /// An agent's last word on its grant: it holds no cards any more.
    pub refused: Option<Box<Refused>>,
    /// An agent wants it gone.
    pub evict_request: Option<Box<EvictRequest>>,
}

impl RareFacts {
    const NONE: Self = Self {
        granted_by: None,
        pause: None,
        avoid: Vec::new(),
        evicting: None,
        refused: None,
        evict_request: None,
    };
}

impl Deref for Rare {
    type Target = RareFacts;

    fn deref(&self) -> &RareFacts {
        static NONE: RareFacts = RareFacts::NONE;
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl Rare {
    /// To note one.
    pub(crate) fn noted(&mut self) -> &mut RareFacts {
        self.0.get_or_insert_with(|| Box::new(RareFacts::NONE))
    }

    /// To end one. `None`: there is none.
    pub(crate) fn if_any(&mut self) -> Option<&mut RareFacts> {
        self.0.as_deref_mut()
    }
}

/// A grant that its agent does not honour.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub refusal: crate::event::Refusal,
    /// What the grant says, for the snapshot.
    pub grants: Vec<crate::model::ContainerGrant>,
    /// What the API server shows, which is not "on its way out" yet.
    pub node: NodeKey,
    /// The pod is not deleted: its outcome was [`crate::OutcomeResult::Stays`].
    pub stays: bool,
}

/// What the API server showed of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Pending,
    Bound,
    Running,
    Releasing,
    Stuck,
    Succeeded,
    Failed,
}

/// A queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueRow {
    pub name: QueueName,
    /// `None` until announced, and after it is gone while jobs name it.
    pub queue: Option<Queue>,
    /// Jobs that name it.
    pub users: u32,
    /// Itself and its ancestors, upwards, as far as they are there; empty when it is not,
    /// or goes round.
    pub chain: Vec<QueueKey>,
    /// Queues that name it as their parent, in order of name.
    pub children: Vec<QueueKey>,
    /// Its place among all queues in order of name, where it has a chain.
    pub place: usize,
}

/// How a job stood when pods were last evicted for it ([`crate::event::Evicted`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub active: u32,
    pub times: u32,
    pub until: Time,
}

/// A job's search for victims that was cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    /// It is not tried again before.
    pub until: Time,
    /// Its steps then.
    pub allowance: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::job_row::JobRow;
    use crate::state::task_cell::TaskCell;

    /// Of these there are as many as pods: 100,000 and more.
    #[test]
    fn what_every_pod_has_stays_small() {
        let sizes = (
            size_of::<TaskRow>(),
            size_of::<TaskCell>(),
            size_of::<JobRow>(),
        );
        assert!(
            sizes.0 <= 104 && sizes.1 <= 48 && sizes.2 <= 152,
            "{sizes:?}"
        );
    }
}
