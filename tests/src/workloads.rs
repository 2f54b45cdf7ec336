//! The clusters that are measured, as events. Sizes are whole numbers of nodes with eight
//! 80,000 MiB cards each, served by an agent.
#![allow(clippy::cast_possible_truncation)] // Sizes are small.

pub mod absurd;
pub mod among;
pub mod by_claim;
pub mod full;
pub mod pod_rules;

use scheduler_core::event::Event;
use scheduler_core::ids::{
    ContainerName, GpuUuid, GroupName, NodeName, PodUid, QueueName, SetName, TopologyName,
};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, ContainerGrant, Mode, Node, NodeCards, Phase, Placement, Pod,
    PodGroup, PodSet, Queue, Share, Topology, TopologyRule, Weight,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, Mib, NanoGpu, Percent, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The time of every decision.
pub const NOW: Time = Time(1_000_000_000);
const GPUS: usize = 8;
const CARD: u64 = 80_000;

fn card(node: usize, index: usize) -> String {
    format!("GPU-{node:05}-{index}")
}

fn node_name(index: usize) -> String {
    format!("node-{index:05}")
}

/// One node with cards.
pub fn node(index: usize, gpus: usize) -> Vec<Event> {
    let mut node = Node::named(&node_name(index));
    node.cpu = CpuMilli(256_000);
    node.memory = Bytes(1 << 40);
    node.pods = 250;
    node.gpus = gpus as u32;
    node.managed = gpus > 0;
    for (level, size) in [("zone", 256), ("block", 64), ("rack", 16)] {
        node.labels.insert(
            Arc::from(level),
            Arc::from(format!("{level}-{:03}", index / size)),
        );
    }
    let mut events = vec![Event::Node(node)];
    if gpus > 0 {
        let cards = (0..gpus).map(|gpu| {
            let mut card = Card::named(&card(index, gpu), gpu as u32, "H100-80", CARD);
            card.nvswitch = true;
            card
        });
        let name = node_name(index);
        events.push(Event::Cards(NodeCards::offered(&name, Mode::Mps, cards)));
    }
    events
}

pub fn nodes(count: usize) -> Vec<Event> {
    (0..count).flat_map(|index| node(index, GPUS)).collect()
}

/// A queue with a GPU quota (`None`: no bound) and an over-quota weight.
pub fn queue(name: &str, parent: Option<&str>, quota: Option<u64>, weight: u64) -> Event {
    let mut queue = Queue::unlimited(name);
    queue.parent = parent.map(QueueName::new);
    queue.gpu.quota = quota.map_or(Bound::Unlimited, |gpus| {
        Bound::Exactly(gpus * NanoGpu::ONE.0)
    });
    queue.gpu.weight = Weight(weight * Weight::ONE.0);
    Event::Queue(queue)
}

/// KAI's four queues in two departments, that share `gpus` evenly.
fn four_queues(gpus: usize) -> Vec<Event> {
    let (half, quarter) = (Some(gpus as u64 / 2), Some(gpus as u64 / 4));
    let mut events = vec![
        queue("dept-a", None, half, 1),
        queue("dept-b", None, half, 1),
    ];
    for (index, parent) in ["dept-a", "dept-a", "dept-b", "dept-b"].iter().enumerate() {
        events.push(queue(&format!("queue-{index}"), Some(parent), quarter, 1));
    }
    events
}

/// A pod that wants whole GPUs.
pub fn pod(name: &str, queue: &str, gpus: u32) -> Pod {
    let mut pod = Pod::named(name);
    pod.queue = QueueName::new(queue);
    pod.cpu = CpuMilli(1000);
    pod.memory = Bytes(1 << 30);
    if gpus > 0 {
        pod.gpus = vec![ContainerAsk::of("main", Ask::Whole(gpus))];
    }
    pod
}

/// A pod with a name, a namespace and a UID of the usual lengths.
fn long(name: &str, queue: &str, gpus: u32) -> Pod {
    let mut new = pod(&format!("team-training-run-{name}-x7k2p"), queue, gpus);
    new.uid = PodUid::new(uuid(name));
    new.namespace = Arc::from(format!("team-{queue}"));
    new
}

