//! The pods that are in a waiting pod's way.
//!
//! A pod that is over a limit or quota of its queue waits for pods of that queue. Any other pod waits
//! for the pods on the nodes where it would fit if they were empty.

use scheduler_core::ids::{NodeName, PodUid, QueueName};
use scheduler_core::model::{Phase, Pod};
use scheduler_core::units::Time;
use scheduler_core::{Core, Event, ReasonKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The largest number of different requests whose nodes are looked for. A look reads all nodes.
const MOST_REQUESTS: usize = 64;

/// A pod that holds something.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) node: NodeName,
    pub(super) queue: Option<QueueName>,
    /// True if it holds cards, or devices by claim.
    pub(super) cards: bool,
    /// True if it may be evicted to make room.
    pub(super) preemptible: bool,
    /// When it ends. `None`: that is not known.
    pub(super) end: Option<Time>,
}

/// The holders that are in a pod's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The holders on these nodes are in the way; with `true` only those with cards.
    Nodes(Arc<BTreeSet<NodeName>>, bool),
    /// The holders of this queue are in the way.
    Queue(QueueName),
    /// All holders are in the way, because its nodes were not looked for.
    All,
}

impl Way {
    /// Returns true if the holder is in the way.
    pub(super) fn has(&self, holder: &Holder) -> bool {
        match self {
            Self::Nodes(nodes, cards) => nodes.contains(&holder.node) && (holder.cards || !*cards),
            Self::Queue(queue) => holder.queue.as_ref() == Some(queue),
            Self::All => true,
        }
    }

    /// Returns the time of the first end that can make room for the pod: before that it does not start,
    /// whatever else happens. `None`: an eviction or an end that is not known can make room, or the pod
    /// waits for something other than room. `alone`: no other pod must be placed with it.
    pub(super) fn first_end(
        &self,
        kind: Option<ReasonKind>,
        alone: bool,
        holders: &BTreeMap<PodUid, Holder>,
    ) -> Option<Time> {
        let full = [
            ReasonKind::Unschedulable,
            ReasonKind::OverLimit,
            ReasonKind::NonPreemptibleOverQuota,
        ];
        if !full.contains(&kind?) {
            return None;
        }
        // The room of a gang is on the nodes of all its pods.
        let in_way = holders.values().filter(|holder| !alone || self.has(holder));
        let ends = in_way.map(|holder| holder.end.filter(|_| !holder.preemptible));
        ends.collect::<Option<Vec<Time>>>()?.into_iter().min()
    }
}

/// Returns true if the pod asks for cards, or for devices by claim.
pub(super) fn asks_for_cards(pod: &Pod) -> bool {
    let mig = |name: &str| name.starts_with(proto::names::resource::MIG_PREFIX);
    !pod.gpus.is_empty()
        || !pod.devices.is_empty()
        || pod.extended.keys().any(|name| mig(name.as_str()))
}

/// Finds ways in a cluster where nothing runs.
pub(super) struct Ways {
    empty: Core,
    /// Requests for which nodes were looked for.
    known: Vec<(Pod, Arc<BTreeSet<NodeName>>)>,
}

impl Ways {
    /// Takes the core, which is used up, and removes these pods from it.
    pub(super) fn new<'a>(mut core: Core, holders: impl Iterator<Item = &'a PodUid>) -> Self {
        for pod in holders {
            core.apply(Event::PodGone(pod.clone()));
        }
        Self {
            empty: core,
            known: Vec::new(),
        }
    }

    /// Returns what is in the pod's way. `kind` is the kind of the reason why it waits.
    pub(super) fn of(
        &mut self,
        uid: &PodUid,
        kind: Option<ReasonKind>,
        holders: &BTreeMap<PodUid, Holder>,
    ) -> Way {
        let Some(pod) = self.empty.pod(uid) else {
            return Way::All;
        };
        if let Some(ReasonKind::OverLimit | ReasonKind::NonPreemptibleOverQuota) = kind {
            let queue = Way::Queue(self.empty.queue_of(uid).unwrap_or(pod.queue));
            // The limit may be one of a queue above, which others use.
            let used = holders.values().any(|holder| queue.has(holder));
            return if used { queue } else { Way::All };
        }
        let cards = asks_for_cards(&pod);
        let request = request_of(pod);
        if let Some((_, nodes)) = self.known.iter().find(|(known, _)| *known == request) {
            return Way::Nodes(Arc::clone(nodes), cards);
        }
        if self.known.len() >= MOST_REQUESTS {
            return Way::All;
        }
        let explanation = self.empty.explain(uid);
        // What hinders the pod itself is no matter of room.
        let explanation = explanation
            .filter(|found| matches!(found.kind, None | Some(ReasonKind::Unschedulable)));
        let nodes = explanation.into_iter().flat_map(|found| found.nodes);
        let nodes = nodes.filter(|node| node.fits).map(|node| node.node);
        let nodes: Arc<BTreeSet<NodeName>> = Arc::new(nodes.collect());
        self.known.push((request, Arc::clone(&nodes)));
        Way::Nodes(nodes, cards)
    }
}

/// Returns the pod without what tells it from others with the same request.
fn request_of(mut pod: Pod) -> Pod {
    pod.uid = PodUid::new("");
    pod.name = "".into();
    pod.created = Time(0);
    pod.phase = Phase::Pending;
    pod
}
