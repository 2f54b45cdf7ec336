//! The four kinds of patch, as functions from an object to an object.
//!
//! Exact: merge patch (RFC 7386), JSON patch (RFC 6902). Approximated: strategic merge,
//! by a table of the merge keys of core types; server-side apply, as a strategic merge
//! plus the removal of what the same manager applied before and now leaves out. Apply
//! knows no conflicts and writes no `managedFields`.

use super::error::ApiError;
use serde_json::{Map, Value};

/// How lists of a resource are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// By the merge keys of core types.
    Keyed,
    /// Replaced whole, as in custom resources that declare nothing else.
    Atomic,
}

/// RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let object = target.as_object_mut().expect("made an object above");
    for (key, value) in changes {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// RFC 6902.
pub(crate) fn json(target: &mut Value, patch: &Value, what: &str) -> Result<(), ApiError> {
    let operations: json_patch::Patch = serde_json::from_value(patch.clone())
        .map_err(|error| ApiError::bad_request(format!("json patch is malformed: {error}")))?;
    json_patch::patch(target, &operations)
        .map_err(|error| ApiError::invalid(what, "", &format!("json patch failed: {error}")))
}

/// The merge key of a list, by the list's own name.
fn merge_key(list: &str) -> Option<&'static str> {
    Some(match list {
        "conditions" | "addresses" => "type",
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "env"
        | "volumes"
        | "imagePullSecrets"
        | "webhooks"
        | "secrets" => "name",
        "ports" => "containerPort",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "ownerReferences" => "uid",
        "hostAliases" | "podIPs" | "hostIPs" => "ip",
        _ => return None,
    })
}

/// Lists of plain values that are sets.
fn is_set(list: &str) -> bool {
    matches!(list, "finalizers")
}

/// Strategic merge.
pub(crate) fn strategic(target: &mut Value, patch: &Value, lists: Lists) {
    strategic_field("", target, patch, lists);
}

fn strategic_field(field: &str, target: &mut Value, patch: &Value, lists: Lists) {
    match patch {
        Value::Object(changes) => strategic_map(target, changes, lists),
        Value::Array(elements) if lists == Lists::Keyed => {
            if let Some(key) = merge_key(field) {
                strategic_list(target, elements, key, lists);
            } else if is_set(field) {
                let mut union = target.as_array().cloned().unwrap_or_default();
                for element in elements {
                    if !union.contains(element) {
                        union.push(element.clone());
                    }
                }
                *target = Value::Array(union);
            } else {
                *target = patch.clone();
            }
        }
        _ => *target = patch.clone(),
    }
}

fn strategic_map(target: &mut Value, changes: &Map<String, Value>, lists: Lists) {
    if changes.get("$patch").and_then(Value::as_str) == Some("replace") || !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let object = target.as_object_mut().expect("made an object above");
    if let Some(kept) = changes.get("$retainKeys").and_then(Value::as_array) {
        object.retain(|key, _| kept.iter().any(|one| one.as_str() == Some(key)));
    }
    for (key, value) in changes {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(Value::Array(elements)) = object.get_mut(list) {
                elements.retain(|element| !gone.contains(element));
            }
        } else if key.starts_with('$') {
            // `$setElementOrder` and the directives read above: the order stays as it was.
        } else if value.is_null() {
            object.remove(key);
        } else {
            strategic_field(
                key,
                object.entry(key.clone()).or_insert(Value::Null),
                value,
                lists,
            );
        }
    }
}

fn strategic_list(target: &mut Value, elements: &[Value], key: &str, lists: Lists) {
    let mut list = target.as_array().cloned().unwrap_or_default();
    if elements
        .iter()
        .any(|element| element.get("$patch").and_then(Value::as_str) == Some("replace"))
    {
        list.clear();
    }
    for element in elements {
        let directive = element.get("$patch").and_then(Value::as_str);
        if directive == Some("replace") {
            continue;
        }
        let place = list
            .iter()
            .position(|existing| existing.get(key) == element.get(key));
        match (directive, place) {
            (Some("delete"), Some(place)) => {
                list.remove(place);
            }
            (Some("delete"), None) => {}
            (_, Some(place)) => strategic_field("", &mut list[place], element, lists),
            (_, None) => {
                let mut fresh = Value::Object(Map::new());
                strategic_field("", &mut fresh, element, lists);
                list.push(fresh);
            }
        }
    }
    *target = Value::Array(list);
}

/// Server-side apply: `before` is what this manager applied last, `others` what the other
/// managers did; what only this one had and now leaves out goes.
pub(crate) fn apply(
    target: &mut Value,
    configuration: &Value,
    before: Option<&Value>,
    others: &[&Value],
    lists: Lists,
) {
    if let Some(before) = before {
        remove_left_out("", target, before, configuration, others, lists);
    }
    strategic(target, configuration, lists);
}

