//! Admission of a pod on its node, in the real one's order: devices first, then what the
//! node has. A refusal here is final: the pod is Failed.

use super::node::Allocatable;
use super::plugins::Plugins;
use super::table::is_sidecar;
use api::quantity;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a pod is Failed before it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) reason: String,
    pub(super) message: String,
}

/// Allocates a pod's devices and checks the rest.
pub(super) async fn admit(
    plugins: &Plugins,
    pod: &Pod,
    active: &[Arc<Pod>],
    allocatable: &Allocatable,
) -> Result<(), Rejection> {
    let uid = pod.uid().unwrap_or_default();
    let uids: BTreeSet<String> = active.iter().filter_map(|pod| pod.uid()).collect();
    let Some(spec) = &pod.spec else { return Ok(()) };
    let mut reusable: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let all = inits
        .iter()
        .map(|container| (container, !is_sidecar(container)))
        .chain(spec.containers.iter().map(|container| (container, false)));
    for (container, passing) in all {
        plugins
            .allocate(
                &uid,
                &container.name,
                &device_limits(container),
                &reusable,
                &uids,
            )
            .await
            .map_err(|why| Rejection {
                reason: "UnexpectedAdmissionError".into(),
                message: format!(
                    "Pod was rejected: Allocate failed due to {why}, which is unexpected"
                ),
            })?;
        for (resource, ids) in plugins.held_by(&uid, &container.name) {
            let left = reusable.entry(resource).or_default();
            if passing {
                left.extend(ids);
            } else {
                left.retain(|id| !ids.contains(id));
            }
        }
    }
    fits(pod, active, allocatable)
}

/// Extended resources in a container's limits, whole numbers above zero.
pub(super) fn device_limits(container: &Container) -> BTreeMap<String, usize> {
    container
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref())
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.contains('/'))
        .filter_map(|(name, amount)| {
            Some((
                name.clone(),
                usize::try_from(quantity::whole(amount)?).ok()?,
            ))
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// The scheduler's own check, made again: what the node has not is `OutOf<resource>`.
/// Resources that the node does not know at all are skipped, as in the real one.
fn fits(pod: &Pod, active: &[Arc<Pod>], allocatable: &Allocatable) -> Result<(), Rejection> {
    let own = pod.uid();
    for (resource, asked) in requests(pod) {
        let Some(capacity) = allocatable
            .get(&resource)
            .and_then(|text| milli(&Quantity(text.clone())))
        else {
            continue;
        };
        let used: i128 = active
            .iter()
            .filter(|other| other.uid() != own)
            .filter_map(|other| requests(other).get(&resource).copied())
            .sum();
        if asked > 0 && used + asked > capacity {
            let shown = |amount: i128| {
                if resource == "cpu" {
                    amount
                } else {
                    amount / 1000
                }
            };
            return Err(Rejection {
                reason: format!("OutOf{resource}"),
                message: format!(
                    "Pod was rejected: Node didn't have enough resource: {resource}, requested: {}, used: {}, capacity: {}",
                    shown(asked),
                    shown(used),
                    shown(capacity)
                ),
            });
        }
    }
    Ok(())
}

/// Thousandths: the larger of the app containers' sum and the largest init container.
fn requests(pod: &Pod) -> BTreeMap<String, i128> {
    let mut sums: BTreeMap<String, i128> = BTreeMap::new();
    let Some(spec) = &pod.spec else { return sums };
    let of = |container: &Container| -> Vec<(String, i128)> {
        let listed = container
            .resources
            .as_ref()
            .and_then(|r| r.requests.clone());
        listed
            .into_iter()
            .flatten()
            .filter_map(|(name, amount)| Some((name, milli(&amount)?)))
            .collect()
    };
    for container in &spec.containers {
        for (name, amount) in of(container) {
            *sums.entry(name).or_default() += amount;
        }
    }
    for container in spec.init_containers.iter().flatten() {
        for (name, amount) in of(container) {
            let sum = sums.entry(name).or_default();
            *sum = if is_sidecar(container) {
                *sum + amount
            } else {
                amount.max(*sum)
            };
        }
    }
    sums
}

/// Thousandths, rounded up; `None` for an invalid quantity.
fn milli(amount: &Quantity) -> Option<i128> {
    quantity::milli_up(amount).map(i128::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, amount: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"containers": [{"name": "m",
            "resources": {"requests": {"aliquot.dev/gpu-memory-mib": amount, "unknown.dev/x": "9"}}}]}}))
        .unwrap()
    }

    #[test]
    fn an_opaque_amount_that_the_node_has_not_is_out_of_it() {
        let allocatable =
            Allocatable::from([("aliquot.dev/gpu-memory-mib".to_owned(), "5000".to_owned())]);
        let active = [Arc::new(pod("a", "3000")), Arc::new(pod("b", "2000"))];
        assert_eq!(fits(&pod("b", "2000"), &active, &allocatable), Ok(()));
        let refused = fits(&pod("c", "1"), &active, &allocatable).unwrap_err();
        assert_eq!(refused.reason, "OutOfaliquot.dev/gpu-memory-mib");
        assert_eq!(
            refused.message,
            "Pod was rejected: Node didn't have enough resource: aliquot.dev/gpu-memory-mib, requested: 1, used: 5000, capacity: 5000"
        );
    }
}
