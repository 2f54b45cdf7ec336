//! Where a pod may go: selectors, affinity, tolerations; and what of it the core does not
//! know, so that such a pod waits and says so instead of landing in a wrong place.

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration as KubeToleration,
};
use scheduler_core::ids::NodeName;
use scheduler_core::model::{
    Effect, Labels, NodeRules, NodeTerm, Operator, Requirement, Tolerated, Toleration, integer,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels as the core has them.
pub(super) fn labels(labels: Option<&BTreeMap<String, String>>) -> Labels {
    labels
        .into_iter()
        .flatten()
        .map(|(key, value)| (Arc::from(key.as_str()), Arc::from(value.as_str())))
        .collect()
}

/// Which nodes will do.
pub(super) fn nodes(spec: &PodSpec, nominated: Option<&str>) -> NodeRules {
    let affinity = spec.affinity.as_ref();
    let affinity = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        required.as_ref()
    });
    let preferred = affinity.and_then(|affinity| {
        let preferred = &affinity.preferred_during_scheduling_ignored_during_execution;
        preferred.as_ref()
    });
    let preferred = preferred.into_iter().flatten();
    NodeRules {
        selector: labels(spec.node_selector.as_ref()),
        terms: required.map(|selector| selector.node_selector_terms.iter().map(term).collect()),
        preferred: preferred
            .map(|one| (one.weight, term(&one.preference)))
            .collect(),
        nominated: nominated.map(NodeName::new),
    }
}

/// These nodes and no others.
pub(super) fn on(nodes: impl IntoIterator<Item = Arc<str>>) -> NodeTerm {
    NodeTerm {
        labels: Vec::new(),
        name: vec![Requirement {
            key: Arc::from("metadata.name"),
            operator: Operator::In(nodes.into_iter().collect()),
        }],
    }
}

/// A requirement that cannot be read makes a term that matches nothing, as in Kubernetes.
pub(super) fn term(term: &NodeSelectorTerm) -> NodeTerm {
    let read = |list: &Option<Vec<NodeSelectorRequirement>>| -> Option<Vec<Requirement>> {
        list.iter().flatten().map(requirement).collect()
    };
    match (read(&term.match_expressions), read(&term.match_fields)) {
        (Some(labels), Some(name)) => NodeTerm { labels, name },
        _ => NodeTerm::default(),
    }
}

fn requirement(requirement: &NodeSelectorRequirement) -> Option<Requirement> {
    let values = || -> Vec<Arc<str>> {
        let values = requirement.values.iter().flatten();
        values.map(|value| Arc::from(value.as_str())).collect()
    };
    let number = || match requirement.values.as_deref() {
        Some([only]) => only.parse::<i64>().ok(),
        _ => None,
    };
    let operator = match requirement.operator.as_str() {
        "In" => Operator::In(values()),
        "NotIn" => Operator::NotIn(values()),
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Above(number()?),
        "Lt" => Operator::Below(number()?),
        _ => return None,
    };
    Some(Requirement {
        key: Arc::from(requirement.key.as_str()),
        operator,
    })
}

/// Tolerations; one with an operator that is not known, or with a bound that is no integer,
/// tolerates nothing.
pub(super) fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    spec.tolerations
        .iter()
        .flatten()
        .filter_map(toleration)
        .collect()
}

fn toleration(toleration: &KubeToleration) -> Option<Toleration> {
    let key = toleration.key.as_deref().filter(|key| !key.is_empty());
    let value = toleration.value.as_deref().unwrap_or_default();
    let values = match toleration.operator.as_deref() {
        Some("Exists") => Tolerated::Any,
        None | Some("" | "Equal") => Tolerated::Equal(Arc::from(value)),
        Some("Gt") => Tolerated::Above(integer(value)?),
        Some("Lt") => Tolerated::Below(integer(value)?),
        Some(_) => return None,
    };
    let effect = match toleration.effect.as_deref() {
        None | Some("") => None,
        Some("NoSchedule") => Some(Effect::NoSchedule),
        Some("NoExecute") => Some(Effect::NoExecute),
        Some("PreferNoSchedule") => Some(Effect::PreferNoSchedule),
        Some(_) => return None,
    };
    Some(Toleration {
        key: key.map(Arc::from),
        values,
        effect,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(rest: serde_json::Value) -> PodSpec {
        let mut spec = json!({"containers": []});
        for (key, value) in rest.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_term_with_an_unreadable_requirement_matches_nothing() {
        let rules = nodes(
            &spec(
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]},
                    {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["5"]}],
                     "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
                ]}}}}),
            ),
            None,
        );
        let terms = rules.terms.unwrap();
        assert_eq!(terms[0], NodeTerm::default());
        assert_eq!(terms[1].labels[0].operator, Operator::Above(5));
        assert_eq!(terms[1].name.len(), 1);
    }

    #[test]
    fn a_toleration_that_is_not_understood_tolerates_nothing() {
        let read = |toleration| tolerations(&spec(json!({"tolerations": [toleration]})));
        assert_eq!(read(json!({"operator": "Exists"})).len(), 1);
        assert_eq!(read(json!({"key": "a", "value": "b"})).len(), 1);
        let above = |value| read(json!({"key": "a", "operator": "Gt", "value": value}));
        assert_eq!(above("-1")[0].values, Tolerated::Above(-1));
        assert_eq!(above("x"), []);
        // As Kubernetes compares them: no plus, no leading zeros.
        assert_eq!((above("+1"), above("01")), (vec![], vec![]));
        assert_eq!(
            read(json!({"key": "a", "operator": "Exists", "effect": "NoSuchEffect"})).len(),
            0
        );
    }
}
