//! What the agent knows and decides. Pure: events in, effects out, time as a value.
//!
//! Order of one step: apply the event; then `settle`: cards, ended holders, reservations, the
//! progress of each share. Everything outside reads the result. Each part of the state has its own
//! file and takes what it needs of the others; this one says in which order they run.

use super::activity::Activities;
use super::allocations::Allocations;
use super::broken_servers::{BrokenServers, Clients};
use super::cards::Cards;
use super::claims::ClaimPods;
use super::complaint::Grounds;
use super::drain::Drains;
use super::event::{Effect, Event, Obstacle};
use super::fences::Fences;
use super::grants::Grants;
use super::guard::{self, Guard};
use super::layouts::{Layouts, SliceUses};
use super::mps_view::MpsView;
use super::note::Note;
use super::offer::{self, Offer};
use super::policy::Policy;
use super::pool::Pools;
use super::state::{Readiness, State};
use super::strangers::Strangers;
use super::ungranted::{UngrantedContainers, without_grant};
use super::unproven::Unproven;
use crate::gpu::GpuUuid;
use crate::inventory::Card;
use crate::inventory::build::Settings;
use crate::ledger::{HolderKey, Ledger, Share, SharePhase};
use crate::numa::Numa;
use crate::nvml::{Driver, Sample, Watched};
use crate::pods::Pods;
use crate::reconcile::{self, LocalSource};
use crate::resource::Resource;
use crate::watchdog::Allowance;
use api::Mib;
use api::gpu_node::TopologyManager;
use api::grant::PodIdentity;
use proto::mps::{Observation, Plan};
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
    pub(super) cards: Cards,
    pub(super) ledger: Ledger,
    pub(super) pods: Pods,
    pub(super) grants: Grants,
    /// `None` until the `GpuNode` was seen.
    pub(super) policy: Option<Policy>,
    /// What the node's `NodeResourceTopology` says of the kubelet's topology manager.
    topology_seen: Option<TopologyManager>,
    pub(super) allocations: Allocations,
    pub(super) claims: ClaimPods,
    mps: MpsView,
    pub(super) guard: Guard,
    broken: BrokenServers,
    strangers: Strangers,
    drains: Drains,
    fences: Fences,
    pub(super) unproven: Unproven,
    ungranted: UngrantedContainers,
    /// UIDs of pods whose containers cannot be identified, and since when.
    pub(super) ambiguous: BTreeMap<String, Instant>,
    activities: Activities<HolderKey>,
    /// Cards in MIG mode that do not have the layout that they are to have.
    layouts: Layouts,
    pools: Pools,
    numa: Option<Arc<Numa>>,
    obstacles: BTreeMap<Obstacle, String>,
}

impl Core {
    /// Knows nothing yet.
    pub fn new(terms: Terms) -> Self {
        Self {
            cards: Cards::new(terms.cards),
            ledger: Ledger::default(),
            pods: Pods::default(),
            grants: Grants::new(terms.node.clone()),
            terms,
            policy: None,
            topology_seen: None,
            allocations: Allocations::default(),
            claims: ClaimPods::default(),
            mps: MpsView::default(),
            guard: Guard::default(),
            broken: BrokenServers::default(),
            strangers: Strangers::default(),
            drains: Drains::default(),
            fences: Fences::default(),
            unproven: Unproven::default(),
            ungranted: UngrantedContainers::default(),
            ambiguous: BTreeMap::new(),
            activities: Activities::default(),
            layouts: Layouts::default(),
            pools: Pools::default(),
            numa: None,
            obstacles: BTreeMap::new(),
        }
    }

