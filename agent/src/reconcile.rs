//! What lives and what died. There is no release call: everything is told from what the
//! kubelet wrote, what the API server says, what lies on disk, and what runs on the cards.
//!
//! Pure functions over [`Local`] facts, pods and the ledger; time is a value.

use crate::identity::{Checkpoint, Resource};
use crate::inventory::GpuUuid;
use crate::ledger::{AllocId, Claim, HolderKey, Ledger, Share, SharePhase};
use crate::pods::{ContainerView, Pods, Standing};
use api::Mode;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// While the API server was never reached, an allocation that the kubelet no longer
/// records is dead after this long.
pub const MISSING_GRACE: Duration = Duration::from_secs(10);
/// A container that runs for so long with our token and no proof never met the hook.
pub const PROOF_GRACE: Duration = Duration::from_secs(10);
/// An allocation that never reached the checkpoint is forgotten after this long.
pub const MINTED_GRACE: Duration = Duration::from_mins(1);

/// What lies on this node's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// `None` while it is unreadable or missing.
    pub checkpoint: Option<Checkpoint>,
    /// Our CDI files; `None` for one that does not tell whose it is.
    pub files: BTreeMap<AllocId, Option<Share>>,
    /// What the hook left.
    pub proofs: BTreeMap<AllocId, Proof>,
    /// Folders of share files.
    pub folders: BTreeSet<AllocId>,
}

/// What the hook leaves when it lets a container start.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proof {
    /// Of its pod.
    pub pod_uid: String,
    /// Its name.
    pub container: String,
    /// As the runtime names it.
    pub container_id: String,
    /// What came of the driver's own limit, where the hook tried it.
    #[serde(default)]
    pub limited: Option<Limited>,
}

/// The driver's own limit, as the hook read it back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limited {
    /// MiB; `None`: nothing is known to hold.
    #[serde(default)]
    pub mib: Option<u64>,
    /// Why not; empty when it holds.
    #[serde(default)]
    pub error: String,
}

impl Proof {
    /// Reads a proof file; `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Who holds which device ID, by resource. `None`: someone whom the ledger does not know.
pub type Held = BTreeMap<(Resource, String), Option<HolderKey>>;

/// Allocations that were answered and may not be in the checkpoint yet.
pub type Minted = BTreeMap<AllocId, MintedIds>;

/// One answered allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MintedIds {
    /// Of which resource.
    pub resource: Resource,
    /// The IDs.
    pub ids: BTreeSet<String>,
    /// When.
    pub at: Instant,
}

/// The bound shares as their CDI files tell them, for a ledger that is empty after a start.
pub fn restore(local: &Local) -> Vec<Share> {
    let mut shares: BTreeMap<HolderKey, Share> = BTreeMap::new();
    for share in local.files.values().flatten() {
        let known = local.checkpoint.as_ref().is_none_or(|checkpoint| {
            let alloc = share.alloc_id;
            alloc.is_some_and(|alloc| checkpoint.holds(alloc))
        });
        // Two files of one container: the one that the kubelet knows.
        if known || !shares.contains_key(&share.key()) {
            shares.insert(share.key(), share.clone());
        }
    }
    shares.into_values().collect()
}

/// Shares whose file is lost while their container runs: the grant says what, the
/// checkpoint which allocation, the hook that it started.
pub fn proven<'a>(
    local: &Local,
    claims: impl Iterator<Item = &'a Claim>,
    ledger: &Ledger,
) -> Vec<Share> {
    let unbound = claims.filter(|claim| {
        let share = ledger.get(&claim.key());
        share.is_none_or(|share| share.alloc_id.is_none())
    });
    let find = |claim: &Claim| {
        let entry = local
            .checkpoint
            .iter()
            .flat_map(|c| &c.entries)
            .find(|entry| entry.pod_uid == claim.pod.uid && entry.container == claim.container)?;
        let alloc = entry.alloc?;
        let proof = local.proofs.get(&alloc)?;
        if proof.pod_uid != claim.pod.uid || proof.container != claim.container {
            return None;
        }
        let mut share = claim.bound(alloc);
        if share.mode == Mode::Exclusive {
            // Adopted or granted, these are the cards that it got.
            share.gpus = entry
                .ids
                .iter()
                .map(|id| GpuUuid::from(id.as_str()))
                .collect();
        }
        Some(share)
    };
    unbound.filter_map(find).collect()
}

