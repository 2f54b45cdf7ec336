//! What goes wrong, step by step, and how it all ends well.

use crate::event::WorldEvent;
use crate::node::FalseReport;
use crate::replica::Ran;
use crate::store::Key;
use crate::time::Ms;
use crate::world::World;
use proto::telemetry::Share;
use serde_json::Value;

/// Faults of the network, and their highest share of a thousand requests.
const NETWORK: [(&str, u32); 16] = [
    ("request lost", 25),
    ("request late", 25),
    ("request slow", 200),
    ("request twice", 80),
    ("answer lost", 40),
    ("answer late", 40),
    ("connection broken", 60),
    ("500 and done", 50),
    ("500", 60),
    ("429", 80),
    ("409", 40),
    ("watch slow", 250),
    ("watch stalled", 20),
    ("watch cut off", 25),
    ("watch ended", 40),
    ("watch skipped to a new version", 60),
];

/// Time after which every component knows of the last fault.
const KNOWN: Ms = 60_000;

/// Every kind of fault: each happens in a large enough number of runs.
pub const FAULTS: [&str; 35] = [
    "request lost",
    "request late",
    "request slow",
    "request twice",
    "answer lost",
    "answer late",
    "connection broken",
    "500 and done",
    "500",
    "429",
    "409",
    "410",
    "watch slow",
    "watch stalled",
    "watch cut off",
    "watch ended",
    "watch skipped to a new version",
    "history forgotten",
    "request of a former leader dropped",
    "replica stalled",
    "replica stopped",
    "replica killed",
    "clock stepped",
    "node dead",
    "node gone",
    "agent dead",
    "agent back with older state",
    "false report",
    "agent refuses",
    "agent wants a pod gone",
    "agent restarted",
    "card broken",
    "strangers on a card",
    "grant refused",
    "provisioner gave up",
];

impl World {
    /// This run's network: some kinds of faults, more or less often.
    pub(crate) fn spoil(&mut self) {
        for (fault, most) in NETWORK {
            if self.rng.u32(0..3) > 0 {
                let rate = self.rng.u32(1..=most);
                self.rates.insert(fault, rate);
            }
        }
        self.bad = true;
    }

    /// One step: a user acts, or something breaks. Returns the time until the next.
    pub(crate) fn step(&mut self) -> Ms {
        match self.rng.u32(0..100) {
            0..=64 => self.act(),
            65..=68 => self.break_node(),
            69..=73 => self.mend_node(),
            74..=78 => self.break_agent(),
            79..=82 => self.mend_agent(),
            83..=86 => self.change_card(),
            87..=89 => self.stall(),
            90..=91 => self.end_replica(),
            92..=93 => self.jump(),
            94..=95 => self.forget(),
            _ => {}
        }
        self.announce();
        match self.rng.u32(0..10) {
            0..=5 => 50 + self.rng.u64(0..500),
            6..=8 => 500 + self.rng.u64(0..2500),
            _ => 3000 + self.rng.u64(0..9000),
        }
    }

    fn some_node(&mut self) -> usize {
        self.rng.usize(0..self.nodes.len())
    }

    fn break_node(&mut self) {
        let at = self.some_node();
        let name = self.nodes[at].name.clone();
        self.nodes[at].alive = false;
        self.nodes[at].links.clear();
        self.count("node dead");
        if self.rng.bool() {
            self.count("node gone");
            self.say(|| format!("node {name} is gone"));
            self.nodes[at].exists = false;
            self.store.remove(&Key::new("nodes", "", &name));
            if self.rng.bool() {
                self.store.remove(&Key::new("gpunodes", "", &name));
            }
        } else {
            self.say(|| format!("node {name} is dead"));
        }
    }

    fn mend_node(&mut self) {
        let at = self.some_node();
        self.mend(at);
    }

