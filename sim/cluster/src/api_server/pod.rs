//! What the API server does for pods alone: defaults, binding, eviction, the grace of a
//! deletion, and which fields of a spec may still change.
//! Never decides where a pod goes.

use super::error::ApiError;
use super::object::{at, deleting, map, metadata, text, uid};
use super::resource::Collection;
use super::store::{Key, Store};
use serde_json::{Value, json};

/// Sets the defaults of the real server that are read anywhere.
pub(crate) fn default(pod: &mut Value) -> Result<(), ApiError> {
    let name = super::object::name(pod).to_owned();
    let invalid = |why: &str| ApiError::invalid("Pod", &name, why);
    if at(pod, "spec.containers")
        .as_array()
        .is_none_or(Vec::is_empty)
    {
        return Err(invalid("spec.containers: Required value"));
    }
    let spec = map(pod, "spec");
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("serviceAccountName", json!("default")),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
        ("priority", json!(0)),
    ] {
        spec.entry(field).or_insert(value);
    }
    let mut seen = Vec::new();
    for list in ["initContainers", "containers"] {
        let Some(containers) = spec.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        for container in containers {
            let container_name = text(container, "name").to_owned();
            if container_name.is_empty() || seen.contains(&container_name) {
                return Err(invalid(&format!(
                    "spec.{list}[].name: a unique name is required, found \"{container_name}\""
                )));
            }
            seen.push(container_name);
            let fields = container
                .as_object_mut()
                .ok_or_else(|| invalid("spec.containers[]: not an object"))?;
            for (field, value) in [
                ("imagePullPolicy", json!("IfNotPresent")),
                ("terminationMessagePath", json!("/dev/termination-log")),
                ("terminationMessagePolicy", json!("File")),
                ("resources", json!({})),
            ] {
                fields.entry(field).or_insert(value);
            }
            default_requests(fields.get_mut("resources").expect("inserted above"))
                .map_err(|why| invalid(&why))?;
        }
    }
    Ok(())
}

/// Requests default to limits; extended resources must be equal in both.
fn default_requests(resources: &mut Value) -> Result<(), String> {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else {
        return match resources.get("requests").and_then(Value::as_object) {
            Some(requests) if requests.keys().any(|key| key.contains('/')) => {
                Err("spec.containers[].resources.limits: Required value: limit must be set for non overcommitable resources".to_owned())
            }
            _ => Ok(()),
        };
    };
    let requests = map(resources, "requests");
    for (resource, limit) in limits {
        let request = requests.entry(resource.clone()).or_insert(limit.clone());
        let plain = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        if resource.contains('/') && plain(request) != plain(&limit) {
            return Err(format!(
                "spec.containers[].resources.requests: Invalid value: {}: must be equal to {resource} limit of {}",
                plain(request),
                plain(&limit)
            ));
        }
    }
    Ok(())
}

/// `Guaranteed` is not distinguished from `Burstable`
pub(crate) fn quality_of_service(pod: &Value) -> &'static str {
    let some = at(pod, "spec.containers")
        .as_array()
        .into_iter()
        .flatten()
        .any(|container| {
            ["requests", "limits"].iter().any(|list| {
                at(container, &format!("resources.{list}"))
                    .as_object()
                    .is_some_and(|map| map.contains_key("cpu") || map.contains_key("memory"))
            })
        });
    if some { "Burstable" } else { "BestEffort" }
}

/// After creation a spec is fixed, but for images, tolerations, gates and deadlines.
pub(crate) fn check_update(before: &Value, after: &mut Value) -> Result<(), ApiError> {
    let fixed = |pod: &Value| {
        let mut spec = pod.get("spec").cloned().unwrap_or(Value::Null);
        if let Some(fields) = spec.as_object_mut() {
            for free in [
                "tolerations",
                "activeDeadlineSeconds",
                "terminationGracePeriodSeconds",
                "schedulingGates",
            ] {
                fields.remove(free);
            }
            for list in ["containers", "initContainers", "ephemeralContainers"] {
                if let Some(containers) = fields.get_mut(list).and_then(Value::as_array_mut) {
                    for container in containers {
                        if let Some(fields) = container.as_object_mut() {
                            fields.remove("image");
                        }
                    }
                }
            }
        }
        spec
    };
    if fixed(before) == fixed(after) {
        Ok(())
    } else {
        Err(ApiError::invalid(
            "Pod",
            super::object::name(before),
            "spec: Forbidden: pod updates may not change fields other than image, activeDeadlineSeconds, terminationGracePeriodSeconds and tolerations",
        ))
    }
}

