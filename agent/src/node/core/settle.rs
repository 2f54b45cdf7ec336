//! Everything that follows from the known facts: the holder of each share, ended holders, what each
//! share uses and its fence.

use super::{Core, Effect};
use crate::fence::{self, ActiveFence, ComputeModeWatch, Evidence};
use crate::gpu::GpuUuid;
use crate::inventory::Health;
use crate::ledger::{AllocId, Claim, HolderKey, ProofName, Share, SharePhase};
use crate::mps::plan::server_name;
use crate::node::state::{Note, Policy};
use crate::nvml::Process;
use crate::pods::Standing;
use crate::reconcile::{self, Limited, LocalSource};
use crate::termination::Termination;
use crate::watchdog::is_of;
use api::{Mib, Mode};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A runtime that ignored CDI is not tried again for this time: each try costs a pod. A restarted
/// agent tries at once.
const CDI_PATIENCE: Duration = Duration::from_mins(10);

/// Returns a test for whether a process belongs to the share's container. A process whose container is
/// not known may belong to any container of its pod.
fn is_own(share: &Share, container_id: Option<&str>) -> impl Fn(&Process) -> bool {
    move |process| {
        let origin = &process.origin;
        let container = origin.container_id.as_deref();
        origin.pod_uid.as_deref() == Some(share.pod.uid.as_str())
            && container_id.is_none_or(|id| container.is_none_or(|other| other == id))
    }
}

impl Core {
    /// Recomputes everything that follows from the known facts.
    pub(in crate::node) fn settle(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let blind = self.unreadable.contains_key(&LocalSource::Checkpoint);
        let grace = if blind {
            reconcile::MINTED_GRACE_BLIND
        } else {
            reconcile::MINTED_GRACE
        };
        self.minted
            .retain(|_, fresh| now.saturating_duration_since(fresh.at) < grace);
        self.long_unreadable = self
            .unreadable
            .iter()
            // `PodResources` replaces the checkpoint.
            .filter(|(part, _)| **part != LocalSource::Checkpoint)
            .find(|(_, since)| {
                now.saturating_duration_since(**since) >= reconcile::UNREADABLE_GRACE
            })
            .and_then(|(part, _)| Some((*part, self.local.unreadable.get(part)?.clone())));
        self.held = reconcile::held(&self.local, &self.minted, &self.pods);
        self.take_stock(now, effects);
        self.arrange(now, effects);
        self.admit_pods(effects);
        let busy = self.busy();
        let dead = reconcile::deaths(
            &self.ledger,
            &self.local,
            &self.pods,
            &busy,
            &mut self.absences,
            now,
        );
        for key in &dead {
            self.release(key, effects);
        }
        self.reserve(&busy);
        // Before grants can be read, a file may be all that is known of a container.
        if self.restored && self.verifier.is_some() && !self.node.uid.is_empty() {
            for alloc in reconcile::orphans(&self.ledger, &self.local, &self.pods) {
                self.forget(alloc, effects);
            }
            for name in reconcile::stale_proofs(&self.ledger, &self.local) {
                self.forget_proof(name, effects);
            }
        }
        self.compare_modes(now, effects);
        self.follow(now);
        self.mend(now, effects);
        self.drain(now, effects);
        self.meet_strangers(now, effects);
        self.suspect(now, effects);
        self.find_ungranted(now, effects);
        if !dead.is_empty() {
            // What the dead held is a stranger's now, if it is still there.
            self.take_stock(now, effects);
        }
    }

    /// Frees what a container held.
    pub(in crate::node) fn release(&mut self, key: &HolderKey, effects: &mut Vec<Effect>) {
        if let Some(share) = self.ledger.release(key) {
            effects.push(Effect::Tell(Note::Freed {
                pod: share.pod.to_string(),
            }));
            let Some(alloc) = share.alloc_id.filter(|_| self.pods.synced()) else {
                return;
            };
            let others = self.ledger.by_alloc(alloc).next().is_some();
            match share.proof_name().filter(|_| others) {
                Some(name) => self.forget_proof(name, effects),
                // At once: as long as its file is there, its container could start.
                None => self.forget(alloc, effects),
            }
        }
    }

