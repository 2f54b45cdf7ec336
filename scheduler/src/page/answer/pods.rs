//! Pods: those that wait or start, and those that hold shares.

use super::{Answer, Pods, Rights, Rows, Span};
use crate::page::row::PodRow;
use api::units::Fence;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn one(pod: &PodRow, rows: &Rows, whole: bool) -> Value {
    let why = if whole {
        pod.why.as_str()
    } else {
        pod.reason()
    };
    json!({
        "uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "queue": rows.queue(pod),
        "asks": pod.asks, "class": pod.class, "priority": rows.priority(pod),
        "created": pod.created, "place": rows.place(&pod.uid), "node": pod.node, "why": why,
    })
}

/// A pod that holds shares or whole cards; amounts in MiB over all its cards.
struct Holder<'a> {
    uid: &'a str,
    /// `namespace/name`.
    pod: &'a str,
    node: &'a str,
    cards: Vec<u32>,
    granted: u64,
    used: Option<u64>,
    phase: &'a str,
    complaint: &'a str,
}

/// Pods that hold something, node by node. Those that do not run yet are rows of their own.
fn holders(rows: &Rows) -> impl Iterator<Item = Holder<'_>> {
    rows.nodes.iter().flat_map(move |(node, object)| {
        let gpus = object.status.iter().flat_map(|status| &status.gpus);
        let mut holders: BTreeMap<&str, Holder<'_>> = BTreeMap::new();
        for (gpu, grant) in gpus.flat_map(|gpu| gpu.grants.iter().map(move |grant| (gpu, grant))) {
            let holder = holders.entry(&grant.pod_uid).or_insert_with(|| Holder {
                uid: &grant.pod_uid,
                pod: &grant.pod,
                node,
                cards: Vec::new(),
                granted: 0,
                used: None,
                phase: &grant.phase,
                complaint: &grant.complaint,
            });
            holder.granted += grant.memory_mib.0;
            if !holder.cards.contains(&gpu.index) {
                holder.cards.push(gpu.index);
            }
            if holder.complaint.is_empty() {
                holder.complaint = &grant.complaint;
            }
        }
        let live = rows.live.get(node);
        for ((uid, _), share) in live.iter().flat_map(|live| &live.shares) {
            if let Some(holder) = holders.get_mut(uid.as_str()) {
                holder.used = Some(holder.used.unwrap_or(0) + share.used);
            }
        }
        holders.into_values()
    })
}

/// A pod of the list.
enum Listed<'a> {
    /// It waits for a place, or starts.
    Pending(&'a PodRow),
    Holder(Holder<'a>),
}

impl<'a> Listed<'a> {
    fn name(&self) -> (&'a str, &'a str) {
        match self {
            Self::Pending(pod) => (&pod.namespace, &pod.name),
            Self::Holder(holder) => holder.pod.split_once('/').unwrap_or(("", holder.pod)),
        }
    }

    fn uid(&self) -> &'a str {
        match self {
            Self::Pending(pod) => &pod.uid,
            Self::Holder(holder) => holder.uid,
        }
    }

    fn queue(&self, rows: &'a Rows) -> &'a str {
        match self {
            Self::Pending(pod) => rows.queue(pod),
            Self::Holder(holder) => rows.payer(holder.uid),
        }
    }

    fn node(&self) -> &'a str {
        match self {
            Self::Pending(pod) => pod.node.as_deref().unwrap_or_default(),
            Self::Holder(holder) => holder.node,
        }
    }

    /// What is wrong with it; empty when nothing is.
    fn trouble(&self, rows: &'a Rows) -> &'a str {
        let crash = rows.crashes_of(self.uid()).map(|(_, words)| words);
        crash.unwrap_or(match self {
            Self::Pending(_) => "",
            Self::Holder(holder) => holder.complaint,
        })
    }

    fn state(&self) -> &'static str {
        match self {
            Self::Pending(pod) if pod.node.is_none() => "waiting",
            Self::Pending(_) => "starting",
            Self::Holder(_) => "running",
        }
    }

    /// The order in which pods are listed: those that wait come first.
    fn rank(&self) -> u8 {
        match self {
            Self::Pending(pod) => u8::from(pod.node.is_some()),
            Self::Holder(_) => 2,
        }
    }

    /// Memory that it was granted, and that it uses.
    fn memory(&self) -> (u64, u64) {
        match self {
            Self::Pending(_) => (0, 0),
            Self::Holder(holder) => (holder.granted, holder.used.unwrap_or(0)),
        }
    }

    /// Its position in its queue, and its time of creation, after all that have none.
    fn place(&self, rows: &Rows) -> (u32, i64) {
        match self {
            Self::Pending(pod) => (rows.place(&pod.uid), pod.created),
            Self::Holder(_) => (u32::MAX, i64::MAX),
        }
    }

    /// Whether one of its names, or why it waits, has this text, which is in lower case.
    fn has(&self, needle: &str, rows: &'a Rows) -> bool {
        let (namespace, name) = self.name();
        let why = match self {
            Self::Pending(pod) => pod.why.as_str(),
            Self::Holder(_) => "",
        };
        let [queue, owner] = [self.queue(rows), rows.owner(self.uid())];
        let all = format!(
            "{namespace}/{name} {} {} {queue} {owner} {why}",
            self.node(),
            self.uid()
        );
        all.to_lowercase().contains(needle)
    }

    fn json(&self, rows: &'a Rows) -> Value {
        let mut row = match self {
            Self::Pending(pod) => one(pod, rows, false),
            Self::Holder(holder) => {
                let (namespace, name) = self.name();
                json!({
                    "uid": holder.uid, "namespace": namespace, "name": name, "queue": self.queue(rows),
                    "node": holder.node, "cards": holder.cards, "granted": holder.granted, "used": holder.used,
                    "phase": holder.phase, "place": 0, "why": "",
                })
            }
        };
        row["state"] = json!(self.state());
        row["owner"] = json!(rows.owner(self.uid()));
        row["trouble"] = json!(self.trouble(rows));
        row
    }
}

