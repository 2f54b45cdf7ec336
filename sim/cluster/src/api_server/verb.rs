//! Create, replace, patch and delete: what each kind has in common.
//!
//! In: the store, the resource, a body that admission has seen, the time. Out: the object
//! as it now is, or a refusal with the real server's code. Never does I/O.

use super::error::ApiError;
use super::object::{
    at, deleting, has_finalizers, keep_field, keep_metadata, metadata, name, namespace, text, uid,
};
use super::patch::{self, Lists};
use super::pod;
use super::resource::{Collection, Resource, built_in};
use super::store::{Key, Store};
use serde_json::{Value, json};
use std::sync::Arc;

/// The moment of a request, RFC 3339 in UTC, seconds.
pub(crate) type Now<'a> = &'a str;

/// How a body changes an object.
#[derive(Debug)]
pub(crate) enum Edit {
    /// PUT.
    Replace(Value),
    /// `application/merge-patch+json`.
    Merge(Value),
    /// `application/strategic-merge-patch+json`.
    Strategic(Value),
    /// `application/json-patch+json`.
    Json(Value),
    /// `application/apply-patch+yaml`, by this field manager.
    Apply(Value, String),
}

/// Fills in name, namespace, kind and defaults of an object that is to be created.
/// Admission sees the result.
pub(crate) fn prepare(
    store: &mut Store,
    resource: &Resource,
    requested_namespace: &str,
    mut object: Value,
) -> Result<Value, ApiError> {
    if !object.is_object() {
        return Err(ApiError::bad_request("the body is not an object"));
    }
    let kind = text(&object, "kind");
    if !kind.is_empty() && kind != resource.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}",
            text(&object, "apiVersion"),
            resource.kind
        )));
    }
    let given = namespace(&object);
    if resource.namespaced {
        if !given.is_empty() && given != requested_namespace {
            return Err(ApiError::bad_request(format!(
                "the namespace of the provided object does not match the namespace sent on the request ({given} is not {requested_namespace})"
            )));
        }
        let namespaces = Collection::new("", "namespaces");
        let key = Key {
            namespace: String::new(),
            name: requested_namespace.to_owned(),
        };
        match store.get(&namespaces, &key) {
            None => return Err(ApiError::not_found("namespaces", requested_namespace)),
            Some(found) if deleting(found) => {
                return Err(ApiError::forbidden(format!(
                    "unable to create new content in namespace {requested_namespace} because it is being terminated"
                )));
            }
            Some(_) => {}
        }
        metadata(&mut object).insert("namespace".into(), json!(requested_namespace));
    } else {
        metadata(&mut object).remove("namespace");
    }
    if name(&object).is_empty() {
        let prefix = text(&object, "metadata.generateName").to_owned();
        if prefix.is_empty() {
            return Err(ApiError::invalid(
                &resource.kind,
                "",
                "metadata.name: Required value: name or generateName is required",
            ));
        }
        let generated = format!("{prefix}{}", store.suffix());
        metadata(&mut object).insert("name".into(), json!(generated));
    }
    check_name(resource, name(&object))?;
    object["apiVersion"] = json!(resource.api_version());
    object["kind"] = json!(resource.kind);
    if resource.is("", "pods") {
        pod::default(&mut object)?;
    }
    Ok(object)
}

fn check_name(resource: &Resource, name: &str) -> Result<(), ApiError> {
    let lenient = resource.group == "rbac.authorization.k8s.io";
    let fine = !name.is_empty()
        && name.len() <= 253
        && (lenient
            || name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
                && name.as_bytes()[0].is_ascii_alphanumeric()
                && name.as_bytes()[name.len() - 1].is_ascii_alphanumeric());
    if fine {
        Ok(())
    } else {
        Err(ApiError::invalid(
            &resource.kind,
            name,
            "metadata.name: Invalid value: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
        ))
    }
}

/// Puts a prepared and admitted object into the store.
pub(crate) fn create(
    store: &mut Store,
    resource: &Resource,
    mut object: Value,
    now: Now<'_>,
    dry_run: bool,
) -> Result<Arc<Value>, ApiError> {
    let collection = resource.collection();
    let key = Key::of(&object);
    if store.get(&collection, &key).is_some() {
        return Err(ApiError::already_exists(&resource.qualified(), &key.name));
    }
    let identity = store.uid();
    let meta = metadata(&mut object);
    meta.insert("uid".into(), json!(identity));
    meta.insert("creationTimestamp".into(), json!(now));
    for gone in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
    ] {
        meta.remove(gone);
    }
    if object.get("spec").is_some() {
        metadata(&mut object).insert("generation".into(), json!(1));
    }
    fresh_status(resource, &mut object, now);
    if dry_run {
        return Ok(Arc::new(object));
    }
    Ok(store.put(&collection, object))
}

