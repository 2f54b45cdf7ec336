//! The core's reaction to containers that use too much, to broken servers, to processes without a
//! grant and to clients that are about to be killed. Pure, as all of the core.

use super::core::Core;
use super::drain::Leave;
use super::event::Effect;
use super::state::{Complaint, Note};
use crate::gpu::GpuUuid;
use crate::inventory::Front;
use crate::inventory::{DriverLimits, Inventory, Stranger};
use crate::ledger::{HolderKey, Ledger, LimitScope, Share};
use crate::mps::plan::server_name;
use crate::nvml::{Process, Sample, Watched};
use crate::pods::Standing;
use crate::termination::{Drain, Termination};
use crate::watchdog::{self, Allowance, Finding, ShareProcess, ViolationKind, Watchdog, is_of};
use api::gpu_node::Reaction;
use api::{Mib, Mode};
use proto::mps::{Observation, ServerPhase, ServerState};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time in which the supervisor checks its servers and reports.
const RECENT: Duration = Duration::from_secs(2);
/// A client of a server that broke may still end by itself.
const LEFTOVER_GRACE: Duration = Duration::from_millis(1500);
/// A process without a grant may belong to a container that is just being reported.
const STRANGER_GRACE: Duration = Duration::from_secs(3);
/// Between two actions against the same.
const AGAIN: Duration = Duration::from_secs(2);
/// For so long at least a container's complaint says that its server broke.
const TOLD: Duration = Duration::from_secs(10);
/// How long an evicted pod may take to end: Kubernetes' default grace period. The tenant sets
/// the pod's own, and must not hold memory of others for as long as it likes.
const EVICTION_GRACE: Duration = Duration::from_secs(30);
/// After this time without a finding, the next one starts a new grace period, unless the pod is
/// being deleted already.
const RELIEVED: Duration = Duration::from_secs(10);

/// Its state.
#[derive(Debug, Default)]
pub(super) struct Guard {
    watchdog: Watchdog,
    /// What ran on watched cards in the last moments, latest last.
    recent: VecDeque<Arc<Sample>>,
    /// The cards whose samples have all been too old to be judged for too long.
    blind: BTreeSet<GpuUuid>,
    /// Shares that something is to be done about: since when, and when that was seen last.
    wrong: BTreeMap<LimitScope, [Instant; 2]>,
    broken: BTreeMap<String, BrokenServer>,
    strangers: BTreeMap<(GpuUuid, u32), StrangerEntry>,
}

/// A server that does not take clients any more.
#[derive(Debug)]
struct BrokenServer {
    since: Instant,
    /// Its clients when it broke.
    clients: BTreeSet<u32>,
    acted: Option<Instant>,
    mended: bool,
    /// Containers that had clients of it.
    lost: BTreeSet<HolderKey>,
    /// What is said of them.
    text: String,
}

/// A process without a grant.
#[derive(Debug)]
struct StrangerEntry {
    since: Instant,
    acted: Option<Instant>,
    /// The reaction, as of the last reading.
    reaction: Reaction,
}

/// A card's memory beyond all that is kept on it.
fn beside_kept(ledger: &Ledger, inventory: &Inventory, uuid: &GpuUuid) -> Option<Mib> {
    let card = inventory.card(uuid)?;
    Some(ledger.grantable(card).saturating_sub(ledger.granted(uuid)))
}

impl Core {
    fn reaction(&self, wrong: ViolationKind) -> Reaction {
        let policy = self.policy.as_ref();
        policy
            .and_then(|policy| match wrong {
                ViolationKind::Pressure => policy.spec.on_pressure,
                _ => policy.spec.on_violation,
            })
            .unwrap_or(Reaction::Kill)
    }

    /// What happens to containers that hold more than their share, where no claim says more.
    pub(super) fn on_violation(&self) -> Reaction {
        self.reaction(ViolationKind::Memory)
    }

    /// The same for one share: its class may say anything, its claim only more.
    fn reaction_to(&self, wrong: ViolationKind, share: &Share) -> Reaction {
        let nodes = self.reaction(wrong);
        if wrong == ViolationKind::Pressure {
            return nodes;
        }
        let without = share.wishes.on_violation.unwrap_or(nodes);
        share
            .wishes
            .at_least
            .map_or(without, |own| own.max(without))
    }

