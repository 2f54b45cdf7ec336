//! An autoscaler that knows nothing of shares, as those of clouds do: a machine for each
//! placeholder that no machine has whole cards for, and none for what has been empty for long.
//!
//! Two properties hold in every run: a pending pod runs within the time that a machine needs; and
//! the autoscaler does not oscillate: no machine is requested soon after an equal one was removed,
//! unless a pod has been created since.

use crate::event::{Turn, WorldEvent};
use crate::machines::Autoscaler;
use crate::node::Node;
use crate::store::Key;
use crate::time::Ms;
use crate::world::World;
use proto::names::{resource, scale_up};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Time between two checks.
const LOOK: Ms = 10_000;
/// From a request for a machine to its object, at most.
const BOOTS: Ms = 60_000;
/// From its object until its driver and its agent are there, at most.
const DRIVER: Ms = 40_000;
/// A machine that has been empty for this time is removed.
const EMPTY: Ms = 300_000;
/// From the taint of a machine that goes to its end.
const LEAVES: Ms = 15_000;
/// By then every scheduler has seen the taint, and its earlier decisions have arrived.
const HEARD: Ms = 3_000;
/// A pod that waits longer than this does not wait for a machine: the time of a machine that is
/// late by all of the above, two checks, a plan, and the start of a pod.
const PATIENCE: Ms = BOOTS + DRIVER + 2 * LOOK + 20_000;
/// After the removal of a machine no equal one is requested within this time, unless demand grew.
const CALM: Ms = 600_000;
/// The group's label, as in `node-templates.yaml`.
const GROUP: (&str, &str) = ("sim.dev/group", "l4");
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// MiB of the one card of a machine.
const CARD: u64 = 16_384;

/// The file that the schedulers are given.
pub fn templates() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/node-templates.yaml")
}

impl World {
    /// From now on there is one.
    pub(crate) fn hire(&mut self) {
        let now = self.stamp();
        for (plural, name) in [
            ("namespaces", scale_up::NAMESPACE),
            ("priorityclasses", scale_up::PRIORITY_CLASS),
        ] {
            let _ = self
                .store
                .create(&Key::new(plural, "", name), json!({"value": -10}), &now);
        }
        self.autoscaler = Some(Autoscaler::default());
        self.soon(LOOK, WorldEvent::Autoscale);
    }

    /// One check of the autoscaler.
    pub(crate) fn autoscale(&mut self) {
        let Some(mut autoscaler) = self.autoscaler.take() else {
            return;
        };
        self.soon(LOOK, WorldEvent::Autoscale);
        self.grow(&mut autoscaler);
        self.shrink(&mut autoscaler);
        self.check_patience();
        let machines = self.machines() + autoscaler.coming.len();
        autoscaler.most = autoscaler.most.max(machines);
        autoscaler.worked += u64::try_from(machines).unwrap_or_default() * LOOK;
        autoscaler.wanted += self.demand() * LOOK;
        self.autoscaler = Some(autoscaler);
    }

    /// Machines that are there.
    pub fn machines(&self) -> usize {
        self.nodes.iter().filter(|node| node.exists).count()
    }

    /// Placeholders that are there.
    pub fn placeholders(&self) -> usize {
        self.store.all("pods", scale_up::NAMESPACE).count()
    }

    /// Thousandths of a card that pods hold or wait for.
    fn demand(&self) -> u64 {
        let pods = self.store.all("pods", "").map(|(_, pod)| pod);
        pods.filter(|pod| !is_over(pod)).map(part).sum()
    }

    fn grow(&mut self, autoscaler: &mut Autoscaler) {
        let wanted: Vec<u64> = self
            .store
            .all("pods", scale_up::NAMESPACE)
            .filter(|(_, pod)| is_unschedulable(pod))
            .map(|(_, pod)| whole(pod))
            .collect();
        let mut rooms: Vec<u64> = (autoscaler.coming.iter()).map(|_| 1).collect();
        let there = (0..self.nodes.len()).filter(|at| !autoscaler.leaving.contains_key(at));
        rooms.extend(there.map(|at| self.whole_cards(at)));
        for cards in wanted {
            if let Some(room) = rooms.iter_mut().find(|room| **room >= cards) {
                *room -= cards;
                continue;
            }
            self.check_calm(autoscaler);
            let at = self.nodes.len();
            let mut node = Node::new(at, &[CARD]);
            node.group = Some(GROUP);
            (node.exists, node.alive, node.speaks) = (false, false, false);
            self.nodes.push(node);
            autoscaler.coming.insert(at);
            autoscaler.asked += 1;
            self.say(|| format!("machine n{at} is asked for"));
            let pause = BOOTS / 2 + self.rng.u64(0..BOOTS / 2);
            self.soon(pause, WorldEvent::Machine(at, Turn::Come));
        }
    }

    /// Cards that its kubelet lists as whole GPUs. One whose driver is not there yet is taken for
    /// what it will be, as autoscalers do.
    fn whole_cards(&self, at: usize) -> u64 {
        let node = &self.nodes[at];
        if !node.exists {
            return 0;
        }
        let cards = node.cards.iter();
        let free = cards.filter(|card| {
            let mut held = node.held.values();
            !held.any(|held| held.cards.contains(&card.uuid))
        });
        u64::try_from(free.count()).unwrap_or_default()
    }

