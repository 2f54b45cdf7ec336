//! Label and field selectors, as in a query string.
//! In: text and objects. Out: whether an object is meant. Field labels that the real
//! server does not know are refused, so that no selector works here alone.

use super::error::ApiError;
use super::object::{at, text};
use super::resource::Resource;
use serde_json::Value;

/// What a list or a watch is restricted to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<(String, bool, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Selector {
    /// From the query's `labelSelector` and `fieldSelector`.
    pub(crate) fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = split(labels)
            .into_iter()
            .map(requirement)
            .collect::<Result<_, _>>()?;
        let fields = fields
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| field(resource, part))
            .collect::<Result<_, _>>()?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = at(object, "metadata.labels");
        self.labels.iter().all(|one| one.matches(labels))
            && self.fields.iter().all(|(path, equal, wanted)| {
                let found = at(object, path);
                let same = match found {
                    Value::String(found) => found == wanted,
                    Value::Bool(found) => found.to_string() == *wanted,
                    _ => wanted.is_empty(),
                };
                same == *equal
            })
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let value = |key: &str| labels.get(key).and_then(Value::as_str);
        match self {
            Self::In(key, set) => value(key).is_some_and(|v| set.iter().any(|one| one == v)),
            Self::NotIn(key, set) => value(key).is_none_or(|v| set.iter().all(|one| one != v)),
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
        }
    }
}

/// A `metav1.LabelSelector` (matchLabels, matchExpressions); an absent one means all.
pub(crate) fn label_selector_matches(selector: &Value, labels: &Value) -> bool {
    let by_label = selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let by_expression = selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .all(|expression| {
            let key = text(expression, "key").to_owned();
            let values: Vec<String> = at(expression, "values")
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|v| v.as_str().map(str::to_owned))
                .collect();
            match text(expression, "operator") {
                "In" => Requirement::In(key, values).matches(labels),
                "NotIn" => Requirement::NotIn(key, values).matches(labels),
                "Exists" => Requirement::Exists(key).matches(labels),
                "DoesNotExist" => Requirement::Absent(key).matches(labels),
                _ => false,
            }
        });
    by_label && by_expression
}

/// Splits at commas that are not in parentheses.
fn split(selector: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_u32, 0);
    for (position, character) in selector.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&selector[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&selector[start..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn requirement(part: &str) -> Result<Requirement, ApiError> {
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key.trim().to_owned(), one(value)));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(key.trim().to_owned(), one(value)));
    }
    if let Some((head, set)) = part.split_once('(') {
        let values = set
            .trim_end()
            .strip_suffix(')')
            .ok_or_else(|| ApiError::bad_request(format!("unable to parse requirement: {part}")))?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        return match head.split_whitespace().collect::<Vec<_>>()[..] {
            [key, "in"] => Ok(Requirement::In(key.to_owned(), values)),
            [key, "notin"] => Ok(Requirement::NotIn(key.to_owned(), values)),
            _ => Err(ApiError::bad_request(format!(
                "unable to parse requirement: {part}"
            ))),
        };
    }
    Ok(match part.strip_prefix('!') {
        Some(key) => Requirement::Absent(key.trim().to_owned()),
        None => Requirement::Exists(part.to_owned()),
    })
}

fn field(resource: &Resource, part: &str) -> Result<(String, bool, String), ApiError> {
    let (path, equal, value) = if let Some((path, value)) = part.split_once("!=") {
        (path, false, value)
    } else if let Some((path, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (path, true, value)
    } else {
        return Err(ApiError::bad_request(format!(
            "invalid selector: '{part}'; can't understand"
        )));
    };
    let known: &[&str] = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("" | "events.k8s.io", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "type",
        ],
        _ => &[],
    };
    if !["metadata.name", "metadata.namespace"].contains(&path) && !known.contains(&path) {
        return Err(ApiError::bad_request(format!(
            "field label not supported: {path}"
        )));
    }
    Ok((path.to_owned(), equal, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_server::resource::built_in;
    use serde_json::json;

    #[test]
    fn a_selector_means_what_kubernetes_says() {
        let pods = built_in("", "v1", "pods").unwrap();
        let pod = json!({
            "metadata": {"name": "p", "labels": {"app": "web", "tier": "front"}},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
        });
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=web", "", true),
            ("app==web,tier!=back", "", true),
            ("app in (web, db),tier notin (back)", "", true),
            ("app in (db)", "", false),
            ("app,!gone", "", true),
            ("gone", "", false),
            ("!app", "", false),
            ("other!=x", "", true),
            ("", "spec.nodeName=n1", true),
            ("", "spec.nodeName!=n1", false),
            ("", "spec.nodeName=", false),
            ("", "status.phase!=Succeeded,status.phase!=Failed", true),
            ("", "spec.schedulerName=", true),
        ] {
            let selector = Selector::parse(&pods, labels, fields).unwrap();
            assert_eq!(selector.matches(&pod), expected, "{labels} {fields}");
        }
    }

    #[test]
    fn field_labels_of_no_real_server_are_refused() {
        let pods = built_in("", "v1", "pods").unwrap();
        assert_eq!(
            Selector::parse(&pods, "", "spec.hostname=x")
                .unwrap_err()
                .code,
            400
        );
        assert_eq!(
            Selector::parse(&pods, "", "nonsense").unwrap_err().code,
            400
        );
        assert_eq!(Selector::parse(&pods, "a in (b", "").unwrap_err().code, 400);
    }
}
