//! A note says what happened once. Telemetry counts it, and tells schedulers.

use crate::gpu::{ComputeMode, GpuUuid};
use crate::inventory::Health;
use api::grant::PodIdentity;
use std::time::Duration;

/// An occurrence for counters, histograms and the schedulers. The sender never waits for it.
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
        /// The part that was spent waiting for others: the API server, the card's MPS server, and
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
        /// The card.
        gpu: GpuUuid,
        /// NVIDIA's number.
        xid: u64,
    },
    /// A card is unhealthy, for another reason than before, or healthy again.
    Health {
        /// The card.
        gpu: GpuUuid,
        /// Its health now.
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
        /// The card.
        gpu: GpuUuid,
        /// Its compute mode.
        is: ComputeMode,
        /// The compute mode that its shares need.
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
        /// The agent's reaction: warned, reported, evicted, killed.
        action: &'static str,
        /// The violation in one sentence.
        text: String,
    },
    /// A pod's process uses a card without a grant.
    Stranger {
        /// The card.
        gpu: GpuUuid,
        /// UID of its pod.
        pod_uid: String,
        /// The agent's reaction: reported, evicted, killed.
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
        /// The reason in one line.
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
    /// The reason in one sentence, the same that the kubelet shows.
    pub reason: String,
    /// Only a new decision helps; the agent will say the same again.
    pub is_final: bool,
}

/// A container that holds devices and has no grant for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ungranted {
    /// Its pod.
    pub pod: PodIdentity,
    /// Its name.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// The number of its devices.
    pub devices: usize,
}
