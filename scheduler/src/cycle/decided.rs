//! The path of a decision: it is counted, and passed on as [`Work`].

use super::Cycle;
use crate::act::{GroupStamp, Work};
use crate::status::Victim;
use scheduler_core::ids::GroupName;
use scheduler_core::units::Time;
use scheduler_core::{Action, Decision, Evict, EvictCause};
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
        let (mut evictions, mut bindings) = (Vec::new(), Vec::new());
        for action in decision.actions {
            match action {
                Action::Bind(bind) => bindings.push(bind),
                Action::Evict(evict) => evictions.push(evict),
            }
        }
        for mut set in together(evictions) {
            for evict in &mut set {
                let group = evict.in_favour_of.take();
                evict.in_favour_of = group.map(|group| self.group_to_be(group));
            }
            self.send(Work::Evictions(set));
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
            let mut cards = if at < DETAILS {
                self.core.explain_cards(&reason.pod, CARD_LINES)
            } else {
                Vec::new()
            };
            // If a pod waits for something other than room, its reason does not change when cards do.
            // Lines about cards would become false without being written again.
            if !cards
                .first()
                .is_some_and(|card| reason.line.contains(card.as_str()))
            {
                cards.clear();
            }
            let shown = self.world.shown_reason(&reason.pod);
            self.send(Work::Reason(reason, cards, shown));
        }
        for (group, at) in decision.started {
            self.send(Work::Stamp(group, GroupStamp::Started(at)));
        }
        for (group, since) in decision.stale {
            self.send(Work::Stamp(group, GroupStamp::Stale(since)));
        }
        for (group, at) in decision.delayed {
            self.send(Work::Stamp(group, GroupStamp::Evicted(at)));
        }
        for (group, succeeded) in decision.succeeded {
            self.send(Work::Stamp(group, GroupStamp::Succeeded(succeeded)));
        }
    }
}

/// Pods that are evicted all or none, where budgets are asked: those in favour of one workload, and
/// those of the one node that a decision empties. Any other goes by itself.
fn together(evictions: Vec<Evict>) -> impl Iterator<Item = Vec<Evict>> {
    let mut sets: BTreeMap<_, Vec<Evict>> = BTreeMap::new();
    for evict in evictions {
        let alone = evict.in_favour_of.is_none() && evict.cause != EvictCause::ScaleDown;
        let set = (evict.in_favour_of.clone(), alone.then_some(evict.decision));
        sets.entry(set).or_default().push(evict);
    }
    sets.into_values()
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::ids::{DecisionId, PodUid};

    fn evict(pod: &str, sequence: u64, cause: EvictCause, favour: Option<&str>) -> Evict {
        Evict {
            decision: DecisionId { epoch: 0, sequence },
            pod: PodUid::new(pod),
            namespace: "ns".into(),
            name: pod.into(),
            group: None,
            cause,
            message: "".into(),
            in_favour_of: favour.map(GroupName::new),
        }
    }

    #[test]
    fn the_pods_of_an_emptied_node_go_together_as_do_those_in_favour_of_one_workload() {
        let all = vec![
            evict("a", 1, EvictCause::ScaleDown, None),
            evict("b", 2, EvictCause::Reclaim, Some("ns/x")),
            evict("c", 3, EvictCause::StaleGang, None),
            evict("d", 4, EvictCause::ScaleDown, None),
            evict("e", 5, EvictCause::Reclaim, Some("ns/y")),
            evict("f", 6, EvictCause::Preempt, Some("ns/x")),
            evict("g", 7, EvictCause::StaleGang, None),
        ];
        let names = |set: Vec<Evict>| -> String { set.iter().map(|one| &*one.name).collect() };
        let mut sets: Vec<String> = together(all).map(names).collect();
        sets.sort_unstable();
        assert_eq!(sets, ["ad", "bf", "c", "e", "g"]);
    }
}
