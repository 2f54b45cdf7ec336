//! A pod → the same with its token and amount. Pure.
//!
//! The chosen container of a share gets one token `aliquot.dev/gpu-share: 1`, by which
//! the kubelet calls the agent, and the opaque amount, for what Kubernetes itself shows
//! of a node. An annotation keeps the cluster autoscaler from its node.
//!
//! Admission may look at a pod several times, after other webhooks have added containers. The first
//! look writes the container's name down, so that the same one keeps the share.

use crate::convert::run_time;
use api::quantity;
use api::request::{self, Admitted, GpuRequest, PodRequest, RequestError, ShareRequest};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::names::scale_down::{SAFE_TO_EVICT, SAFE_TO_EVICT_AUTOSCALER};
use proto::names::{request as key, resource};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// A container of a dozen bytes becomes a struct of several hundred, and the API server calls
/// before it has validated the pod: pods with more containers than any real pod are rejected.
const MAX_CONTAINERS: usize = 1024;

/// Why a pod is refused. The text is what the user reads.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum AmendError {
    /// A contradiction in the request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The token by hand.
    #[error(
        "container {0} asks for {name} itself, which has no effect without a grant: use the annotation gpu-memory or gpu-fraction instead",
        name = resource::SHARE
    )]
    Token(String),
    /// More than `MAX_CONTAINERS`.
    #[error("the pod has {0} containers, more than {MAX_CONTAINERS}")]
    Containers(usize),
    /// No pod.
    #[error("the object is not a pod: {0}")]
    Pod(String),
    /// Something that has no rule yet.
    #[error("{0}")]
    Unfollowed(String),
}

/// A pod that is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Amended {
    /// As it is to be.
    pub pod: Value,
    /// Keys without an effect, one sentence each.
    pub warnings: Vec<String>,
    /// Its request.
    pub request: PodRequest,
}

/// The pod as it is to be.
pub fn amended(pod: &Value) -> Result<Amended, AmendError> {
    let count = LISTS
        .iter()
        .filter_map(|list| pod["spec"][list].as_array())
        .map(Vec::len)
        .sum();
    if count > MAX_CONTAINERS {
        return Err(AmendError::Containers(count));
    }
    let typed: Pod =
        serde_json::from_value(pod.clone()).map_err(|e| AmendError::Pod(e.to_string()))?;
    let annotation = |key: &str| pod["metadata"]["annotations"][key].as_str();
    if let Some(why) = crate::unsupported::of(annotation) {
        return Err(AmendError::Unfollowed(why));
    }
    let Admitted {
        request,
        mut warnings,
    } = request::admitted(&typed)?;
    warnings.extend(run_time::warning(&typed));
    let asked: BTreeMap<&str, &GpuRequest> = request
        .containers
        .iter()
        .map(|asked| (asked.name.as_str(), &asked.gpus))
        .collect();
    let mut pod = pod.clone();
    for list in LISTS {
        let containers = pod
            .pointer_mut(&format!("/spec/{list}"))
            .and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            match asked.get(name.as_str()) {
                Some(GpuRequest::Share(share)) if list != "ephemeralContainers" => {
                    give(container, share);
                }
                _ if holds(container, resource::SHARE) => return Err(AmendError::Token(name)),
                _ => {}
            }
        }
    }
    let shares = request
        .containers
        .iter()
        .any(|asked| matches!(asked.gpus, GpuRequest::Share(_)));
    if shares {
        strip_zero(&mut pod);
        let metadata = object(&mut pod, "metadata");
        if let Some(annotations) = metadata.and_then(|all| object(all, "annotations")) {
            keep_container(annotations, &request);
            // What the pod says itself counts. The cluster autoscaler drains no node with such a
            // pod. It counts a node with GPUs by the `nvidia.com/gpu` that its pods request
            // (`CalculateUtilization`), so that one full of shares looks unused, and it knows no
            // cards, so that it believes that any node has room for a share. The scheduler knows.
            if annotations.get(SAFE_TO_EVICT_AUTOSCALER).is_none() {
                annotations[SAFE_TO_EVICT_AUTOSCALER] = json!("false");
                if annotations.get(SAFE_TO_EVICT).is_none() {
                    annotations[SAFE_TO_EVICT] = json!("true");
                }
            }
        }
    }
    Ok(Amended {
        pod,
        warnings,
        request,
    })
}

/// Writes the name of the container that gets the share, which is the first one unless the request
/// names another. A service mesh may put its proxy in front of it before the next look.
fn keep_container(annotations: &mut Value, request: &PodRequest) {
    let has = |key: &str| annotations.get(key).is_some();
    if has(key::CONTAINER) || !(has(key::MEMORY) || has(key::FRACTION)) {
        return;
    }
    if let [only] = &*request.containers {
        annotations[key::CONTAINER] = json!(only.name);
    }
}

