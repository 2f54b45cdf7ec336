//! NUMA zones, and what is aligned to them, as text and back.

use super::line::Line;
use super::read::{Read, needed};
use super::write::Text;
use crate::ids::PodUid;
use crate::model::{
    AlignedContainer, NodeCards, NumaUse, NumaZone, Pod, TopologyManager, TopologyPolicy,
    TopologyScope,
};
use crate::units::Bytes;

/// Kinds of lines below a node's cards that are no cards.
const OF_NODE: [&str; 2] = ["zone", "used"];

/// The kind of line below a pod.
pub(super) const ALIGNED: &str = "aligned";

pub(super) fn is_of_node(line: &Line) -> bool {
    OF_NODE.contains(&line.kind())
}

pub(super) fn topology_manager(line: &Line) -> Read<Option<TopologyManager>> {
    let Some(policy) = line.get("topology-policy") else {
        return match line.below.iter().find(|below| is_of_node(below)) {
            Some(below) => Err(below.error("topology-policy is wanted")),
            None => Ok(None),
        };
    };
    let mut manager = TopologyManager {
        policy: match policy {
            "restricted" => TopologyPolicy::Restricted,
            "single-numa-node" => TopologyPolicy::SingleNumaNode,
            other => return Err(line.error(format!("{other} is no policy"))),
        },
        scope: if line.flag("pod-scope") {
            TopologyScope::Pod
        } else {
            TopologyScope::Container
        },
        cpu_manager: line.flag("cpu-manager"),
        memory_manager: line.flag("memory-manager"),
        zones: Vec::new(),
        used: Vec::new(),
    };
    for below in line.below.iter().filter(|below| is_of_node(below)) {
        if below.kind() == "zone" {
            let cpus = below.number("cpus")?.unwrap_or(0);
            manager.zones.push(NumaZone {
                id: below
                    .name(1)?
                    .parse()
                    .map_err(|_| below.error("a zone has a number"))?,
                cpus,
                allocatable_cpus: below.number("allocatable")?.unwrap_or(cpus),
                memory: Bytes(below.number("memory")?.unwrap_or(0)),
            });
        } else {
            manager.used.push(NumaUse {
                pod: PodUid::new(below.name(1)?),
                zone: below.number("zone")?,
                cpus: below.number("cpus")?.unwrap_or(0),
                memory: Bytes(below.number("memory")?.unwrap_or(0)),
            });
        }
        below.finish()?;
    }
    Ok(Some(manager))
}

/// Into the pod, from the lines below its own.
pub(super) fn aligned(line: &Line) -> Read<Vec<AlignedContainer>> {
    let lines = line.below.iter().filter(|line| line.kind() == ALIGNED);
    let read = lines.map(|line| {
        let container = AlignedContainer {
            init: line.flag("init"),
            cpus: needed(line, "cpus")?
                .parse()
                .map_err(|_| line.error("cpus is no number"))?,
            memory: Bytes(line.number("memory")?.unwrap_or(0)),
            gpus: line.number("gpus")?.unwrap_or(0),
            shares: line.number("shares")?.unwrap_or(0),
        };
        line.finish()?;
        Ok(container)
    });
    read.collect()
}

impl Text {
    /// Into the line of its cards.
    pub(super) fn topology_policy(&mut self, cards: &NodeCards) {
        let Some(manager) = &cards.topology_manager else {
            return;
        };
        let policy = match manager.policy {
            TopologyPolicy::Restricted => "restricted",
            TopologyPolicy::SingleNumaNode => "single-numa-node",
        };
        self.pair("topology-policy", policy);
        self.flag("pod-scope", manager.scope == TopologyScope::Pod);
        self.flag("cpu-manager", manager.cpu_manager);
        self.flag("memory-manager", manager.memory_manager);
    }

    pub(super) fn numa_zones(&mut self, cards: &NodeCards) {
        let Some(manager) = &cards.topology_manager else {
            return;
        };
        for zone in &manager.zones {
            self.start("  zone", zone.id);
            self.unless("cpus", zone.cpus, 0);
            self.unless("allocatable", zone.allocatable_cpus, zone.cpus);
            self.unless("memory", zone.memory.0, 0);
            self.end();
        }
        for used in &manager.used {
            self.start("  used", &used.pod);
            self.some("zone", used.zone);
            self.unless("cpus", used.cpus, 0);
            self.unless("memory", used.memory.0, 0);
            self.end();
        }
    }

    pub(super) fn aligned(&mut self, pod: &Pod) {
        for container in &pod.aligned {
            self.bare("  aligned");
            self.flag("init", container.init);
            self.pair("cpus", container.cpus);
            self.unless("memory", container.memory.0, 0);
            self.unless("gpus", container.gpus, 0);
            self.unless("shares", container.shares, 0);
            self.end();
        }
    }
}