    /// Whether a share's container has a process, or may have one, or a process of its pod
    /// is on its cards. What a card that does not answer had is no longer known.
    pub(in crate::node) fn lives(&self, share: &Share) -> bool {
        let started = share
            .proof_name()
            .is_some_and(|name| self.local.lives(&name) || self.local.hides_proof(&name));
        let mut cards = share.gpus.iter().filter(|card| self.builder.answers(card));
        let on = |card| {
            let mut processes = self.builder.processes(card).iter();
            processes.any(|process| process.origin.pod_uid.as_ref() == Some(&share.pod.uid))
        };
        started || cards.any(on)
    }

    /// Removes the files of an allocation that no container holds any more.
    fn forget(&mut self, alloc: AllocId, effects: &mut Vec<Effect>) {
        self.local.files.remove(&alloc);
        self.local.proofs.retain(|name, _| name.alloc != alloc);
        self.local.folders.remove(&alloc);
        effects.push(Effect::Forget(alloc));
    }

    /// Removes the proof of a container that has ended while its claim continues.
    fn forget_proof(&mut self, name: ProofName, effects: &mut Vec<Effect>) {
        self.local.proofs.remove(&name);
        effects.push(Effect::ForgetProof(name));
    }

    pub(in crate::node) fn take_stock(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let default = Policy::default();
        let policy = self.policy.as_ref().unwrap_or(&default);
        let ledger = &self.ledger;
        let servers = self.mps.seen.servers.iter();
        let servers: BTreeSet<u32> = servers.flat_map(|s| &s.server_pids).copied().collect();
        let explained = |card: &GpuUuid, process: &Process| {
            let owner = process.origin.pod_uid.as_deref();
            let mut shares = ledger.on(card);
            servers.contains(&process.pid)
                || shares.any(|share| match share.mode {
                    // All of the card is its pod's.
                    Mode::Exclusive => owner == Some(share.pod.uid.as_str()),
                    _ => is_of(process, share, ledger),
                })
        };
        for lost in self.builder.probed(&self.mps.seen.limits) {
            effects.push(Effect::Tell(Note::LimitsLost {
                gpu: GpuUuid::from(lost.uuid.as_str()),
                missing: lost.missing.clone(),
            }));
        }
        let mut inventory = self.builder.inventory(&policy.spec, explained, now);
        self.layouts.withdraw(&mut inventory.cards);
        for card in &inventory.cards {
            let before = self.inventory.card(&card.uuid).map(|card| &card.health);
            if card.health != *before.unwrap_or(&Health::Healthy) {
                effects.push(Effect::Tell(Note::Health {
                    gpu: card.uuid.clone(),
                    health: card.health.clone(),
                }));
            }
        }
        self.inventory = inventory;
    }

    /// Pods with a process on some card.
    fn busy(&self) -> BTreeSet<String> {
        self.inventory
            .cards
            .iter()
            .flat_map(|card| self.builder.processes(&card.uuid))
            .filter_map(|process| process.origin.pod_uid.clone())
            .collect()
    }

