//! The first page: what is wrong, what changed, how full the cluster is, and what a tenant has.

use super::cards::{Card, all_cards, cards_of, natural, sees};
use super::time::mark;
use super::{Pods, Rights, Rows, Series, now, pods, queues};
use api::Mode;
use api::gpu_node::GrantStatus;
use api::units::{Fence, Strength};
use scheduler_core::units::{Duration, Time};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How far back a change counts as new.
const NEWS: Duration = Duration::seconds(15 * 60);
/// Changes that are listed.
const CHANGES: usize = 12;
/// Queues that are drawn: those with the most waiting pods, then those that hold most.
const QUEUES: usize = 8;
/// Cards that are drawn one by one; the fleet view has all of them.
const DRAWN: usize = 96;
/// Namespaces that a reader who may not list all pods is told about.
const HOMES: usize = 20;

/// Sums over cards.
#[derive(Default)]
struct Sum {
    cards: u64,
    free: u64,
    grantable: u64,
    granted: u64,
    used: u64,
    idle: u64,
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
        self.idle += gpu.granted_mib.0.saturating_sub(card.used);
        self.shares += gpu.grants.len();
    }

    fn json(&self, product: &str) -> Value {
        json!({
            "product": product, "cards": self.cards, "free": self.free, "grantable": self.grantable,
            "granted": self.granted, "used": self.used, "idle": self.idle, "shares": self.shares,
        })
    }
}

/// How shares are held: the number of shares by the strength of their fence.
#[derive(Default)]
struct Strengths {
    hard: u64,
    guarded: u64,
    watched: u64,
    /// Whole cards: their only tenant needs no fence.
    whole: u64,
    /// The container has not started, or nothing was read back yet.
    unknown: u64,
}

impl Strengths {
    fn add(&mut self, card: &Card<'_>, grant: &GrantStatus) {
        let count = match grant.fence.map(Fence::strength) {
            Some(Strength::Hard) => &mut self.hard,
            Some(Strength::Guarded) => &mut self.guarded,
            Some(Strength::Watched) => &mut self.watched,
            None if card.gpu.mode == Some(Mode::Exclusive) => &mut self.whole,
            None => &mut self.unknown,
        };
        *count += 1;
    }
}

/// The most memory that is free on one card, and how many cards have as much.
#[derive(Default)]
struct Largest<'a> {
    free: u64,
    cards: u64,
    node: &'a str,
}

impl<'a> Largest<'a> {
    fn add(&mut self, card: &Card<'a>) {
        let gpu = card.gpu;
        let open =
            !gpu.cordoned && gpu.health != "Unhealthy" && (gpu.ready || gpu.grants.is_empty());
        let free = gpu.grantable_mib.0.saturating_sub(gpu.granted_mib.0);
        if !open || free == 0 || free < self.free {
            return;
        }
        if free > self.free {
            *self = Self {
                free,
                cards: 0,
                node: card.node,
            };
        }
        self.cards += 1;
    }
}

pub(super) fn overview(rights: &Rights, rows: &Rows) -> Value {
    let mine = || {
        rows.pods
            .iter()
            .filter(|(_, pod)| rights.sees(&pod.namespace))
    };
    let waiting = mine().filter(|(_, pod)| pod.node.is_none()).count();
    let mut answer = json!({
        "pods": {"waiting": waiting, "starting": mine().count() - waiting, "whole": rights.pods == Pods::All},
        "now": now::problems(rights, rows), "changed": changed(rights, rows),
        "missing": rows.status.missing, "cards": null, "queues": null,
    });
    if rights.queues {
        answer["queues"] = json!(rows.queues.len());
        answer["busiest"] = busiest(rows);
    }
    if rights.cards {
        let (mut all, mut held, mut largest) =
            (Sum::default(), Strengths::default(), Largest::default());
        let mut products: BTreeMap<&str, Sum> = BTreeMap::new();
        for card in all_cards(rows) {
            all.add(&card);
            largest.add(&card);
            products.entry(&card.gpu.product).or_default().add(&card);
            for grant in &card.gpu.grants {
                held.add(&card, grant);
            }
        }
        let products = products.iter().map(|(product, sum)| sum.json(product));
        answer["nodes"] = json!(rows.nodes.len());
        answer["cards"] = all.json("");
        answer["products"] = products.collect();
        answer["held"] = json!({
            "hard": held.hard, "guarded": held.guarded, "watched": held.watched,
            "whole": held.whole, "unknown": held.unknown,
        });
        answer["largest"] =
            json!({"free": largest.free, "cards": largest.cards, "node": largest.node});
        answer["busy"] = json!(busy(rows));
        answer["drawn"] = drawn(rights, rows);
    }
    if let Pods::In(namespaces) = &rights.pods {
        answer["homes"] = homes(namespaces, rights, rows);
    }
    answer
}

