//! What the agent knows and decides. Pure: events in, effects out, time as a value.
//!
//! Order of one step: apply the event; then `settle`: cards, ended holders, reservations, the
//! progress of each share. Everything outside reads the result.

mod settle;
mod ungranted;

use super::activity::Activities;
use super::claims::{Claimants, Listed};
use super::drain::Drains;
use super::event::{Effect, Event, Obstacle};
use super::guard::Guard;
use super::layouts::Layouts;
use super::offer::{self, Awaited, Offer};
use super::state::{MpsView, Note, Policy, Pool, Readiness, State, Ungranted};
use crate::fence::{Ceilings, ComputeModeWatch};
use crate::gpu::GpuUuid;
use crate::identity;
use crate::inventory::Inventory;
use crate::inventory::build::{InventoryBuilder, Settings};
use crate::ledger::{AllocId, Claim, HolderKey, Ledger, ProofName};
use crate::numa::Numa;
use crate::nvml::Driver;
use crate::pods::{Pods, Standing};
use crate::reconcile::{
    self, Absences, Held, Local, LocalSource, Minted, MintedIds, Suspicions, UnprovenContainer,
};
use crate::resource::Resource;
use api::gpu_node::TopologyManager;
use api::grant::{NodeIdentity, PodIdentity, Verifier};
use api::units::Fence;
use api::{Mib, Mode};
use proto::mps;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What does not change while the agent runs.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Name of this node.
    pub node: String,
    /// Of every card.
    pub cards: Settings,
    /// Whole cards are offered.
    pub serve_whole: bool,
    /// Pods of other schedulers get whole cards.
    pub allow_ungranted_whole: bool,
    /// What the driver's figure of a process may be off by.
    pub watchdog_slack: Mib,
    /// A pod that holds devices without a grant for this long is reported to schedulers.
    pub ungranted_grace: Duration,
}

/// Everything that is known.
#[derive(Debug)]
pub struct Core {
    pub(super) terms: Terms,
    pub(super) builder: InventoryBuilder,
    pub(super) inventory: Inventory,
    pub(super) ledger: Ledger,
    pub(super) pods: Pods,
    pub(super) node: NodeIdentity,
    pub(super) verifier: Option<Verifier>,
    ca: String,
    pub(super) policy: Option<Policy>,
    /// What the node's `NodeResourceTopology` says of the kubelet's topology manager.
    topology_seen: Option<TopologyManager>,
    /// By the UIDs of prepared claims: the pods that they were reserved for, when that was read.
    pub(super) reserved: BTreeMap<String, BTreeSet<String>>,
    /// By the UIDs of prepared claims, their pods on this node.
    pub(super) claimants: BTreeMap<String, Claimants>,
    /// The containers that may have each share of a claim, as last listed.
    pub(super) listed: BTreeMap<AllocId, Listed>,
    /// Of pods with a true grant, with the order in which they were seen.
    claims: BTreeMap<HolderKey, (u64, Claim)>,
    next_claim: u64,
    local: Local,
    pub(super) restored: bool,
    minted: Minted,
    pub(super) held: Held,
    pub(super) mps: MpsView,
    /// The supervisor has answered, or could not be reached.
    mps_told: bool,
    pub(super) guard: Guard,
    /// Pods that are being deleted, whose clients are drained before the kubelet kills them.
    pub(super) drains: Drains,
    pools: BTreeMap<GpuUuid, Pool>,
    numa: Option<Arc<Numa>>,
    registered: bool,
    leaving: bool,
    obstacles: BTreeMap<Obstacle, String>,
    absences: Absences,
    /// What cannot be read, and since when.
    pub(super) unreadable: BTreeMap<LocalSource, Instant>,
    /// What could not be read for too long, and why.
    long_unreadable: Option<(LocalSource, String)>,
    suspicions: Suspicions,
    unproven: BTreeMap<HolderKey, UnprovenContainer>,
    /// Proofs of containers that this agent let start: one without is no container of an
    /// earlier agent's time.
    pub(super) let_start: BTreeSet<ProofName>,
    /// Pods that hold devices without a grant, and since when.
    ungranted_since: BTreeMap<HolderKey, Instant>,
    /// Pods that did so for too long.
    ungranted: BTreeMap<HolderKey, Ungranted>,
    /// UIDs of pods whose containers cannot be identified, and since when.
    pub(super) ambiguous: BTreeMap<String, Instant>,
    /// Cards with shares: whether their compute mode is what these need.
    compute_modes: BTreeMap<GpuUuid, ComputeModeWatch>,
    mode_faults: BTreeMap<GpuUuid, u32>,
    /// Of cards in mode `mps`.
    ceilings: BTreeMap<GpuUuid, Ceilings>,
    /// When the runtime was last seen to ignore CDI, and by what.
    cdi_ignored: Option<(Instant, String)>,
    /// The time since when each share has done no work.
    pub(super) activities: Activities<HolderKey>,
    /// Cards in MIG mode that do not have the layout that they are to have.
    pub(super) layouts: Layouts,
}

