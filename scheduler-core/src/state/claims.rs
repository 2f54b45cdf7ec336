//! Keeps [`Volumes`](super::volumes::Volumes) in line with volumes, nodes, and the pods that have claims.

use crate::ids::{ClaimUid, VolumeName};
use crate::model::{Claim, Volume};
use crate::state::State;
use crate::state::cell::Cell;
use crate::state::keys::{NodeKey, TaskKey};
use crate::state::rows::NodeRow;
use crate::state::task_cell::TaskCell;
use crate::state::volumes::ClaimUse;
use std::collections::BTreeMap;
use std::sync::Arc;

impl State {
    /// A volume is there, or has changed.
    pub(crate) fn volume(&mut self, volume: Volume) {
        if self.volumes.rows.get(&volume.name) == Some(&volume) {
            return;
        }
        self.forget_volume(&volume.name);
        let name = volume.name.clone();
        if let Some(kept) = &volume.kept_for {
            let kept = self.volumes.kept.entry(Arc::clone(&kept.name)).or_default();
            kept.insert(name.clone());
        }
        self.changes.volumes += 1;
        let is_everywhere = volume.nodes.is_none();
        self.volumes.rows.insert(name.clone(), volume);
        if is_everywhere {
            self.volumes.everywhere.insert(name);
            let keys: Vec<NodeKey> = self.nodes.keys().collect();
            for key in keys {
                self.touch_node(key);
            }
        } else {
            let reached = |row: &NodeRow| {
                let volume = self.volumes.rows.get(&name);
                row.node
                    .as_ref()
                    .is_some_and(|node| volume.is_some_and(|volume| volume.is_local_to(node)))
            };
            let keys = self.nodes.iter().filter(|(_, row)| reached(row));
            let keys: Vec<NodeKey> = keys.map(|(key, _)| key).collect();
            for key in keys {
                self.reach(key, name.clone());
            }
        }
        self.changes.capacity_grew();
    }

    /// False: there was none of that name.
    pub(crate) fn volume_gone(&mut self, name: &VolumeName) -> bool {
        let known = self.forget_volume(name);
        // The claim that it was kept for may have another one now.
        self.changes.capacity_grew();
        known
    }

    fn forget_volume(&mut self, name: &VolumeName) -> bool {
        let Some(volume) = self.volumes.rows.remove(name) else {
            return false;
        };
        self.changes.volumes += 1;
        if let Some(kept) = &volume.kept_for
            && let Some(names) = self.volumes.kept.get_mut(&kept.name)
        {
            names.remove(name);
            if names.is_empty() {
                self.volumes.kept.remove(&kept.name);
            }
        }
        let everywhere = self.volumes.everywhere.remove(name);
        let mut reached: Vec<NodeKey> = Vec::new();
        for (key, names) in &mut self.volumes.local {
            if names.remove(name) {
                reached.push(key);
            }
        }
        if everywhere {
            reached.extend(self.nodes.keys());
        }
        for key in reached {
            self.touch_node(key);
        }
        true
    }

    fn reach(&mut self, key: NodeKey, name: VolumeName) {
        if let Some(local) = self.volumes.local.entry(key) {
            local.or_default().insert(name);
            self.touch_node(key);
        }
    }

    /// A node's name or labels are another one's: which volumes it can use.
    pub(crate) fn reach_volumes(&mut self, key: NodeKey) {
        self.volumes.local.remove(key);
        let Some(node) = self.nodes.get(key).and_then(|row| row.node.as_ref()) else {
            return;
        };
        let rows = self.volumes.rows.values();
        let local = rows.filter(|volume| volume.is_local_to(node));
        let names: Vec<VolumeName> = local.map(|volume| volume.name.clone()).collect();
        for name in names {
            self.reach(key, name);
        }
    }

