//! A task's rules about nodes, as Kubernetes writes them → the core's.

use anyhow::{Context as _, bail};
use scheduler_core::model::{
    Amount, Ask, Effect, NodeTerm, Operator, Pod, PodRules, PodSelector, PodTerm, Requirement,
    Share, Tolerated, Toleration,
};
use serde_json::Value;
use std::sync::Arc;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Rules about other pods: those that recorded tasks have, which name labels alone.
pub(crate) fn pods(affinity: &Value, pod: &mut Pod) -> anyhow::Result<()> {
    let terms = |kind: &str| -> anyhow::Result<Vec<PodTerm>> {
        let terms = list(&affinity[kind][REQUIRED]).iter();
        let read = terms.map(|term| pod_term(term, &pod.namespace));
        read.collect()
    };
    let (affinity, anti_affinity) = (terms("podAffinity")?, terms("podAntiAffinity")?);
    pod.pods = PodRules {
        affinity,
        anti_affinity,
        ..PodRules::default()
    };
    Ok(())
}

fn pod_term(term: &Value, namespace: &Arc<str>) -> anyhow::Result<PodTerm> {
    let Some(labels) = term["labelSelector"]["matchLabels"].as_object() else {
        bail!("a term without matchLabels: {term}");
    };
    if term.as_object().is_some_and(|term| term.len() > 2) {
        bail!("a term with more than a selector and a key: {term}");
    }
    let labels = labels.iter().map(|(key, value)| Requirement {
        key: Arc::from(key.as_str()),
        operator: Operator::In(value.as_str().into_iter().map(Arc::from).collect()),
    });
    Ok(PodTerm {
        pods: PodSelector {
            namespaces: [Arc::clone(namespace)].into(),
            namespace_labels: None,
            labels: Some(labels.collect()),
        },
        topology_key: Arc::from(term["topologyKey"].as_str().context("topologyKey")?),
    })
}

/// The required terms of node affinity; `None`: no rule.
pub(crate) fn terms(affinity: &Value) -> anyhow::Result<Option<Vec<NodeTerm>>> {
    let Some(selector) = affinity["nodeAffinity"].get(REQUIRED) else {
        return Ok(None);
    };
    let mut terms = Vec::new();
    for term in list(&selector["nodeSelectorTerms"]) {
        terms.push(NodeTerm {
            labels: requirements(&term["matchExpressions"])?,
            name: requirements(&term["matchFields"])?,
        });
    }
    Ok(Some(terms))
}

fn requirements(value: &Value) -> anyhow::Result<Vec<Requirement>> {
    let mut requirements = Vec::new();
    for one in list(value) {
        let values: Vec<Arc<str>> = list(&one["values"])
            .iter()
            .filter_map(Value::as_str)
            .map(Arc::from)
            .collect();
        let bound = || -> anyhow::Result<i64> {
            Ok(values.first().context("a bound is missing")?.parse()?)
        };
        let operator = match one["operator"].as_str() {
            Some("In") => Operator::In(values),
            Some("NotIn") => Operator::NotIn(values),
            Some("Exists") => Operator::Exists,
            Some("DoesNotExist") => Operator::DoesNotExist,
            Some("Gt") => Operator::Above(bound()?),
            Some("Lt") => Operator::Below(bound()?),
            other => bail!("operator {other:?}"),
        };
        requirements.push(Requirement {
            key: Arc::from(one["key"].as_str().unwrap_or_default()),
            operator,
        });
    }
    Ok(requirements)
}

/// `tolerations`, as in a pod's spec.
pub(crate) fn tolerations(value: &Value) -> Vec<Toleration> {
    list(value)
        .iter()
        .map(|one| Toleration {
            key: one["key"]
                .as_str()
                .filter(|key| !key.is_empty())
                .map(Arc::from),
            values: if one["operator"] == "Exists" {
                Tolerated::Any
            } else {
                Tolerated::Equal(Arc::from(one["value"].as_str().unwrap_or_default()))
            },
            effect: match one["effect"].as_str() {
                Some("NoSchedule") => Some(Effect::NoSchedule),
                Some("NoExecute") => Some(Effect::NoExecute),
                _ => None,
            },
        })
        .collect()
}

/// Requests for GPU memory exclude nodes that have not published how much their GPUs have. The
/// core's cards always have it; so the pod keeps away from such nodes by name.
pub(crate) fn need_known_memory(pod: &mut Pod, nodes: &Value) {
    let unknown: Vec<Arc<str>> = list(nodes)
        .iter()
        .filter(|node| node["gpu_memory_known"] == false)
        .filter_map(|node| node["name"].as_str())
        .map(Arc::from)
        .collect();
    let by_memory = pod.gpus.iter().any(|ask| {
        matches!(
            ask.ask,
            Ask::Share(Share {
                amount: Amount::Memory(_),
                ..
            })
        )
    });
    if unknown.is_empty() || !by_memory {
        return;
    }
    let known = Requirement {
        key: Arc::from("metadata.name"),
        operator: Operator::NotIn(unknown),
    };
    let terms = pod
        .nodes
        .terms
        .get_or_insert_with(|| vec![NodeTerm::default()]);
    for term in terms {
        term.name.push(known.clone());
    }
}