/// Token and amount, as limit and as request: extended resources want both alike.
fn give(container: &mut Value, share: &ShareRequest) {
    let (name, amount) = share.counted();
    for list in ["limits", "requests"] {
        let Some(resources) = object(container, "resources").map(|all| &mut all[list]) else {
            return;
        };
        if !resources.is_object() {
            *resources = json!({});
        }
        for other in [resource::MEMORY_MIB, resource::MILLI] {
            if let Some(resources) = resources.as_object_mut() {
                resources.remove(other);
            }
        }
        resources[resource::SHARE] = json!("1");
        resources[name] = json!(amount.to_string());
    }
}

/// The object of this name, made when it is absent or null.
fn object<'a>(parent: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    let value = parent.as_object_mut()?.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.is_object().then_some(value)
}

fn holds(container: &Value, name: &str) -> bool {
    ["limits", "requests"]
        .iter()
        .any(|list| container["resources"][list].get(name).is_some())
}

/// Removes `nvidia.com/gpu: 0`, which some charts always print: a plugin would be asked for zero
/// devices.
fn strip_zero(pod: &mut Value) {
    for list in ["initContainers", "containers"] {
        let containers = pod
            .pointer_mut(&format!("/spec/{list}"))
            .and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for kind in ["limits", "requests"] {
                let resources = container
                    .pointer_mut(&format!("/resources/{kind}"))
                    .and_then(Value::as_object_mut);
                if let Some(resources) = resources
                    && resources.get(resource::GPU).is_some_and(is_zero)
                {
                    resources.remove(resource::GPU);
                }
            }
        }
    }
}

