//! [`State`]: the one value that kubelet, MPS and telemetry read, through
//! `tokio::sync::watch::Receiver<Arc<State>>`; [`Note`]: what telemetry reports once.

use super::claims::Claimants;
use super::layouts::LayoutsView;
use crate::gpu::{ComputeMode, GpuUuid};
use crate::inventory::{Health, Inventory};
use crate::ledger::{HolderKey, Ledger};
use crate::mps;
use crate::numa::Numa;
use crate::reconcile::LocalSource;
use api::gpu_node::{GpuNodeSpec, TimeSlice, TopologyManager};
use api::grant::{NodeIdentity, PodIdentity};
use proto::mps::{Observation, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

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

/// `GpuNode.spec` and where it came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// As written.
    pub spec: GpuNodeSpec,
    /// `metadata.generation`.
    pub generation: i64,
}

/// What the MPS supervisor has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MpsView {
    /// The plan that it last accepted.
    pub applied: Plan,
    /// The part of that plan that the node has needed without a break since then. Anything else may
    /// be starting, running or ended, whatever was observed.
    pub holding: Plan,
    /// Its observation after that.
    pub seen: Observation,
    /// Why it cannot be reached; empty while it answers.
    pub unreachable: String,
}

/// Why a container should not stay, or what it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaint {
    /// One sentence.
    pub text: String,
    /// Its pod should be evicted for it.
    pub evict: bool,
}

/// A container that holds devices and has no grant for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ungranted {
    /// Its pod.
    pub pod: PodIdentity,
    /// Its name.
    pub container: String,
    /// Of which resource.
    pub resource: String,
    /// How many devices of it.
    pub devices: usize,
}

/// Where the kubelet shows a card, by its own account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pool {
    /// Not asked yet.
    #[default]
    Unknown,
    /// As `nvidia.com/gpu`, and by its tokens.
    Whole,
    /// As `nvidia.com/gpu` only: a pod holds it, or held it a moment ago.
    WholeOnly,
    /// By its tokens alone.
    Shared,
    /// Not at all.
    None,
}

impl Pool {
    /// The name in telemetry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Whole => "whole",
            Self::WholeOnly => "whole-only",
            Self::Shared => "shared",
            Self::None => "none",
        }
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

/// What happened once, for counters, histograms and the schedulers. Never awaited by
/// the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A grant that is not honoured; goes to every scheduler.
    Refused(RefusedGrant),
    /// An `Allocate` was answered.
    Allocated {
        /// Handler's time.
        took: Duration,
    },
    /// A `PreStartContainer` was answered.
    PreStarted {
        /// Handler's time, waits included.
        took: Duration,
        /// False: refused.
        granted: bool,
    },
    /// A claim was prepared, or refused.
    Claimed {
        /// Since the kubelet asked, waits and questions to the API server included.
        took: Duration,
        /// What of it was spent waiting for others: the API server, the card's MPS server, and
        /// the runtime, which has to see the CDI file.
        waited: Duration,
        /// False: refused.
        granted: bool,
    },
    /// The kubelet accepted a registration of this resource.
    Registered {
        /// Its name.
        resource: String,
        /// Since the agent's start, for the first one.
        since_start: Duration,
    },
    /// The driver reported a fault.
    Xid {
        /// On which card.
        gpu: GpuUuid,
        /// NVIDIA's number.
        xid: u64,
    },
    /// A card is unhealthy, for another reason than before, or healthy again.
    Health {
        /// Which.
        gpu: GpuUuid,
        /// As it is now.
        health: Health,
    },
    /// A card had the driver's memory limits, and probes find that it no longer has them.
    LimitsLost {
        /// The card.
        gpu: GpuUuid,
        /// The part that is missing.
        missing: String,
    },
    /// A card's compute mode was changed, not by us. It is set again.
    ComputeMode {
        /// Which.
        gpu: GpuUuid,
        /// As it is.
        is: ComputeMode,
        /// As the shares on it need it.
        needed: ComputeMode,
    },
    /// A share was freed because its holder has ended.
    Freed {
        /// `namespace/name` of the pod.
        pod: String,
    },
    /// A container holds more than its share, or uses a card past its server.
    Violation {
        /// Its pod.
        pod: PodIdentity,
        /// Its name.
        container: String,
        /// The kind of problem, as a metric label.
        wrong: &'static str,
        /// What is done about it: warned, reported, evicted, killed.
        action: &'static str,
        /// One sentence.
        text: String,
    },
    /// A pod's process uses a card without a grant.
    Stranger {
        /// On which card.
        gpu: GpuUuid,
        /// UID of its pod.
        pod_uid: String,
        /// What is done about it: reported, evicted, killed.
        action: &'static str,
    },
    /// An MPS server does not take clients any more.
    ServerBroke {
        /// Its name: a card, or an isolated share.
        server: String,
        /// `ServerFault` or `Ended`.
        state: &'static str,
        /// The pod whose client did it, where that can be told, else `unknown`.
        blamed: String,
        /// One line.
        reason: String,
    },
    /// It takes clients again.
    ServerMended {
        /// Its name.
        server: String,
        /// Since it broke.
        after: Duration,
    },
    /// A container has held devices for too long without a grant.
    Ungranted(Ungranted),
    /// A container runs with our token and without the hook's proof.
    Unproven {
        /// Its pod.
        pod: PodIdentity,
        /// Its name.
        container: String,
    },
}

/// A grant that this node does not honour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedGrant {
    /// The pod.
    pub pod: PodIdentity,
    /// Its container.
    pub container: String,
    /// From the grant, where it is readable.
    pub decision: String,
    /// One sentence, the same that the kubelet shows.
    pub reason: String,
    /// Only a new decision helps; the agent will say the same again.
    pub is_final: bool,
}
