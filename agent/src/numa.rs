//! This file counts the node's NUMA zones and what pods have of them. It is pure, but for the kernel's
//! list of CPUs.
//!
//! In: the zones' CPUs from sysfs, answers of `PodResources`. Out: [`Numa`], for schedulers. Which of
//! the kubelet's managers give hints is seen in what they can allocate: a CPU manager or memory
//! manager with policy `none` has nothing.

use proto::podresources::{AllocatableResourcesResponse, ContainerMemory, PodResources};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The kubelet's name of ordinary memory; the rest are huge pages.
const MEMORY: &str = "memory";

/// CPUs by zone, as the kernel numbers both.
pub type Machine = BTreeMap<u32, BTreeSet<i64>>;

/// What is aligned, and what is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numa {
    /// CPUs can be exclusive.
    pub cpu_manager: bool,
    /// Memory can be pinned.
    pub memory_manager: bool,
    /// By the kernel's number.
    pub zones: BTreeMap<u32, Zone>,
    /// By UID of the pod. A pod that holds nothing of a zone is in it too.
    pub used: BTreeMap<String, Used>,
}

/// One zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Reserved ones too.
    pub cpus: u32,
    /// That containers may get exclusively.
    pub allocatable_cpus: u32,
    /// Bytes that may be pinned.
    pub memory: u64,
}

/// What a pod has, by zone.
pub type Used = BTreeMap<u32, Taken>;

/// What a pod has of one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Exclusive CPUs.
    pub cpus: u32,
    /// Bytes of pinned memory.
    pub memory: u64,
}

/// Zones with CPUs, from `devices/system/node` below `sys`. Empty where it cannot be read.
pub fn machine(sys: &Path) -> Machine {
    let folder = sys.join("devices/system/node");
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let zone = |entry: std::fs::DirEntry| {
        let id = entry
            .file_name()
            .to_str()?
            .strip_prefix("node")?
            .parse()
            .ok()?;
        let text = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
        Some((id, cpu_list(&text)?))
    };
    entries.filter_map(zone).collect()
}

/// `0-3,8`, the kernel's way to write a set of CPUs.
fn cpu_list(text: &str) -> Option<BTreeSet<i64>> {
    let mut cpus = BTreeSet::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(i64::from(first)..=i64::from(last));
    }
    Some(cpus)
}

/// What each zone has to give.
pub fn zones(machine: &Machine, allocatable: &AllocatableResourcesResponse) -> Numa {
    let mut numa = Numa {
        cpu_manager: !allocatable.cpu_ids.is_empty(),
        memory_manager: allocatable.memory.iter().any(|one| one.size > 0),
        ..Numa::default()
    };
    for (id, cpus) in machine {
        let exclusive = allocatable.cpu_ids.iter().filter(|cpu| cpus.contains(cpu));
        let zone = Zone {
            cpus: count(cpus.len()),
            allocatable_cpus: count(exclusive.count()),
            memory: 0,
        };
        numa.zones.insert(*id, zone);
    }
    for (id, part) in allocatable.memory.iter().flat_map(parts) {
        let zone = numa.zones.entry(id).or_default();
        zone.memory = zone.memory.saturating_add(part);
    }
    numa
}

/// What one pod has.
pub fn used(machine: &Machine, pod: &PodResources) -> Used {
    let mut used = Used::new();
    for container in &pod.containers {
        for cpu in &container.cpu_ids {
            let zone = machine.iter().find(|(_, cpus)| cpus.contains(cpu));
            if let Some((id, _)) = zone {
                used.entry(*id).or_default().cpus += 1;
            }
        }
        for (id, part) in container.memory.iter().flat_map(parts) {
            let taken = used.entry(id).or_default();
            taken.memory = taken.memory.saturating_add(part);
        }
    }
    used
}

/// A block of memory by zone. How much of one that spans zones is where is not said: equal parts.
fn parts(block: &ContainerMemory) -> Vec<(u32, u64)> {
    let nodes = block.topology.iter().flat_map(|topology| &topology.nodes);
    let ids: Vec<u32> = nodes.filter_map(|node| node.id.try_into().ok()).collect();
    if block.memory_type != MEMORY || ids.is_empty() {
        return Vec::new();
    }
    let part = block.size.div_ceil(ids.len() as u64);
    ids.into_iter().map(|id| (id, part)).collect()
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::podresources::{ContainerResources, NumaNode, TopologyInfo};

    fn two_sockets() -> Machine {
        BTreeMap::from([(0, (0..4).collect()), (1, (4..8).collect())])
    }

    fn memory(size: u64, zones: &[i64]) -> ContainerMemory {
        ContainerMemory {
            memory_type: MEMORY.into(),
            size,
            topology: Some(TopologyInfo {
                nodes: zones.iter().map(|id| NumaNode { id: *id }).collect(),
            }),
        }
    }

    #[test]
    fn zones_are_read_from_sysfs() {
        let sys = tempfile::tempdir().unwrap();
        for (node, cpus) in [("node0", "0-1,8\n"), ("node1", "2-3\n"), ("possible", "")] {
            let folder = sys.path().join("devices/system/node").join(node);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cpulist"), cpus).unwrap();
        }
        let expected = BTreeMap::from([(0, [0, 1, 8].into()), (1, [2, 3].into())]);
        assert_eq!(machine(sys.path()), expected);
        assert_eq!(machine(&sys.path().join("absent")), Machine::new());
        assert_eq!(cpu_list("0-x"), None);
    }

    #[test]
    fn a_zone_has_what_the_kubelet_can_allocate_of_it() {
        let allocatable = AllocatableResourcesResponse {
            cpu_ids: (1..8).collect(),
            memory: vec![memory(100, &[0]), memory(200, &[1])],
            ..AllocatableResourcesResponse::default()
        };
        let numa = zones(&two_sockets(), &allocatable);
        assert!(numa.cpu_manager && numa.memory_manager);
        let zone = |allocatable_cpus, memory| Zone {
            cpus: 4,
            allocatable_cpus,
            memory,
        };
        assert_eq!(
            numa.zones,
            BTreeMap::from([(0, zone(3, 100)), (1, zone(4, 200))])
        );
        let none = zones(&two_sockets(), &AllocatableResourcesResponse::default());
        assert!(!none.cpu_manager && !none.memory_manager);
    }

    #[test]
    fn a_pod_has_the_cpus_and_memory_of_all_its_containers() {
        let container = |cpu_ids: &[i64], memory: Vec<ContainerMemory>| ContainerResources {
            cpu_ids: cpu_ids.to_vec(),
            memory,
            ..ContainerResources::default()
        };
        let mut huge = memory(64, &[0]);
        huge.memory_type = "hugepages-2Mi".into();
        let pod = PodResources {
            containers: vec![
                container(&[1, 2, 5], vec![memory(7, &[0, 1]), huge]),
                container(&[3], vec![memory(10, &[0])]),
            ],
            ..PodResources::default()
        };
        let taken = |cpus, memory| Taken { cpus, memory };
        let expected = BTreeMap::from([(0, taken(3, 14)), (1, taken(1, 4))]);
        assert_eq!(used(&two_sockets(), &pod), expected);
        assert_eq!(used(&two_sockets(), &PodResources::default()), Used::new());
    }
}
