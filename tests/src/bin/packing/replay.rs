//! One run under the paper's rules: pods arrive one by one, none leaves, and a pod that fits no
//! node is rejected permanently. After each arrival it is noted how much has arrived and how much
//! is allocated; a column is the mean over the arrivals that round to it.

use crate::trace::{Order, Trace};
use std::collections::BTreeMap;

/// Where a policy puts pods.
pub(crate) trait Policy {
    /// Puts the pod of that row of the list somewhere; the node's index, or none.
    fn place(&mut self, arrival: usize, pod: usize) -> Option<usize>;

    /// How many pods were moved, and thousandths of GPUs of those that found no place again.
    fn moved(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Run {
    /// The node of each arrival.
    pub placed: Vec<Option<usize>>,
    /// Allocated, per cent of all GPUs, by per cent arrived.
    pub columns: BTreeMap<u32, f64>,
    /// How many arrivals there were when that many per cent had arrived last, and pods
    /// moved by then.
    pub until: BTreeMap<u32, (usize, u64)>,
    /// Thousandths of GPUs of pods that were moved and found no place again.
    pub lost: u64,
}

impl Run {
    /// Per cent of the GPUs that are unallocated when this percentage has arrived.
    pub(crate) fn unallocated(&self, arrived: u32) -> Option<f64> {
        Some(100.0 - self.columns.get(&arrived)?)
    }
}

/// Replays one order.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
pub(crate) fn run(trace: &Trace, order: &Order, policy: &mut dyn Policy) -> Run {
    let capacity = trace.capacity() as f64;
    let (mut arrived, mut allocated) = (0, 0);
    let mut sums: BTreeMap<u32, (f64, u32)> = BTreeMap::new();
    let mut placed = Vec::with_capacity(order.arrivals.len());
    let mut until = BTreeMap::new();
    for (arrival, pod) in order.arrivals.iter().enumerate() {
        let wants = trace.shapes[trace.pods[*pod].shape].gpus();
        arrived += wants;
        let node = policy.place(arrival, *pod);
        if node.is_some() {
            allocated += wants;
        }
        placed.push(node);
        let column = (arrived as f64 / capacity * 100.0).round_ties_even() as u32;
        let sum = sums.entry(column).or_default();
        let (_, lost) = policy.moved();
        sum.0 += (allocated - lost) as f64 / capacity * 100.0;
        sum.1 += 1;
        until.insert(column, (placed.len(), policy.moved().0));
    }
    Run {
        placed,
        until,
        lost: policy.moved().1,
        columns: sums
            .into_iter()
            .map(|(column, (sum, count))| (column, sum / f64::from(count)))
            .collect(),
    }
}