    fn is_present(&self, pod_uid: &str) -> bool {
        matches!(self.pods.standing(pod_uid), Standing::Present(_))
    }

    /// Which cards are to be sampled, and how closely.
    pub fn watched(&self, now: Instant) -> Watched {
        Watched {
            cards: self.ledger.watched(),
            closely: self.guard.watchdog.suspects(now),
        }
    }

    /// Time has passed: is there a card whose processes could not be evaluated for too long? A card
    /// that does not answer or is not healthy is not offered anyway.
    pub(super) fn look_for_blindness(&mut self, now: Instant) {
        let mut watched = self.ledger.watched();
        watched.retain(|uuid| {
            let card = self.inventory.card(uuid);
            self.builder.answers(uuid) && card.is_some_and(|card| card.health.is_healthy())
        });
        self.guard.watchdog.watch(&watched, now);
        self.guard.blind = self.guard.watchdog.unjudged(now).cloned().collect();
    }

    /// Returns the cards on which the watchdog cannot hold shares to their limits, each with the
    /// reason in one sentence.
    pub(super) fn unguarded(&self) -> BTreeMap<GpuUuid, String> {
        let why = |card: &GpuUuid| {
            format!(
                "the processes of card {card} could not be read in time for {} s, so that no share could be held to its limit",
                watchdog::BLIND.as_secs()
            )
        };
        let blind = self.guard.blind.iter();
        blind.map(|card| (card.clone(), why(card))).collect()
    }

    /// Returns why no new share starts on some of these cards for now, in one sentence. The tokens
    /// of these cards stay healthy, as with [`Self::held_up`].
    pub(super) fn held_up_on(&self, cards: &[GpuUuid]) -> Option<String> {
        let unguarded = self.unguarded();
        let mut why = cards.iter().filter_map(|card| unguarded.get(card));
        why.next().cloned()
    }

    /// Samples of cards that were too old to be judged.
    pub(super) fn stale_samples(&self) -> u64 {
        self.guard.watchdog.stale()
    }

    /// Evaluates a sample; returns whether anything follows from it.
    pub(super) fn judge(
        &mut self,
        sample: Arc<Sample>,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let allowance = Allowance {
            slack: self.terms.watchdog_slack,
            client_slots: self.terms.cards.client_slots,
        };
        let watchdog = &mut self.guard.watchdog;
        let mut findings = watchdog.judge(&sample, &self.ledger, &allowance, now);
        let (ledger, inventory) = (&self.ledger, &self.inventory);
        let room = |uuid: &GpuUuid| beside_kept(ledger, inventory, uuid);
        findings.extend(watchdog.press(&sample, ledger, allowance.slack, room, now));
        let recent = &mut self.guard.recent;
        recent.retain(|old| {
            let mut cards = old.cards.iter();
            cards.any(|card| now.saturating_duration_since(card.at) <= RECENT)
        });
        recent.push_back(sample);
        for finding in &findings {
            let overdue = self.is_overdue(finding, now);
            self.react(finding, overdue, effects);
        }
        findings.iter().any(|finding| finding.sure)
    }

    /// Why a container of that share must not start yet, in one sentence: other shares hold more
    /// than their requests, and with that some of what is kept on its cards. With the reaction
    /// `Report` they are not stopped, and the container does not wait.
    pub(super) fn awaits_memory(&self, share: &Share, now: Instant) -> Option<String> {
        if self.reaction(ViolationKind::Pressure) == Reaction::Report {
            return None;
        }
        let key = share.key();
        let bursts = |other: &Share| {
            other.kept < other.memory && other.alloc_id.is_some() && other.key() != key
        };
        share.gpus.iter().find_map(|uuid| {
            if !self.ledger.on(uuid).any(bursts) {
                return None;
            }
            let cards = self.guard.recent.iter().rev().flat_map(|one| &one.cards);
            let fresh = |at: Instant| now.saturating_duration_since(at) <= RECENT;
            let Some(seen) = cards.into_iter().find(|c| c.uuid == *uuid && fresh(c.at)) else {
                return Some(format!("what is held of card {uuid} is not known yet"));
            };
            let room = beside_kept(&self.ledger, &self.inventory, uuid)?;
            let slack = self.terms.watchdog_slack;
            let lacks = watchdog::lacking(uuid, &seen.processes, &self.ledger, slack, room);
            (lacks > Mib(0)).then(|| {
                format!(
                    "{lacks} of what is kept on card {uuid} are held by shares above their requests, and are being taken back"
                )
            })
        })
    }

