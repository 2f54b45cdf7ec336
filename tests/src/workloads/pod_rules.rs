//! Pods of one tenant with rules about each other, as many as a namespace may have: each
//! placement changes where the next ones may go, on nodes that it does not touch.

use super::{event, nodes, pod, queue};
use scheduler_core::event::Event;
use scheduler_core::model::{Operator, Pod, PodSelector, PodTerm, Requirement, Spread};
use std::sync::Arc;

const ZONE: &str = "zone";
const HOST: &str = "host";

/// The nodes, each a domain of its own as well.
fn hosts(count: usize) -> Vec<Event> {
    let mut events = nodes(count);
    for event in &mut events {
        if let Event::Node(node) = event {
            let name = node.name.as_str().into();
            node.labels.insert(Arc::from(HOST), name);
        }
    }
    events.push(queue("queue-0", None, None, 1));
    events
}

fn labelled(name: &str, app: &str) -> Pod {
    let mut pod = pod(name, "queue-0", 0);
    pod.labels.insert(Arc::from("app"), Arc::from(app));
    pod
}

fn near(app: &str, topology_key: &str) -> PodTerm {
    let requirement = Requirement {
        key: Arc::from("app"),
        operator: Operator::In(vec![Arc::from(app)]),
    };
    PodTerm {
        pods: PodSelector {
            namespaces: [Arc::from("default")].into(),
            namespace_labels: None,
            labels: Some(vec![requirement]),
        },
        topology_key: Arc::from(topology_key),
    }
}

fn all(mut events: Vec<Event>, count: usize, of: impl Fn(usize) -> Pod) -> Vec<Event> {
    events.extend((0..count).map(of).map(event));
    events
}

/// A workload that is spread over zones.
pub fn spread(count: usize, replicas: usize) -> Vec<Event> {
    all(hosts(count), replicas, |index| {
        let mut pod = labelled(&format!("even-{index:05}"), "even");
        pod.pods.spread.push(Spread {
            term: near("even", ZONE),
            max_skew: 1,
            min_domains: None,
            honors_affinity: true,
            honors_taints: false,
            required: true,
        });
        pod
    })
}

/// A workload with one replica a node, and more of them than nodes.
pub fn one_a_node(count: usize, replicas: usize) -> Vec<Event> {
    all(hosts(count), replicas, |index| {
        let mut pod = labelled(&format!("one-{index:05}"), "one");
        pod.pods.anti_affinity.push(near("one", HOST));
        pod
    })
}

/// Workloads of ten, each of which avoids its own alone.
pub fn many_terms(count: usize, pods: usize) -> Vec<Event> {
    all(hosts(count), pods, |index| {
        let app = format!("app-{}", index / 10);
        let mut pod = labelled(&format!("many-{index:05}"), &app);
        pod.pods.anti_affinity.push(near(&app, HOST));
        pod
    })
}

/// Pods that wait for a missing one.
pub fn orphans(count: usize, pods: usize) -> Vec<Event> {
    all(hosts(count), pods, |index| {
        let mut pod = labelled(&format!("orphan-{index:05}"), "orphan");
        pod.pods.affinity.push(near("nobody", ZONE));
        pod
    })
}

/// Pods that each avoid all others except those that are labelled as they are, in all namespaces.
/// Every pod is matched by every other one's term, and avoided by it.
pub fn each_avoids_all(count: usize, pods: usize) -> Vec<Event> {
    all(hosts(count), pods, |index| {
        let app = format!("app-{index}");
        let mut pod = labelled(&format!("stranger-{index:05}"), &app);
        let others = Requirement {
            key: Arc::from("app"),
            operator: Operator::NotIn(vec![Arc::from(app)]),
        };
        let mut term = near("", HOST);
        term.pods.namespace_labels = Some(Vec::new());
        term.pods.labels = Some(vec![others]);
        pod.pods.anti_affinity.push(term);
        pod
    })
}