/// The status that the server itself gives a new object.
fn fresh_status(resource: &Resource, object: &mut Value, now: Now<'_>) {
    if resource.status && !resource.is("", "nodes") {
        // A new node's status is kept: the kubelet registers with it.
        object
            .as_object_mut()
            .expect("prepared objects are objects")
            .remove("status");
    }
    if resource.is("", "pods") {
        object["status"] = json!({"phase": "Pending", "qosClass": pod::quality_of_service(object)});
    } else if resource.is("", "namespaces") {
        object["status"] = json!({"phase": "Active"});
        object["spec"] = json!({"finalizers": ["kubernetes"]});
    } else if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        let condition = |kind: &str, reason: &str| json!({"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now});
        object["status"] = json!({
            "acceptedNames": at(object, "spec.names"),
            "conditions": [condition("NamesAccepted", "NoConflicts"), condition("Established", "InitialNamesAccepted")],
            "storedVersions": at(object, "spec.versions").as_array().into_iter().flatten()
                .filter(|version| at(version, "storage").as_bool() == Some(true))
                .map(|version| at(version, "name").clone()).collect::<Vec<_>>(),
        });
    }
}

/// PUT and PATCH, on the object or on its status. Apply and PUT of a missing object return
/// `Ok(None)`: the caller creates it.
pub(crate) fn edit(
    store: &mut Store,
    resource: &Resource,
    key: &Key,
    status: bool,
    edit: &Edit,
    dry_run: bool,
) -> Result<Option<Arc<Value>>, ApiError> {
    let collection = resource.collection();
    let Some(before) = store.get(&collection, key).cloned() else {
        return match edit {
            Edit::Apply(..) if !status => Ok(None),
            _ => Err(ApiError::not_found(&resource.qualified(), &key.name)),
        };
    };
    let lists = if resource.custom {
        Lists::Atomic
    } else {
        Lists::Keyed
    };
    let mut after = (*before).clone();
    let asked = match edit {
        Edit::Replace(body) => {
            after = body.clone();
            body
        }
        Edit::Merge(body) => {
            patch::merge(&mut after, body);
            body
        }
        Edit::Strategic(_) if resource.custom => {
            return Err(ApiError::unsupported_media(
                "application/strategic-merge-patch+json",
            ));
        }
        Edit::Strategic(body) => {
            patch::strategic(&mut after, body, lists);
            body
        }
        Edit::Json(body) => {
            patch::json(&mut after, body, &resource.qualified())?;
            &after.clone()
        }
        Edit::Apply(body, manager) => {
            // One manager's hold on the object and on its status are two.
            let slot = format!("{manager}{}", if status { "/status" } else { "" });
            let applied = store.applied(&collection, key);
            let others: Vec<&Value> = applied
                .iter()
                .filter(|(name, _)| **name != slot)
                .map(|(_, value)| value)
                .collect();
            patch::apply(&mut after, body, applied.get(&slot), &others, lists);
            if !dry_run {
                store.set_applied(&collection, key, &slot, body.clone());
            }
            body
        }
    };
    for (what, found) in [
        ("resourceVersion", text(asked, "metadata.resourceVersion")),
        ("uid", uid(asked)),
    ] {
        let actual = text(&before, &format!("metadata.{what}"));
        if !found.is_empty() && found != actual {
            let why = if what == "uid" {
                format!(
                    "Precondition failed: UID in precondition: {found}, UID in object meta: {actual}"
                )
            } else {
                "the object has been modified; please apply your changes to the latest version and try again".to_owned()
            };
            return Err(ApiError::conflict(&resource.qualified(), &key.name, &why));
        }
    }
    if !after.is_object() || name(&after) != key.name {
        return Err(ApiError::bad_request(
            "the name of the object does not match the name on the URL",
        ));
    }
    protect(resource, &before, &mut after, status)?;
    if after == *before || dry_run {
        return Ok(Some(Arc::new(after)));
    }
    if deleting(&after)
        && !has_finalizers(&after)
        && has_finalizers(&before)
        && !is_graceful(&after)
    {
        store.put(&collection, after);
        let last = store.remove(&collection, key);
        return Ok(last);
    }
    Ok(Some(store.put(&collection, after)))
}

/// Puts back what this path may not change.
fn protect(
    resource: &Resource,
    before: &Value,
    after: &mut Value,
    status: bool,
) -> Result<(), ApiError> {
    for field in ["apiVersion", "kind"] {
        keep_field(before, after, field);
    }
    let mut kept = vec![
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
        "resourceVersion",
        "generation",
    ];
    if status {
        kept.extend(["ownerReferences", "finalizers"]);
        if resource.custom {
            kept.extend(["labels", "annotations"]);
        }
        let fields: Vec<String> = before
            .as_object()
            .into_iter()
            .chain(after.as_object())
            .flat_map(|object| object.keys().cloned())
            .filter(|field| field != "status" && field != "metadata")
            .collect();
        for field in fields {
            keep_field(before, after, &field);
        }
    } else if resource.status {
        keep_field(before, after, "status");
    }
    for field in kept {
        keep_metadata(before, after, field);
    }
    if !status {
        if resource.is("", "pods") {
            pod::check_update(before, after)?;
        }
        if before.get("spec") != after.get("spec") && before.get("spec").is_some() {
            let generation = at(before, "metadata.generation").as_i64().unwrap_or(0) + 1;
            metadata(after).insert("generation".into(), json!(generation));
        }
    }
    Ok(())
}

fn is_graceful(object: &Value) -> bool {
    at(object, "metadata.deletionGracePeriodSeconds")
        .as_i64()
        .is_some_and(|grace| grace > 0)
}

/// What a DELETE answers with.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// It was deleted; its last state.
    Gone(Arc<Value>),
    /// It waits for its kubelet or for finalizers.
    Begun(Arc<Value>),
}

