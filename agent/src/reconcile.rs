//! Which allocations are alive and which are dead. There is no release call: the answer follows
//! from the kubelet's files, the API server, the files on disk, and the processes on the cards.
//!
//! Pure functions over [`Local`] facts, pods and the ledger; time is a value.

use crate::gpu::GpuUuid;
use crate::identity::Checkpoint;
use crate::inventory::Front;
use crate::ledger::{AllocId, Claim, HolderKey, Ledger, LimitScope, ProofName, Share, SharePhase};
use crate::pods::{ContainerView, Pods, Standing};
use crate::resource::Resource;
use api::Mode;
pub use cdi::hook::{Limited, Proof};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// While the API server was never reached, an allocation that the kubelet no longer
/// records is dead after this long.
pub const MISSING_GRACE: Duration = Duration::from_secs(10);
/// After its pod was deleted, an allocation that was prepared may still start for this time: the
/// hook's own time limit is 10 s, and its CDI file is removed only with the share.
pub const START_GRACE: Duration = Duration::from_secs(10);
/// A container that runs for this time with our token and no proof started without the hook.
pub const PROOF_GRACE: Duration = Duration::from_secs(10);
/// An allocation that never reached the checkpoint is forgotten after this long.
pub const MINTED_GRACE: Duration = Duration::from_mins(1);
/// The same while the checkpoint cannot be read, so that the agent does not know what reached
/// it: longer than an image takes.
pub const MINTED_GRACE_BLIND: Duration = Duration::from_hours(6);
/// If something cannot be read for this time, the node is not offered; a full or slow disk recovers
/// sooner.
pub const UNREADABLE_GRACE: Duration = Duration::from_secs(10);

/// Files on this node's disk, and the containers that have processes. If something could not be
/// read, its last good state is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// `None` while it is unreadable or missing.
    pub checkpoint: Option<Checkpoint>,
    /// Our CDI files: whose share each is; `None` for one that does not tell.
    pub files: BTreeMap<AllocId, Option<Vec<Share>>>,
    /// What the hook left; `None` for a proof that was never readable.
    pub proofs: BTreeMap<ProofName, Option<Proof>>,
    /// Folders of share files.
    pub folders: BTreeSet<AllocId>,
    /// Containers with a process: of those that proofs name, and those asked about.
    pub living: BTreeSet<String>,
    /// What cannot be read, and why.
    pub unreadable: BTreeMap<LocalSource, String>,
}

/// A part of [`Local`] that is read by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LocalSource {
    /// The kubelet's checkpoint.
    Checkpoint,
    /// Our files in the CDI directory.
    CdiFiles,
    /// What the hook leaves.
    Proofs,
    /// Folders of share files.
    ShareFiles,
    /// The processes of the node.
    Processes,
}

impl LocalSource {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Checkpoint,
        Self::CdiFiles,
        Self::Proofs,
        Self::ShareFiles,
        Self::Processes,
    ];

    /// The name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::CdiFiles => "cdi-files",
            Self::Proofs => "proofs",
            Self::ShareFiles => "share-files",
            Self::Processes => "processes",
        }
    }

    /// Its description.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Checkpoint => "the kubelet's checkpoint",
            Self::CdiFiles => "Aliquot's CDI files",
            Self::Proofs => "the hook's proofs",
            Self::ShareFiles => "the folders of share files",
            Self::Processes => "the node's processes",
        }
    }
}

impl Local {
    /// The hook's proof for this very share; `None` also if it is not readable.
    pub fn proof_of(&self, share: &Share) -> Option<&Proof> {
        let proof = self.proofs.get(&share.proof_name()?)?.as_ref()?;
        (proof.pod_uid == share.pod.uid && proof.container == share.container).then_some(proof)
    }

    /// The result of setting the driver's own limit for a share's container.
    pub fn limited(&self, share: &Share) -> Option<&Limited> {
        self.proof_of(share)?.limited.as_ref()
    }

