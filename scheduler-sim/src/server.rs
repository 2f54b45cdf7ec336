//! The API server: a request → changes of the [`Store`], and the response.
//!
//! Faults are the network's; here every request is done once, in full, as Kubernetes does it.

use crate::store::{Change, Key, PatchKind, Refusal, Store};
use crate::time::Stamp;
use proto::names::{object, telemetry};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Resources by plural: kind, and the group and version under which it is served.
const KINDS: [(&str, &str, &str); 25] = [
    ("pods", "Pod", "v1"),
    ("nodes", "Node", "v1"),
    ("namespaces", "Namespace", "v1"),
    ("secrets", "Secret", "v1"),
    ("configmaps", "ConfigMap", "v1"),
    ("persistentvolumes", "PersistentVolume", "v1"),
    ("persistentvolumeclaims", "PersistentVolumeClaim", "v1"),
    ("events", "Event", "events.k8s.io/v1"),
    ("priorityclasses", "PriorityClass", "scheduling.k8s.io/v1"),
    ("storageclasses", "StorageClass", "storage.k8s.io/v1"),
    ("csinodes", "CSINode", "storage.k8s.io/v1"),
    ("csidrivers", "CSIDriver", "storage.k8s.io/v1"),
    (
        "csistoragecapacities",
        "CSIStorageCapacity",
        "storage.k8s.io/v1",
    ),
    ("leases", "Lease", "coordination.k8s.io/v1"),
    ("poddisruptionbudgets", "PodDisruptionBudget", "policy/v1"),
    ("jobs", "Job", "batch/v1"),
    ("queues", "Queue", "scheduling.run.ai/v2"),
    ("podgroups", "PodGroup", "scheduling.run.ai/v2alpha2"),
    ("topologies", "Topology", "kai.scheduler/v1alpha1"),
    ("schedulingshards", "SchedulingShard", "kai.scheduler/v1"),
    ("configs", "Config", "kai.scheduler/v1"),
    ("gpunodes", "GpuNode", "aliquot.dev/v1alpha1"),
    (
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
    ),
    (
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
    ),
    (
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "apiextensions.k8s.io/v1",
    ),
];
/// What only the leading replica writes.
const OF_ALL_REPLICAS: [&str; 6] = [
    "leases",
    "secrets",
    "configmaps",
    "tokenreviews",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
];

/// A request, read.
#[derive(Clone, Debug)]
pub struct Asked {
    /// GET, POST, ...
    pub method: String,
    /// Without the query.
    pub path: String,
    /// The query.
    pub query: BTreeMap<String, String>,
    /// `Content-Type`.
    pub content: String,
    /// The body; null where there is none.
    pub body: Value,
    /// Which object or kind; an empty name is the whole kind.
    pub key: Key,
    /// `status`, `binding`, `eviction` or nothing.
    pub sub: String,
}

impl Asked {
    /// As the client sent it.
    pub fn new(method: &str, uri: &http::Uri, content: &str, body: &[u8]) -> Self {
        let parts: Vec<&str> = uri
            .path()
            .split('/')
            .filter(|part| !part.is_empty())
            .collect();
        let rest = match parts.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        let at =
            |rest: &[&str], at: usize| rest.get(at).map_or_else(String::new, |p| (*p).to_owned());
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => {
                ((*namespace).to_owned(), rest)
            }
            rest => (String::new(), rest),
        };
        Self {
            method: method.to_owned(),
            path: uri.path().to_owned(),
            query: query(uri.query().unwrap_or_default()),
            content: content.to_owned(),
            body: serde_json::from_slice(body).unwrap_or_default(),
            key: Key {
                plural: at(rest, 0),
                namespace,
                name: at(rest, 1),
            },
            sub: at(rest, 2),
        }
    }

    /// It changes nothing.
    pub fn reads(&self) -> bool {
        self.method == "GET"
    }

    /// It is a watch.
    pub fn watches(&self) -> bool {
        self.query.get("watch").is_some_and(|text| text == "true")
    }

    /// A write that only the replica with the lease may send.
    pub fn is_leaders(&self) -> bool {
        !self.reads() && !OF_ALL_REPLICAS.contains(&self.key.plural.as_str())
    }

    /// For traces: the request without its body.
    pub fn line(&self) -> String {
        let Key {
            plural,
            namespace,
            name,
        } = &self.key;
        let name = if plural == "events" { "" } else { name };
        let watch = if self.watches() { " watch" } else { "" };
        let target = self.body["target"]["name"].as_str().unwrap_or_default();
        format!(
            "{} {plural} {namespace}/{name} {}{watch}{target}",
            self.method, self.sub
        )
    }
}

