//! A lower bound of what stays unallocated, for every placement and any number of moves.
//!
//! Only cards count here: every pod that wants several is so many pods that want one, and
//! CPU, memory, nodes and models are left aside, so that the figure is too low where they
//! matter, and never too high. Each size of pod has a price. No filling of a card is worth
//! more than the dearest, so that all cards together are not worth more than that times
//! their number; what a pod is larger than its price comes on top. Every choice of prices
//! gives a bound on what can be allocated (it is the dual of the linear program over all
//! fillings of cards); the best of many is taken.

use crate::trace::{Order, Trace};
use std::collections::BTreeMap;

/// Thousandths of a card.
const CARD: usize = 1000;
const ROUNDS: u32 = 20_000;

/// Pods of one size.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    arrived: f64,
    placed: f64,
}

/// The pods that arrived, by what they want of a card, and how many cards there are.
#[derive(Debug)]
pub(crate) struct Floor {
    cards: f64,
    sizes: BTreeMap<usize, Size>,
}

#[allow(clippy::cast_precision_loss)] // Counts of pods, and thousandths.
impl Floor {
    /// After these arrivals; `placed` has the pods with a place.
    pub(crate) fn new(trace: &Trace, order: &Order, placed: &[Option<usize>]) -> Self {
        let mut sizes: BTreeMap<usize, Size> = BTreeMap::new();
        for (row, node) in order.arrivals.iter().zip(placed) {
            let shape = &trace.shapes[trace.pods[*row].shape];
            let size = sizes.entry(shape.milli as usize).or_default();
            let cards = shape.cards as f64;
            size.arrived += cards;
            size.placed += if node.is_some() { cards } else { 0.0 };
        }
        sizes.remove(&0);
        Self {
            cards: trace.capacity() as f64 / CARD as f64,
            sizes,
        }
    }

    /// Of the pods of these rows, with none placed.
    pub(crate) fn of(trace: &Trace, rows: impl Iterator<Item = usize>) -> Self {
        let mut sizes: BTreeMap<usize, Size> = BTreeMap::new();
        for row in rows {
            let shape = &trace.shapes[trace.pods[row].shape];
            let size = sizes.entry(shape.milli as usize).or_default();
            size.arrived += shape.cards as f64;
        }
        sizes.remove(&0);
        Self {
            cards: trace.capacity() as f64 / CARD as f64,
            sizes,
        }
    }

    /// Per cent of all GPUs, if the pods may be chosen from all that have arrived.
    pub(crate) fn of_anybody(&self) -> f64 {
        self.least(|_| 0.0)
    }

    /// The same, if no placed pod is evicted permanently.
    pub(crate) fn of_staying(&self) -> f64 {
        self.least(|size| size.placed)
    }

    /// By the best prices that are found.
    fn least(&self, stay: impl Fn(&Size) -> f64) -> f64 {
        let wants: Vec<(usize, f64)> = self
            .sizes
            .keys()
            .map(|size| (*size, *size as f64 / CARD as f64))
            .collect();
        let counts: Vec<(f64, f64)> = self
            .sizes
            .values()
            .map(|size| (stay(size), size.arrived))
            .collect();
        let mut prices: Vec<f64> = wants.iter().map(|(_, part)| *part).collect();
        let mut best = f64::INFINITY;
        for round in 0..ROUNDS {
            let (dearest, filling) = dearest(&wants, &prices);
            let mut bound = self.cards * dearest;
            let mut slope = Vec::with_capacity(prices.len());
            for (index, (_, part)) in wants.iter().enumerate() {
                let (least, most) = counts[index];
                let beyond = part - prices[index];
                let count = if beyond > 0.0 { most } else { least };
                bound += count * beyond;
                slope.push(self.cards * filling[index] - count);
            }
            best = best.min(bound);
            let steep = slope.iter().map(|one| one * one).sum::<f64>().sqrt();
            if steep == 0.0 {
                break;
            }
            // Steps from a tenth of a card down to a millionth.
            let step = 0.1 * 1e-5_f64.powf(f64::from(round) / f64::from(ROUNDS));
            for (price, slope) in prices.iter_mut().zip(slope) {
                *price = (*price - step * slope / steep).max(0.0);
            }
        }
        (1.0 - best / self.cards) * 100.0
    }
}

/// The dearest filling of a card: its price, and how many of each size are in it.
fn dearest(wants: &[(usize, f64)], prices: &[f64]) -> (f64, Vec<f64>) {
    let mut worth = [0.0_f64; CARD + 1];
    let mut last = [usize::MAX; CARD + 1];
    for room in 1..=CARD {
        worth[room] = worth[room - 1];
        for (index, (size, _)) in wants.iter().enumerate() {
            if *size <= room && worth[room - size] + prices[index] > worth[room] {
                worth[room] = worth[room - size] + prices[index];
                last[room] = index;
            }
        }
    }
    let mut filling = vec![0.0; wants.len()];
    let mut room = CARD;
    while room > 0 {
        match last[room] {
            usize::MAX => room -= 1,
            index => {
                filling[index] += 1.0;
                room -= wants[index].0;
            }
        }
    }
    (worth[CARD], filling)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(cards: f64, sizes: &[(usize, f64, f64)]) -> Floor {
        let sizes = sizes.iter().map(|(size, arrived, placed)| {
            let size_of = Size {
                arrived: *arrived,
                placed: *placed,
            };
            (*size, size_of)
        });
        Floor {
            cards,
            sizes: sizes.collect(),
        }
    }

    fn is_near(found: f64, expected: f64) {
        assert!(
            found <= expected + 1e-9 && found > expected - 0.1,
            "{found} is not just below {expected}"
        );
    }

    #[test]
    fn what_fills_cards_leaves_nothing() {
        is_near(floor(10.0, &[(1000, 10.0, 0.0)]).of_anybody(), 0.0);
        is_near(
            floor(10.0, &[(400, 10.0, 0.0), (600, 10.0, 0.0)]).of_anybody(),
            0.0,
        );
    }

    #[test]
    fn what_nothing_goes_beside_leaves_its_rest() {
        // Two fit on no card together: ten of them leave 19 per cent.
        let large = floor(10.0, &[(810, 20.0, 10.0)]);
        is_near(large.of_anybody(), 19.0);
        // If whole ones can be chosen nothing need stay; if the large ones stay, it does.
        let mixed = floor(10.0, &[(810, 5.0, 5.0), (1000, 10.0, 0.0)]);
        is_near(mixed.of_anybody(), 0.0);
        is_near(mixed.of_staying(), 9.5);
        let even = floor(81.0, &[(810, 100.0, 0.0)]);
        is_near(even.of_anybody(), 19.0);
    }

    #[test]
    fn too_little_leaves_the_rest() {
        is_near(floor(10.0, &[(500, 6.0, 6.0)]).of_anybody(), 70.0);
    }
}