/// DELETE with `DeleteOptions`.
pub(crate) fn delete(
    store: &mut Store,
    resource: &Resource,
    key: &Key,
    options: &Value,
    now: jiff::Timestamp,
    dry_run: bool,
) -> Result<Deleted, ApiError> {
    let collection = resource.collection();
    let Some(object) = store.get(&collection, key).cloned() else {
        return Err(ApiError::not_found(&resource.qualified(), &key.name));
    };
    for (what, actual) in [
        ("uid", uid(&object)),
        ("resourceVersion", text(&object, "metadata.resourceVersion")),
    ] {
        let wanted = text(options, &format!("preconditions.{what}"));
        if !wanted.is_empty() && wanted != actual {
            return Err(ApiError::conflict(
                &resource.qualified(),
                &key.name,
                &format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({actual}). The object might have been deleted and then recreated"
                ),
            ));
        }
    }
    if dry_run {
        return Ok(Deleted::Begun(object));
    }
    let grace = if resource.is("", "pods") {
        pod::deletion_grace(&object, options)
    } else {
        0
    };
    if grace > 0 || has_finalizers(&object) {
        let running = at(&object, "metadata.deletionGracePeriodSeconds").as_i64();
        if deleting(&object) && running.is_some_and(|left| left <= grace) {
            return Ok(Deleted::Begun(object));
        }
        let mut marked = (*object).clone();
        let end = now
            .checked_add(jiff::SignedDuration::from_secs(grace))
            .map_err(|_| ApiError::bad_request("gracePeriodSeconds is out of range"))?;
        let meta = metadata(&mut marked);
        meta.insert("deletionTimestamp".into(), json!(stamp(end)));
        meta.insert("deletionGracePeriodSeconds".into(), json!(grace));
        return Ok(Deleted::Begun(store.put(&collection, marked)));
    }
    if resource.is("", "namespaces") {
        return Ok(empty_namespace(store, &key.name, now, &object));
    }
    let last = store
        .remove(&collection, key)
        .ok_or_else(|| ApiError::not_found(&resource.qualified(), &key.name))?;
    Ok(Deleted::Gone(last))
}

/// Deletes the objects of a namespace; the namespace is removed once its pods have ended.
fn empty_namespace(
    store: &mut Store,
    namespace: &str,
    now: jiff::Timestamp,
    object: &Value,
) -> Deleted {
    let namespaces = Collection::new("", "namespaces");
    let key = Key {
        namespace: String::new(),
        name: namespace.to_owned(),
    };
    let pods = built_in("", "v1", "pods").expect("pods are in the table");
    let mut waiting = false;
    for (collection, inner) in store.keys_in(namespace) {
        if collection == pods.collection() {
            let begun = delete(store, &pods, &inner, &Value::Null, now, false);
            waiting |= matches!(begun, Ok(Deleted::Begun(_)));
        } else {
            store.remove(&collection, &inner);
        }
    }
    if !waiting && let Some(last) = store.remove(&namespaces, &key) {
        return Deleted::Gone(last);
    }
    let mut marked = object.clone();
    if !deleting(&marked) {
        metadata(&mut marked).insert("deletionTimestamp".into(), json!(stamp(now)));
    }
    marked["status"] = json!({"phase": "Terminating"});
    Deleted::Begun(store.put(&namespaces, marked))
}

/// Ends the deletion of the namespaces whose last pod has gone.
pub(crate) fn finish_namespaces(store: &mut Store) {
    let namespaces = Collection::new("", "namespaces");
    let ended: Vec<Key> = store
        .list(&namespaces, None)
        .filter(|object| deleting(object))
        .map(|object| Key::of(object))
        .filter(|key| store.keys_in(&key.name).is_empty())
        .collect();
    for key in ended {
        store.remove(&namespaces, &key);
    }
}

/// RFC 3339, seconds, UTC.
pub(crate) fn stamp(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
