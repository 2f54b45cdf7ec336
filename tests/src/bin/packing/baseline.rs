//! Two policies of the paper, as the code of its authors behaves: FGD and best fit.
//!
//! Every node that could take the pod has a score, the highest wins, and of equals the
//! one of the lowest rank. A score is computed again only when its node has changed.

use crate::replay::Policy;
use crate::trace::{Node, Order, Pod, Shape, Trace};

/// What a node has left.
#[derive(Clone, Debug)]
struct Left {
    cpu: u64,
    memory_mib: u64,
    /// Thousandths, by card.
    cards: Vec<u32>,
}

impl Left {
    fn of(node: &Node) -> Self {
        Self {
            cpu: node.cpu,
            memory_mib: node.memory_mib,
            cards: vec![1000; node.cards],
        }
    }

    fn runs(&self, shape: &Shape) -> bool {
        let roomy = self.cards.iter().filter(|left| **left >= shape.milli);
        self.cpu >= shape.cpu && roomy.count() >= shape.cards
    }

    fn idle(&self) -> u64 {
        self.cards.iter().map(|left| u64::from(*left)).sum()
    }

    /// The pod takes that card; where it wants whole ones, the first that are free. Which ones
    /// it took, as bits.
    fn take(&mut self, shape: &Shape, card: usize) -> u64 {
        self.cpu -= shape.cpu;
        if shape.milli < 1000 {
            if shape.cards == 0 {
                return 0;
            }
            self.cards[card] -= shape.milli;
            return 1 << card;
        }
        let free = self.cards.iter_mut().enumerate();
        let free = free.filter(|(_, left)| **left == 1000).take(shape.cards);
        free.fold(0, |taken, (card, left)| {
            *left = 0;
            taken | 1 << card
        })
    }

    /// What a pod took with those cards is free again.
    fn give_back(&mut self, pod: &Pod, shape: &Shape, cards: u64) {
        self.cpu += shape.cpu;
        self.memory_mib += pod.memory_mib;
        for (card, left) in self.cards.iter_mut().enumerate() {
            if cards >> card & 1 == 1 {
                *left += shape.milli;
            }
        }
    }
}

/// Where a pod is: a place in the order of ranks, and bits of cards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    at: usize,
    cards: u64,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Fgd,
    BestFit,
}

/// A node's answer, while it has not changed.
#[derive(Clone, Copy)]
struct Answer {
    version: u32,
    score: i64,
    card: usize,
}

/// A run of one of them.
pub(crate) struct BaselinePolicy<'a> {
    trace: &'a Trace,
    order: &'a Order,
    rule: Rule,
    /// Typical pods and their probabilities.
    typical: Vec<(usize, f64)>,
    /// By place in the order of ranks, as all that follows.
    left: Vec<Left>,
    version: Vec<u32>,
    answers: Vec<Vec<Option<Answer>>>,
}

impl<'a> BaselinePolicy<'a> {
    pub(crate) fn new(trace: &'a Trace, order: &'a Order, rule: Rule) -> Self {
        let left = order.nodes.iter().map(|node| Left::of(&trace.nodes[*node]));
        Self {
            trace,
            order,
            rule,
            typical: typical(trace),
            left: left.collect(),
            version: vec![0; order.nodes.len()],
            answers: vec![vec![None; order.nodes.len()]; trace.shapes.len()],
        }
    }

    fn node(&self, at: usize) -> &Node {
        &self.trace.nodes[self.order.nodes[at]]
    }

    fn answer(&self, at: usize, shape: &Shape) -> (i64, usize) {
        let left = &self.left[at];
        let roomy = (0..left.cards.len()).filter(|card| left.cards[*card] >= shape.milli);
        match self.rule {
            Rule::Fgd if shape.cards == 1 && shape.milli < 1000 => {
                let mut best = (i64::MIN, 0);
                for card in roomy {
                    let score = self.fgd(at, shape, card);
                    if score > best.0 {
                        best = (score, card);
                    }
                }
                best
            }
            Rule::Fgd => (self.fgd(at, shape, 0), 0),
            Rule::BestFit => {
                let card = roomy.min_by_key(|card| left.cards[*card]).unwrap_or(0);
                (best_fit(left, shape, card), card)
            }
        }
    }

    #[allow(clippy::cast_possible_truncation)]
    fn fgd(&self, at: usize, shape: &Shape, card: usize) -> i64 {
        let mut after = self.left[at].clone();
        after.take(shape, card);
        let gain = self.fragments(at, &self.left[at]) - self.fragments(at, &after);
        // In this order: the last bit decides some ties.
        let sigmoid = 1.0 / (1.0 + (-gain / 1000.0).exp());
        (100.0 * sigmoid) as i64
    }

