//! A Kubernetes object of any kind, with what grouping reads from it.

use k8s_openapi::api::core::v1::Pod;
use proto::names::kai;
use serde_json::{Map, Value, json};

/// The JSON of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object(Value);

/// An object as text. There may be one for each pod, and parsed JSON is several times as large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packed(Box<str>);

impl Packed {
    pub(super) fn unpack(&self) -> Object {
        Object(serde_json::from_str(&self.0).unwrap_or_default())
    }
}

/// A reference to an object: to an owner, or to the object itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reference {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl Reference {
    /// `batch` of `batch/v1`; empty for the core's kinds.
    pub(super) fn group(&self) -> &str {
        split(&self.api_version).0
    }

    /// `v1` of `batch/v1`.
    pub(super) fn version(&self) -> &str {
        split(&self.api_version).1
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.kind, self.name)
    }
}

fn split(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

impl Object {
    pub(super) fn new(value: Value) -> Self {
        Self(value)
    }

    pub(super) fn pack(&self) -> Packed {
        Packed(self.0.to_string().into_boxed_str())
    }

    /// A pod, which says its own kind.
    pub(super) fn of_pod(pod: &Pod) -> Self {
        let mut value = serde_json::to_value(pod).unwrap_or_default();
        value["apiVersion"] = json!("v1");
        value["kind"] = json!("Pod");
        Self(value)
    }

    /// The object as a pod.
    pub(super) fn pod(&self) -> Option<Box<Pod>> {
        serde_json::from_value(self.0.clone()).ok()
    }

    /// The part of a pod that its group depends on.
    pub(super) fn wishes(&self) -> [Option<&Value>; 4] {
        let metadata = |field| self.at(&["metadata", field]);
        [
            metadata("labels"),
            metadata("annotations"),
            metadata("ownerReferences"),
            self.at(&["spec"]),
        ]
    }

    /// If another label than KAI's names the queue, copies it to KAI's label.
    pub(super) fn name_queue_by(&mut self, key: &str) {
        if key == kai::QUEUE_LABEL {
            return;
        }
        if let Some(queue) = self.label(key).map(str::to_owned) {
            self.0["metadata"]["labels"][kai::QUEUE_LABEL] = Value::String(queue);
        }
    }

    /// A reference to the object.
    pub(super) fn reference(&self) -> Reference {
        Reference {
            api_version: self.text(&["apiVersion"]).unwrap_or_default().to_owned(),
            kind: self.text(&["kind"]).unwrap_or_default().to_owned(),
            name: self.name().to_owned(),
            uid: self.uid().to_owned(),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.text(&["metadata", "name"]).unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> &str {
        self.text(&["metadata", "namespace"]).unwrap_or_default()
    }

    pub(super) fn uid(&self) -> &str {
        self.text(&["metadata", "uid"]).unwrap_or_default()
    }

    /// A label that is not empty.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        self.text(&["metadata", "labels", key])
            .filter(|text| !text.is_empty())
    }

    /// An annotation that is not empty.
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.text(&["metadata", "annotations", key])
            .filter(|text| !text.is_empty())
    }

    /// Pairs of text under `metadata.<field>`.
    pub(super) fn pairs(&self, field: &str) -> impl Iterator<Item = (&str, &str)> {
        self.at(&["metadata", field])
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// All its owners, the controller first.
    pub(super) fn owners(&self) -> Vec<Reference> {
        let of = |value: &Value| {
            let text = |field: &str| value.get(field)?.as_str().map(str::to_owned);
            Some(Reference {
                api_version: text("apiVersion")?,
                kind: text("kind")?,
                name: text("name")?,
                uid: text("uid")?,
            })
        };
        let list = self.list(&["metadata", "ownerReferences"]);
        let controls = |value: &&Value| value.get("controller") == Some(&Value::Bool(true));
        let (first, rest): (Vec<&Value>, Vec<&Value>) = list.iter().partition(controls);
        first.into_iter().chain(rest).filter_map(of).collect()
    }

    /// Whether one of its owners controls it.
    pub(super) fn is_controlled(&self) -> bool {
        self.list(&["metadata", "ownerReferences"])
            .iter()
            .any(|value| value.get("controller") == Some(&Value::Bool(true)))
    }

    pub(super) fn at(&self, path: &[&str]) -> Option<&Value> {
        at(&self.0, path)
    }

    pub(super) fn text(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.as_str()
    }

    pub(super) fn number(&self, path: &[&str]) -> Option<i64> {
        number(self.at(path)?)
    }

    pub(super) fn list(&self, path: &[&str]) -> &[Value] {
        self.at(path)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    pub(super) fn fields(&self, path: &[&str]) -> Option<&Map<String, Value>> {
        self.at(path)?.as_object()
    }

    /// Takes the labels and annotations of another that it does not have itself.
    pub(super) fn inherit(&mut self, from: &Self) {
        for field in ["labels", "annotations"] {
            let inherited: Vec<(String, String)> = from
                .pairs(field)
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            let own = &mut self.0["metadata"][field];
            if !own.is_object() {
                *own = json!({});
            }
            for (key, value) in inherited {
                if own.get(&key).is_none() {
                    own[key] = Value::String(value);
                }
            }
        }
    }
}

/// The value at a path of fields.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field))
}

/// A whole number, also where it is written as text (as environment variables are).
pub(super) fn number(value: &Value) -> Option<i64> {
    value
        .as_i64()
        .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
}
