//! Manifests: YAML of several documents, and putting them into a cluster.
//!
//! In: files of the user, or the walkthrough's own objects. Out: the applied objects, or one sentence
//! that names file, document and cause. A file that cannot be read is refused before anything
//! starts.

use crate::failure::Failure;
use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The caller.
const MANAGER: &str = "aliquot-demo";
/// Kinds that other controllers would handle; the demo has none of these.
const WITHOUT_CONTROLLER: [&str; 7] = [
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "CronJob",
    "ReplicationController",
];

/// The documents of a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{} cannot be read", path.display()))?;
    let documents = parse(&text).map_err(|why| anyhow!("{}: {why}", path.display()))?;
    if documents.is_empty() {
        bail!("{} contains no manifest", path.display());
    }
    Ok(documents)
}

/// Returns the objects of these files in order, each with the file's name. A folder stands for the
/// manifests in it, as for `kubectl`, and `-` for standard input.
pub(crate) fn of_files(files: &[PathBuf]) -> Result<Vec<(String, Value)>, Failure> {
    let mut objects = Vec::new();
    for file in files {
        for path in manifests_of(file)? {
            let shown = match path.to_str() {
                Some("-") => "standard input".to_owned(),
                _ => path.display().to_string(),
            };
            let text = crate::shadow::read(&path)?;
            let documents =
                parse(&text).map_err(|why| Failure::input(format!("{shown}: {why}")))?;
            if documents.is_empty() {
                return Err(Failure::input(format!("{shown} contains no manifest")));
            }
            let named = documents.into_iter().map(|object| (shown.clone(), object));
            objects.extend(named);
        }
    }
    Ok(objects)
}

/// Returns the file itself, or the manifests of a folder in order of name.
fn manifests_of(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |error| Failure::input(format!("{} cannot be read: {error}", path.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let ending = file.extension().and_then(std::ffi::OsStr::to_str);
        if ending.is_some_and(|ending| ["yaml", "yml", "json"].contains(&ending)) && file.is_file()
        {
            found.push(file);
        }
    }
    if found.is_empty() {
        return Err(Failure::input(format!(
            "{} contains no file that ends with .yaml, .yml or .json",
            path.display()
        )));
    }
    found.sort();
    Ok(found)
}

/// The documents of a text; lists are taken apart.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| format!("this is not YAML: {}", first_line(&error.to_string())))?;
    let mut objects = Vec::new();
    for (number, document) in documents.into_iter().enumerate() {
        if document.is_null() {
            continue;
        }
        let items = document
            .get("kind")
            .and_then(Value::as_str)
            .filter(|kind| kind.ends_with("List"))
            .and_then(|_| document.get("items"))
            .and_then(Value::as_array)
            .cloned();
        for object in items.unwrap_or_else(|| vec![document]) {
            for field in ["/apiVersion", "/kind"] {
                if !object.pointer(field).is_some_and(Value::is_string) {
                    return Err(format!("document {} has no {}", number + 1, &field[1..]));
                }
            }
            let named = ["/metadata/name", "/metadata/generateName"]
                .iter()
                .any(|field| object.pointer(field).is_some_and(Value::is_string));
            if !named {
                return Err(format!("document {} has no metadata.name", number + 1));
            }
            objects.push(object);
        }
    }
    Ok(objects)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// One applied object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    /// `Pod`, `Queue`.
    pub(crate) kind: String,
    /// `default` for a namespaced object without one.
    pub(crate) namespace: String,
    /// As the server knows it.
    pub(crate) name: String,
}

/// Applies one object; makes its namespace where it is missing.
pub(crate) async fn apply(client: &Client, object: &Value) -> anyhow::Result<Applied> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (version, kind) = (text("/apiVersion"), text("/kind"));
    let name = text("/metadata/name");
    let shown = format!(
        "{kind} {}",
        if name.is_empty() {
            text("/metadata/generateName")
        } else {
            name
        }
    );
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let (resource, capabilities) =
        pinned_kind(client, &GroupVersionKind::gvk(group, version, kind))
            .await
            .map_err(|_| anyhow!("{shown}: the cluster has no such kind ({version} {kind})"))?;
    let mut namespace = String::new();
    let api: Api<DynamicObject> = if capabilities.scope == Scope::Cluster {
        Api::all_with(client.clone(), &resource)
    } else {
        namespace = match text("/metadata/namespace") {
            "" => "default".to_owned(),
            given => given.to_owned(),
        };
        ensure_namespace(client, &namespace).await?;
        Api::namespaced_with(client.clone(), &namespace, &resource)
    };
    let refused = |error: kube::Error| match error {
        kube::Error::Api(status) => anyhow!("{shown}: {}", status.message),
        other => anyhow!("{shown}: {other}"),
    };
    let applied = if name.is_empty() {
        let object = serde_json::from_value(object.clone()).context("not an object")?;
        api.create(&PostParams::default(), &object).await
    } else {
        let mut object = object.clone();
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        api.patch(
            name,
            &PatchParams::apply(MANAGER).force(),
            &Patch::Apply(object),
        )
        .await
    };
    Ok(Applied {
        kind: kind.to_owned(),
        namespace,
        name: applied.map_err(refused)?.name_any(),
    })
}

/// A note for the user about a kind that is stored and that no controller handles.
pub(crate) fn caveat(applied: &Applied) -> Option<String> {
    WITHOUT_CONTROLLER.contains(&applied.kind.as_str()).then(|| {
        format!(
            "{} {}: stored, but the demo has no controller that creates its pods; apply the pods themselves",
            applied.kind, applied.name
        )
    })
}

/// Makes a namespace unless it is there.
pub(crate) async fn ensure_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    match namespaces.create(&PostParams::default(), &namespace).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(anyhow!("namespace {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_are_taken_apart() {
        let text = "# nothing\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {generateName: b-}}\n---\n";
        let objects = parse(text).unwrap();
        let names: Vec<_> = objects.iter().map(|object| &object["metadata"]).collect();
        assert_eq!(
            names,
            [&json!({"name": "a"}), &json!({"generateName": "b-"})]
        );
    }

    #[test]
    fn a_quoted_number_stays_text() {
        let text =
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, annotations: {gpu-memory: \"2000\"}}\n";
        assert_eq!(
            parse(text).unwrap()[0]["metadata"]["annotations"]["gpu-memory"],
            "2000"
        );
    }

    #[test]
    fn what_is_no_manifest_is_refused_in_one_sentence() {
        for (text, expected) in [
            ("a: [", "this is not YAML: "),
            ("kind: Pod\n", "document 1 has no apiVersion"),
            (
                "apiVersion: v1\nmetadata: {name: x}\n",
                "document 1 has no kind",
            ),
            (
                "apiVersion: v1\nkind: Pod\n",
                "document 1 has no metadata.name",
            ),
            ("just text", "document 1 has no apiVersion"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'));
        }
    }
}
