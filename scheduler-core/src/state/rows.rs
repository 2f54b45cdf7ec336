//! What is known of each object: facts from events, never moved by a decision.
//!
//! A row may stand before its object was announced (a pod names a queue that is not
//! there yet): then its fact is `None`, and it goes away with the last that names it.

use crate::config::Workers;
use crate::event::EvictRequest;
use crate::ids::{
    ClaimUid, ContainerName, DecisionId, GpuUuid, GroupName, NodeName, QueueName, ResourceName,
    SetName,
};
use crate::model::{
    AlignedContainer, Amount, Ask, Attachment, Card, Claim, ContainerAsk, DeviceClaim, DeviceWants,
    Front, HostPort, Labels, Mode, Node, NodeRules, Pod, PodRules, PodTerm, Preemptibility, Queue,
    TaskOrder, Toleration, TopologyManager,
};
use crate::state::State;
use crate::state::interner::{Interner, PodLabels};
use crate::state::keys::{CardKey, JobKey, NodeKey, QueueKey, SpecKey};
use crate::state::pod_counts::CountKey;
use crate::state::pod_domains::Domains;
use crate::state::products::Product;
use crate::state::uid::Uid;
use crate::state::verdicts::Verdicts;
use crate::units::{Bytes, CpuMilli, Mib, Percent, Time};
use std::collections::BTreeMap;
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

/// How a node offers MIG, by KAI's reading of its labels and resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MigStrategy {
    /// Not at all.
    #[default]
    Off,
    /// It does, and does not say how.
    On,
    /// Its slices look like whole GPUs.
    Single,
    /// By profile.
    Mixed,
}

impl MigStrategy {
    /// Which one, from the node's facts.
    pub(crate) fn of(node: &Node) -> Self {
        let label = |key| node.labels.get(key).map(|value| &**value);
        let on = match label("node-role.kubernetes.io/mig-enabled") {
            // The words that KAI takes for yes.
            Some(value) => ["1", "t", "T", "TRUE", "true", "True"].contains(&value),
            None => node
                .extended
                .iter()
                .any(|(name, count)| name.as_str().starts_with("nvidia.com/mig-") && *count > 0),
        };
        match label("nvidia.com/mig.strategy") {
            _ if !on => Self::Off,
            Some("single") => Self::Single,
            Some("mixed") => Self::Mixed,
            _ => Self::On,
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

/// A pod: what is its own. What many pods have alike is its [`Spec`].
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
    pub(crate) fn of(pod: &Pod, in_order: TaskOrder, interner: &mut Interner) -> Arc<Self> {
        interner.pod(Self {
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
        })
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

/// Everything on which a placement depends and that many pods have alike: the request
/// signature under which answers are cached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spec {
    pub cpu: CpuMilli,
    pub memory: Bytes,
    pub extended: BTreeMap<ResourceName, u64>,
    pub gpus: Vec<ContainerAsk>,
    pub aligned: Vec<AlignedContainer>,
    pub claims: Vec<Claim>,
    pub attachments: Vec<Attachment>,
    pub devices: Vec<ClaimAsk>,
    pub rules: NodeRules,
    pub tolerations: Vec<Toleration>,
    pub ports: Vec<HostPort>,
    /// `None`: its place has nothing to do with other pods'.
    pub others: Option<Arc<PodRelations>>,
    pub unsupported: Vec<Arc<str>>,
    pub lacks: Vec<Arc<str>>,
    /// What cannot be meant about it, one sentence.
    pub bad: Option<Arc<str>>,
}

impl Spec {
    /// It asks for cards by annotation or as whole ones, other than by claims.
    pub(crate) fn is_by_annotation(&self, front: Front) -> bool {
        let by_claim = |ask: &ContainerAsk| {
            front == Front::Claim && self.stands_in() && matches!(ask.ask, Ask::Whole(_))
        };
        !self.gpus.iter().all(by_claim)
    }

    /// A claim may stand in for its whole GPUs.
    pub(crate) fn stands_in(&self) -> bool {
        self.devices.iter().any(|ask| ask.stands_in)
    }
}

/// What a pod asks of devices by one of its claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimAsk {
    /// `None`: made for the pod alone, so that it does not matter which one it is.
    pub claim: Option<ClaimUid>,
    /// For the whole GPUs in the pod's resources.
    pub stands_in: bool,
    pub wants: Arc<DeviceWants>,
}

impl ClaimAsk {
    pub(crate) fn of(claim: &DeviceClaim) -> Self {
        Self {
            claim: (!claim.own).then(|| claim.uid.clone()),
            stands_in: claim.stands_in,
            wants: Arc::clone(&claim.wants),
        }
    }
}

/// What its place has to do with other pods'.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodRelations {
    pub rules: PodRules,
    /// All terms of its affinity speak of the pod itself: the first of its kind may go anywhere.
    pub is_near_itself: bool,
    /// Of each constraint of its spread, whether the pod itself is counted.
    pub counts_itself: Vec<bool>,
    /// What terms of other pods see in it. `None`: there is none that may speak of it.
    pub subject: Option<TermSubject>,
    /// False for another scheduler's pod: only what its terms do to others counts.
    pub ours: bool,
}

/// What anti-affinity and preferences of other pods see in a pod: to two that are alike in this
/// every term does the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TermSubject {
    pub namespace: Arc<str>,
    /// Those of its labels that the terms look at that may speak of it.
    pub labels: Labels,
}

