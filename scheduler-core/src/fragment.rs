//! How much of a node's GPUs will stay unused, for the placement strategy `fragmentation`.
//!
//! In: the pods of a cluster by shape ([`Demand`]), and what a node has left. Out: a
//! number, in [`UNIT`]s of a thousandth of a GPU. Integers, no chance, no state.
//!
//! The idea is of FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): among the
//! nodes on which a pod fits, the one whose fragments grow least; rounded, so that small
//! differences leave the order of nodes to decide, which keeps the others whole. What a
//! fragment is differs. FGD asks for one pod after another whether it could use what is
//! left. That neither sees what two small pods would fill together, nor that the CPU will
//! be gone before the GPUs are. Here
//! - the node is filled on paper, with [`STREAMS`] rows of [`OFFERS`] pods each, drawn from
//!   the cluster's own pods: each takes the tightest card that has room, or is passed over.
//!   What is idle at the end counts;
//! - a `WEIGHT`th of FGD's measure is added, over all shapes and weighted by the GPUs
//!   that they ask for, because a row of few pods hardly ever holds one of eight GPUs, and
//!   no node would be kept whole for it.
//!
//! Like FGD it looks at GPUs and CPU, not at memory.

use std::cmp::Reverse;

/// How often a node is filled on paper.
pub const STREAMS: usize = 32;
/// How many pods are offered each time: some four times what a node of eight GPUs takes.
pub const OFFERS: usize = 64;
/// The part of FGD's measure, as the divisor.
const WEIGHT: u64 = 4;
/// [`Demand::waste`] counts in this part of a thousandth of a GPU.
pub const UNIT: u64 = STREAMS as u64;
/// Differences below so many thousandths of a GPU leave the order of nodes to decide.
const STEP: i64 = 20;
/// A whole card, in thousandths.
pub const WHOLE: u16 = 1000;

/// What a pod asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Millicores.
    pub cpu: u64,
    /// On how many cards; 0: no GPU.
    pub cards: u32,
    /// Thousandths of each; [`WHOLE`]: whole cards.
    pub part: u16,
}

impl Shape {
    fn gpus(&self) -> u64 {
        u64::from(self.cards) * u64::from(self.part)
    }

    /// The node could run it now.
    fn fits(&self, cpu: u64, cards: &[u16]) -> bool {
        self.cpu <= cpu
            && cards.iter().filter(|free| **free >= self.part).count() >= self.cards as usize
    }
}

/// The pods of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    shapes: Vec<Shape>,
    /// GPUs that each shape asks for in all, in parts of a million.
    weights: Vec<u64>,
    /// Rows of shapes.
    streams: Vec<[u16; OFFERS]>,
}

impl Demand {
    /// Shapes and how many pods have each. The order of the shapes matters for which
    /// rows are drawn, not for what they hold; at most the first 65,536 are looked at.
    pub fn of(pods: &[(Shape, u64)]) -> Self {
        let pods = &pods[..pods.len().min(usize::from(u16::MAX))];
        let gpus = |(shape, count): &(Shape, u64)| u128::from(shape.gpus()) * u128::from(*count);
        let all: u128 = pods.iter().map(gpus).sum();
        Self {
            shapes: pods.iter().map(|(shape, _)| *shape).collect(),
            weights: pods
                .iter()
                .map(|pod| {
                    u64::try_from(gpus(pod).saturating_mul(1_000_000) / all.max(1)).unwrap_or(0)
                })
                .collect(),
            streams: streams(pods),
        }
    }

    /// What will stay unused of a node with so many millicores and these parts of cards
    /// left, in any order. `takes`: whether the node is open to pods of the shape with
    /// that index at all.
    pub fn waste(&self, cpu: u64, cards: &[u16], takes: impl Fn(usize) -> bool) -> u64 {
        let mut cards: Vec<u16> = cards.to_vec();
        // The tightest card that has room is the first that has.
        cards.sort_unstable();
        let idle: u64 = cards.iter().map(|free| u64::from(*free)).sum();
        if idle == 0 {
            return 0;
        }
        let mut filled = Vec::with_capacity(cards.len());
        let rest: u64 = self
            .streams
            .iter()
            .map(|stream| {
                filled.clone_from(&cards);
                self.fill(stream, cpu, &mut filled, &takes)
            })
            .sum();
        let mut fragments = 0_u64;
        for (index, (shape, weight)) in self.shapes.iter().zip(&self.weights).enumerate() {
            if *weight == 0 {
                continue;
            }
            let lost = if takes(index) && shape.fits(cpu, &cards) {
                cards
                    .iter()
                    .take_while(|free| **free < shape.part)
                    .map(|free| u64::from(*free))
                    .sum()
            } else {
                idle
            };
            fragments += weight * lost;
        }
        rest + fragments * UNIT / (WEIGHT * 1_000_000)
    }

    /// Fills a node with a row of pods; what is idle then.
    fn fill(
        &self,
        stream: &[u16; OFFERS],
        mut cpu: u64,
        cards: &mut [u16],
        takes: &impl Fn(usize) -> bool,
    ) -> u64 {
        let mut idle: u64 = cards.iter().map(|free| u64::from(*free)).sum();
        for index in stream {
            let index = usize::from(*index);
            let shape = self.shapes[index];
            let count = shape.cards as usize;
            if shape.cpu > cpu || shape.gpus() > idle || !takes(index) {
                continue;
            }
            let first = cards.partition_point(|free| *free < shape.part);
            if cards.len() - first < count {
                continue;
            }
            for free in &mut cards[first..first + count] {
                *free -= shape.part;
            }
            cards.sort_unstable();
            cpu -= shape.cpu;
            idle -= shape.gpus();
            if idle == 0 {
                break;
            }
        }
        idle
    }
}

