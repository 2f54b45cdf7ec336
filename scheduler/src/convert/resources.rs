//! What a pod takes of its node, by the kubelet's formula.
//!
//! In: a pod. Out: CPU, memory and everything else in whole numbers, and what became of its
//! resize.
//! Source: `k8s.io/component-helpers/resource/helpers.go`, `PodRequests` with
//! `UseStatusResources`: containers and sidecars add up, an init container counts with the
//! sidecars that were started before it, requests of the pod as a whole win, overhead comes on
//! top. While a pod is resized (KEP-1287) the largest of what its spec asks for, what its node
//! has allocated and what its containers have counts; an infeasible spec does not.

use api::quantity;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod as KubePod, PodCondition, PodSpec, PodStatus,
    ResourceRequirements,
};
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
pub(crate) struct Request {
    /// CPU.
    pub(crate) cpu: CpuMilli,
    /// Memory.
    pub(crate) memory: Bytes,
    /// Everything else but GPUs and our opaque amounts.
    pub(crate) extended: BTreeMap<ResourceName, u64>,
}

/// What the pod takes now. Amounts that are no quantities count as nothing: the API server
/// refuses such pods.
pub(super) fn of(pod: &KubePod) -> Request {
    let taken = Taken::of(pod.status.as_ref());
    pod.spec
        .as_ref()
        .map_or_else(Request::default, |spec| sum(spec, &taken))
}

/// What the spec asks for, whatever the pod has by now.
pub(crate) fn asked(spec: &PodSpec) -> Request {
    sum(spec, &Taken::default())
}

