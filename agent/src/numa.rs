//! The node's NUMA zones, and what the kubelet has given of them to which pod.
//!
//! In: the zones' CPUs from sysfs, `PodResources`, the pods that the kubelet has admitted. Out:
//! [`Numa`], for schedulers. Only where the admin says in `GpuNode.spec` that the kubelet's topology
//! manager refuses pods. Which of its managers give hints is seen in what they can allocate: a CPU
//! manager or memory manager with policy `none` has nothing.

use crate::kubelet::pod_resources::Lister;
use crate::node::{Event, Owner, State};
use api::grant::PodIdentity;
use proto::podresources::{AllocatableResourcesResponse, ContainerMemory, PodResources};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pause before what could not be read is read again.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which what can be allocated is read again: a restarted kubelet may reserve more.
const IDLE: Duration = Duration::from_secs(30);
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

/// What is known, and of whom.
struct Follower {
    lister: Lister,
    machine: Machine,
    told: Option<Numa>,
    used: BTreeMap<String, Used>,
}

/// Follows it, until `stop`.
pub async fn follow(
    lister: Lister,
    sys: std::path::PathBuf,
    mut state: watch::Receiver<Arc<State>>,
    owner: Owner,
    stop: CancellationToken,
) {
    let mut follower = Follower {
        lister,
        machine: Machine::new(),
        told: None,
        used: BTreeMap::new(),
    };
    let mut seen: Option<BTreeSet<PodIdentity>> = None;
    let mut complete = true;
    let mut read = tokio::time::Instant::now();
    loop {
        let admitted = admitted(&state.borrow_and_update());
        let wait = if complete { IDLE } else { AGAIN };
        let due = read.elapsed() >= wait;
        if seen != admitted || due {
            if follower.machine.is_empty() {
                follower.machine = machine(&sys);
            }
            let numa = match &admitted {
                None => Ok(None),
                Some(pods) => follower.look(pods).await.map(Some),
            };
            read = tokio::time::Instant::now();
            complete = numa.is_ok();
            seen = admitted;
            let numa = numa.unwrap_or_else(|error| {
                tracing::debug!(%error, "the kubelet's NUMA zones cannot be read");
                follower.told.clone()
            });
            if numa != follower.told {
                follower.told.clone_from(&numa);
                if owner.tell(Event::Numa(numa.map(Arc::new))).is_err() {
                    return;
                }
            }
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() {
                return;
            },
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Pods that the kubelet has admitted; `None`: it refuses none for its NUMA alignment.
fn admitted(state: &State) -> Option<BTreeSet<PodIdentity>> {
    let manager = state.topology_manager.as_ref();
    manager.map(|_| state.admitted.clone())
}

impl Follower {
    /// Pods that were read are not read again: the kubelet keeps what it gave.
    async fn look(
        &mut self,
        pods: &BTreeSet<PodIdentity>,
    ) -> Result<Numa, crate::kubelet::pod_resources::ListerError> {
        let mut numa = zones(&self.machine, &self.lister.all_allocatable().await?);
        let is_there = |uid: &String| pods.iter().any(|pod| pod.uid == *uid);
        self.used.retain(|uid, _| is_there(uid));
        for pod in pods {
            if self.used.contains_key(&pod.uid) {
                continue;
            }
            // A kubelet before 1.34 lists all pods, or none.
            let found = match self.lister.get(pod).await {
                Ok(found) => found,
                Err(_) => {
                    let mut all = self.lister.list().await?.into_iter();
                    all.find(|one| one.name == pod.name && one.namespace == pod.namespace)
                }
            };
            if let Some(found) = found {
                self.used
                    .insert(pod.uid.clone(), used(&self.machine, &found));
            }
        }
        numa.used.clone_from(&self.used);
        Ok(numa)
    }
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
