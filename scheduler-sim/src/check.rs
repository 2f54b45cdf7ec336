//! Conditions that must hold after every step, and after everything has settled.

use crate::replica::Process;
use crate::store::Key;
use crate::world::World;
use api::grant::Grant;
use proto::names::condition::ISOLATION_VERIFIED;
use proto::names::kai;
use scheduler_core::units::Time;
use scheduler_core::{Core, Event, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

impl World {
    /// No card has more than it can, by bindings that were carried out.
    pub(crate) fn check_cards(&mut self) {
        let mut held: BTreeMap<String, Vec<(u64, String, String)>> = BTreeMap::new();
        for (key, pod) in self.store.all("pods", "") {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            if is_over(pod) || self.disowned.contains(uid) {
                continue;
            }
            for container in grant_of(pod)
                .map(|grant| grant.containers)
                .unwrap_or_default()
            {
                let kept = container.kept().0;
                for card in container.gpus {
                    let entry = (kept, container.mode.to_string(), key.name.clone());
                    held.entry(card).or_default().push(entry);
                }
            }
        }
        let mut wrong = Vec::new();
        for card in self.nodes.iter().flat_map(|node| &node.cards) {
            let Some(held) = held.get(&card.uuid) else {
                continue;
            };
            let sum: u64 = held.iter().map(|(memory, ..)| memory).sum();
            if sum > card.grantable() {
                wrong.push(format!(
                    "card {} has {} MiB and grants {sum}: {held:?}",
                    card.uuid,
                    card.grantable()
                ));
            }
            if held.iter().any(|(_, mode, _)| *mode != held[0].1) {
                wrong.push(format!(
                    "card {} is granted in several modes: {held:?}",
                    card.uuid
                ));
            }
        }
        for line in wrong {
            self.violated(line);
        }
    }

    /// What still keeps the cluster from being at rest; empty: nothing.
    pub(crate) fn unrest(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        for (key, pod) in self.store.all("pods", "") {
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                out.push(format!("{} is leaving", key.name));
            }
        }
        let Some(leader) = self.leader() else {
            out.push("there is no leader".to_owned());
            return out;
        };
        let config = self.config.core(7);
        let Some(snapshot) = self.snapshot(leader) else {
            out.push("the leader answers no question".to_owned());
            return out;
        };
        for line in snapshot.lines() {
            let evicting = line.starts_with("evicting ") && !line.ends_with(" settled");
            if line.starts_with("assumed ") || evicting {
                out.push(format!("open: {line}"));
            }
        }
        match text::read(&snapshot) {
            Ok(events) => out.extend(undecided(config, events)),
            Err(error) => out.push(format!("the snapshot cannot be read: {error}")),
        }
        out.extend(self.unlike(&snapshot));
        out.extend(self.vain_evictions());
        out.extend(self.torn_gangs());
        out.extend(self.misfits());
        out.extend(self.untold());
        out
    }

    /// The replica that holds the lease and lives.
    pub(crate) fn leader(&self) -> Option<usize> {
        let holder = self.holder()?;
        let at = self
            .replicas
            .iter()
            .position(|replica| replica.name == holder)?;
        self.replicas[at].process.is_some().then_some(at)
    }

    /// The core of a replica, as text.
    pub(crate) fn snapshot(&mut self, at: usize) -> Option<String> {
        let process: &mut Process = self.replicas[at].process.as_mut()?;
        let (status, text) = process.page("/snapshot")?;
        (status == 200).then_some(text)
    }

    /// The leader's state is right: each bound pod is where it believes it to be.
    fn unlike(&self, snapshot: &str) -> Vec<String> {
        let mut believed = BTreeMap::new();
        for line in snapshot.lines().filter(|line| line.starts_with("pod ")) {
            let uid = line.split_whitespace().nth(1).unwrap_or_default();
            let on = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("on="))
                .unwrap_or_default();
            believed.insert(uid.to_owned(), on.to_owned());
        }
        let mut out = Vec::new();
        for (key, pod) in self.store.all("pods", "") {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            match believed.remove(uid) {
                None => out.push(format!("the leader does not know {}", key.name)),
                Some(on) if on != node && !is_over(pod) => {
                    out.push(format!(
                        "{} is on {node:?}, by the leader on {on:?}",
                        key.name
                    ));
                }
                Some(_) => {}
            }
        }
        out.extend(
            believed
                .keys()
                .map(|uid| format!("the leader knows {uid}, which is gone")),
        );
        out
    }

    /// Conditions that pods ought to have by now, whatever became of the writes.
    fn untold(&self) -> Vec<String> {
        let mut out = Vec::new();
        let condition = |pod: &Value, kind: &str| {
            let all = pod["status"]["conditions"].as_array();
            let one = all.into_iter().flatten().find(|one| one["type"] == kind);
            one.map(|one| one["status"].as_str().unwrap_or_default().to_owned())
        };
        for (key, pod) in self.store.all("pods", "") {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            if is_over(pod) || self.disowned.contains(uid) {
                continue;
            }
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            if node.is_empty() {
                if condition(pod, "PodScheduled").is_none() {
                    out.push(format!("{} waits and does not say why", key.name));
                }
                continue;
            }
            let node = self.nodes.iter().find(|one| one.name == node);
            let shares = node.map(|node| node.held.values()).into_iter().flatten();
            let shares: Vec<_> = shares.filter(|held| held.pod.uid == uid).collect();
            let fenced = shares.iter().any(|held| held.mode != "exclusive");
            if fenced && condition(pod, ISOLATION_VERIFIED).as_deref() != Some("True") {
                out.push(format!("{} does not say that its limit holds", key.name));
            }
        }
        out
    }

    /// Evictions for a job that does not start, decided after the last fault.
    fn vain_evictions(&self) -> Vec<String> {
        let mut out = Vec::new();
        for eviction in self
            .evictions
            .iter()
            .filter(|eviction| eviction.at > self.calm)
        {
            let Some((_, by)) = eviction.note.split_once("workload ") else {
                continue;
            };
            let by = by.split(". ").next().unwrap_or(by);
            let Some((namespace, name)) = by.split_once('/') else {
                continue;
            };
            let starts = self.store.all("pods", namespace).any(|(key, pod)| {
                let group = &pod["metadata"]["annotations"][kai::POD_GROUP];
                (key.name == name || *group == name) && pod["spec"]["nodeName"].is_string()
            });
            if !starts {
                out.push(format!(
                    "{} was evicted in vain: {}",
                    eviction.of, eviction.note
                ));
            }
        }
        out
    }

    /// Groups that are bound in part, with fewer than they need.
    fn torn_gangs(&self) -> Vec<String> {
        let mut bound: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        // The rest of a gang keeps running if some of its pods have ended.
        let mut whole = BTreeSet::new();
        for (key, pod) in self.store.all("pods", "") {
            let group = pod["metadata"]["annotations"][kai::POD_GROUP].as_str();
            let Some(group) = group else {
                continue;
            };
            if pod["status"]["phase"] == "Succeeded" {
                whole.insert((key.namespace.as_str(), group));
            }
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            // A pod with a refused grant stays if nothing would recreate it, and its owner gets a
            // condition: the others wait for that.
            if self.disowned.contains(uid) {
                whole.insert((key.namespace.as_str(), group));
            }
            if pod["spec"]["nodeName"].is_string()
                && !matches!(pod["status"]["phase"].as_str(), Some("Failed"))
            {
                *bound.entry((&key.namespace, group)).or_default() += 1;
            }
        }
        let mut out = Vec::new();
        for (key, group) in self.store.all("podgroups", "") {
            let least = group["spec"]["minMember"].as_u64().unwrap_or(1);
            let name = (key.namespace.as_str(), key.name.as_str());
            if let Some(stand) = bound.get(&name)
                && *stand < least
                && !whole.contains(&name)
            {
                out.push(format!("gang {} has {stand} of {least}", key.name));
            }
        }
        out
    }

    /// Pods of queues without bounds that wait and would fit alone, by the machines' own books.
    fn misfits(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (key, pod) in self.store.all("pods", "") {
            // What the group says counts, and stays where the pod's label changes.
            let group = pod["metadata"]["annotations"][kai::POD_GROUP].as_str();
            let group =
                group.and_then(|name| self.store.get(&Key::new("podgroups", &key.namespace, name)));
            let queue = match group {
                Some(group) => group["spec"]["queue"].as_str(),
                None => pod["metadata"]["labels"][kai::QUEUE_LABEL].as_str(),
            };
            let waits = pod["spec"]["nodeName"].is_null() && !is_over(pod);
            let alone = pod["metadata"]["ownerReferences"].is_null() && key.name.starts_with("p-");
            let plain = pod["spec"]["volumes"].is_null();
            if waits && alone && plain && queue == Some(kai::DEFAULT_QUEUE) {
                let conditions = pod["status"]["conditions"].as_array();
                let said = conditions.into_iter().flatten().map(|one| &one["message"]);
                let said: Vec<String> = said.map(Value::to_string).collect();
                out.extend(self.place_for(pod).map(|place| {
                    let name = &key.name;
                    format!("{name} waits and fits {place}, and is told {said:?}")
                }));
            }
        }
        out
    }

    /// Where there is room for it: a card without anything, or one that is shared in the mode
    /// that shares have where they name none.
    fn place_for(&self, pod: &Value) -> Option<String> {
        let annotations = &pod["metadata"]["annotations"];
        let number = |key: &str| {
            annotations[key]
                .as_str()
                .and_then(|text| text.parse::<f64>().ok())
        };
        let whole = &pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"];
        let whole: usize = whole
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let devices = number("gpu-fraction-num-devices").map_or(1, |_| 2);
        for node in &self.nodes {
            // The kubelet has given a whole card to a pod that its agent does not take in.
            let keeps = |(_, pod): (&Key, &Value)| {
                let whole = &pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"];
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                pod["spec"]["nodeName"] == *node.name
                    && self.disowned.contains(uid)
                    && !whole.is_null()
            };
            if self.store.all("pods", "").any(keeps) {
                continue;
            }
            let free = |card: &&crate::node::Card| -> bool {
                let held: Vec<_> = node
                    .held
                    .values()
                    .filter(|held| held.cards.contains(&card.uuid))
                    .collect();
                // Several cards of one container are of a mode of their own.
                if whole > 0 || devices > 1 {
                    return held.is_empty();
                }
                let sum: u64 = held.iter().map(|held| held.memory).sum();
                let wants = match (number("gpu-memory"), number("gpu-fraction")) {
                    (Some(memory), _) => whole_mib(memory),
                    (_, Some(part)) => whole_mib(part * as_f64(card.total)) + 1 + 256,
                    _ => return false,
                };
                held.iter().all(|held| held.mode == "mps") && sum + wants <= card.grantable()
            };
            let cards: Vec<_> = node
                .cards
                .iter()
                .filter(free)
                .map(|card| card.uuid.as_str())
                .collect();
            let needs = if whole > 0 { whole } else { devices };
            if cards.len() >= needs {
                return Some(format!("{} {}", node.name, cards.join(",")));
            }
        }
        None
    }

    /// Returns all objects in which the scheduler writes stamps, statuses and conditions.
    pub(crate) fn said(&self) -> BTreeMap<Key, Value> {
        let mut said = BTreeMap::new();
        for plural in ["pods", "podgroups", "queues"] {
            for (key, object) in self.store.all(plural, "") {
                let mut object = object.clone();
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("resourceVersion");
                }
                leave_out_words(&mut object["status"]);
                said.insert(key.clone(), object);
            }
        }
        said
    }

    /// Returns a line for each object that differs from `before`. Returns none if pods have moved,
    /// because a new process may try an eviction again that the old one had paused. Returns none if
    /// groups came or went, because a group that a user deleted while its pods ran is made again only
    /// by a new process.
    pub(crate) fn said_otherwise(&self, before: &BTreeMap<Key, Value>) -> Vec<String> {
        let now = self.said();
        let place = |(key, object): (&Key, &Value)| {
            let moves = [&object["spec"]["nodeName"], &object["status"]["phase"]];
            let moves = (key.plural == "pods").then(|| moves.map(Value::clone));
            (key.clone(), moves)
        };
        if !before.iter().map(place).eq(now.iter().map(place)) {
            return Vec::new();
        }
        let keys: BTreeSet<&Key> = before.keys().chain(now.keys()).collect();
        let mut out = Vec::new();
        for key in keys {
            let (old, new) = (before.get(key), now.get(key));
            if old != new {
                let (old, new) = (old.unwrap_or(&Value::Null), new.unwrap_or(&Value::Null));
                let mut lines = Vec::new();
                differences(old, new, String::new(), &mut lines);
                out.push(format!("{} {}: {}", key.plural, key.name, lines.join("; ")));
            }
        }
        out
    }

    /// After everything was removed: leftovers.
    pub(crate) fn leftovers(&mut self) -> Vec<String> {
        let mut out: Vec<String> = self
            .store
            .all("pods", "")
            .map(|(key, _)| format!("{} is still there", key.name))
            .collect();
        for node in &self.nodes {
            out.extend(
                node.held
                    .keys()
                    .map(|(pod, _)| format!("{} holds {pod}", node.name)),
            );
        }
        let Some(leader) = self.leader() else {
            out.push("there is no leader".to_owned());
            return out;
        };
        let snapshot = self.snapshot(leader).unwrap_or_default();
        let left = ["pod ", "assumed ", "evicting ", "backoff ", "refused "];
        for line in snapshot.lines() {
            if left.iter().any(|kind| line.starts_with(kind)) {
                out.push(format!("left: {line}"));
            }
        }
        for (key, queue) in self.store.all("queues", "") {
            let allocated = queue["status"]["allocated"].as_object();
            for (what, amount) in allocated.into_iter().flatten() {
                let text = amount
                    .as_str()
                    .map_or_else(|| amount.to_string(), str::to_owned);
                if text.chars().any(|c| ('1'..='9').contains(&c)) {
                    out.push(format!("queue {} has {text} of {what}", key.name));
                }
            }
        }
        out
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Small and positive.
fn whole_mib(amount: f64) -> u64 {
    amount.ceil() as u64
}

#[allow(clippy::cast_precision_loss)] // Some tens of thousands.
fn as_f64(amount: u64) -> f64 {
    amount as f64
}

/// What a core with that state would still do.
fn undecided(config: scheduler_core::Config, events: Vec<Event>) -> Vec<String> {
    let mut core = Core::new(config);
    let mut now = Time(0);
    for event in events {
        if let Event::Tick(at) = &event {
            now = *at;
        }
        core.apply(event);
    }
    let decision = core.decide(now);
    let mut out: Vec<String> = core.violations();
    if !decision.actions.is_empty() {
        out.push(format!("to be done: {}", text::decision(&decision)));
    }
    out
}

/// Removes the sentences that say why a pod fits nowhere. The scheduler does not write a sentence
/// again when only its numbers change, and a pod with several hindrances names the one that its last
/// try met.
fn leave_out_words(of: &mut Value) {
    match of {
        Value::Object(fields) => {
            if fields
                .get("reason")
                .is_some_and(|why| why == "Unschedulable")
            {
                fields.remove("message");
                fields.remove("reasons");
            }
            fields.values_mut().for_each(leave_out_words);
        }
        Value::Array(all) => all.iter_mut().for_each(leave_out_words),
        _ => {}
    }
}

/// Adds a line for each field in which two objects differ.
fn differences(old: &Value, new: &Value, at: String, out: &mut Vec<String>) {
    if let (Value::Object(old), Value::Object(new)) = (old, new) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let (old, new) = (old.get(key), new.get(key));
            if old != new {
                let (old, new) = (old.unwrap_or(&Value::Null), new.unwrap_or(&Value::Null));
                differences(old, new, format!("{at}.{key}"), out);
            }
        }
    } else {
        out.push(format!("{at} was {old}, is {new}"));
    }
}

fn is_over(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

fn grant_of(pod: &Value) -> Option<Grant> {
    Grant::peek(pod["metadata"]["annotations"]["aliquot.dev/grant"].as_str()?).ok()
}
