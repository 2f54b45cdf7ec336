//! A cluster whose cards are shared and full, and more shares that wait and fit nowhere.
//!
//! Every card of 80,000 MiB holds shares of 12,000, 24,000 and 40,000 MiB, so that less than the
//! smallest is left on it; however they are arranged, none of the three sizes has a place. Eight
//! queues in two departments hold an eighth each. One card in four has a small share of lower
//! priority; pending pods of the higher one request more than it and the rest give.

use super::{GPUS, card, node, node_name, nodes, queue};
use scheduler_core::event::Event;
use scheduler_core::ids::{ContainerName, GpuUuid, NodeName, QueueName};
use scheduler_core::model::{
    Amount, Ask, ContainerAsk, ContainerGrant, Mode, Phase, Placement, Pod, Share,
};
use scheduler_core::units::{Bytes, CpuMilli, Mib, Percent, Time};
use std::sync::Arc;

const QUEUES: usize = 8;
/// What cards hold, in turn.
const CARDS: [&[u64]; 4] = [
    &[24_000, 24_000, 24_000],
    &[40_000, 24_000, 12_000],
    &[12_000, 12_000, 12_000, 12_000, 12_000, 12_000],
    &[40_000, 12_000, 12_000, 12_000],
];
/// In all of them together.
const SHARES: usize = 16;
const HIGH: i32 = 100;
const LOW: i32 = 50;

/// A pod that wants one share.
fn share(name: &str, queue: usize, mib: u64, priority: i32) -> Pod {
    let mut pod = Pod::named(name);
    pod.queue = QueueName::new(format!("queue-{}", queue % QUEUES));
    pod.cpu = CpuMilli(500);
    pod.memory = Bytes(1 << 30);
    pod.priority = priority;
    pod.gpus = vec![ContainerAsk::of(
        "main",
        Ask::Share(Share::of(Amount::Memory(Mib(mib)))),
    )];
    pod
}

/// The share that runs, by its number over all cards.
fn running(index: usize) -> Pod {
    let (round, mut rest) = (index / SHARES, index % SHARES);
    let mut kind = 0;
    while rest >= CARDS[kind].len() {
        rest -= CARDS[kind].len();
        kind += 1;
    }
    let (at, mib) = (round * CARDS.len() + kind, CARDS[kind][rest]);
    let low = kind == 1 && mib == 12_000;
    let priority = if low { LOW } else { HIGH };
    // Each queue has shares of each kind.
    let mut pod = share(
        &format!("run-{index:06}"),
        index / SHARES + index,
        mib,
        priority,
    );
    pod.created = Time((index % 5000) as u64);
    pod.phase = Phase::Running(Placement {
        node: NodeName::new(node_name(at / GPUS)),
        grants: vec![ContainerGrant {
            container: ContainerName::new("main"),
            cards: vec![GpuUuid::new(card(at / GPUS, at % GPUS))],
            memory: Mib(mib),
            burst: None,
            compute: Percent::FULL,
            mode: Mode::Mps,
            note: None,
            asked: None,
        }],
        decision: None,
        front: scheduler_core::model::Front::Plugin,
    });
    pod
}

/// One that waits.
fn waiting(name: &str, index: usize) -> Pod {
    let mut pod = match index % 5 {
        0 => share(name, index / 5, 24_000, HIGH),
        1 => share(name, index / 5, 40_000, HIGH),
        2 => share(name, index / 5, 12_000, LOW),
        3 => share(name, index / 5, 24_000, LOW),
        _ => share(name, index / 5, 40_000, LOW),
    };
    pod.created = Time(10_000);
    pod
}

/// The cluster: full, with this many pending pods. `quota`: each queue has its part; else queues
/// are unlimited.
pub fn of_shares(count: usize, wait: usize, quota: bool) -> Vec<Event> {
    let mut events = nodes(count);
    let gpus = (count * GPUS) as u64;
    let part = |of: u64| quota.then_some(gpus / of);
    for department in 0..2 {
        events.push(queue(&format!("dept-{department}"), None, part(2), 1));
    }
    for index in 0..QUEUES {
        let parent = format!("dept-{}", index % 2);
        let part = part(QUEUES as u64);
        events.push(queue(&format!("queue-{index}"), Some(&parent), part, 1));
    }
    let shares = count * GPUS / CARDS.len() * SHARES;
    events.extend((0..shares).map(|index| Event::Pod(Box::new(running(index)))));
    events.extend((0..wait).map(|index| {
        let name = format!("wait-{index:06}");
        Event::Pod(Box::new(waiting(&name, index)))
    }));
    events
}

/// This many changes in it, a multiple of ten: a fifth are shares that end, two fifths new pending
/// ones, the rest are updates, with another label or unchanged. `turn` makes each set different.
pub fn changes(count: usize, turn: usize, most: usize) -> Vec<Event> {
    let shares = count * GPUS / CARDS.len() * SHARES;
    let part = most / 5;
    let mut events = Vec::new();
    for index in 0..part {
        // Far from each other; of those with even numbers.
        let at = (turn * part + index) * 1954 % shares;
        events.push(Event::PodGone(running(at).uid));
    }
    for index in 0..2 * part {
        let name = format!("new-{turn:03}-{index:03}");
        let mut pod = waiting(&name, turn * 2 * part + index);
        pod.created = Time(20_000);
        events.push(Event::Pod(Box::new(pod)));
    }
    while events.len() < most - part / 4 {
        let mut pod = running(((turn * most + events.len()) * 1982 + 1) % shares);
        pod.labels.insert(Arc::from("seen"), Arc::from("again"));
        events.push(Event::Pod(Box::new(pod)));
    }
    for index in 0..part / 4 {
        events.extend(
            node(1 + (turn * 5 + index) % count, GPUS)
                .into_iter()
                .take(1),
        );
    }
    events
}
