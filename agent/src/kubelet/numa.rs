//! This task follows which CPUs and how much memory of each NUMA zone the kubelet has given to pods.
//!
//! In: `PodResources`, the pods that the kubelet has admitted. Out: [`Event::Numa`]. It does so only
//! where the kubelet's topology manager refuses pods, by `GpuNode.spec` or by the node's
//! `NodeResourceTopology`.

use super::pod_resources::{Lister, ListerError};
use crate::node::{Event, Owner, State};
use crate::numa::{Machine, Numa, Used, machine, used, zones};
use api::grant::PodIdentity;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pause before what could not be read is read again.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which what can be allocated is read again: a restarted kubelet may reserve more.
const IDLE: Duration = Duration::from_secs(30);

/// The last answer of the kubelet and the sources that it is computed from.
struct Follower {
    lister: Lister,
    machine: Machine,
    told: Option<Numa>,
    used: BTreeMap<String, Used>,
}

/// Follows the kubelet's allocations, until `stop`.
pub async fn follow(
    lister: Lister,
    sys: PathBuf,
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
    async fn look(&mut self, pods: &BTreeSet<PodIdentity>) -> Result<Numa, ListerError> {
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
