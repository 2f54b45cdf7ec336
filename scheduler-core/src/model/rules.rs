//! Which nodes a pod may go to.

use super::{Effect, Labels, Node, Taint};
use crate::ids::NodeName;
use std::sync::Arc;

/// A pod's toleration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Toleration {
    /// `None`: every key (only with operator `Exists`).
    pub key: Option<Arc<str>>,
    /// Of the taints with the key.
    pub values: Tolerated,
    /// `None`: every effect.
    pub effect: Option<Effect>,
}

/// Which values of a taint a toleration means: its `operator`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tolerated {
    /// `Exists`: any.
    Any,
    /// `Equal`: this one.
    Equal(Arc<str>),
    /// `Gt`: integers above this.
    Above(i64),
    /// `Lt`: integers below this.
    Below(i64),
}

impl Toleration {
    /// Kubernetes' `ToleratesTaint`.
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        let value = || integer(&taint.value);
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.as_ref().is_none_or(|key| *key == taint.key)
            && match &self.values {
                Tolerated::Any => true,
                // Only `Exists` may go without a key.
                _ if self.key.is_none() => false,
                Tolerated::Equal(equal) => *equal == taint.value,
                Tolerated::Above(bound) => value().is_some_and(|value| value > *bound),
                Tolerated::Below(bound) => value().is_some_and(|value| value < *bound),
            }
    }
}

/// The value of a taint or a toleration where it is compared: a decimal as it is written
/// without a plus and without leading zeros (Kubernetes' `IsDecimalInteger`).
pub fn integer(text: &str) -> Option<i64> {
    let value = text.parse::<i64>().ok()?;
    (value.to_string() == text).then_some(value)
}

/// Which nodes will do: `nodeSelector` *and* one of the affinity's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRules {
    /// `spec.nodeSelector`: all must match.
    pub selector: Labels,
    /// `requiredDuringSchedulingIgnoredDuringExecution`: one of these; `None`: no rule.
    /// An empty list matches no node, as in Kubernetes.
    pub terms: Option<Vec<NodeTerm>>,
    /// `preferredDuringSchedulingIgnoredDuringExecution`: what such nodes are worth, 1 to 100.
    pub preferred: Vec<(i32, NodeTerm)>,
    /// `status.nominatedNodeName`, where another component named a node.
    pub nominated: Option<NodeName>,
}

/// All of its requirements must hold. A term without any matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTerm {
    /// Over labels.
    pub labels: Vec<Requirement>,
    /// Over `metadata.name`.
    pub name: Vec<Requirement>,
}

impl NodeRules {
    /// The pod's own node rules admit the node.
    pub(crate) fn admit(&self, node: &Node) -> bool {
        self.selector
            .iter()
            .all(|(key, value)| node.labels.get(key) == Some(value))
            && self
                .terms
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|term| term.matches(node)))
    }

    /// What the node is worth by its preferences.
    pub(crate) fn worth(&self, node: &Node) -> i64 {
        let preferred = self.preferred.iter();
        let met = preferred.filter(|(_, term)| term.matches(node));
        met.map(|(weight, _)| i64::from(*weight)).sum()
    }
}

impl NodeTerm {
    /// Whether all of it holds for this node.
    pub fn matches(&self, node: &Node) -> bool {
        if self.labels.is_empty() && self.name.is_empty() {
            return false;
        }
        self.labels
            .iter()
            .all(|requirement| requirement.holds_in(&node.labels))
            && self
                .name
                .iter()
                .all(|requirement| requirement.holds(Some(node.name.as_str())))
    }
}

/// One requirement of a term.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// Label key; `metadata.name` for a field.
    pub key: Arc<str>,
    /// How.
    pub operator: Operator,
}

impl Requirement {
    /// Whether it holds for these labels.
    pub(crate) fn holds_in(&self, labels: &Labels) -> bool {
        self.holds(labels.get(&self.key).map(|value| &**value))
    }

    /// Whether it holds where the label has this value; `None`: there is none.
    pub(super) fn holds(&self, value: Option<&str>) -> bool {
        let integer = || value.and_then(|value| value.parse::<i64>().ok());
        let one_of = |values: &[Arc<str>]| {
            value.is_some_and(|value| values.iter().any(|one| **one == *value))
        };
        match &self.operator {
            Operator::In(values) => one_of(values),
            Operator::NotIn(values) => !one_of(values),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Above(bound) => integer().is_some_and(|value| value > *bound),
            Operator::Below(bound) => integer().is_some_and(|value| value < *bound),
        }
    }
}

/// Kubernetes' node selector operators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// The label is there and has one of these.
    In(Vec<Arc<str>>),
    /// The label is missing, or has none of these values.
    NotIn(Vec<Arc<str>>),
    /// The label is there.
    Exists,
    /// It is not.
    DoesNotExist,
    /// The label is an integer above this.
    Above(i64),
    /// The label is an integer below this.
    Below(i64),
}

impl Node {
    /// A taint that keeps a pod with these tolerations away.
    pub(crate) fn barring_taint(&self, tolerations: &[Toleration]) -> Option<&Taint> {
        let mut taints = self.untolerated(tolerations);
        taints.find(|taint| taint.effect != Effect::PreferNoSchedule)
    }

    /// How many taints of the node prefer other pods than one with these tolerations.
    pub(crate) fn soft_taints(&self, tolerations: &[Toleration]) -> usize {
        let taints = self.untolerated(tolerations);
        taints
            .filter(|taint| taint.effect == Effect::PreferNoSchedule)
            .count()
    }

    fn untolerated(&self, tolerations: &[Toleration]) -> impl Iterator<Item = &Taint> {
        let tolerated = |taint: &Taint| tolerations.iter().any(|one| one.tolerates(taint));
        self.taints.iter().filter(move |taint| !tolerated(taint))
    }
}