    /// Applies an event.
    pub fn apply(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        let looks = matches!(event, Event::Observed(_) | Event::Tick);
        match event {
            Event::Observed(observation) => self.cards.looks.observe(&observation, now),
            Event::Sampled(sample) => {
                if !self.judge(sample, now, &mut effects) {
                    // Nine samples of ten change nothing but this: a drain may be due.
                    self.drain(now, &mut effects);
                    return effects;
                }
            }
            Event::Fault(xid) => {
                self.cards.looks.fault(&xid, now);
                effects.push(Effect::Tell(Note::Xid {
                    gpu: xid.gpu,
                    xid: xid.number,
                }));
            }
            Event::PodsListed(pods) => {
                self.pods.replace(pods);
                self.grants.read(&self.pods);
            }
            Event::Pod(pod) => {
                let uid = pod.identity.uid.clone();
                self.pods.upsert(*pod);
                self.grants.read_of(&self.pods, &uid);
            }
            Event::PodGone(uid) => {
                self.pods.remove(&uid);
                self.grants.read_of(&self.pods, &uid);
            }
            Event::NodeUid(uid) => self.grants.take_node(uid, &self.pods),
            Event::Trust(verifier, ca) => self.grants.take_trust(verifier, ca, &self.pods),
            Event::Policy(policy) => self.policy = policy,
            Event::TopologyManager(seen) => self.topology_seen = seen,
            Event::Mps(plan, seen) => {
                self.take_seen(seen, now, &mut effects);
                self.mps.accepted(plan);
            }
            Event::MpsSeen(seen) => self.take_seen(seen, now, &mut effects),
            Event::MpsSilent(why) => self.mps.silent(why),
            Event::Pools(pools) => self.pools.shown = pools,
            Event::Numa(numa) => self.numa = numa,
            Event::Local(local) => self.allocations.take(local, &mut self.ledger, now),
            Event::Reserved(claim, pods) => self.claims.reserve(claim, pods),
            Event::Minted {
                alloc,
                resource,
                ids,
            } => self.allocations.mint(alloc, resource, ids, now),
            Event::Registered(registered) => self.pools.registered = registered,
            Event::LayoutMade(order, made) => self.layouts.made(&order, made, now),
            Event::Leaving => self.pools.leaving = true,
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
            self.guard
                .look_for_blindness(&self.ledger, &self.cards, now);
        }
        effects
    }

    /// Recomputes everything that follows from the known facts.
    pub(super) fn settle(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.allocations.settle(&self.pods, now);
        self.take_stock(now, effects);
        let uses = SliceUses {
            strategy: self.terms.cards.mig_strategy,
            cards: &self.cards,
            ledger: &self.ledger,
            allocations: &self.allocations,
            pods: &self.pods,
        };
        let policy = Policy::or_none(self.policy.as_ref());
        if self.layouts.arrange(policy, &uses, now, effects) {
            self.take_stock(now, effects);
        }
        let minimum = self.policy().spec.minimum_fence;
        self.claims.admit(
            &mut self.ledger,
            &self.pods,
            minimum,
            &mut self.unproven,
            effects,
        );
        let busy = self.cards.busy();
        let dead = self
            .allocations
            .deaths(&self.ledger, &self.pods, &busy, now);
        for key in &dead {
            self.release(key, effects);
        }
        self.reserve(&busy);
        // Before grants can be read, a file may be all that is known of a container.
        if self.allocations.restored && self.grants.can_check() {
            self.allocations.clean_up(&self.ledger, &self.pods, effects);
        }
        self.fences
            .compare(&self.cards, &self.ledger, &self.mps, now, effects);
        self.follow(now);
        self.broken.mend(&self.ledger, &self.cards, now, effects);
        self.drain(now, effects);
        let (inventory, policy) = (&self.cards.inventory, Policy::or_none(self.policy.as_ref()));
        self.strangers
            .meet(inventory, &self.ledger, policy, now, effects);
        let local = &self.allocations.local;
        self.unproven
            .look(local, &self.ledger, &self.pods, now, effects);
        let ungranted = without_grant(
            local.checkpoint.as_ref(),
            &self.pods,
            &self.grants,
            &self.ledger,
            self.terms.allow_ungranted_whole,
        );
        self.ungranted
            .report(ungranted, self.terms.ungranted_grace, now, effects);
        if !dead.is_empty() {
            // Memory of a container that has ended belongs to a stranger now, if it is still held.
            self.take_stock(now, effects);
        }
    }

