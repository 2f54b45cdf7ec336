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
use scheduler_core::ids::{GroupName, QueueName};
use scheduler_core::{GroupView, QueueView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
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
    /// Every pod group. Shared: there are as many as workloads.
    pub groups: Arc<[GroupView]>,
    /// False while another replica reports.
    pub leading: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Queue(QueueName),
    Group(GroupName),
}

/// What was written last of each object, as a digest of 64 bits: it only says whether
/// something is another than it was.
type Written = BTreeMap<Object, u64>;

/// Reports until `stop`, or until nobody has anything to report.
pub async fn run(
    client: kube::Client,
    meters: Arc<QueueMeters>,
    mut views: watch::Receiver<Views>,
    stop: CancellationToken,
) {
    let mut written = Written::new();
    // Something was not taken: it is tried again without news.
    let mut again = false;
    loop {
        tokio::select! {
            biased;
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
            biased;
            () = stop.cancelled() => return,
            whole = round => !whole,
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// What a status is to say. Of groups there are as many as workloads: theirs is only put
/// into words when it is written.
enum Content {
    Queue(Value),
    Group(GroupView),
}

impl Content {
    fn status(self) -> Value {
        match self {
            Self::Queue(status) => status,
            Self::Group(view) => patch::group(&view),
        }
    }
}

/// Writes what changed; whether all of it was taken.
async fn round(client: &kube::Client, views: &Views, written: &mut Written) -> bool {
    let writes = due(views, written)
        .into_iter()
        .map(|(object, content, digest)| async move {
            let taken = write(client, &object, &content.status()).await;
            (object, digest, taken)
        });
    let writes = futures::stream::iter(writes).buffer_unordered(AT_ONCE);
    let mut writes = std::pin::pin!(writes);
    let mut whole = true;
    while let Some((object, digest, taken)) = writes.next().await {
        if taken {
            written.insert(object, digest);
        } else {
            whole = false;
        }
    }
    whole
}

/// What is to be written. Who is gone is forgotten.
fn due(views: &Views, written: &mut Written) -> Vec<(Object, Content, u64)> {
    let mut known = std::mem::take(written);
    let mut is_new = |object: &Object, digest| {
        let same = known.remove(object) == Some(digest);
        if same {
            written.insert(object.clone(), digest);
        }
        !same
    };
    let mut due = Vec::new();
    for view in &views.queues {
        let status = patch::queue(view, &views.queues);
        let (object, digest) = (
            Object::Queue(view.queue.clone()),
            digest(&status.to_string()),
        );
        if is_new(&object, digest) {
            due.push((object, Content::Queue(status), digest));
        }
    }
    for view in views.groups.iter() {
        let (object, digest) = (Object::Group(view.group.clone()), digest(view));
        if is_new(&object, digest) {
            due.push((object, Content::Group(view.clone()), digest));
        }
    }
    due
}

fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Whether the status was taken, or there is nothing left to take it.
async fn write(client: &kube::Client, object: &Object, status: &Value) -> bool {
    let parameters = PatchParams::default();
    let patch = Patch::Merge(serde_json::json!({"status": status}));
    let written = async {
        match object {
            Object::Queue(name) => {
                let api: Api<api::Queue> = Api::all(client.clone());
                api.patch_status(name.as_str(), &parameters, &patch)
                    .await
                    .map(drop)
            }
            Object::Group(group) => {
                let Some((namespace, name)) = group.as_str().split_once('/') else {
                    return Ok(());
                };
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