    fn mend(&mut self, at: usize) {
        let name = self.nodes[at].name.clone();
        if !self.nodes[at].exists {
            self.nodes[at].exists = true;
            // What ran there before belongs to no pod any more.
            self.nodes[at].held.clear();
            self.furnish_node(at);
            self.say(|| format!("node {name} is created again"));
            // Its kubelet finds pods that are bound to its name.
            let bound: Vec<(Key, String)> = self
                .store
                .all("pods", "")
                .filter(|(_, pod)| pod["spec"]["nodeName"] == *name)
                .map(|(key, pod)| {
                    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                    (key.clone(), uid.to_owned())
                })
                .collect();
            for (key, uid) in bound {
                self.admit_soon(&key, &uid, &name);
            }
        }
        if !self.nodes[at].alive {
            self.nodes[at].alive = true;
            self.say(|| format!("node {name} lives"));
            self.soon(200, WorldEvent::Connect(at));
        }
    }

    fn break_agent(&mut self) {
        let at = self.some_node();
        let what = self.rng.u32(0..6);
        let name = self.nodes[at].name.clone();
        self.say(|| format!("agent of {name}: {what}"));
        match what {
            0 => {
                self.count("agent dead");
                self.nodes[at].speaks = false;
                self.nodes[at].links.clear();
            }
            1 => {
                self.count("agent back with older state");
                let older = self.nodes[at].said.first().cloned();
                self.nodes[at].false_report =
                    older.map(|older| FalseReport::Older(Box::new(older)));
                self.restart_agent(at);
            }
            2 => {
                self.count("false report");
                let report = self.false_report_of(at);
                self.nodes[at].false_report = Some(report);
            }
            3 => {
                self.count("agent refuses");
                self.refuse(at);
            }
            4 => {
                self.count("agent wants a pod gone");
                let held: Vec<String> = self.nodes[at]
                    .held
                    .keys()
                    .map(|(pod, _)| pod.clone())
                    .collect();
                if !held.is_empty() {
                    let pod = held[self.rng.usize(0..held.len())].clone();
                    self.nodes[at].unwanted.push(pod);
                }
            }
            _ => {
                self.count("agent restarted");
                self.restart_agent(at);
            }
        }
        self.tell(at);
    }

    fn restart_agent(&mut self, at: usize) {
        self.nodes[at].links.clear();
        self.nodes[at].instance += 1;
        let pause = 100 + self.rng.u64(0..4000);
        self.soon(pause, WorldEvent::Connect(at));
    }

    fn false_report_of(&mut self, at: usize) -> FalseReport {
        match self.rng.u32(0..3) {
            0 => FalseReport::NotOffering,
            1 => FalseReport::Fewer,
            _ => {
                let uuid = self.nodes[at].cards.first().map(|card| card.uuid.clone());
                let pods = self.store.all("pods", "");
                let shares = pods.take(2).map(|(key, pod)| Share {
                    pod_uid: pod["metadata"]["uid"]
                        .as_str()
                        .unwrap_or_default()
                        .to_owned(),
                    pod_namespace: key.namespace.clone(),
                    pod_name: key.name.clone(),
                    container: "main".to_owned(),
                    gpu_uuids: uuid.clone().into_iter().collect(),
                    memory_mib: 100,
                    mode: "mps".to_owned(),
                    evict: false,
                    ..Share::default()
                });
                FalseReport::Shares(shares.collect())
            }
        }
    }

    /// An agent refuses a pod that it never got, or one that it accepted long ago.
    fn refuse(&mut self, at: usize) {
        let pods: Vec<_> = self
            .store
            .all("pods", "")
            .map(|(_, pod)| pod.clone())
            .collect();
        let last = self.rng.bool();
        if !pods.is_empty() && self.nodes[at].speaks && self.nodes[at].alive {
            let pod = &pods[self.rng.usize(0..pods.len())];
            if let Some(refusal) = crate::node::Node::refusal(pod, "it does not like it", last) {
                self.nodes[at].refuse(self.now, refusal);
                if last && pod["spec"]["nodeName"] == *self.nodes[at].name {
                    self.disown(at, pod);
                }
            }
        }
    }

    /// An agent no longer holds what it refused permanently.
    pub(crate) fn disown(&mut self, at: usize, pod: &Value) {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        self.nodes[at].held.retain(|(pod, _), _| pod != uid);
        self.disowned.insert(uid.to_owned());
    }

