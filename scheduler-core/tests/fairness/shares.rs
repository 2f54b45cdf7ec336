//! Fair shares, computed a second time: in whole nano units and fractions of integers,
//! straight from KAI's words, without a thought for time.
//!
//! The core divides in floating point, as KAI does. The two may differ by 4 units of each
//! resource in each queue (nano-GPU, millicores, bytes), which is more than the floating
//! point of these sizes loses.

use super::{QUARTER, resource};
use crate::cases::tried;
use proptest::prelude::*;
use scheduler_core::ids::{NodeName, QueueName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, Mode, Node, NodeCards, Phase, Placement, Pod, Queue,
    QueueResource, Share,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, NanoGpu, Time};
use scheduler_core::{Action, Config, Core, Event, text};
use std::collections::BTreeMap;

const ALLOWED: u128 = 4;
/// What rounding goes down to: a GPU, a millicore, a byte.
const UNITS: [i128; 3] = [1_000_000_000, 1, 1];
/// Sizes of GPU, CPU and memory come in these.
const GRAINS: [u64; 3] = [QUARTER, 500, 1 << 28];

/// What one queue may have of one resource, in grains; weights whole, usage in tenths.
#[derive(Clone, Copy, Debug)]
struct May {
    quota: Option<u64>,
    /// Over the quota, or over nothing.
    over: Option<u64>,
    weight: u64,
    usage: u64,
}

#[derive(Clone, Debug)]
struct Line {
    /// Among the queues before it; beyond them: none.
    parent: usize,
    priority: i32,
    created: u64,
    may: [May; 3],
}

#[derive(Clone, Debug)]
struct Work {
    queue: usize,
    size: u64,
    cpu: u64,
    memory: u64,
    runs: bool,
    /// It is over and counts for nothing.
    over: bool,
}

#[derive(Clone, Debug)]
struct Tree {
    /// GPUs of each node; the first may not be ready.
    nodes: Vec<u32>,
    not_ready: bool,
    /// `kValue` in halves.
    k: u64,
    lines: Vec<Line>,
    work: Vec<Work>,
}

fn may() -> impl Strategy<Value = May> {
    (
        prop_oneof![6 => (0_u64..12).prop_map(Some), 1 => Just(None)],
        prop_oneof![2 => Just(None), 1 => (0_u64..12).prop_map(Some)],
        0_u64..5,
        prop_oneof![2 => Just(0), 1 => 0_u64..11],
    )
        .prop_map(|(quota, over, weight, usage)| May {
            quota,
            over,
            weight,
            usage,
        })
}

fn tree() -> impl Strategy<Value = Tree> {
    let line = (
        0_usize..8,
        100_i32..103,
        0_u64..3,
        prop::array::uniform3(may()),
    );
    let line = line.prop_map(|(parent, priority, created, may)| Line {
        parent,
        priority,
        created,
        may,
    });
    let work = (
        (any::<usize>(), 0_u64..13, 0_u64..9, 0_u64..9),
        any::<bool>(),
        0_u8..8,
    );
    let work = work.prop_map(|((queue, size, cpu, memory), runs, over)| Work {
        queue,
        size,
        cpu,
        memory,
        runs,
        over: over == 0,
    });
    (
        prop::collection::vec(1_u32..9, 1..4),
        any::<bool>(),
        prop::sample::select(vec![2_u64, 2, 0, 1, 3]),
        prop::collection::vec(line, 1..9),
        prop::collection::vec(work, 0..24),
    )
        .prop_map(|(nodes, not_ready, k, lines, work)| Tree {
            nodes,
            not_ready,
            k,
            lines,
            work,
        })
}

impl Line {
    fn parent(&self, index: usize) -> Option<usize> {
        (self.parent < index).then_some(self.parent)
    }

    fn quota(&self, resource: usize) -> Option<i128> {
        let grain = i128::from(GRAINS[resource]);
        Some(i128::from(self.may[resource].quota?) * grain)
    }

    fn limit(&self, resource: usize) -> Option<i128> {
        let grain = i128::from(GRAINS[resource]);
        let over = i128::from(self.may[resource].over?) * grain;
        Some(self.quota(resource).unwrap_or_default() + over)
    }
}

