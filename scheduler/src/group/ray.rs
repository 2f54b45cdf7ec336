//! Pods of Ray clusters, as `KubeRay` creates them.

use super::draft::{Draft, part, total};
use super::kubeflow::template_constraint;
use super::object::{Object, number};
use super::rule::{RuleContext, RuleError};
use serde_json::Value;

/// Label of a pod: its group in the cluster.
const GROUP: &str = "ray.io/group";
/// Of the head's pod.
const HEAD: &str = "headgroup";
/// Ray's own label for a class.
const CLASS: &str = "ray.io/priority-class-name";

/// The head and each group of workers are sub-groups. A pod outside the cluster (the one that
/// submits a job) has a group of its own: the cluster waits for it, so it must not wait for the
/// cluster.
pub(super) fn draft(
    top: &Object,
    mut draft: Draft,
    context: RuleContext<'_>,
) -> Result<Draft, RuleError> {
    if let Some(class) = top.label(CLASS) {
        class.clone_into(&mut draft.class);
    }
    let cluster = context
        .chain
        .iter()
        .find(|owner| owner.reference().kind == "RayCluster");
    let (Some(cluster), Some(group)) = (cluster, context.pod.label(GROUP)) else {
        return Ok(draft.of_pod_alone(context.pod));
    };
    draft.sub_groups = parts(cluster)?;
    draft.min = total(&draft.sub_groups);
    if !draft.sub_groups.iter().any(|part| part.name == group) {
        return Err(RuleError::of(
            cluster,
            format!("no group {group}, or none of its pods is asked for"),
        ));
    }
    draft.part = Some(group.to_owned());
    Ok(draft)
}

fn parts(cluster: &Object) -> Result<Vec<api::kai::SubGroup>, RuleError> {
    let template = |group: Option<&Value>| -> Value {
        group
            .and_then(|group| group.get("template"))
            .cloned()
            .unwrap_or_default()
    };
    let mut head = part(HEAD, 1);
    head.topology_constraint = template_constraint(
        cluster,
        &template(cluster.at(&["spec", "headGroupSpec"])),
        HEAD,
    )?;
    let mut parts = vec![head];
    let scales = cluster.at(&["spec", "enableInTreeAutoscaling"]) == Some(&Value::Bool(true));
    let groups = cluster.list(&["spec", "workerGroupSpecs"]);
    for (at, group) in groups.iter().enumerate() {
        if group.get("suspend") == Some(&Value::Bool(true)) {
            continue;
        }
        let of = |field: &str| group.get(field).and_then(number).unwrap_or(0);
        let (least, asked) = (of("minReplicas"), of("replicas"));
        let hosts = group.get("numOfHosts").and_then(number).unwrap_or(1);
        if least > asked && !scales {
            return Err(RuleError::of(
                cluster,
                format!("worker group {at}: {least} minReplicas, but {asked} replicas"),
            ));
        }
        // With the autoscaler on, the current number of replicas is no minimum.
        if asked == 0 && !scales {
            continue;
        }
        let name = group
            .get("groupName")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .map_or_else(|| format!("worker-group-{at}"), str::to_owned);
        let min = if least > 0 || scales { least } else { asked };
        let mut workers = part(&name, min.saturating_mul(hosts));
        workers.topology_constraint = template_constraint(cluster, &template(Some(group)), &name)?;
        parts.push(workers);
    }
    Ok(parts)
}