    /// Whether the pod should have ended by now, if the reaction is to evict it.
    fn is_overdue(&mut self, finding: &Finding, now: Instant) -> bool {
        if !finding.sure {
            return false;
        }
        let (ledger, pods) = (&self.ledger, &self.pods);
        self.guard.wrong.retain(|hold, [_, last]| {
            let recent = now.saturating_duration_since(*last) < RELIEVED;
            let leaves = |share: &Share| {
                matches!(pods.standing(&share.pod.uid), Standing::Present(pod) if pod.deleting)
            };
            let mut holders = ledger.holders(hold).peekable();
            holders.peek().is_some() && (recent || holders.any(leaves))
        });
        let wrong = self.guard.wrong.entry(finding.hold.clone());
        let [since, last] = wrong.or_insert([now, now]);
        *last = now;
        now.saturating_duration_since(*since) >= EVICTION_GRACE
    }

    /// `overdue`: the pod's grace period after an eviction is over.
    fn react(&self, finding: &Finding, overdue: bool, effects: &mut Vec<Effect>) {
        // Of several containers, the one of the first process represents all.
        let of_first = |share: &&Share| {
            let mut own = finding.own.iter();
            own.any(|own| own.pod_uid == share.pod.uid && own.container_id == share.container_id)
        };
        let holders = || self.ledger.holders(&finding.hold);
        let Some(share) = holders().find(of_first).or_else(|| holders().next()) else {
            return;
        };
        let present = holders().any(|share| self.is_present(&share.pod.uid));
        let action = match self.reaction_to(finding.wrong, share) {
            _ if !finding.sure => "warned",
            Reaction::Report => "reported",
            // There is no pod to evict any more, and its container is still there.
            Reaction::Evict if overdue || !present => "killed",
            Reaction::Evict => "evicted",
            Reaction::Kill => "killed",
        };
        effects.push(Effect::Tell(Note::Violation {
            pod: share.pod.clone(),
            container: share.container.clone(),
            wrong: finding.wrong.as_str(),
            action,
            text: finding.text(),
        }));
        if action != "killed" {
            return;
        }
        let client = finding.wrong != ViolationKind::PastServer;
        let server = client.then(|| server_name(share)).flatten();
        let mut containers: BTreeMap<(&str, Option<&str>), Vec<u32>> = BTreeMap::new();
        for ShareProcess {
            pid,
            pod_uid,
            container_id,
        } in &finding.own
        {
            let container = (pod_uid.as_str(), container_id.as_deref());
            containers.entry(container).or_default().push(*pid);
        }
        for ((pod_uid, container_id), pids) in containers {
            effects.push(Effect::End(Termination {
                pod_uid: pod_uid.to_owned(),
                container_id: container_id.map(str::to_owned),
                pids,
                server: server.clone(),
                reason: finding.text(),
            }));
        }
    }

    /// Applies the supervisor's observation, unless a newer one is known: its answers and its own
    /// reports arrive on two ways.
    pub(super) fn take_seen(&mut self, seen: Observation, now: Instant, effects: &mut Vec<Effect>) {
        let last = &self.mps.seen;
        if seen.supervisor_started == last.supervisor_started && seen.step < last.step {
            return;
        }
        self.servers_changed(&seen, now, effects);
        self.mps.seen = seen;
    }

    /// Which servers broke and which have recovered, before `seen` is applied.
    fn servers_changed(&mut self, seen: &Observation, now: Instant, effects: &mut Vec<Effect>) {
        // Another supervisor counts from 0 again.
        let goes_on = seen.supervisor_started == self.mps.seen.supervisor_started;
        for server in &seen.servers {
            let mut before = self.mps.seen.servers.iter();
            let before = before.find(|old| old.name == server.name).cloned();
            let more = |old: &ServerState| server.losses > if goes_on { old.losses } else { 0 };
            if let Some(before) = before.filter(more) {
                self.broke(server, &before, now, effects);
            } else if server.phase() == ServerPhase::Ready
                && let Some(broken) = self.guard.broken.get_mut(&server.name)
                && !broken.mended
            {
                broken.mended = true;
                effects.push(Effect::Tell(Note::ServerMended {
                    server: server.name.clone(),
                    after: now.saturating_duration_since(broken.since),
                }));
            }
        }
    }

