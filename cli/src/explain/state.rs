//! Pods and cards of a shadow core, and what each pod holds.

use crate::failure::Failure;
use crate::shadow::Shadow;
use scheduler_core::ids::{GroupName, NodeName, PodUid, QueueName};
use scheduler_core::model::{Card, ContainerGrant, Node, Phase, Placement, Pod, Queue};
use scheduler_core::units::Mib;
use scheduler_core::{Bind, Event};
use std::collections::BTreeMap;

/// A card and the holders of its parts, the largest part first.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) card: Card,
    /// `namespace/name`, and its limit on this card.
    pub(super) holders: Vec<(String, Mib)>,
}

impl Held {
    /// What could still be granted, were the card fine.
    pub(super) fn free(&self) -> Mib {
        let held = self
            .holders
            .iter()
            .fold(0_u64, |sum, (_, mib)| sum.saturating_add(mib.0));
        self.card.grantable.less(Mib(held))
    }
}

/// Everything, by name.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) pods: BTreeMap<PodUid, Pod>,
    pub(super) nodes: BTreeMap<NodeName, Node>,
    pub(super) queues: Vec<Queue>,
    /// The queues of pod groups.
    pub(super) groups: BTreeMap<GroupName, QueueName>,
    pub(super) agents: BTreeMap<NodeName, scheduler_core::model::NodeCards>,
    assumed: BTreeMap<PodUid, Bind>,
}

impl State {
    pub(super) fn of(shadow: &Shadow) -> Self {
        let mut state = Self::default();
        for event in shadow.events() {
            match event {
                Event::Pod(pod) => {
                    state.pods.insert(pod.uid.clone(), *pod);
                }
                Event::Node(node) => {
                    state.nodes.insert(node.name.clone(), node);
                }
                Event::Cards(cards) => {
                    state.agents.insert(cards.node.clone(), cards);
                }
                Event::Queue(queue) => state.queues.push(queue),
                Event::Group(group) => {
                    state.groups.insert(group.name, group.queue);
                }
                Event::Assumed(bind) => {
                    state.assumed.insert(bind.pod.clone(), *bind);
                }
                _ => {}
            }
        }
        state
    }

    /// The pod of that name; of several that had it, the one that is not over.
    pub(super) fn pod(&self, namespace: &str, name: &str) -> Result<&Pod, Failure> {
        let over = |pod: &Pod| matches!(pod.phase, Phase::Succeeded | Phase::Failed);
        let mut found: Vec<&Pod> = self
            .pods
            .values()
            .filter(|pod| &*pod.namespace == namespace && &*pod.name == name)
            .collect();
        found.sort_by_key(|pod| (over(pod), std::cmp::Reverse(pod.created)));
        let Some(pod) = found.first() else {
            return Err(Failure::no(format!(
                "no pod {name} in namespace {namespace} is this scheduler's, or is on a node"
            )));
        };
        if pod.ours {
            Ok(pod)
        } else {
            Err(Failure::no(format!(
                "{namespace}/{name} is placed by another scheduler: its spec.schedulerName is not this one's"
            )))
        }
    }

    /// A binding that is under way.
    pub(super) fn assumed(&self, pod: &PodUid) -> Option<&Bind> {
        self.assumed.get(pod)
    }

    /// A pod's node, and what it holds.
    pub(super) fn placement<'a>(
        &'a self,
        pod: &'a Pod,
    ) -> Option<(&'a NodeName, &'a [ContainerGrant])> {
        match &pod.phase {
            Phase::Bound(Placement { node, grants, .. })
            | Phase::Running(Placement { node, grants, .. })
            | Phase::Releasing(Some(Placement { node, grants, .. }))
            | Phase::Stuck(Placement { node, grants, .. }) => Some((node, grants)),
            Phase::Pending => {
                let bind = self.assumed(&pod.uid)?;
                Some((&bind.node, &bind.grants))
            }
            _ => None,
        }
    }

    /// The cards of a node, in its order.
    pub(super) fn cards(&self, node: &NodeName) -> Vec<Held> {
        let Some(agent) = self.agents.get(node) else {
            return Vec::new();
        };
        let mut cards: Vec<Held> = agent
            .cards
            .iter()
            .map(|card| Held {
                card: card.clone(),
                holders: Vec::new(),
            })
            .collect();
        cards.sort_by_key(|held| held.card.index);
        for pod in self.pods.values() {
            let Some((_, grants)) = self.placement(pod).filter(|(on, _)| *on == node) else {
                continue;
            };
            for held in &mut cards {
                let limits = grants
                    .iter()
                    .filter(|grant| grant.cards.contains(&held.card.uuid));
                let limits: Vec<u64> = limits.map(|grant| grant.memory.0).collect();
                if !limits.is_empty() {
                    let sum = limits.into_iter().fold(0_u64, u64::saturating_add);
                    let name = format!("{}/{}", pod.namespace, pod.name);
                    held.holders.push((name, Mib(sum)));
                }
            }
        }
        for held in &mut cards {
            held.holders
                .sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        }
        cards
    }
}
