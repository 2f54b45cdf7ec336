//! The mistakes in a pod, or in a template of pods.

use super::finding::{Cluster, Finding};
use super::templates::Template;
use super::{keys, peers};
use crate::request::shown;
use proto::names::{kai, request, resource};
use serde_json::Value;

/// The most annotations or labels of one object that are read. Admission is called before the API
/// server has checked their size, and each is compared with each known name.
const MOST_KEYS: usize = 500;
/// The least memory of a share that can hold the context of a CUDA program, in MiB. The author of a
/// smaller share most likely thought in GiB.
const LEAST_MIB: u64 = 100;

/// Returns the entries of a map of annotations or labels.
pub(super) fn entries(map: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let all = map.as_object().into_iter().flatten();
    all.map(|(key, value)| (key.as_str(), value))
        .take(MOST_KEYS)
}

/// Returns the mistakes of a pod. `told` is true if its owner has a mistake of its own.
pub(super) fn of(template: &Template<'_>, cluster: &Cluster, told: bool) -> Vec<Finding> {
    let pod = Pod {
        path: &template.path,
        says: template.pod,
        cluster,
    };
    let mut findings = pod.annotations();
    findings.extend(pod.labels());
    findings.extend(pod.misplaced());
    let words = pod.words_of_peers();
    // A pod that names another scheduler and no share belongs to others.
    let speaks = told || !findings.is_empty() || pod.speaks();
    if pod.is_ours() || speaks || pod.scheduler().is_none() {
        findings.extend(words);
    }
    findings.extend(pod.scheduler_name(!findings.is_empty() || speaks));
    findings.extend(pod.class());
    findings.extend(pod.other_containers());
    findings
}

/// Returns the finding about the name of a priority class.
pub(super) fn class(field: String, name: &Value, cluster: &Cluster) -> Option<Finding> {
    let name = name.as_str().filter(|name| !name.is_empty())?;
    // Kubernetes itself creates the classes with this prefix.
    if cluster.classes.contains(name) || name.starts_with("system-") {
        return None;
    }
    let known = || cluster.classes.iter().map(String::as_str);
    let meant = keys::meant_class(name, known());
    if meant.is_none() && !cluster.all_classes {
        return None;
    }
    let problem = format!("names the priority class {}, which ", shown(name));
    let problem = problem
        + if cluster.all_classes {
            "does not exist"
        } else {
            "does not come with Aliquot"
        };
    let fix = match meant {
        Some(meant) => format!("write {meant}, or create the class"),
        None => format!(
            "create the class, or write one of {}",
            kai::PRIORITY_CLASSES.join(", ")
        ),
    };
    Some(Finding::new(field, problem, fix))
}

struct Pod<'a> {
    path: &'a str,
    says: &'a Value,
    cluster: &'a Cluster,
}

impl<'a> Pod<'a> {
    fn field(&self, path: &str) -> String {
        format!("{}{path}", self.path)
    }