fn query(text: &str) -> BTreeMap<String, String> {
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), unescape(value)))
        .collect()
}

fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next(), bytes.next()].map(Option::unwrap_or_default);
                let digits = String::from_utf8_lossy(&digits).into_owned();
                u8::from_str_radix(&digits, 16).unwrap_or(b'?')
            }
            other => other,
        };
        out.push(byte);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What the server says.
#[derive(Clone, Debug)]
pub enum Answer {
    /// One object.
    Object(u16, Value),
    /// Changes of a kind from that version on, for as long as the watch lasts.
    Changes(u64),
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code;
        Self::Object(code, status(&refusal))
    }
}

/// Kubernetes' own form of a refusal.
pub fn status(refusal: &Refusal) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": refusal.message, "reason": refusal.reason, "code": refusal.code,
    })
}

/// Carries out the request. `minor`
pub fn answer(store: &mut Store, asked: &Asked, now: &Stamp, minor: u32) -> Answer {
    match done(store, asked, now, minor) {
        Ok(answer) => answer,
        Err(refusal) => refusal.into(),
    }
}

fn done(store: &mut Store, asked: &Asked, now: &Stamp, minor: u32) -> Result<Answer, Refusal> {
    let ok = |value| Ok(Answer::Object(200, value));
    let key = &asked.key;
    if asked.path == "/version" {
        return ok(
            json!({"major": "1", "minor": minor.to_string(), "gitVersion": "v1",
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
            "compiler": "", "platform": ""}),
        );
    }
    if key.plural.is_empty() {
        return discovery(&asked.path);
    }
    let kind = KINDS.iter().find(|(plural, ..)| *plural == key.plural);
    match (asked.method.as_str(), asked.sub.as_str()) {
        ("POST", _) if key.plural == "tokenreviews" => ok(review(&asked.body)),
        // They are not read here.
        (_, _) if key.plural == "events" => ok(asked.body.clone()),
        ("GET", _) if asked.watches() => {
            let version = asked
                .query
                .get("resourceVersion")
                .map_or("0", String::as_str);
            Ok(Answer::Changes(version.parse().unwrap_or_default()))
        }
        ("GET", _) if key.name.is_empty() => {
            let Some((_, kind, api)) = kind else {
                return Err(Refusal::new(404, "NotFound", "no such kind"));
            };
            let items: Vec<&Value> = store
                .all(&key.plural, &key.namespace)
                .map(|(_, object)| object)
                .filter(|object| selected(object, asked))
                .collect();
            ok(json!({
                "kind": format!("{kind}List"), "apiVersion": api, "items": items,
                "metadata": {"resourceVersion": store.version().to_string()},
            }))
        }
        ("GET", _) => ok(store.read(key)?.clone()),
        ("POST", "binding") => {
            store.bind(key, &asked.body, minor >= 35)?;
            Ok(Answer::Object(
                201,
                json!({"kind": "Status", "status": "Success"}),
            ))
        }
        ("POST", "eviction") => {
            let dry = asked.query.get("dryRun").is_some_and(|one| one == "All");
            evict(store, key, &asked.body, dry, now)?;
            Ok(Answer::Object(
                201,
                json!({"kind": "Status", "status": "Success"}),
            ))
        }
        ("POST", _) => {
            let name = asked.body["metadata"]["name"].as_str().unwrap_or_default();
            let key = Key {
                name: name.to_owned(),
                ..key.clone()
            };
            let mut object = asked.body.clone();
            if let Some((_, kind, api)) = kind {
                object["kind"] = json!(kind);
                object["apiVersion"] = json!(api);
            }
            Ok(Answer::Object(201, store.create(&key, object, now)?))
        }
        ("PUT", _) => ok(store.replace(key, asked.body.clone())?),
        ("PATCH", sub) => {
            let kind = match asked.content.as_str() {
                "application/strategic-merge-patch+json" => PatchKind::Strategic,
                "application/merge-patch+json" => PatchKind::Merge,
                _ => PatchKind::Apply,
            };
            ok(store.patch(key, &asked.body, kind, sub == "status", now)?)
        }
        ("DELETE", _) => ok(store.delete(key, &asked.body["preconditions"], now)?),
        _ => Err(Refusal::new(405, "MethodNotAllowed", asked.line())),
    }
}