/// How good it is that a node's waste goes from `before` to `after`: larger is better.
pub fn rank(before: u64, after: u64) -> i64 {
    let signed = |waste: u64| i64::try_from(waste).unwrap_or(i64::MAX);
    let step = STEP * i64::try_from(UNIT).unwrap_or(1);
    (signed(before) - signed(after)).div_euclid(step)
}

/// So many pods as all rows hold, in the proportions of the cluster (largest remainder),
/// dealt out to the rows one by one, each row shuffled.
fn streams(pods: &[(Shape, u64)]) -> Vec<[u16; OFFERS]> {
    const SLOTS: u128 = (STREAMS * OFFERS) as u128;
    let all: u128 = pods.iter().map(|(_, count)| u128::from(*count)).sum();
    if all == 0 {
        return Vec::new();
    }
    let part = |count: u64| u128::from(count) * SLOTS;
    let mut slots: Vec<u128> = pods.iter().map(|(_, count)| part(*count) / all).collect();
    let given: u128 = slots.iter().sum();
    let mut by_rest: Vec<usize> = (0..pods.len()).collect();
    by_rest.sort_by_key(|index| Reverse(part(pods[*index].1) % all));
    let left = usize::try_from(SLOTS - given).unwrap_or(0);
    for index in by_rest.into_iter().take(left) {
        slots[index] += 1;
    }
    let pool: Vec<u16> = (0_u16..)
        .zip(slots)
        .flat_map(|(index, slots)| std::iter::repeat_n(index, usize::try_from(slots).unwrap_or(0)))
        .collect();
    let mut shuffle = Shuffle(0x9e37_79b9_7f4a_7c15);
    (0..STREAMS)
        .map(|row| {
            let mut stream: [u16; OFFERS] =
                std::array::from_fn(|column| pool[column * STREAMS + row]);
            for last in (1..OFFERS).rev() {
                stream.swap(last, shuffle.below(last + 1));
            }
            stream
        })
        .collect()
}

/// Xorshift: an order without a pattern, the same each time.
struct Shuffle(u64);

impl Shuffle {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(cpu: u64, cards: u32, part: u16) -> Shape {
        Shape { cpu, cards, part }
    }

    fn all(_: usize) -> bool {
        true
    }

    #[test]
    fn nothing_left_is_nothing_wasted() {
        let demand = Demand::of(&[(shape(1000, 1, 500), 1)]);
        assert_eq!(demand.waste(64_000, &[], all), 0);
        assert_eq!(demand.waste(64_000, &[0, 0], all), 0);
    }

    #[test]
    fn what_two_pods_fill_together_is_no_waste() {
        let demand = Demand::of(&[(shape(0, 1, 300), 1), (shape(0, 1, 700), 1)]);
        let (whole, rest) = (demand.waste(1, &[1000], all), demand.waste(1, &[650], all));
        // Of the 650 only a pod of 300 can take some, and then one of 300 more.
        assert!(rest > 50 * UNIT, "{rest}");
        assert!(whole < rest, "{whole} {rest}");
    }

    #[test]
    fn a_node_without_cpu_wastes_all() {
        let demand = Demand::of(&[(shape(4000, 1, 500), 1)]);
        assert_eq!(
            demand.waste(3999, &[1000], all),
            1000 * UNIT + 1000 * UNIT / WEIGHT
        );
        assert_eq!(demand.waste(8000, &[1000], all), 0);
        assert_eq!(
            demand.waste(8000, &[1000], |_| false),
            1000 * UNIT + 1000 * UNIT / WEIGHT,
            "nor one that takes none of them"
        );
    }

    #[test]
    fn a_node_is_kept_whole_for_the_few_that_need_it() {
        let demand = Demand::of(&[(shape(0, 1, 1000), 9_999), (shape(0, 8, 1000), 1_000)]);
        let opened = demand.waste(1, &[1000; 7], all);
        let whole = demand.waste(1, &[1000; 8], all);
        assert!(rank(whole, opened) < 0, "{whole} {opened}");
        let again = demand.waste(1, &[1000; 6], all);
        assert!(rank(opened, again) >= 0, "{opened} {again}");
    }

    #[test]
    fn rows_hold_each_shape_by_its_part() {
        let demand = Demand::of(&[
            (shape(0, 1, 500), 3),
            (shape(1, 1, 500), 1),
            (shape(2, 0, 0), 0),
        ]);
        let mut counts = [0; 3];
        for index in demand.streams.iter().flatten() {
            counts[usize::from(*index)] += 1;
        }
        assert_eq!(counts, [1536, 512, 0]);
    }

    #[test]
    fn nobody_there_is_no_division_by_nothing() {
        let demand = Demand::of(&[]);
        assert_eq!(demand.waste(1, &[1000], all), 0);
        let huge = Demand::of(&[(shape(u64::MAX, u32::MAX, u16::MAX), u64::MAX)]);
        assert!(huge.waste(u64::MAX, &[1000], all) > 0);
    }
}
