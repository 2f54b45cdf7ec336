//! Pods of Grove, whose `PodGang` says which pods belong together.

use super::draft::{Draft, TOPOLOGY, TRAIN, constraint_of, part, preemptibility, raise, total};
use super::object::{Object, at, number};
use super::rule::{LookupResult, RuleContext, RuleError};
use api::kai::{SubGroup, TopologyConstraint};
use proto::names::kai;
use serde_json::Value;

/// Label of a pod: its `PodGang`.
pub(super) const POD_GANG: &str = "grove.io/podgang";
const TOPOLOGY_NAME: &str = "grove.io/topology-name";

/// One group per `PodGang`, with a sub-group for each of its pod groups.
pub(super) fn draft(top: &Object, context: RuleContext<'_>) -> Result<Draft, RuleError> {
    let Some(LookupResult::Object(gang)) = context.extra else {
        return Err(RuleError::of(
            context.pod,
            format!("no label {POD_GANG}, or no PodGang of that name"),
        ));
    };
    let mut both = gang.as_ref().clone();
    both.inherit(top);
    let mut draft = Draft::of(&both, &[&both], context.pod, context.classes, TRAIN);
    if let Some(class) = gang.text(&["spec", "priorityClassName"]) {
        class.clone_into(&mut draft.class);
    }
    if let Some(class) = both.label(kai::PRIORITY_CLASS_LABEL) {
        class.clone_into(&mut draft.class);
    }
    draft.preemptibility = preemptibility(&both).map(str::to_owned);
    let topology = gang
        .annotation(TOPOLOGY_NAME)
        .or_else(|| both.annotation(TOPOLOGY));
    if let Some(spec) = gang.at(&["spec"])
        && let Some(constraint) = packed(gang, spec, topology)?
    {
        draft.topology = Some(constraint);
    }
    let mut parts = parents(gang, topology)?;
    for group in gang.list(&["spec", "podgroups"]) {
        let (part, has_pod) = child(gang, group, topology, context.pod)?;
        if has_pod {
            draft.part = Some(part.name.clone());
        }
        parts.push(part);
    }
    adopt(gang, &mut parts);
    draft.min = total(&parts).max(1);
    if draft.part.is_none() {
        return Err(RuleError::of(
            gang,
            format!(
                "none of its podgroups names the pod {} yet",
                context.pod.name()
            ),
        ));
    }
    draft.sub_groups = parts;
    Ok(draft)
}

fn text<'a>(gang: &Object, value: &'a Value, field: &str) -> Result<&'a str, RuleError> {
    value
        .get(field)
        .and_then(Value::as_str)
        .ok_or_else(|| RuleError::of(gang, format!("a group without {field}")))
}

fn child(
    gang: &Object,
    group: &Value,
    topology: Option<&str>,
    pod: &Object,
) -> Result<(SubGroup, bool), RuleError> {
    let name = text(gang, group, "name")?;
    let min = group
        .get("minReplicas")
        .and_then(number)
        .filter(|min| *min > 0)
        .ok_or_else(|| RuleError::of(gang, format!("podgroup {name}: no minReplicas from 1 on")))?;
    let mut child = part(name, min);
    child.topology_constraint = packed(gang, group, topology)?;
    let mut has_pod = false;
    let references = group.get("podReferences").and_then(Value::as_array);
    for reference in references.into_iter().flatten() {
        let namespace = text(gang, reference, "namespace")?;
        if namespace != pod.namespace() {
            return Err(RuleError::of(
                gang,
                format!("podgroup {name} names a pod of namespace {namespace}"),
            ));
        }
        has_pod |= text(gang, reference, "name")? == pod.name();
    }
    Ok((child, has_pod))
}

/// Groups of pod groups, each of which has to be placed together.
fn parents(gang: &Object, topology: Option<&str>) -> Result<Vec<SubGroup>, RuleError> {
    let mut parents = Vec::new();
    for config in gang.list(&["spec", "topologyConstraintGroupConfigs"]) {
        if children(config).next().is_none() {
            continue;
        }
        let mut parent = part(text(gang, config, "name")?, 0);
        parent.topology_constraint = packed(gang, config, topology)?;
        parents.push(parent);
    }
    Ok(parents)
}

fn children(config: &Value) -> impl Iterator<Item = &str> {
    config
        .get("podGroupNames")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn adopt(gang: &Object, parts: &mut [SubGroup]) {
    for config in gang.list(&["spec", "topologyConstraintGroupConfigs"]) {
        let Some(parent) = config.get("name").and_then(Value::as_str) else {
            continue;
        };
        for child in children(config) {
            if let Some(part) = parts.iter_mut().find(|part| part.name == child) {
                part.parent = Some(parent.to_owned());
            }
        }
    }
    raise(parts);
}

fn packed(
    gang: &Object,
    value: &Value,
    topology: Option<&str>,
) -> Result<Option<TopologyConstraint>, RuleError> {
    let of = |level: &str| {
        at(value, &["topologyConstraint", "packConstraint", level]).and_then(Value::as_str)
    };
    let (required, preferred) = (of("required"), of("preferred"));
    if required.is_none() && preferred.is_none() {
        return Ok(None);
    }
    match topology {
        Some(topology) => Ok(constraint_of(Some(topology), required, preferred)),
        None => Err(RuleError::of(
            gang,
            "a packConstraint, but no topology's name",
        )),
    }
}
