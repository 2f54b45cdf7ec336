//! The core's numbers as Kubernetes' quantities.

use proto::names::resource;
use scheduler_core::units::Bound;
use serde_json::{Map, Value};

/// GPU (nano), CPU (milli), memory (bytes) as a `ResourceList`; nothing is left out, so
/// that a merge patch sets what fell to zero.
pub(super) fn list([gpu, cpu, memory]: [u128; 3]) -> Value {
    let mut list = Map::new();
    list.insert(resource::GPU.to_owned(), Value::String(gpus(gpu)));
    list.insert("cpu".to_owned(), Value::String(milli(cpu)));
    list.insert("memory".to_owned(), Value::String(memory.to_string()));
    Value::Object(list)
}

/// The same of a queue's limits or quotas; -1 is no bound, as in the spec of a queue.
pub(super) fn bounds(bounds: [Bound; 3]) -> Value {
    let exact = bounds.map(|bound| match bound {
        Bound::Exactly(amount) => u128::from(amount),
        Bound::Unlimited => 0,
    });
    let mut list = list(exact);
    for (name, bound) in [resource::GPU, "cpu", "memory"].into_iter().zip(bounds) {
        if bound == Bound::Unlimited {
            list[name] = Value::from("-1");
        }
    }
    list
}

/// Nano-GPU, rounded up to thousandths: an allocation is never shown as zero.
fn gpus(nano: u128) -> String {
    milli(nano.div_ceil(1_000_000))
}

fn milli(amount: u128) -> String {
    if amount.is_multiple_of(1000) {
        (amount / 1000).to_string()
    } else {
        format!("{amount}m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_are_written_as_kubernetes_writes_them() {
        assert_eq!(
            list([1_500_000_000, 250, 1024]),
            json!({"nvidia.com/gpu": "1500m", "cpu": "250m", "memory": "1024"})
        );
        assert_eq!(
            list([2_000_000_000, 3000, 0]),
            json!({"nvidia.com/gpu": "2", "cpu": "3", "memory": "0"})
        );
        assert_eq!(list([1, 0, 0])["nvidia.com/gpu"], "1m");
        let half = Bound::Exactly(500_000_000);
        assert_eq!(
            bounds([half, Bound::Exactly(0), Bound::Unlimited]),
            json!({"nvidia.com/gpu": "500m", "cpu": "0", "memory": "-1"})
        );
    }
}
