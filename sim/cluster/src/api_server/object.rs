//! Reading and writing the parts of an object that every kind has.
//! In: JSON objects. Never decides what a value should be.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// `a.b.c` in an object; `Null` where it is not.
pub(crate) fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.')
        .try_fold(object, |value, step| value.get(step))
        .unwrap_or(&NULL)
}

/// A string at a path; empty where it is not.
pub(crate) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    at(object, path).as_str().unwrap_or_default()
}

/// `metadata.name`.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "metadata.name")
}

/// `metadata.namespace`.
pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "metadata.namespace")
}

/// `metadata.uid`.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "metadata.uid")
}

/// A map at a key, made where it is missing or something else.
pub(crate) fn map<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let entry = object
        .as_object_mut()
        .expect("made an object above")
        .entry(key)
        .or_insert_with(|| Value::Object(Map::new()));
    if !entry.is_object() {
        *entry = Value::Object(Map::new());
    }
    entry.as_object_mut().expect("made an object above")
}

/// `metadata`.
pub(crate) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    map(object, "metadata")
}

/// Whether a deletion has begun.
pub(crate) fn deleting(object: &Value) -> bool {
    at(object, "metadata.deletionTimestamp").is_string()
}

/// Whether the object still has finalizers.
pub(crate) fn has_finalizers(object: &Value) -> bool {
    at(object, "metadata.finalizers")
        .as_array()
        .is_some_and(|list| !list.is_empty())
}

/// Copies `metadata.<key>` from one object to another, absence included.
pub(crate) fn keep_metadata(from: &Value, to: &mut Value, key: &str) {
    let kept = from.get("metadata").and_then(|meta| meta.get(key)).cloned();
    let meta = metadata(to);
    match kept {
        Some(value) => meta.insert(key.to_owned(), value),
        None => meta.remove(key),
    };
}

/// Copies a top-level field from one object to another, absence included.
pub(crate) fn keep_field(from: &Value, to: &mut Value, key: &str) {
    let Some(target) = to.as_object_mut() else {
        return;
    };
    match from.get(key) {
        Some(value) => target.insert(key.to_owned(), value.clone()),
        None => target.remove(key),
    };
}
