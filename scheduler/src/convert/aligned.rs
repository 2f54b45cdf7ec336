//! What a kubelet's topology manager aligns of a pod's containers.
//!
//! In: a pod, and its containers' requests to GPUs. Out: of a Guaranteed pod, each container's
//! exclusive CPUs and memory as the kubelet's CPU manager (`static`) and memory manager (`Static`)
//! count them; of another pod nothing.

use api::quantity;
use k8s_openapi::api::core::v1::{Container, Pod as KubePod};
use scheduler_core::model::{AlignedContainer, Ask, ContainerAsk};
use scheduler_core::units::Bytes;

pub(super) fn of(pod: &KubePod, gpus: &[ContainerAsk]) -> Vec<AlignedContainer> {
    let class = pod
        .status
        .as_ref()
        .and_then(|status| status.qos_class.as_deref());
    let Some(spec) = pod.spec.as_ref().filter(|_| class == Some("Guaranteed")) else {
        return Vec::new();
    };
    let inits = spec.init_containers.iter().flatten();
    let inits =
        inits.map(|one| container(one, one.restart_policy.as_deref() != Some("Always"), gpus));
    let apps = spec
        .containers
        .iter()
        .map(|one| container(one, false, gpus));
    inits.chain(apps).collect()
}

fn container(container: &Container, init: bool, gpus: &[ContainerAsk]) -> AlignedContainer {
    let requests = container
        .resources
        .as_ref()
        .and_then(|all| all.requests.as_ref());
    let request = |name: &str| requests.and_then(|requests| requests.get(name));
    let milli = request("cpu").and_then(quantity::milli_up);
    // A fraction of a CPU is none to itself.
    let whole = milli.filter(|milli| milli % 1000 == 0).unwrap_or(0) / 1000;
    let memory = request("memory").and_then(quantity::up);
    let mut aligned = AlignedContainer {
        init,
        cpus: u32::try_from(whole).unwrap_or(u32::MAX),
        memory: Bytes(memory.unwrap_or(0)),
        ..AlignedContainer::default()
    };
    for ask in gpus
        .iter()
        .filter(|ask| ask.container.as_str() == container.name)
    {
        match &ask.ask {
            Ask::Whole(count) => aligned.gpus = *count,
            Ask::Share(share) => aligned.shares = share.devices,
        }
    }
    aligned
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(class: &str) -> Vec<AlignedContainer> {
        let container = |name: &str, cpu: &str, more: Value| {
            let mut container = json!({
                "name": name,
                "resources": {"requests": {"cpu": cpu, "memory": "1Ki"}},
            });
            container
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            container
        };
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {
                "initContainers": [
                    container("init", "2", json!({})),
                    container("sidecar", "1", json!({"restartPolicy": "Always"})),
                ],
                "containers": [
                    container("main", "3000m", json!({})),
                    container("part", "1500m", json!({})),
                ],
            },
            "status": {"qosClass": class},
        });
        let pod: KubePod = serde_json::from_value(pod).unwrap();
        of(&pod, &[ContainerAsk::of("main", Ask::Whole(2))])
    }

    #[test]
    fn whole_cpus_of_guaranteed_pods_are_exclusive() {
        let one = |init, cpus, gpus| AlignedContainer {
            init,
            cpus,
            memory: Bytes(1024),
            gpus,
            shares: 0,
        };
        let expected = [
            one(true, 2, 0),
            one(false, 1, 0),
            one(false, 3, 2),
            one(false, 0, 0),
        ];
        assert_eq!(read("Guaranteed"), expected);
        assert_eq!(read("Burstable"), []);
    }
}
