//! What agents say → events: their nodes' cards, pods whose cards the kubelet chose, pods
//! that they refuse or want gone.

use super::{World, cards};
use crate::stored_pod::StoredPod;
use crate::telemetry::AgentEvent;
use proto::telemetry::{NodeState, Share as HeldShare};
use scheduler_core::ids::{ContainerName, DecisionId, GpuUuid, NodeName, PodUid};
use scheduler_core::model::{ContainerGrant, Mode, Phase, Placement};
use scheduler_core::units::{Mib, Percent};
use scheduler_core::{Event, EvictRequest, Refusal};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod that holds whole cards.
#[derive(Debug)]
pub(super) struct WholePod {
    /// The cards that the core knows of, sorted. Agents name the pod's cards in each of their messages,
    /// and the pod is converted again only if these differ. `None` if the pod has no place.
    pub(super) cards: Option<Vec<GpuUuid>>,
    pub(super) pod: StoredPod,
}

/// A pod that an agent wants gone.
#[derive(Debug)]
pub(super) struct AgentEviction {
    reason: Arc<str>,
    /// The core knows.
    told: bool,
}

impl World {
    /// What an agent said.
    pub fn hear(&mut self, heard: AgentEvent) -> Vec<Event> {
        match heard {
            AgentEvent::State { node, state } => {
                self.read_isolation(&state);
                let mut events = self.adopt(&state);
                events.extend(self.wishes(&node, &state));
                self.states.insert(node.clone(), state);
                self.disconnected.remove(&node);
                events.extend(self.judge_managed(&node));
                events.extend(self.slices_changed(&node));
                events.extend(self.cards(&node));
                events
            }
            AgentEvent::Refusal { node, refusal } => {
                self.read_refusal(&node, &refusal);
                let event = Event::Refusal(Refusal {
                    pod: PodUid::new(&refusal.pod_uid),
                    node: NodeName::from(node),
                    decision: DecisionId::parse(&refusal.decision_id),
                    reason: refusal.reason.into(),
                    last_word: refusal.r#final,
                });
                vec![event]
            }
            AgentEvent::Disconnected { node } => {
                self.disconnected.insert(node.clone());
                self.cards(&node).into_iter().collect()
            }
            AgentEvent::Lost { node } => {
                self.disconnected.remove(&node);
                self.told.remove(&node);
                self.strangers.remove(&node);
                self.wishes
                    .retain(|(_, by), wish| wish.told || by.as_str() != node);
                let known = self.states.remove(&node).is_some();
                let lost = known.then(|| Event::AgentLost(NodeName::from(node.as_str())));
                let mut events = self.judge_managed(&node);
                events.extend(self.slices_changed(&node));
                events.extend(lost);
                events
            }
        }
    }

    /// Pods that an agent wants gone: a share that breaks its fence or whose card is
    /// broken, one that holds devices without a grant, and any pod that uses a card without
    /// one, where the admin wants that. The core evicts only pods that it has on that node.
    fn wishes(&mut self, node: &str, state: &NodeState) -> Vec<Event> {
        let shares = state.shares.iter().filter(|share| share.evict);
        let shares = shares.map(|share| (&share.pod_uid, share.complaint.clone()));
        let ungranted = state.ungranted.iter().map(|one| {
            let why = format!(
                "container {} holds {} of {} and has no grant",
                one.container, one.devices, one.resource
            );
            (&one.pod_uid, why)
        });
        let strangers = state.strangers.iter().filter(|stranger| stranger.evict);
        let strangers = strangers.map(|stranger| {
            let why = format!(
                "process {} ({}) uses card {} without a grant",
                stranger.pid, stranger.command, stranger.gpu_uuid
            );
            (&stranger.pod_uid, why)
        });
        let now: BTreeMap<&String, String> = strangers.chain(ungranted).chain(shares).collect();
        // What was not passed on yet, and is not wanted any more, never happened.
        let node = NodeName::new(node);
        self.wishes
            .retain(|(uid, by), wish| wish.told || *by != node || now.contains_key(uid));
        for (uid, reason) in &now {
            let wish = (*uid).clone();
            self.wishes
                .entry((wish, node.clone()))
                .or_insert_with(|| AgentEviction {
                    reason: reason.as_str().into(),
                    told: false,
                });
        }
        now.into_keys()
            .flat_map(|uid| self.wishes_for(uid))
            .collect()
    }

