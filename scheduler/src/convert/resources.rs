//! What a pod takes of its node, by the kubelet's formula.
//!
//! In: a pod's spec. Out: CPU, memory and everything else in whole numbers.
//! Source: `k8s.io/component-helpers/resource/helpers.go`, `PodRequests`: containers and
//! sidecars add up, an init container counts with the sidecars that were started before
//! it, requests of the pod as a whole win, overhead comes on top.

use api::quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::names::resource;
use scheduler_core::ids::ResourceName;
use scheduler_core::units::{Bytes, CpuMilli};
use std::collections::BTreeMap;

type Quantities = BTreeMap<String, Quantity>;
/// Amounts by resource: thousandths for CPU, whole numbers for the rest.
type Amounts = BTreeMap<String, u64>;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
/// What is decided by cards and grants, not by counting.
const BY_CARD: [&str; 3] = [resource::GPU, resource::MEMORY_MIB, resource::MILLI];

/// What one pod takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// CPU.
    pub(super) cpu: CpuMilli,
    /// Memory.
    pub(super) memory: Bytes,
    /// Everything else but GPUs and our opaque amounts.
    pub(super) extended: BTreeMap<ResourceName, u64>,
}

/// By the kubelet's formula. Amounts that are no quantities count as nothing: the API
/// server refuses such pods.
pub(super) fn of(spec: &PodSpec) -> Request {
    let mut sum = Amounts::new();
    for container in &spec.containers {
        add(&mut sum, &requests(container));
    }
    let mut sidecars = Amounts::new();
    let mut highest = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let mut alone = requests(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sum, &alone);
            add(&mut sidecars, &alone);
            raise(&mut highest, &sidecars);
        } else {
            add(&mut alone, &sidecars);
            raise(&mut highest, &alone);
        }
    }
    raise(&mut sum, &highest);
    let whole = spec
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    for (name, amount) in whole.into_iter().flatten() {
        if name == CPU || name == MEMORY || name.starts_with("hugepages-") {
            sum.insert(name.clone(), amount_of(name, amount));
        }
    }
    if let Some(overhead) = &spec.overhead {
        add(&mut sum, &amounts(overhead));
    }
    Request {
        cpu: CpuMilli(sum.remove(CPU).unwrap_or(0)),
        memory: Bytes(sum.remove(MEMORY).unwrap_or(0)),
        extended: sum
            .into_iter()
            .filter(|(name, amount)| *amount > 0 && !BY_CARD.contains(&name.as_str()))
            .map(|(name, amount)| (ResourceName::from(name), amount))
            .collect(),
    }
}

fn requests(container: &Container) -> Amounts {
    container
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref())
        .map(amounts)
        .unwrap_or_default()
}

fn amounts(quantities: &Quantities) -> Amounts {
    quantities
        .iter()
        .map(|(name, quantity)| (name.clone(), amount_of(name, quantity)))
        .collect()
}

fn amount_of(name: &str, quantity: &Quantity) -> u64 {
    let amount = if name == CPU {
        quantity::milli_up(quantity)
    } else {
        quantity::up(quantity)
    };
    amount.unwrap_or(0)
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let value = to.entry(name.clone()).or_default();
        *value = (*value).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of_json(spec: serde_json::Value) -> Request {
        of(&serde_json::from_value(spec).unwrap())
    }

    fn container(name: &str, cpu: &str) -> serde_json::Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn containers_add_up_and_a_larger_init_container_wins() {
        let spec = json!({
            "containers": [container("a", "1"), container("b", "500m")],
            "initContainers": [container("i", "2")],
        });
        assert_eq!(of_json(spec).cpu, CpuMilli(2000));
        let spec = json!({
            "containers": [container("a", "1"), container("b", "500m")],
            "initContainers": [container("i", "1")],
        });
        assert_eq!(of_json(spec).cpu, CpuMilli(1500));
    }

    #[test]
    fn an_init_container_counts_with_the_sidecars_before_it_only() {
        let mut sidecar = container("s", "300m");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "containers": [container("a", "1")],
            "initContainers": [container("early", "1200m"), sidecar, container("late", "1100m")],
        });
        assert_eq!(of_json(spec).cpu, CpuMilli(1400));
    }

    #[test]
    fn the_pods_own_request_and_its_overhead_count() {
        let spec = json!({
            "containers": [container("a", "1")],
            "resources": {"requests": {"cpu": "3"}},
            "overhead": {"cpu": "250m", "memory": "1Mi"},
        });
        let request = of_json(spec);
        assert_eq!(
            (request.cpu, request.memory),
            (CpuMilli(3250), Bytes(1 << 20))
        );
    }

    #[test]
    fn tokens_count_but_gpus_and_opaque_amounts_do_not() {
        let spec = json!({"containers": [{"name": "a", "resources": {"requests": {
            "aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "2000",
            "nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "2", "ephemeral-storage": "1Gi",
        }}}]});
        let names: Vec<_> = of_json(spec)
            .extended
            .into_iter()
            .map(|(name, amount)| (name.to_string(), amount))
            .collect();
        assert_eq!(
            names,
            [
                ("aliquot.dev/gpu-share".to_owned(), 1),
                ("ephemeral-storage".to_owned(), 1 << 30),
                ("nvidia.com/mig-1g.10gb".to_owned(), 2),
            ]
        );
    }
}