    /// Enters grants that fit, oldest first. A grant that does not fit is tried again at every
    /// step, and refused when its pod asks for it.
    fn reserve(&mut self, busy: &BTreeSet<String>) {
        // Before the disk was read, a card may have unknown holders.
        if !self.restored {
            return;
        }
        let gone = |share: &Share| !self.claims.contains_key(&share.key());
        // The admin closed its card to grants before anything of it started.
        let closed = |share: &Share| {
            let mut cards = share.gpus.iter().filter_map(|gpu| self.inventory.card(gpu));
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
        let claims = self.claims.values().map(|(_, claim)| claim);
        for share in reconcile::proven(&self.local, claims, &self.ledger) {
            self.ledger.restore(share);
        }
        let mut claims: Vec<&(u64, Claim)> = self.claims.values().collect();
        claims.sort_by_key(|(order, _)| *order);
        for (_, claim) in claims {
            let _ = self.ledger.reserve(claim, &self.inventory);
        }
    }

    /// The progress and use of each share.
    fn follow(&mut self, now: Instant) {
        let keys: BTreeSet<HolderKey> = self.ledger.all().map(Share::key).collect();
        self.activities.keep(|key| keys.contains(key));
        for key in keys {
            let Some(share) = self.ledger.get(&key) else {
                continue;
            };
            let (phase, container_id) = reconcile::progress(share, &self.local, &self.pods);
            let processes = || self.processes(share, container_id.as_deref());
            let memory = processes().filter_map(|process| process.memory);
            let used = memory.fold(Mib(0), |sum, one| Mib(sum.0.saturating_add(one.0)));
            let sm_percent = processes()
                .filter_map(|process| process.sm_percent)
                .reduce(u32::saturating_add);
            let idle_minutes = self.idle_minutes(&key, phase, container_id.as_deref(), used, now);
            let Some(share) = self.ledger.get(&key) else {
                continue;
            };
            let started = container_id.is_some()
                && matches!(phase, SharePhase::Running | SharePhase::Terminating);
            let fence = started.then(|| self.fence(share, now)).flatten();
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

    /// Returns for how many whole minutes the share has done no work. `None`: the container does not run,
    /// a card of the share does not answer, or the driver does not tell.
    fn idle_minutes(
        &mut self,
        key: &HolderKey,
        phase: SharePhase,
        container_id: Option<&str>,
        used: Mib,
        now: Instant,
    ) -> Option<u32> {
        let share = self.ledger.get(key)?;
        let Some(container) = container_id.filter(|_| phase == SharePhase::Running) else {
            self.activities.forget(key);
            return None;
        };
        let servers = self.mps.seen.servers.iter();
        let servers: BTreeSet<u32> = servers.flat_map(|s| &s.server_pids).copied().collect();
        let looks = share.gpus.iter().map(|card| {
            let reading = self.builder.reading(card)?;
            reading.has_worked(is_own(share, container_id), &servers)
        });
        // Work on one card is enough. Otherwise every card must report that there was none.
        let either = |one: Option<bool>, other: Option<bool>| match (one, other) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (one, other) => one.and(other),
        };
        let worked = looks.reduce(either)?;
        self.activities.follow(key, container, used, worked, now)
    }

    /// What really holds a container that the hook let start. `None` also while its card was
    /// not read, or its compute mode was just set and not read yet, and before the supervisor was asked: nothing
    /// is claimed then.
    fn fence(&self, share: &Share, now: Instant) -> Option<ActiveFence> {
        let name = server_name(share);
        let right = share.gpus.iter().map(|card| {
            self.inventory.card(card)?;
            let Some(watch) = self.compute_modes.get(card) else {
                return Some(true);
            };
            // What a card had when it last answered says nothing of now.
            let answers = self.builder.answers(card);
            watch.is_right(now).map(|right| right && answers)
        });
        let right = right.reduce(|one, other| one.and_then(|one| Some(one && other?)));
        let right = right.unwrap_or(Some(true));
        let known = right.is_some() && self.mps_told;
        if !known && name.is_some() && share.fence.is_none() {
            return None;
        }
        let servers = &self.mps.seen.servers;
        let server = (name.as_ref()).and_then(|name| servers.iter().find(|s| s.name == *name));
        let planned = self.mps.applied.servers.iter();
        let planned = planned.filter(|planned| name.as_ref() == Some(&planned.name));
        let planned = planned.map(|planned| Mib(planned.default_memory_mib)).max();
        // Without a supervisor nothing is read back.
        let server = server.filter(|_| self.mps.unreachable.is_empty());
        let server = server.map_or(0, |server| server.observed_default_memory_mib);
        let cards = share.gpus.iter();
        let totals = cards.filter_map(|card| Some(self.inventory.card(card)?.total));
        let pids = || {
            let container = share.container_id.as_deref();
            self.processes(share, container).map(|process| process.pid)
        };
        let ceilings = share.gpus.first().and_then(|card| self.ceilings.get(card));
        // The driver limits each container: of several it does not hold the sum.
        let alone = self.ledger.holders(&share.limit_scope()).nth(1).is_none();
        let limited = self.limited(share).filter(|_| alone);
        let evidence = Evidence {
            // The driver's answer and the kernel's file: the hook names the backend for both.
            driver: limited.and_then(|limited| Some((Mib(limited.mib?), limited.backend?))),
            server: (server > 0).then_some(Mib(server)),
            // A daemon that reads back whole GiB may grant as much as it was last set to.
            ceiling: ceilings
                .and_then(|ceilings| ceilings.highest(pids()))
                .max(planned),
            compute_mode: right == Some(true),
            total: totals.max().unwrap_or_default(),
        };
        fence::active(share.mode, share.memory, &evidence)
    }

    /// Whether cards are in the compute mode that the shares on them need, and the limits
    /// with which processes came to the servers of cards in mode `mps`.
    fn compare_modes(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut watches = BTreeMap::new();
        let mut ceilings = BTreeMap::new();
        for card in &self.inventory.cards {
            let mode = self.ledger.mode_of(&card.uuid);
            if let Some((mode, needed)) = mode.and_then(|m| Some((m, fence::compute_mode(m)?))) {
                let known = self.compute_modes.get(&card.uuid).copied();
                let known = known.filter(|watch| watch.mode() == mode);
                let mut watch = known.unwrap_or(ComputeModeWatch::new(mode));
                if watch.observe(card.compute_mode, now) {
                    let faults = self.mode_faults.entry(card.uuid.clone()).or_default();
                    *faults = faults.saturating_add(1);
                    effects.push(Effect::Tell(Note::ComputeMode {
                        gpu: card.uuid.clone(),
                        is: card.compute_mode,
                        needed,
                    }));
                }
                watches.insert(card.uuid.clone(), watch);
            }
            if mode != Some(Mode::Mps) {
                continue;
            }
            let mut known = self.ceilings.remove(&card.uuid).unwrap_or_default();
            let mut servers = self.mps.seen.servers.iter();
            if let Some(server) = servers.find(|s| s.name == card.uuid.as_str()) {
                let pids = self.builder.processes(&card.uuid).iter().map(|p| p.pid);
                match server.observed_default_memory_mib {
                    // A process that starts before it is restored may get any limit.
                    0 if !server.tampered.is_empty() => known.observe(card.total, pids, now),
                    0 => {}
                    default => known.observe(Mib(default), pids, now),
                }
            }
            ceilings.insert(card.uuid.clone(), known);
        }
        self.compute_modes = watches;
        self.ceilings = ceilings;
    }

    /// What is wrong with a card's compute mode, in one sentence.
    pub(in crate::node) fn wrong_mode_of(&self, uuid: &GpuUuid) -> Option<String> {
        let (watch, card) = (self.compute_modes.get(uuid)?, self.inventory.card(uuid)?);
        let needed = fence::compute_mode(watch.mode())?;
        (watch.is_told() && card.compute_mode != needed).then(|| {
            format!(
                "card {uuid} is in compute mode {}, mode {} needs {}",
                card.compute_mode.as_str(),
                watch.mode(),
                needed.as_str()
            )
        })
    }

    /// What came of the driver's own limit for a share's container.
    pub(in crate::node) fn limited(&self, share: &Share) -> Option<&Limited> {
        self.local.proof_of(share)?.limited.as_ref()
    }

    /// What a share's container has running on its cards.
    fn processes<'a>(
        &'a self,
        share: &'a Share,
        container_id: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Process> {
        let is_own = is_own(share, container_id);
        let cards = share.gpus.iter();
        cards
            .flat_map(|card| self.builder.processes(card))
            .filter(move |process| is_own(process))
    }

    fn suspect(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let found = reconcile::unproven(
            &self.local,
            &self.ledger,
            &self.pods,
            &mut self.suspicions,
            now,
        );
        let late = self.unproven.iter().any(|(key, unproven)| {
            let proof = self.local.proofs.get(&unproven.name);
            !found.contains_key(key) && proof.is_some_and(Option::is_some)
        });
        let old = (self.cdi_ignored.as_ref())
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) >= CDI_PATIENCE);
        if late || old {
            self.cdi_ignored = None;
        }
        for (key, unproven) in &found {
            let known = self.unproven.get(key);
            let Standing::Present(pod) = self.pods.standing(&key.pod_uid) else {
                continue;
            };
            if known.is_some_and(|known| known.container_id == unproven.container_id) {
                continue;
            }
            effects.push(Effect::Tell(Note::Unproven {
                pod: pod.identity.clone(),
                container: key.container.clone(),
            }));
            // What ran before this agent did may have had its proof; it is left alone.
            if !self.let_start.contains(&unproven.name) {
                continue;
            }
            // A runtime class says nothing about the default runtime.
            if unproven.runtime_class.is_none() {
                let why = format!(
                    "the container runtime ignores CDI: container {} of {} started without running the OCI hook",
                    key.container, pod.identity
                );
                self.cdi_ignored = Some((now, why));
            }
            let reason = match &unproven.runtime_class {
                None => "container started without running the OCI hook".to_owned(),
                Some(class) => format!(
                    "container started without running the OCI hook: runtime class {class} runs no OCI hooks"
                ),
            };
            effects.push(Effect::End(Termination {
                pod_uid: key.pod_uid.clone(),
                container_id: Some(unproven.container_id.clone()),
                pids: Vec::new(),
                server: None,
                reason,
            }));
        }
        self.unproven = found;
        let ledger = &self.ledger;
        self.let_start
            .retain(|name| ledger.by_alloc(name.alloc).next().is_some());
    }
}