/// What `apis/GROUP/VERSION` says.
fn discovery(path: &str) -> Result<Answer, Refusal> {
    let version = path
        .trim_start_matches("/apis/")
        .trim_start_matches("/api/");
    let resources: Vec<Value> = KINDS
        .iter()
        .filter(|(_, _, api)| *api == version)
        .map(|(plural, kind, _)| {
            json!({"name": plural, "singularName": "", "namespaced": true, "kind": kind,
                "verbs": ["get", "list", "watch"]})
        })
        .collect();
    if resources.is_empty() {
        return Err(Refusal::new(404, "NotFound", "no such group"));
    }
    Ok(Answer::Object(
        200,
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
            "resources": resources}),
    ))
}

/// Whether label and field selectors take it.
fn selected(object: &Value, asked: &Asked) -> bool {
    let all = |key: &str, holds: &dyn Fn(&str, &str) -> bool| {
        asked.query.get(key).is_none_or(|text| {
            text.split(',')
                .filter_map(|term| term.split_once('='))
                .all(|(field, value)| holds(field, value.trim_start_matches('=')))
        })
    };
    all("fieldSelector", &|field, value| {
        let path = format!("/{}", field.replace('.', "/"));
        object
            .pointer(&path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            == value
    }) && all("labelSelector", &|label, value| {
        object["metadata"]["labels"][label] == *value
    })
}

/// What a watch with that request's selector sees of a change.
pub fn line(change: &Change, asked: &Asked) -> Option<Value> {
    let namespace = &asked.key.namespace;
    let here = namespace.is_empty() || change.key.namespace == *namespace;
    (here && selected(&change.object, asked))
        .then(|| json!({"type": change.kind.as_str(), "object": change.object}))
}

/// A bookmark: an empty object of a kind, with the version up to which all events were sent.
pub fn bookmark(plural: &str, version: u64) -> Value {
    let kind = KINDS.iter().find(|(of, ..)| *of == plural);
    let (kind, api) = kind.map_or(("", "v1"), |(_, kind, api)| (*kind, *api));
    json!({"type": "BOOKMARK", "object": {
        "kind": kind, "apiVersion": api,
        "metadata": {"resourceVersion": version.to_string()},
        "spec": {},
    }})
}

/// The token of an agent is the name of its node.
pub const TOKEN: &str = "agent-of-";

fn review(body: &Value) -> Value {
    let token = body["spec"]["token"].as_str().unwrap_or_default();
    let status = match token.strip_prefix(TOKEN) {
        Some(node) => json!({
            "authenticated": true, "audiences": [telemetry::AUDIENCE],
            "user": {
                "username": format!(
                    "system:serviceaccount:{}:{}", proto::names::NAMESPACE, object::AGENT_ACCOUNT),
                "extra": {telemetry::NODE_NAME_EXTRA: [node]},
            },
        }),
        None => json!({"authenticated": false, "error": "no such token"}),
    };
    json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
        "metadata": {}, "spec": {"token": ""}, "status": status})
}

/// An eviction, if every budget of the pod allows one more disruption.
fn evict(
    store: &mut Store,
    key: &Key,
    body: &Value,
    dry: bool,
    now: &Stamp,
) -> Result<(), Refusal> {
    let pod = store.read(key)?;
    let preconditions = &body["deleteOptions"]["preconditions"];
    if let Some(uid) = preconditions["uid"].as_str()
        && pod["metadata"]["uid"] != *uid
    {
        return Err(Refusal::conflict("another pod has that name"));
    }
    for (_, budget) in store.all("poddisruptionbudgets", &key.namespace) {
        let Some(labels) = budget["spec"]["selector"]["matchLabels"].as_object() else {
            continue;
        };
        let meant = |pod: &Value| {
            labels
                .iter()
                .all(|(label, value)| pod["metadata"]["labels"][label] == *value)
        };
        if !meant(pod) || pod["status"]["phase"] != "Running" {
            continue;
        }
        let healthy = store
            .all("pods", &key.namespace)
            .filter(|(_, one)| {
                meant(one)
                    && one["status"]["phase"] == "Running"
                    && one["metadata"]["deletionTimestamp"].is_null()
            })
            .count();
        let least = budget["spec"]["minAvailable"].as_u64().unwrap_or_default();
        if u64::try_from(healthy).unwrap_or(u64::MAX) <= least {
            return Err(Refusal::new(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
            ));
        }
    }
    if dry {
        return Ok(());
    }
    store.delete(key, preconditions, now).map(|_| ())
}