/// A UUID, the same for the same text.
fn uuid(text: &str) -> String {
    // FNV-1a, from two seeds.
    let hash = |seed: u64| {
        text.bytes().fold(seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let (a, b) = (hash(0xcbf2_9ce4_8422_2325), hash(0x8422_2325_cbf2_9ce4));
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        a >> 32,
        a >> 16 & 0xffff,
        a & 0xfff,
        b >> 52,
        b & 0xffff_ffff_ffff
    )
}

/// The name that KAI's grouper gives the group of such a pod's owner.
fn group_of(pod: &Pod) -> String {
    format!("{}/pg-{}-{}", pod.namespace, pod.name, uuid(&pod.name))
}

fn event(pod: Pod) -> Event {
    Event::Pod(Box::new(pod))
}

/// The pod runs there, on those cards.
pub fn on(mut pod: Pod, node: usize, cards: &[usize]) -> Pod {
    let grants = (!cards.is_empty()).then(|| ContainerGrant {
        container: ContainerName::new("main"),
        cards: cards
            .iter()
            .map(|index| GpuUuid::new(card(node, *index)))
            .collect(),
        memory: Mib(CARD),
        burst: None,
        compute: Percent::FULL,
        mode: Mode::Exclusive,
        note: None,
        asked: None,
    });
    pod.phase = Phase::Running(Placement {
        node: NodeName::new(node_name(node)),
        grants: grants.into_iter().collect(),
        decision: None,
        front: scheduler_core::model::Front::Plugin,
    });
    pod
}

/// A gang: its group, and as many pods as it needs.
pub fn gang(
    name: &str,
    queue: &str,
    pods: usize,
    gpus: u32,
    rule: Option<TopologyRule>,
) -> Vec<Event> {
    let mut group = PodGroup::named(&format!("default/{name}"), pods as u32);
    group.queue = QueueName::new(queue);
    group.created = Time(500);
    group.root.topology = rule;
    let mut events = vec![Event::Group(group)];
    for index in 0..pods {
        let mut pod = pod(&format!("{name}-{index:05}"), queue, gpus);
        pod.group = Some(GroupName::new(format!("default/{name}")));
        events.push(event(pod));
    }
    events
}

/// Running one-GPU pods on every card; `queue` says whose each is.
fn running(count: usize, queue: impl Fn(usize) -> String) -> Vec<Event> {
    (0..count * GPUS)
        .map(|index| {
            let mut pod = pod(&format!("run-{index:06}"), &queue(index), 1);
            pod.created = Time((index % 5000) as u64);
            event(on(pod, index / GPUS, &[index % GPUS]))
        })
        .collect()
}

/// Every card taken, as many one-GPU jobs waiting, two queues that share evenly.
pub fn full_cycle(count: usize) -> Vec<Event> {
    let quota = Some(count as u64 * 4);
    let mut events = nodes(count);
    events.push(queue("dept", None, None, 1));
    events.push(queue("queue-0", Some("dept"), quota, 1));
    events.push(queue("queue-1", Some("dept"), quota, 1));
    let whose = |index: usize| format!("queue-{}", index % 2);
    events.extend(running(count, whose));
    events.extend((0..count * GPUS).map(|index| {
        let mut pod = pod(&format!("wait-{index:06}"), &whose(index), 1);
        pod.created = Time(10_000);
        event(pod)
    }));
    events
}

/// A job of 10 pods x 8 GPUs whose queue lacks one GPU of the quota for it, on a full cluster of
/// another queue. `variant` reduces that quota by as many GPUs.
pub fn proof(count: usize, variant: usize) -> Vec<Event> {
    let quota = 79 - variant as u64;
    let mut events = nodes(count);
    events.push(queue("dept", None, None, 1));
    events.push(queue("small", Some("dept"), Some(quota), 0));
    let rest = (count * GPUS) as u64 - quota;
    events.push(queue("large", Some("dept"), Some(rest), 1));
    events.extend(running(count, |_| "large".to_owned()));
    events.extend(gang("big", "small", 10, 8, None));
    events
}

/// One gang that takes back what another queue holds beyond its half.
pub fn reclaim_gang(count: usize, pods: usize, gpus: u32) -> Vec<Event> {
    let quota = Some(count as u64 * 4);
    let mut events = nodes(count);
    events.push(queue("dept", None, None, 1));
    events.push(queue("queue-0", Some("dept"), quota, 1));
    events.push(queue("queue-1", Some("dept"), quota, 1));
    events.extend(running(count, |_| "queue-1".to_owned()));
    events.extend(gang("big", "queue-0", pods, gpus, None));
    events
}

/// KAI's `createBenchmarkTopology`: one-GPU jobs over four queues, all waiting.
pub fn waiting(count: usize, jobs: usize) -> Vec<Event> {
    let mut events = nodes(count);
    events.extend(four_queues(count * GPUS));
    events.extend((0..jobs).map(|index| {
        let queue = format!("queue-{}", index % 4);
        event(pod(&format!("job-{index:06}"), &queue, 1))
    }));
    events
}

/// KAI's `createBenchmarkTopologyWithMixedJobs`: every second one runs.
pub fn mixed(count: usize, jobs: usize) -> Vec<Event> {
    let mut events = nodes(count);
    events.extend(four_queues(count * GPUS));
    let mut taken = vec![0; count];
    events.extend((0..jobs).map(|index| {
        let queue = format!("queue-{}", index % 4);
        let pod = pod(&format!("job-{index:06}"), &queue, 1);
        let node = index % count;
        if index % 2 == 1 || taken[node] == GPUS {
            return event(pod);
        }
        taken[node] += 1;
        event(on(pod, node, &[taken[node] - 1]))
    }));
    events
}

/// Pods of 120 shapes (30 of CPU times 4 of memory), one GPU each, in ten queues.
pub fn shapes(count: usize, jobs: usize) -> Vec<Event> {
    let mut events = nodes(count);
    events.push(queue("dept", None, None, 1));
    for index in 0..10 {
        events.push(queue(&format!("queue-{index}"), Some("dept"), None, 1));
    }
    events.extend((0..jobs).map(|index| {
        let queue = format!("queue-{}", index % 10);
        let mut pod = pod(&format!("job-{index:06}"), &queue, 1);
        pod.cpu = CpuMilli(500 + 50 * (index as u64 % 30));
        pod.memory = Bytes((1 + (index as u64 / 30) % 4) << 30);
        event(pod)
    }));
    events
}

/// Shares of five sizes.
pub fn fractions(count: usize, jobs: usize) -> Vec<Event> {
    let mut events = nodes(count);
    events.extend(four_queues(count * GPUS));
    events.extend((0..jobs).map(|index| {
        let queue = format!("queue-{}", index % 4);
        let mut pod = pod(&format!("job-{index:06}"), &queue, 0);
        let mib = [4_000, 8_000, 12_000, 16_000, 24_000][index % 5];
        pod.gpus = vec![ContainerAsk::of(
            "main",
            Ask::Share(Share::of(Amount::Memory(Mib(mib)))),
        )];
        event(pod)
    }));
    events
}

/// One gang of one-GPU pods on an idle cluster.
pub fn one_gang(count: usize, pods: usize) -> Vec<Event> {
    let mut events = nodes(count);
    events.extend(four_queues(count * GPUS));
    events.extend(gang("gang", "queue-0", pods, 1, None));
    events
}

/// Gangs of 16 pods x 8 GPUs that must be in one block and should be in one rack, as many
/// as fill half of the cluster.
pub fn in_topology(count: usize) -> Vec<Event> {
    let mut events = nodes(count);
    events.extend(four_queues(count * GPUS));
    events.push(Event::Topology(Topology {
        name: TopologyName::new("floor"),
        levels: ["zone", "block", "rack"].map(Arc::from).to_vec(),
        aliases: BTreeMap::new(),
    }));
    for index in 0..(count / 32).max(1) {
        let rule = TopologyRule {
            topology: TopologyName::new("floor"),
            required: Some(Arc::from("block")),
            preferred: Some(Arc::from("rack")),
        };
        events.extend(gang(
            &format!("gang-{index:03}"),
            &format!("queue-{}", index % 4),
            16,
            8,
            Some(rule),
        ));
    }
    events
}

/// A gang of this many sub-groups of eight pods, with room for all of them.
pub fn of_sub_groups(groups: usize) -> Vec<Event> {
    let mut events = nodes(groups);
    events.push(queue("queue-0", None, None, 1));
    let mut group = PodGroup::named("default/parts", 8);
    group.queue = QueueName::new("queue-0");
    let set = |index: usize| PodSet {
        name: SetName::new(format!("part-{index:04}")),
        min: 8,
        topology: None,
    };
    group.root.sets = (0..groups).map(set).collect();
    events.push(Event::Group(group));
    for index in 0..groups * 8 {
        let mut new = pod(&format!("parts-{index:05}"), "queue-0", 1);
        new.group = Some(GroupName::new("default/parts"));
        new.sub_group = Some(SetName::new(format!("part-{:04}", index / 8)));
        events.push(event(new));
    }
    events
}

/// A group that needs one pod and has many, with room for all of them.
pub fn elastic(pods: usize) -> Vec<Event> {
    let mut events = nodes(pods.div_ceil(GPUS));
    events.push(queue("queue-0", None, None, 1));
    let mut group = PodGroup::named("default/elastic", 1);
    group.queue = QueueName::new("queue-0");
    events.push(Event::Group(group));
    for index in 0..pods {
        let mut new = pod(&format!("elastic-{index:05}"), "queue-0", 1);
        new.group = Some(GroupName::new("default/elastic"));
        events.push(event(new));
    }
    events
}

/// Whole GPUs of a cluster whose pods all leave, with as many pods that wait.
pub fn all_leave(pods: usize) -> Vec<Event> {
    let count = pods.div_ceil(GPUS);
    let mut events = nodes(count);
    events.push(queue("queue-0", None, None, 1));
    for index in 0..pods {
        let place = (index / GPUS, index % GPUS);
        let mut old = on(
            pod(&format!("old-{index:05}"), "queue-0", 1),
            place.0,
            &[place.1],
        );
        if let Phase::Running(placement) = old.phase {
            old.phase = Phase::Releasing(Some(placement));
        }
        events.push(event(old));
    }
    for index in 0..pods {
        let mut new = pod(&format!("new-{index:05}"), "queue-0", 1);
        new.created = Time(10_000);
        events.push(event(new));
    }
    events
}

/// The large cluster.
///
/// Every tenth node has eight GPUs, all of them taken. A queue for each four nodes, in 20
/// departments. Every second pod without GPUs is another scheduler's. Its own pods are single, or
/// each in a group, as controllers' pods do; those that wait ask for one thing or for many.
#[derive(Clone, Copy, Debug)]
pub struct Large {
    pub nodes: usize,
    /// Pods that run, at least as many as there are GPUs.
    pub running: usize,
    /// Pods that wait for a GPU.
    pub waiting: usize,
    /// Each pod of ours has a pod group.
    pub grouped: bool,
    /// How many different requests there are among those that wait.
    pub requests: usize,
}

impl Large {
    /// The whole cluster.
    pub fn events(&self, mut take: impl FnMut(Event)) {
        for index in 0..self.nodes {
            let gpus = if index.is_multiple_of(10) { GPUS } else { 0 };
            node(index, gpus).into_iter().for_each(&mut take);
        }
        for index in 0..20 {
            take(queue(&format!("dept-{index:02}"), None, None, 1));
        }
        let queues = self.nodes / 4;
        let quota = Some(self.nodes as u64 * GPUS as u64 / 10 / queues as u64);
        for index in 0..queues {
            let parent = format!("dept-{:02}", index % 20);
            take(queue(&self.queue(index), Some(&parent), quota, 1));
        }
        for index in 0..self.running {
            self.made(self.placed(index), &mut take);
        }
        for index in 0..self.waiting {
            let pod = self.pending(&format!("wait-{index:06}"), index, 1);
            self.made(pod, &mut take);
        }
    }

    fn queue(&self, index: usize) -> String {
        format!("queue-{:04}", index % (self.nodes / 4))
    }

    /// A pod that runs. The first ones hold the GPUs.
    fn placed(&self, index: usize) -> Pod {
        let gpu_pods = self.nodes / 10 * GPUS;
        let name = format!("run-{index:06}");
        let mut new = long(&name, &self.queue(index), u32::from(index < gpu_pods));
        new.created = Time((index % 5000) as u64);
        if index < gpu_pods {
            return on(new, index / GPUS * 10, &[index % GPUS]);
        }
        new.ours = index.is_multiple_of(2);
        on(new, index % self.nodes, &[])
    }

    /// A pending pod, with one of this many requests.
    fn pending(&self, name: &str, index: usize, gpus: u32) -> Pod {
        let mut new = long(name, &self.queue(index), gpus);
        let request = index % self.requests;
        new.cpu = CpuMilli(1000 + request as u64 % 100);
        new.memory = Bytes((1 << 30) + ((request as u64 / 100) << 20));
        new.created = Time(10_000);
        new
    }

    /// A pod as it comes: its group first, where it has one.
    fn made(&self, mut pod: Pod, mut take: impl FnMut(Event)) {
        if self.grouped && pod.ours {
            let mut group = PodGroup::named(&group_of(&pod), 1);
            group.uid = Arc::from(uuid(group.name.as_str()));
            group.queue = pod.queue.clone();
            group.created = pod.created;
            if !matches!(pod.phase, Phase::Pending) {
                group.last_start = Some(pod.created);
            }
            pod.group = Some(group.name.clone());
            take(Event::Group(group));
        }
        take(event(pod));
    }

    fn gone(&self, pod: &Pod, mut take: impl FnMut(Event)) {
        take(Event::PodGone(pod.uid.clone()));
        if self.grouped && pod.ours {
            take(Event::GroupGone(GroupName::new(group_of(pod))));
        }
    }

    /// 100 changes: 20 pods with a GPU and 20 without are gone, 40 new ones wait (half
    /// with a GPU), 15 that run are seen again with another label, five nodes are seen again.
    /// `turn` makes each set another one. Groups come and go with their pods.
    pub fn changes(&self, turn: usize) -> Vec<Event> {
        let gpu_pods = self.nodes / 10 * GPUS;
        let mut events = Vec::new();
        let mut take = |event| events.push(event);
        for index in 0..20 {
            let at = turn * 20 + index;
            self.gone(&self.placed(at), &mut take);
            self.gone(&self.placed(gpu_pods + at), &mut take);
        }
        for index in 0..40 {
            let name = format!("new-{turn:03}-{index:02}");
            let mut new = self.pending(&name, turn * 40 + index, index as u32 % 2);
            new.created = Time(20_000);
            self.made(new, &mut take);
        }
        for index in 0..15 {
            let mut pod = self.placed(gpu_pods + 10_000 + turn * 15 + index);
            if self.grouped && pod.ours {
                pod.group = Some(GroupName::new(group_of(&pod)));
            }
            pod.labels.insert(Arc::from("seen"), Arc::from("again"));
            take(event(pod));
        }
        for index in 0..5 {
            node(1 + (turn * 5 + index) % 8, 0)
                .into_iter()
                .for_each(&mut take);
        }
        events
    }

    /// A pod that fits nowhere.
    pub fn one_more(&self, turn: usize) -> Vec<Event> {
        let mut events = Vec::new();
        let mut new = self.pending(&format!("more-{turn:03}"), turn, 1);
        new.created = Time(20_000);
        self.made(new, |event| events.push(event));
        events
    }

    /// A queue is created.
    pub fn one_queue(&self, turn: usize) -> Vec<Event> {
        vec![queue(
            &format!("queue-new-{turn:03}"),
            Some("dept-00"),
            Some(1),
            1,
        )]
    }

    /// A node without GPUs turns out not to be ready, and is ready again.
    pub fn flap(&self, turn: usize) -> Vec<Event> {
        let mut events = node(1 + turn / 2 % 8, 0);
        if turn.is_multiple_of(2) {
            for event in &mut events {
                if let Event::Node(node) = event {
                    node.not_ready = vec![Arc::from("node(s) were not ready")];
                }
            }
        }
        events
    }
}