fn remove_left_out(
    field: &str,
    target: &mut Value,
    before: &Value,
    now: &Value,
    others: &[&Value],
    lists: Lists,
) {
    match (before, &mut *target) {
        (Value::Object(had), Value::Object(object)) => {
            for (key, had) in had {
                let theirs: Vec<&Value> = others.iter().filter_map(|o| o.get(key)).collect();
                match (now.get(key), object.get_mut(key)) {
                    (_, None) => {}
                    (Some(now), Some(value)) => {
                        remove_left_out(key, value, had, now, &theirs, lists);
                    }
                    (None, Some(value)) if theirs.is_empty() && !had.is_object() => {
                        let keyed = lists == Lists::Keyed && merge_key(key).is_some();
                        if keyed {
                            remove_left_out(key, value, had, &Value::Array(vec![]), &theirs, lists);
                        }
                        if !keyed || value.as_array().is_some_and(Vec::is_empty) {
                            object.remove(key);
                        }
                    }
                    (None, Some(value)) => {
                        remove_left_out(
                            key,
                            value,
                            had,
                            &Value::Object(Map::new()),
                            &theirs,
                            lists,
                        );
                        if value.as_object().is_some_and(Map::is_empty) {
                            object.remove(key);
                        }
                    }
                }
            }
        }
        (Value::Array(had), Value::Array(list)) if lists == Lists::Keyed => {
            let Some(key) = merge_key(field) else { return };
            let find = |values: &Value, wanted: Option<&Value>| {
                values
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find(|element| element.get(key) == wanted)
                    .cloned()
            };
            list.retain_mut(|element| {
                let id = element.get(key).cloned();
                let Some(had) = had.iter().find(|one| one.get(key) == id.as_ref()) else {
                    return true;
                };
                let theirs: Vec<Value> =
                    others.iter().filter_map(|o| find(o, id.as_ref())).collect();
                match find(now, id.as_ref()) {
                    Some(now) => {
                        let theirs: Vec<&Value> = theirs.iter().collect();
                        remove_left_out("", element, had, &now, &theirs, lists);
                        true
                    }
                    None => !theirs.is_empty(),
                }
            });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_patch_removes_with_null_and_replaces_lists() {
        let mut object = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        merge(&mut object, &json!({"a": {"b": null, "d": 4}, "l": [3]}));
        assert_eq!(object, json!({"a": {"c": 2, "d": 4}, "l": [3]}));
    }

    #[test]
    fn strategic_patch_merges_conditions_by_type() {
        let mut object = json!({"status": {"conditions": [
            {"type": "Ready", "status": "False", "reason": "x"}, {"type": "Other", "status": "True"}
        ]}});
        let patch = json!({"status": {"$setElementOrder/conditions": [], "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "New", "status": "True"}, {"$patch": "delete", "type": "Other"}
        ]}});
        strategic(&mut object, &patch, Lists::Keyed);
        assert_eq!(
            object,
            json!({"status": {"conditions": [
                {"type": "Ready", "status": "True", "reason": "x"}, {"type": "New", "status": "True"}
            ]}})
        );
        strategic(
            &mut object,
            &json!({"status": {"conditions": [{"type": "A"}]}}),
            Lists::Atomic,
        );
        assert_eq!(object, json!({"status": {"conditions": [{"type": "A"}]}}));
    }

    #[test]
    fn json_patch_with_a_failed_test_changes_nothing() {
        let mut object = json!({"a": 1});
        let patch = json!([{"op": "replace", "path": "/a", "value": 2}, {"op": "test", "path": "/a", "value": 1}]);
        assert_eq!(json(&mut object, &patch, "pods").unwrap_err().code, 422);
        assert_eq!(object, json!({"a": 1}));
    }

    #[test]
    fn apply_takes_back_only_what_this_manager_alone_had() {
        let mut object = json!({"metadata": {"labels": {"mine": "1", "shared": "1", "foreign": "1"}},
            "status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}});
        let before = json!({"metadata": {"labels": {"mine": "1", "shared": "1"}},
            "status": {"conditions": [{"type": "A", "status": "True"}]}});
        let other = json!({"metadata": {"labels": {"shared": "1"}}});
        apply(
            &mut object,
            &json!({"metadata": {"labels": {"new": "1"}}}),
            Some(&before),
            &[&other],
            Lists::Keyed,
        );
        assert_eq!(
            object,
            json!({"metadata": {"labels": {"shared": "1", "foreign": "1", "new": "1"}},
                "status": {"conditions": [{"type": "B", "status": "True"}]}})
        );
    }
}
