//! What each queue holds, requests and may have, for display: the numbers of the next decision.

use crate::config::Config;
use crate::ids::QueueName;
use crate::model::{Grace, ProductQuota, Queue};
use crate::shares::Shares;
use crate::state::State;
use crate::state::keys::QueueKey;
use crate::state::task_cell::Status;
use crate::units::Bound;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One queue. Amounts are of its whole subtree and come as GPU (nano), CPU (milli), memory
/// (bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Which queue.
    pub queue: QueueName,
    /// Its parent; `None` for a top-level queue.
    pub parent: Option<QueueName>,
    /// `spec.displayName`.
    pub display_name: Option<Arc<str>>,
    /// Higher is served first.
    pub priority: i32,
    /// Guaranteed.
    pub quota: [Bound; 3],
    /// Never more than.
    pub limit: [Bound; 3],
    /// Its fair share of the current cluster, given the requests of all queues; `None` while
    pub fair: Option<[u128; 3]>,
    /// What its pods hold.
    pub held: [u128; 3],
    /// Of it, the non-preemptible part.
    pub held_non_preemptible: [u128; 3],
    /// What its waiting pods want; GPU memory counted over the smallest card there is.
    pub wanted: [u128; 3],
    /// Past use as a part of the cluster, in billionths.
    pub usage: [u64; 3],
    /// What it gets and holds of the GPU products that it names, in order of product.
    pub products: Vec<ProductView>,
    /// What it says of products and is not used: one line.
    pub bad_products: Option<Arc<str>>,
    /// Its own rule about idle pods; `None`: it has none.
    pub idle_after: Option<Grace>,
    /// Why its rule about idle pods is not used, in one line.
    pub bad_idle: Option<Arc<str>>,
    /// Pods that hold something.
    pub holding: u32,
    /// Pods that wait.
    pub waiting: u32,
}

/// One GPU product that a queue names; what is held is in billionths of the row's unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductView {
    /// What the queue says.
    pub row: ProductQuota,
    /// What pods of its subtree hold.
    pub held: u128,
    /// Of it, the non-preemptible part.
    pub held_non_preemptible: u128,
    /// Nodes that have GPUs of the product.
    pub nodes: u32,
}

fn products(state: &State, key: QueueKey, queue: &Queue, nodes: &Nodes) -> Vec<ProductView> {
    let held = state.cells.products.of.get(key);
    let view = |(at, row): (usize, &ProductQuota)| {
        let held = held
            .and_then(|all| all.get(at))
            .copied()
            .unwrap_or_default();
        ProductView {
            row: row.clone(),
            held: held.allocated,
            held_non_preemptible: held.non_preemptible,
            nodes: nodes.get(&*row.product).copied().unwrap_or(0),
        }
    };
    queue.products.iter().enumerate().map(view).collect()
}

/// How many nodes each product has.
type Nodes<'a> = BTreeMap<&'a str, u32>;

fn nodes(state: &State) -> Nodes<'_> {
    let mut nodes = Nodes::new();
    if state.has_product_quotas() {
        for product in state.nodes.values().filter_map(|row| row.product.as_ref()) {
            *nodes.entry(&product.name).or_default() += 1;
        }
    }
    nodes
}

/// Every queue that is there, in order of name.
#[allow(clippy::cast_precision_loss)] // A factor near 1.
pub(crate) fn views(state: &State, config: &Config) -> Vec<QueueView> {
    let shares = Shares::compute(state, config.k_value as f64 / 1e9);
    let mut pods: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for (key, row) in &state.tasks {
        let status = state.cell(key).status;
        let queue = row
            .job
            .and_then(|job| state.jobs.get(job)?.queue)
            .and_then(|queue| state.queues.get(queue));
        for ancestor in queue
            .map(|queue| queue.chain.as_slice())
            .unwrap_or_default()
        {
            let Some(name) = state.queues.get(*ancestor).map(|row| row.name.as_str()) else {
                continue;
            };
            let (holding, waiting) = pods.entry(name).or_default();
            *holding += u32::from(status.is_active());
            *waiting += u32::from(status == Status::Pending);
        }
    }
    let nodes = nodes(state);
    let view = |(name, key): (&QueueName, &_)| {
        let queue = state.queues.get(*key)?.queue.as_ref()?;
        let used = state.cells.queues.get(*key).copied().unwrap_or_default();
        let mut wanted = used.pending;
        wanted[0] += shares.gpu_of_memory(used.pending_mib, shares.smallest_card);
        let (holding, waiting) = pods.get(name.as_str()).copied().unwrap_or_default();
        Some(QueueView {
            queue: name.clone(),
            parent: queue.parent.clone(),
            display_name: queue.display_name.clone(),
            priority: queue.priority,
            quota: queue.bound3(|resource| resource.quota),
            limit: queue.bound3(|resource| resource.limit),
            fair: shares.of.get(*key).map(|share| share.fair),
            held: used.allocated,
            held_non_preemptible: used.non_preemptible,
            wanted,
            usage: [0, 1, 2].map(|index| queue.resource(index).usage),
            products: products(state, *key, queue, &nodes),
            bad_products: queue.bad_products.clone(),
            idle_after: queue.idle_after,
            bad_idle: queue.bad_idle.clone(),
            holding,
            waiting,
        })
    };
    state.names.queues.iter().filter_map(view).collect()
}
