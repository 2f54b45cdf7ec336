//! The request signature: everything on which a placement depends and that many pods have alike.

use crate::ids::{ClaimUid, ResourceName};
use crate::model::{
    AlignedContainer, Ask, Attachment, Claim, ContainerAsk, DeviceClaim, DeviceWants, Front,
    HostPort, Labels, NodeRules, PodRules, PodTerm, Toleration,
};
use crate::state::hold::Hold;
use crate::units::{Bytes, CpuMilli};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Everything on which a placement depends and that many pods have alike: the request
/// signature under which answers are cached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spec {
    pub cpu: CpuMilli,
    pub memory: Bytes,
    pub extended: BTreeMap<ResourceName, u64>,
    pub gpus: Vec<ContainerAsk>,
    pub aligned: Vec<AlignedContainer>,
    pub claims: Vec<Claim>,
    pub attachments: Vec<Attachment>,
    pub devices: Vec<ClaimAsk>,
    pub rules: NodeRules,
    pub tolerations: Vec<Toleration>,
    pub ports: Vec<HostPort>,
    /// `None`: its place has nothing to do with other pods'.
    pub others: Option<Arc<PodRelations>>,
    pub unsupported: Vec<Arc<str>>,
    pub lacks: Vec<Arc<str>>,
    /// What cannot be meant about it, one sentence.
    pub bad: Option<Arc<str>>,
}

impl Spec {
    /// It asks for cards by annotation or as whole ones, other than by claims.
    pub(crate) fn is_by_annotation(&self, front: Front) -> bool {
        let by_claim = |ask: &ContainerAsk| {
            front == Front::Claim && self.stands_in() && matches!(ask.ask, Ask::Whole(_))
        };
        !self.gpus.iter().all(by_claim)
    }

    /// A claim may stand in for its whole GPUs.
    pub(crate) fn stands_in(&self) -> bool {
        self.devices.iter().any(|ask| ask.stands_in)
    }
}

/// What a pod asks of devices by one of its claims.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClaimAsk {
    /// `None`: made for the pod alone, so that it does not matter which one it is.
    pub claim: Option<ClaimUid>,
    /// For the whole GPUs in the pod's resources.
    pub stands_in: bool,
    pub wants: Arc<DeviceWants>,
}

impl ClaimAsk {
    pub(crate) fn of(claim: &DeviceClaim) -> Self {
        Self {
            claim: (!claim.own).then(|| claim.uid.clone()),
            stands_in: claim.stands_in,
            wants: Arc::clone(&claim.wants),
        }
    }
}

/// What its place has to do with other pods'.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodRelations {
    pub rules: PodRules,
    /// All terms of its affinity speak of the pod itself: the first of its kind may go anywhere.
    pub is_near_itself: bool,
    /// Of each constraint of its spread, whether the pod itself is counted.
    pub counts_itself: Vec<bool>,
    /// What terms of other pods see in it. `None`: there is none that may speak of it.
    pub subject: Option<TermSubject>,
    /// False for another scheduler's pod: only what its terms do to others counts.
    pub ours: bool,
}

/// What anti-affinity and preferences of other pods see in a pod: to two that are alike in this
/// every term does the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TermSubject {
    pub namespace: Arc<str>,
    /// Those of its labels that the terms look at that may speak of it.
    pub labels: Labels,
}

impl PodRelations {
    /// Returns what the rules of a pod and its subject come to. `speaks_of_it` says whether a term
    /// speaks of the pod itself. `None`: its place has nothing to do with other pods'.
    pub(crate) fn of(
        rules: PodRules,
        subject: Option<TermSubject>,
        ours: bool,
        speaks_of_it: impl Fn(&PodTerm) -> bool,
    ) -> Option<Arc<Self>> {
        if rules.is_empty() && subject.is_none() {
            return None;
        }
        Some(Arc::new(Self {
            is_near_itself: rules.affinity.iter().all(&speaks_of_it),
            counts_itself: rules
                .spread
                .iter()
                .map(|spread| speaks_of_it(&spread.term))
                .collect(),
            rules,
            subject,
            ours,
        }))
    }

    /// Others that are placed may open a node for it that was closed.
    pub(crate) fn may_gain(&self) -> bool {
        !self.rules.affinity.is_empty() || self.rules.spread.iter().any(|spread| spread.required)
    }

    /// Some nodes are better than others because of what it says of other pods.
    pub(crate) fn prefers(&self) -> bool {
        !self.rules.preferred.is_empty() || self.rules.spread.iter().any(|spread| !spread.required)
    }
}

/// Returns the number of whole GPUs that a spec takes of a node, by the kubelet's rule: the most that
/// its containers use at one time.
pub(crate) fn whole_gpus(spec: &Spec) -> u32 {
    let count = |ask: &ContainerAsk| match &ask.ask {
        Ask::Whole(count) => u128::from(*count),
        Ask::Share(_) => 0,
    };
    u32::try_from(most_at_once(&spec.gpus, count)).unwrap_or(u32::MAX)
}

/// Returns the most of an amount that the containers of a pod request at one time. `asks` are in the
/// order in which the containers start.
pub(super) fn most_at_once(asks: &[ContainerAsk], amount: impl Fn(&ContainerAsk) -> u128) -> u128 {
    let (mut running, mut most) = (0_u128, 0);
    for ask in asks {
        let with = running.saturating_add(amount(ask));
        most = with.max(most);
        if !ask.init {
            running = with;
        }
    }
    most
}

/// Whole GPUs of a place that are only counted: not those that it holds by card or by claim.
pub(crate) fn counted_gpus(spec: &Spec, front: Front, holds: &[Hold]) -> u32 {
    if holds.is_empty() && front == Front::Plugin {
        whole_gpus(spec)
    } else {
        0
    }
}