fn is_zero(quantity: &Value) -> bool {
    match quantity {
        Value::Number(number) => number.as_u64() == Some(0),
        Value::String(text) => quantity::up(&Quantity(text.clone())) == Some(0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: Value, container: Value) -> Value {
        json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"schedulerName": "kai-scheduler", "containers": [container, {"name": "side"}]},
        })
    }

    fn resources(annotations: Value, container: Value) -> Value {
        let pod = pod(annotations, container);
        let once = amended(&pod).expect("allowed").pod;
        assert_eq!(
            amended(&once).map(|again| again.pod).as_ref(),
            Ok(&once),
            "the second look changes nothing"
        );
        let typed: Pod = serde_json::from_value(once.clone()).expect("still a pod");
        assert_eq!(
            request::of(&typed),
            request::of(&serde_json::from_value(pod).expect("a pod")),
            "it asks for what it asked for"
        );
        assert_eq!(once["spec"]["containers"][1], json!({"name": "side"}));
        once["spec"]["containers"][0]["resources"].clone()
    }

    fn both(amount: &Value) -> Value {
        json!({"limits": amount, "requests": amount})
    }

    #[test]
    fn a_share_gets_one_token_and_its_amount() {
        for (annotations, amount) in [
            (
                json!({"gpu-memory": "2000"}),
                json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "2000"}),
            ),
            (
                json!({"gpu-memory": "2000", "gpu-fraction-num-devices": "3"}),
                json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "6000"}),
            ),
            (
                json!({"gpu-fraction": "0.5"}),
                json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-milli": "500"}),
            ),
            (
                json!({"gpu-fraction": "0.0001", "gpu-fraction-num-devices": "2"}),
                json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-milli": "1"}),
            ),
            (
                json!({"nvidia.com/container.c.gpu-memory.request": "1Gi"}),
                json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "1024"}),
            ),
        ] {
            for container in [
                json!({"name": "c"}),
                json!({"name": "c", "resources": null}),
                json!({"name": "c", "resources": {}}),
                json!({"name": "c", "resources": {"limits": null, "requests": {}}}),
            ] {
                assert_eq!(
                    resources(annotations.clone(), container),
                    both(&amount),
                    "{annotations}"
                );
            }
        }
    }

    #[test]
    fn other_resources_stay_and_a_gpu_count_of_zero_goes() {
        let got = resources(
            json!({"gpu-memory": "5"}),
            json!({"name": "c", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "0"}, "requests": {"nvidia.com/gpu": 0}}}),
        );
        assert_eq!(
            got["limits"],
            json!({"cpu": "1", "aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "5"})
        );
        assert_eq!(
            got["requests"],
            json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "5"})
        );
    }

    #[test]
    fn the_cluster_autoscaler_leaves_a_share_alone_unless_its_pod_says_otherwise() {
        let said = |annotations: Value| {
            let pod = pod(annotations, json!({"name": "c"}));
            let amended = amended(&pod).expect("allowed").pod;
            let said = &amended["metadata"]["annotations"];
            [SAFE_TO_EVICT_AUTOSCALER, SAFE_TO_EVICT].map(|key| said[key].clone())
        };
        assert_eq!(said(json!({"gpu-memory": "5"})), ["false", "true"]);
        for value in ["true", "false"] {
            let own = json!({"gpu-memory": "5", (SAFE_TO_EVICT_AUTOSCALER): value});
            assert_eq!(said(own), [json!(value), Value::Null]);
            let own = json!({"gpu-memory": "5", (SAFE_TO_EVICT): value});
            assert_eq!(said(own), ["false", value]);
        }
        // It sees whole cards.
        assert_eq!(said(json!({})), [Value::Null, Value::Null]);
    }

    #[test]
    fn a_run_time_that_counts_for_nothing_is_warned_of() {
        let warnings = |text: &str| {
            let annotations = json!({(key::RUN_TIME): text});
            amended(&pod(annotations, json!({"name": "c"})))
                .expect("allowed")
                .warnings
        };
        assert_eq!(warnings("2h"), Vec::<String>::new());
        let [warning] = warnings("-2h").try_into().expect("one warning");
        assert!(warning.contains(key::RUN_TIME), "{warning}");
    }

    #[test]
    fn an_amount_by_hand_is_replaced_by_the_one_asked_for() {
        let by_hand = json!({"aliquot.dev/gpu-milli": "1", "aliquot.dev/gpu-memory-mib": "1"});
        let got = resources(
            json!({"gpu-memory": "5"}),
            json!({"name": "c", "resources": {"limits": by_hand, "requests": by_hand}}),
        );
        assert_eq!(
            got["limits"],
            json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "5"})
        );
    }

    #[test]
    fn pods_that_ask_for_no_share_stay_as_they_are() {
        for container in [
            json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}),
            json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "0"}}}),
            json!({"name": "c"}),
        ] {
            let pod = pod(json!({}), container);
            assert_eq!(amended(&pod).map(|same| same.pod).as_ref(), Ok(&pod));
        }
    }

    #[test]
    fn an_init_container_gets_what_it_was_chosen_for() {
        let pod = json!({
            "metadata": {"annotations": {"gpu-memory": "5", "gpu-fraction-container-name": "i"}},
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]},
        });
        let got = amended(&pod).expect("allowed").pod;
        assert_eq!(
            got["spec"]["initContainers"][0]["resources"]["limits"]["aliquot.dev/gpu-share"],
            "1"
        );
        assert_eq!(got["spec"]["containers"][0], json!({"name": "c"}));
    }

    /// A later webhook prepends a container, and this one is called again.
    #[test]
    fn the_container_of_the_first_look_keeps_the_share() {
        let share = |container: &Value| container["resources"]["limits"][resource::SHARE].clone();
        for annotations in [
            json!({"gpu-memory": "5"}),
            json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
            json!({"gpu-memory": "5", "gpu-memory.limit": "1Gi"}),
            json!({"nvidia.com/container.app.gpu-memory.request": "1Gi"}),
            json!({"gpu-memory": "1024", "nvidia.com/container.app.gpu-memory.request": "1Gi"}),
        ] {
            let pod = json!({
                "metadata": {"name": "p", "annotations": annotations},
                "spec": {
                    "initContainers": [{"name": "prepare"}],
                    "containers": [{"name": "app"}, {"name": "side"}],
                },
            });
            let mut between = amended(&pod).expect("allowed").pod;
            for (list, more) in [
                (
                    "initContainers",
                    json!({"name": "proxy-init", "restartPolicy": "Always"}),
                ),
                ("containers", json!({"name": "proxy"})),
                ("containers", json!({"name": "second-proxy"})),
            ] {
                let containers = between["spec"][list].as_array_mut().expect("a list");
                containers.insert(0, more);
                let again = amended(&between).expect("allowed again");
                assert_eq!(again.pod, between, "{annotations}");
                let Ok([only]) = <[_; 1]>::try_from(again.request.containers) else {
                    panic!("one share: {annotations}");
                };
                assert_eq!(only.name, "app");
            }
            let containers = between["spec"]["containers"].as_array().expect("a list");
            let shares: Vec<Value> = containers.iter().map(share).collect();
            assert_eq!(shares, [Value::Null, Value::Null, json!("1"), Value::Null]);
        }
    }

    #[test]
    fn refusals_are_one_sentence_that_names_the_fix() {
        let token = json!({"name": "c", "resources": {"limits": {"aliquot.dev/gpu-share": "1"}}});
        for (pod, says) in [
            (
                pod(json!({"gpu-memory": "0"}), json!({"name": "c"})),
                "gpu-memory annotation value must be a positive integer greater than 0",
            ),
            (pod(json!({}), token), "gpu-memory"),
            (json!({"spec": 5}), "not a pod"),
            (
                json!({"spec": {"containers": vec![json!({"name": "c"}); 1025]}}),
                "the pod has 1025 containers",
            ),
        ] {
            let refusal = amended(&pod).expect_err("refused").to_string();
            assert!(refusal.contains(says), "{refusal}");
            assert_eq!(refusal.lines().count(), 1);
        }
    }
}