    /// What a typical pod could not use, in the mean. Summed by what the pod lacks, as the
    /// authors do: in another order other last bits decide where a score is rounded.
    #[allow(clippy::cast_precision_loss)]
    fn fragments(&self, at: usize, left: &Left) -> f64 {
        let model = &self.node(at).model;
        let idle = left.idle() as f64;
        // Both, GPU, CPU, no GPU wanted, that and CPU, the model.
        let mut sums = [0.0; 6];
        for (shape, probability) in &self.typical {
            let shape = &self.trace.shapes[*shape];
            let cpu = left.cpu >= shape.cpu;
            let roomy = left.cards.iter().filter(|left| **left >= shape.milli);
            let gpu = roomy.count() >= shape.cards;
            let lacks = match (shape.cards, shape.accepts(model), gpu, cpu) {
                (0, _, _, true) => 3,
                (0, _, _, false) => 4,
                (_, false, _, _) => 5,
                (_, _, false, false) => 0,
                (_, _, false, true) => 1,
                (_, _, true, false) => 2,
                (_, _, true, true) => {
                    let small = left.cards.iter().filter(|left| **left < shape.milli);
                    sums[1] += probability * small.map(|left| f64::from(*left)).sum::<f64>();
                    continue;
                }
            };
            sums[lacks] += probability * idle;
        }
        sums.iter().sum()
    }
}

/// The authors then stretch the scores of all nodes that fit to 0..100, which changes no placement:
/// they are whole numbers within a narrower range.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
fn best_fit(left: &Left, shape: &Shape, card: usize) -> i64 {
    let mut after = left.clone();
    after.take(shape, card);
    let (cpu, gpus) = (after.cpu as f64 / 128_000.0, after.idle() as f64 / 8000.0);
    (100.0 * (1.0 - 0.5 * cpu - 0.5 * gpus)) as i64
}

impl Policy for BaselinePolicy<'_> {
    fn place(&mut self, _arrival: usize, pod: usize) -> Option<usize> {
        let held = self.put(pod)?;
        Some(self.order.nodes[held.at])
    }
}

impl BaselinePolicy<'_> {
    /// Whether the node at that place of the order can take the pod of that row.
    pub(crate) fn fits(&self, at: usize, pod: usize) -> bool {
        let pod = &self.trace.pods[pod];
        let shape = &self.trace.shapes[pod.shape];
        let left = &self.left[at];
        left.memory_mib >= pod.memory_mib && left.runs(shape) && shape.accepts(&self.node(at).model)
    }

    /// Puts the pod of that row where the policy wants it.
    pub(crate) fn put(&mut self, row: usize) -> Option<Held> {
        let trace = self.trace;
        let pod = &trace.pods[row];
        let shape = &trace.shapes[pod.shape];
        let mut best: Option<(i64, usize, usize)> = None;
        for at in 0..self.left.len() {
            if !self.fits(at, row) {
                continue;
            }
            let version = self.version[at];
            let known = self.answers[pod.shape][at].filter(|known| known.version == version);
            let answer = known.unwrap_or_else(|| {
                let (score, card) = self.answer(at, shape);
                Answer {
                    version,
                    score,
                    card,
                }
            });
            self.answers[pod.shape][at] = Some(answer);
            if best.is_none_or(|best| answer.score > best.0) {
                best = Some((answer.score, at, answer.card));
            }
        }
        let (_, at, card) = best?;
        let cards = self.left[at].take(shape, card);
        self.left[at].memory_mib -= pod.memory_mib;
        self.version[at] += 1;
        Some(Held { at, cards })
    }

    /// The pod of that row leaves; at which place of the order.
    pub(crate) fn take_out(&mut self, row: usize, held: Held) -> usize {
        let pod = &self.trace.pods[row];
        self.left[held.at].give_back(pod, &self.trace.shapes[pod.shape], held.cards);
        self.version[held.at] += 1;
        held.at
    }
}

/// The shapes that make up 95 % of the pods of the list, and their parts of these.
#[allow(clippy::cast_precision_loss)]
fn typical(trace: &Trace) -> Vec<(usize, f64)> {
    let mut shapes: Vec<usize> = (0..trace.shapes.len()).collect();
    shapes.sort_by(|one, other| {
        let key = |index: usize| (trace.counts[index], &trace.shapes[index]);
        key(*other).cmp(&key(*one))
    });
    let all: u64 = trace.counts.iter().sum();
    let mut sum = 0;
    let mut typical = Vec::new();
    for shape in shapes {
        if sum as f64 / all as f64 >= 0.95 {
            break;
        }
        sum += trace.counts[shape];
        typical.push((shape, trace.counts[shape] as f64 / all as f64));
    }
    for (_, part) in &mut typical {
        *part /= sum as f64 / all as f64;
    }
    typical
}
