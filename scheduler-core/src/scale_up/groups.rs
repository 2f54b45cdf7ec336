//! Groups of nodes, and what waits for another node of one.

use crate::event::Event;
use crate::ids::{NodeName, ResourceName};
use crate::model::{Card, Labels, Mode, Node, Phase, Pod};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A node of a group as it is when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTemplate {
    /// The group's name, for messages.
    pub name: Arc<str>,
    /// The node. Its name and UID mean nothing.
    pub node: Node,
    /// The cards of the node as its agent will show them. Their UUIDs mean nothing.
    pub cards: Vec<Card>,
    /// The default mode of cards.
    pub default_mode: Mode,
    /// The largest number of nodes that the group may have, including those that exist.
    pub most: u32,
    /// A node with these labels, and without cards yet, is one of the group that is starting.
    pub known_by: Labels,
}

/// The labels that identify groups of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Keys of labels whose values name a group: nodes of it are alike.
    pub keys: Vec<Arc<str>>,
    /// Labels of the nodes of groups that a person has described.
    pub described: Vec<Labels>,
}

impl Groups {
    /// The node is in one of them.
    pub fn have(&self, node: &Node) -> bool {
        self.described(node).is_some() || self.name(node).is_some()
    }

    /// The first group that a person has described whose labels the node has.
    pub(super) fn described(&self, node: &Node) -> Option<&Labels> {
        let mut described = self.described.iter();
        described.find(|labels| has(node, labels))
    }

    /// The first of the keys that the node has, and its value.
    pub(super) fn name(&self, node: &Node) -> Option<(Arc<str>, Arc<str>)> {
        let mut keys = self.keys.iter();
        keys.find_map(|key| {
            let value = node.labels.get(key)?;
            Some((Arc::clone(key), Arc::clone(value)))
        })
    }
}

/// Whether the node has all of these labels, and there are some.
pub(super) fn has(node: &Node, labels: &Labels) -> bool {
    let has = |(key, value)| node.labels.get(key) == Some(value);
    !labels.is_empty() && labels.iter().all(has)
}

/// Pods that wait for a node, and what the cluster has left, as events for a core of its own.
/// All pods are in one queue without limits, the larger ones first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// The events of pods, groups, nodes and cards.
    pub events: Vec<Event>,
    /// The number of pods that wait.
    pub pods: usize,
    /// Nodes of groups that offer no GPU: they may be starting.
    pub without_cards: Vec<Node>,
    /// The last node, by name, of each group without a template, as an idle node.
    pub seen: Vec<NodeTemplate>,
    /// The number of nodes of each described group, by its labels.
    pub there: BTreeMap<Labels, u32>,
}

impl Shortage {
    /// The pods that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &Pod> {
        self.events.iter().filter_map(|event| match event {
            Event::Pod(pod) if pod.phase == Phase::Pending => Some(&**pod),
            _ => None,
        })
    }

    /// More of each extended resource than its pods ask for together.
    pub(super) fn extended(&self) -> BTreeMap<ResourceName, u64> {
        let names = self.waiting().flat_map(|pod| pod.extended.keys());
        names.map(|name| (name.clone(), u64::MAX / 4)).collect()
    }

    /// Returns the shortage without these nodes, whose agents do not come.
    #[must_use]
    pub fn without(mut self, nodes: &dyn Fn(&NodeName) -> bool) -> Self {
        self.without_cards.retain(|node| !nodes(&node.name));
        self
    }
}