    fn map(&self, name: &str) -> &'a Value {
        &self.says["metadata"][name]
    }

    fn scheduler(&self) -> Option<&'a str> {
        let name = self.says["spec"]["schedulerName"].as_str();
        name.filter(|name| !name.is_empty())
    }

    fn is_ours(&self) -> bool {
        self.scheduler() == Some(&self.cluster.scheduler)
    }

    /// Returns true if the pod has an annotation of a share, or the label of a queue.
    fn speaks(&self) -> bool {
        entries(self.map("annotations")).any(|(key, _)| keys::is_of_share(key))
            || entries(self.map("labels"))
                .any(|(key, _)| [kai::QUEUE_LABEL, kai::QUEUE_LABEL_OLD].contains(&key))
    }

    /// Returns true if one of the pod's annotations requests a share.
    fn requests(&self) -> bool {
        entries(self.map("annotations")).any(|(key, _)| keys::requests(key))
    }

    fn annotations(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (key, value) in entries(self.map("annotations")) {
            let field = self.field(&format!("metadata.annotations[{}]", shown(key)));
            let unread = "is no annotation of Aliquot or KAI, so nothing reads it";
            if let Some(meant) = keys::meant_annotation(key) {
                let finding = Finding::new(&field, unread, format!("write {meant}"));
                findings.push(if keys::is_of_share(&meant) {
                    finding.without_gpu()
                } else {
                    finding
                });
            } else if keys::is_label(key) || keys::meant_label(key).is_some() {
                let fix = "move it to metadata.labels";
                let problem = "is an annotation, and is read as a label alone";
                findings.push(Finding::new(&field, problem, fix));
            } else if let Some(word) = peers::key(key) {
                findings.push(self.word(&field, word, ""));
            } else if !keys::is_of_share(key) && keys::looks_like_a_share(key) {
                let fix = format!(
                    "request a share by {} or {}",
                    request::MEMORY,
                    request::FRACTION
                );
                findings.push(Finding::new(&field, unread, fix).without_gpu());
            }
            findings.extend(not_text(&field, value));
            if key == request::MEMORY {
                findings.extend(too_small(&field, value));
            }
        }
        findings
    }

    fn labels(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (key, value) in entries(self.map("labels")) {
            let field = self.field(&format!("metadata.labels[{}]", shown(key)));
            if keys::is_of_share(key) {
                let problem = "is a label, and is read as an annotation alone";
                let fix = "move it to metadata.annotations";
                findings.push(Finding::new(&field, problem, fix).without_gpu());
            } else if let Some(meant) = keys::meant_label(key).filter(|_| !keys::is_label(key)) {
                let problem = "is no label of Aliquot or KAI, so nothing reads it";
                findings.push(Finding::new(&field, problem, format!("write {meant}")));
            } else if let Some(word) = peers::key(key) {
                findings.push(self.word(&field, word, ""));
            }
            findings.extend(not_text(&field, value));
        }
        findings
    }

    /// Finds names of annotations in places where a wrong indent puts them, or in a container's
    /// resources. The API server refuses most of them, and does not mention annotations.
    fn misplaced(&self) -> Vec<Finding> {
        let says = self.says;
        let mut places = vec![
            ("metadata".to_owned(), &says["metadata"]),
            ("annotations".to_owned(), &says["annotations"]),
            ("spec".to_owned(), &says["spec"]),
            ("spec.annotations".to_owned(), &says["spec"]["annotations"]),
        ];
        for (place, container) in self.containers() {
            let resources = &container["resources"];
            for list in ["limits", "requests"] {
                places.push((format!("{place}.resources.{list}"), &resources[list]));
            }
            places.push((format!("{place}.annotations"), &container["annotations"]));
            places.push((place, container));
        }
        let mut findings = Vec::new();
        for (place, map) in places {
            let keys = entries(map).filter(|(key, _)| keys::is_of_share(key));
            for (key, _) in keys {
                let field = self.field(&format!("{place}[{}]", shown(key)));
                let problem = "is in the wrong place, and counts as an annotation of the pod alone";
                let fix = format!("move it to {}", self.field("metadata.annotations"));
                findings.push(Finding::new(field, problem, fix).without_gpu());
            }
        }
        findings
    }

    /// Finds resources that other products serve.
    fn words_of_peers(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (place, container) in self.containers() {
            for list in ["limits", "requests"] {
                let resources = &container["resources"][list];
                for (name, value) in entries(resources) {
                    // A limit is copied to the requests, so that one finding is enough.
                    if list == "requests" && container["resources"]["limits"].get(name).is_some() {
                        continue;
                    }
                    let path = format!("{place}.resources.{list}[{}]", shown(name));
                    let field = self.field(&path);
                    if let Some(word) = peers::resource(name) {
                        let text = value.as_str().map(str::to_owned);
                        let text = text.unwrap_or_else(|| value.to_string());
                        let mut finding = self.word(&field, word, &text);
                        if word.asks() && resources.get(resource::GPU).is_some() {
                            finding.fix.push_str(", and remove nvidia.com/gpu");
                        }
                        findings.push(finding);
                    } else if [resource::MEMORY_MIB, resource::MILLI].contains(&name) {
                        if !self.requests() {
                            let problem = "is written by admission, and requests nothing by itself";
                            let fix = "set the annotation gpu-memory or gpu-fraction instead";
                            findings.push(Finding::new(&field, problem, fix).without_gpu());
                        }
                    } else if name != resource::GPU
                        && !name.starts_with(resource::MIG_PREFIX)
                        && let Some(meant) = keys::meant_resource(name)
                    {
                        let problem = "is a resource that no node has";
                        findings.push(Finding::new(&field, problem, format!("write {meant}")));
                    }
                }
            }
        }
        findings
    }

    fn word(&self, field: &str, word: peers::Word, value: &str) -> Finding {
        let problem = format!("is a word of {}, and says nothing to Aliquot", word.of);
        let finding = Finding::new(field, problem, word.fix(value));
        if word.asks() && !self.requests() {
            finding.without_gpu()
        } else {
            finding
        }
    }

    fn containers(&self) -> impl Iterator<Item = (String, &'a Value)> {
        let spec = &self.says["spec"];
        ["initContainers", "containers"]
            .into_iter()
            .flat_map(move |list| {
                let all = spec[list].as_array().into_iter().flatten();
                all.enumerate()
                    .map(move |(at, container)| (format!("spec.{list}[{at}]"), container))
            })
    }

    /// Finds another scheduler, or none, on a pod that has a word for this one or requests whole GPUs.
    fn scheduler_name(&self, speaks: bool) -> Option<Finding> {
        let wanted = &self.cluster.scheduler;
        let whole = self
            .containers()
            .find(|(_, container)| !container["resources"]["limits"][resource::GPU].is_null());
        let (problem, gpu) = match (self.scheduler(), whole) {
            (Some(name), _) if name == wanted || !speaks => return None,
            // KAI may run beside this scheduler, which then has another name.
            (Some(kai::SCHEDULER_NAME), _) => return None,
            (Some(name), _) => (
                format!("is {}, so that Aliquot does not see the pod", shown(name)),
                true,
            ),
            (None, _) if speaks => (
                "is not set, so that Kubernetes' own scheduler places the pod without a GPU"
                    .to_owned(),
                true,
            ),
            (None, Some(_)) => (
                "is not set, and a GPU that Aliquot serves needs a grant of its scheduler"
                    .to_owned(),
                false,
            ),
            (None, None) => return None,
        };
        let fix = format!("set it to {}", shown(wanted));
        let finding = Finding::new(self.field("spec.schedulerName"), problem, fix);
        Some(if gpu { finding.without_gpu() } else { finding })
    }

    fn class(&self) -> Option<Finding> {
        if !self.is_ours() && self.scheduler().is_some() {
            return None;
        }
        let label = &self.map("labels")[kai::PRIORITY_CLASS_LABEL];
        if !label.is_null() {
            let path = format!("metadata.labels[{}]", kai::PRIORITY_CLASS_LABEL);
            return class(self.field(&path), label, self.cluster);
        }
        let named = &self.says["spec"]["priorityClassName"];
        class(self.field("spec.priorityClassName"), named, self.cluster)
    }

    /// Finds containers that get no GPU. The first container alone gets the share, unless an annotation
    /// names another.
    fn other_containers(&self) -> Option<Finding> {
        let annotations = self.map("annotations");
        let by_pod = [request::MEMORY, request::FRACTION];
        let asks = by_pod.iter().any(|key| annotations.get(key).is_some());
        let own = |key: &str| key.starts_with(request::CONTAINER_PREFIX);
        let named = annotations.get(request::CONTAINER).is_some()
            || entries(annotations).any(|(key, _)| own(key));
        if !asks || named {
            return None;
        }
        let containers = self.says["spec"]["containers"].as_array()?;
        let name = |container: &Value| shown(container["name"].as_str().unwrap_or_default());
        let (first, others) = containers.split_first()?;
        let second = others.first()?;
        let names: Vec<String> = others.iter().take(3).map(name).collect();
        let more = if others.len() > names.len() {
            ", …"
        } else {
            ""
        };
        let problem = format!(
            "({}{more}) gets no GPU: the share is for container {} alone",
            names.join(", "),
            name(first)
        );
        let fix = format!(
            "if that is meant, set the annotation {}: {}; otherwise request one by {}{}{}",
            request::CONTAINER,
            name(first),
            request::CONTAINER_PREFIX,
            name(second),
            request::CONTAINER_MEMORY_REQUEST
        );
        let field = self.field("spec.containers[1]");
        Some(Finding::new(field, problem, fix))
    }
}

/// Finds an annotation or a label that is a number or a truth value in YAML.
fn not_text(field: &str, value: &Value) -> Option<Finding> {
    let kind = match value {
        Value::Number(_) => "a number",
        Value::Bool(_) => "a truth value",
        _ => return None,
    };
    let problem = format!("is {kind}, and Kubernetes takes only text there");
    let fix = format!("write it in quotes, \"{value}\"");
    Some(Finding::new(field, problem, fix))
}

fn too_small(field: &str, value: &Value) -> Option<Finding> {
    let number = match value {
        Value::String(text) => text.parse::<u64>().ok()?,
        other => other.as_u64()?,
    };
    let gib = number.checked_mul(1024)?;
    (1..LEAST_MIB).contains(&number).then(|| {
        let problem = format!("is {number} MiB, less than a CUDA program needs to start");
        Finding::new(field, problem, format!("for {number} GiB write \"{gib}\""))
    })
}