    fn mend_agent(&mut self) {
        let at = self.some_node();
        self.be_honest(at);
    }

    fn be_honest(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.false_report = None;
        node.unwanted.clear();
        if !node.speaks {
            node.speaks = true;
            self.soon(100, WorldEvent::Connect(at));
        }
        self.tell(at);
    }

    fn change_card(&mut self) {
        let at = self.some_node();
        let card = self.rng.usize(0..self.nodes[at].cards.len());
        let what = self.rng.u32(0..4);
        let card = &mut self.nodes[at].cards[card];
        match what {
            0 => card.healthy = false,
            1 => card.healthy = true,
            2 => card.strangers = 3000,
            _ => card.strangers = 0,
        }
        let line = format!("{card:?}");
        match what {
            0 => self.count("card broken"),
            2 => self.count("strangers on a card"),
            _ => {}
        }
        self.say(|| line);
        self.tell(at);
    }

    fn stall(&mut self) {
        let at = self.rng.usize(0..self.replicas.len());
        if self.replicas[at].process.is_none() || self.replicas[at].stalled.is_some() {
            return;
        }
        // A stall hits between two instructions of the shell, not inside the client: a checked
        // request is also sent.
        while let Some(process) = &mut self.replicas[at].process {
            match process.run(process.now + 1) {
                Ran::Sent(sent) => {
                    let moment = process.now.max(self.now);
                    self.depart(at, moment, *sent);
                }
                Ran::Reached => break,
                Ran::Ended(_) => {
                    self.kill(at);
                    self.soon(1000, WorldEvent::Start(at));
                    return;
                }
            }
        }
        let lasts = match self.rng.u32(0..3) {
            0 => 500 + self.rng.u64(0..3000),
            1 => 3000 + self.rng.u64(0..6000),
            _ => 8000 + self.rng.u64(0..20_000),
        };
        self.count("replica stalled");
        self.say(|| format!("replica {at} stands still for {lasts} ms"));
        self.replicas[at].stalled = Some(self.now + lasts);
    }

    fn end_replica(&mut self) {
        let at = self.rng.usize(0..self.replicas.len());
        let start = self.replicas[at].start;
        let Some(process) = &self.replicas[at].process else {
            return;
        };
        if self.rng.bool() {
            process.stop();
            self.count("replica stopped");
            self.say(|| format!("replica {at} is told to stop"));
            self.soon(10_000, WorldEvent::Kill(at, start));
        } else {
            self.count("replica killed");
            self.say(|| format!("replica {at} is killed"));
            self.kill(at);
            let pause = 200 + self.rng.u64(0..15_000);
            self.soon(pause, WorldEvent::Start(at));
        }
    }

    fn jump(&mut self) {
        let at = self.rng.usize(0..self.replicas.len());
        let far = [1500, 30_000, 3_600_000][self.rng.usize(0..3)];
        let by = if self.rng.bool() { far } else { -far };
        self.count("clock stepped");
        self.say(|| format!("the clock of replica {at} steps by {by} ms"));
        self.step_clock(at, by);
    }

    /// The server forgets its history: a client that asks for it has to list again.
    fn forget(&mut self) {
        self.count("history forgotten");
        self.say(|| "the server forgets its history".to_owned());
        self.store.compact();
    }

    /// All faults stop.
    pub(crate) fn heal(&mut self) {
        self.say(|| "all faults stop".to_owned());
        self.bad = false;
        self.calm = self.now + KNOWN;
        for at in 0..self.replicas.len() {
            self.replicas[at].stalled = self.replicas[at].stalled.map(|_| self.now);
        }
        for at in 0..self.nodes.len() {
            self.mend(at);
            for card in &mut self.nodes[at].cards {
                card.healthy = true;
                card.strangers = 0;
            }
            self.be_honest(at);
        }
        // Evictions that a budget forbids would be requested again and again.
        self.lift_budgets();
        self.announce();
    }
}