    /// Whether there may be a proof of this name that cannot be read.
    pub fn hides_proof(&self, name: &ProofName) -> bool {
        match self.proofs.get(name) {
            Some(proof) => proof.is_none(),
            None => self.unreadable.contains_key(&LocalSource::Proofs),
        }
    }

    /// Proofs of the containers of one allocation.
    pub fn proofs_of(&self, alloc: AllocId) -> impl Iterator<Item = (&ProofName, &Option<Proof>)> {
        let first = ProofName {
            alloc,
            holder: None,
        };
        let from = self.proofs.range(first..);
        from.take_while(move |(name, _)| name.alloc == alloc)
    }

    /// Whether a container of an allocation has a process, or may have one.
    pub fn may_live(&self, alloc: AllocId) -> bool {
        let mut proofs = self.proofs_of(alloc).map(|(_, proof)| proof).peekable();
        if proofs.peek().is_none() {
            return self.unreadable.contains_key(&LocalSource::Proofs);
        }
        proofs.any(|proof| {
            let proof = proof.as_ref();
            proof.is_none_or(|proof| self.living.contains(&proof.container_id))
        })
    }

    /// Whether the container that a proof names still has a process.
    pub fn lives(&self, name: &ProofName) -> bool {
        let proof = self.proofs.get(name).and_then(Option::as_ref);
        proof.is_some_and(|proof| self.living.contains(&proof.container_id))
    }
}

/// The holder of each device ID, by resource. `None`: a holder that the ledger does not know.
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
    /// A container was identified by it.
    pub bound: bool,
}