/// SM time that shares had, in per cent of all cards with an agent. `None`: no agent tells it.
fn busy(rows: &Rows) -> Option<u64> {
    let shares = rows.live.values().flat_map(|live| live.shares.values());
    let sum: u64 = shares
        .filter_map(|share| share.sm.map(u64::from))
        .reduce(|a, b| a + b)?;
    let cards: usize = rows.live.values().map(|live| live.cards.len()).sum();
    Some(sum / cards.max(1) as u64)
}

/// Queues without children, those in which most pods wait first.
fn busiest(rows: &Rows) -> Value {
    let parents: BTreeSet<_> = rows
        .queues
        .iter()
        .filter_map(|view| view.parent.as_ref())
        .collect();
    let leaves = rows
        .queues
        .iter()
        .filter(|view| !parents.contains(&view.queue));
    let mut leaves: Vec<_> = leaves.collect();
    leaves.sort_by_key(|view| std::cmp::Reverse((view.waiting, view.held[0])));
    leaves
        .iter()
        .take(QUEUES)
        .map(|view| queues::queue(view))
        .collect()
}

/// Nodes whose cards are drawn one by one. Where not all can be, nodes with trouble come first.
fn drawn(rights: &Rights, rows: &Rows) -> Value {
    let total = all_cards(rows).count();
    let nodes = rows.nodes.iter().map(|(name, object)| {
        let cards: Vec<Card<'_>> = cards_of(name, object, rows).collect();
        let fine = total > DRAWN && cards.iter().all(|card| card.trouble().is_empty());
        (fine, name, cards)
    });
    let mut nodes: Vec<_> = nodes.filter(|(_, _, cards)| !cards.is_empty()).collect();
    nodes.sort_by(|(a, one, _), (b, other, _)| a.cmp(b).then_with(|| natural(one, other)));
    let mut left = DRAWN;
    let mut shown = Vec::new();
    for (_, name, cards) in nodes {
        if cards.len() > left && !shown.is_empty() {
            break;
        }
        left = left.saturating_sub(cards.len());
        let cards: Vec<Value> = cards
            .iter()
            .map(|card| drawn_card(card, rights, rows))
            .collect();
        shown.push(json!({"node": name, "cards": cards}));
    }
    Value::Array(shown)
}

fn drawn_card(card: &Card<'_>, rights: &Rights, rows: &Rows) -> Value {
    let gpu = card.gpu;
    let live = rows.live.get(card.node);
    let shares = gpu.grants.iter().map(|grant| {
        let key = (grant.pod_uid.clone(), grant.container.clone());
        let share = live.and_then(|live| live.shares.get(&key));
        json!({
            "pod": if sees(rights, grant) { grant.pod.as_str() } else { "" },
            "kept": grant.request_mib.unwrap_or(grant.memory_mib).0,
            "used": share.map(|share| share.used / share.cards.len().max(1) as u64),
        })
    });
    json!({
        "uuid": gpu.uuid, "index": gpu.index, "grantable": gpu.grantable_mib.0, "granted": gpu.granted_mib.0,
        "used": card.used, "trouble": card.trouble(), "cordoned": gpu.cordoned && gpu.health != "Unhealthy",
        "heard": live.is_some(), "shares": shares.collect::<Vec<_>>(),
    })
}

