//! Text → rules between pods, and namespaces.

use super::line::Line;
use super::read::{Read, labels, needed, term};
use crate::event::Namespace;
use crate::model::{HostPort, Pod, PodSelector, PodTerm, PreferredTerm, Requirement, Spread};
use std::sync::Arc;

/// Kinds of lines below a pod that say them.
pub(super) const KINDS: [&str; 5] = ["near", "away", "prefer", "spread", "port"];

pub(super) fn namespace(line: &Line) -> Read<Namespace> {
    Ok(Namespace {
        name: Arc::from(line.name(1)?),
        labels: labels(line, "label"),
    })
}

fn requirements(line: &Line, key: &str) -> Read<Option<Vec<Requirement>>> {
    let text = line.get(key).map(|text| term(line, text));
    Ok(text.transpose()?.map(|term| term.labels))
}

fn pod_term(line: &Line) -> Read<PodTerm> {
    Ok(PodTerm {
        pods: PodSelector {
            namespaces: line.all("ns").map(Arc::from).collect(),
            namespace_labels: requirements(line, "ns-labels")?,
            labels: requirements(line, "labels")?,
        },
        topology_key: Arc::from(line.name(1)?),
    })
}

/// Into the pod, from the lines below its own.
pub(super) fn pod_rules(line: &Line, pod: &mut Pod) -> Read<()> {
    for line in line
        .below
        .iter()
        .filter(|line| KINDS.contains(&line.kind()))
    {
        match line.kind() {
            "near" => pod.pods.affinity.push(pod_term(line)?),
            "away" => pod.pods.anti_affinity.push(pod_term(line)?),
            "prefer" => pod.pods.preferred.push(PreferredTerm {
                weight: line.number("weight")?.unwrap_or(1),
                term: pod_term(line)?,
            }),
            "spread" => pod.pods.spread.push(Spread {
                term: pod_term(line)?,
                max_skew: line.number("max-skew")?.unwrap_or(1),
                min_domains: line.number("min-domains")?,
                honors_affinity: !line.flag("any-node"),
                honors_taints: line.flag("honor-taints"),
                required: !line.flag("preferred"),
            }),
            _ => pod.ports.push(HostPort {
                protocol: Arc::from(line.name(1)?),
                port: needed(line, "port")?
                    .parse()
                    .map_err(|_| line.error("port is no port"))?,
                address: Arc::from(line.get("address").unwrap_or(HostPort::ANY_ADDRESS)),
            }),
        }
        line.finish()?;
    }
    Ok(())
}
