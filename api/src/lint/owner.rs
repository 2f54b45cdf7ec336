//! The mistakes in the metadata of a Deployment, a Job or another owner of pods.

use super::finding::{Cluster, Finding};
use super::keys;
use super::pod::{class, entries};
use super::templates::Template;
use crate::request::shown;
use serde_json::Value;

/// Returns the mistakes in the metadata of an owner.
pub(super) fn of(object: &Value, templates: &[Template<'_>], cluster: &Cluster) -> Vec<Finding> {
    let Some(first) = templates.first().filter(|first| !first.path.is_empty()) else {
        return Vec::new();
    };
    let kind = shown(object["kind"].as_str().unwrap_or("object"));
    let mut findings = Vec::new();
    for (key, _) in entries(&object["metadata"]["annotations"]) {
        let there = |template: &Template<'_>| {
            let own = &template.pod["metadata"]["annotations"];
            own.get(key).is_some()
        };
        let meant = keys::meant_annotation(key).filter(|meant| keys::counts_on_pods_alone(meant));
        let misplaced = keys::counts_on_pods_alone(key) || meant.is_some();
        if !misplaced || templates.iter().any(there) {
            continue;
        }
        let field = format!("metadata.annotations[{}]", shown(key));
        let problem = format!("is on the {kind}, and counts on its pods alone");
        let name = match &meant {
            Some(meant) => format!(" as {meant}"),
            None => String::new(),
        };
        let fix = format!("move it to {}metadata.annotations{name}", first.path);
        let finding = Finding::new(field, problem, fix);
        let of_share = keys::is_of_share(meant.as_deref().unwrap_or(key));
        findings.push(if of_share {
            finding.without_gpu()
        } else {
            finding
        });
    }
    for (key, value) in entries(&object["metadata"]["labels"]) {
        let field = format!("metadata.labels[{}]", shown(key));
        if keys::is_of_share(key) {
            let fix = format!(
                "move it to {}metadata.annotations, as an annotation",
                first.path
            );
            let problem =
                format!("is a label of the {kind}, and counts as an annotation of its pods alone");
            findings.push(Finding::new(field, problem, fix).without_gpu());
        } else if let Some(meant) = keys::meant_label(key).filter(|_| !keys::is_label(key)) {
            let fix = format!("write {meant}");
            findings.push(Finding::new(field, "is read by nothing of Aliquot", fix));
        } else if key == proto::names::kai::PRIORITY_CLASS_LABEL {
            findings.extend(class(field, value, cluster));
        }
    }
    findings
}
