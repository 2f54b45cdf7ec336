//! What queues hold of single GPU products: sums beside [`super::cell::QueueUse`], for queues that
//! name products and for these products alone.
//!
//! A node has one product. Whole GPUs of a node are only counted during a decision, so that what a
//! pod holds there counts for the node's product: whole GPUs, shares, slices and devices of claims
//! alike. Where no queue names a product, nothing is kept and nothing is asked.

use super::State;
use super::cell::Cell;
use super::rows::{NodeKey, QueueKey, TaskKey};
use super::transition::Way;
use crate::model::Queue;
use slotmap::SecondaryMap;
use std::sync::Arc;

/// What a queue and the queues below it hold of one product: nano-GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProductUse {
    pub allocated: u128,
    pub non_preemptible: u128,
}

/// By queue, in the order of [`Queue::products`]. Queues that name none have no entry.
pub(crate) type ProductUses = SecondaryMap<QueueKey, Vec<ProductUse>>;

/// The sums, and when they are void.
#[derive(Debug, Default)]
pub(crate) struct Products {
    pub of: ProductUses,
    /// A queue names others, or a node with pods has another product: the sums are rebuilt before
    /// they are next needed.
    pub dirty: bool,
    /// How often they were.
    pub version: u64,
}

impl State {
    /// Some queue names a product.
    pub(crate) fn has_product_quotas(&self) -> bool {
        !self.products.of.is_empty()
    }

    /// The product of a node's GPUs. `None`: it is not known, or there are none.
    pub(crate) fn product_of(&self, node: NodeKey) -> Option<&Arc<str>> {
        self.nodes.get(node)?.product.as_ref()
    }

    /// Where a node's product is among those that a queue names.
    pub(crate) fn product_at(&self, queue: QueueKey, product: &str) -> Option<usize> {
        self.queues.get(queue)?.queue.as_ref()?.product_at(product)
    }

    /// The sums of products are void.
    pub(crate) fn products_changed(&mut self) {
        self.products.dirty = true;
        self.products.version += 1;
        self.capacity_grew();
    }

    /// A node's labels or cards have changed.
    pub(crate) fn refresh_product(&mut self, key: NodeKey) {
        let product = self.nodes.get(key).and_then(|row| {
            let node = row.node.as_ref()?;
            if let Some(product) = node.labelled_product() {
                return Some(Arc::from(product));
            }
            let cards = row.cards.iter().filter_map(|card| self.cards.get(*card));
            let mut cards = cards.filter_map(|row| row.card.as_ref());
            let card = cards.find(|card| !card.product.is_empty());
            card.filter(|_| node.managed)
                .map(|card| Arc::from(card.product.replace(' ', "-")))
        });
        let Some(row) = self.nodes.get_mut(key) else {
            return;
        };
        if row.product == product {
            return;
        }
        row.product = product;
        let is_in_use = self.on_node.get(key).is_some_and(|pods| !pods.is_empty());
        if is_in_use && self.has_product_quotas() {
            self.products_changed();
        }
    }

    /// Moves what a pod holds on that node, in those queues.
    pub(super) fn move_products(
        &mut self,
        node: NodeKey,
        (nano, preemptible): (u128, bool),
        chain: &[QueueKey],
        way: Way,
    ) {
        if nano == 0 || self.products.dirty {
            return;
        }
        let Some(product) = self.product_of(node).map(Arc::clone) else {
            return;
        };
        for queue in chain {
            let Some(at) = self.product_at(*queue, &product) else {
                continue;
            };
            let used = self.products.of.get(*queue).and_then(|all| all.get(at));
            let Some(mut used) = used.copied() else {
                continue;
            };
            way.add(&mut used.allocated, nano);
            if !preemptible {
                way.add(&mut used.non_preemptible, nano);
            }
            self.set(Cell::Product(*queue, at, used));
        }
    }

    /// What the pods add up to.
    pub(crate) fn sum_products(&self) -> ProductUses {
        let mut of = ProductUses::new();
        let named = |queue: &Queue| queue.products.len();
        for (key, row) in &self.queues {
            let named = row.queue.as_ref().map_or(0, named);
            if named > 0 {
                of.insert(key, vec![ProductUse::default(); named]);
            }
        }
        if of.is_empty() {
            return of;
        }
        for (key, cell) in self.task_cells.iter() {
            let Some(node) = cell.node.filter(|_| cell.status.is_allocated()) else {
                continue;
            };
            let Some(product) = self.product_of(node) else {
                continue;
            };
            let nano = self.charge(key, cell.holds())[0];
            let Some(row) = self.tasks.get(key) else {
                continue;
            };
            for queue in self.queues_of(key) {
                let at = self.product_at(*queue, product);
                let used = of.get_mut(*queue).zip(at);
                if let Some(used) = used.and_then(|(all, at)| all.get_mut(at)) {
                    used.allocated += nano;
                    if !self.preemptible(row) {
                        used.non_preemptible += nano;
                    }
                }
            }
        }
        of
    }

    /// A pod's queue and those above it.
    pub(crate) fn queues_of(&self, task: TaskKey) -> &[QueueKey] {
        let job = self.tasks.get(task).and_then(|row| row.job);
        let queue = job.and_then(|job| self.jobs.get(job)?.queue);
        let row = queue.and_then(|queue| self.queues.get(queue));
        row.map_or(&[], |row| row.chain.as_slice())
    }

    /// Rebuilds the sums if they are void. Not inside a trial, and with chains up to date.
    pub(super) fn refresh_products(&mut self) {
        if self.products.dirty {
            self.products.of = self.sum_products();
            self.products.dirty = false;
            self.settled += 1;
        }
    }
}
