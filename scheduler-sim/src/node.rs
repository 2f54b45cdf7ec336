//! A machine: its cards, what its kubelet runs, what its agent holds and says.

use crate::time::Ms;
use api::grant::{Grant, PodIdentity};
use proto::telemetry::{AgentMessage, Gpu, NodeState, Refusal, Share, Stranger, agent_message};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::sync::{mpsc, oneshot};

/// A card, as it really is.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its UUID.
    pub uuid: String,
    /// MiB.
    pub total: u64,
    /// MiB that the driver keeps.
    pub reserved: u64,
    /// It works.
    pub healthy: bool,
    /// MiB that processes without a grant hold.
    pub strangers: u64,
}

impl Card {
    /// The most that limits may sum to.
    pub fn grantable(&self) -> u64 {
        self.total - self.reserved
    }
}

/// What a container holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Whose.
    pub pod: PodIdentity,
    /// Which container.
    pub container: String,
    /// Cards.
    pub cards: Vec<String>,
    /// MiB of each.
    pub memory: u64,
    /// Mode of the cards.
    pub mode: String,
    /// From which decision.
    pub decision: String,
}

/// An agent's stream to one replica.
#[derive(Debug)]
pub struct Link {
    /// Dropped: the agent ends it.
    pub to: mpsc::UnboundedSender<AgentMessage>,
    /// Closed when the replica ended it.
    pub ended: oneshot::Receiver<()>,
    /// Messages that were sent.
    pub sequence: u64,
}

/// What an agent says beside the truth.
#[derive(Clone, Debug)]
pub enum FalseReport {
    /// Its report of some time ago.
    Older(Box<NodeState>),
    /// That pods hold shares that they do not.
    Shares(Vec<Share>),
    /// That it offers nothing.
    NotOffering,
    /// A card was lost.
    Fewer,
}

/// A machine.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Changes when it is recreated.
    pub uid: String,
    /// Its object is there.
    pub exists: bool,
    /// Kubelet and agent run.
    pub alive: bool,
    /// The agent alone runs.
    pub speaks: bool,
    /// Its cards.
    pub cards: Vec<Card>,
    /// What the agent holds, by pod UID and container.
    pub held: BTreeMap<(String, String), Held>,
    /// By replica.
    pub links: BTreeMap<usize, Link>,
    /// Its previous report.
    pub said: Vec<NodeState>,
    /// Its false report.
    pub false_report: Option<FalseReport>,
    /// Which start of the agent this is.
    pub instance: u64,
    /// Pods that it wants gone.
    pub unwanted: Vec<String>,
    /// Its last refusals, and when they were said: a new stream is sent them, too.
    refusals: Vec<(Ms, agent_message::Body)>,
    /// The label of its group, where an autoscaler has made it.
    pub group: Option<(&'static str, &'static str)>,
}

/// As in the agent's `telemetry/refusals.rs`.
const REFUSALS_KEPT: Ms = 120_000;
/// MiB that a fraction has beside its part.
const ALLOWANCE: u64 = 256;

impl Node {
    /// A machine with these cards, in MiB.
    pub fn new(number: usize, cards: &[u64]) -> Self {
        let name = format!("n{number}");
        let cards = cards.iter().enumerate().map(|(at, total)| Card {
            uuid: format!("GPU-{number}{at}"),
            total: *total,
            reserved: 512,
            healthy: true,
            strangers: 0,
        });
        Self {
            cards: cards.collect(),
            uid: String::new(),
            exists: true,
            alive: true,
            speaks: true,
            held: BTreeMap::new(),
            links: BTreeMap::new(),
            said: Vec::new(),
            false_report: None,
            instance: 1,
            unwanted: Vec::new(),
            refusals: Vec::new(),
            group: None,
            name,
        }
    }

    /// Its object. Before its agent has reported, a machine of an autoscaler lists no GPUs.
    pub fn object(&self) -> Value {
        let has = if self.speaks || self.group.is_none() {
            self.listed()
        } else {
            Self::plain()
        };
        let mut labels = json!({"kubernetes.io/hostname": self.name});
        if let Some((key, value)) = self.group {
            labels[key] = json!(value);
        }
        // The others' is what their agents say.
        if self.name.ends_with('1') {
            labels["nvidia.com/gpu.product"] = json!("T4");
        }
        json!({
            "metadata": {"name": self.name, "labels": labels},
            "status": {"allocatable": has, "capacity": has,
                "conditions": [{"type": "Ready", "status": "True"}]},
        })
    }