impl Core {
    /// Knows nothing yet.
    pub fn new(terms: Terms) -> Self {
        Self {
            builder: InventoryBuilder::new(terms.cards),
            node: NodeIdentity {
                name: terms.node.clone(),
                uid: String::new(),
            },
            terms,
            inventory: Inventory::default(),
            ledger: Ledger::default(),
            pods: Pods::default(),
            verifier: None,
            ca: String::new(),
            policy: None,
            topology_seen: None,
            reserved: BTreeMap::new(),
            claimants: BTreeMap::new(),
            listed: BTreeMap::new(),
            claims: BTreeMap::new(),
            next_claim: 0,
            local: Local::default(),
            restored: false,
            minted: Minted::new(),
            held: Held::new(),
            mps: MpsView::default(),
            mps_told: false,
            guard: Guard::default(),
            drains: Drains::default(),
            pools: BTreeMap::new(),
            numa: None,
            registered: false,
            leaving: false,
            obstacles: BTreeMap::new(),
            absences: Absences::default(),
            unreadable: BTreeMap::new(),
            long_unreadable: None,
            suspicions: Suspicions::default(),
            unproven: BTreeMap::new(),
            let_start: BTreeSet::new(),
            ungranted_since: BTreeMap::new(),
            ungranted: BTreeMap::new(),
            ambiguous: BTreeMap::new(),
            compute_modes: BTreeMap::new(),
            mode_faults: BTreeMap::new(),
            ceilings: BTreeMap::new(),
            cdi_ignored: None,
            activities: Activities::default(),
            layouts: Layouts::default(),
        }
    }

    /// Applies an event.
    pub fn apply(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        let looks = matches!(event, Event::Observed(_) | Event::Tick);
        match event {
            Event::Observed(observation) => self.builder.observe(&observation, now),
            Event::Sampled(sample) => {
                if !self.judge(sample, now, &mut effects) {
                    // Nine samples of ten change nothing but this: a drain may be due.
                    self.drain(now, &mut effects);
                    return effects;
                }
            }
            Event::Fault(xid) => {
                self.builder.fault(&xid, now);
                effects.push(Effect::Tell(Note::Xid {
                    gpu: xid.gpu,
                    xid: xid.number,
                }));
            }
            Event::PodsListed(pods) => {
                self.pods.replace(pods);
                self.read_claims();
            }
            Event::Pod(pod) => {
                let uid = pod.identity.uid.clone();
                self.pods.upsert(*pod);
                self.read_claims_of(&uid);
            }
            Event::PodGone(uid) => {
                self.pods.remove(&uid);
                self.read_claims_of(&uid);
            }
            Event::NodeUid(uid) => {
                if self.node.uid != uid {
                    self.node.uid = uid;
                    self.read_claims();
                }
            }
            Event::Trust(verifier, ca) => {
                self.ca = ca;
                if self.verifier.as_ref() != Some(&verifier) {
                    self.verifier = Some(verifier);
                    self.read_claims();
                }
            }
            Event::Policy(policy) => self.policy = policy,
            Event::TopologyManager(seen) => self.topology_seen = seen,
            Event::Mps(plan, seen) => {
                self.take_seen(seen, now, &mut effects);
                self.mps.holding.clone_from(&plan);
                self.mps.applied = plan;
                self.mps.unreachable.clear();
                self.mps_told = true;
            }
            Event::MpsSeen(seen) => self.take_seen(seen, now, &mut effects),
            // The last observation stays, and may be newer than the last answer.
            Event::MpsSilent(why) => {
                self.mps.unreachable = why;
                self.mps_told = true;
            }
            Event::Pools(pools) => self.pools = pools,
            Event::Numa(numa) => self.numa = numa,
            Event::Local(local) => self.take_local(local, now),
            Event::Reserved(claim, pods) => drop(self.reserved.insert(claim, pods)),
            Event::Minted {
                alloc,
                resource,
                ids,
            } => {
                let fresh = MintedIds {
                    resource,
                    ids,
                    at: now,
                    bound: false,
                };
                self.minted.insert(alloc, fresh);
            }
            Event::Registered(registered) => self.registered = registered,
            Event::LayoutMade(order, made) => self.layouts.made(&order, made, now),
            Event::Leaving => self.leaving = true,
            Event::Obstacle(what, why) => {
                match why {
                    Some(why) => self.obstacles.insert(what, why),
                    None => self.obstacles.remove(&what),
                };
            }
            Event::Tick => {}
        }
        self.settle(now, &mut effects);
        if looks {
            self.look_for_blindness(now);
        }
        effects
    }