impl PodRelations {
    /// Of a pod of that namespace with those labels.
    pub(crate) fn of(
        state: &State,
        namespace: &str,
        labels: &PodLabels,
        rules: PodRules,
        subject: Option<TermSubject>,
        ours: bool,
    ) -> Option<Arc<Self>> {
        if rules.is_empty() && subject.is_none() {
            return None;
        }
        let speaks_of_it =
            |term: &PodTerm| state.all_take(std::slice::from_ref(&term.pods), namespace, labels);
        Some(Arc::new(Self {
            is_near_itself: rules.affinity.iter().all(speaks_of_it),
            counts_itself: rules
                .spread
                .iter()
                .map(|spread| speaks_of_it(&spread.term))
                .collect(),
            rules,
            subject,
            ours,
        }))
    }

    /// Others that are placed may open a node for it that was closed.
    pub(crate) fn may_gain(&self) -> bool {
        !self.rules.affinity.is_empty() || self.rules.spread.iter().any(|spread| spread.required)
    }

    /// Some nodes are better than others because of what it says of other pods.
    pub(crate) fn prefers(&self) -> bool {
        !self.rules.preferred.is_empty() || self.rules.spread.iter().any(|spread| !spread.required)
    }
}

/// What a signature asks of the counts of other pods, each in the order of its rules.
#[derive(Clone, Debug)]
pub(crate) struct PodAsks {
    pub affinity: Box<[CountKey]>,
    pub anti_affinity: Box<[CountKey]>,
    pub preferred: Box<[CountKey]>,
    pub spread: Box<[CountKey]>,
    /// It is one of those who avoid others, or prefer them: counted there, not asked.
    pub terms: Box<[CountKey]>,
    /// What was found out for a search, as of the last one.
    pub domains: Option<Box<Domains>>,
}

impl PodAsks {
    /// Every count that it names.
    pub(crate) fn all(&self) -> impl Iterator<Item = CountKey> {
        self.asked().chain(self.terms.iter().copied())
    }

    /// Every count that an answer to it depends on.
    pub(crate) fn asked(&self) -> impl Iterator<Item = CountKey> {
        let required = self.affinity.iter().chain(&self.anti_affinity);
        required.chain(&self.preferred).chain(&self.spread).copied()
    }
}

/// A spec and what follows from it.
#[derive(Clone, Debug)]
pub(crate) struct SpecRow {
    pub spec: Arc<Spec>,
    /// How many pods have it.
    pub users: u32,
    /// Whole GPUs that it takes at once of a device plugin.
    pub whole: u32,
    /// Whole GPUs that it takes at once of a device plugin or, where a node lists none, by the
    /// claim that stands in for them. Then [`Self::whole`] is 0: no bound over what nodes list
    /// speaks of them.
    pub either: u32,
    /// True when it asks for shares.
    pub shares: bool,
    /// Fractions of all its containers and devices.
    pub share_nano: u128,
    /// GPU memory of all its containers and devices.
    pub share_mib: u128,
    /// What its MIG profiles count for.
    pub mig_nano: u128,
    /// Memory of its MIG profiles, by their names.
    pub mig_mib: u128,
    /// What its claims on devices count for, GPUs of other vendors, and [`Self::either`]: what queues
    /// count and no sum of free GPUs has.
    pub device_nano: u128,
    /// Of each volume that is attached where it goes, what it is counted as.
    pub attached: Vec<[ResourceName; 2]>,
    /// What it asks of other pods, where it does.
    pub asks: Option<Box<PodAsks>>,
    /// What the nodes answer to it, where a pending pod has it.
    pub verdicts: Option<Box<Verdicts>>,
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

/// What a task holds of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub container: ContainerName,
    /// True if the container is an init container, which ends before the next container starts (see
    /// [`super::footprint`]).
    pub init: bool,
    pub card: CardKey,
    /// What is kept for it.
    pub limit: Mib,
    /// Its limit, where that is more.
    pub burst: Option<Mib>,
    /// What it is nominally worth; the whole card for whole use.
    pub nominal: Mib,
    pub nano: u64,
    pub compute: Percent,
    pub mode: Mode,
    pub note: Option<Arc<str>>,
    /// What it asked for, where that is not its limit.
    pub asked: Option<Amount>,
}

impl Hold {
    /// What an MPS server or the driver holds it to.
    pub(crate) fn top(&self) -> Mib {
        self.burst.unwrap_or(self.limit)
    }
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
    use crate::state::cell::TaskCell;
    use crate::state::job_row::JobRow;

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