    /// What agents want of a pod, once the pod is known. The core hears only that of the node
    /// on which the pod stands; another's must not be in its way.
    pub(super) fn wishes_for(&mut self, uid: &str) -> Vec<Event> {
        if !self.pods.names.contains_key(uid) {
            return Vec::new();
        }
        let first = (uid.to_owned(), NodeName::new(""));
        self.wishes
            .range_mut(first..)
            .take_while(|((pod, _), _)| pod == uid)
            .filter(|(_, wish)| !wish.told)
            .map(|((_, node), wish)| {
                wish.told = true;
                Event::EvictRequest(EvictRequest {
                    pod: PodUid::new(uid),
                    node: node.clone(),
                    reason: Arc::clone(&wish.reason),
                })
            })
            .collect()
    }

    /// Whether the pod stands on that node. Of any other its agent has nothing to say.
    pub(super) fn is_on(&self, uid: &str, node: &str) -> bool {
        self.placed_on
            .get(uid)
            .is_some_and(|of_pod| **of_pod == *node)
    }

    /// The cards of a node, where they changed.
    pub(super) fn cards(&mut self, name: &str) -> Option<Event> {
        let state = self.states.get(name)?;
        let mode = self.default_modes.get(name).copied().unwrap_or(Mode::Mps);
        let before = self.strangers.entry(name.to_owned()).or_default();
        let (mut cards, strangers) = cards::of(state, mode, before);
        if self.disconnected.contains(name) {
            cards::close(&mut cards);
        }
        *before = strangers;
        if self.told.get(name) == Some(&cards) {
            return None;
        }
        self.told.insert(name.to_owned(), cards.clone());
        Some(Event::Cards(cards))
    }

    /// Pods whose whole cards are others than their grants name: the kubelet picked them,
    /// the agent took that in, and so does this ledger.
    fn adopt(&mut self, state: &NodeState) -> Vec<Event> {
        let mut by_pod: BTreeMap<&str, Vec<&HeldShare>> = BTreeMap::new();
        for share in &state.shares {
            // Of a slice that is counted by its profile there is no grant.
            let counted = |uuid: &String| state.slices.iter().any(|slice| slice.uuid == *uuid);
            let whole = share.mode == Mode::Exclusive.as_str() && !share.gpu_uuids.is_empty();
            if whole && !share.gpu_uuids.iter().any(counted) {
                by_pod.entry(&share.pod_uid).or_default().push(share);
            }
        }
        let mut events = Vec::new();
        for (uid, shares) in by_pod {
            let Some(whole) = self.whole.get(uid).filter(|_| self.is_on(uid, &state.node)) else {
                continue;
            };
            let grants: Vec<ContainerGrant> = shares.into_iter().map(held).collect();
            let cards = cards_of(&grants);
            if whole.cards.as_ref().is_none_or(|known| *known == cards) {
                continue;
            }
            let pod = whole.pod.load();
            self.held.insert(uid.to_owned(), grants);
            let known = self.held.get(uid).map(Vec::as_slice);
            let Some(mut corrected) = self.read(&pod, known) else {
                continue;
            };
            if let Some(whole) = self.whole.get_mut(uid) {
                whole.cards = Some(cards);
            }
            self.claim_devices(&pod, &mut corrected);
            events.push(Event::Pod(Box::new(corrected)));
        }
        events
    }
}

pub(super) fn placement(pod: &scheduler_core::model::Pod) -> Option<&Placement> {
    match &pod.phase {
        Phase::Bound(placement) | Phase::Running(placement) | Phase::Releasing(Some(placement)) => {
            Some(placement)
        }
        _ => None,
    }
}

/// Returns the cards that grants name, sorted and each once.
pub(super) fn cards_of(grants: &[ContainerGrant]) -> Vec<GpuUuid> {
    let mut cards: Vec<_> = grants
        .iter()
        .flat_map(|grant| grant.cards.clone())
        .collect();
    cards.sort();
    cards.dedup();
    cards
}

fn held(share: &HeldShare) -> ContainerGrant {
    ContainerGrant {
        container: ContainerName::new(&share.container),
        cards: share.gpu_uuids.iter().map(GpuUuid::new).collect(),
        memory: Mib(share.memory_mib),
        burst: None,
        compute: u8::try_from(share.compute_percent)
            .ok()
            .and_then(Percent::new)
            .unwrap_or(Percent::FULL),
        mode: Mode::Exclusive,
        note: None,
        asked: None,
    }
}