    fn take_local(&mut self, local: Local, now: Instant) {
        self.unreadable
            .retain(|part, _| local.unreadable.contains_key(part));
        for part in local.unreadable.keys() {
            self.unreadable.entry(*part).or_insert(now);
        }
        if !self.restored && !local.unreadable.contains_key(&LocalSource::CdiFiles) {
            for share in reconcile::restore(&local) {
                self.ledger.restore(share);
            }
            self.restored = true;
        }
        if let Some(checkpoint) = &local.checkpoint {
            self.minted.retain(|alloc, _| !checkpoint.holds(*alloc));
        }
        self.local = local;
    }

    /// A checkpoint that was read for one request is newer than the last look at the disk.
    pub(super) fn take_checkpoint(&mut self, checkpoint: identity::Checkpoint) {
        self.minted.retain(|alloc, _| !checkpoint.holds(*alloc));
        self.local.checkpoint = Some(checkpoint);
    }

    /// Without the checkpoint: the allocation that the kubelet has for a container. The
    /// latest answer for exactly these IDs by which no container was identified yet, else the
    /// one by which this container was before.
    pub(super) fn allocated(
        &self,
        key: &HolderKey,
        resource: Resource,
        ids: &BTreeSet<String>,
    ) -> Option<AllocId> {
        let fresh = self
            .minted
            .iter()
            .filter(|(_, fresh)| fresh.resource == resource && fresh.ids == *ids && !fresh.bound);
        let latest = fresh.max_by_key(|(_, fresh)| fresh.at);
        latest
            .map(|(alloc, _)| *alloc)
            .or_else(|| self.ledger.get(key)?.alloc_id)
    }

    /// A container was identified by an answer, or (`bound` is false) not after all.
    pub(super) fn identified(&mut self, alloc: AllocId, bound: bool) {
        if let Some(minted) = self.minted.get_mut(&alloc) {
            minted.bound = bound;
        }
    }

    fn read_claims(&mut self) {
        let known: Vec<String> = self.claims.keys().map(|key| key.pod_uid.clone()).collect();
        let present: Vec<String> = self.pods.iter().map(|p| p.identity.uid.clone()).collect();
        for uid in known.into_iter().chain(present) {
            self.read_claims_of(&uid);
        }
    }

