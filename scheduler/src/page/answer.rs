//! Rows, a query and the reader's rights → what the page shows, as JSON.
//!
//! Pure. What a reader may not see is left out and said so, never shown as nothing.

use super::desk::Rows;
use super::row::PodRow;
use api::gpu_node::{GpuNode, GpuStatus, GrantStatus};
use scheduler_core::QueueView;
use scheduler_core::units::Bound;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of one answer at most.
pub(super) const LONGEST: usize = 500;
/// Cards with trouble that the overview names.
const TROUBLES: usize = 20;
/// Nano-GPU.
const GPU: f64 = 1e9;

/// What a reader may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    /// Cards and nodes: `list` of `gpunodes.aliquot.dev`.
    pub(super) cards: bool,
    /// Queues: `list` of `queues.scheduling.run.ai`.
    pub(super) queues: bool,
    /// Pods: `list` of pods.
    pub(super) pods: Pods,
}

/// Pods of which namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pods {
    /// Of all.
    All,
    /// Of these.
    In(BTreeSet<String>),
}

impl Rights {
    /// Everything.
    pub(super) fn all() -> Self {
        Self {
            cards: true,
            queues: true,
            pods: Pods::All,
        }
    }

    fn sees(&self, namespace: &str) -> bool {
        match &self.pods {
            Pods::All => true,
            Pods::In(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// Which rows of a long list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Span {
    /// Rows with this text somewhere, in any case.
    #[serde(default)]
    filter: String,
    /// Column; its name with `-` in front: the other way round.
    #[serde(default)]
    sort: String,
    /// `free`, `shared`, `trouble`; of pods `waiting`, `starting`; empty: all.
    #[serde(default)]
    state: String,
    /// Pods of this queue alone.
    #[serde(default)]
    queue: String,
    /// The first row, from 0.
    #[serde(default)]
    from: usize,
    /// How many, 1 to [`LONGEST`]; 100 when unset.
    count: Option<usize>,
}

impl Span {
    /// # Errors
    /// One sentence on what is wrong with it.
    pub(super) fn check(&self, columns: &[&str], states: &[&str]) -> Result<(), String> {
        let column = self.sort.trim_start_matches('-');
        if !column.is_empty() && !columns.contains(&column) {
            return Err(format!(
                "there is no column {column}: sort by one of {}",
                columns.join(", ")
            ));
        }
        if !self.state.is_empty() && !states.contains(&self.state.as_str()) {
            return Err(format!(
                "there is no state {}: use one of {}",
                self.state,
                states.join(", ")
            ));
        }
        match self.count {
            Some(count) if !(1..=LONGEST).contains(&count) => {
                Err(format!("count must be from 1 to {LONGEST}"))
            }
            _ => Ok(()),
        }
    }

    fn cut<T>(&self, rows: Vec<T>, show: impl Fn(&T) -> Value) -> Value {
        let total = rows.len();
        let shown = rows.iter().skip(self.from).take(self.count.unwrap_or(100));
        let shown: Vec<Value> = shown.map(show).collect();
        json!({"total": total, "from": self.from, "rows": shown})
    }

    /// Ascending unless the column says otherwise.
    fn sort<T>(&self, rows: &mut [T], compare: impl Fn(&T, &T) -> std::cmp::Ordering) {
        if self.sort.starts_with('-') {
            rows.sort_by(|a, b| compare(b, a));
        } else {
            rows.sort_by(compare);
        }
    }

    fn column(&self) -> &str {
        self.sort.trim_start_matches('-')
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Query {
    /// Sums over everything.
    Overview,
    /// Many cards.
    Cards(Span),
    /// One card, by UUID.
    Card(String),
    /// The whole tree.
    Queues,
    /// Many pods.
    Pods(Span),
    /// One pod, by UID.
    Pod(String),
    /// Of this scheduler and its agents.
    Health,
}

/// Columns by which cards can be sorted.
pub(super) const CARD_COLUMNS: [&str; 6] = ["node", "product", "mode", "granted", "used", "shares"];
/// States of cards.
pub(super) const CARD_STATES: [&str; 3] = ["free", "shared", "trouble"];
/// Columns by which pods can be sorted.
pub(super) const POD_COLUMNS: [&str; 4] = ["name", "queue", "place", "age"];
/// States of pods.
pub(super) const POD_STATES: [&str; 2] = ["waiting", "starting"];

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    /// This.
    Json(Value),
    /// There is no such thing, as far as the reader may know.
    Absent,
    /// The reader may not see it; which right is missing.
    Denied(&'static str),
}

const NO_CARDS: &str = "you may not list gpunodes.aliquot.dev";
const NO_QUEUES: &str = "you may not list queues.scheduling.run.ai";

/// Answers a query.
pub(super) fn to(query: &Query, rights: &Rights, rows: &Rows) -> Answer {
    match query {
        Query::Overview => Answer::Json(overview(rights, rows)),
        Query::Cards(_) | Query::Card(_) if !rights.cards => Answer::Denied(NO_CARDS),
        Query::Cards(span) => Answer::Json(cards(span, rights, rows)),
        Query::Card(uuid) => card(uuid, rights, rows),
        Query::Queues if !rights.queues => Answer::Denied(NO_QUEUES),
        Query::Queues => {
            Answer::Json(json!({"rows": rows.queues.iter().map(queue).collect::<Vec<_>>()}))
        }
        Query::Pods(span) => Answer::Json(pods(span, rights, rows)),
        Query::Pod(uid) => match rows.pods.get(uid).filter(|pod| rights.sees(&pod.namespace)) {
            Some(pod) => Answer::Json(one_pod(pod, rows, true)),
            None => Answer::Absent,
        },
        Query::Health => Answer::Json(health(rights, rows)),
    }
}

/// One card and where it is.
#[derive(Clone, Copy)]
struct Card<'a> {
    node: &'a str,
    gpu: &'a GpuStatus,
    used: u64,
}

fn all_cards(rows: &Rows) -> impl Iterator<Item = Card<'_>> {
    rows.nodes.iter().flat_map(|(node, object)| {
        let live = rows.live.get(node);
        let gpus = object.status.iter().flat_map(|status| &status.gpus);
        gpus.map(move |gpu| Card {
            node,
            gpu,
            used: live
                .and_then(|live| live.used.get(&gpu.uuid).copied())
                .unwrap_or(gpu.used_mib.0),
        })
    })
}

impl Card<'_> {
    /// What is wrong with it; empty when nothing is.
    fn trouble(&self) -> String {
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

fn sees(rights: &Rights, grant: &GrantStatus) -> bool {
    grant
        .pod
        .split_once('/')
        .is_some_and(|(namespace, _)| rights.sees(namespace))
}

fn cards(span: &Span, rights: &Rights, rows: &Rows) -> Value {
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
fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let split = |name: &str| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        (name[..stem].to_owned(), name[stem..].parse::<u64>().ok())
    };
    if a.len() == b.len() {
        return a.cmp(b);
    }
    split(a).cmp(&split(b)).then_with(|| a.cmp(b))
}

fn card(uuid: &str, rights: &Rights, rows: &Rows) -> Answer {
    let Some(card) = all_cards(rows).find(|card| card.gpu.uuid == uuid) else {
        return Answer::Absent;
    };
    let gpu = card.gpu;
    let live = rows.live.get(card.node);
    let grants = gpu.grants.iter().map(|grant| {
        let key = (grant.pod_uid.clone(), grant.container.clone());
        let seen = sees(rights, grant);
        json!({
            "pod": if seen { grant.pod.as_str() } else { "" },
            "container": if seen { grant.container.as_str() } else { "" },
            "memory": grant.memory_mib.0, "compute": grant.compute_percent, "phase": grant.phase,
            "used": live.and_then(|live| live.shares.get(&key)),
            "fence": grant.fence, "complaint": grant.complaint,
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

fn amount(bound: Bound) -> Value {
    match bound {
        Bound::Unlimited => Value::Null,
        Bound::Exactly(nano) => json!(gpus(u128::from(nano))),
    }
}

/// Rounded to thousandths: nobody reads more.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn gpus(nano: u128) -> f64 {
    (nano as f64 / GPU * 1000.0).round() / 1000.0
}

fn queue(view: &QueueView) -> Value {
    json!({
        "name": view.queue.as_str(),
        "parent": view.parent.as_ref().map(scheduler_core::ids::QueueName::as_str),
        "display": view.display_name.as_deref(), "priority": view.priority,
        "quota": amount(view.quota[0]), "limit": amount(view.limit[0]),
        "fair": view.fair.map(|fair| gpus(fair[0])),
        "held": gpus(view.held[0]), "wanted": gpus(view.wanted[0]),
        "past": gpus(u128::from(view.usage[0])),
        "holding": view.holding, "waiting": view.waiting,
    })
}

fn one_pod(pod: &PodRow, rows: &Rows, whole: bool) -> Value {
    let why = if whole {
        pod.why.as_str()
    } else {
        pod.why.lines().next().unwrap_or_default()
    };
    json!({
        "uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "queue": pod.queue,
        "asks": pod.asks, "class": pod.class, "priority": rows.priority(pod),
        "created": pod.created, "place": rows.place(&pod.uid), "node": pod.node, "why": why,
    })
}

fn pods(span: &Span, rights: &Rights, rows: &Rows) -> Value {
    let needle = span.filter.to_lowercase();
    let fits = |pod: &PodRow| {
        let state = match span.state.as_str() {
            "waiting" => pod.node.is_none(),
            "starting" => pod.node.is_some(),
            _ => true,
        };
        let text = |text: &str| text.to_lowercase().contains(&needle);
        state
            && rights.sees(&pod.namespace)
            && (span.queue.is_empty() || span.queue == pod.queue)
            && (needle.is_empty()
                || text(&pod.name)
                || text(&pod.namespace)
                || text(&pod.queue)
                || text(&pod.why))
    };
    let all = rows.pods.iter().map(|(_, pod)| pod);
    let mut found: Vec<&PodRow> = all.filter(|pod| fits(pod)).collect();
    let column = span.column();
    span.sort(&mut found, |a, b| {
        let place = |pod: &PodRow| (rows.place(&pod.uid), pod.created);
        let by = match column {
            "name" => (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)),
            // The older first would be the smaller stamp: age grows the other way.
            "age" => b.created.cmp(&a.created),
            "place" => place(a).cmp(&place(b)),
            _ => a.queue.cmp(&b.queue).then_with(|| place(a).cmp(&place(b))),
        };
        by.then_with(|| a.uid.cmp(&b.uid))
    });
    let mut answer = span.cut(found, |pod| one_pod(pod, rows, false));
    answer["whole"] = json!(rights.pods == Pods::All);
    answer
}

/// Sums over cards.
#[derive(Default)]
struct Sum {
    cards: u64,
    free: u64,
    grantable: u64,
    granted: u64,
    used: u64,
    shares: usize,
}

impl Sum {
    fn add(&mut self, card: &Card<'_>) {
        let gpu = card.gpu;
        self.cards += 1;
        self.free += u64::from(gpu.grants.is_empty() && gpu.ready && !gpu.cordoned);
        self.grantable += gpu.grantable_mib.0;
        self.granted += gpu.granted_mib.0;
        self.used += card.used;
        self.shares += gpu.grants.len();
    }

    fn json(&self, product: &str) -> Value {
        json!({
            "product": product, "cards": self.cards, "free": self.free, "grantable": self.grantable,
            "granted": self.granted, "used": self.used, "shares": self.shares,
        })
    }
}

fn overview(rights: &Rights, rows: &Rows) -> Value {
    let (mut waiting, mut starting) = (0_u64, 0_u64);
    for (_, pod) in rows
        .pods
        .iter()
        .filter(|(_, pod)| rights.sees(&pod.namespace))
    {
        if pod.node.is_none() {
            waiting += 1;
        } else {
            starting += 1;
        }
    }
    let mut answer = json!({
        "pods": {"waiting": waiting, "starting": starting, "whole": rights.pods == Pods::All},
        "cards": null, "queues": null,
    });
    if rights.queues {
        answer["queues"] = json!(rows.queues.len());
    }
    if rights.cards {
        let mut all = Sum::default();
        let mut products: BTreeMap<&str, Sum> = BTreeMap::new();
        let mut troubles = Vec::new();
        let mut troubled = 0_u64;
        for card in all_cards(rows) {
            all.add(&card);
            products.entry(&card.gpu.product).or_default().add(&card);
            if !card.trouble().is_empty() {
                troubled += 1;
                if troubles.len() < TROUBLES {
                    troubles.push(card.json());
                }
            }
        }
        let products = products.iter().map(|(product, sum)| sum.json(product));
        answer["nodes"] = json!(rows.nodes.len());
        answer["cards"] = all.json("");
        answer["products"] = products.collect();
        answer["troubled"] = json!(troubled);
        answer["troubles"] = json!(troubles);
    }
    answer
}

fn health(rights: &Rights, rows: &Rows) -> Value {
    let mut answer = json!({
        "leading": rows.status.leading, "missing": rows.status.missing,
        "agents": rows.status.agents, "version": env!("CARGO_PKG_VERSION"), "nodes": null,
    });
    if rights.cards {
        let odd = rows.nodes.iter().filter_map(|(name, node)| {
            let why = not_offering(node).or_else(|| {
                (!rows.live.contains_key(name)).then(|| "its agent is not heard".to_owned())
            })?;
            Some(json!({"node": name, "why": why}))
        });
        let odd: Vec<Value> = odd.take(LONGEST).collect();
        answer["nodes"] = json!(rows.nodes.len());
        answer["odd"] = json!(odd);
    }
    answer
}

/// Why a node offers no shares, where it does not.
fn not_offering(node: &GpuNode) -> Option<String> {
    let Some(status) = &node.status else {
        return Some("its agent has not reported yet".to_owned());
    };
    let offering = |condition: &&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        condition.type_ == "Offering" && condition.status != "True"
    };
    let condition = status.conditions.iter().find(offering)?;
    Some(condition.message.clone())
}
