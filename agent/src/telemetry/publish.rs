//! Writes the status of this node's `GpuNode`: on change, coalesced, and every five
//! minutes.
//!
//! In: the node's state. Out: merge patches of the status, and nothing else of the object. After an
//! error of the API server the write is repeated later; the agent does not depend on it.

use super::metrics::Meters;
use super::pace::{Backoff, around, chance};
use super::status::{Urgency, status, urgency};
use super::stream::is_worth_telling;
use crate::cluster::in_words;
use crate::node::State;
use api::{GpuNode, GpuNodeStatus};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Minimum time between two writes.
const COALESCE: Duration = Duration::from_secs(2);
/// The same, if only fast values changed.
const LAZY: Duration = Duration::from_mins(1);
/// Written again, unchanged, so that its age shows whether the agent is alive.
const REFRESH: Duration = Duration::from_mins(5);
/// For the API server's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The last write, and its time.
#[derive(Debug)]
struct Written {
    at: Instant,
    status: GpuNodeStatus,
    refresh_at: Instant,
}

/// Writes until `stop`.
pub async fn run(
    node: String,
    client: kube::Client,
    mut state: watch::Receiver<Arc<State>>,
    meters: Arc<Meters>,
    start: Instant,
    stop: CancellationToken,
) {
    let api: Api<GpuNode> = Api::all(client);
    let mut written: Option<Written> = None;
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
    let mut not_before = start;
    loop {
        let now = Instant::now();
        let known = Arc::clone(&state.borrow_and_update());
        let last = written.as_ref().map(|written| &written.status);
        let wanted = status(&known, last, Timestamp::now());
        // The GpuNode is created when the watch has shown that there is none.
        let due = if known.policy.is_some() && is_worth_telling(&known, start.elapsed()) {
            due(written.as_ref(), &wanted, now).max(not_before)
        } else {
            now + Duration::from_secs(1)
        };
        if due > now {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = state.changed() => {
                    // Its owner ends: so will we.
                    if changed.is_err() { stop.cancelled().await; return; }
                }
                () = sleep_until(due) => {}
            }
            continue;
        }
        let outcome = tokio::select! {
            () = stop.cancelled() => return,
            outcome = write(&api, &node, &wanted) => outcome,
        };
        meters.status_written(outcome.is_ok());
        match outcome {
            Ok(()) => {
                debug!(node, "status written");
                backoff.succeed();
                let at = Instant::now();
                written = Some(Written {
                    at,
                    status: wanted,
                    refresh_at: at + around(REFRESH, chance()),
                });
            }
            Err(error) => {
                let pause = backoff.fail();
                warn!(
                    node,
                    error,
                    retry_ms = pause.as_millis(),
                    "status not written"
                );
                not_before = Instant::now() + pause;
            }
        }
    }
}

/// When `wanted` is to be written.
fn due(written: Option<&Written>, wanted: &GpuNodeStatus, now: Instant) -> Instant {
    let Some(written) = written else {
        return now;
    };
    match urgency(&written.status, wanted) {
        Urgency::None => written.refresh_at,
        Urgency::Low => written.refresh_at.min(written.at + LAZY),
        Urgency::High => written.at + COALESCE,
    }
}

async fn write(api: &Api<GpuNode>, node: &str, status: &GpuNodeStatus) -> Result<(), String> {
    let patch = Patch::Merge(serde_json::json!({ "status": status }));
    let params = PatchParams::default();
    let write = api.patch_status(node, &params, &patch);
    match timeout(PATIENCE, write).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(in_words(&error)),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Mib;
    use api::gpu_node::GpuStatus;

    #[test]
    fn a_change_waits_for_the_last_write_to_be_two_seconds_old_and_fast_values_a_minute() {
        let now = Instant::now();
        let plain = GpuNodeStatus {
            gpus: vec![GpuStatus::default()],
            ..GpuNodeStatus::default()
        };
        let written = Written {
            at: now,
            status: plain.clone(),
            refresh_at: now + REFRESH,
        };
        let mut used = plain.clone();
        used.gpus[0].used_mib = Mib(512);
        let mut granted = used.clone();
        granted.gpus[0].granted_mib = Mib(2000);
        assert_eq!(due(None, &plain, now), now);
        assert_eq!(due(Some(&written), &plain, now), now + REFRESH);
        assert_eq!(due(Some(&written), &used, now), now + LAZY);
        assert_eq!(due(Some(&written), &granted, now), now + COALESCE);
    }
}
