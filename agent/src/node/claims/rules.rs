//! These rules say which containers must not have the share of a claim. Pure.

use super::parts::Takes;
use crate::ledger::{AllocId, HolderKey, Ledger, Share, ShareOptions};
use crate::pods::PodView;
use api::Mode;
use api::units::Fence;

/// Why a pod must not have a share of this kind, if so.
pub(in crate::node) fn may_have(
    pod: &PodView,
    wishes: &ShareOptions,
    mode: Mode,
) -> Result<(), String> {
    // Monitoring is allowed by its namespace's label; the rules for shares do not apply to a
    // whole card.
    let is_fenced = !wishes.observes && mode != Mode::Exclusive;
    match pod.way_around.as_ref().filter(|_| is_fenced) {
        Some(way) => Err(format!(
            "pod {} must not have a share of a GPU: {way}",
            pod.identity
        )),
        None => Ok(()),
    }
}

/// A container has one CDI file, so one share.
pub(in crate::node) fn has_nothing_else(
    ledger: &Ledger,
    pod: &PodView,
    container: &str,
    alloc: Option<AllocId>,
) -> Result<(), String> {
    let key = HolderKey {
        pod_uid: pod.identity.uid.clone(),
        container: container.to_owned(),
    };
    let other = ledger.get(&key);
    let other = other.filter(|share| share.alloc_id.is_some() && share.alloc_id != alloc);
    match other {
        Some(_) => Err(format!(
            "container {container} of pod {} holds another share already",
            pod.identity
        )),
        None => Ok(()),
    }
}

/// Why a share cannot have several containers, if so. `minimum` is the node's minimum fence.
pub(in crate::node) fn alone_only(share: &Share, minimum: Option<Fence>) -> Option<String> {
    let minimum = minimum.into_iter().chain(share.wishes.minimum_fence);
    // Strongest first.
    let needed = minimum.min() == Some(Fence::DriverLimit);
    let fenced = !share.wishes.observes && share.mode != Mode::Exclusive;
    (needed && fenced).then(|| {
        format!(
            "claim {} cannot have several containers where the minimum fence is DriverLimit: the driver limits each of them, and not their sum",
            share.claim_name().unwrap_or_default()
        )
    })
}

/// Returns the error for containers of a pod whose parts of a claim overlap.
pub(super) fn apart(pod: &PodView, claim: &str, takes: &Takes) -> String {
    let names: Vec<&str> = takes.values().flatten().map(String::as_str).collect();
    format!(
        "containers of pod {} ({}) take parts of claim {claim} that overlap with others: containers that use a claim take the same of it, or have nothing in common",
        pod.identity,
        names.join(", ")
    )
}
