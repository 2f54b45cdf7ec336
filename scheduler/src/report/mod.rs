//! Status of queues and pod groups, in KAI's fields, and their metrics under KAI's names.
//!
//! - `amounts`: the core's numbers as Kubernetes' quantities.
//! - `patch`: pure: a view → the status that an object is to have.
//! - [`QueueMeters`]: gauges by queue. `group_events`: events about pod groups that wait.
//!
//! In: the latest [`Views`]. Out: one patch for each object whose status differs from the last
//! written one. A patch without an answer is sent again, and once more when the first one can no
//! longer arrive, because it may arrive after its successor. The same holds for a patch of the
//! previous leader: everything is written once more when none of those can arrive. Decides nothing.

mod amounts;
mod group_events;
mod meters;
mod patch;
mod products;

pub(crate) use group_events::GroupEvents;
pub use meters::QueueMeters;

use crate::act::answer::{self, Answer};
use crate::clock::Wall;
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use scheduler_core::ids::{GroupName, QueueName};
use scheduler_core::{GroupView, QueueView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two rounds: what changes in between is written once.
const PAUSE: Duration = Duration::from_secs(1);
/// Writes at once.
const AT_ONCE: usize = 8;

/// The reports.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// Every queue.
    pub queues: Vec<QueueView>,
    /// Every pod group, by the name of its node pool. Shared: there are as many as workloads.
    pub groups: Vec<(Arc<str>, Arc<[GroupView]>)>,
    /// What all nodes have together: GPU (nano), CPU (milli), memory (bytes).
    pub capacity: [u128; 3],
    /// False while another replica reports.
    pub leading: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Queue(QueueName),
    Group(GroupName),
}

/// The statuses written since this replica leads.
#[derive(Debug)]
struct Written {
    /// Last of each object, as a digest of 64 bits: it only says whether something is
    /// another than it was.
    digests: BTreeMap<Object, u64>,
    /// Objects of which a write had no answer: until when that one may be carried out.
    unknown: BTreeMap<Object, Instant>,
    /// Until when writes of the leader before may be carried out. `None`: that is over.
    before: Option<Instant>,
    since: Since,
}

/// Conditions of queues: the status of each, and since when it has it.
type Since = BTreeMap<QueueName, (Value, Timestamp)>;

impl Written {
    fn since(begin: Instant) -> Self {
        Self {
            digests: BTreeMap::new(),
            unknown: BTreeMap::new(),
            before: Some(begin + answer::LANDING),
            since: Since::new(),
        }
    }

    /// Says in a queue's condition since when it has its status. `before`: what was said last.
    fn stamp(&mut self, before: &mut Since, queue: &QueueName, status: &mut Value, now: Timestamp) {
        if let Some(condition) = status.pointer_mut("/conditions/0") {
            let is = condition["status"].clone();
            let known = before.remove(queue).filter(|(was, _)| *was == is);
            let (is, since) = known.unwrap_or((is, now));
            condition["lastTransitionTime"] = Value::from(since.to_string());
            self.since.insert(queue.clone(), (is, since));
        }
    }

    /// When objects are to be written once more though nothing about them is new.
    fn settles_at(&self) -> Option<Instant> {
        self.unknown.values().copied().chain(self.before).min()
    }

    /// Objects are written once more when a write whose end was not observed can no longer arrive.
    fn settle(&mut self, now: Instant) {
        if self.before.take_if(|until| *until <= now).is_some() {
            self.digests.clear();
        }
        let Self {
            digests, unknown, ..
        } = self;
        unknown.retain(|object, until| {
            let open = now < *until;
            if !open {
                digests.remove(object);
            }
            open
        });
    }
}

/// Reports until `stop`, or until the channel of views closes.
pub(crate) async fn run(
    client: kube::Client,
    meters: Arc<QueueMeters>,
    mut events: Option<GroupEvents>,
    mut views: watch::Receiver<Views>,
    wall: Wall,
    stop: CancellationToken,
) {
    let mut leads: Option<Written> = None;
    // When it is tried again without news.
    let mut again: Option<Instant> = None;
    loop {
        let due = async {
            match again {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = views.changed() => if changed.is_err() { return },
            () = due => {}
        }
        let views = views.borrow_and_update().clone();
        meters.set(&views.queues);
        meters.set_capacity(views.capacity);
        if !views.leading {
            leads = None;
            again = None;
            continue;
        }
        let written = leads.get_or_insert_with(|| Written::since(Instant::now()));
        written.settle(Instant::now());
        let round = async {
            let whole = round(&client, &views, written, wall.second()).await;
            let told = match &mut events {
                Some(events) => events.tell(&views.groups).await,
                None => true,
            };
            whole && told
        };
        let whole = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            whole = round => whole,
        };
        again = if whole {
            written.settles_at()
        } else {
            Some(Instant::now() + PAUSE)
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
    Group(Arc<str>, GroupView),
}

impl Content {
    fn status(self) -> Value {
        match self {
            Self::Queue(status) => status,
            Self::Group(pool, view) => patch::group(&view, &pool),
        }
    }
}

/// Writes what changed; whether all of it was taken.
async fn round(
    client: &kube::Client,
    views: &Views,
    written: &mut Written,
    now: Timestamp,
) -> bool {
    let writes = due(views, written, now)
        .into_iter()
        .map(|(object, content, digest)| async move {
            let sent = Instant::now();
            let answer = write(client, &object, &content.status()).await;
            (object, digest, sent, answer)
        });
    let writes = futures::stream::iter(writes).buffer_unordered(AT_ONCE);
    let mut writes = std::pin::pin!(writes);
    let mut whole = true;
    while let Some((object, digest, sent, answer)) = writes.next().await {
        match answer {
            // 404: gone, which the watch says.
            Answer::Done(()) | Answer::Refused(404, _) => {
                written.digests.insert(object, digest);
            }
            Answer::Refused(_, why) | Answer::Busy(why) => {
                tracing::debug!(?object, why, "status");
                whole = false;
            }
            Answer::Unknown(why) => {
                tracing::debug!(?object, why, "status");
                written.unknown.insert(object, sent + answer::LANDING);
                whole = false;
            }
        }
    }
    whole
}

/// What is to be written. Deleted objects are forgotten.
fn due(views: &Views, written: &mut Written, now: Timestamp) -> Vec<(Object, Content, u64)> {
    let mut known = std::mem::take(&mut written.digests);
    let mut is_new = |written: &mut Written, object: &Object, digest| {
        let same = known.remove(object) == Some(digest);
        if same {
            written.digests.insert(object.clone(), digest);
        }
        !same
    };
    let mut due = Vec::new();
    let mut since = std::mem::take(&mut written.since);
    for view in &views.queues {
        let mut status = patch::queue(view, &views.queues);
        written.stamp(&mut since, &view.queue, &mut status, now);
        let (object, digest) = (
            Object::Queue(view.queue.clone()),
            digest(&status.to_string()),
        );
        if is_new(written, &object, digest) {
            due.push((object, Content::Queue(status), digest));
        }
    }
    for (pool, groups) in &views.groups {
        for view in groups.iter() {
            let (object, digest) = (Object::Group(view.group.clone()), digest(&(pool, view)));
            if is_new(written, &object, digest) {
                let content = Content::Group(Arc::clone(pool), view.clone());
                due.push((object, content, digest));
            }
        }
    }
    due
}

fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

async fn write(client: &kube::Client, object: &Object, status: &Value) -> Answer<()> {
    let parameters = PatchParams::default();
    let patch = Patch::Merge(serde_json::json!({"status": status}));
    answer::of(async {
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
    })
    .await
}

#[cfg(test)]
mod tests;