    fn broke(
        &mut self,
        server: &ServerState,
        before: &ServerState,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        // The supervisor's list may lack new clients, and the latest sample clients that have just
        // ended.
        let shares = self.ledger.shares();
        let its: Vec<&Share> = shares
            .filter(|share| server_name(share).as_ref() == Some(&server.name))
            .collect();
        let sampled = self.guard.recent.iter().flat_map(|sample| &sample.cards);
        let sampled: Vec<&Process> = sampled.flat_map(|card| &card.processes).collect();
        let of_its =
            |process: &Process| its.iter().any(|share| is_of(process, share, &self.ledger));
        let came_last = sampled.iter().filter(|process| of_its(process));
        let listed = before.clients.iter().chain(&server.clients);
        let clients: BTreeSet<u32> = listed
            .map(|client| client.pid)
            .chain(came_last.map(|process| process.pid))
            .collect();
        let had_clients = |share: &&&Share| {
            let cards = share.gpus.iter();
            let read = cards.flat_map(|card| self.builder.processes(card));
            let mut seen = read.chain(sampled.iter().copied());
            seen.any(|process| {
                clients.contains(&process.pid) && is_of(process, share, &self.ledger)
            })
        };
        let blamed = self.blamed(server);
        let how = match (server.phase(), blamed.as_str()) {
            (ServerPhase::ServerFault, "unknown") => "faulted".to_owned(),
            (ServerPhase::ServerFault, pod) => format!("faulted, by a process of pod {pod}"),
            _ => "ended".to_owned(),
        };
        let broken = BrokenServer {
            since: now,
            lost: its
                .iter()
                .filter(had_clients)
                .map(|share| share.key())
                .collect(),
            text: format!("lost its work on the GPU: its MPS server {how}"),
            clients,
            acted: None,
            mended: false,
        };
        effects.push(Effect::Tell(Note::ServerBroke {
            server: server.name.clone(),
            state: match server.phase() {
                ServerPhase::ServerFault => "ServerFault",
                _ => "Ended",
            },
            blamed,
            reason: server.reason.clone(),
        }));
        self.guard.broken.insert(server.name.clone(), broken);
    }

    /// Whose client a fault was. A server of one share has no other; of several, the server names
    /// its pid.
    fn blamed(&self, server: &ServerState) -> String {
        let own = self.ledger.shares().find(|share| {
            share.mode == Mode::MpsIsolated && server_name(share).as_ref() == Some(&server.name)
        });
        let by_pid = || {
            self.ledger.shares().find(|share| {
                share.gpus.iter().any(|card| {
                    let mut processes = self.builder.processes(card).iter();
                    processes.any(|process| {
                        process.pid == server.blamed_pid && is_of(process, share, &self.ledger)
                    })
                })
            })
        };
        let faulted = server.phase() == ServerPhase::ServerFault;
        own.or_else(by_pid)
            .filter(|_| faulted)
            .map_or_else(|| "unknown".to_owned(), |share| share.pod.to_string())
    }

    /// Ends clients that a broken server left: their work is lost, and a faulted server accepts no
    /// client until they have ended.
    pub(super) fn mend(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut guard = std::mem::take(&mut self.guard);
        guard.broken.retain(|name, broken| {
            let left = self.leftovers(name, broken);
            if left.is_empty() {
                // A server that no share needs any more does not come back.
                let mut shares = self.ledger.shares();
                let needed = shares.any(|share| server_name(share).as_ref() == Some(name));
                return needed && !(broken.mended && now >= broken.since + TOLD);
            }
            let due = broken
                .acted
                .map_or(broken.since + LEFTOVER_GRACE, |at| at + AGAIN);
            if now >= due {
                broken.acted = Some(now);
                for (share, pids) in left {
                    effects.push(Effect::End(Termination {
                        pod_uid: share.pod.uid.clone(),
                        container_id: None,
                        pids,
                        server: Some(name.clone()),
                        reason: format!(
                            "MPS server {name} failed, and waits for its old clients to end"
                        ),
                    }));
                }
            }
            true
        });
        self.guard = guard;
    }

