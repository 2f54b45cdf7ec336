//! The health of this scheduler and its agents.

use super::{LONGEST, NO_AGENT, Rights};
use crate::page::rows::Rows;
use api::GpuNode;
use serde_json::{Value, json};

pub(super) fn health(rights: &Rights, rows: &Rows) -> Value {
    let mut answer = json!({
        "leading": rows.status.leading, "missing": rows.status.missing,
        "agents": rows.status.agents, "version": env!("CARGO_PKG_VERSION"), "nodes": null,
        "remembers": {"since": rows.history.since().0, "bytes": rows.history.bytes()},
    });
    if rights.cards {
        let odd = rows.nodes.iter().filter_map(|(name, node)| {
            let why = not_offering(node)
                .or_else(|| (!rows.live.contains_key(name)).then(|| NO_AGENT.to_owned()))?;
            Some(json!({"node": name, "why": why}))
        });
        let odd: Vec<Value> = odd.take(LONGEST).collect();
        answer["nodes"] = json!(rows.nodes.len());
        answer["odd"] = json!(odd);
    }
    answer
}

/// Returns why a node offers no shares. `None`: it does.
pub(super) fn not_offering(node: &GpuNode) -> Option<String> {
    let Some(status) = &node.status else {
        return Some("its agent has not reported yet".to_owned());
    };
    let offering = |condition: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        condition.type_ == "Offering" && condition.status != "True"
    };
    let condition = status.conditions.iter().find(offering)?;
    Some(condition.message.clone())
}
