//! What clients ask before they ask for objects: groups, resources, and as much of `OpenAPI`
//! as `kubectl apply` wants to see.
//! In: the resources that definitions added. Out: documents.

use super::resource::{Resource, all_built_in};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What `/apis` answers.
pub(crate) fn groups(custom: &[Resource]) -> Value {
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for resource in all_built_in().chain(custom.iter().cloned()) {
        if !resource.group.is_empty() {
            groups
                .entry(resource.group)
                .or_default()
                .insert(resource.version);
        }
    }
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .into_iter()
                .rev()
                .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
                .collect();
            json!({"name": group, "preferredVersion": versions[0], "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// What `/api/v1` and `/apis/<group>/<version>` answer; `None` where nothing is served.
pub(crate) fn resources(custom: &[Resource], group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for resource in all_built_in().chain(custom.iter().cloned()) {
        if resource.group != group || resource.version != version {
            continue;
        }
        let verbs = if resource.plural.ends_with("reviews") {
            json!(["create"])
        } else {
            json!([
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch"
            ])
        };
        list.push(json!({
            "name": resource.plural, "singularName": resource.kind.to_lowercase(),
            "namespaced": resource.namespaced, "kind": resource.kind, "verbs": verbs,
            "shortNames": resource.short_names,
        }));
        if resource.status {
            list.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "",
                "namespaced": resource.namespaced, "kind": resource.kind,
                "verbs": ["get", "patch", "update"],
            }));
        }
    }
    if list.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list}),
    )
}

/// What `/openapi/v3` answers: a document per group and version.
pub(crate) fn openapi_index(custom: &[Resource]) -> Value {
    let paths: Map<String, Value> = all_built_in()
        .chain(custom.iter().cloned())
        .map(|resource| {
            let path = root(&resource);
            let url = format!("/openapi/v3/{path}?hash=0");
            (path, json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({"paths": paths})
}

/// One of them: which kinds can be patched, and that fields are validated here. They are not; but a
/// client that reads this sends its object instead of validating it by schemas that this server
/// does not have.
pub(crate) fn openapi(custom: &[Resource], path: &str) -> Value {
    let paths: Map<String, Value> = all_built_in()
        .chain(custom.iter().cloned())
        .filter(|resource| root(resource) == path)
        .map(|resource| {
            let scope = if resource.namespaced {
                "/namespaces/{namespace}"
            } else {
                ""
            };
            let place = format!("/{path}{scope}/{}/{{name}}", resource.plural);
            let kind = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
            let parameters: Vec<Value> = ["dryRun", "fieldManager", "fieldValidation", "force"]
                .iter()
                .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
                .collect();
            (place, json!({"patch": {"x-kubernetes-group-version-kind": kind, "parameters": parameters, "responses": {}}}))
        })
        .collect();
    json!({"openapi": "3.0.0", "info": {"title": "aliquot", "version": "0"}, "paths": paths, "components": {}})
}

/// `api/v1`, `apis/apps/v1`.
fn root(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    }
}
