//! Pods with rules about each other, and Kubernetes' filters written a second time, without
//! counts: every pod is compared with every other one.

use crate::storage;
use scheduler_core::ids::{DecisionId, NodeName, PodUid};
use scheduler_core::model::{
    HostPort, Labels, Node, Operator, Phase, Pod, PodSelector, PodTerm, PreferredTerm, Requirement,
    Spread,
};
use scheduler_core::{Action, Config, Decision, Event, Namespace};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const TEAM: &str = "team";

/// Counts so many matches of selectors, and asks the pods beyond that.
pub(crate) fn counting(most_counted: u64) -> Config {
    Config {
        most_counted,
        ..Config::verified()
    }
}

/// A third of the pods with labels is background work.
pub(crate) fn background() -> Vec<Requirement> {
    vec![Requirement {
        key: Arc::from("app"),
        operator: Operator::In(vec![Arc::from("c")]),
    }]
}

pub(crate) fn node_labels(index: u8, cards: u8) -> Labels {
    let label = |key: &str, value: String| (Arc::from(key), Arc::from(value));
    let host = label("host", format!("n{index}"));
    // One node in some worlds has no zone; another number of cards moves it to another.
    let zone = (cards != 3).then(|| label("zone", format!("z{}", (index + cards) % 2)));
    [host].into_iter().chain(zone).collect()
}

/// The other namespace's labels: only rules that look at them mean its pods.
pub(crate) fn namespace(size: u16) -> Event {
    let kind = (Arc::from("kind"), Arc::from("batch"));
    Event::Namespace(Namespace {
        name: Arc::from(TEAM),
        labels: (size % 2 == 0).then_some(kind).into_iter().collect(),
    })
}

fn app(value: &str) -> Requirement {
    Requirement {
        key: Arc::from("app"),
        operator: Operator::In(vec![Arc::from(value)]),
    }
}

fn term(which: u64) -> PodTerm {
    let apps = ["a", "b", "c"];
    let demand = app(apps[(which / 2 % 3) as usize]);
    let refuse = |demand: Requirement| match demand.operator {
        Operator::In(values) => Requirement {
            operator: Operator::NotIn(values),
            ..demand
        },
        _ => demand,
    };
    PodTerm {
        pods: PodSelector {
            namespaces: [Arc::from("default")].into(),
            namespace_labels: (which % 5 == 4).then(Vec::new),
            labels: Some(match which % 9 {
                7 => vec![refuse(demand)],
                8 => Vec::new(),
                _ => vec![demand],
            }),
        },
        topology_key: Arc::from(["zone", "host"][(which % 2) as usize]),
    }
}

/// Labels for most, rules for some.
pub(crate) fn give(pod: &mut Pod, kind: u8, size: u64) {
    if size % 7 < 5 {
        let value = Arc::from(["a", "b", "c"][(size % 3) as usize]);
        pod.labels.insert(Arc::from("app"), value);
    }
    if size % 11 == 10 {
        pod.namespace = Arc::from(TEAM);
    }
    match kind % 16 {
        1 => pod.pods.affinity.push(term(size)),
        2 => pod.pods.affinity.extend([term(size), term(size + 1)]),
        3 => pod.pods.anti_affinity.push(term(size)),
        // Duplicates are allowed.
        4 => pod.pods.anti_affinity.extend([term(size), term(size)]),
        5 | 6 => pod.pods.spread.push(Spread {
            term: term(size),
            max_skew: 1 + (size % 2) as u32,
            min_domains: (size % 3 == 0).then_some(2),
            honors_affinity: size % 5 > 0,
            honors_taints: false,
            required: kind % 16 == 5 || size % 4 > 0,
        }),
        7 => pod.ports.push(HostPort {
            protocol: Arc::from("TCP"),
            port: 80,
            address: Arc::from(["0.0.0.0", "10.0.0.1", "10.0.0.2"][(size % 3) as usize]),
        }),
        9 | 10 => storage::attach(pod, size),
        8 => pod.pods.preferred.push(PreferredTerm {
            weight: [10, -10][(size % 2) as usize],
            term: term(size),
        }),
        _ => {}
    }
}

/// Pods with a place, those whose binding has no answer yet too. `before`: decisions that are no
/// longer about the pod of that name.
pub(crate) fn placed(
    pods: &BTreeMap<PodUid, Pod>,
    open: &[Action],
    before: &BTreeSet<DecisionId>,
) -> Vec<(PodUid, NodeName)> {
    let shown = pods.values().filter_map(|pod| match &pod.phase {
        Phase::Bound(placed) | Phase::Running(placed) | Phase::Releasing(Some(placed)) => {
            Some((pod.uid.clone(), placed.node.clone()))
        }
        _ => None,
    });
    let mut placed: BTreeMap<PodUid, NodeName> = open
        .iter()
        .filter(|action| !before.contains(&action.decision()))
        .filter_map(|action| match action {
            Action::Bind(bind) => Some((bind.pod.clone(), bind.node.clone())),
            Action::Evict(_) => None,
        })
        .collect();
    placed.retain(|pod, _| pods.contains_key(pod));
    placed.extend(shown);
    placed.into_iter().collect()
}