fn sum(spec: &PodSpec, taken: &Taken<'_>) -> Request {
    let mut sum = Amounts::new();
    for container in &spec.containers {
        add(&mut sum, &taken.container(container));
    }
    let mut sidecars = Amounts::new();
    let mut highest = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            let alone = taken.container(container);
            add(&mut sum, &alone);
            add(&mut sidecars, &alone);
            raise(&mut highest, &sidecars);
        } else {
            let mut alone = requests(container.resources.as_ref());
            add(&mut alone, &sidecars);
            raise(&mut highest, &alone);
        }
    }
    raise(&mut sum, &highest);
    for (name, amount) in taken.whole(spec.resources.as_ref()) {
        if name == CPU || name == MEMORY || name.starts_with("hugepages-") {
            sum.insert(name, amount);
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

/// What the kubelet says of a pod's resources.
#[derive(Default)]
struct Taken<'a> {
    /// By container.
    containers: BTreeMap<&'a str, &'a ContainerStatus>,
    pod: Option<&'a PodStatus>,
    /// The node can never give what the spec asks for.
    infeasible: bool,
}

impl<'a> Taken<'a> {
    fn of(pod: Option<&'a PodStatus>) -> Self {
        let lists = pod.map(|pod| [&pod.container_statuses, &pod.init_container_statuses]);
        let containers = lists.into_iter().flatten().flatten().flatten();
        Self {
            containers: containers
                .filter(|status| status.resources.is_some())
                .map(|status| (status.name.as_str(), status))
                .collect(),
            pod,
            infeasible: condition(pod, "PodResizePending")
                .is_some_and(|pending| pending.reason.as_deref() == Some("Infeasible")),
        }
    }

    fn container(&self, container: &Container) -> Amounts {
        let asked = requests(container.resources.as_ref());
        match self.containers.get(container.name.as_str()) {
            Some(status) => self.largest(
                asked,
                status.resources.as_ref(),
                status.allocated_resources.as_ref(),
            ),
            None => asked,
        }
    }

    /// Of the resources that the pod as a whole asks for.
    fn whole(&self, resources: Option<&ResourceRequirements>) -> Amounts {
        let asked = requests(resources);
        let Some(pod) = self.pod.filter(|pod| pod.resources.is_some()) else {
            return asked;
        };
        let names: Vec<String> = asked.keys().cloned().collect();
        let largest = self.largest(
            asked,
            pod.resources.as_ref(),
            pod.allocated_resources.as_ref(),
        );
        let of = |name: String| {
            let amount = largest.get(&name).copied().unwrap_or(0);
            (name, amount)
        };
        names.into_iter().map(of).collect()
    }

    fn largest(
        &self,
        asked: Amounts,
        actual: Option<&ResourceRequirements>,
        allocated: Option<&Quantities>,
    ) -> Amounts {
        let mut largest = requests(actual);
        if let Some(allocated) = allocated {
            raise(&mut largest, &amounts(allocated));
        }
        if !self.infeasible {
            raise(&mut largest, &asked);
        }
        largest
    }
}

fn condition<'a>(pod: Option<&'a PodStatus>, kind: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

/// What the kubelet says of a resize that is not over, as one sentence. `None`: there is none.
pub(super) fn resize(pod: &KubePod) -> Option<String> {
    let status = pod.status.as_ref();
    let holds = |kind: &str| condition(status, kind).filter(|one| one.status == "True");
    let (word, said) = match (holds("PodResizePending"), holds("PodResizeInProgress")) {
        (Some(said), _) if said.reason.as_deref() == Some("Infeasible") => {
            ("its node can never give what its resize asks for", said)
        }
        (Some(said), _) => ("its resize waits for room on its node", said),
        (None, Some(said)) => ("its resize is under way", said),
        (None, None) => return None,
    };
    let reason = said.reason.as_deref().filter(|reason| !reason.is_empty());
    let message = said.message.as_deref().filter(|text| !text.is_empty());
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    let message = message.map_or_else(String::new, |text| format!(": {text}"));
    Some(format!("{word}{reason}{message}"))
}

fn requests(resources: Option<&ResourceRequirements>) -> Amounts {
    resources
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
        asked(&serde_json::from_value(spec).unwrap())
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

    fn pod(spec: &[(&str, &str)], status: serde_json::Value) -> KubePod {
        let containers: Vec<_> = spec
            .iter()
            .map(|(name, cpu)| container(name, cpu))
            .collect();
        serde_json::from_value(json!({"spec": {"containers": containers}, "status": status}))
            .unwrap()
    }

    fn status(name: &str, allocated: &str, actual: &str) -> serde_json::Value {
        json!({"name": name, "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "allocatedResources": {"cpu": allocated}, "resources": {"requests": {"cpu": actual}}})
    }

    /// Each row: spec, allocated, actual, and what counts while the resize goes on, waits, and
    /// is infeasible.
    #[test]
    fn of_a_pod_that_is_resized_the_largest_counts_and_an_infeasible_spec_does_not() {
        for (spec, allocated, actual, counts, infeasible) in [
            ("1", "1", "1", 1000, 1000),
            ("4", "1", "1", 4000, 1000),
            ("1", "4", "4", 4000, 4000),
            ("1", "1", "4", 4000, 4000),
            ("2", "3", "1", 3000, 3000),
            ("8", "2", "3", 8000, 3000),
        ] {
            for (reason, expected) in [
                (None, counts),
                (Some("Deferred"), counts),
                (Some("Infeasible"), infeasible),
            ] {
                let conditions = match reason {
                    Some(reason) => json!([{"type": "PodResizePending", "status": "True",
                        "reason": reason}]),
                    None => json!([{"type": "PodResizeInProgress", "status": "True"}]),
                };
                let resized = pod(
                    &[("a", spec), ("b", "100m")],
                    json!({"conditions": conditions, "containerStatuses": [status("a", allocated, actual)]}),
                );
                let of = of(&resized).cpu;
                let row = (spec, allocated, actual, reason);
                assert_eq!(of, CpuMilli(expected + 100), "{row:?}");
            }
        }
        // The kubelet has not said what the container has: nothing but the spec is known.
        let unsaid = json!([{"name": "a", "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "allocatedResources": {"cpu": "3"}}]);
        let resized = pod(&[("a", "1")], json!({"containerStatuses": unsaid}));
        assert_eq!(of(&resized).cpu, CpuMilli(1000));
        assert_eq!(asked(resized.spec.as_ref().unwrap()).cpu, CpuMilli(1000));
    }

    #[test]
    fn a_sidecar_and_the_pod_as_a_whole_are_resized_alike_and_other_init_containers_are_not() {
        let of_init = |restart: Option<&str>| {
            let mut init = container("s", "1");
            init["restartPolicy"] = json!(restart);
            let pod = json!({
                "spec": {"containers": [container("a", "1")], "initContainers": [init]},
                "status": {"initContainerStatuses": [status("s", "3", "3")]},
            });
            of(&serde_json::from_value(pod).unwrap()).cpu
        };
        assert_eq!(of_init(Some("Always")), CpuMilli(4000));
        assert_eq!(of_init(None), CpuMilli(1000));
        for (reason, expected) in [("Deferred", 6000), ("Infeasible", 5000)] {
            let pod = json!({
                "spec": {"containers": [container("a", "1")], "resources": {"requests": {"cpu": "6"}}},
                "status": {"allocatedResources": {"cpu": "5"}, "resources": {"requests": {"cpu": "4"}},
                    "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}]},
            });
            let pod: KubePod = serde_json::from_value(pod).unwrap();
            assert_eq!(of(&pod).cpu, CpuMilli(expected), "{reason}");
        }
    }

    #[test]
    fn what_became_of_a_resize_is_one_sentence() {
        let said =
            |conditions: serde_json::Value| resize(&pod(&[], json!({"conditions": conditions})));
        let one = |kind: &str, status: &str, reason: &str, message: &str| json!([{"type": kind, "status": status, "reason": reason, "message": message}]);
        assert_eq!(
            said(one("PodResizePending", "True", "Infeasible", "no")).unwrap(),
            "its node can never give what its resize asks for (Infeasible): no"
        );
        assert_eq!(
            said(one("PodResizePending", "True", "Deferred", "later")).unwrap(),
            "its resize waits for room on its node (Deferred): later"
        );
        assert_eq!(
            said(one("PodResizeInProgress", "True", "", "")).unwrap(),
            "its resize is under way"
        );
        assert_eq!(said(one("PodResizePending", "False", "", "")), None);
        assert_eq!(said(json!([])), None);
    }
}
