//! Where a pod may go because of other pods: Kubernetes' inter-pod affinity and anti-affinity,
//! topology spread constraints, and host ports.

use super::{Labels, Operator, Requirement};
use crate::ids::ResourceName;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Some pods, by namespace and labels: a `labelSelector` with its `namespaces` and its
/// `namespaceSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSelector {
    /// Pods of these namespaces. The shell puts the pod's own one in where a term names none.
    pub namespaces: BTreeSet<Arc<str>>,
    /// And of namespaces whose labels meet all of these; `Some` without any: of all
    /// namespaces. `None`: of no others.
    pub namespace_labels: Option<Vec<Requirement>>,
    /// All must hold for a pod's labels. `None`: no selector is there, which matches no pod,
    /// as in Kubernetes.
    pub labels: Option<Vec<Requirement>>,
}

impl PodSelector {
    /// A label and value that every matching pod has, where the selector requires one.
    pub(crate) fn demanded(&self) -> Option<(&Arc<str>, &Arc<str>)> {
        let labels = self.labels.iter().flatten();
        let mut demanded = labels.filter_map(|one| match &one.operator {
            Operator::In(values) => match values.as_slice() {
                [value] => Some((&one.key, value)),
                _ => None,
            },
            _ => None,
        });
        demanded.next()
    }

    /// The labels of a pod that it looks at, each once.
    pub(crate) fn labels_looked_at(&self) -> BTreeSet<&Arc<str>> {
        let labels = self.labels.iter().flatten();
        labels.map(|one| &one.key).collect()
    }

    /// Whether it applies to pods of a namespace of that name and with those labels.
    pub(crate) fn takes_namespace(&self, name: &str, labels: Option<&Labels>) -> bool {
        let none = Labels::new();
        let labels = labels.unwrap_or(&none);
        let all_hold = |all: &Vec<Requirement>| all.iter().all(|one| one.holds_in(labels));
        self.namespaces.contains(name) || self.namespace_labels.as_ref().is_some_and(all_hold)
    }

    /// Whether it matches pods with these labels, if it applies to their namespace. `label`: the
    /// value of a label, if the pod has it.
    pub(crate) fn takes_labels<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        let all_hold = |all: &Vec<Requirement>| all.iter().all(|one| one.holds(label(&one.key)));
        self.labels.as_ref().is_some_and(all_hold)
    }
}

/// A `PodAffinityTerm`: some pods, and how near is near.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodTerm {
    /// Which pods.
    pub pods: PodSelector,
    /// Two nodes are one domain where this label has the same value. A node without the label
    /// is in none.
    pub topology_key: Arc<str>,
}

/// A `TopologySpreadConstraint`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spread {
    /// The pods that are counted, in domains by this key.
    pub term: PodTerm,
    /// By how many a domain may have more than the one with the fewest. 1 or more.
    pub max_skew: u32,
    /// With fewer domains than that the fewest is 0. `None`: 1.
    pub min_domains: Option<u32>,
    /// `nodeAffinityPolicy: Honor`: only nodes that the pod's own node rules admit have a
    /// domain.
    pub honors_affinity: bool,
    /// `nodeTaintsPolicy: Honor`: only nodes whose taints it tolerates.
    pub honors_taints: bool,
    /// `DoNotSchedule`; else it is a preference.
    pub required: bool,
}

/// A term with a weight, positive for affinity and negative for anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PreferredTerm {
    /// -100 to 100; each pod near by counts that much.
    pub weight: i32,
    /// Which pods, and how near.
    pub term: PodTerm,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRules {
    /// Near such a pod, by each term. The first pod that matches all its own terms may be placed
    /// anywhere.
    pub affinity: Vec<PodTerm>,
    /// Not near such a pod, by any term; nor does such a pod come near this one.
    pub anti_affinity: Vec<PodTerm>,
    /// Rather near, or rather not; the same for such a pod that is to be placed.
    pub preferred: Vec<PreferredTerm>,
    /// Spread over domains.
    pub spread: Vec<Spread>,
}

impl PodRules {
    /// It has none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The selectors of those of its terms that apply to other pods while it is placed.
    pub(crate) fn told(&self) -> impl Iterator<Item = &PodSelector> {
        let preferred = self.preferred.iter().map(|one| &one.term);
        let terms = self.anti_affinity.iter().chain(preferred);
        terms.map(|term| &term.pods)
    }
}

/// A port of the node that a container takes. Two pods of one node cannot have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// `TCP`, `UDP`, `SCTP`.
    pub protocol: Arc<str>,
    /// 1 to 65535.
    pub port: u16,
    /// The address that it is bound to; [`HostPort::ANY_ADDRESS`] is the same port on all.
    pub address: Arc<str>,
}

impl HostPort {
    /// All addresses of the node.
    pub const ANY_ADDRESS: &str = "0.0.0.0";

    /// Under which names its pod is counted on a node: the port on its address, and the port
    /// on any.
    pub(crate) fn counted_as(&self) -> [ResourceName; 2] {
        let Self {
            protocol,
            port,
            address,
        } = self;
        [
            ResourceName::new(format!("host-port/{protocol}/{port}/{address}")),
            ResourceName::new(format!("host-port/{protocol}/{port}")),
        ]
    }

    /// Two pods with these cannot be on one node.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let same = self.protocol == other.protocol && self.port == other.port;
        same && (self.address == other.address || self.is_on_all() || other.is_on_all())
    }

    /// It is taken on all addresses.
    pub(crate) fn is_on_all(&self) -> bool {
        &*self.address == Self::ANY_ADDRESS
    }
}
