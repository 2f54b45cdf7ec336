//! A gang that takes back its queue's cards in a cluster where others share cards.
//!
//! A few nodes are marked, and full but for what is left of the last of them: a queue
//! without quota holds there what another one may have. On the others half of the cards
//! that are left are shared. Of the cluster's cards a quarter is free or shared, but
//! the gang may only go to marked nodes, and so may those that it takes them from.

use super::{CARD, GPUS, card, event, gang, node, node_name, on, pod, queue};
use scheduler_core::event::Event;
use scheduler_core::ids::{ContainerName, GpuUuid, NodeName};
use scheduler_core::model::{
    Amount, Ask, ContainerAsk, ContainerGrant, Mode, NodeRules, Phase, Placement, Pod, Share,
};
use scheduler_core::units::{Mib, NanoGpu, Percent, Time};
use std::sync::Arc;

/// Shares of a tenth on each shared card.
const SHARES: usize = 9;

/// A gang of a sixteenth of all cards.
pub fn reclaim_among_shares(count: usize) -> Vec<Event> {
    let wanted = count * GPUS / 16;
    let marked = wanted.div_ceil(GPUS);
    let mut events = Vec::new();
    for index in 0..count {
        for mut each in node(index, GPUS) {
            if let Event::Node(node) = &mut each {
                let label = if index < marked { "yes" } else { "no" };
                node.labels.insert(Arc::from("marked"), Arc::from(label));
            }
            events.push(each);
        }
    }
    events.push(queue("parent", None, None, 1));
    events.push(queue("others", Some("parent"), None, 1));
    events.push(queue("guest", Some("parent"), Some(0), 1));
    events.push(queue("owner", Some("parent"), Some(wanted as u64), 1));
    for at in 0..wanted {
        let guest = only(pod(&format!("guest-{at:05}"), "guest", 1), "yes");
        events.push(event(on(guest, at / GPUS, &[at % GPUS])));
    }
    let (first, all) = (marked * GPUS, count * GPUS);
    let filled = first + (all - first) * 3 / 4;
    for at in first..filled {
        let filler = only(pod(&format!("filler-{at:05}"), "others", 1), "no");
        events.push(event(on(filler, at / GPUS, &[at % GPUS])));
    }
    let shared = filled..filled + (all - filled) / 2;
    for at in shared.flat_map(|at| std::iter::repeat_n(at, SHARES)) {
        let mut pod = only(share(&format!("share-{:06}", events.len())), "no");
        pod.phase = Phase::Running(Placement {
            node: NodeName::new(node_name(at / GPUS)),
            grants: vec![ContainerGrant {
                container: ContainerName::new("main"),
                cards: vec![GpuUuid::new(card(at / GPUS, at % GPUS))],
                memory: Mib(CARD / 10),
                burst: None,
                compute: Percent::FULL,
                mode: Mode::Mps,
                note: None,
                asked: None,
            }],
            decision: None,
            front: scheduler_core::model::Front::Plugin,
        });
        events.push(event(pod));
    }
    for mut each in gang("owners", "owner", wanted, 1, None) {
        if let Event::Pod(pod) = &mut each {
            **pod = only((**pod).clone(), "yes");
        }
        events.push(each);
    }
    events
}

fn share(name: &str) -> Pod {
    let mut pod = pod(name, "others", 0);
    pod.created = Time(1000);
    pod.gpus = vec![ContainerAsk::of(
        "main",
        Ask::Share(Share::of(Amount::Fraction(NanoGpu(NanoGpu::ONE.0 / 10)))),
    )];
    pod
}

fn only(mut pod: Pod, marked: &str) -> Pod {
    pod.nodes = NodeRules {
        selector: [(Arc::from("marked"), Arc::from(marked))]
            .into_iter()
            .collect(),
        ..NodeRules::default()
    };
    pod
}
