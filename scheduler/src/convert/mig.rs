//! Cards in MIG mode: the slices that a node really offers, and the cards that may get others.
//!
//! Owns what `GpuNode`s say of layouts. In: `GpuNode`s, nodes, agents' states. Out: the amounts of
//! slices in the core's nodes, and [`MigCard`]s.

use api::gpu_node::GpuPolicy;
use proto::names::gpu_node::LAYOUT_CHANGES;
use proto::names::resource::MIG_PREFIX;
use proto::telemetry::NodeState;
use scheduler_core::ids::{GpuUuid, NodeName, ResourceName};
use scheduler_core::mig_layout::{MigCard, Slices};
use scheduler_core::model::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is known of layouts.
#[derive(Debug, Default)]
pub(super) struct MigNodes {
    /// By node, cards whose layout the scheduler may choose.
    cards: BTreeMap<String, Vec<Policy>>,
    /// By node, what the kubelet lists of slices.
    listed: BTreeMap<String, Slices>,
}

/// Of one card.
#[derive(Debug)]
struct Policy {
    spec: GpuPolicy,
    /// `migLayoutMessage`.
    message: String,
}

impl MigNodes {
    /// Takes in what a `GpuNode` says.
    pub(super) fn policy(&mut self, name: &str, object: &api::GpuNode) {
        let rows = object.status.iter().flat_map(|status| &status.gpus);
        let messages: BTreeMap<&str, &str> = rows
            .map(|row| (row.uuid.as_str(), row.mig_layout_message.as_str()))
            .collect();
        let policies = object.spec.gpus.iter();
        let policies = policies.filter(|policy| !policy.mig_layouts.is_empty());
        let policies: Vec<Policy> = policies
            .map(|policy| Policy {
                spec: policy.clone(),
                message: messages
                    .get(policy.uuid.as_str())
                    .copied()
                    .unwrap_or_default()
                    .to_owned(),
            })
            .collect();
        if policies.is_empty() {
            self.cards.remove(name);
        } else {
            self.cards.insert(name.to_owned(), policies);
        }
    }

    /// The `GpuNode` is gone.
    pub(super) fn no_policy(&mut self, name: &str) {
        self.cards.remove(name);
    }

    /// What the kubelet lists of slices counts as far as the agent, which says this `state`, has them: it
    /// says first which are about to go.
    pub(super) fn limit(&mut self, node: &mut Node, state: Option<&NodeState>) {
        let listed = node.extended.iter();
        let listed: Slices = listed
            .filter(|(name, _)| name.as_str().starts_with(MIG_PREFIX))
            .map(|(name, amount)| (name.clone(), *amount))
            .collect();
        let name = node.name.as_str();
        if listed.is_empty() {
            self.listed.remove(name);
            return;
        }
        if let Some(state) = state {
            node.extended.extend(lowered(&listed, state));
        }
        self.listed.insert(name.to_owned(), listed);
    }

    /// Returns whether the agent has said something else of the node's slices; the node has it then.
    pub(super) fn follow(&self, node: &mut Node, state: Option<&NodeState>) -> bool {
        let Some(listed) = self.listed.get(node.name.as_str()) else {
            return false;
        };
        let now = state.map_or_else(|| listed.clone(), |state| lowered(listed, state));
        let is_new =
            |(slice, amount): (&ResourceName, &u64)| node.extended.get(slice) != Some(amount);
        let is_changed = now.iter().any(is_new);
        node.extended.extend(now);
        is_changed
    }

    /// Whether some card may be given other slices.
    pub(super) fn may_change(&self) -> bool {
        !self.cards.is_empty()
    }

    /// The cards that may be given other slices, and those that are. `heard`: the state of an agent
    /// that is connected.
    pub(super) fn cards<'a>(&self, heard: impl Fn(&str) -> Option<&'a NodeState>) -> Vec<MigCard> {
        let mut cards = Vec::new();
        for (name, policies) in &self.cards {
            let Some(state) = heard(name) else {
                continue;
            };
            cards.extend(
                policies
                    .iter()
                    .filter_map(|policy| card(name, policy, state)),
            );
        }
        cards
    }
}

/// What the kubelet lists, as far as the agent has it healthy. It may report none: slices are then
/// another plugin's.
fn lowered(listed: &Slices, state: &NodeState) -> Slices {
    let mut healthy = Slices::new();
    for row in &state.slices {
        let count = healthy.entry(resource(&row.mig_profile)).or_default();
        *count += u64::from(row.health == "Healthy");
    }
    if healthy.is_empty() {
        return listed.clone();
    }
    let least = |(name, amount): (&ResourceName, &u64)| {
        let own = healthy.get(name).copied().unwrap_or_default();
        (name.clone(), own.min(*amount))
    };
    listed.iter().map(least).collect()
}

fn resource(profile: &str) -> ResourceName {
    ResourceName::new(format!("{MIG_PREFIX}{}", profile.replace('+', ".")))
}

fn slices_of(layout: &BTreeMap<String, u32>) -> Slices {
    let some = layout.iter().filter(|(_, count)| **count > 0);
    some.map(|(profile, count)| (resource(profile), u64::from(*count)))
        .collect()
}

