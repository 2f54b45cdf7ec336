//! Every card in the smallest form: 40,000 of them are shown at once.
//!
//! ```json
//! {"token": "...", "whole": true, "keys": ["topology.kubernetes.io/zone"], "words": ["NVIDIA L4"],
//!  "nodes": [["node-1", [0], [[0, 0, 23000, 12000, 900, 0, [[2000, 900, 2, 1]]]]]], "gone": []}
//! ```
//!
//! A node: its name, its labels by the keys, its cards. A card: index, product, MiB that can be
//! granted, are granted, are in use (-1: not known), state, shares. A share: MiB that are kept
//! for it, MiB in use (-1: not known), fence, queue. Texts are numbers of words, -1 for none.

use super::cards::sees;
use super::{Rights, Rows};
use api::gpu_node::{GpuStatus, GrantStatus};
use api::units::Fence;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Labels by which cards can be grouped beside those that a topology names.
const PLACES: [&str; 3] = [
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];

/// Texts of one answer, each once.
#[derive(Default)]
struct NodeQueue<'a> {
    numbers: BTreeMap<&'a str, usize>,
    texts: Vec<&'a str>,
}

impl<'a> NodeQueue<'a> {
    fn number(&mut self, text: &'a str) -> i64 {
        if text.is_empty() {
            return -1;
        }
        let next = self.texts.len();
        let number = *self.numbers.entry(text).or_insert(next);
        if number == next {
            self.texts.push(text);
        }
        i64::try_from(number).unwrap_or(-1)
    }
}

/// Every card, or those of the nodes that changed since the token.
pub(super) fn all(token: &str, rights: &Rights, rows: &Rows) -> Value {
    let since = rows.changes.number(token, rights.number());
    let keys = keys(rows);
    let mut words = NodeQueue::default();
    let mut nodes = Vec::new();
    for (name, node) in rows.nodes.iter() {
        if !rows.changes.is_new(name, since) {
            continue;
        }
        let labels = rows.labels.get(name.as_str());
        let places = keys.iter().map(|key| {
            let of = labels.and_then(|labels| labels.iter().find(|(one, _)| **one == **key));
            of.map_or(-1, |(_, value)| words.number(value))
        });
        let places: Vec<i64> = places.collect();
        let live = rows.live.get(name);
        let gpus = node.status.iter().flat_map(|status| &status.gpus);
        let cards = gpus.map(|gpu| card(gpu, live, rights, rows, &mut words));
        let cards: Vec<Value> = cards.collect();
        nodes.push(json!([name, places, cards]));
    }
    json!({
        "token": rows.changes.token(rights.number()), "whole": since.is_none(), "keys": keys,
        "words": words.texts, "nodes": nodes,
        "gone": rows.changes.gone_since(since).collect::<Vec<_>>(),
    })
}

fn card<'a>(
    gpu: &'a GpuStatus,
    live: Option<&'a super::super::row::Live>,
    rights: &Rights,
    rows: &'a Rows,
    words: &mut NodeQueue<'a>,
) -> Value {
    let now = live.and_then(|live| live.cards.get(&gpu.uuid));
    let used = now.map_or(-1, |card| i64::try_from(card.used).unwrap_or(i64::MAX));
    let shares = gpu.grants.iter().map(|grant| {
        let key = (grant.pod_uid.clone(), grant.container.clone());
        let share = live.and_then(|live| live.shares.get(&key));
        let used = share.map_or(-1, |share| {
            let each = share.used / share.cards.len().max(1) as u64;
            i64::try_from(each).unwrap_or(i64::MAX)
        });
        let queue = if rights.queues && sees(rights, grant) {
            words.number(rows.payer(&grant.pod_uid))
        } else {
            -1
        };
        let kept = grant.request_mib.unwrap_or(grant.memory_mib).0;
        json!([kept, used, fence(grant), queue])
    });
    let shares: Vec<Value> = shares.collect();
    json!([
        gpu.index,
        words.number(&gpu.product),
        gpu.grantable_mib.0,
        gpu.granted_mib.0,
        used,
        state(gpu, now.is_some()),
        shares,
    ])
}

/// 0 in order, 1 agent disconnected, 2 cordoned, 3 not ready, 4 processes without a grant, 5
/// unhealthy.
fn state(gpu: &GpuStatus, heard: bool) -> u8 {
    if gpu.health == "Unhealthy" {
        5
    } else if !gpu.strangers.is_empty() {
        4
    } else if !gpu.ready && !gpu.grants.is_empty() {
        3
    } else if gpu.cordoned {
        2
    } else {
        u8::from(!heard)
    }
}

/// 0 none yet, then from the weakest to the strongest.
fn fence(grant: &GrantStatus) -> u8 {
    match grant.fence {
        None => 0,
        Some(Fence::WatchdogOnly) => 1,
        Some(Fence::ClientLimit) => 2,
        Some(Fence::ServerLimit) => 3,
        Some(Fence::DriverLimit) => 4,
    }
}

/// Those that some node has.
fn keys(rows: &Rows) -> Vec<&str> {
    let levels = rows.topologies.iter().flat_map(|(_, keys)| keys);
    let wanted: Vec<&str> = PLACES
        .into_iter()
        .chain(levels.map(String::as_str))
        .collect();
    let mut there: BTreeSet<&str> = BTreeSet::new();
    for (name, _) in rows.nodes.iter() {
        let labels = rows.labels.get(name.as_str()).into_iter().flatten();
        there.extend(
            labels
                .map(|(key, _)| &**key)
                .filter(|key| wanted.contains(key)),
        );
    }
    let mut keys: Vec<&str> = Vec::new();
    for key in wanted {
        if there.contains(key) && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}
