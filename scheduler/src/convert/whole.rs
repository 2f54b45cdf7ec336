//! Bound pods with whole cards: the kubelet may pick another card than was granted.

use crate::stored_pod::StoredPod;
use proto::telemetry::Share as HeldShare;
use scheduler_core::ids::{ContainerName, GpuUuid};
use scheduler_core::model::{ContainerGrant, Mode, Phase, Placement};
use scheduler_core::units::{Mib, Percent};

/// A pod that holds whole cards.
#[derive(Debug)]
pub(super) struct WholePod {
    /// The cards that the core knows of, sorted. Agents name the pod's cards in each of their messages,
    /// and the pod is converted again only if these differ. `None` if the pod has no place.
    pub(super) cards: Option<Vec<GpuUuid>>,
    pub(super) pod: StoredPod,
}

pub(super) fn placement(pod: &scheduler_core::model::Pod) -> Option<&Placement> {
    match &pod.phase {
        Phase::Bound(placement) | Phase::Running(placement) | Phase::Releasing(Some(placement)) => {
            Some(placement)
        }
        _ => None,
    }
}

/// Returns the cards that grants name, sorted and each once.
pub(super) fn cards_of(grants: &[ContainerGrant]) -> Vec<GpuUuid> {
    let mut cards: Vec<_> = grants
        .iter()
        .flat_map(|grant| grant.cards.clone())
        .collect();
    cards.sort();
    cards.dedup();
    cards
}

pub(super) fn held(share: &HeldShare) -> ContainerGrant {
    ContainerGrant {
        container: ContainerName::new(&share.container),
        cards: share.gpu_uuids.iter().map(GpuUuid::new).collect(),
        memory: Mib(share.memory_mib),
        burst: None,
        compute: u8::try_from(share.compute_percent)
            .ok()
            .and_then(Percent::new)
            .unwrap_or(Percent::FULL),
        mode: Mode::Exclusive,
        note: None,
        asked: None,
    }
}
