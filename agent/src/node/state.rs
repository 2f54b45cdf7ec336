//! Kubelet, MPS and telemetry read one value, through `tokio::sync::watch::Receiver<Arc<State>>`.

use super::claims::Claimants;
use super::complaint::Complaint;
use super::layouts::LayoutsView;
use super::mps_view::MpsView;
use super::note::Ungranted;
use super::policy::Policy;
use super::pool::Pool;
use crate::gpu::GpuUuid;
use crate::inventory::Inventory;
use crate::ledger::{HolderKey, Ledger};
use crate::mps;
use crate::numa::Numa;
use crate::reconcile::LocalSource;
use api::gpu_node::{TimeSlice, TopologyManager};
use api::grant::{NodeIdentity, PodIdentity};
use proto::mps::Plan;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Everything the agent knows of its node, finished and consistent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Name by configuration; UID empty until the API server returned it.
    pub node: NodeIdentity,
    /// Cards, health, what can be granted.
    pub inventory: Inventory,
    /// The shares and their holders.
    pub ledger: Ledger,
    /// By their UIDs the claims in the ledger: pods that wait for one, and that must not have it.
    pub claims: BTreeMap<String, Claimants>,
    /// Complaints about containers, and events that affected them.
    pub complaints: BTreeMap<HolderKey, Complaint>,
    /// Processes on a card without a grant whose pods should be evicted: by card and pid.
    pub evicted_strangers: BTreeSet<(GpuUuid, u32)>,
    /// How often cards were seen in another compute mode than the shares on them need, while
    /// they had it.
    pub mode_faults: BTreeMap<GpuUuid, u32>,
    /// The last plan that the MPS supervisor carried out, and its observation after that.
    pub mps: MpsView,
    /// Cards in MIG mode that are to have another layout.
    pub layouts: LayoutsView,
    /// By card: seen in the kubelet's `GetAllocatableResources`.
    pub kubelet_pools: BTreeMap<GpuUuid, Pool>,
    /// The kubelet's topology manager, if it refuses pods.
    pub topology_manager: Option<TopologyManager>,
    /// Where it does: the pods that it has admitted and that
    /// have not finished.
    pub admitted: BTreeSet<PodIdentity>,
    /// What is aligned there; `None` until it is read.
    pub numa: Option<Arc<Numa>>,
    /// `None` when the node offers shares; else one sentence that says why not.
    pub not_offering: Option<String>,
    /// Holds the cards on which no new share starts for now because their processes cannot be read
    /// in time, each with the reason in one sentence.
    pub unguarded: BTreeMap<GpuUuid, String>,
    /// Samples of a card's processes that were too old to be judged, since the agent's start.
    pub stale_samples: u64,
    /// The files on disk at the agent's start are in the ledger: before that, nothing may follow
    /// from a missing entry.
    pub restored: bool,
    /// The parts of the node that cannot be read; their last known state stays in use.
    pub unreadable: BTreeSet<LocalSource>,
    /// Containers of which the core has to know whether they have a process.
    pub doubted: BTreeSet<String>,
    /// `metadata.uid` of the mirrors of static pods, by the UIDs that the kubelet gave the pods.
    pub mirrors: BTreeMap<String, String>,
    /// Pods that have held devices without a grant for too long.
    pub ungranted: Vec<Ungranted>,
    /// The admin's policy, with its generation; `None` until the `GpuNode` was seen.
    pub policy: Option<Policy>,
    /// PEM of the CA that the cluster's trust `ConfigMap` names; empty until seen.
    pub trusted_ca: String,
    /// What health endpoints answer.
    pub ready: Readiness,
}

impl State {
    /// Returns the UID that a pod has at the API server. Everything here goes by the kubelet's, which
    /// is another one for a static pod.
    pub fn api_uid<'a>(&'a self, kubelet_uid: &'a str) -> &'a str {
        let mirror = self.mirrors.get(kubelet_uid);
        mirror.map_or(kubelet_uid, String::as_str)
    }

    /// Returns what the node needs of the MPS supervisor.
    pub fn plan(&self) -> Plan {
        let policy = self.policy.as_ref();
        let slice = policy.and_then(|policy| policy.spec.time_slice);
        mps::plan::plan(
            &self.ledger,
            &self.inventory,
            &self.mps.seen.servers,
            &self.mode_faults,
            slice.map(TimeSlice::number),
        )
    }
}

/// Which parts of the agent work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// NVML answers.
    pub nvml: bool,
    /// The kubelet holds a stream for shares.
    pub registered: bool,
    /// Pods, Node and trust were read once.
    pub cluster: bool,
}
