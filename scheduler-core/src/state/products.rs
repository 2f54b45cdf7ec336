//! What queues hold of single GPU products: sums beside [`super::queue_use::QueueUse`], for queues that
//! name products and for these products alone.
//!
//! A node has one product. Whole GPUs of a node are only counted during a decision, so that what a
//! pod holds there counts for the node's product: whole GPUs, shares, slices and devices of claims
//! alike. Each queue counts a product in its own unit, GPUs or MiB of the GPUs of the node. Where no
//! queue names a product, nothing is kept and nothing is asked.

use crate::model::ProductUnit;
use crate::state::keys::QueueKey;
use crate::units::Mib;
use slotmap::SecondaryMap;
use std::ops::AddAssign;
use std::sync::Arc;

/// The GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub name: Arc<str>,
    /// Memory of one of them; 0: not known.
    pub memory: Mib,
}

/// An amount of one product in both units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProductAmount {
    /// Billionths of a GPU.
    pub nano: u128,
    /// Billionths of a MiB.
    pub nano_mib: u128,
}

impl ProductAmount {
    pub(crate) fn billionths(self, unit: ProductUnit) -> u128 {
        match unit {
            ProductUnit::Gpus => self.nano,
            ProductUnit::Memory => self.nano_mib,
        }
    }
}

impl AddAssign for ProductAmount {
    fn add_assign(&mut self, other: Self) {
        self.nano += other.nano;
        self.nano_mib += other.nano_mib;
    }
}

/// What a queue and the queues below it hold of one product: billionths of its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProductUse {
    pub allocated: u128,
    pub non_preemptible: u128,
}

/// By queue, in the order of [`crate::model::Queue::products`]. Queues that name none have no entry.
pub(crate) type ProductUses = SecondaryMap<QueueKey, Vec<ProductUse>>;

/// The sums, and when they are void.
#[derive(Clone, Debug, Default)]
pub(crate) struct Products {
    pub of: ProductUses,
    /// A queue names others, or a node with pods has another product: the sums are rebuilt before
    /// they are next needed.
    pub dirty: bool,
}