    fn policy(&self) -> &Policy {
        Policy::or_none(self.policy.as_ref())
    }

    fn take_stock(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let layouts = &self.layouts;
        self.cards.take_stock(
            Policy::or_none(self.policy.as_ref()),
            &self.ledger,
            &self.mps,
            |cards| layouts.withdraw(cards),
            now,
            effects,
        );
    }

    fn drain(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.drains
            .request(&self.ledger, &self.pods, &self.cards, now, effects);
    }

    /// Evaluates a sample; returns whether anything follows from it.
    fn judge(&mut self, sample: Arc<Sample>, now: Instant, effects: &mut Vec<Effect>) -> bool {
        let allowance = Allowance {
            slack: self.terms.watchdog_slack,
            client_slots: self.terms.cards.client_slots,
        };
        let (ledger, pods) = (&self.ledger, &self.pods);
        let policy = Policy::or_none(self.policy.as_ref());
        let findings = self
            .guard
            .judge(sample, ledger, &self.cards, &allowance, now);
        for finding in &findings {
            let overdue = self.guard.is_overdue(finding, ledger, pods, now);
            guard::react(finding, overdue, ledger, pods, policy, effects);
        }
        findings.iter().any(|finding| finding.sure)
    }

    /// Applies the supervisor's observation, unless a newer one is known.
    fn take_seen(&mut self, seen: Observation, now: Instant, effects: &mut Vec<Effect>) {
        if !self.mps.is_news(&seen) {
            return;
        }
        let clients = Clients {
            ledger: &self.ledger,
            cards: &self.cards,
            sampled: &self.guard.sampled(),
        };
        self.broken
            .compare(&self.mps.seen, &seen, clients, now, effects);
        self.mps.seen = seen;
    }

    /// Frees what a container held.
    pub(super) fn release(&mut self, key: &HolderKey, effects: &mut Vec<Effect>) {
        let Some(share) = self.ledger.release(key) else {
            return;
        };
        effects.push(Effect::Tell(Note::Freed {
            pod: share.pod.to_string(),
        }));
        let Some(alloc) = share.alloc_id.filter(|_| self.pods.synced()) else {
            return;
        };
        let others = self.ledger.by_alloc(alloc).next().is_some();
        match share.proof_name().filter(|_| others) {
            Some(name) => self.allocations.forget_proof(name, effects),
            // At once: as long as its file is there, its container could start.
            None => self.allocations.forget(alloc, effects),
        }
    }

    /// Returns true if a share's container has a process, or may have one, or a process of its pod
    /// is on its cards.
    pub(super) fn lives(&self, share: &Share) -> bool {
        self.allocations.may_live(share) || self.cards.has_process_of(share)
    }

    /// Enters grants that fit, oldest first. A grant that does not fit is tried again at every
    /// step, and refused when its pod asks for it.
    fn reserve(&mut self, busy: &BTreeSet<String>) {
        // Before the disk was read, a card may have unknown holders.
        if !self.allocations.restored {
            return;
        }
        let gone = |share: &Share| !self.grants.has(&share.key());
        // The admin closed its card to grants before anything of it started.
        let closed = |share: &Share| {
            let mut cards = share.gpus.iter().filter_map(|gpu| self.cards.card(gpu));
            cards.any(|card| card.only_front.is_some_and(|only| only != share.front()))
        };
        let idle = |share: &Share| share.alloc_id.is_none() && !busy.contains(&share.pod.uid);
        let reserved: Vec<HolderKey> = self
            .ledger
            .shares()
            .filter(|share| idle(share) && (gone(share) || closed(share)))
            .map(Share::key)
            .collect();
        for key in reserved {
            self.ledger.release(&key);
        }
        let claims = self.grants.oldest_first();
        let granted = claims.iter().copied();
        for share in reconcile::proven(&self.allocations.local, granted, &self.ledger) {
            self.ledger.restore(share);
        }
        for claim in claims {
            let _ = self.ledger.reserve(claim, &self.cards.inventory);
        }
    }

