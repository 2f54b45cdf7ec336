//! What happened between two views, a line for each thing. Pure.

use crate::view::{ClusterView, phase, why};
use k8s_openapi::api::core::v1::Pod;

/// The changes from one view to the next, as text for people.
pub(super) fn changes(before: &ClusterView, after: &ClusterView) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, node) in &after.nodes {
        let cards = |view: &ClusterView| {
            let status = view.nodes.get(name).and_then(|node| node.status.as_ref());
            status.map_or(0, |status| status.gpus.len())
        };
        let count = node.status.as_ref().map_or(0, |status| status.gpus.len());
        if count > 0 && cards(before) == 0 {
            let cards = if count == 1 { "card" } else { "cards" };
            lines.push(format!("{name} offers {count} {cards}"));
        }
    }
    for ((namespace, name), pod) in &after.pods {
        let old = before.pod(namespace, name);
        let state = state(after, namespace, name, pod);
        let was = old.map(|old| self::state(before, namespace, name, old));
        if was.as_ref() != Some(&state) && !state.is_empty() {
            lines.push(format!("{namespace}/{name} {state}"));
        }
    }
    for (namespace, name) in before.pods.keys() {
        if after.pod(namespace, name).is_none() {
            lines.push(format!("{namespace}/{name} is gone"));
        }
    }
    for (node, card) in after.cards() {
        let old = before.cards().find(|(_, old)| old.uuid == card.uuid);
        let was = old.map(|(_, old)| old.health.as_str());
        if was.is_some_and(|was| was != card.health) {
            let reason = match card.health_reason.as_str() {
                "" => String::new(),
                reason => format!(": {reason}"),
            };
            let health = card.health.to_lowercase();
            lines.push(format!("GPU {} of {node} is {health}{reason}", card.index));
        }
    }
    lines
}

/// Empty: there are no changes yet.
fn state(view: &ClusterView, namespace: &str, name: &str, pod: &Pod) -> String {
    match phase(pod) {
        "Running" => {
            let holder = format!("{namespace}/{name}");
            let held = view.cards().find_map(|(node, card)| {
                let grant = card.grants.iter().find(|grant| grant.pod == holder)?;
                Some(format!(
                    "runs with {} MiB of {node} / {}",
                    grant.memory_mib.0, card.index
                ))
            });
            held.unwrap_or_default()
        }
        "Pending" => match crate::view::reason(pod) {
            Some(reason) => {
                let line = reason.lines().next().unwrap_or_default();
                format!("waits: {line}")
            }
            None => String::new(),
        },
        other => format!("{}: {}", other.to_lowercase(), why(pod)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt as _;
    use serde_json::json;

    fn sample_view(phase: &str, message: Option<&str>) -> ClusterView {
        let mut status = json!({"phase": phase});
        if let Some(message) = message {
            status["conditions"] =
                json!([{"type": "PodScheduled", "status": "False", "message": message}]);
        }
        let pod = json!({"metadata": {"name": "a", "namespace": "team-a"}, "status": status});
        let nodes = crate::inventory::tests::nodes();
        ClusterView {
            nodes: nodes
                .into_iter()
                .map(|node| (node.name_any(), node))
                .collect(),
            pods: [(
                ("team-a".to_owned(), "a".to_owned()),
                serde_json::from_value(pod).unwrap(),
            )]
            .into(),
        }
    }

    #[test]
    fn each_thing_is_told_once() {
        let empty = ClusterView::default();
        let waits = sample_view("Pending", Some("no card\nn1: full"));
        let runs = sample_view("Running", None);
        assert_eq!(
            changes(&empty, &waits),
            [
                "n1 offers 2 cards",
                "n2 offers 1 card",
                "team-a/a waits: no card"
            ]
        );
        assert_eq!(changes(&waits, &waits), Vec::<String>::new());
        assert_eq!(
            changes(&waits, &runs),
            ["team-a/a runs with 2000 MiB of n1 / 0"]
        );
        let gone = ClusterView {
            pods: std::collections::BTreeMap::default(),
            ..runs.clone()
        };
        assert_eq!(changes(&runs, &gone), ["team-a/a is gone"]);
        let mut mended = gone.clone();
        let node = mended
            .nodes
            .get_mut("n2")
            .and_then(|node| node.status.as_mut());
        node.unwrap().gpus[0].health = "Healthy".into();
        assert_eq!(changes(&gone, &mended), ["GPU 2 of n2 is healthy: XID 79"]);
    }
}