/// `None`: it is used, or cannot be.
fn card(node: &str, policy: &Policy, state: &NodeState) -> Option<MigCard> {
    let uuid = &policy.spec.uuid;
    let row = state.gpus.iter().find(|row| row.uuid == *uuid)?;
    if !row.mig_enabled || row.cordoned || row.health != "Healthy" {
        return None;
    }
    // Strategy `single`: its slices are GPUs, which no pod asks for by their profile.
    if state.gpus.iter().any(|row| row.parent_uuid == *uuid) {
        return None;
    }
    let own = || state.slices.iter().filter(|row| row.parent_uuid == *uuid);
    let (mut has, mut offered) = (Slices::new(), Slices::new());
    for row in own() {
        let name = resource(&row.mig_profile);
        if row.health == "Healthy" {
            *offered.entry(name.clone()).or_default() += 1;
        }
        *has.entry(name).or_default() += 1;
    }
    let wanted = policy.spec.mig_layout.as_ref().map(slices_of);
    let wanted = wanted.filter(|wanted| *wanted != has);
    // The agent has not seen it yet, or is at it.
    let changes = policy.message.is_empty() || policy.message == LAYOUT_CHANGES;
    let card = MigCard {
        node: NodeName::new(node),
        card: GpuUuid::new(uuid),
        offered,
        slices: has,
        layouts: Vec::new(),
    };
    if let Some(slices) = wanted.clone().filter(|_| changes) {
        return Some(MigCard { slices, ..card });
    }
    let uuids: BTreeSet<&str> = own().map(|row| row.uuid.as_str()).collect();
    let holds = |uuid: &String| uuids.contains(uuid.as_str());
    if state
        .shares
        .iter()
        .any(|share| share.gpu_uuids.iter().any(holds))
    {
        return None;
    }
    // One that failed, or waits for something that is not seen here, is not chosen again: others
    // are.
    let layouts = policy.spec.mig_layouts.iter().map(slices_of);
    let layouts = layouts.filter(|layout| Some(layout) != wanted.as_ref());
    Some(MigCard {
        layouts: layouts.collect(),
        ..card
    })
}

/// As a `GpuNode` names it.
pub(crate) fn layout_of(slices: &Slices) -> BTreeMap<String, u32> {
    let of = |(name, count): (&ResourceName, &u64)| {
        let profile = name.as_str().strip_prefix(MIG_PREFIX)?;
        Some((profile.to_owned(), u32::try_from(*count).ok()?))
    };
    slices.iter().filter_map(of).collect()
}