/// The bound shares as their CDI files tell them, for a ledger that is empty after a start.
pub fn restore(local: &Local) -> Vec<Share> {
    let mut shares: BTreeMap<HolderKey, Share> = BTreeMap::new();
    for share in local.files.values().flatten().flatten() {
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
        let name = ProofName {
            alloc,
            holder: None,
        };
        let proof = local.proofs.get(&name)?.as_ref()?;
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

/// The holder of each device ID, by the checkpoint, and by answers too recent to be in it.
pub fn held(local: &Local, minted: &Minted, pods: &Pods) -> Held {
    let mut held = Held::new();
    let entries = local.checkpoint.iter().flat_map(|c| &c.entries);
    for entry in entries {
        // Another plugin's answer names no allocation of ours.
        let resource = match Resource::parse(&entry.resource) {
            Some(Resource::Slice(_)) if entry.alloc.is_none() => continue,
            Some(resource) => resource,
            None => continue,
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

/// Since when something that is expected is missing.
#[derive(Clone, Debug, Default)]
pub struct Absences {
    /// Allocations that the kubelet does not record.
    unrecorded: BTreeMap<AllocId, Instant>,
    /// Allocations that were prepared and not started when their pods were gone; of claims also
    /// those of which nothing is left.
    unstarted: BTreeMap<AllocId, Instant>,
}

/// Shares whose holder has ended. A container is alive as long as it has a process, whatever the
/// state of its Pod object. `busy` are pods with a process on some card: memory is free when its
/// processes are gone, not before.
pub fn deaths(
    ledger: &Ledger,
    local: &Local,
    pods: &Pods,
    busy: &BTreeSet<String>,
    absences: &mut Absences,
    now: Instant,
) -> Vec<HolderKey> {
    let unrecorded = &mut absences.unrecorded;
    let current = !local.unreadable.contains_key(&LocalSource::Checkpoint);
    if let Some(checkpoint) = local.checkpoint.as_ref().filter(|_| current) {
        unrecorded.retain(|alloc, _| !checkpoint.holds(*alloc) && holds(ledger, *alloc));
        // A claim is not in it: the kubelet says by a call that it is done with one.
        let plugin = ledger
            .shares()
            .filter(|share| share.front() == Front::Plugin);
        for alloc in plugin.filter_map(|share| share.alloc_id) {
            if !checkpoint.holds(alloc) {
                unrecorded.entry(alloc).or_insert(now);
            }
        }
    } else {
        unrecorded.clear();
    }
    let waits = |since: Option<&Instant>, grace| {
        since.is_none_or(|since| now.saturating_duration_since(*since) < grace)
    };
    let mut unstarted = BTreeMap::new();
    let mut dead = Vec::new();
    let mut claims: BTreeMap<AllocId, bool> = BTreeMap::new();
    for share in ledger.all() {
        if let LimitScope::Claim(alloc) = share.limit_scope() {
            claims.entry(alloc).or_insert(true);
        }
        let standing = pods.standing(&share.pod.uid);
        let left = match standing {
            Standing::Present(pod) => pod.finished,
            Standing::Gone => true,
            Standing::Unknown if pods.synced() => true,
            Standing::Unknown => share
                .alloc_id
                .is_some_and(|alloc| !waits(unrecorded.get(&alloc), MISSING_GRACE)),
        };
        let mut ended = || {
            if !left || busy.contains(&share.pod.uid) {
                return false;
            }
            match (share.proof_name(), local.proof_of(share)) {
                (None, _) => true,
                (Some(_), Some(proof)) => !local.living.contains(&proof.container_id),
                // What cannot be read may name a container that lives.
                (Some(name), None) if local.hides_proof(&name) => false,
                // The kubelet says that a pod is finished when nothing of it can start any more.
                (Some(_), None) if matches!(standing, Standing::Present(_)) => true,
                (Some(name), None) if unrecorded.contains_key(&name.alloc) => true,
                (Some(name), None) => {
                    let since = absences.unstarted.get(&name.alloc).copied().unwrap_or(now);
                    unstarted.insert(name.alloc, since);
                    !waits(Some(&since), START_GRACE)
                }
            }
        };
        if ended() {
            dead.push(share);
        } else if let LimitScope::Claim(alloc) = share.limit_scope() {
            claims.insert(alloc, false);
        }
    }
    // The kubelet says when it is done with a claim. Until then another pod may start with it
    // that is not in the watch yet; a claim of which the kubelet says nothing is over after
    // that time.
    dead.retain(|share| match share.limit_scope() {
        LimitScope::Claim(alloc) if claims.get(&alloc) == Some(&true) => {
            let since = absences.unstarted.get(&alloc).copied().unwrap_or(now);
            unstarted.insert(alloc, since);
            !waits(Some(&since), START_GRACE)
        }
        _ => true,
    });
    absences.unstarted = unstarted;
    dead.into_iter().map(Share::key).collect()
}

fn holds(ledger: &Ledger, alloc: AllocId) -> bool {
    ledger.by_alloc(alloc).next().is_some()
}

/// Files on disk of allocations without a holder. Nothing before the pods were read: a file may be
/// all that is known of a running container. Nothing of a container that has a process, or may have
/// one: it is the only proof of where that came from.
pub fn orphans(ledger: &Ledger, local: &Local, pods: &Pods) -> BTreeSet<AllocId> {
    if !pods.synced() {
        return BTreeSet::new();
    }
    local
        .files
        .keys()
        .chain(local.proofs.keys().map(|name| &name.alloc))
        .chain(&local.folders)
        .copied()
        .filter(|alloc| !holds(ledger, *alloc))
        .filter(|alloc| !local.may_live(*alloc))
        .collect()
}

/// Proofs of containers that a claim had and does not have any more.
pub fn stale_proofs(ledger: &Ledger, local: &Local) -> Vec<ProofName> {
    let stale = |name: &&ProofName| {
        let Some(holder) = &name.holder else {
            return false;
        };
        let has = |share: &Share| share.alloc_id == Some(name.alloc);
        holds(ledger, name.alloc)
            && !ledger.get(holder).is_some_and(has)
            && !local.lives(name)
            && !local.hides_proof(name)
    };
    local.proofs.keys().filter(stale).cloned().collect()
}

/// The phase of a share, and the container that the hook let start.
pub fn progress(share: &Share, local: &Local, pods: &Pods) -> (SharePhase, Option<String>) {
    let container = local
        .proof_of(share)
        .map(|proof| proof.container_id.clone());
    let leaving = match pods.standing(&share.pod.uid) {
        Standing::Present(pod) => pod.deleting || pod.finished,
        Standing::Gone => true,
        Standing::Unknown => pods.synced(),
    };
    let phase = match (share.alloc_id, &container) {
        _ if leaving => SharePhase::Terminating,
        (None, _) => SharePhase::Reserved,
        (Some(_), None) => SharePhase::Prepared,
        (Some(_), Some(_)) => SharePhase::Running,
    };
    (phase, container)
}

/// A container that runs with an answer of ours and without the hook's proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnprovenContainer {
    /// The proof that there is not.
    pub name: ProofName,
    /// The container, as the runtime names it.
    pub container_id: String,
    /// Its pod's `runtimeClassName`.
    pub runtime_class: Option<String>,
}

/// State about containers without proof.
#[derive(Clone, Debug, Default)]
pub struct Suspicions {
    since: BTreeMap<HolderKey, Instant>,
    /// Containers of which it has to be known whether they have a process: the API server
    /// says that they run, and what it says may be old.
    pub doubted: BTreeSet<String>,
}

/// Containers that run with an answer of ours and without the hook's proof: the runtime ignored the
/// CDI name, or the hook. The kubelet's checkpoint says whose the answers are, and for claims the
/// ledger. No container is judged while proofs or processes cannot be read, and none whose own
/// proof cannot.
pub fn unproven(
    local: &Local,
    ledger: &Ledger,
    pods: &Pods,
    suspicions: &mut Suspicions,
    now: Instant,
) -> BTreeMap<HolderKey, UnprovenContainer> {
    let blind = |part| local.unreadable.contains_key(&part);
    let mut suspects = BTreeMap::new();
    suspicions.doubted.clear();
    let entries = local.checkpoint.iter().flat_map(|c| &c.entries);
    let answered = entries.filter_map(|entry| {
        let key = HolderKey {
            pod_uid: entry.pod_uid.clone(),
            container: entry.container.clone(),
        };
        let name = ProofName {
            alloc: entry.alloc?,
            holder: None,
        };
        Some((key, name))
    });
    let claimed = ledger.all().filter(|share| share.claimed.is_some());
    let claimed = claimed.filter_map(|share| Some((share.key(), share.proof_name()?)));
    for (key, name) in answered.chain(claimed) {
        let Standing::Present(pod) = pods.standing(&key.pod_uid) else {
            continue;
        };
        let running = pod
            .container(&key.container)
            .and_then(ContainerView::runs)
            .filter(|_| !pod.finished);
        let Some(running) = running else { continue };
        let unjudged = match local.proofs.get(&name) {
            Some(None) => true,
            // The proof is newer than what the API server says.
            Some(Some(proof)) => proof.container_id == running || local.lives(&name),
            None => blind(LocalSource::Proofs),
        };
        if unjudged || blind(LocalSource::Processes) {
            continue;
        }
        suspicions.doubted.insert(running.to_owned());
        if local.living.contains(running) {
            let unproven = UnprovenContainer {
                name,
                container_id: running.to_owned(),
                runtime_class: pod.runtime_class.clone(),
            };
            suspects.insert(key, unproven);
        }
    }
    let since = &mut suspicions.since;
    since.retain(|key, _| suspects.contains_key(key));
    suspects.retain(|key, _| {
        let since = since.entry(key.clone()).or_insert(now);
        now.saturating_duration_since(*since) >= PROOF_GRACE
    });
    suspects
}
