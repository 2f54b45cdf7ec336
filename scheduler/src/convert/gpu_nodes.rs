//! Nodes with an agent: by their `GpuNode`, by the voice of the agent, and by what it has the kubelet
//! list.

use super::pod;
use super::world::World;
use crate::telemetry::AgentEvent;
use crate::watch::Key as _;
use scheduler_core::Event;
use scheduler_core::model::Mode;

impl World {
    pub(super) fn managed(&mut self, object: &api::GpuNode) -> Vec<Event> {
        let name = object.key();
        let mode = object.spec.default_mode.map_or(Mode::Mps, pod::mode);
        let before = self.default_modes.insert(name.clone(), mode);
        let manager = object.spec.topology_manager.as_ref();
        if manager.is_some_and(|manager| manager.policy.refuses()) {
            self.aligning.insert(name.clone());
        } else {
            self.aligning.remove(&name);
        }
        self.mig.policy(&name, object);
        let mut events = self.judge_managed(&name);
        if before != Some(mode) {
            events.extend(self.cards(&name));
        }
        if self.observing && object.status.is_some() {
            let state = crate::observe::said(object);
            events.extend(self.hear(AgentEvent::State { node: name, state }));
        }
        events
    }

    pub(super) fn unmanaged(&mut self, name: &str) -> Vec<Event> {
        self.default_modes.remove(name);
        self.aligning.remove(name);
        self.mig.no_policy(name);
        self.judge_managed(name)
    }

    /// Whether an agent answers for the node's cards: by its `GpuNode`, by its voice or by
    /// what it had the kubelet list. Each may come first or be missing for a while, and a
    /// pod that is sent to such a node without a grant is lost.
    pub(super) fn is_managed(&self, name: &str) -> bool {
        self.default_modes.contains_key(name)
            || self.states.contains_key(name)
            || self.listing.contains(name)
    }

    pub(super) fn judge_managed(&mut self, name: &str) -> Vec<Event> {
        let (managed, aligns) = (self.is_managed(name), self.aligning.contains(name));
        let node = self.known_nodes.get_mut(name);
        let node = node.filter(|node| (node.managed, node.aligns) != (managed, aligns));
        let changed = node.map(|node| {
            node.managed = managed;
            node.aligns = aligns;
            Event::Node(node.clone())
        });
        changed.into_iter().collect()
    }
}
