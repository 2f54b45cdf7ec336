//! This file has the tables of pods and of what they hold.

use super::field::{
    All, Below, Field, Flag, Map, Name, Object, Present, Terms, Whole, always, always_or, fields,
    flag, key, needed, not, or, same_as_name,
};
use super::group::PreemptibilityWord;
use super::line::{Line, Read};
use super::share::{AmountOf, Asks};
use crate::ids::QueueName;
use crate::model::{
    AlignedContainer, ContainerGrant, Front, HostPort, NodeRules, Phase, Placement, Pod, PodRules,
    PodSelector, PodTerm, PreferredTerm, Spread, TaskOrder,
};
use crate::units::Percent;
use std::sync::Arc;

fields!(Pod {
    uid: Name,
    namespace: or("ns", Arc::from("default")),
    name: same_as_name("name"),
    ours: not("foreign"),
    queue: or("queue", QueueName::new("default-queue")),
    group: key("group"),
    sub_group: key("set"),
    priority: or("priority", 50),
    preemptibility: PreemptibilityWord,
    safe_to_evict: flag("safe-to-evict"),
    never_preempts: flag("never-preempts"),
    immovable: flag("immovable"),
    created: key("created"),
    task_order: Whole,
    labels: Map("label"),
    cpu: key("cpu"),
    memory: key("memory"),
    extended: Map("extended"),
    gpus: Asks,
    nodes: Whole,
    tolerations: All("tolerates"),
    gated: flag("gated"),
    lacks: All("lacks"),
    unsupported: All("unsupported"),
    claims: Below("claim"),
    attachments: Below("attachment"),
    devices: Below("devices"),
    pods: Whole,
    ports: Below("port"),
    aligned: Below("aligned"),
    phase: Whole,
});

fields!(TaskOrder {
    lead: key("leads"),
    place: key("order"),
});

fields!(NodeRules {
    selector: Map("selector"),
    nominated: key("nominated"),
    terms: Terms,
    preferred: All("rather"),
});

fields!(PodRules {
    affinity: Below("near"),
    anti_affinity: Below("away"),
    preferred: Below("prefer"),
    spread: Below("spread"),
});

fields!(PreferredTerm {
    term: Whole,
    weight: always_or("weight", 1),
});

fields!(Spread {
    term: Whole,
    max_skew: always_or("max-skew", 1),
    min_domains: key("min-domains"),
    honors_affinity: not("any-node"),
    honors_taints: flag("honor-taints"),
    required: not("preferred"),
});

fields!(PodTerm {
    topology_key: Name,
    pods: Whole,
});

fields!(PodSelector {
    namespaces: All("ns"),
    namespace_labels: key("ns-labels"),
    labels: key("labels"),
});

fields!(HostPort {
    protocol: Name,
    port: needed("port"),
    address: or("address", Arc::from(HostPort::ANY_ADDRESS)),
});

fields!(AlignedContainer {
    init: flag("init"),
    cpus: needed("cpus"),
    memory: key("memory"),
    gpus: key("gpus"),
    shares: key("shares"),
});

/// The phase is left out if the pod waits, or if it runs, because then it has a node.
impl Object for Phase {
    fn read(line: &Line) -> Read<Self> {
        let placement: Option<Placement> = Present(&["on"]).read(line)?;
        Ok(match (line.get("phase"), placement) {
            (None, None) | (Some("pending"), _) => Self::Pending,
            (Some("bound"), Some(placement)) => Self::Bound(placement),
            (None | Some("running"), Some(placement)) => Self::Running(placement),
            (Some("releasing"), placement) => Self::Releasing(placement),
            (Some("stuck"), Some(placement)) => Self::Stuck(placement),
            (Some("succeeded"), _) => Self::Succeeded,
            (Some("failed"), _) => Self::Failed,
            (Some("bound" | "running" | "stuck"), None) => {
                return Err(line.error("on=<node> is missing"));
            }
            (Some(other), _) => return Err(line.error(format!("{other} is no phase"))),
        })
    }

    fn write(&self, line: &mut Line) {
        let (phase, placement) = match self {
            Self::Pending => (None, None),
            Self::Bound(placement) => (Some("bound"), Some(placement)),
            Self::Running(placement) => (None, Some(placement)),
            Self::Releasing(placement) => (Some("releasing"), placement.as_ref()),
            Self::Stuck(placement) => (Some("stuck"), Some(placement)),
            Self::Succeeded => (Some("succeeded"), None),
            Self::Failed => (Some("failed"), None),
        };
        if let Some(phase) = phase {
            line.push_pair("phase", phase);
        }
        if let Some(placement) = placement {
            placement.write(line);
        }
    }
}

fields!(Placement {
    node: needed("on"),
    decision: key("decision"),
    front: Flag("by-claim", Front::Claim, Front::Plugin),
    grants: Below("grant"),
});

fields!(ContainerGrant {
    container: Name,
    cards: always("cards"),
    memory: always("memory"),
    burst: key("burst"),
    compute: or("compute", Percent::FULL),
    mode: needed("mode"),
    note: key("note"),
    asked: AmountOf("asked"),
});