/// POST `pods/<name>/binding`: node name, annotations and labels in one write.
pub(crate) fn bind(
    store: &mut Store,
    key: &Key,
    binding: &Value,
    now: &str,
    dry_run: bool,
) -> Result<(), ApiError> {
    let pods = Collection::new("", "pods");
    let Some(pod) = store.get(&pods, key).cloned() else {
        return Err(ApiError::not_found("pods", &key.name));
    };
    let conflict = |why: &str| ApiError::conflict("pods/binding", &key.name, why);
    let node = text(binding, "target.name");
    let kind = text(binding, "target.kind");
    if !kind.is_empty() && kind != "Node" {
        return Err(ApiError::invalid(
            "Binding",
            &key.name,
            "target.kind: Unsupported value: must be empty or Node",
        ));
    }
    if node.is_empty() {
        return Err(ApiError::invalid(
            "Binding",
            &key.name,
            "target.name: Required value",
        ));
    }
    for (what, wanted, actual) in [
        ("UID", uid(binding), uid(&pod)),
        (
            "ResourceVersion",
            text(binding, "metadata.resourceVersion"),
            text(&pod, "metadata.resourceVersion"),
        ),
    ] {
        if !wanted.is_empty() && wanted != actual {
            return Err(conflict(&format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}"
            )));
        }
    }
    if deleting(&pod) {
        return Err(conflict(&format!(
            "pod {} is being deleted, cannot be assigned to a host",
            key.name
        )));
    }
    let bound = text(&pod, "spec.nodeName");
    if !bound.is_empty() {
        return Err(conflict(&format!(
            "pod {} is already assigned to node \"{bound}\"",
            key.name
        )));
    }
    if at(&pod, "spec.schedulingGates")
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
    {
        return Err(conflict(&format!(
            "pod {} has non-empty .spec.schedulingGates",
            key.name
        )));
    }
    if dry_run {
        return Ok(());
    }
    let mut assigned = (*pod).clone();
    map(&mut assigned, "spec").insert("nodeName".into(), json!(node));
    for field in ["annotations", "labels"] {
        let Some(given) = at(binding, &format!("metadata.{field}")).as_object() else {
            continue;
        };
        let target = metadata(&mut assigned)
            .entry(field)
            .or_insert_with(|| json!({}));
        for (name, value) in given {
            target[name] = value.clone();
        }
    }
    let generation = at(&assigned, "metadata.generation").as_i64().unwrap_or(0) + 1;
    metadata(&mut assigned).insert("generation".into(), json!(generation));
    let condition = json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    let conditions = map(&mut assigned, "status")
        .entry("conditions")
        .or_insert_with(|| json!([]));
    if let Some(list) = conditions.as_array_mut() {
        list.retain(|one| text(one, "type") != "PodScheduled");
        list.push(condition);
    }
    store.put(&pods, assigned);
    Ok(())
}

/// Seconds that a deletion leaves the pod; 0 removes it at once.
pub(crate) fn deletion_grace(pod: &Value, options: &Value) -> i64 {
    let over = matches!(text(pod, "status.phase"), "Succeeded" | "Failed");
    if over || text(pod, "spec.nodeName").is_empty() {
        return 0;
    }
    at(options, "gracePeriodSeconds")
        .as_i64()
        .or_else(|| at(pod, "spec.terminationGracePeriodSeconds").as_i64())
        .unwrap_or(30)
        .max(0)
}
