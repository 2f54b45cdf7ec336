//! The guard reacts to containers that hold more than their share. Pure.
//!
//! In: samples of the cards' processes, which the [`Watchdog`] judges. Out: the reaction to each
//! finding, and the cards on which nothing can be judged.

use super::cards::Cards;
use super::event::Effect;
use super::note::Note;
use super::policy::Policy;
use crate::gpu::GpuUuid;
use crate::ledger::{Ledger, LimitScope, Share};
use crate::mps::plan::server_name;
use crate::nvml::{Process, Sample, Watched};
use crate::pods::{Pods, Standing};
use crate::termination::Termination;
use crate::watchdog::{self, Allowance, Finding, ShareProcess, ViolationKind, Watchdog};
use api::Mib;
use api::gpu_node::Reaction;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time in which the supervisor checks its servers and reports.
const RECENT: Duration = Duration::from_secs(2);
/// How long an evicted pod may take to end: Kubernetes' default grace period. The tenant sets
/// the pod's own, and must not hold memory of others for as long as it likes.
pub(super) const EVICTION_GRACE: Duration = Duration::from_secs(30);
/// After this time without a finding, the next one starts a new grace period, unless the pod is
/// being deleted already.
const RELIEVED: Duration = Duration::from_secs(10);

/// The watchdog, and the state of the reactions to its findings.
#[derive(Debug, Default)]
pub(super) struct Guard {
    watchdog: Watchdog,
    /// What ran on watched cards in the last moments, latest last.
    recent: VecDeque<Arc<Sample>>,
    /// The cards whose samples have all been too old to be judged for too long.
    blind: BTreeSet<GpuUuid>,
    /// Shares that something is to be done about: since when, and when that was seen last.
    wrong: BTreeMap<LimitScope, [Instant; 2]>,
}

impl Guard {
    /// Returns the cards that are to be sampled, and how closely.
    pub(super) fn watched(&self, ledger: &Ledger, now: Instant) -> Watched {
        Watched {
            cards: ledger.watched(),
            closely: self.watchdog.suspects(now),
        }
    }

    /// Time has passed: is there a card whose processes could not be evaluated for too long? A card
    /// that does not answer or is not healthy is not offered anyway.
    pub(super) fn look_for_blindness(&mut self, ledger: &Ledger, cards: &Cards, now: Instant) {
        let mut watched = ledger.watched();
        watched.retain(|uuid| {
            let card = cards.card(uuid);
            cards.looks.answers(uuid) && card.is_some_and(|card| card.health.is_healthy())
        });
        self.watchdog.watch(&watched, now);
        self.blind = self.watchdog.unjudged(now).cloned().collect();
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
        let blind = self.blind.iter();
        blind.map(|card| (card.clone(), why(card))).collect()
    }

    /// Returns why no new share starts on some of these cards for now, in one sentence. The tokens
    /// of these cards stay healthy, as with `Core::held_up`.
    pub(super) fn held_up_on(&self, cards: &[GpuUuid]) -> Option<String> {
        let unguarded = self.unguarded();
        let mut why = cards.iter().filter_map(|card| unguarded.get(card));
        why.next().cloned()
    }

    /// Samples of cards that were too old to be judged.
    pub(super) fn stale_samples(&self) -> u64 {
        self.watchdog.stale()
    }

    /// Has the watchdog evaluate a sample, and returns its findings.
    pub(super) fn judge(
        &mut self,
        sample: Arc<Sample>,
        ledger: &Ledger,
        cards: &Cards,
        allowance: &Allowance,
        now: Instant,
    ) -> Vec<Finding> {
        let mut findings = self.watchdog.judge(&sample, ledger, allowance, now);
        let room = |uuid: &GpuUuid| cards.beside_kept(ledger, uuid);
        let slack = allowance.slack;
        findings.extend(self.watchdog.press(&sample, ledger, slack, room, now));
        self.recent.retain(|old| {
            let mut cards = old.cards.iter();
            cards.any(|card| now.saturating_duration_since(card.at) <= RECENT)
        });
        self.recent.push_back(sample);
        findings
    }