    /// Clients of a broken server that are still there, by share.
    fn leftovers(&self, name: &str, broken: &BrokenServer) -> Vec<(&Share, Vec<u32>)> {
        let shares = self.ledger.shares();
        let its = shares.filter(|share| server_name(share).as_deref() == Some(name));
        let left = its.map(|share| {
            let processes = share
                .gpus
                .iter()
                .flat_map(|card| self.builder.processes(card));
            let pids: BTreeSet<u32> = processes
                .filter(|process| broken.clients.contains(&process.pid))
                .filter(|process| is_of(process, share, &self.ledger))
                .map(|process| process.pid)
                .collect();
            (share, pids.into_iter().collect::<Vec<u32>>())
        });
        left.filter(|(_, pids)| !pids.is_empty()).collect()
    }

    /// Requests the drain of each client that the kubelet is about to kill, once.
    pub(super) fn drain(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let (ledger, pods) = (&self.ledger, &self.pods);
        let has_share = |uid: &str| ledger.all().any(|share| share.pod.uid == uid);
        self.drains.retain(has_share);
        for share in ledger.all() {
            let uid = &share.pod.uid;
            let leave = match pods.standing(uid) {
                Standing::Present(pod) if pod.mirror_uid.is_some() => Leave::Static,
                Standing::Present(pod) if pod.deleting => Leave::Deleted(pod.grace),
                Standing::Present(_) | Standing::Unknown => Leave::Stays,
                Standing::Gone => Leave::Gone,
            };
            let server = server_name(share);
            let due = self.drains.is_due(uid, leave, now);
            let Some(server) = server.filter(|_| due) else {
                continue;
            };
            let on_cards = share
                .gpus
                .iter()
                .flat_map(|card| self.builder.processes(card));
            let pids: Vec<u32> = on_cards
                .filter(|process| is_of(process, share, ledger))
                .map(|process| process.pid)
                .filter(|pid| self.drains.take(uid, *pid))
                .collect();
            if !pids.is_empty() {
                effects.push(Effect::Drain(Drain {
                    pod: share.pod.clone(),
                    server,
                    pids,
                }));
            }
        }
    }

    /// Processes of pods that use a card without a grant.
    pub(super) fn meet_strangers(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let policy = self.policy.as_ref();
        let on_stranger = policy.and_then(|policy| policy.spec.on_stranger);
        let on_stranger = on_stranger.unwrap_or(Reaction::Report);
        let present: Vec<(GpuUuid, Stranger)> = self
            .inventory
            .cards
            .iter()
            .flat_map(|card| {
                card.strangers
                    .iter()
                    .map(|s| (card.uuid.clone(), s.clone()))
            })
            .collect();
        self.guard.strangers.retain(|(card, pid), _| {
            present
                .iter()
                .any(|(at, stranger)| at == card && stranger.pid == *pid)
        });
        for (card, stranger) in present {
            let Some(pod_uid) = stranger.pod_uid else {
                continue;
            };
            let on_card = |share: &&Share| share.pod.uid == pod_uid && share.gpus.contains(&card);
            let own = self.ledger.all().find(on_card);
            let reaction = match own {
                // It was let in to look at the card.
                Some(share) if share.wishes.observes => Reaction::Report,
                // A share of its own pod is what it got the card by.
                Some(share) => self.reaction_to(ViolationKind::PastServer, share),
                None => on_stranger,
            };
            let name = (card.clone(), stranger.pid);
            let met = self.guard.strangers.entry(name).or_insert(StrangerEntry {
                since: now,
                acted: None,
                reaction,
            });
            met.reaction = reaction;
            if now.saturating_duration_since(met.since) < STRANGER_GRACE {
                continue;
            }
            let evicted = met.acted.filter(|_| reaction == Reaction::Evict);
            let overdue = evicted.is_some_and(|at| now >= at + EVICTION_GRACE);
            let kills = overdue || reaction == Reaction::Kill;
            // It is reported once; a process that has not ended is killed again.
            let due = match met.acted {
                None => true,
                Some(acted) => kills && now >= acted + AGAIN,
            };
            if !due {
                continue;
            }
            met.acted = Some(now);
            let action = match reaction {
                Reaction::Report => "reported",
                Reaction::Evict if !overdue => "evicted",
                Reaction::Evict | Reaction::Kill => "killed",
            };
            effects.push(Effect::Tell(Note::Stranger {
                gpu: card.clone(),
                pod_uid: pod_uid.clone(),
                action,
            }));
            if kills {
                effects.push(Effect::End(Termination {
                    pod_uid,
                    container_id: stranger.container_id,
                    pids: vec![stranger.pid],
                    server: None,
                    reason: format!("it uses card {card} without a grant"),
                }));
            }
        }
    }