/// Who holds each device ID: by the checkpoint, and by answers too fresh to be in it.
pub fn held(local: &Local, minted: &Minted, pods: &Pods) -> Held {
    let mut held = Held::new();
    let entries = local.checkpoint.iter().flat_map(|c| &c.entries);
    for entry in entries {
        let resource = match entry.resource.as_str() {
            name if name == Resource::Share.name() => Resource::Share,
            name if name == Resource::Whole.name() => Resource::Whole,
            _ => continue,
        };
        // The kubelet removes entries of finished pods at its next allocation only.
        let ended = match pods.standing(&entry.pod_uid) {
            Standing::Present(pod) => pod.finished,
            Standing::Gone => true,
            // It left before this agent was there. One that is newer than the list is
            // among the minted, and its grant is in the ledger before anything is written.
            Standing::Unknown => pods.synced(),
        };
        if ended {
            continue;
        }
        for id in &entry.ids {
            held.insert(
                (resource, id.clone()),
                Some(HolderKey {
                    pod_uid: entry.pod_uid.clone(),
                    container: entry.container.clone(),
                }),
            );
        }
    }
    for fresh in minted.values() {
        for id in &fresh.ids {
            held.entry((fresh.resource, id.clone())).or_insert(None);
        }
    }
    held
}

/// Shares whose holder is dead. `busy` are pods with a process on some card: memory is
/// free when its processes are gone, not before. `missing` remembers since when the
/// kubelet does not record an allocation.
pub fn deaths(
    ledger: &Ledger,
    local: &Local,
    pods: &Pods,
    busy: &BTreeSet<String>,
    missing: &mut BTreeMap<AllocId, Instant>,
    now: Instant,
) -> Vec<HolderKey> {
    if let Some(checkpoint) = &local.checkpoint {
        missing.retain(|alloc, _| !checkpoint.holds(*alloc) && ledger.by_alloc(*alloc).is_some());
        for alloc in ledger.shares().filter_map(|share| share.alloc_id) {
            if !checkpoint.holds(alloc) {
                missing.entry(alloc).or_insert(now);
            }
        }
    } else {
        missing.clear();
    }
    ledger
        .shares()
        .filter(|share| !busy.contains(&share.pod.uid))
        .filter(|share| match pods.standing(&share.pod.uid) {
            Standing::Present(pod) => pod.finished,
            Standing::Gone => true,
            Standing::Unknown if pods.synced() => true,
            Standing::Unknown => share
                .alloc_id
                .and_then(|alloc| missing.get(&alloc))
                .is_some_and(|since| now.saturating_duration_since(*since) >= MISSING_GRACE),
        })
        .map(Share::key)
        .collect()
}

/// What lies on disk for allocations that nobody holds. Nothing before the pods were
/// read: a file may be all that is known of a running container.
pub fn orphans(ledger: &Ledger, local: &Local, pods: &Pods) -> BTreeSet<AllocId> {
    if !pods.synced() {
        return BTreeSet::new();
    }
    local
        .files
        .keys()
        .chain(local.proofs.keys())
        .chain(&local.folders)
        .filter(|alloc| ledger.by_alloc(**alloc).is_none())
        .copied()
        .collect()
}

/// The phase of a share, and the container that the hook let start.
pub fn progress(share: &Share, local: &Local, pods: &Pods) -> (SharePhase, Option<String>) {
    let proof = share
        .alloc_id
        .and_then(|alloc| local.proofs.get(&alloc))
        .filter(|proof| proof.pod_uid == share.pod.uid && proof.container == share.container);
    let container = proof.map(|proof| proof.container_id.clone());
    let leaving = match pods.standing(&share.pod.uid) {
        Standing::Present(pod) => pod.deleting || pod.finished,
        Standing::Gone => true,
        Standing::Unknown => false,
    };
    let phase = match (share.alloc_id, &container) {
        _ if leaving => SharePhase::Terminating,
        (None, _) => SharePhase::Reserved,
        (Some(_), None) => SharePhase::Prepared,
        (Some(_), Some(_)) => SharePhase::Running,
    };
    (phase, container)
}

/// Containers that run with an answer of ours and without the hook's proof: the runtime
/// ignored the CDI name. `since` remembers how long.
pub fn unproven(
    local: &Local,
    pods: &Pods,
    since: &mut BTreeMap<HolderKey, Instant>,
    now: Instant,
) -> BTreeSet<HolderKey> {
    let entries = local.checkpoint.iter().flat_map(|c| &c.entries);
    let suspects: BTreeSet<HolderKey> = entries
        .filter_map(|entry| {
            let alloc = entry.alloc?;
            let Standing::Present(pod) = pods.standing(&entry.pod_uid) else {
                return None;
            };
            let running = pod
                .container(&entry.container)
                .and_then(ContainerView::runs)?;
            let proven = local
                .proofs
                .get(&alloc)
                .is_some_and(|proof| proof.container_id == running);
            (!proven && !pod.finished).then(|| HolderKey {
                pod_uid: entry.pod_uid.clone(),
                container: entry.container.clone(),
            })
        })
        .collect();
    since.retain(|key, _| suspects.contains(key));
    for key in &suspects {
        since.entry(key.clone()).or_insert(now);
    }
    suspects
        .into_iter()
        .filter(|key| {
            since
                .get(key)
                .is_some_and(|since| now.saturating_duration_since(*since) >= PROOF_GRACE)
        })
        .collect()
}