    /// Why a container of that share must not start yet, in one sentence: other shares hold more
    /// than their requests, and with that some of what is kept on its cards. With the reaction
    /// `Report` they are not stopped, and the container does not wait.
    pub(super) fn awaits_memory(
        &self,
        share: &Share,
        ledger: &Ledger,
        cards: &Cards,
        policy: &Policy,
        slack: Mib,
        now: Instant,
    ) -> Option<String> {
        if policy.reaction(ViolationKind::Pressure) == Reaction::Report {
            return None;
        }
        let key = share.key();
        let bursts = |other: &Share| {
            other.kept < other.memory && other.alloc_id.is_some() && other.key() != key
        };
        share.gpus.iter().find_map(|uuid| {
            if !ledger.on(uuid).any(bursts) {
                return None;
            }
            let seen = self.recent.iter().rev().flat_map(|one| &one.cards);
            let fresh = |at: Instant| now.saturating_duration_since(at) <= RECENT;
            let Some(seen) = seen.into_iter().find(|c| c.uuid == *uuid && fresh(c.at)) else {
                return Some(format!("what is held of card {uuid} is not known yet"));
            };
            let room = cards.beside_kept(ledger, uuid)?;
            let lacks = watchdog::lacking(uuid, &seen.processes, ledger, slack, room);
            (lacks > Mib(0)).then(|| {
                format!(
                    "{lacks} of what is kept on card {uuid} are held by shares above their requests, and are being taken back"
                )
            })
        })
    }

    /// Whether the pod should have ended by now, if the reaction is to evict it.
    pub(super) fn is_overdue(
        &mut self,
        finding: &Finding,
        ledger: &Ledger,
        pods: &Pods,
        now: Instant,
    ) -> bool {
        if !finding.sure {
            return false;
        }
        self.wrong.retain(|hold, [_, last]| {
            let recent = now.saturating_duration_since(*last) < RELIEVED;
            let leaves = |share: &Share| {
                matches!(pods.standing(&share.pod.uid), Standing::Present(pod) if pod.deleting)
            };
            let mut holders = ledger.holders(hold).peekable();
            holders.peek().is_some() && (recent || holders.any(leaves))
        });
        let wrong = self.wrong.entry(finding.hold.clone());
        let [since, last] = wrong.or_insert([now, now]);
        *last = now;
        now.saturating_duration_since(*since) >= EVICTION_GRACE
    }

    /// Returns the processes that ran on watched cards in the last moments.
    pub(super) fn sampled(&self) -> Vec<&Process> {
        let cards = self.recent.iter().flat_map(|sample| &sample.cards);
        cards.flat_map(|card| &card.processes).collect()
    }

    /// Returns the watchdog's complaints about a share, one sentence each.
    pub(super) fn complaints(
        &self,
        hold: &LimitScope,
    ) -> impl Iterator<Item = (ViolationKind, &str)> {
        self.watchdog.complaints(hold)
    }
}

/// Reacts to a finding. `overdue`: the pod's grace period after an eviction is over.
pub(super) fn react(
    finding: &Finding,
    overdue: bool,
    ledger: &Ledger,
    pods: &Pods,
    policy: &Policy,
    effects: &mut Vec<Effect>,
) {
    // If several containers are affected, that of the first process represents all.
    let of_first = |share: &&Share| {
        let mut own = finding.own.iter();
        own.any(|own| own.pod_uid == share.pod.uid && own.container_id == share.container_id)
    };
    let holders = || ledger.holders(&finding.hold);
    let Some(share) = holders().find(of_first).or_else(|| holders().next()) else {
        return;
    };
    let is_present = |uid: &str| matches!(pods.standing(uid), Standing::Present(_));
    let present = holders().any(|share| is_present(&share.pod.uid));
    let action = match policy.reaction_to(finding.wrong, share) {
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
