//! Keeps the sums of [`Products`](super::products::Products) in line with pods, nodes and queues.

use crate::model::{ProductUnit, Queue};
use crate::state::State;
use crate::state::cell::Cell;
use crate::state::keys::{NodeKey, QueueKey, TaskKey};
use crate::state::products::{Product, ProductAmount, ProductUse, ProductUses};
use crate::state::queue_use::Charged;
use crate::state::way::Way;
use crate::units::NanoGpu;
use std::sync::Arc;

impl State {
    /// Some queue names a product.
    pub(crate) fn has_product_quotas(&self) -> bool {
        !self.cells.products.of.is_empty()
    }

    /// The product of a node's GPUs. `None`: it is not known, or there are none.
    pub(crate) fn product_of(&self, node: NodeKey) -> Option<&Product> {
        self.nodes.get(node)?.product.as_ref()
    }

    /// Where a node's product is among those that a queue names, and in what the queue counts it.
    pub(crate) fn product_at(
        &self,
        queue: QueueKey,
        product: &str,
    ) -> Option<(usize, ProductUnit)> {
        self.queues.get(queue)?.queue.as_ref()?.product_at(product)
    }

    /// The sums of products are void.
    pub(crate) fn products_changed(&mut self) {
        self.cells.products.dirty = true;
        self.changes.capacity_grew();
    }

    /// A node's labels or cards have changed.
    pub(crate) fn refresh_product(&mut self, key: NodeKey) {
        let product = self.nodes.get(key).and_then(|row| {
            let node = row.node.as_ref()?;
            let cards = row.cards.iter().filter_map(|card| self.cards.get(*card));
            let mut cards = cards.filter_map(|row| row.card.as_ref());
            let card = cards.find(|card| node.managed && !card.product.is_empty());
            let name = match node.labelled_product() {
                Some(product) => Arc::from(product),
                None => Arc::from(card?.product.replace(' ', "-")),
            };
            let memory = card.map(|card| card.total);
            let memory = memory.or_else(|| node.labelled_memory());
            let memory = memory.unwrap_or_default();
            Some(Product { name, memory })
        });
        let Some(row) = self.nodes.get_mut(key) else {
            return;
        };
        if row.product == product {
            return;
        }
        row.product = product;
        let is_in_use = self
            .index
            .on_node
            .get(key)
            .is_some_and(|pods| !pods.is_empty());
        if is_in_use && self.has_product_quotas() {
            self.products_changed();
        }
    }

    /// What a pod holds that counts for so much of the product. Its memory is that part of the GPU,
    /// and of slices what their profiles say.
    pub(crate) fn product_amount(
        &self,
        task: TaskKey,
        product: &Product,
        nano: u128,
    ) -> ProductAmount {
        let spec = self
            .tasks
            .get(task)
            .and_then(|row| self.specs.get(row.spec));
        let (mig_nano, mig_mib) = spec.map_or((0, 0), |spec| (spec.mig_nano, spec.mig_mib));
        ProductAmount {
            nano,
            nano_mib: nano.saturating_sub(mig_nano) * u128::from(product.memory.0)
                + mig_mib * u128::from(NanoGpu::ONE.0),
        }
    }

    /// Moves what a pod holds on that node, in those queues.
    pub(super) fn move_products(
        &mut self,
        task: TaskKey,
        node: NodeKey,
        (nano, counts): (u128, Charged),
        chain: &[QueueKey],
        way: Way,
    ) {
        if nano == 0 || self.cells.products.dirty {
            return;
        }
        let Some(product) = self.product_of(node).cloned() else {
            return;
        };
        let amount = self.product_amount(task, &product, nano);
        for queue in chain {
            let Some((at, unit)) = self.product_at(*queue, &product.name) else {
                continue;
            };
            let amount = amount.billionths(unit);
            let used = self
                .cells
                .products
                .of
                .get(*queue)
                .and_then(|all| all.get(at));
            let Some(mut used) = used.copied() else {
                continue;
            };
            if counts != Charged::Fixed {
                way.add(&mut used.allocated, amount);
            }
            if counts != Charged::Allocated {
                way.add(&mut used.non_preemptible, amount);
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
        for (key, cell) in &self.cells.tasks {
            let Some(node) = cell.node.filter(|_| cell.status.is_allocated()) else {
                continue;
            };
            let Some(product) = self.product_of(node) else {
                continue;
            };
            let nano = self.charge(key, cell.holds())[0];
            let amount = self.product_amount(key, product, nano);
            let Some(row) = self.tasks.get(key) else {
                continue;
            };
            for queue in self.queues_of(key) {
                let Some((at, unit)) = self.product_at(*queue, &product.name) else {
                    continue;
                };
                if let Some(used) = of.get_mut(*queue).and_then(|all| all.get_mut(at)) {
                    let amount = amount.billionths(unit);
                    used.allocated += amount;
                    if self.counts_as_fixed(key, row) {
                        used.non_preemptible += amount;
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
        if self.cells.products.dirty {
            self.cells.products.of = self.sum_products();
            self.cells.products.dirty = false;
            self.changes.settled += 1;
        }
    }
}