    /// What its kubelet lists by itself.
    fn plain() -> Value {
        json!({"cpu": "16", "memory": "64Gi", "pods": "30"})
    }

    /// The same once the agent has registered.
    pub fn listed(&self) -> Value {
        let count = self.cards.len();
        let memory: u64 = self.cards.iter().map(Card::grantable).sum();
        let mut has = Self::plain();
        has["nvidia.com/gpu"] = json!(count.to_string());
        has["aliquot.dev/gpu-share"] = json!((48 * count).to_string());
        has["aliquot.dev/gpu-memory-mib"] = json!(memory.to_string());
        has["aliquot.dev/gpu-milli"] = json!((1000 * count).to_string());
        has
    }

    /// Accepts a bound pod, or returns why not. A pod that is already held is accepted.
    ///
    /// # Errors
    /// One sentence.
    pub fn admit(&mut self, pod: &Value) -> Result<(), String> {
        let meta = &pod["metadata"];
        let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
        let identity = PodIdentity {
            uid: text("uid"),
            namespace: text("namespace"),
            name: text("name"),
        };
        let grant = meta["annotations"]["aliquot.dev/grant"].as_str();
        let Some(grant) = grant else {
            let asks = &pod["spec"]["containers"][0]["resources"]["limits"];
            let wants = ["nvidia.com/gpu", "aliquot.dev/gpu-share"]
                .iter()
                .any(|name| !asks[*name].is_null());
            return if wants {
                Err("no grant".to_owned())
            } else {
                Ok(())
            };
        };
        let grant = Grant::peek(grant).map_err(|error| error.to_string())?;
        if grant.pod != identity || grant.node.name != self.name {
            return Err("the grant is another pod's or another node's".to_owned());
        }
        if grant.node.uid != self.uid {
            return Err("the grant is for a node that was deleted and created again".to_owned());
        }
        for container in &grant.containers {
            let key = (identity.uid.clone(), container.name.clone());
            if self.held.contains_key(&key) {
                continue;
            }
            let held = Held {
                pod: identity.clone(),
                container: container.name.clone(),
                cards: container.gpus.clone(),
                memory: container.kept().0,
                mode: container.mode.to_string(),
                decision: grant.decision.clone(),
            };
            self.fits(&held)?;
            self.held.insert(key, held);
        }
        Ok(())
    }

    fn fits(&self, wanted: &Held) -> Result<(), String> {
        for uuid in &wanted.cards {
            let card = self.cards.iter().find(|card| card.uuid == *uuid);
            let card = card.ok_or_else(|| format!("no card {uuid} here"))?;
            let mut sum = wanted.memory;
            for held in self.held.values().filter(|held| held.cards.contains(uuid)) {
                if held.mode != wanted.mode || held.mode == "exclusive" {
                    return Err(format!("card {uuid} is in mode {}", held.mode));
                }
                sum += held.memory;
            }
            if sum > card.grantable() {
                return Err(format!("card {uuid} has {} MiB", card.grantable()));
            }
            if !card.healthy {
                return Err(format!("card {uuid} is broken"));
            }
        }
        Ok(())
    }

    /// The pod was deleted.
    pub fn free(&mut self, uid: &str) -> bool {
        let before = self.held.len();
        self.held.retain(|(pod, _), _| pod != uid);
        self.unwanted.retain(|pod| pod != uid);
        before != self.held.len()
    }

    /// What the agent says now.
    pub fn state(&self) -> NodeState {
        let truth = self.truth();
        match &self.false_report {
            None => truth,
            Some(FalseReport::Older(older)) => (**older).clone(),
            Some(FalseReport::Shares(shares)) => NodeState {
                shares: shares.clone(),
                ..truth
            },
            Some(FalseReport::NotOffering) => NodeState {
                not_offering: "MPS does not start".to_owned(),
                ..truth
            },
            Some(FalseReport::Fewer) => NodeState {
                gpus: truth.gpus.into_iter().skip(1).collect(),
                ..truth
            },
        }
    }

