//! What the core hears, and what it asks for.

use super::note::Note;
use super::policy::Policy;
use super::pool::Pool;
use crate::gpu::GpuUuid;
use crate::ledger::{AllocId, ProofName};
use crate::numa::Numa;
use crate::nvml::{LayoutOrder, Observation, Sample, Xid};
use crate::pods::PodView;
use crate::reconcile::Local;
use crate::resource::Resource;
use crate::termination::{Drain, Termination};
use api::gpu_node::TopologyManager;
use api::grant::Verifier;
use proto::mps;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// NVML was asked.
    Observed(Arc<Observation>),
    /// The processes of the cards with shares were read.
    Sampled(Arc<Sample>),
    /// The driver reported a fault.
    Fault(Xid),
    /// The whole list of this node's pods.
    PodsListed(Vec<PodView>),
    /// A pod came or changed.
    Pod(Box<PodView>),
    /// A pod left.
    PodGone(String),
    /// The Node object was read.
    NodeUid(String),
    /// The trust `ConfigMap` was read: keys and CA.
    Trust(Verifier, String),
    /// `GpuNode.spec` was read; `None`: there is no `GpuNode`.
    Policy(Option<Policy>),
    /// The node's `NodeResourceTopology` was read: the kubelet's topology manager. `None`: it says
    /// nothing of it.
    TopologyManager(Option<TopologyManager>),
    /// The MPS supervisor accepted a plan, and reported its observation after that.
    Mps(mps::Plan, mps::Observation),
    /// Something changed there since.
    MpsSeen(mps::Observation),
    /// The MPS supervisor cannot be reached, and why.
    MpsSilent(String),
    /// The IDs that the kubelet can allocate.
    Pools(BTreeMap<GpuUuid, Pool>),
    /// NUMA zones, and what is taken of them; `None`: the kubelet refuses no pod for them.
    Numa(Option<Arc<Numa>>),
    /// The disk was read.
    Local(Local),
    /// The pods that a claim is reserved for were read: its UID, and theirs.
    Reserved(String, BTreeSet<String>),
    /// The kubelet was answered.
    Minted {
        /// Our answer's name.
        alloc: AllocId,
        /// The resource.
        resource: Resource,
        /// The IDs.
        ids: BTreeSet<String>,
    },
    /// The kubelet holds a stream for shares, or lost it.
    Registered(bool),
    /// The agent stops soon: schedulers are to bind nothing more to its cards. What is bound
    /// already is served until it ends.
    Leaving,
    /// A layout was made, or not and why.
    LayoutMade(LayoutOrder, Result<(), String>),
    /// A reason to offer nothing that is not about cards; `None`: it went away.
    Obstacle(Obstacle, Option<String>),
    /// Time passed.
    Tick,
}

/// What keeps the whole node from being offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// Another plugin serves whole cards.
    OtherPlugin,
    /// The hook is not in its place.
    Hook,
}

/// What the owner does for the core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Remove CDI file, share folder and proofs.
    Forget(AllocId),
    /// Remove the proof of a container that has ended while its claim continues.
    ForgetProof(ProofName),
    /// Write the list of containers that may have the share of a claim.
    List(AllocId),
    /// Report by telemetry.
    Tell(Note),
    /// End processes of a container.
    End(Termination),
    /// The MPS server is to break off the work of clients that are about to be killed.
    Drain(Drain),
    /// Destroy a card's MIG instances and create others.
    MakeLayout(LayoutOrder),
}
