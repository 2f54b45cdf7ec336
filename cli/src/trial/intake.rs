//! Manifests → facts, as the API server would keep and the scheduler would see them.

use crate::failure::Failure;
use crate::shadow::Shadow;
use api::lint::Finding;
use scheduler::trial::UID;
use scheduler::watch::{Fact, Seen};
use scheduler_core::ids::PodUid;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Largest number of pods of a workload.
const MOST_PODS: u64 = 10_000;

/// The priority class of a Deployment that names none. Such a pod serves and is not preemptible, so
/// it waits if it would exceed its queue's quota.
const OF_DEPLOYMENTS: &str = "inference";

/// The pods that were added.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// The pods, in the order of the file.
    pub(super) pods: Vec<(PodUid, String)>,
    /// What a person should know of the rest.
    pub(super) notes: Vec<String>,
    /// The pods whose manifest has a mistake that costs them their GPU. Some get one nevertheless, by
    /// another annotation.
    pub(super) without: BTreeSet<PodUid>,
    /// True if nothing is decided about pods of the manifests.
    pub(super) undecided: bool,
    count: u64,
    /// The mistakes of the object that is being taken.
    findings: Vec<Finding>,
}

impl Intake {
    /// One object. Nothing of a file is used before all of it was read.
    pub(super) fn take(&mut self, shadow: &mut Shadow, object: &Value) -> Result<(), Failure> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let kind = text("/kind").unwrap_or_default();
        let name = text("/metadata/name").or_else(|| text("/metadata/generateName"));
        let shown = format!("{kind} {}", name.unwrap_or_default());
        self.findings = api::lint::of(object, &shadow.known());
        // The scheduler's name is judged pod by pod.
        let of_scheduler = |finding: &&Finding| finding.field.ends_with("spec.schedulerName");
        let others = self.findings.iter().filter(|one| !of_scheduler(one));
        self.notes
            .extend(others.map(|finding| format!("{shown}: {finding}")));
        match kind {
            "Pod" => self.pod(shadow, object, &shown)?,
            "Queue" => {
                shadow.take(Fact::Queue(there(object, &shown)?));
            }
            "PodGroup" => {
                let mut object = object.clone();
                default_namespace(&mut object);
                shadow.take(Fact::Group(there(&object, &shown)?));
            }
            "Topology" => {
                shadow.take(Fact::Topology(there(object, &shown)?));
            }
            "PriorityClass" => {
                shadow.take(Fact::Class(there(object, &shown)?));
            }
            "ConfigMap" => {
                let mut object = object.clone();
                default_namespace(&mut object);
                shadow.take(Fact::ConfigMap(there(&object, &shown)?));
            }
            "Namespace" => {
                shadow.take(Fact::Namespace(there(object, &shown)?));
            }
            "StorageClass" => {
                shadow.take(Fact::Storage(there(object, &shown)?));
            }
            "CSINode" => {
                shadow.take(Fact::CsiNode(there(object, &shown)?));
            }
            "CSIDriver" => {
                shadow.take(Fact::CsiDriver(there(object, &shown)?));
            }
            "CSIStorageCapacity" => {
                shadow.take(Fact::CsiCapacity(there(object, &shown)?));
            }
            "PersistentVolume" => {
                let mut object = object.clone();
                // As Kubernetes' controller marks a new one.
                object["status"] = json!({"phase": "Available"});
                shadow.take(Fact::Volume(there(&object, &shown)?));
            }
            "PersistentVolumeClaim" => self.claim(shadow, object, &shown)?,
            "DeviceClass" | "ResourceSlice" | "ResourceClaim" | "ResourceClaimTemplate"
                if shadow.of_snapshot =>
            {
                self.notes.push(format!(
                    "{shown}: a snapshot does not hold the attributes of devices, and nothing is decided about new claims"
                ));
            }
            "DeviceClass" => {
                shadow.take(Fact::DeviceClass(there(object, &shown)?));
            }
            "ResourceSlice" => {
                shadow.take(Fact::DeviceSlice(there(object, &shown)?));
            }
            "ResourceClaim" => {
                let object = self.identified(object);
                shadow.take(Fact::DeviceClaim(there(&object, &shown)?));
            }
            "ResourceClaimTemplate" => {
                let mut object = object.clone();
                default_namespace(&mut object);
                shadow.templates.insert(typed(&object, &shown)?);
            }
            "Deployment" | "ReplicaSet" | "StatefulSet" | "ReplicationController" => {
                let replicas = number(object, "/spec/replicas", &shown)?.unwrap_or(1);
                self.workload(shadow, object, "/spec/template", replicas, &shown)?;
            }
            "Job" => {
                let parallel = number(object, "/spec/parallelism", &shown)?.unwrap_or(1);
                let wanted = number(object, "/spec/completions", &shown)?.unwrap_or(parallel);
                self.workload(
                    shadow,
                    object,
                    "/spec/template",
                    parallel.min(wanted),
                    &shown,
                )?;
            }
            _ if !api::lint::templates(object).is_empty() => {
                self.undecided = true;
                self.notes.push(format!(
                    "{shown}: nothing is decided about its pods: a {kind} is not taken apart here"
                ));
            }
            _ => self
                .notes
                .push(format!("{shown}: nothing is decided about a {kind}")),
        }
        Ok(())
    }

    fn workload(
        &mut self,
        shadow: &mut Shadow,
        object: &Value,
        template: &str,
        replicas: u64,
        shown: &str,
    ) -> Result<(), Failure> {
        let template = object.pointer(template).cloned().unwrap_or_default();
        if !template.is_object() {
            return Err(Failure::input(format!("{shown} has no spec.template")));
        }
        if replicas > MOST_PODS {
            return Err(Failure::input(format!(
                "{shown} makes {replicas} pods, more than the {MOST_PODS} that are simulated at once"
            )));
        }
        for number in 0..replicas {
            let mut pod = template.clone();
            pod["kind"] = json!("Pod");
            pod["apiVersion"] = json!("v1");
            if !pod["metadata"].is_object() {
                pod["metadata"] = json!({});
            }
            let name = object.pointer("/metadata/name").and_then(Value::as_str);
            pod["metadata"]["name"] = json!(format!("{}-{number}", name.unwrap_or("pod")));
            if let Some(namespace) = object.pointer("/metadata/namespace") {
                pod["metadata"]["namespace"] = namespace.clone();
            }
            // What an owner says of queue and priority holds for its pods.
            for key in [
                proto::names::kai::QUEUE_LABEL,
                proto::names::kai::PRIORITY_CLASS_LABEL,
                proto::names::kai::PREEMPTIBILITY_LABEL,
            ] {
                let label = object["metadata"]["labels"][key].as_str();
                let serves = object["kind"] == "Deployment"
                    && key == proto::names::kai::PRIORITY_CLASS_LABEL
                    && pod["spec"]["priorityClassName"].is_null();
                let Some(label) = label.or(serves.then_some(OF_DEPLOYMENTS)) else {
                    continue;
                };
                if pod["metadata"]["labels"][key].is_null() {
                    if !pod["metadata"]["labels"].is_object() {
                        pod["metadata"]["labels"] = json!({});
                    }
                    pod["metadata"]["labels"][key] = json!(label);
                }
            }
            let shown = format!("{shown}, pod {number}");
            let templates = object.pointer("/spec/volumeClaimTemplates");
            for template in templates.and_then(Value::as_array).into_iter().flatten() {
                self.claim_of(shadow, &mut pod, template, &shown)?;
            }
            self.pod(shadow, &pod, &shown)?;
        }
        Ok(())
    }

    /// The claim of one pod of a `StatefulSet`, and the pod's volume with it.
    fn claim_of(
        &mut self,
        shadow: &mut Shadow,
        pod: &mut Value,
        template: &Value,
        shown: &str,
    ) -> Result<(), Failure> {
        let volume = &template["metadata"]["name"];
        let names = volume.as_str().zip(pod["metadata"]["name"].as_str());
        let (volume, owner) = names
            .ok_or_else(|| Failure::input(format!("{shown}: a volumeClaimTemplate has no name")))?;
        let name = format!("{volume}-{owner}");
        let mut claim = template.clone();
        claim["metadata"]["name"] = json!(name);
        claim["metadata"]["namespace"] = pod["metadata"]["namespace"].clone();
        let volume = json!({"name": volume, "persistentVolumeClaim": {"claimName": name}});
        match pod["spec"]["volumes"].as_array_mut() {
            Some(volumes) => volumes.push(volume),
            None => pod["spec"]["volumes"] = json!([volume]),
        }
        self.claim(shadow, &claim, shown)
    }

    fn claim(&mut self, shadow: &mut Shadow, object: &Value, shown: &str) -> Result<(), Failure> {
        let object = self.identified(object);
        shadow.take(Fact::Claim(there(&object, shown)?));
        Ok(())
    }

    /// The object in its namespace, with a UID.
    fn identified(&mut self, object: &Value) -> Value {
        let mut object = object.clone();
        default_namespace(&mut object);
        self.count += 1;
        object["metadata"]["uid"] = json!(format!("{UID}{:06}", self.count));
        object
    }

    fn pod(&mut self, shadow: &mut Shadow, object: &Value, shown: &str) -> Result<(), Failure> {
        let mut object = object.clone();
        default_namespace(&mut object);
        let scheduler = object
            .pointer("/spec/schedulerName")
            .and_then(Value::as_str);
        let scheduler = scheduler.unwrap_or("default-scheduler").to_owned();
        if scheduler != shadow.scheduler {
            let costs = self.findings.iter().any(|one| one.costs_the_gpu);
            self.undecided |= costs;
            self.notes.push(format!(
                "{shown}: its spec.schedulerName is {scheduler}, not {}: another scheduler decides{}",
                shadow.scheduler,
                if costs { ", and gives it no GPU" } else { "" }
            ));
            return Ok(());
        }
        self.count += 1;
        let taken = shadow.take_pod(&object, self.count).map_err(|why| {
            let mut why = format!("{shown} would be rejected: {why}");
            if let Some(first) = self.findings.first() {
                let _ = write!(why, "; {first}");
            }
            Failure::input(why)
        })?;
        if self.findings.iter().any(|one| one.costs_the_gpu) {
            self.without.insert(taken.uid.clone());
        }
        let warnings = taken.warnings.iter();
        self.notes
            .extend(warnings.map(|warning| format!("{shown}: {warning}")));
        self.pods.push((taken.uid, taken.name));
        Ok(())
    }
}

fn default_namespace(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        let namespace = metadata.entry("namespace").or_insert(Value::Null);
        if namespace.is_null() {
            *namespace = json!("default");
        }
    }
}

fn there<K: DeserializeOwned>(object: &Value, shown: &str) -> Result<Seen<K>, Failure> {
    Ok(Seen::There(Box::new(typed(object, shown)?)))
}

fn typed<K: DeserializeOwned>(object: &Value, shown: &str) -> Result<K, Failure> {
    serde_json::from_value(object.clone())
        .map_err(|error| Failure::input(format!("{shown} is not valid for its kind: {error}")))
}

fn number(object: &Value, pointer: &str, shown: &str) -> Result<Option<u64>, Failure> {
    match object.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or_else(|| {
            Failure::input(format!("{shown}: {} must be a whole number", &pointer[1..]))
        }),
    }
}
