//! What agents say → events: their nodes' cards, pods whose cards the kubelet chose, pods that they
//! refuse or want gone.

use super::cards;
use super::whole::{cards_of, held};
use super::world::World;
use crate::telemetry::AgentEvent;
use proto::telemetry::{NodeState, Share as HeldShare};
use scheduler_core::ids::{DecisionId, NodeName, PodUid};
use scheduler_core::model::{ContainerGrant, Mode};
use scheduler_core::{Event, Refusal};
use std::collections::BTreeMap;

impl World {
    /// What an agent said.
    pub fn hear(&mut self, heard: AgentEvent) -> Vec<Event> {
        match heard {
            AgentEvent::State { node, state } => {
                let mut events = self.read_shares(&state);
                events.extend(self.adopt(&state));
                for uid in self.wishes.take(&node, &state) {
                    events.extend(self.wishes_for(&uid));
                }
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
                let mut events = self.idle.agent_silent(&node);
                events.extend(self.cards(&node));
                events
            }
            AgentEvent::Lost { node } => {
                self.disconnected.remove(&node);
                self.told.remove(&node);
                self.strangers.remove(&node);
                self.wishes.agent_lost(&node);
                let known = self.states.remove(&node).is_some();
                let lost = known.then(|| Event::AgentLost(NodeName::from(node.as_str())));
                let mut events = self.idle.agent_silent(&node);
                events.extend(self.judge_managed(&node));
                events.extend(self.slices_changed(&node));
                events.extend(lost);
                events
            }
        }
    }

    /// What agents want of a pod, once the pod is known.
    pub(super) fn wishes_for(&mut self, uid: &str) -> Vec<Event> {
        if !self.there.contains(uid) {
            return Vec::new();
        }
        self.wishes.tell(uid)
    }

    /// Whether the pod stands on that node. Of any other its agent has nothing to say.
    pub(super) fn is_on(&self, uid: &str, node: &str) -> bool {
        self.placed_on
            .get(uid)
            .is_some_and(|of_pod| **of_pod == *node)
    }

    fn slices_changed(&mut self, name: &str) -> Option<Event> {
        let node = self.known_nodes.get_mut(name)?;
        let is_changed = self.mig.follow(node, self.states.get(name));
        is_changed.then(|| Event::Node(node.clone()))
    }

    /// Takes in the refusal of an agent. It is ignored for pods on other nodes, and if the agent keeps
    /// trying.
    fn read_refusal(&mut self, node: &str, refusal: &proto::telemetry::Refusal) {
        if refusal.r#final && self.is_on(&refusal.pod_uid, node) {
            self.isolation.refuse(refusal);
        }
    }

    fn read_shares(&mut self, state: &NodeState) -> Vec<Event> {
        let placed_on = &self.placed_on;
        let is_here = |uid: &str| {
            let node = placed_on.get(uid);
            node.is_some_and(|node| **node == *state.node)
        };
        self.isolation.read(state, is_here);
        self.idle.read(state, self.now, is_here)
    }

    /// Reads what agents said of pods that were seen only afterwards.
    pub fn read_shares_again(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for node in std::mem::take(&mut self.unread) {
            if let Some(state) = self.states.remove(&*node) {
                events.extend(self.read_shares(&state));
                self.states.insert(node.to_string(), state);
            }
        }
        events
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
            self.devices.of_pod(&pod, &mut corrected, self.now);
            events.push(Event::Pod(Box::new(corrected)));
        }
        events
    }
}