    /// The progress and use of each share.
    fn follow(&mut self, now: Instant) {
        let keys: BTreeSet<HolderKey> = self.ledger.all().map(Share::key).collect();
        self.activities.keep(|key| keys.contains(key));
        let servers = self.mps.server_pids();
        for key in keys {
            let Some(share) = self.ledger.get(&key) else {
                continue;
            };
            let local = &self.allocations.local;
            let (phase, container_id) = reconcile::progress(share, local, &self.pods);
            let processes = || self.cards.processes(share, container_id.as_deref());
            let memory = processes().filter_map(|process| process.memory);
            let used = memory.fold(Mib(0), |sum, one| Mib(sum.0.saturating_add(one.0)));
            let sm_percent = processes()
                .filter_map(|process| process.sm_percent)
                .reduce(u32::saturating_add);
            let runs = container_id.as_deref();
            let idle_minutes = match runs.filter(|_| phase == SharePhase::Running) {
                Some(container) => {
                    let worked = self.cards.has_worked(share, container, &servers);
                    self.activities.follow(&key, container, used, worked, now)
                }
                None => {
                    self.activities.forget(&key);
                    None
                }
            };
            let started = container_id.is_some()
                && matches!(phase, SharePhase::Running | SharePhase::Terminating);
            let fence = || {
                let (cards, limited) = (&self.cards, local.limited(share));
                self.fences
                    .active(share, cards, &self.ledger, &self.mps, limited, now)
            };
            let fence = started.then(fence).flatten();
            self.ledger.update(&key, |share| {
                share.phase = phase;
                share.container_id = container_id;
                share.used = used;
                share.sm_percent = sm_percent;
                share.idle_minutes = idle_minutes;
                share.fence = fence;
            });
        }
    }

    /// Why the node offers nothing, in one sentence.
    pub(super) fn not_offering(&self) -> Option<String> {
        self.withdrawn().or_else(|| self.held_up())
    }

    /// Why no new share starts for now, in one sentence. The tokens stay healthy: pods that were
    /// bound before wait in `ContainerCreating` and start once the reason has passed.
    pub(super) fn held_up(&self) -> Option<String> {
        if let Driver::Late { reason, .. } = self.cards.looks.driver() {
            return Some(format!(
                "the driver does not answer for the moment: {reason}; what runs goes on"
            ));
        }
        let (part, error) = self.allocations.long_unreadable.as_ref()?;
        Some(format!(
            "{} cannot be read: {error}; what runs goes on",
            part.in_words()
        ))
    }

    /// Why the free IDs are marked Unhealthy, in one sentence. Until they are healthy again, the
    /// kubelet permanently rejects every pod that needs one, also pods that were bound before. If
    /// the start can wait instead, as with [`Self::held_up`], no ID is marked.
    fn withdrawn(&self) -> Option<String> {
        if let Driver::Gone { reason } = self.cards.looks.driver() {
            return Some(format!("the driver does not answer: {reason}"));
        }
        if !self.allocations.restored {
            let unreadable = &self.allocations.local.unreadable;
            let error = unreadable.get(&LocalSource::CdiFiles);
            return Some(format!(
                "what this node holds is not known yet: {} cannot be read: {}",
                LocalSource::CdiFiles.in_words(),
                error.map(String::as_str).unwrap_or_default(),
            ));
        }
        if let Some(why) = self.unproven.withdraws(&self.pods) {
            return Some(why);
        }
        if let Some(why) = self.obstacles.get(&Obstacle::Hook) {
            return Some(why.clone());
        }
        let hidden = self
            .cards
            .inventory
            .cards
            .iter()
            .any(|c| c.hidden_from_other_plugins);
        let other = self.obstacles.get(&Obstacle::OtherPlugin);
        if let Some(why) = other.filter(|_| !hidden) {
            return Some(why.clone());
        }
        if self.cards.inventory.cards.is_empty() {
            return Some("the node has no NVIDIA card".to_owned());
        }
        let sliced = self
            .cards
            .inventory
            .cards
            .iter()
            .any(|card| card.slice.is_some());
        if !sliced && self.cards.inventory.cards.iter().all(|card| card.mig) {
            return Some("all cards are in MIG mode".to_owned());
        }
        None
    }