    fn read_claims_of(&mut self, uid: &str) {
        let claims = match self.pods.standing(uid) {
            Standing::Present(pod) if !pod.finished => {
                // A grant's error is reported when its pod asks for its cards.
                identity::claims(pod, self.verifier.as_ref(), &self.node).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let keys: BTreeSet<HolderKey> = claims.iter().map(Claim::key).collect();
        self.claims
            .retain(|key, _| key.pod_uid != uid || keys.contains(key));
        for claim in claims {
            let key = claim.key();
            let order = self
                .claims
                .get(&key)
                .map_or(self.next_claim, |(order, _)| *order);
            self.next_claim = self.next_claim.max(order + 1);
            self.claims.insert(key, (order, claim));
        }
    }

    /// Why the node offers nothing, in one sentence.
    pub(super) fn not_offering(&self) -> Option<String> {
        self.withdrawn().or_else(|| self.held_up())
    }

    /// Why no new share starts for now, in one sentence. The tokens stay healthy: pods that were
    /// bound before wait in `ContainerCreating` and start once the reason has passed.
    pub(super) fn held_up(&self) -> Option<String> {
        if let Driver::Late { reason, .. } = self.builder.driver() {
            return Some(format!(
                "the driver does not answer for the moment: {reason}; what runs goes on"
            ));
        }
        let (part, error) = self.long_unreadable.as_ref()?;
        Some(format!(
            "{} cannot be read: {error}; what runs goes on",
            part.in_words()
        ))
    }

    /// Why the free IDs are marked Unhealthy, in one sentence. Until they are healthy again, the
    /// kubelet permanently rejects every pod that needs one, also pods that were bound before. If
    /// the start can wait instead, as with [`Self::held_up`], no ID is marked.
    fn withdrawn(&self) -> Option<String> {
        if let Driver::Gone { reason } = self.builder.driver() {
            return Some(format!("the driver does not answer: {reason}"));
        }
        if !self.restored {
            let error = self.local.unreadable.get(&LocalSource::CdiFiles);
            return Some(format!(
                "what this node holds is not known yet: {} cannot be read: {}",
                LocalSource::CdiFiles.in_words(),
                error.map(String::as_str).unwrap_or_default(),
            ));
        }
        if let Some(why) = self.unproven_from_before() {
            return Some(why);
        }
        if let Some((_, why)) = &self.cdi_ignored {
            return Some(why.clone());
        }
        if let Some(why) = self.obstacles.get(&Obstacle::Hook) {
            return Some(why.clone());
        }
        let hidden = self
            .inventory
            .cards
            .iter()
            .any(|c| c.hidden_from_other_plugins);
        let other = self.obstacles.get(&Obstacle::OtherPlugin);
        if let Some(why) = other.filter(|_| !hidden) {
            return Some(why.clone());
        }
        if self.inventory.cards.is_empty() {
            return Some("the node has no NVIDIA card".to_owned());
        }
        let sliced = self.inventory.cards.iter().any(|card| card.slice.is_some());
        if !sliced && self.inventory.cards.iter().all(|card| card.mig) {
            return Some("all cards are in MIG mode".to_owned());
        }
        None
    }

    /// Containers without proof that an earlier agent allowed: whether the hook ran for them can no
    /// longer be known, so they are not touched, and nothing is placed beside them.
    fn unproven_from_before(&self) -> Option<String> {
        let (key, _) = self
            .unproven
            .iter()
            .find(|(_, unproven)| !self.let_start.contains(&unproven.name))?;
        Some(format!(
            "container {} of pod {} has run since before this agent started, without proof that the OCI hook ran: restart the pod",
            key.container,
            self.pod_name(&key.pod_uid)
        ))
    }

    fn pod_name(&self, uid: &str) -> String {
        match self.pods.standing(uid) {
            Standing::Present(pod) => pod.identity.to_string(),
            _ => uid.to_owned(),
        }
    }

    /// What the kubelet is offered.
    pub fn offer(&self) -> Offer {
        let open = self.withdrawn().is_none();
        let alone = !self.obstacles.contains_key(&Obstacle::OtherPlugin);
        let cards = |test: &dyn Fn(&crate::inventory::Card) -> bool| -> BTreeSet<GpuUuid> {
            let cards = self
                .inventory
                .cards
                .iter()
                .filter(|card| open && test(card));
            cards.map(|card| card.uuid.clone()).collect()
        };
        let shared = cards(&|card| alone || card.hidden_from_other_plugins);
        let whole = cards(&|_| alone && self.terms.serve_whole);
        let slices = cards(&|card| alone && card.slice.is_some());
        let terms = offer::Terms {
            ledger: &self.ledger,
            held: &self.held,
            shared: &shared,
            whole: &whole,
            slices: &slices,
        };
        let mut lists = offer::devices(&self.inventory, terms);
        let mut held = self.held.keys();
        let any_whole = self.inventory.any_whole_beside_claims()
            || held.any(|(resource, _)| *resource == Resource::Whole);
        let share = lists.remove(&Resource::Share).unwrap_or_default();
        let whole = lists.remove(&Resource::Whole).unwrap_or_default();
        let slices = lists.into_iter().filter_map(|(resource, list)| {
            let Resource::Slice(profile) = resource else {
                return None;
            };
            Some((profile, list))
        });
        Offer {
            share,
            whole,
            slices: slices.collect(),
            awaited: self.awaited(),
            any_whole,
        }
    }

    /// Claims that the kubelet has not allocated for, oldest first.
    fn awaited(&self) -> Vec<Awaited> {
        let recorded: BTreeSet<(&str, &str)> = self
            .local
            .checkpoint
            .iter()
            .flat_map(|checkpoint| &checkpoint.entries)
            .filter(|entry| entry.alloc.is_some())
            .map(|entry| (entry.pod_uid.as_str(), entry.container.as_str()))
            .collect();
        let mut open: Vec<(u64, Awaited)> = self
            .claims
            .iter()
            .filter(|(key, _)| {
                !recorded.contains(&(key.pod_uid.as_str(), key.container.as_str()))
                    && self
                        .ledger
                        .get(key)
                        .is_none_or(|share| share.alloc_id.is_none())
            })
            .map(|(_, (order, claim))| {
                let resource = match claim.mode {
                    Mode::Exclusive => Resource::Whole,
                    _ => Resource::Share,
                };
                let gpus = claim.gpus.clone();
                (*order, Awaited { resource, gpus })
            })
            .collect();
        open.sort_by_key(|(order, _)| *order);
        let mut open: Vec<Awaited> = open.into_iter().map(|(_, awaited)| awaited).collect();
        // Each answer that is not recorded yet was for one of them.
        for fresh in self.minted.values() {
            let cards: BTreeSet<&str> = fresh
                .ids
                .iter()
                .map(|id| id.split_once("::").map_or(id.as_str(), |(card, _)| card))
                .collect();
            let one = open.iter().position(|awaited| {
                awaited.resource == fresh.resource
                    && awaited.gpus.iter().any(|gpu| cards.contains(gpu.as_str()))
            });
            if let Some(one) = one {
                open.remove(one);
            }
        }
        open
    }

    /// The kubelet's state of each card. A kubelet without our plugin, or one that is about to lose
    /// it, permanently rejects pods with the card, whatever it showed before.
    fn kubelet_pools(&self) -> BTreeMap<GpuUuid, Pool> {
        if self.registered && !self.leaving {
            return self.pools.clone();
        }
        let cards = self.inventory.cards.iter();
        cards.map(|card| (card.uuid.clone(), Pool::None)).collect()
    }

    /// What the node needs from the MPS supervisor now. A server that was not needed for a time may
    /// be ending although it is needed again: the supervisor's next answer shows that.
    pub(in crate::node) fn needs(&mut self, plan: &mps::Plan) -> &mps::Plan {
        let holding = &mut self.mps.holding;
        holding
            .servers
            .retain(|server| plan.servers.contains(server));
        holding.cards.retain(|card| plan.cards.contains(card));
        holding
    }

    /// What everyone else reads.
    pub fn state(&self) -> State {
        State {
            node: self.node.clone(),
            inventory: self.inventory.clone(),
            ledger: self.ledger.clone(),
            claims: self.claimants.clone(),
            complaints: self.complaints(),
            evicted_strangers: self.evicted_strangers(),
            mode_faults: self.mode_faults.clone(),
            mps: self.mps.clone(),
            layouts: self.layouts.view(),
            kubelet_pools: self.kubelet_pools(),
            topology_manager: self.topology_manager().cloned(),
            admitted: self.admitted(),
            numa: self.numa.clone(),
            not_offering: self.not_offering(),
            unguarded: self.unguarded(),
            stale_samples: self.stale_samples(),
            restored: self.restored,
            unreadable: self.local.unreadable.keys().copied().collect(),
            doubted: self.suspicions.doubted.clone(),
            mirrors: self.mirrors(),
            ungranted: self.ungranted.values().cloned().collect(),
            policy: self.policy.clone(),
            trusted_ca: self.ca.clone(),
            ready: Readiness {
                nvml: self.builder.driver().version().is_some(),
                registered: self.registered,
                cluster: self.pods.synced() && self.verifier.is_some() && !self.node.uid.is_empty(),
            },
        }
    }

    fn mirrors(&self) -> BTreeMap<String, String> {
        let pods = self.pods.iter();
        pods.filter_map(|pod| Some((pod.identity.uid.clone(), pod.mirror_uid.clone()?)))
            .collect()
    }

    /// Pods that may have CPUs or memory of a zone, where that is to be known.
    fn admitted(&self) -> BTreeSet<PodIdentity> {
        if self.topology_manager().is_none() {
            return BTreeSet::new();
        }
        let pods = self.pods.iter();
        let admitted = pods.filter(|pod| pod.admitted && !pod.finished);
        admitted.map(|pod| pod.identity.clone()).collect()
    }

    /// The kubelet's topology manager, if it refuses pods: the admin's word on it, or else that of
    /// the node's `NodeResourceTopology`.
    fn topology_manager(&self) -> Option<&TopologyManager> {
        let policy = self.policy.as_ref();
        let said = policy.and_then(|policy| policy.spec.topology_manager.as_ref());
        let manager = said.or(self.topology_seen.as_ref());
        manager.filter(|manager| manager.policy.refuses())
    }

    /// The admin's weakest fence, where one is set.
    pub(super) fn minimum_fence(&self) -> Option<Fence> {
        self.policy
            .as_ref()
            .and_then(|policy| policy.spec.minimum_fence)
    }

    pub(super) fn allows_ungranted(&self) -> bool {
        self.terms.allow_ungranted_whole
    }
}

#[cfg(test)]
mod tests;
