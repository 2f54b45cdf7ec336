//! Finds everything that admission would say about a manifest, before it is applied. Pure.
//!
//! In: an object of any kind that has pods. Out: the silent mistakes ([`api::lint`]), and what the
//! webhook of pods would refuse or not follow in each of its pods. The author of a Deployment never
//! sees what the webhook says of its pods: their controller is answered.

use super::amend::amended;
use api::lint::{Cluster, Finding, Template, templates};
use serde_json::{Value, json};

/// Returns the mistakes of an object. An object without pods has none.
pub fn of(object: &Value, cluster: &Cluster) -> Vec<Finding> {
    let mut findings = api::lint::of(object, cluster);
    for template in templates(object) {
        findings.extend(answered(&template));
    }
    findings
}

/// Returns what the webhook would answer to a pod.
fn answered(template: &Template<'_>) -> Vec<Finding> {
    let whole = template.path.trim_end_matches('.');
    match amended(&readable(template.pod)) {
        Ok(amended) => {
            let warnings = amended.warnings.iter();
            warnings
                .map(|warning| {
                    // `annotation KEY WHY`
                    let words = warning.strip_prefix("annotation ");
                    match words.and_then(|words| words.split_once(' ')) {
                        Some((key, why)) => {
                            let field = format!("{}metadata.annotations[{key}]", template.path);
                            Finding::new(field, why, "")
                        }
                        None => Finding::new(whole, warning, ""),
                    }
                })
                .collect()
        }
        Err(refusal) => {
            let whole = if whole.is_empty() { "the pod" } else { whole };
            vec![Finding::new(
                whole,
                format!("would be rejected: {refusal}"),
                "",
            )]
        }
    }
}

/// Returns the pod with a text for each number in its metadata. A number has a finding of its own, and
/// would hide the other mistakes.
fn readable(template: &Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod"});
    for part in ["metadata", "spec"] {
        if !template[part].is_null() {
            pod[part] = template[part].clone();
        }
    }
    for map in ["annotations", "labels"] {
        let values = pod["metadata"][map].as_object_mut();
        for value in values.into_iter().flat_map(|map| map.values_mut()) {
            if value.is_number() || value.is_boolean() {
                *value = Value::String(value.to_string());
            }
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(object: &Value) -> Vec<String> {
        let cluster = Cluster::of_scheduler("kai-scheduler");
        of(object, &cluster)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_admission_would_answer_to_the_pods_of_an_owner_is_said_of_the_owner() {
        let with = |annotations: Value| {
            let pod = json!({"metadata": {"annotations": annotations},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c"}]}});
            lines(
                &json!({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": pod}}),
            )
        };
        let [refused] = &with(json!({"gpu-memory": "2GB"}))[..] else {
            panic!("one")
        };
        assert!(
            refused
                .starts_with("spec.template would be rejected: gpu-memory annotation value must")
                && refused.ends_with("write \"1908\" for 1908 MiB"),
            "{refused}"
        );
        let [unfollowed] =
            &with(json!({"gpu-memory": "2000", "runai/shared-gpu-configmap": "x"}))[..]
        else {
            panic!("one")
        };
        assert!(
            unfollowed.starts_with(
                "spec.template.metadata.annotations[runai/shared-gpu-configmap] is not followed"
            ),
            "{unfollowed}"
        );
        // Both the quotes and what they would hide.
        let both = with(json!({"gpu-memory": 2000, "gpu-fraction": 0.5}));
        assert_eq!(both.len(), 3, "{both:?}");
        assert!(
            both[2].contains("cannot request both GPU and GPU memory"),
            "{both:?}"
        );
        assert_eq!(with(json!({"gpu-memory": "2000"})), [""; 0]);
        assert_eq!(lines(&json!({"kind": "Service", "metadata": {}})), [""; 0]);
    }
}