/// A pod that was bound where a filter of kube-scheduler would not have let it in. `told`: pods
/// that were ever evicted. `sequence`: the last that was given before.
pub(crate) fn breaks(
    nodes: &BTreeMap<NodeName, Node>,
    placed: Vec<(PodUid, NodeName)>,
    pods: &BTreeMap<PodUid, Pod>,
    told: &BTreeSet<PodUid>,
    decision: &Decision,
) -> Option<String> {
    let mut there: Vec<(&Pod, &Node)> = placed
        .iter()
        .filter_map(|(pod, node)| Some((pods.get(pod)?, nodes.get(node)?)))
        .collect();
    // A pod that a later action of the same decision moved was elsewhere when the others were
    // placed: affinity and spread counted it there.
    let is_straight = decision.displaced == 0
        // An evicted pod no longer counts for some rules; the result is not known here.
        && !placed.iter().any(|(pod, _)| told.contains(pod));
    for action in &decision.actions {
        let Action::Bind(bind) = action else {
            continue;
        };
        let (pod, node) = (&pods[&bind.pod], &nodes[&bind.node]);
        // The world may show a bound pod as pending once more.
        there.retain(|(other, _)| other.uid != pod.uid);
        let why = keeps_away(&there, pod, node);
        let why = why.or_else(|| {
            let open = is_straight.then(|| lacks(nodes, &there, pod, node));
            open.flatten()
        });
        if let Some(why) = why {
            return Some(format!("{} on {}: {why}", bind.pod, bind.node));
        }
        there.push((pod, node));
    }
    None
}

/// Of namespaces the core knows the labels; here a term with an empty selector means all.
fn speaks_of(pods: &PodSelector, pod: &Pod) -> bool {
    let meets = |all: &Vec<Requirement>| {
        all.iter().all(|one| match &one.operator {
            Operator::In(values) => {
                let value = pod.labels.get(&one.key);
                value.is_some_and(|value| values.contains(value))
            }
            Operator::NotIn(values) => {
                let value = pod.labels.get(&one.key);
                !value.is_some_and(|value| values.contains(value))
            }
            _ => unreachable!("no such operator is drawn"),
        })
    };
    (pods.namespaces.contains(&pod.namespace) || pods.namespace_labels.is_some())
        && pods.labels.as_ref().is_some_and(meets)
}

fn is_near(term: &PodTerm, node: &Node, other: &Node) -> bool {
    let domain = node.labels.get(&term.topology_key);
    domain.is_some() && domain == other.labels.get(&term.topology_key)
}

/// There is a pod that it has anti-affinity to.
fn keeps_away(there: &[(&Pod, &Node)], pod: &Pod, node: &Node) -> Option<&'static str> {
    let near = |term: &PodTerm, other: &Node| is_near(term, node, other);
    let mut others = there.iter();
    if others.any(|(other, at)| {
        let mut terms = pod.pods.anti_affinity.iter();
        terms.any(|term| speaks_of(&term.pods, other) && near(term, at))
    }) {
        return Some("it avoids one");
    }
    let mut others = there.iter();
    if others.any(|(other, at)| {
        let mut terms = other.pods.anti_affinity.iter();
        terms.any(|term| speaks_of(&term.pods, pod) && near(term, at))
    }) {
        return Some("one avoids it");
    }
    let ports = |other: &Pod| {
        pod.ports.iter().any(|port| {
            let any = HostPort::ANY_ADDRESS;
            other.ports.iter().any(|taken| {
                let same = (&port.protocol, port.port) == (&taken.protocol, taken.port);
                let addresses = [&*port.address, &*taken.address];
                same && (addresses[0] == addresses[1] || addresses.contains(&any))
            })
        })
    };
    let mut others = there.iter();
    let taken = others.any(|(other, at)| at.name == node.name && ports(other));
    let full = || storage::keeps_away(there, pod, node);
    taken.then_some("a port is taken").or_else(full)
}

/// A pod that it needs is missing.
fn lacks(
    nodes: &BTreeMap<NodeName, Node>,
    there: &[(&Pod, &Node)],
    pod: &Pod,
    node: &Node,
) -> Option<&'static str> {
    let near = |term: &PodTerm, other: &Node| is_near(term, node, other);
    let terms = &pod.pods.affinity;
    let meant = |other: &Pod| terms.iter().all(|term| speaks_of(&term.pods, other));
    let has_all = terms
        .iter()
        .all(|term| node.labels.contains_key(&term.topology_key));
    let is_beside = |term: &PodTerm| {
        let mut others = there.iter();
        others.any(|(other, at)| meant(other) && near(term, at))
    };
    let none_at_all = !there.iter().any(|(other, at)| {
        let has = |term: &PodTerm| at.labels.contains_key(&term.topology_key);
        meant(other) && terms.iter().any(has)
    });
    let first = none_at_all && meant(pod);
    if !terms.is_empty() && !(has_all && (first || terms.iter().all(is_beside))) {
        return Some("there is no pod that it goes beside");
    }
    let required: Vec<&Spread> = pod.pods.spread.iter().filter(|one| one.required).collect();
    for spread in &required {
        let key = &spread.term.topology_key;
        let eligible = |node: &&Node| {
            let mut all = required.iter();
            all.all(|one| node.labels.contains_key(&one.term.topology_key))
        };
        let domains: BTreeSet<_> = nodes
            .values()
            .filter(eligible)
            .filter_map(|node| node.labels.get(key))
            .collect();
        let count = |domain: &Arc<str>| {
            let stays = |pod: &Pod| !matches!(pod.phase, Phase::Releasing(_));
            there
                .iter()
                .filter(|(other, at)| {
                    let here = eligible(at) && at.labels.get(key) == Some(domain);
                    here && stays(other) && speaks_of(&spread.term.pods, other)
                })
                .count()
        };
        let Some(own) = node.labels.get(key) else {
            return Some("it has no domain to spread over");
        };
        let fewest = domains
            .iter()
            .map(|domain| count(domain))
            .min()
            .unwrap_or(0);
        let enough = domains.len() >= spread.min_domains.unwrap_or(1) as usize;
        let fewest = if enough { fewest } else { 0 };
        let after = count(own) + usize::from(speaks_of(&spread.term.pods, pod));
        if after.saturating_sub(fewest) > spread.max_skew as usize {
            return Some("it is not spread");
        }
    }
    None
}