    /// The claims of a pod leave these nodes and come to those. `false`: more left than came.
    pub(super) fn move_claims(
        &mut self,
        task: TaskKey,
        from: [Option<NodeKey>; 2],
        to: [Option<NodeKey>; 2],
    ) -> bool {
        let spec = self
            .tasks
            .get(task)
            .and_then(|row| self.specs.get(row.spec));
        let Some(spec) = spec.filter(|row| !row.spec.claims.is_empty()) else {
            return true;
        };
        let spec = Arc::clone(&spec.spec);
        // Where it stays, as the place that it leaves or as the one that it has, its claims keep
        // their volumes: a binding that was decided says which.
        let mut left: Vec<NodeKey> = from.into_iter().flatten().collect();
        let mut new = Vec::new();
        for node in to.into_iter().flatten() {
            match left.iter().position(|other| *other == node) {
                Some(at) => drop(left.swap_remove(at)),
                None => new.push(node),
            }
        }
        let mut right = true;
        for node in left {
            for claim in &spec.claims {
                right &= self.claim_leaves(&claim.uid, node);
            }
        }
        for node in new {
            self.claims_come(&spec.claims, node);
        }
        right
    }

    fn claim_leaves(&mut self, claim: &ClaimUid, node: NodeKey) -> bool {
        let Some(mut used) = self.volumes.claims.get(claim).cloned() else {
            return false;
        };
        let Some(count) = used.users.get_mut(&node) else {
            return false;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            used.users.remove(&node);
        }
        // No pod is left where it is bound: it belongs to the others, and nothing is known of its
        // volume.
        if !used.users.contains_key(&used.node) {
            let name = |key: &NodeKey| self.nodes.get(*key).map(|row| &row.name);
            let others = used.users.keys().copied();
            let Some(node) = others.min_by_key(|key| name(key)) else {
                self.set(Cell::Claim(claim.clone(), None));
                return true;
            };
            used.node = node;
            used.volume = None;
        }
        self.set(Cell::Claim(claim.clone(), Some(used)));
        true
    }

    fn claims_come(&mut self, claims: &[Claim], node: NodeKey) {
        let picked = if self.cells.deciding {
            self.volumes.pick(claims, node).unwrap_or_default()
        } else {
            Vec::new()
        };
        for (at, claim) in claims.iter().enumerate() {
            let mut used = match self.volumes.claims.get(&claim.uid) {
                Some(used) => used.clone(),
                None => ClaimUse {
                    node,
                    volume: picked.get(at).cloned().flatten(),
                    users: BTreeMap::new(),
                },
            };
            let count = used.users.entry(node).or_default();
            *count = count.saturating_add(1);
            self.set(Cell::Claim(claim.uid.clone(), Some(used)));
        }
    }

    /// What is in use of the claims of a pod.
    pub(crate) fn claims_of(&self, task: TaskKey) -> Vec<(ClaimUid, ClaimUse)> {
        let spec = self
            .tasks
            .get(task)
            .and_then(|row| self.specs.get(row.spec));
        let claims = spec.map_or(&[][..], |row| row.spec.claims.as_slice());
        let used = |claim: &Claim| self.volumes.claims.get(&claim.uid).cloned();
        claims
            .iter()
            .filter_map(|claim| Some((claim.uid.clone(), used(claim)?)))
            .collect()
    }

    /// What its claims had, for a pod that stands there again.
    pub(crate) fn give_back(&mut self, given: Vec<(ClaimUid, ClaimUse)>, cell: &TaskCell) {
        let stays = |used: &ClaimUse| cell.places().contains(&Some(used.node));
        for (claim, used) in given.into_iter().filter(|(_, used)| stays(used)) {
            self.give(&claim, used.node, used.volume.as_ref());
        }
    }