    fn shrink(&mut self, autoscaler: &mut Autoscaler) {
        let used: BTreeSet<&str> = (self.store.all("pods", ""))
            .filter(|(_, pod)| !is_over(pod))
            .filter_map(|(_, pod)| pod["spec"]["nodeName"].as_str())
            .collect();
        let empty: Vec<usize> = (0..self.nodes.len())
            .filter(|at| self.nodes[*at].exists && self.nodes[*at].speaks)
            .filter(|at| !used.contains(self.nodes[*at].name.as_str()))
            .collect();
        autoscaler.empty.retain(|at, _| empty.contains(at));
        for at in empty {
            let since = *autoscaler.empty.entry(at).or_insert(self.now);
            if self.now - since < EMPTY || autoscaler.leaving.contains_key(&at) {
                continue;
            }
            let name = self.nodes[at].name.clone();
            self.say(|| format!("machine {name} is to go"));
            autoscaler.leaving.insert(at, BTreeSet::new());
            self.store.amend(&Key::new("nodes", "", &name), |node| {
                node["spec"]["taints"] = json!([{"key": TAINT, "effect": "NoSchedule"}]);
            });
            self.soon(HEARD, WorldEvent::Machine(at, Turn::Heard));
            self.soon(LEAVES, WorldEvent::Machine(at, Turn::End));
        }
    }

    fn on(&self, at: usize) -> BTreeSet<String> {
        let name = self.nodes[at].name.as_str();
        let pods = self.store.all("pods", "");
        let pods = pods.filter(|(_, pod)| pod["spec"]["nodeName"] == *name);
        pods.map(|(key, _)| key.name.clone()).collect()
    }

    /// Carries out the decision about a machine.
    pub(crate) fn machine(&mut self, at: usize, turn: Turn) {
        let Some(mut autoscaler) = self.autoscaler.take() else {
            return;
        };
        let name = self.nodes[at].name.clone();
        match turn {
            Turn::Come => {
                autoscaler.coming.remove(&at);
                self.nodes[at].exists = true;
                self.furnish_node(at);
                self.say(|| format!("machine {name} is there"));
                let pause = DRIVER / 4 + self.rng.u64(0..DRIVER * 3 / 4);
                self.soon(pause, WorldEvent::Machine(at, Turn::Speak));
            }
            Turn::Speak => {
                (self.nodes[at].alive, self.nodes[at].speaks) = (true, true);
                let listed = self.nodes[at].listed();
                self.store.amend(&Key::new("nodes", "", &name), |node| {
                    node["status"]["allocatable"] = listed.clone();
                    node["status"]["capacity"] = listed;
                });
                self.say(|| format!("the agent of {name} speaks"));
                self.soon(10, WorldEvent::Connect(at));
                self.soon(20, WorldEvent::Agent(at));
            }
            Turn::Heard => {
                let on = self.on(at);
                autoscaler.leaving.insert(at, on);
            }
            Turn::End => {
                let known = autoscaler.leaving.remove(&at).unwrap_or_default();
                for pod in self.on(at).difference(&known) {
                    self.violated(format!(
                        "{pod} was placed on {name}, which was to be removed"
                    ));
                }
                self.say(|| format!("machine {name} is gone"));
                autoscaler.empty.remove(&at);
                autoscaler.removed = Some(self.now);
                autoscaler.gone += 1;
                let node = &mut self.nodes[at];
                (node.exists, node.alive, node.speaks) = (false, false, false);
                node.links.clear();
                node.held.clear();
                self.store.remove(&Key::new("nodes", "", &name));
                self.store.remove(&Key::new("gpunodes", "", &name));
            }
        }
        self.autoscaler = Some(autoscaler);
    }

    /// Demand has grown when a pod waits that came after the removal.
    fn check_calm(&mut self, autoscaler: &Autoscaler) {
        let Some(removed) = autoscaler.removed.filter(|at| self.now - at < CALM) else {
            return;
        };
        let grew = self.store.all("pods", "").any(|(key, pod)| {
            key.namespace != scale_up::NAMESPACE
                && pod["spec"]["nodeName"].is_null()
                && self.arrived.get(&key.name).is_some_and(|at| *at > removed)
        });
        if !grew {
            self.violated(format!(
                "a machine is asked for {} s after one like it was removed, and no pod has come since",
                (self.now - removed) / 1000
            ));
        }
    }

    /// No pod waits longer than a machine takes.
    fn check_patience(&mut self) {
        let late: Vec<String> = (self.store.all("pods", ""))
            .filter(|(key, pod)| {
                pod["spec"]["nodeName"].is_null()
                    && (self.arrived.get(&key.name)).is_some_and(|at| self.now - at > PATIENCE)
            })
            .map(|(key, _)| key.name.clone())
            .collect();
        for pod in late {
            self.violated(format!("{pod} has waited for {} s", PATIENCE / 1000));
        }
    }
}

fn is_over(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

fn is_unschedulable(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| {
        one["type"] == "PodScheduled"
            && one["status"] == "False"
            && one["reason"] == "Unschedulable"
    })
}

fn whole(pod: &Value) -> u64 {
    let requests = &pod["spec"]["containers"][0]["resources"]["requests"];
    let cards = requests[resource::GPU].as_str();
    cards.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 1,000.
fn part(pod: &Value) -> u64 {
    let part = pod["metadata"]["annotations"]["gpu-fraction"].as_str();
    let part: f64 = part.and_then(|text| text.parse().ok()).unwrap_or_default();
    (part * 1000.0).round() as u64
}
