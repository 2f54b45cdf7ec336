//! Status of queues and pod groups, in KAI's fields, and their metrics under KAI's names.
//!
//! - `amounts`: the core's numbers as Kubernetes' quantities.
//! - `patch`: pure: a view → the status that an object is to have.
//! - [`QueueMeters`]: gauges by queue.
//!
//! In: [`Views`], the latest alone. Out: one patch for each object whose status is another
//! than was written last; a patch that is lost is made again. Decides nothing.

mod amounts;
mod meters;
mod patch;

pub use meters::QueueMeters;

use futures::StreamExt as _;
use kube::api::{Api, Patch, PatchParams};
use scheduler_core::{GroupView, QueueView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between two rounds: what changes in between is written once.
const PAUSE: Duration = Duration::from_secs(1);
/// One write may take so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Writes at once.
const AT_ONCE: usize = 8;

/// What is reported.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// Every queue.
    pub queues: Vec<QueueView>,
    /// Every pod group.
    pub groups: Vec<GroupView>,
    /// False while another replica reports.
    pub leading: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Queue(String),
    Group(String, String),
}

/// Reports until `stop`, or until nobody has anything to report.
pub async fn run(
    client: kube::Client,
    meters: Arc<QueueMeters>,
    mut views: watch::Receiver<Views>,
    stop: CancellationToken,
) {
    let mut written: BTreeMap<Object, Value> = BTreeMap::new();
    // Something was not taken: it is tried again without news.
    let mut again = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = views.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(PAUSE), if again => {}
        }
        let views = views.borrow_and_update().clone();
        meters.set(&views.queues);
        if !views.leading {
            // Whoever leads next writes everything anew.
            written.clear();
            continue;
        }
        let round = round(&client, &views, &mut written);
        again = tokio::select! {
            () = stop.cancelled() => return,
            whole = round => !whole,
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// Writes what changed; whether all of it was taken.
async fn round(
    client: &kube::Client,
    views: &Views,
    written: &mut BTreeMap<Object, Value>,
) -> bool {
    let wanted = wanted(views);
    written.retain(|object, _| wanted.contains_key(object));
    let due: Vec<(Object, Value)> = wanted
        .into_iter()
        .filter(|(object, status)| written.get(object) != Some(status))
        .collect();
    let writes = futures::stream::iter(due).map(|(object, status)| async move {
        let taken = write(client, &object, &status).await;
        (object, status, taken)
    });
    let mut writes = std::pin::pin!(writes.buffer_unordered(AT_ONCE));
    let mut whole = true;
    while let Some((object, status, taken)) = writes.next().await {
        if taken {
            written.insert(object, status);
        } else {
            whole = false;
        }
    }
    whole
}

fn wanted(views: &Views) -> BTreeMap<Object, Value> {
    let queues = views.queues.iter().map(|view| {
        let status = patch::queue(view, &views.queues);
        (Object::Queue(view.queue.to_string()), status)
    });
    let groups = views.groups.iter().filter_map(|view| {
        let (namespace, name) = view.group.as_str().split_once('/')?;
        let object = Object::Group(namespace.to_owned(), name.to_owned());
        Some((object, patch::group(view)))
    });
    queues.chain(groups).collect()
}

/// Whether the status was taken, or there is nothing left to take it.
async fn write(client: &kube::Client, object: &Object, status: &Value) -> bool {
    let parameters = PatchParams::default();
    let patch = Patch::Merge(serde_json::json!({"status": status}));
    let written = async {
        match object {
            Object::Queue(name) => {
                let api: Api<api::Queue> = Api::all(client.clone());
                api.patch_status(name, &parameters, &patch).await.map(drop)
            }
            Object::Group(namespace, name) => {
                let api: Api<api::PodGroup> = Api::namespaced(client.clone(), namespace);
                api.patch_status(name, &parameters, &patch).await.map(drop)
            }
        }
    };
    match tokio::time::timeout(PATIENCE, written).await {
        Ok(Ok(())) => true,
        // Gone: the watch says so.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => true,
        Ok(Err(error)) => {
            tracing::debug!(?object, %error, "status");
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests;