    /// A claim in use belonged to that node, and had that volume, before its pod was looked at
    /// again.
    pub(crate) fn give(&mut self, claim: &ClaimUid, node: NodeKey, volume: Option<&VolumeName>) {
        let Some(used) = self.volumes.claims.get(claim) else {
            return;
        };
        let before = ClaimUse {
            node,
            volume: volume.cloned(),
            users: used.users.clone(),
        };
        if *used != before {
            self.set(Cell::Claim(claim.clone(), Some(before)));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // Tests.
mod tests {
    use crate::config::Config;
    use crate::core::Core;
    use crate::ids::ClaimUid;
    use crate::state::State;
    use crate::state::keys::NodeKey;
    use crate::state::task_cell::{Leaving, Status, TaskCell};
    use crate::text;
    use std::sync::Arc;

    fn core(lines: &str) -> Core {
        let mut core = Core::new(Config::verified());
        tell(&mut core, lines);
        core
    }

    fn tell(core: &mut Core, lines: &str) {
        for event in text::read(lines).unwrap() {
            assert_eq!(core.apply(event), []);
        }
    }

    fn at(status: Status, node: NodeKey) -> TaskCell {
        TaskCell {
            node: Some(node),
            ..TaskCell::of(status)
        }
    }

    fn volume(state: &State, claim: &str) -> Option<String> {
        let used = state.volumes.claims.get(&ClaimUid::new(claim))?;
        used.volume.as_ref().map(ToString::to_string)
    }

    /// A search looks at a pod with a place as a victim and leaves it where it is:
    /// the volume that its binding names stays its own, though a better one is free by now.
    #[test]
    fn a_pod_that_is_looked_at_as_a_victim_and_stays_keeps_its_volumes() {
        let mut core = core(
            "node n1 cpu=8000 pods=10\nvolume small size=10\nvolume large size=30\nqueue q\n\
             pod a queue=q\n  claim c name=default/c size=10\n\
             pod b queue=q\n  claim d name=default/d size=10\n",
        );
        let state = core.state_for_tests();
        state.cells.deciding = true;
        let [task, other] = ["a", "b"].map(|name| state.task_of(name).unwrap());
        let node = state.names.nodes["n1"];
        state.transition(other, at(Status::Bound, node));
        state.transition(task, at(Status::Bound, node));
        state.transition(other, TaskCell::of(Status::Done));
        let before = state.cell(task);
        let victim = TaskCell {
            leaving: Some(Arc::new(Leaving {
                was: before.status,
                node: before.node.unwrap(),
                front: before.front,
                holds: None,
                decision: None,
            })),
            ..TaskCell::of(Status::Victim)
        };
        state.transition(task, victim);
        assert_eq!(volume(state, "c").as_deref(), Some("large"));
        state.transition(task, before);
        assert_eq!(volume(state, "c").as_deref(), Some("large"));
        assert_eq!(core.violations(), Vec::<String>::new());
    }

    /// Another scheduler put the pods of one claim on two nodes: it stays in use, on the node that
    /// is left, until the last has gone.
    #[test]
    fn a_claim_whose_pods_are_on_two_nodes_is_in_use_until_the_last_has_left() {
        let mut core = core(
            "node n1 cpu=8000 pods=10\nnode n2 cpu=8000 pods=10\nvolume v size=10\nqueue q\n\
             pod a queue=q\n  claim c name=default/c size=10\n\
             pod b queue=q\n  claim c name=default/c size=10\n",
        );
        let state = core.state_for_tests();
        let [a, b] = ["a", "b"].map(|name| state.task_of(name).unwrap());
        let [n1, n2] = ["n1", "n2"].map(|name| state.names.nodes[name]);
        let node = |state: &State| Some(state.volumes.claims.get(&ClaimUid::new("c"))?.node);
        state.cells.deciding = true;
        state.transition(a, at(Status::Bound, n1));
        state.transition(b, at(Status::Bound, n2));
        assert_eq!(
            (node(state), volume(state, "c")),
            (Some(n1), Some("v".into()))
        );
        state.transition(a, TaskCell::of(Status::Done));
        assert_eq!((node(state), volume(state, "c")), (Some(n2), None));
        state.transition(b, TaskCell::of(Status::Done));
        assert_eq!(node(state), None);
        assert_eq!(core.violations(), Vec::<String>::new());
    }
}
