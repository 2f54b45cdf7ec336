//! Lists for people: the `Table` that `kubectl get` asks for.
//!
//! Pods, nodes and events have the columns of the real server, as far as they say something
//! here; custom resources those of their definition; everything else name and age.
//! In: objects. Out: cells. Never decides what is listed.

use super::object::{at, name, text};
use super::resource::{Collection, Resource};
use super::store::Store;
use serde_json::{Value, json};

/// One column.
#[derive(Clone, Debug)]
pub(super) struct Column {
    title: String,
    kind: String,
    /// Above 0: shown with `-o wide` alone.
    priority: i64,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Age(String),
    Path(String),
    Name,
    PodReady,
    PodStatus,
    PodRestarts,
    NodeStatus,
    EventObject,
}

/// The columns of a resource.
pub(super) fn columns(store: &Store, resource: &Resource) -> Vec<Column> {
    let path = |path: &str| Source::Path(path.to_owned());
    let age = |path: &str| Source::Age(path.to_owned());
    let born = "metadata.creationTimestamp";
    let list: Vec<(&str, i64, Source)> = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => vec![
            ("Name", 0, Source::Name),
            ("Ready", 0, Source::PodReady),
            ("Status", 0, Source::PodStatus),
            ("Restarts", 0, Source::PodRestarts),
            ("Age", 0, age(born)),
            ("IP", 1, path("status.podIP")),
            ("Node", 1, path("spec.nodeName")),
        ],
        ("", "nodes") => vec![
            ("Name", 0, Source::Name),
            ("Status", 0, Source::NodeStatus),
            ("Age", 0, age(born)),
            ("Version", 0, path("status.nodeInfo.kubeletVersion")),
        ],
        ("", "events") => vec![
            ("Last Seen", 0, age("lastTimestamp")),
            ("Type", 0, path("type")),
            ("Reason", 0, path("reason")),
            ("Object", 0, Source::EventObject),
            ("Message", 0, path("message")),
        ],
        _ if resource.custom => return custom(store, resource),
        _ => vec![("Name", 0, Source::Name), ("Age", 0, age(born))],
    };
    list.into_iter()
        .map(|(title, priority, source)| Column {
            title: title.to_owned(),
            kind: "string".to_owned(),
            priority,
            source,
        })
        .collect()
}

fn custom(store: &Store, resource: &Resource) -> Vec<Column> {
    let definitions = Collection::new("apiextensions.k8s.io", "customresourcedefinitions");
    let mut columns = vec![Column {
        title: "Name".into(),
        kind: "string".into(),
        priority: 0,
        source: Source::Name,
    }];
    let printed = store
        .list(&definitions, None)
        .filter(|definition| {
            text(definition, "spec.group") == resource.group
                && text(definition, "spec.names.plural") == resource.plural
        })
        .filter_map(|definition| at(definition, "spec.versions").as_array().cloned())
        .flatten()
        .find(|version| text(version, "name") == resource.version)
        .and_then(|version| at(&version, "additionalPrinterColumns").as_array().cloned());
    for column in printed.unwrap_or_default() {
        let path = text(&column, "jsonPath").trim_start_matches('.').to_owned();
        let kind = text(&column, "type").to_owned();
        columns.push(Column {
            title: text(&column, "name").to_owned(),
            priority: at(&column, "priority").as_i64().unwrap_or(0),
            source: if kind == "date" {
                Source::Age(path)
            } else {
                Source::Path(path)
            },
            kind,
        });
    }
    if columns.len() == 1 {
        columns.push(Column {
            title: "Age".into(),
            kind: "date".into(),
            priority: 0,
            source: Source::Age("metadata.creationTimestamp".into()),
        });
    }
    columns
}

/// The table of some objects.
pub(super) fn of<'a>(
    columns: &[Column],
    objects: impl IntoIterator<Item = &'a Value>,
    revision: &Value,
) -> Value {
    let titles: Vec<Value> = columns
        .iter()
        .map(|column| {
            let format = if matches!(column.source, Source::Name) { "name" } else { "" };
            json!({"name": column.title, "type": column.kind, "format": format, "description": "", "priority": column.priority})
        })
        .collect();
    let rows: Vec<Value> = objects
        .into_iter()
        .map(|object| {
            let cells: Vec<Value> = columns.iter().map(|column| cell(&column.source, object)).collect();
            let partial = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": at(object, "metadata")});
            json!({"cells": cells, "object": partial})
        })
        .collect();
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "Table", "metadata": {"resourceVersion": revision},
        "columnDefinitions": titles, "rows": rows,
    })
}