    /// Strangers whose pods are to be evicted, after the time in which they could be explained.
    pub(super) fn evicted_strangers(&self) -> BTreeSet<(GpuUuid, u32)> {
        let met = self.guard.strangers.iter();
        let evicted = met.filter(|(_, met)| met.acted.is_some() && met.reaction == Reaction::Evict);
        evicted.map(|(name, _)| name.clone()).collect()
    }

    /// Complaints about containers, and events that affected them.
    pub(super) fn complaints(&self) -> BTreeMap<HolderKey, Complaint> {
        let of = |share: &Share| -> Option<Complaint> {
            let evict = self.reaction_to(ViolationKind::Memory, share) == Reaction::Evict;
            let sick = share.gpus.iter().find_map(|uuid| {
                let card = self.inventory.card(uuid)?;
                (!card.health.is_healthy()).then_some(card)
            });
            if let Some(card) = sick {
                return Some(Complaint {
                    text: format!("card {} is unhealthy: {}", card.uuid, card.health.reason()),
                    // A claim's pod is evicted by its device's taint, unless it tolerates that.
                    evict: card.health.is_lasting() && share.front() == Front::Plugin,
                });
            }
            let wrong = share.gpus.iter().find_map(|uuid| self.wrong_mode_of(uuid));
            if let Some(text) = wrong {
                return Some(Complaint { text, evict: false });
            }
            // One for which its pod must go is not hidden by one that is only reported.
            let hold = share.limit_scope();
            let held: Vec<(ViolationKind, &str)> = self.guard.watchdog.complaints(&hold).collect();
            let evicts = |(wrong, _): &&(ViolationKind, &str)| {
                self.reaction_to(*wrong, share) == Reaction::Evict
            };
            let evicting = held.iter().find(evicts);
            if let Some((_, text)) = evicting.or(held.first()) {
                return Some(Complaint {
                    text: (*text).to_owned(),
                    evict: evicting.is_some(),
                });
            }
            let server = server_name(share).and_then(|name| {
                let mut servers = self.mps.seen.servers.iter();
                servers.find(|s| s.name == name)
            });
            let broken = server_name(share).and_then(|name| self.guard.broken.get(&name));
            if let Some(broken) = broken.filter(|broken| broken.lost.contains(&share.key())) {
                return Some(Complaint {
                    text: broken.text.clone(),
                    evict: false,
                });
            }
            if let Some(server) = server.filter(|server| !server.tampered.is_empty()) {
                return Some(Complaint {
                    text: format!("its MPS server was changed by others: {}", server.tampered),
                    evict: evict && share.mode == Mode::MpsIsolated,
                });
            }
            let limited = self.limited(share)?;
            let lost = share.gpus.iter().find_map(|uuid| {
                match &self.inventory.card(uuid)?.driver_limits {
                    DriverLimits::Lost(missing) => Some((uuid, missing)),
                    _ => None,
                }
            });
            if let Some((uuid, missing)) = lost.filter(|_| limited.mib.is_some()) {
                return Some(Complaint {
                    text: format!(
                        "card {uuid} lost the driver's memory limits; the container's own limit stays as it was set: {missing}"
                    ),
                    evict: false,
                });
            }
            // Reported, since the driver has such limits; the mode's own fence still holds.
            (limited.mib.is_none()).then(|| Complaint {
                text: format!("the driver's memory limit is not set: {}", limited.error),
                evict: false,
            })
        };
        let standing =
            |share: &&Share| !matches!(self.pods.standing(&share.pod.uid), Standing::Gone);
        self.ledger
            .shares()
            .filter(standing)
            .filter_map(|share| Some((share.key(), of(share)?)))
            .collect()
    }
}
