//! Reads for which pods a prepared claim is reserved, when one comes to it later: the kubelet
//! prepares a claim once. In: the node's state, which names the claims with a pod that waits.
//! Out: [`Event::Reserved`].
//!
//! It asks for a claim when one of its pods is on this node, and watches none: a node has as many
//! claims as shares, and a cluster far more.

use super::request;
use crate::cluster::in_words;
use crate::node::{Event, Owner, State};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Pause before a claim that is not reserved for its pod yet is read again; twice as long each
/// time, up to [`LONGEST`]. A pod's container waits for 2 s.
const FIRST: Duration = Duration::from_millis(100);
/// Kubernetes reserves a claim before it binds its pod: one that is bound without waits for a
/// controller.
const LONGEST: Duration = Duration::from_secs(10);
/// For the API server's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks without end.
pub async fn run(client: Client, mut state: watch::Receiver<Arc<State>>, owner: Owner) {
    // By the UIDs of claims: how long to wait after the next question, and when that is.
    let mut asked: BTreeMap<String, (Duration, Instant)> = BTreeMap::new();
    loop {
        let now = state.borrow_and_update().clone();
        let waiting = now
            .claims
            .iter()
            .filter(|(_, claim)| !claim.awaited.is_empty());
        let waiting: BTreeMap<&String, (&String, &String)> = waiting
            .map(|(uid, claim)| (uid, (&claim.namespace, &claim.name)))
            .collect();
        asked.retain(|uid, _| waiting.contains_key(uid));
        let at = Instant::now();
        let due = waiting
            .iter()
            .find(|(uid, _)| asked.get(**uid).is_none_or(|(_, next)| *next <= at));
        if let Some((uid, (namespace, name))) = due {
            let claims = Api::<ResourceClaim>::namespaced(client.clone(), namespace);
            match timeout(PATIENCE, claims.get_opt(name)).await {
                Ok(Ok(object)) => {
                    let pods = object.and_then(|object| request::reserved_for(&object, uid));
                    let told = Event::Reserved((*uid).clone(), pods.unwrap_or_default());
                    if owner.tell(told).is_err() {
                        return;
                    }
                }
                Ok(Err(error)) => {
                    let (claim, error) = (format!("{namespace}/{name}"), in_words(&error));
                    tracing::warn!(claim, error, "its pods cannot be read");
                }
                Err(_) => tracing::warn!(
                    claim = format!("{namespace}/{name}"),
                    "its pods cannot be read: the API server did not answer in time"
                ),
            }
            let pause = asked.get(*uid).map_or(FIRST, |(pause, _)| *pause);
            let next = (pause.saturating_mul(2).min(LONGEST), Instant::now() + pause);
            asked.insert((*uid).clone(), next);
            continue;
        }
        let next = asked.values().map(|(_, next)| *next).min();
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(next.unwrap_or(at)), if next.is_some() => {}
        }
    }
}