/// Pods that wait, start and run, in one list.
pub(super) fn many(span: &Span, rights: &Rights, rows: &Rows) -> Value {
    let needle = span.filter.to_lowercase();
    let pending = rows.pods.iter().map(|(_, pod)| Listed::Pending(pod));
    let holding = holders(rows).filter(|holder| rows.pods.get(holder.uid).is_none());
    let all = pending.chain(holding.map(Listed::Holder));
    let all: Vec<Listed<'_>> = all.filter(|pod| rights.sees(pod.name().0)).collect();
    let namespaces: BTreeSet<&str> = all.iter().map(|pod| pod.name().0).collect();
    let fits = |pod: &Listed<'_>| {
        let state = match span.state.as_str() {
            "" => true,
            "trouble" => !pod.trouble(rows).is_empty(),
            state => state == pod.state(),
        };
        state
            && (span.namespace.is_empty() || span.namespace == pod.name().0)
            && (span.queue.is_empty() || span.queue == pod.queue(rows))
            && (needle.is_empty() || pod.has(&needle, rows))
    };
    let mut found: Vec<Listed<'_>> = all.into_iter().filter(fits).collect();
    let column = span.column();
    span.sort(&mut found, |a, b| {
        let by = match column {
            // The older first would be the smaller stamp: age grows the other way.
            "age" => b.place(rows).1.cmp(&a.place(rows).1),
            "place" => a.place(rows).cmp(&b.place(rows)),
            "queue" => a.queue(rows).cmp(b.queue(rows)),
            "node" => super::cards::natural(a.node(), b.node()),
            "granted" => a.memory().0.cmp(&b.memory().0),
            "used" => a.memory().1.cmp(&b.memory().1),
            "name" => std::cmp::Ordering::Equal,
            // Those that wait in the order in which they are tried, the others by name.
            _ => a.rank().cmp(&b.rank()).then_with(|| match (a, b) {
                (Listed::Pending(one), Listed::Pending(other)) => {
                    let queues = rows.queue(one).cmp(rows.queue(other));
                    queues.then_with(|| a.place(rows).cmp(&b.place(rows)))
                }
                _ => std::cmp::Ordering::Equal,
            }),
        };
        by.then_with(|| a.name().cmp(&b.name()))
            .then_with(|| a.uid().cmp(b.uid()))
    });
    let mut answer = span.cut(found, |pod| pod.json(rows));
    answer["whole"] = json!(rights.pods == Pods::All);
    answer["namespaces"] = json!(namespaces.iter().take(super::LONGEST).collect::<Vec<_>>());
    answer
}

/// `namespace/name` of the pod with this UID that holds something on a node.
pub(super) fn name_on<'a>(node: &str, uid: &str, rows: &'a Rows) -> Option<&'a str> {
    let status = rows.nodes.get(node)?.status.as_ref()?;
    let mut grants = status.gpus.iter().flat_map(|gpu| &gpu.grants);
    let grant = grants.find(|grant| grant.pod_uid == uid)?;
    Some(&grant.pod)
}

/// A pod's namespace and name, and what its agent says of it.
pub(super) fn whereabouts(uid: &str, rights: &Rights, rows: &Rows) -> Answer {
    let shares: Vec<_> = rows
        .live
        .iter()
        .flat_map(|(node, live)| live.shares.iter().map(move |share| (node, share)))
        .filter(|(_, ((pod, _), _))| pod == uid)
        .collect();
    let grants = super::cards::all_cards(rows).flat_map(|card| {
        let grants = card
            .gpu
            .grants
            .iter()
            .filter(move |grant| grant.pod_uid == uid);
        grants.map(move |grant| (card, grant))
    });
    let held: Vec<_> = grants.collect();
    let pending = rows.pods.get(uid);
    let queue = pending.map_or_else(|| rows.payer(uid), |row| rows.queue(row));
    let known = match pending {
        Some(row) => Some((row.namespace.clone(), row.name.clone())),
        None => held
            .first()
            .and_then(|(_, grant)| grant.pod.split_once('/'))
            .map(|(namespace, name)| (namespace.to_owned(), name.to_owned())),
    };
    let Some((namespace, name)) = known.filter(|(namespace, _)| rights.sees(namespace)) else {
        return Answer::Absent;
    };
    let shares: Vec<Value> = shares
        .into_iter()
        .map(|(node, ((_, container), share))| {
            json!({
                "node": node, "container": container, "phase": share.phase, "alloc": share.alloc,
                "used": share.used, "sm": share.sm, "cards": share.cards, "complaint": share.complaint,
                "prepared": share.prepared.map(|at| at.0), "running": share.running.map(|at| at.0),
            })
        })
        .collect();
    let holds = held.iter().map(|(card, grant)| {
        json!({
            "node": card.node, "index": card.gpu.index, "uuid": card.gpu.uuid, "container": grant.container,
            "memory": grant.memory_mib.0, "mode": card.gpu.mode.map_or("", api::Mode::as_str),
            "fence": grant.fence.map(Fence::words), "reach": grant.reach_mib.map(|reach| reach.0),
            "trouble": card.trouble(),
        })
    });
    Answer::Json(json!({
        "namespace": namespace, "name": name, "queue": queue, "waits": pending.is_some(), "shares": shares,
        "holds": holds.collect::<Vec<_>>(), "owner": rows.owner(uid),
    }))
}
