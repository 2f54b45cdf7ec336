//! Objects as an API server keeps them: versions, preconditions, what happened to each kind.
//!
//! In: verbs on one object or one kind. Out: the object, or a refusal with Kubernetes' code.
//! Knows nothing of networks, replicas and faults.

use crate::time::Stamp;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The default grace period of a deleted pod, in seconds.
const GRACE: i64 = 30;
/// Kinds whose `status` is written apart.
const WITH_STATUS: [&str; 7] = [
    "pods",
    "nodes",
    "queues",
    "podgroups",
    "gpunodes",
    "persistentvolumeclaims",
    "persistentvolumes",
];

/// Which object: plural, namespace (empty for cluster-wide kinds), name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Plural of its kind.
    pub plural: String,
    /// Empty for kinds of the whole cluster.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// An object of a namespace, or of the cluster where that is empty.
    pub fn new(plural: &str, namespace: &str, name: &str) -> Self {
        Self {
            plural: plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// What the API server says no with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// `NotFound`, `Conflict`, ...
    pub reason: &'static str,
    /// One line.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
        }
    }

    fn missing(key: &Key) -> Self {
        Self::new(
            404,
            "NotFound",
            format!("{} \"{}\" not found", key.plural, key.name),
        )
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }
}

/// The change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is new.
    Added,
    /// It changed.
    Modified,
    /// It was deleted.
    Deleted,
}

impl Kind {
    /// As watches say it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One entry of a kind's history.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its resource version.
    pub version: u64,
    /// What happened.
    pub kind: Kind,
    /// To which object.
    pub key: Key,
    /// As it was then.
    pub object: Value,
}

/// What a patch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386.
    Merge,
    /// Kubernetes' own: of lists, conditions are merged by their type.
    Strategic,
    /// Server-side apply; here: made when absent, merged otherwise.
    Apply,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<Key, Value>,
    history: BTreeMap<String, Vec<Change>>,
    /// Changes up to this version are forgotten, by kind.
    compacted: BTreeMap<String, u64>,
    version: u64,
    uids: u64,
    /// Kinds that changed since the last query.
    touched: BTreeSet<String>,
}