impl Tree {
    fn name(index: usize) -> String {
        format!("q{index}")
    }

    fn children(&self, of: Option<usize>) -> Vec<usize> {
        let all = 0..self.lines.len();
        all.filter(|index| self.lines[*index].parent(*index) == of)
            .collect()
    }

    /// The leaf that a piece of work is in.
    fn leaf(&self, work: &Work) -> usize {
        let leaves: Vec<usize> = (0..self.lines.len())
            .filter(|index| self.children(Some(*index)).is_empty())
            .collect();
        leaves[work.queue % leaves.len()]
    }

    fn is_below(&self, leaf: usize, queue: usize) -> bool {
        let mut at = Some(leaf);
        while let Some(index) = at {
            if index == queue {
                return true;
            }
            at = self.lines[index].parent(index);
        }
        false
    }

    fn request(&self, queue: usize, resource: usize) -> i128 {
        let work = self.work.iter().filter(|work| !work.over);
        let work = work.filter(|work| self.is_below(self.leaf(work), queue));
        let amounts = work.map(|work| [work.size(), work.cpu, work.memory][resource]);
        i128::from(amounts.sum::<u64>()) * i128::from(GRAINS[resource])
    }

    /// Of every queue, by index; `None`: two have the same claim to the last unit, so that the last
    /// digit of a floating-point number decides, in KAI as well.
    fn shares(&self, resource: usize) -> Option<BTreeMap<usize, i128>> {
        let ready = &self.nodes[usize::from(self.not_ready)..];
        let total = match resource {
            0 => i128::from(ready.iter().sum::<u32>()) * UNITS[0],
            1 => ready.len() as i128 * 16_000,
            _ => ready.len() as i128 * (8 << 30),
        };
        let mut shares = BTreeMap::new();
        let clear = self.divide(resource, total, None, &mut shares);
        clear.then_some(shares)
    }

