//! Queues: the whole tree.

use scheduler_core::model::ProductUnit;
use scheduler_core::units::Bound;
use scheduler_core::{ProductView, QueueView};
use serde_json::{Value, json};

/// Nano-GPU.
const GPU: f64 = 1e9;

pub(super) fn all(rows: &super::Rows) -> Value {
    json!({"rows": rows.queues.iter().map(queue).collect::<Vec<_>>()})
}

fn amount(bound: Bound) -> Value {
    match bound {
        Bound::Unlimited => Value::Null,
        Bound::Exactly(nano) => json!(gpus(u128::from(nano))),
    }
}

/// Rounded to thousandths: more is not shown.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn gpus(nano: u128) -> f64 {
    (nano as f64 / GPU * 1000.0).round() / 1000.0
}

/// Its quota is null where the queue says none, and where it is unlimited.
fn product(view: &ProductView) -> Value {
    let unit = view.row.unit;
    let amount = |bound| unit.billionths(bound).map(gpus);
    json!({
        "product": &*view.row.product,
        "unit": match unit { ProductUnit::Gpus => "GPUs", ProductUnit::Memory => "MiB" },
        "held": gpus(view.held),
        "quota": view.row.quota.and_then(amount), "limit": amount(view.row.limit),
    })
}

pub(super) fn queue(view: &QueueView) -> Value {
    json!({
        "name": view.queue.as_str(),
        "parent": view.parent.as_ref().map(scheduler_core::ids::QueueName::as_str),
        "display": view.display_name.as_deref(), "priority": view.priority,
        "quota": amount(view.quota[0]), "limit": amount(view.limit[0]),
        "fair": view.fair.map(|fair| gpus(fair[0])),
        "held": gpus(view.held[0]), "wanted": gpus(view.wanted[0]),
        "products": view.products.iter().map(product).collect::<Vec<_>>(),
        "past": gpus(u128::from(view.usage[0])),
        "holding": view.holding, "waiting": view.waiting,
    })
}
