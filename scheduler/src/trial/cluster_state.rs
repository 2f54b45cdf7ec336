//! Pods and cards of a core, and what each pod holds.

use scheduler_core::ids::{GroupName, NodeName, PodUid, QueueName};
use scheduler_core::model::{Card, ContainerGrant, Node, Phase, Placement, Pod, Queue};
use scheduler_core::units::Mib;
use scheduler_core::{Bind, Core, Event};
use std::collections::BTreeMap;

/// A card and the holders of its parts, the largest part first.
#[derive(Clone, Debug)]
pub struct CardHolders {
    /// The card.
    pub card: Card,
    /// `namespace/name`, and its limit on this card.
    pub holders: Vec<(String, Mib)>,
}

impl CardHolders {
    /// What could still be granted, were the card fine.
    pub fn free(&self) -> Mib {
        let held = self
            .holders
            .iter()
            .fold(0_u64, |sum, (_, mib)| sum.saturating_add(mib.0));
        self.card.grantable.less(Mib(held))
    }
}

/// Everything, by name.
#[derive(Debug, Default)]
pub struct ClusterState {
    /// Pods, by UID.
    pub pods: BTreeMap<PodUid, Pod>,
    /// Nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Queues, in no order.
    pub queues: Vec<Queue>,
    /// The queues of pod groups.
    pub groups: BTreeMap<GroupName, QueueName>,
    /// Cards, by node.
    pub agents: BTreeMap<NodeName, scheduler_core::model::NodeCards>,
    assumed: BTreeMap<PodUid, Bind>,
}

impl ClusterState {
    /// The state of a core.
    pub fn of(core: &Core) -> Self {
        let mut state = Self::default();
        for event in core.snapshot() {
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

    /// A binding that is under way.
    pub fn assumed(&self, pod: &PodUid) -> Option<&Bind> {
        self.assumed.get(pod)
    }

    /// A pod's node, and what it holds.
    pub fn placement<'a>(&'a self, pod: &'a Pod) -> Option<(&'a NodeName, &'a [ContainerGrant])> {
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
    pub fn cards(&self, node: &NodeName) -> Vec<CardHolders> {
        let Some(agent) = self.agents.get(node) else {
            return Vec::new();
        };
        let mut cards: Vec<CardHolders> = agent
            .cards
            .iter()
            .map(|card| CardHolders {
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