    /// Divides what a queue has among those below it, and so on. False: there is a tie.
    fn divide(
        &self,
        resource: usize,
        total: i128,
        of: Option<usize>,
        shares: &mut BTreeMap<usize, i128>,
    ) -> bool {
        let mut clear = true;
        let siblings = self.children(of);
        let most = |queue: usize| {
            let request = self.request(queue, resource);
            let limit = self.lines[queue].limit(resource);
            limit.map_or(request, |limit| limit.min(request))
        };
        // 1. Every queue's quota, up to its demand.
        let mut left = total;
        for &queue in &siblings {
            let quota = self.lines[queue].quota(resource).unwrap_or(total);
            shares.insert(queue, quota.min(most(queue)));
            left -= shares[&queue];
        }
        // 2. The rest, one priority after the other.
        let mut priorities: Vec<i32> = siblings
            .iter()
            .map(|queue| self.lines[*queue].priority)
            .collect();
        priorities.sort_unstable();
        priorities.dedup();
        let lowest = priorities.first().copied();
        let mut crumbs: Vec<usize> = Vec::new();
        for priority in priorities.into_iter().rev() {
            let band: Vec<usize> = siblings
                .iter()
                .copied()
                .filter(|queue| self.lines[*queue].priority == priority)
                .collect();
            // What was cut off of whose part: a fraction of a unit.
            let mut cut: BTreeMap<usize, (i128, i128)> = BTreeMap::new();
            while left > 0 {
                let wants = |queue: &usize| most(*queue) - shares[queue];
                let hungry: Vec<(usize, i128)> = band
                    .iter()
                    .filter(|queue| wants(queue) > 0)
                    .map(|queue| (*queue, wants(queue)))
                    .collect();
                let all: u64 = hungry
                    .iter()
                    .map(|(queue, _)| self.lines[*queue].may[resource].weight)
                    .sum();
                // n + k (n - usage), times the sum of weights, 2 for k and 10 for usage.
                let weight = |queue: usize| {
                    let may = self.lines[queue].may[resource];
                    let part = i128::from(may.weight * (2 + self.k) * 10);
                    let used = i128::from(self.k * may.usage * all);
                    (part - used).max(0)
                };
                let sum: i128 = hungry.iter().map(|(queue, _)| weight(*queue)).sum();
                if all == 0 || sum == 0 {
                    break;
                }
                let to_divide = left;
                let (mut less_was_wanted, mut some_whole) = (false, false);
                let is_alone = hungry.len() == 1;
                for (queue, wanted) in hungry {
                    if self.lines[queue].may[resource].weight == 0 || left == 0 {
                        continue;
                    }
                    // Its part is part / sum. Rounding decides whether a part that is just what is
                    // wanted is more than that; and one that is whole may become a unit less, which
                    // a lower priority can take, or the next round divides.
                    let part = to_divide * weight(queue);
                    let is_whole = part % (sum * UNITS[resource]) == 0;
                    let is_cut = is_whole && Some(priority) != lowest;
                    clear &= is_alone || wanted * sum < part || wanted * sum > part && !is_cut;
                    some_whole |= is_whole && !is_alone && wanted * sum > part;
                    let given = if wanted * sum <= part {
                        cut.remove(&queue);
                        less_was_wanted |= wanted * sum < part;
                        wanted
                    } else {
                        let units = part / (sum * UNITS[resource]);
                        let rest = part % (sum * UNITS[resource]);
                        if rest > 0 {
                            cut.insert(queue, (rest, sum));
                        }
                        units * UNITS[resource]
                    };
                    *shares.get_mut(&queue).unwrap() += given;
                    left -= given;
                }
                if !less_was_wanted {
                    break;
                }
                clear &= !some_whole;
            }
            // 3. What rounding left: the largest part that was cut off first.
            let mut order: Vec<usize> = cut.keys().copied().collect();
            order.sort_by(|one, other| {
                let ((a, of_a), (b, of_b)) = (cut[one], cut[other]);
                let age = |queue: usize| (self.lines[queue].created, Self::name(queue));
                (b * of_a)
                    .cmp(&(a * of_b))
                    .then_with(|| age(*one).cmp(&age(*other)))
            });
            let same = |pair: &[usize]| {
                let ((a, of_a), (b, of_b)) = (cut[&pair[0]], cut[&pair[1]]);
                a * of_b == b * of_a
            };
            clear &= !order.windows(2).any(same);
            crumbs.extend(order);
        }
        for queue in crumbs {
            let given = left.clamp(0, UNITS[resource]);
            *shares.get_mut(&queue).unwrap() += given;
            left -= given;
        }
        siblings.into_iter().fold(clear, |clear, queue| {
            self.divide(resource, shares[&queue], Some(queue), shares) && clear
        })
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (index, gpus) in self.nodes.iter().enumerate() {
            let mut node = Node::named(&format!("n{index}"));
            node.cpu = CpuMilli(16_000);
            node.memory = Bytes(8 << 30);
            node.pods = 110;
            node.managed = true;
            node.gpus = *gpus;
            if index == 0 && self.not_ready {
                node.not_ready.push("node(s) were not ready".into());
            }
            events.push(Event::Node(node));
            let name = format!("n{index}");
            let each =
                (0..*gpus).map(|card| Card::named(&format!("GPU-{index}-{card}"), card, "T", 1000));
            events.push(Event::Cards(NodeCards::offered(&name, Mode::Mps, each)));
        }
        for (index, line) in self.lines.iter().enumerate() {
            let bound = |amount: Option<i128>| {
                amount.map_or(Bound::Unlimited, |amount| {
                    Bound::Exactly(u64::try_from(amount).unwrap())
                })
            };
            let of = |index: usize| QueueResource {
                usage: line.may[index].usage * 100_000_000,
                ..resource(
                    bound(line.quota(index)),
                    bound(line.limit(index)),
                    line.may[index].weight * 1_000_000,
                )
            };
            let mut queue = Queue::unlimited(&Self::name(index));
            queue.parent = line
                .parent(index)
                .map(|parent| QueueName::new(Self::name(parent)));
            queue.priority = line.priority;
            queue.created = Time(line.created);
            (queue.gpu, queue.cpu, queue.memory) = (of(0), of(1), of(2));
            events.push(Event::Queue(queue));
        }
        for (index, work) in self.work.iter().enumerate() {
            let mut pod = Pod::named(&format!("p{index:02}"));
            pod.queue = QueueName::new(Self::name(self.leaf(work)));
            pod.cpu = CpuMilli(work.cpu * GRAINS[1]);
            pod.memory = Bytes(work.memory * GRAINS[2]);
            let ask = match (work.size(), work.runs) {
                (0, _) => None,
                (size, _) if size % 4 == 0 => Some(Ask::Whole(u32::try_from(size / 4).unwrap())),
                (size, _) => Some(Ask::Share(Share::of(Amount::Fraction(NanoGpu(
                    size * QUARTER,
                ))))),
            };
            pod.gpus
                .extend(ask.map(|ask| ContainerAsk::of("main", ask)));
            if work.over {
                pod.phase = Phase::Succeeded;
            } else if work.runs && work.size() == 0 {
                pod.phase = Phase::Running(Placement {
                    node: NodeName::new("n0"),
                    grants: Vec::new(),
                    decision: None,
                    front: scheduler_core::model::Front::Plugin,
                });
            }
            events.push(Event::Pod(Box::new(pod)));
        }
        events
    }
}

