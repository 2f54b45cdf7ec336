//! Definitions as they are in the cluster, against the types that we read and write.
//!
//! A CRD that lacks a field is an older one: the API server drops the field, which is logged once.
//! A CRD that gives a field another type, or does not serve our version, is another kind under the
//! same name.

use super::error::PreflightError;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::Api;
use kube::{Client, CustomResourceExt as _, ResourceExt as _};
use serde_json::Value;

/// Where the definition of pod groups has the status that KAI removed in 0.16.
const PHASE: &str = "/properties/status/properties/phase";

/// Returns whether pod groups have a phase.
pub(super) async fn look(client: &Client) -> Result<bool, PreflightError> {
    let mut has_phase = false;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for ours in [
        api::Queue::crd(),
        api::PodGroup::crd(),
        api::Topology::crd(),
        api::kai::ShardDefinition::crd(),
        api::kai::ConfigDefinition::crd(),
    ] {
        let name = ours.name_any();
        let found = match definitions.get_opt(&name).await {
            Ok(Some(found)) => found,
            // Not installed: there is none of it.
            Ok(None) => continue,
            // Without the right to read it, continue: the watch reports what it cannot read.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::warn!(name, "not allowed to read the CRD");
                continue;
            }
            Err(source) => {
                return Err(PreflightError::Api {
                    what: "read a CRD",
                    source: Box::new(source),
                });
            }
        };
        let mut missing = Vec::new();
        let (ours, found) = (value(&ours), value(&found));
        let served = compare(&ours, &found, &mut missing);
        has_phase |= served
            .as_ref()
            .is_ok_and(|schema| schema.pointer(PHASE).is_some());
        if let Err(why) = served {
            return Err(PreflightError::Shape {
                definition: name,
                why,
            });
        }
        if !missing.is_empty() {
            tracing::warn!(
                name,
                fields = missing.join(", "),
                "an older CRD: the API server drops these fields"
            );
        }
    }
    Ok(has_phase)
}

fn value(definition: &CustomResourceDefinition) -> Value {
    serde_json::to_value(definition).unwrap_or_default()
}

/// Our only version must be there and alike. Returns its schema.
fn compare(ours: &Value, found: &Value, missing: &mut Vec<String>) -> Result<Value, String> {
    for path in ["/spec/scope", "/spec/names/kind", "/spec/names/plural"] {
        let (ours, found) = (ours.pointer(path), found.pointer(path));
        if ours != found {
            let text = |value: Option<&Value>| {
                value
                    .and_then(Value::as_str)
                    .unwrap_or("nothing")
                    .to_owned()
            };
            let what = path.rsplit('/').next().unwrap_or(path);
            return Err(format!("{what} is {}, not {}", text(found), text(ours)));
        }
    }
    let ours = &ours["spec"]["versions"][0];
    let version = ours["name"].as_str().unwrap_or_default();
    let versions = found["spec"]["versions"].as_array();
    let served = versions
        .into_iter()
        .flatten()
        .find(|one| one["name"] == *version && one["served"] == true)
        .ok_or_else(|| format!("it does not serve version {version}"))?;
    let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
    let theirs = schema(served);
    alike(&schema(ours), &theirs, "", missing).map(|()| theirs)
}

/// Every field of ours, as far as they describe it.
fn alike(
    ours: &Value,
    theirs: &Value,
    path: &str,
    missing: &mut Vec<String>,
) -> Result<(), String> {
    if let (Some(ours), Some(theirs)) = (kind(ours), kind(theirs))
        && ours != theirs
    {
        return Err(format!("{path} is of type {theirs}, not {ours}"));
    }
    if let Some(items) = theirs.get("items") {
        alike(&ours["items"], items, &format!("{path}[]"), missing)?;
    }
    let (Some(fields), Some(known)) = (
        ours["properties"].as_object(),
        theirs["properties"].as_object(),
    ) else {
        return Ok(());
    };
    let open = theirs["x-kubernetes-preserve-unknown-fields"] == true;
    for (name, field) in fields {
        let path = format!("{path}.{name}");
        match known.get(name) {
            Some(theirs) => alike(field, theirs, &path, missing)?,
            None if !open => missing.push(path),
            None => {}
        }
    }
    Ok(())
}

/// Whole numbers are numbers: a definition may say either where we write whole ones.
fn kind(schema: &Value) -> Option<&str> {
    match schema["type"].as_str()? {
        "integer" => Some("number"),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn our_own_definitions_are_alike_and_lack_nothing() {
        for definition in [
            api::Queue::crd(),
            api::PodGroup::crd(),
            api::Topology::crd(),
        ] {
            let mut missing = Vec::new();
            let ours = value(&definition);
            assert!(compare(&ours, &ours, &mut missing).is_ok());
            assert_eq!(missing, Vec::<String>::new());
        }
    }

    #[test]
    fn a_definition_of_pod_groups_has_a_phase_or_none() {
        let ours = value(&api::PodGroup::crd());
        let has_phase = |definition: &Value| {
            let schema = compare(&ours, definition, &mut Vec::new()).unwrap();
            schema.pointer(PHASE).is_some()
        };
        assert!(!has_phase(&ours));
        let mut older = ours.clone();
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        older.pointer_mut(status).unwrap()["phase"] = json!({"type": "string"});
        assert!(has_phase(&older));
    }

    #[test]
    fn an_older_definition_lacks_fields_and_another_one_is_told_apart() {
        let ours = value(&api::Queue::crd());
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";

        let mut older = ours.clone();
        let fields = older.pointer_mut(schema).unwrap().as_object_mut().unwrap();
        fields.remove("preemptMinRuntime").unwrap();
        let mut missing = Vec::new();
        assert!(compare(&ours, &older, &mut missing).is_ok());
        assert_eq!(missing, [".spec.preemptMinRuntime"]);

        let mut other = ours.clone();
        other.pointer_mut(schema).unwrap()["parentQueue"] = json!({"type": "object"});
        let why = compare(&ours, &other, &mut Vec::new()).unwrap_err();
        assert_eq!(why, ".spec.parentQueue is of type object, not string");

        let mut version = ours.clone();
        version["spec"]["versions"][0]["name"] = json!("v9");
        let why = compare(&ours, &version, &mut Vec::new()).unwrap_err();
        assert_eq!(why, "it does not serve version v2");

        let mut scope = ours.clone();
        scope["spec"]["scope"] = json!("Namespaced");
        let why = compare(&ours, &scope, &mut Vec::new()).unwrap_err();
        assert_eq!(why, "scope is Namespaced, not Cluster");
    }
}
