//! A queue → its line.

use super::write::Text;
use crate::model::{ProductUnit, Queue, QueueResource};
use crate::units::Bound;
use std::fmt::Write as _;

fn bound(bound: Bound) -> String {
    match bound {
        Bound::Unlimited => "-1".to_owned(),
        Bound::Exactly(amount) => amount.to_string(),
    }
}

impl Text {
    pub(super) fn queue(&mut self, queue: &Queue) {
        self.start("queue", &queue.name);
        self.some("parent", queue.parent.as_ref());
        self.some("display", queue.display_name.as_ref());
        self.unless("priority", queue.priority, 100);
        self.unless("created", queue.created.0, 0);
        let free = Queue::unlimited("");
        for (key, resource, default) in [
            ("gpu", queue.gpu, free.gpu),
            ("cpu", queue.cpu, free.cpu),
            ("memory", queue.memory, free.memory),
        ] {
            if resource != default {
                self.resource(key, resource);
            }
        }
        for row in &queue.products {
            let quota = row.quota.map(bound).unwrap_or_default();
            let key = match row.unit {
                ProductUnit::Gpus => format!("product.{}", row.product),
                ProductUnit::Memory => format!("product-mib.{}", row.product),
            };
            self.pair(&key, format!("{quota}/{}", bound(row.limit)));
        }
        self.some("bad-products", queue.bad_products.as_ref());
        self.some(
            "preempt-min-runtime",
            queue.preempt_min_runtime.map(|time| time.0),
        );
        self.some(
            "reclaim-min-runtime",
            queue.reclaim_min_runtime.map(|time| time.0),
        );
        self.end();
    }

    fn resource(&mut self, key: &str, resource: QueueResource) {
        let mut text = format!(
            "{}/{}/{}",
            bound(resource.quota),
            bound(resource.limit),
            resource.weight.0
        );
        if resource.usage != 0 {
            let _ = write!(text, "/{}", resource.usage);
        }
        self.pair(key, text);
    }
}