impl Store {
    /// The last version given out.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Kinds that changed since the last call.
    pub fn touched(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.touched)
    }

    /// The object, if it is there.
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// The object, or the server's refusal.
    ///
    /// # Errors It does not exist.
    pub fn read(&self, key: &Key) -> Result<&Value, Refusal> {
        self.get(key).ok_or_else(|| Refusal::missing(key))
    }

    /// All of a kind, of one namespace where it is not empty.
    pub fn all<'a>(
        &'a self,
        plural: &'a str,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        self.objects
            .range(Key::new(plural, "", "")..)
            .take_while(move |(key, _)| key.plural == plural)
            .filter(move |(key, _)| namespace.is_empty() || key.namespace == namespace)
    }

    /// What happened to a kind after that version; `None`: it is too old.
    pub fn since(&self, plural: &str, version: u64) -> Option<&[Change]> {
        if version < self.compacted.get(plural).copied().unwrap_or_default() {
            return None;
        }
        let history = self.history.get(plural).map_or(&[][..], Vec::as_slice);
        let from = history.partition_point(|change| change.version <= version);
        Some(&history[from..])
    }

    /// Forgets what happened so far.
    pub fn compact(&mut self) {
        for (plural, history) in &mut self.history {
            history.clear();
            self.compacted.insert(plural.clone(), self.version);
        }
    }

    /// Makes an object.
    ///
    /// # Errors It already exists.
    pub fn create(&mut self, key: &Key, mut object: Value, now: &Stamp) -> Result<Value, Refusal> {
        if self.objects.contains_key(key) {
            return Err(Refusal::new(
                409,
                "AlreadyExists",
                format!("{} \"{}\" already exists", key.plural, key.name),
            ));
        }
        self.uids += 1;
        let meta = &mut object["metadata"];
        meta["name"] = json!(key.name);
        if !key.namespace.is_empty() {
            meta["namespace"] = json!(key.namespace);
        }
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("u{}-{}", self.uids, key.name));
        }
        meta["creationTimestamp"] = json!(now.seconds());
        if key.plural == "pods" && object["status"]["phase"].is_null() {
            object["status"]["phase"] = json!("Pending");
        }
        Ok(self.put(key, object, Kind::Added))
    }

    /// Writes the whole object, if it is the one that was read.
    ///
    /// # Errors It was deleted, or written in between.
    pub fn replace(&mut self, key: &Key, mut object: Value) -> Result<Value, Refusal> {
        let found = self.read(key)?;
        preconditions(key, found, &object["metadata"])?;
        object["metadata"]["uid"] = found["metadata"]["uid"].clone();
        object["metadata"]["creationTimestamp"] = found["metadata"]["creationTimestamp"].clone();
        if WITH_STATUS.contains(&key.plural.as_str()) {
            object["status"] = found["status"].clone();
        }
        Ok(self.put_if_changed(key, object))
    }

    /// Changes a part of it.
    ///
    /// # Errors It was deleted, or has another UID.
    pub fn patch(
        &mut self,
        key: &Key,
        patch: &Value,
        kind: PatchKind,
        status: bool,
        now: &Stamp,
    ) -> Result<Value, Refusal> {
        let found = match (self.get(key), kind) {
            (Some(found), _) => found,
            (None, PatchKind::Apply) => return self.create(key, patch.clone(), now),
            (None, _) => return Err(Refusal::missing(key)),
        };
        preconditions(key, found, &patch["metadata"])?;
        let mut object = found.clone();
        let conditions = (kind == PatchKind::Strategic)
            .then(|| patch["status"]["conditions"].as_array().cloned())
            .flatten();
        let before = found["status"]["conditions"].clone();
        json_patch::merge(&mut object, patch);
        if let Some(conditions) = conditions {
            object["status"]["conditions"] = before;
            for condition in conditions {
                set_condition(&mut object, condition);
            }
        }
        object["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
        if WITH_STATUS.contains(&key.plural.as_str()) {
            if status {
                object["spec"] = found["spec"].clone();
            } else {
                object["status"] = found["status"].clone();
            }
        }
        Ok(self.put_if_changed(key, object))
    }

    /// Changes an object as a controller of the cluster does, without faults.
    pub fn amend(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        if let Some(found) = self.get(key) {
            let mut object = found.clone();
            change(&mut object);
            self.put_if_changed(key, object);
        }
    }

    /// Deletes: a pod on a node ends first, everything else is removed at once.
    ///
    /// # Errors It was deleted, or has another UID.
    pub fn delete(
        &mut self,
        key: &Key,
        preconditions_of: &Value,
        now: &Stamp,
    ) -> Result<Value, Refusal> {
        let found = self.read(key)?;
        preconditions(key, found, preconditions_of)?;
        let stands = found["spec"]["nodeName"]
            .as_str()
            .is_some_and(|node| !node.is_empty());
        if key.plural != "pods" || !stands {
            return Ok(self.remove(key).unwrap_or_default());
        }
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return Ok(found.clone());
        }
        let grace = found["spec"]["terminationGracePeriodSeconds"]
            .as_i64()
            .unwrap_or(GRACE);
        let mut object = found.clone();
        object["metadata"]["deletionTimestamp"] = json!(now.after(grace).seconds());
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        Ok(self.put(key, object, Kind::Modified))
    }

    /// Takes it out at once.
    pub fn remove(&mut self, key: &Key) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.record(key, Kind::Deleted, &object);
        Some(object)
    }

    /// A `Binding`: the pod's node, with the annotations and labels that come with it.
    ///
    /// # Errors The pod was deleted, has another UID, is leaving, or is bound.
    pub fn bind(&mut self, key: &Key, binding: &Value, labels: bool) -> Result<(), Refusal> {
        let found = self.read(key)?;
        let meta = &binding["metadata"];
        preconditions(key, found, meta)?;
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return Err(Refusal::conflict(format!(
                "pod {} is being deleted, cannot be assigned to a host",
                key.name
            )));
        }
        if let Some(node) = found["spec"]["nodeName"].as_str() {
            return Err(Refusal::conflict(format!(
                "pod {} is already assigned to node \"{node}\"",
                key.name
            )));
        }
        let mut object = found.clone();
        object["spec"]["nodeName"] = binding["target"]["name"].clone();
        copy(&meta["annotations"], &mut object["metadata"]["annotations"]);
        if labels {
            copy(&meta["labels"], &mut object["metadata"]["labels"]);
        }
        set_condition(
            &mut object,
            json!({"type": "PodScheduled", "status": "True"}),
        );
        self.put(key, object, Kind::Modified);
        Ok(())
    }

    fn put_if_changed(&mut self, key: &Key, object: Value) -> Value {
        if self.objects.get(key) == Some(&object) {
            return object;
        }
        self.put(key, object, Kind::Modified)
    }

    fn put(&mut self, key: &Key, mut object: Value, kind: Kind) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.record(key, kind, &object);
        self.objects.insert(key.clone(), object.clone());
        object
    }

    fn record(&mut self, key: &Key, kind: Kind, object: &Value) {
        self.touched.insert(key.plural.clone());
        self.history
            .entry(key.plural.clone())
            .or_default()
            .push(Change {
                version: self.version,
                kind,
                key: key.clone(),
                object: object.clone(),
            });
    }
}

/// UID and resource version, where they are named.
fn preconditions(key: &Key, found: &Value, wanted: &Value) -> Result<(), Refusal> {
    for field in ["uid", "resourceVersion"] {
        if let Some(wanted) = wanted[field].as_str().filter(|text| !text.is_empty())
            && found["metadata"][field] != *wanted
        {
            return Err(Refusal::conflict(format!(
                "{} \"{}\": {field} is {}, not {wanted}",
                key.plural, key.name, found["metadata"][field]
            )));
        }
    }
    Ok(())
}

fn copy(from: &Value, to: &mut Value) {
    let Some(from) = from.as_object().filter(|from| !from.is_empty()) else {
        return;
    };
    if !to.is_object() {
        *to = Value::Object(Map::new());
    }
    for (key, value) in from {
        to[key] = value.clone();
    }
}

/// Conditions are a map by type.
pub fn set_condition(object: &mut Value, condition: Value) {
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else {
        return;
    };
    match list.iter_mut().find(|one| one["type"] == condition["type"]) {
        Some(one) => *one = condition,
        None => list.push(condition),
    }
}