    /// Returns the offer to the kubelet.
    pub fn offer(&self) -> Offer {
        let open = self.withdrawn().is_none();
        let alone = !self.obstacles.contains_key(&Obstacle::OtherPlugin);
        let cards = |test: &dyn Fn(&Card) -> bool| -> BTreeSet<GpuUuid> {
            let cards = self
                .cards
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
            held: &self.allocations.held,
            shared: &shared,
            whole: &whole,
            slices: &slices,
        };
        let mut lists = offer::devices(&self.cards.inventory, terms);
        let mut held = self.allocations.held.keys();
        let any_whole = self.cards.inventory.any_whole_beside_claims()
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
            awaited: offer::awaited(&self.grants, &self.allocations, &self.ledger),
            any_whole,
        }
    }

    /// Returns the cards that are to be sampled, and how closely.
    pub fn watched(&self, now: Instant) -> Watched {
        self.guard.watched(&self.ledger, now)
    }

    /// Takes what the node needs now. Returns the part of the accepted plan that it has needed without
    /// a break.
    pub(super) fn needs(&mut self, plan: &Plan) -> &Plan {
        self.mps.needs(plan)
    }

    /// What everyone else reads.
    pub fn state(&self) -> State {
        let grounds = Grounds {
            inventory: &self.cards.inventory,
            ledger: &self.ledger,
            pods: &self.pods,
            policy: self.policy(),
            local: &self.allocations.local,
            seen: &self.mps.seen,
            guard: &self.guard,
            broken: &self.broken,
            fences: &self.fences,
        };
        let unreadable = &self.allocations.local.unreadable;
        State {
            node: self.grants.node.clone(),
            inventory: self.cards.inventory.clone(),
            ledger: self.ledger.clone(),
            claims: self.claims.claimants.clone(),
            complaints: grounds.complaints(),
            evicted_strangers: self.strangers.evicted(),
            mode_faults: self.fences.mode_faults.clone(),
            mps: self.mps.clone(),
            layouts: self.layouts.view(),
            kubelet_pools: self.pools.of(&self.cards.inventory),
            topology_manager: self.topology_manager().cloned(),
            admitted: self.admitted(),
            numa: self.numa.clone(),
            not_offering: self.not_offering(),
            unguarded: self.guard.unguarded(),
            stale_samples: self.guard.stale_samples(),
            restored: self.allocations.restored,
            unreadable: unreadable.keys().copied().collect(),
            doubted: self.unproven.doubted().clone(),
            mirrors: self.mirrors(),
            ungranted: self.ungranted.reported(),
            policy: self.policy.clone(),
            trusted_ca: self.grants.ca.clone(),
            ready: Readiness {
                nvml: self.cards.looks.driver().version().is_some(),
                registered: self.pools.registered,
                cluster: self.pods.synced() && self.grants.can_check(),
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
        let said = self.policy().spec.topology_manager.as_ref();
        let manager = said.or(self.topology_seen.as_ref());
        manager.filter(|manager| manager.policy.refuses())
    }
}

#[cfg(test)]
mod tests;
