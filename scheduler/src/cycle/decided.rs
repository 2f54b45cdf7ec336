//! The path of a decision: it is counted, and passed on as [`Work`].

use super::Cycle;
use crate::act::Work;
use crate::status::Victim;
use scheduler_core::ids::GroupName;
use scheduler_core::units::Time;
use scheduler_core::{Action, Decision, EvictCause};
use std::collections::BTreeMap;
use std::time::Duration;

/// Reasons of one decision that get a line per card; the others are answered on demand.
const DETAILS: usize = 64;
/// Largest number of cards in a reason.
const CARD_LINES: usize = 64;

impl Cycle {
    /// The times from creation to binding, and evicted pods.
    pub(super) fn count(&self, decision: &Decision, now: Time) {
        let meters = &self.outputs.meters;
        for action in &decision.actions {
            match action {
                Action::Bind(bind) => {
                    if let Some(created) = self.core.created(&bind.pod) {
                        let after = now.0.saturating_sub(created.0);
                        meters.scheduled(Duration::from_millis(after));
                    }
                }
                Action::Evict(evict) => {
                    let name = evict.group.as_ref().map_or("", |group| group.as_str());
                    let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
                    meters.evicted(&Victim {
                        podgroup: name.to_owned(),
                        namespace: evict.namespace.to_string(),
                        uid: String::new(),
                        nodepool: self.outputs.pool.clone(),
                        action: Victim::action(evict.cause),
                    });
                }
            }
        }
    }

    /// A pod that is in no group yet gets one of its own, whose name follows from the pod's.
    /// Evictions in its favour name that group.
    fn group_to_be(&self, group: GroupName) -> GroupName {
        let named = group
            .pod_alone()
            .and_then(|pod| Some((self.core.name_of(&pod)?, pod)));
        named.map_or(group, |((namespace, name), pod)| {
            let name = crate::group::name_of_pod_alone(&name, pod.as_str());
            GroupName::from(format!("{namespace}/{name}"))
        })
    }

    /// To the tasks that act and to those that report. The bindings come before the reasons.
    pub(super) fn hand_on(&mut self, decision: Decision) {
        let (mut sets, mut bindings) = (BTreeMap::new(), Vec::new());
        for action in decision.actions {
            match action {
                Action::Bind(bind) => bindings.push(bind),
                Action::Evict(mut evict) => {
                    // A pod that is evicted for no other job is evicted alone, but for all those of
                    // one node that is emptied.
                    let alone =
                        evict.in_favour_of.is_none() && evict.cause != EvictCause::ScaleDown;
                    let set = (evict.in_favour_of.clone(), alone.then_some(evict.decision));
                    evict.in_favour_of = evict.in_favour_of.map(|group| self.group_to_be(group));
                    sets.entry(set).or_insert_with(Vec::new).push(evict);
                }
            }
        }
        for evictions in sets.into_values() {
            self.send(Work::Evictions(evictions));
        }
        for bind in bindings {
            let terms = self.world.claim_terms(&bind);
            self.send(Work::Bind(Box::new(bind), terms));
        }
        // After the actions: explaining takes some time.
        for (at, mut reason) in decision.reasons.into_iter().enumerate() {
            if let Some(line) = self.world.volumes_against(&reason.pod) {
                reason.line = line.into();
            }
            let cards = if at < DETAILS {
                self.core.explain_cards(&reason.pod, CARD_LINES)
            } else {
                Vec::new()
            };
            self.send(Work::Reason(reason, cards));
        }
        for (group, at) in decision.started {
            self.send(Work::Started(group, at));
        }
        for (group, since) in decision.stale {
            self.send(Work::Stale(group, since));
        }
    }
}