fn cell(source: &Source, object: &Value) -> Value {
    match source {
        Source::Name => json!(name(object)),
        Source::Path(path) => {
            let found = select(object, path);
            if found.is_null() {
                json!("")
            } else {
                found.clone()
            }
        }
        Source::Age(path) => json!(age(select(object, path))),
        Source::PodReady => {
            let all = at(object, "spec.containers").as_array().map_or(0, Vec::len);
            let ready = statuses(object)
                .filter(|one| at(one, "ready").as_bool() == Some(true))
                .count();
            json!(format!("{ready}/{all}"))
        }
        Source::PodStatus => json!(pod_status(object)),
        Source::PodRestarts => json!(
            statuses(object)
                .filter_map(|one| at(one, "restartCount").as_i64())
                .sum::<i64>()
                .to_string()
        ),
        Source::NodeStatus => {
            let ready = at(object, "status.conditions")
                .as_array()
                .into_iter()
                .flatten()
                .any(|one| text(one, "type") == "Ready" && text(one, "status") == "True");
            let closed = at(object, "spec.unschedulable").as_bool() == Some(true);
            let word = if ready { "Ready" } else { "NotReady" };
            json!(format!(
                "{word}{}",
                if closed { ",SchedulingDisabled" } else { "" }
            ))
        }
        Source::EventObject => json!(format!(
            "{}/{}",
            text(object, "involvedObject.kind").to_lowercase(),
            text(object, "involvedObject.name")
        )),
    }
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    at(pod, "status.containerStatuses")
        .as_array()
        .into_iter()
        .flatten()
}

fn pod_status(pod: &Value) -> String {
    if super::object::deleting(pod) {
        return "Terminating".to_owned();
    }
    let detail = statuses(pod).find_map(|one| {
        ["state.waiting.reason", "state.terminated.reason"]
            .iter()
            .map(|path| text(one, path))
            .find(|reason| !reason.is_empty())
    });
    let own = text(pod, "status.reason");
    match detail {
        _ if !own.is_empty() => own.to_owned(),
        Some(reason) => reason.to_owned(),
        None => text(pod, "status.phase").to_owned(),
    }
}

/// The part of `JSONPath` that printer columns use: names, and `[?(@.a=="b")]`.
fn select<'a>(object: &'a Value, path: &str) -> &'a Value {
    let Some((before, rest)) = path.split_once("[?(@.") else {
        return at(object, path);
    };
    let Some((condition, after)) = rest.split_once(")]") else {
        return &Value::Null;
    };
    let Some((field, wanted)) = condition.split_once("==") else {
        return &Value::Null;
    };
    let wanted = wanted.trim().trim_matches(['"', '\'']);
    let found = at(object, before)
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| text(one, field.trim()) == wanted);
    match (found, after.trim_start_matches('.')) {
        (None, _) => &Value::Null,
        (Some(found), "") => found,
        (Some(found), rest) => select(found, rest),
    }
}

/// As `kubectl` writes durations, roughly: the largest unit alone.
fn age(time: &Value) -> String {
    let Some(then) = time
        .as_str()
        .and_then(|text| text.parse::<jiff::Timestamp>().ok())
    else {
        return "<unknown>".to_owned();
    };
    let seconds = jiff::Timestamp::now().duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printer_column_finds_a_condition_by_its_type() {
        let object = json!({"status": {"conditions": [{"type": "A", "status": "False"}, {"type": "B", "status": "True"}], "n": 3}});
        let path = "status.conditions[?(@.type==\"B\")].status";
        assert_eq!(select(&object, path), "True");
        assert_eq!(select(&object, "status.n"), 3);
        assert!(select(&object, "status.conditions[?(@.type==\"C\")].status").is_null());
    }

    #[test]
    fn a_pods_status_is_the_most_telling_word() {
        for (pod, expected) in [
            (json!({"status": {"phase": "Running"}}), "Running"),
            (
                json!({"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "CreateContainerConfigError"}}}]}}),
                "CreateContainerConfigError",
            ),
            (
                json!({"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}),
                "UnexpectedAdmissionError",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Running"}}),
                "Terminating",
            ),
        ] {
            assert_eq!(pod_status(&pod), expected);
        }
    }
}
