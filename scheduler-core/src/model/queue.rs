//! Queues and their resources.

use super::Grace;
use crate::ids::QueueName;
use crate::units::{Bound, Duration, NanoGpu, Time};
use std::sync::Arc;

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// Its parent; `None` for a top-level queue.
    pub parent: Option<QueueName>,
    /// `spec.displayName`, used in messages in place of the name.
    pub display_name: Option<Arc<str>>,
    /// 100 where unset.
    pub priority: i32,
    /// Age breaks ties.
    pub created: Time,
    /// In nano-GPU.
    pub gpu: QueueResource,
    /// In millicores.
    pub cpu: QueueResource,
    /// In bytes.
    pub memory: QueueResource,
    /// What it gets of single GPU products, in order of product, each once. Checked beside `gpu`;
    /// products that are not named have no bounds of their own.
    pub products: Vec<ProductQuota>,
    /// What of it was said and is not used, and why: one line.
    pub bad_products: Option<Arc<str>>,
    /// Inherited where `None`.
    pub preempt_min_runtime: Option<Duration>,
    /// Inherited where `None`.
    pub reclaim_min_runtime: Option<Duration>,
    /// The time without work after which its pods give way to pods that wait. Inherited where `None`.
    pub idle_after: Option<Grace>,
    /// Pods of this priority or a higher one never give way. It belongs to `idle_after` and is ignored
    /// without it.
    pub idle_exempt_from: Option<i32>,
    /// Why its annotations about idle pods are not used, in one line. `None`: they are, or it has none.
    pub bad_idle: Option<Arc<str>>,
}

impl Queue {
    /// Levels of a tree of queues. A pod in a queue below the last one is not placed: each
    /// placement counts in every queue above it, so one tree could slow down all others.
    pub const MAX_DEPTH: usize = 64;

    /// A queue of that name without any bound.
    pub fn unlimited(name: &str) -> Self {
        let resource = QueueResource {
            quota: Bound::Unlimited,
            limit: Bound::Unlimited,
            weight: Weight::ONE,
            usage: 0,
        };
        Self {
            name: QueueName::new(name),
            parent: None,
            display_name: None,
            priority: 100,
            created: Time(0),
            gpu: resource,
            cpu: resource,
            memory: resource,
            products: Vec::new(),
            bad_products: None,
            preempt_min_runtime: None,
            reclaim_min_runtime: None,
            idle_after: None,
            idle_exempt_from: None,
            bad_idle: None,
        }
    }
}

impl Queue {
    /// GPU, CPU, memory.
    pub(crate) fn resource(&self, index: usize) -> QueueResource {
        match index {
            0 => self.gpu,
            1 => self.cpu,
            _ => self.memory,
        }
    }

    /// Where a product is among [`Self::products`], and its unit. `None`: it is not named.
    pub(crate) fn product_at(&self, product: &str) -> Option<(usize, ProductUnit)> {
        let mut products = self.products.iter().enumerate();
        let (at, row) = products.find(|(_, row)| *row.product == *product)?;
        Some((at, row.unit))
    }

    /// One bound of each resource.
    pub(crate) fn bound3(&self, of: fn(QueueResource) -> Bound) -> [Bound; 3] {
        [of(self.gpu), of(self.cpu), of(self.memory)]
    }
}

/// In what the quota and the limit of a product are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProductUnit {
    /// Nano-GPU.
    #[default]
    Gpus,
    /// MiB. A whole GPU counts with all of its memory, a part of one with that part of it.
    Memory,
}

impl ProductUnit {
    /// A bound in billionths of a GPU or of a MiB, as what queues hold is counted. `None`:
    /// unlimited.
    pub fn billionths(self, bound: Bound) -> Option<u128> {
        match (self, bound) {
            (_, Bound::Unlimited) => None,
            (Self::Gpus, Bound::Exactly(nano)) => Some(u128::from(nano)),
            (Self::Memory, Bound::Exactly(mib)) => {
                Some(u128::from(mib) * u128::from(NanoGpu::ONE.0))
            }
        }
    }
}

/// What a queue and the queues below it get of one GPU product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductQuota {
    /// The product of nodes: their label [`super::Node::PRODUCT_LABEL`], else the name of their
    /// cards with `-` for spaces.
    pub product: Arc<str>,
    /// Of both bounds.
    pub unit: ProductUnit,
    /// Guaranteed. `None`: nothing is said, so that its GPUs are guaranteed by the queue's
    /// [`Queue::gpu`] alone.
    pub quota: Option<Bound>,
    /// Never more than.
    pub limit: Bound,
}

/// What a queue gets of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueResource {
    /// Guaranteed.
    pub quota: Bound,
    /// Never more than.
    pub limit: Bound,
    /// In the division of the surplus.
    pub weight: Weight,
    /// Past use as a part of the cluster, in billionths, for time-aware fairness.
    pub usage: u64,
}

/// A weight in millionths. Negative and unreadable weights count as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(pub u64);

impl Weight {
    /// 1.
    pub const ONE: Self = Self(1_000_000);
}
