//! Cards: one, many, and sums over all of them.

use super::{Answer, Rights, Rows, Span, Which};
use api::GpuNode;
use api::gpu_node::{GpuStatus, GrantStatus};
use api::units::Fence;
use serde_json::{Value, json};

/// One card and where it is.
#[derive(Clone, Copy)]
pub(super) struct Card<'a> {
    pub(super) node: &'a str,
    pub(super) gpu: &'a GpuStatus,
    pub(super) used: u64,
}

pub(super) fn all_cards(rows: &Rows) -> impl Iterator<Item = Card<'_>> {
    let nodes = rows.nodes.iter();
    nodes.flat_map(move |(node, object)| cards_of(node, object, rows))
}

/// The cards of one node.
pub(super) fn cards_of<'a>(
    node: &'a str,
    object: &'a GpuNode,
    rows: &'a Rows,
) -> impl Iterator<Item = Card<'a>> {
    let live = rows.live.get(node);
    let gpus = object.status.iter().flat_map(|status| &status.gpus);
    gpus.map(move |gpu| Card {
        node,
        gpu,
        used: live
            .and_then(|live| live.cards.get(&gpu.uuid))
            .map_or(gpu.used_mib.0, |card| card.used),
    })
}

impl Card<'_> {
    /// What is wrong with it; empty when nothing is.
    pub(super) fn trouble(&self) -> String {
        let gpu = self.gpu;
        let complaint = |grant: &GrantStatus| !grant.complaint.is_empty();
        if gpu.health == "Unhealthy" {
            format!("unhealthy: {}", gpu.health_reason)
        } else if gpu.cordoned {
            "cordoned".to_owned()
        } else if !gpu.ready && !gpu.grants.is_empty() {
            format!("not ready: MPS server {}", gpu.mps)
        } else if !gpu.strangers.is_empty() {
            "processes without a grant".to_owned()
        } else if let Some(grant) = gpu.grants.iter().find(|grant| complaint(grant)) {
            grant.complaint.clone()
        } else {
            String::new()
        }
    }

    fn json(&self) -> Value {
        let gpu = self.gpu;
        json!({
            "uuid": gpu.uuid, "node": self.node, "index": gpu.index, "product": gpu.product,
            "mode": gpu.mode.map_or("", api::Mode::as_str),
            "grantable": gpu.grantable_mib.0, "granted": gpu.granted_mib.0, "used": self.used,
            "shares": gpu.grants.len(), "trouble": self.trouble(),
        })
    }

    fn has(&self, needle: &str, rights: &Rights) -> bool {
        let gpu = self.gpu;
        let mode = gpu.mode.map_or("", api::Mode::as_str);
        let text = |text: &str| text.to_lowercase().contains(needle);
        text(self.node)
            || text(&gpu.product)
            || text(&gpu.uuid)
            || text(mode)
            || gpu
                .grants
                .iter()
                .any(|grant| sees(rights, grant) && text(&grant.pod))
    }
}

pub(super) fn sees(rights: &Rights, grant: &GrantStatus) -> bool {
    grant
        .pod
        .split_once('/')
        .is_some_and(|(namespace, _)| rights.sees(namespace))
}

pub(super) fn many(span: &Span, rights: &Rights, rows: &Rows) -> Value {
    let needle = span.filter.to_lowercase();
    let fits = |card: &Card<'_>| {
        let state = match span.state.as_str() {
            "free" => card.gpu.granted_mib.0 == 0 && card.gpu.grants.is_empty(),
            "shared" => card.gpu.granted_mib.0 > 0,
            "trouble" => !card.trouble().is_empty(),
            _ => true,
        };
        state && (needle.is_empty() || card.has(&needle, rights))
    };
    let mut found: Vec<Card<'_>> = all_cards(rows).filter(fits).collect();
    let column = span.column();
    span.sort(&mut found, |a, b| {
        let by = match column {
            "product" => a.gpu.product.cmp(&b.gpu.product),
            "mode" => a
                .gpu
                .mode
                .map(api::Mode::as_str)
                .cmp(&b.gpu.mode.map(api::Mode::as_str)),
            "granted" => a.gpu.granted_mib.cmp(&b.gpu.granted_mib),
            "used" => a.used.cmp(&b.used),
            "shares" => a.gpu.grants.len().cmp(&b.gpu.grants.len()),
            _ => std::cmp::Ordering::Equal,
        };
        by.then_with(|| natural(a.node, b.node))
            .then(a.gpu.index.cmp(&b.gpu.index))
    });
    span.cut(found, Card::json)
}

/// `node-9` before `node-10`: names of one stem by their number.
pub(super) fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let split = |name: &str| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        (name[..stem].to_owned(), name[stem..].parse::<u64>().ok())
    };
    if a.len() == b.len() {
        return a.cmp(b);
    }
    split(a).cmp(&split(b)).then_with(|| a.cmp(b))
}

pub(super) fn one(which: &Which, rights: &Rights, rows: &Rows) -> Answer {
    let is_it = |card: &Card<'_>| match which {
        Which::Uuid(uuid) => card.gpu.uuid == *uuid,
        Which::At(node, index) => card.node == node && card.gpu.index == *index,
    };
    let Some(card) = all_cards(rows).find(is_it) else {
        return Answer::Absent;
    };
    let gpu = card.gpu;
    let live = rows.live.get(card.node);
    let grants = gpu.grants.iter().map(|grant| {
        let key = (grant.pod_uid.clone(), grant.container.clone());
        let seen = sees(rights, grant);
        let crash = rows.crash(&grant.pod_uid, &grant.container);
        json!({
            "pod": if seen { grant.pod.as_str() } else { "" },
            "uid": if seen { grant.pod_uid.as_str() } else { "" },
            "queue": if seen && rights.queues { rows.payer(&grant.pod_uid) } else { "" },
            "container": if seen { grant.container.as_str() } else { "" },
            "memory": grant.memory_mib.0, "compute": grant.compute_percent,
            "phase": crash.filter(|_| seen).unwrap_or(&grant.phase),
            "used": live.and_then(|live| live.shares.get(&key)).map(|share| share.used),
            "sm": live.and_then(|live| live.shares.get(&key)).and_then(|share| share.sm),
            "fence": grant.fence.map(Fence::words), "complaint": grant.complaint,
        })
    });
    let mut answer = card.json();
    answer["total"] = json!(gpu.total_mib.0);
    answer["reserved"] = json!(gpu.reserved_mib.0);
    answer["ready"] = json!(gpu.ready);
    answer["cordoned"] = json!(gpu.cordoned);
    answer["health"] = json!(gpu.health);
    answer["healthReason"] = json!(gpu.health_reason);
    answer["mps"] = json!(gpu.mps);
    answer["switchable"] = json!(gpu.switchable_modes);
    answer["computeCapability"] = json!(gpu.compute_capability);
    answer["pci"] = json!(gpu.pci);
    answer["numa"] = json!(gpu.numa);
    answer["nvlink"] = json!(gpu.nvlink_peers);
    answer["grants"] = grants.collect();
    answer["strangers"] = json!(gpu.strangers);
    answer["heard"] = json!(live.is_some());
    Answer::Json(answer)
}