/// What changed in the last minutes, the newest first.
fn changed(rights: &Rights, rows: &Rows) -> Value {
    let since = Time(rows.now.0.saturating_sub(NEWS.0));
    let marks = rows.history.marks.since(since);
    let mut all: Vec<Value> = marks
        .filter_map(|one| mark(one, &Series::Fleet, rights))
        .collect();
    all.extend(started(since, rights, rows));
    all.sort_by_key(|change| std::cmp::Reverse(change["at"].as_u64()));
    let left = all.len().saturating_sub(CHANGES);
    all.truncate(CHANGES);
    let uuids = all.iter().filter_map(|change| change["card"].as_str());
    let uuids: BTreeSet<String> = uuids
        .filter(|uuid| !uuid.is_empty())
        .map(str::to_owned)
        .collect();
    let named = all_cards(rows).filter(|card| uuids.contains(&card.gpu.uuid));
    let named: HashMap<&str, String> = named
        .map(|card| {
            (
                card.gpu.uuid.as_str(),
                format!("{} / {}", card.node, card.gpu.index),
            )
        })
        .collect();
    for change in &mut all {
        let place = change["card"].as_str().and_then(|uuid| named.get(uuid));
        change["place"] = json!(place);
    }
    json!({"rows": all, "left": left})
}

/// Containers with a share that began to run.
fn started(since: Time, rights: &Rights, rows: &Rows) -> Vec<Value> {
    let mut begun = Vec::new();
    for (node, live) in &rows.live {
        for ((uid, _), share) in &live.shares {
            let at = share
                .running
                .filter(|at| *at >= since && rights.sees(&share.namespace));
            begun.extend(at.map(|at| (at, node, uid.as_str(), share)));
        }
    }
    begun.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
    // The others are more than are shown, whatever else changed.
    let rest = begun.len().saturating_sub(CHANGES);
    let newest = begun.iter().take(CHANGES).map(|(at, node, uid, share)| {
        let card = share.cards.first().map_or("", String::as_str);
        json!({
            "at": at.0, "kind": "running", "card": if rights.cards { card } else { "" }, "uid": uid,
            "queue": "", "namespace": share.namespace, "words": pods::name_on(node, uid, rows).unwrap_or_default(),
        })
    });
    let more = (rest > 0).then(|| {
        json!({"at": since.0, "kind": "running", "card": "", "queue": "", "namespace": "", "words": format!("{rest} more pods")})
    });
    newest.chain(more).collect()
}

/// What a namespace has, may have and leaves idle.
#[derive(Default)]
struct Home<'a> {
    pods: BTreeSet<&'a str>,
    granted: u64,
    used: u64,
    idle: u64,
    waiting: u64,
    queues: BTreeSet<&'a str>,
}

fn homes(namespaces: &BTreeSet<String>, rights: &Rights, rows: &Rows) -> Value {
    let mut homes: BTreeMap<&str, Home<'_>> = BTreeMap::new();
    for card in all_cards(rows) {
        for grant in &card.gpu.grants {
            let Some(namespace) = grant.pod.split_once('/').map(|(namespace, _)| namespace) else {
                continue;
            };
            if !namespaces.contains(namespace) {
                continue;
            }
            let home = homes.entry(namespace).or_default();
            let key = (grant.pod_uid.clone(), grant.container.clone());
            let share = rows
                .live
                .get(card.node)
                .and_then(|live| live.shares.get(&key));
            let kept = grant.request_mib.unwrap_or(grant.memory_mib).0;
            home.granted += kept;
            if let Some(share) = share {
                let used = share.used / share.cards.len().max(1) as u64;
                home.used += used;
                home.idle += kept.saturating_sub(used);
            }
            home.pods.insert(&grant.pod_uid);
            home.queues.insert(rows.payer(&grant.pod_uid));
        }
    }
    for (_, pod) in rows
        .pods
        .iter()
        .filter(|(_, pod)| namespaces.contains(&pod.namespace))
    {
        let home = homes.entry(&pod.namespace).or_default();
        home.waiting += u64::from(pod.node.is_none());
        home.queues.insert(rows.queue(pod));
    }
    let rows_of = |home: &Home<'_>| -> Vec<Value> {
        let views = rows
            .queues
            .iter()
            .filter(|view| rights.queues && home.queues.contains(view.queue.as_str()));
        views.map(queues::queue).collect()
    };
    let homes = homes.iter().take(HOMES).map(|(namespace, home)| {
        json!({
            "namespace": namespace, "pods": home.pods.len(), "waiting": home.waiting, "granted": home.granted,
            "used": home.used, "idle": home.idle, "queues": rows_of(home),
        })
    });
    homes.collect()
}
