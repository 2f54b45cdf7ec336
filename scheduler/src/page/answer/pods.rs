//! Pods that do not run yet.

use super::{Answer, Pods, Rights, Rows, Span};
use crate::page::row::PodRow;
use serde_json::{Value, json};

pub(super) fn one(pod: &PodRow, rows: &Rows, whole: bool) -> Value {
    let why = if whole {
        pod.why.as_str()
    } else {
        pod.why.lines().next().unwrap_or_default()
    };
    json!({
        "uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "queue": rows.queue(pod),
        "asks": pod.asks, "class": pod.class, "priority": rows.priority(pod),
        "created": pod.created, "place": rows.place(&pod.uid), "node": pod.node, "why": why,
    })
}

pub(super) fn many(span: &Span, rights: &Rights, rows: &Rows) -> Value {
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
            && (span.queue.is_empty() || span.queue == rows.queue(pod))
            && (needle.is_empty()
                || text(&pod.name)
                || text(&pod.namespace)
                || text(rows.queue(pod))
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
            _ => rows
                .queue(a)
                .cmp(rows.queue(b))
                .then_with(|| place(a).cmp(&place(b))),
        };
        by.then_with(|| a.uid.cmp(&b.uid))
    });
    let mut answer = span.cut(found, |pod| one(pod, rows, false));
    answer["whole"] = json!(rights.pods == Pods::All);
    answer
}

/// A pod's namespace and name, and what its agent says of it.
pub(super) fn whereabouts(uid: &str, rights: &Rights, rows: &Rows) -> Answer {
    let shares: Vec<_> = rows
        .live
        .iter()
        .flat_map(|(node, live)| live.shares.iter().map(move |share| (node, share)))
        .filter(|(_, ((pod, _), _))| pod == uid)
        .collect();
    let statuses = rows
        .nodes
        .iter()
        .filter_map(|(_, node)| node.status.as_ref());
    let mut grants = statuses
        .flat_map(|status| &status.gpus)
        .flat_map(|gpu| &gpu.grants);
    let pending = rows.pods.get(uid);
    let queue = pending.map_or_else(|| rows.payer(uid), |row| rows.queue(row));
    let known = match pending {
        Some(row) => Some((row.namespace.clone(), row.name.clone())),
        None => grants
            .find(|grant| grant.pod_uid == uid)
            .and_then(|grant| grant.pod.split_once('/'))
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
                "used": share.used, "cards": share.cards, "complaint": share.complaint,
                "prepared": share.prepared.map(|at| at.0), "running": share.running.map(|at| at.0),
            })
        })
        .collect();
    Answer::Json(json!({
        "namespace": namespace, "name": name, "queue": queue, "waits": pending.is_some(), "shares": shares,
    }))
}