    fn truth(&self) -> NodeState {
        NodeState {
            node: self.name.clone(),
            node_uid: self.uid.clone(),
            gpus: (0_u32..)
                .zip(&self.cards)
                .map(|(at, card)| self.gpu(at, card))
                .collect(),
            shares: self.held.values().map(|held| self.share(held)).collect(),
            strangers: self
                .cards
                .iter()
                .filter(|card| card.strangers > 0)
                .map(|card| Stranger {
                    gpu_uuid: card.uuid.clone(),
                    pid: 7,
                    command: "python".to_owned(),
                    memory_mib: card.strangers,
                    ..Stranger::default()
                })
                .collect(),
            driver_version: "580".to_owned(),
            ..NodeState::default()
        }
    }

    fn gpu(&self, index: u32, card: &Card) -> Gpu {
        let held: Vec<&Held> = self
            .held
            .values()
            .filter(|held| held.cards.contains(&card.uuid))
            .collect();
        let granted = held.iter().map(|held| held.memory).sum();
        let modes = ["exclusive", "mps", "mps-isolated", "time-slicing"];
        Gpu {
            uuid: card.uuid.clone(),
            index,
            product: "L4".to_owned(),
            memory_total_mib: card.total,
            memory_reserved_mib: card.reserved,
            memory_granted_mib: granted,
            memory_grantable_mib: card.grantable().saturating_sub(card.strangers),
            mode: held
                .first()
                .map(|held| held.mode.clone())
                .unwrap_or_default(),
            switchable_modes: modes.map(str::to_owned).to_vec(),
            ready: true,
            health: if card.healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
            numa_node: -1,
            client_slots: 48,
            kubelet_pool: "whole".to_owned(),
            context_allowance_mib: ALLOWANCE,
            ..Gpu::default()
        }
    }

    fn share(&self, held: &Held) -> Share {
        let broken = |uuid: &String| {
            self.cards
                .iter()
                .any(|card| card.uuid == *uuid && !card.healthy)
        };
        let evict = self.unwanted.contains(&held.pod.uid) || held.cards.iter().any(broken);
        Share {
            pod_uid: held.pod.uid.clone(),
            pod_namespace: held.pod.namespace.clone(),
            pod_name: held.pod.name.clone(),
            container: held.container.clone(),
            gpu_uuids: held.cards.clone(),
            memory_mib: held.memory,
            compute_percent: 100,
            mode: held.mode.clone(),
            alloc_id: format!("{}-{}", held.pod.uid, held.container),
            phase: "Running".to_owned(),
            fence: "DriverLimit".to_owned(),
            observed_limit_mib: held.memory,
            decision_id: held.decision.clone(),
            complaint: if evict { "it has to go" } else { "" }.to_owned(),
            evict,
            ..Share::default()
        }
    }

    /// Says something on all streams that are open.
    pub fn say(&mut self, body: &agent_message::Body) {
        let instance = format!("{}-{}", self.name, self.instance);
        self.links.retain(|_, link| {
            link.sequence += 1;
            let message = AgentMessage {
                sequence: link.sequence,
                agent_instance: instance.clone(),
                release: String::new(),
                body: Some(body.clone()),
            };
            link.to.send(message).is_ok()
        });
    }

    /// Says a refusal.
    pub fn refuse(&mut self, now: Ms, refusal: agent_message::Body) {
        self.say(&refusal);
        self.refusals.retain(|(_, said)| *said != refusal);
        self.refusals.push((now, refusal));
    }

    /// The refusals that an agent sends to a scheduler that connects.
    pub fn refusals(&mut self, now: Ms) -> Vec<agent_message::Body> {
        self.refusals.retain(|(at, _)| at + REFUSALS_KEPT > now);
        let bodies = self.refusals.iter();
        bodies.map(|(_, refusal)| refusal.clone()).collect()
    }

    /// The grant of this pod is not honoured.
    pub fn refusal(pod: &Value, reason: &str, last_word: bool) -> Option<agent_message::Body> {
        let meta = &pod["metadata"];
        let grant = Grant::peek(meta["annotations"]["aliquot.dev/grant"].as_str()?).ok()?;
        let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
        Some(agent_message::Body::Refusal(Refusal {
            pod_uid: text("uid"),
            pod_namespace: text("namespace"),
            pod_name: text("name"),
            container: "main".to_owned(),
            decision_id: grant.decision,
            reason: reason.to_owned(),
            r#final: last_word,
        }))
    }
}
