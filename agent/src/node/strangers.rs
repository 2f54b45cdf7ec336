//! A stranger is a process on a card without a grant. This file decides what is done about the
//! strangers that belong to pods. Pure.

use super::event::Effect;
use super::guard::EVICTION_GRACE;
use super::note::Note;
use super::policy::Policy;
use crate::gpu::GpuUuid;
use crate::inventory::{Inventory, Stranger};
use crate::ledger::{Ledger, Share};
use crate::termination::Termination;
use crate::watchdog::ViolationKind;
use api::gpu_node::Reaction;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A process without a grant may belong to a container that is just being reported.
const GRACE: Duration = Duration::from_secs(3);
/// Between two actions against the same.
const AGAIN: Duration = Duration::from_secs(2);

/// The strangers, by card and pid.
#[derive(Debug, Default)]
pub(super) struct Strangers(BTreeMap<(GpuUuid, u32), Met>);

/// A process without a grant.
#[derive(Debug)]
struct Met {
    since: Instant,
    acted: Option<Instant>,
    /// The reaction, as of the last reading.
    reaction: Reaction,
}

impl Strangers {
    /// Reacts to the strangers that are there now.
    pub(super) fn meet(
        &mut self,
        inventory: &Inventory,
        ledger: &Ledger,
        policy: &Policy,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let present: Vec<(GpuUuid, Stranger)> = inventory
            .cards
            .iter()
            .flat_map(|card| {
                card.strangers
                    .iter()
                    .map(|s| (card.uuid.clone(), s.clone()))
            })
            .collect();
        self.0.retain(|(card, pid), _| {
            present
                .iter()
                .any(|(at, stranger)| at == card && stranger.pid == *pid)
        });
        for (card, stranger) in present {
            let Some(pod_uid) = stranger.pod_uid else {
                continue;
            };
            let on_card = |share: &&Share| share.pod.uid == pod_uid && share.gpus.contains(&card);
            let own = ledger.all().find(on_card);
            let reaction = match own {
                // It was let in to look at the card.
                Some(share) if share.wishes.observes => Reaction::Report,
                // A share of its own pod is what it got the card by.
                Some(share) => policy.reaction_to(ViolationKind::PastServer, share),
                None => policy.on_stranger(),
            };
            let name = (card.clone(), stranger.pid);
            let met = self.0.entry(name).or_insert(Met {
                since: now,
                acted: None,
                reaction,
            });
            met.reaction = reaction;
            if now.saturating_duration_since(met.since) < GRACE {
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

    /// Returns the strangers whose pods are to be evicted, after the time in which they could be explained.
    pub(super) fn evicted(&self) -> BTreeSet<(GpuUuid, u32)> {
        let met = self.0.iter();
        let evicted = met.filter(|(_, met)| met.acted.is_some() && met.reaction == Reaction::Evict);
        evicted.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Card;
    use crate::node::offer::tests::card;

    #[test]
    fn a_stranger_is_met_once_and_one_that_does_not_end_is_killed_again() {
        let stranger = Stranger {
            pid: 7,
            command: "x".into(),
            pod_uid: Some("u".into()),
            container_id: None,
            memory: api::Mib(1),
        };
        let card = Card {
            strangers: vec![stranger],
            ..card(0)
        };
        let inventory = Inventory {
            cards: vec![card],
            ..Inventory::default()
        };
        let (start, ledger) = (Instant::now(), Ledger::default());
        for (on_stranger, ends) in [
            (Reaction::Report, [0, 0, 0, 0]),
            (Reaction::Kill, [0, 1, 0, 1]),
        ] {
            let mut policy = Policy::default();
            policy.spec.on_stranger = Some(on_stranger);
            let mut met = Strangers::default();
            let mut notes = 0;
            for (after, expected) in [0, 3, 4, 5].into_iter().zip(ends) {
                let mut effects = Vec::new();
                let now = start + Duration::from_secs(after);
                met.meet(&inventory, &ledger, &policy, now, &mut effects);
                let ended = effects.iter().filter(|e| matches!(e, Effect::End(_)));
                assert_eq!(ended.count(), expected, "{on_stranger:?} {after}");
                notes += effects
                    .iter()
                    .filter(|e| matches!(e, Effect::Tell(_)))
                    .count();
            }
            assert_eq!(notes, ends.iter().sum::<usize>().max(1));
            assert!(met.evicted().is_empty());
        }
    }
}