impl Work {
    /// Whole GPUs, or a part of one: what is more than one and not whole is less.
    fn size(&self) -> u64 {
        if self.size > 4 {
            self.size - self.size % 4
        } else {
            self.size
        }
    }
}

proptest! {
    #![proptest_config(tried(512))]

    /// Also after a decision, when some of what was wanted is held.
    #[test]
    fn fair_shares_are_those_of_a_slow_division(tree in tree()) {
        let mut core = Core::new(Config {
            k_value: tree.k * 500_000_000,
            ..Config::verified()
        });
        let events = tree.events();
        for event in events.clone() {
            core.apply(event);
        }
        for _ in 0..2 {
            let views = core.queues();
            for resource in 0..3 {
                let Some(shares) = tree.shares(resource) else {
                    continue;
                };
                for view in &views {
                    let index: usize = view.queue.as_str()[1..].parse().unwrap();
                    let fair = view.fair.unwrap()[resource];
                    let slow = u128::try_from(shares[&index]).unwrap();
                    prop_assert!(
                        fair.abs_diff(slow) <= ALLOWED,
                        "q{} of {}: {} and not {}\n{}",
                        index, resource, fair, slow, text::write(&events)
                    );
                }
            }
            // Leaving pods do not count.
            let decision = core.decide(Time(1000));
            if decision.actions.iter().any(|action| matches!(action, Action::Evict(_))) {
                break;
            }
        }
    }
}

/// KAI's `filterUnmarkedNodes` and `getNodeResources`: nodes that no pod may use do not count, nor
/// do the GPUs of nodes for pods without GPUs.
#[test]
fn gpus_that_no_pod_may_use_are_in_no_share() {
    let mut core = Core::new(Config::default());
    let events = "node both cpu=1000 memory=1000 pods=110 gpus=1 label.for/cpu= label.for/gpu=\n\
        node gpu cpu=2000 memory=2000 pods=110 gpus=2 label.for/gpu=\n\
        node cpu cpu=4000 memory=4000 pods=110 gpus=4 label.for/cpu=\n\
        node none cpu=8000 memory=8000 pods=110 gpus=8\n\
        queue q\n\
        pod p queue=q cpu=100000 memory=100000 gpus.main=100\n";
    for event in text::read(events).unwrap() {
        core.apply(event);
    }
    let fair = |core: &mut Core, config: &str| {
        for event in text::read(config).unwrap() {
            core.apply(event);
        }
        core.queues().swap_remove(0).fair.unwrap()
    };
    let gpu = u128::from(NanoGpu::ONE.0);
    let restricted = "config gpu-workers=for/gpu cpu-workers=for/cpu\n";
    assert_eq!(fair(&mut core, restricted), [3 * gpu, 7000, 7000]);
    assert_eq!(fair(&mut core, "config\n"), [15 * gpu, 15000, 15000]);
}