/// `7 of 1g.10gb, 1 of 2g.20gb`.
pub(crate) fn in_words(slices: &Slices) -> Arc<str> {
    let of = |(profile, count): (&String, &u32)| format!("{count} of {profile}");
    let parts: Vec<String> = layout_of(slices).iter().map(of).collect();
    Arc::from(parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{there, world};
    use super::*;
    use crate::convert::World;
    use crate::telemetry::AgentEvent;
    use crate::watch::{Fact, Seen};
    use proto::telemetry::{Gpu, Share};
    use scheduler_core::Event;
    use serde_json::{Value, json};

    const SMALL: &str = "nvidia.com/mig-1g.10gb";

    fn node(world: &mut World, small: u32) -> Vec<Event> {
        let node = json!({"metadata": {"name": "n1", "uid": "x"},
            "status": {"allocatable": {SMALL: small.to_string(), "cpu": "1"}}});
        world.take(Fact::Node(there(node)))
    }

    fn gpu_node(world: &mut World, layout: Value, message: &str) {
        let halves = json!({"3g.40gb": 2, "1g.10gb": 0});
        let policy =
            json!({"uuid": "GPU-a", "migLayouts": [halves, {"7g.80gb": 1}], "migLayout": layout});
        let row = json!({"uuid": "GPU-a", "index": 0, "product": "H100", "totalMib": 1, "reservedMib": 0,
            "usedMib": 0, "grantedMib": 0, "grantableMib": 0, "ready": true, "health": "Healthy",
            "migEnabled": true, "migLayoutMessage": message});
        let object = json!({"metadata": {"name": "n1"}, "spec": {"gpus": [policy]}, "status": {"gpus": [row]}});
        world.take(Fact::GpuNode(there(object)));
    }

    /// Two small slices, of which so many are healthy; and what holds one.
    fn agent(world: &mut World, healthy: usize, holders: &[&str]) -> Vec<Event> {
        let row = |uuid: &str, health: &str| Gpu {
            uuid: uuid.to_owned(),
            health: health.to_owned(),
            ..Gpu::default()
        };
        let slice = |at: usize| Gpu {
            parent_uuid: "GPU-a".to_owned(),
            mig_profile: "1g.10gb".to_owned(),
            ..row(
                &format!("MIG-{at}"),
                if at < healthy { "Healthy" } else { "Unhealthy" },
            )
        };
        let share = |uuid: &&str| Share {
            gpu_uuids: vec![(*uuid).to_owned()],
            ..Share::default()
        };
        let card = Gpu {
            mig_enabled: true,
            ..row("GPU-a", "Healthy")
        };
        let state = NodeState {
            node: "n1".to_owned(),
            gpus: vec![card],
            slices: (0..2).map(slice).collect(),
            shares: holders.iter().map(share).collect(),
            ..NodeState::default()
        };
        let node = "n1".to_owned();
        world.hear(AgentEvent::State { node, state })
    }

    fn small(events: &[Event]) -> Vec<u64> {
        let of = |event: &Event| match event {
            Event::Node(node) => node.extended.get(&ResourceName::new(SMALL)).copied(),
            _ => None,
        };
        events.iter().filter_map(of).collect()
    }

    fn slices(layout: &[(&str, u64)]) -> Slices {
        layout
            .iter()
            .map(|(profile, count)| (resource(profile), *count))
            .collect()
    }

    #[test]
    fn slices_that_are_about_to_go_count_no_more_before_the_kubelet_says_so() {
        let mut world = world();
        assert_eq!(small(&node(&mut world, 2)), [2]);
        assert_eq!(small(&agent(&mut world, 2, &[])), [2], "managed now");
        assert_eq!(small(&agent(&mut world, 0, &[])), [0]);
        assert_eq!(small(&node(&mut world, 2)), [0; 0], "a heartbeat");
        assert_eq!(small(&node(&mut world, 1)), [0; 0]);
        // The kubelet's own count stays when the agent's is higher, and when it is lost.
        assert_eq!(small(&agent(&mut world, 2, &[])), [1]);
        agent(&mut world, 0, &[]);
        let lost = AgentEvent::Lost {
            node: "n1".to_owned(),
        };
        assert_eq!(small(&world.hear(lost)).last(), Some(&1));
    }

    #[test]
    fn an_idle_card_may_have_what_the_admin_allows_and_one_in_use_stays() {
        let mut world = world();
        node(&mut world, 2);
        agent(&mut world, 2, &[]);
        assert!(!world.may_change_layouts() && world.mig_cards().is_empty());
        gpu_node(&mut world, Value::Null, "");
        assert!(world.may_change_layouts());
        let has = slices(&[("1g.10gb", 2)]);
        let idle = MigCard {
            node: NodeName::new("n1"),
            card: GpuUuid::new("GPU-a"),
            offered: has.clone(),
            slices: has.clone(),
            layouts: vec![slices(&[("3g.40gb", 2)]), slices(&[("7g.80gb", 1)])],
        };
        assert_eq!(world.mig_cards(), std::slice::from_ref(&idle));
        agent(&mut world, 2, &["MIG-1"]);
        assert_eq!(world.mig_cards(), []);
        agent(&mut world, 2, &["GPU-other"]);
        assert_eq!(world.mig_cards(), std::slice::from_ref(&idle));
        // One whose slices are offered as GPUs, for their number alone, stays.
        let single = NodeState {
            gpus: [("GPU-a", ""), ("MIG-0", "GPU-a")]
                .map(|(uuid, parent)| Gpu {
                    uuid: uuid.to_owned(),
                    parent_uuid: parent.to_owned(),
                    health: "Healthy".to_owned(),
                    mig_enabled: parent.is_empty(),
                    ..Gpu::default()
                })
                .into(),
            ..NodeState::default()
        };
        let node = "n1".to_owned();
        world.hear(AgentEvent::State {
            node,
            state: single,
        });
        assert_eq!(world.mig_cards(), []);
        agent(&mut world, 2, &[]);
        // One that is being given slices counts as having them.
        gpu_node(&mut world, json!({"3g.40gb": 2}), LAYOUT_CHANGES);
        agent(&mut world, 0, &[]);
        let coming = MigCard {
            offered: slices(&[]),
            slices: slices(&[("3g.40gb", 2)]),
            layouts: Vec::new(),
            ..idle.clone()
        };
        let now = world.mig_cards();
        assert_eq!(
            (&now[0].slices, &now[0].layouts),
            (&coming.slices, &coming.layouts)
        );
        // One that cannot have them may have others.
        gpu_node(
            &mut world,
            json!({"3g.40gb": 2}),
            "a slice cannot be created",
        );
        agent(&mut world, 2, &[]);
        let others = MigCard {
            layouts: vec![slices(&[("7g.80gb", 1)])],
            ..idle
        };
        assert_eq!(world.mig_cards(), [others]);
        world.take(Fact::GpuNode(Seen::Gone("n1".into())));
        assert!(!world.may_change_layouts());
    }

    #[test]
    fn a_layout_is_written_as_a_gpu_node_names_it() {
        let layout = slices(&[("1g.10gb+me", 1), ("2g.20gb", 3)]);
        let named = layout_of(&layout);
        assert_eq!(
            named.into_iter().collect::<Vec<_>>(),
            [("1g.10gb.me".to_owned(), 1), ("2g.20gb".to_owned(), 3)]
        );
        assert_eq!(&*in_words(&layout), "1 of 1g.10gb.me, 3 of 2g.20gb");
    }
}
