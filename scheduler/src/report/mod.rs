//! Status of queues and pod groups, in KAI's fields, and their metrics under KAI's names.
//!
//! - `amounts`: the core's numbers as Kubernetes' quantities.
//! - `patch`: pure: a view → the status that an object is to have.
//! - `groups`: the statuses of pod groups that are to be written.
//! - [`QueueMeters`]: gauges by queue. `group_events`: events about pod groups that wait.
//!
//! In: the latest [`Views`], and the pod groups that changed. Out: one patch for each queue whose
//! status differs from the last written one, and for each of these groups. A patch without an
//! answer is sent again, and once more when the first one can no longer arrive, because it may
//! arrive after its successor. The same holds for a patch of the previous leader: everything is
//! written once more when none of those can arrive. Decides nothing.

mod amounts;
mod group_events;
mod groups;
mod meters;
mod patch;
mod products;

pub(crate) use group_events::GroupEvents;
pub use groups::GroupReport;
pub use meters::QueueMeters;

use crate::act::answer::{self, Answer};
use crate::clock::Wall;
use crate::convert::QueueConditions;
use futures::StreamExt as _;
use groups::{GroupStatus, GroupStatuses};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use proto::names::queue::CONDITIONS;
use scheduler_core::QueueView;
use scheduler_core::ids::{GroupName, QueueName};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two rounds: what changes in between is written once.
const PAUSE: Duration = Duration::from_secs(1);
/// Writes at once.
const AT_ONCE: usize = 8;

/// The queues, as they are now.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// Every queue.
    pub queues: Vec<QueueView>,
    /// What all nodes have together: GPU (nano), CPU (milli), memory (bytes).
    pub capacity: [u128; 3],
    /// The conditions of queues, as the watch shows them.
    pub shown: QueueConditions,
    /// False while another replica reports.
    pub leading: bool,
}

/// What the task writes, from the cycles.
#[derive(Debug)]
pub(crate) struct ReportInputs {
    /// The queues.
    pub views: watch::Receiver<Views>,
    /// Pod groups, each when its status is to be written.
    pub groups: mpsc::Receiver<GroupReport>,
    /// The definition of pod groups has the fields `phase`, `running` and `pending` in its status.
    pub with_phase: bool,
}

/// The statuses of queues that were written since this replica leads.
#[derive(Debug)]
struct Written {
    /// Last of each queue, as a digest of 64 bits: it only says whether something is
    /// another than it was.
    digests: BTreeMap<QueueName, u64>,
    /// Queues of which a write had no answer: until when that one may be carried out.
    unknown: BTreeMap<QueueName, Instant>,
    /// Until when writes of the leader before may be carried out. `None`: that is over.
    before: Option<Instant>,
    since: Since,
}

/// Conditions of queues: the status of each, and since when it has it.
type Since = QueueConditions;

impl Written {
    fn since(begin: Instant) -> Self {
        Self {
            digests: BTreeMap::new(),
            unknown: BTreeMap::new(),
            before: Some(begin + answer::LANDING),
            since: Since::new(),
        }
    }

    /// Sets the time since when each of a queue's conditions has its status. `before` has the conditions
    /// that were written last or, before the first write, those that the watch shows.
    fn stamp(&mut self, before: &mut Since, queue: &QueueName, status: &mut Value, now: Timestamp) {
        let conditions = status["conditions"].as_array_mut();
        for condition in conditions.into_iter().flatten() {
            let Some(kind) = CONDITIONS
                .into_iter()
                .find(|kind| condition["type"] == **kind)
            else {
                continue;
            };
            let key = (queue.clone(), kind);
            let is = condition["status"] == "True";
            let known = before.remove(&key).filter(|(was, _)| *was == is);
            let (is, since) = known.unwrap_or((is, now));
            condition["lastTransitionTime"] = Value::from(since.to_string());
            self.since.insert(key, (is, since));
        }
    }

    /// When queues are to be written once more though nothing about them is new.
    fn settles_at(&self) -> Option<Instant> {
        self.unknown.values().copied().chain(self.before).min()
    }

    /// Queues are written once more when a write whose end was not observed can no longer arrive.
    fn settle(&mut self, now: Instant) {
        if self.before.take_if(|until| *until <= now).is_some() {
            self.digests.clear();
        }
        let Self {
            digests, unknown, ..
        } = self;
        unknown.retain(|queue, until| {
            let open = now < *until;
            if !open {
                digests.remove(queue);
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
    mut inputs: ReportInputs,
    wall: Wall,
    stop: CancellationToken,
) {
    let mut leads: Option<Written> = None;
    let mut groups = GroupStatuses::default();
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
            changed = inputs.views.changed() => if changed.is_err() { return },
            Some(report) = inputs.groups.recv() => take(report, &mut groups, events.as_mut()),
            () = due => {}
        }
        while let Ok(report) = inputs.groups.try_recv() {
            take(report, &mut groups, events.as_mut());
        }
        let views = inputs.views.borrow_and_update().clone();
        meters.set(&views.queues);
        meters.set_capacity(views.capacity);
        if !views.leading {
            leads = None;
            again = None;
            continue;
        }
        let written = leads.get_or_insert_with(|| Written::since(Instant::now()));
        written.settle(Instant::now());
        groups.settle(Instant::now());
        let round = async {
            let whole = round(
                &client,
                &views,
                written,
                &mut groups,
                inputs.with_phase,
                wall.second(),
            )
            .await;
            let told = match &mut events {
                Some(events) => events.tell().await,
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
            let settle = [written.settles_at(), groups.settles_at()];
            settle.into_iter().flatten().min()
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

fn take(report: GroupReport, groups: &mut GroupStatuses, events: Option<&mut GroupEvents>) {
    if let Some(events) = events {
        events.take(&report);
    }
    groups.take(report);
}

/// What is written. Of groups there are as many as workloads: a status is only put into words
/// when it is written.
enum Write {
    Queue(QueueName, Value, u64),
    Group(GroupName, Box<GroupStatus>),
}

impl Write {
    async fn send(
        &self,
        client: &kube::Client,
        queues: &[QueueView],
        with_phase: bool,
    ) -> Answer<()> {
        match self {
            Self::Queue(name, status, _) => {
                let api: Api<api::Queue> = Api::all(client.clone());
                patch_status(&api, name.as_str(), status).await
            }
            Self::Group(group, status) => {
                let Some((namespace, name)) = group.as_str().split_once('/') else {
                    return Answer::Done(());
                };
                let api: Api<api::PodGroup> = Api::namespaced(client.clone(), namespace);
                let status = patch::group(&status.view, &status.pool, queues, with_phase);
                patch_status(&api, name, &status).await
            }
        }
    }
}

async fn patch_status<K>(api: &Api<K>, name: &str, status: &Value) -> Answer<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Merge(serde_json::json!({"status": status}));
    let parameters = PatchParams::default();
    answer::of(async { api.patch_status(name, &parameters, &patch).await.map(drop) }).await
}

/// Writes what changed; whether all of it was taken.
async fn round(
    client: &kube::Client,
    views: &Views,
    written: &mut Written,
    groups: &mut GroupStatuses,
    with_phase: bool,
    now: Timestamp,
) -> bool {
    let queues = due(views, written, now).into_iter();
    let of_group = |(name, status)| Write::Group(name, Box::new(status));
    let writes = queues.chain(groups.take_due().into_iter().map(of_group));
    let writes = writes.map(|write| async move {
        let sent = Instant::now();
        let answer = write.send(client, &views.queues, with_phase).await;
        (write, sent, answer)
    });
    let writes = futures::stream::iter(writes).buffer_unordered(AT_ONCE);
    let mut writes = std::pin::pin!(writes);
    let mut whole = true;
    while let Some((write, sent, answer)) = writes.next().await {
        // 404: gone, which the watch says.
        let is_done = matches!(answer, Answer::Done(()) | Answer::Refused(404, _));
        let lost_until = match answer {
            Answer::Unknown(_) => Some(sent + answer::LANDING),
            _ => None,
        };
        if let Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) = answer
            && !is_done
        {
            let object = match &write {
                Write::Queue(name, ..) => name.as_str(),
                Write::Group(name, _) => name.as_str(),
            };
            tracing::debug!(object, why, "status");
        }
        whole &= is_done;
        match write {
            Write::Queue(name, _, digest) => {
                if is_done {
                    written.digests.insert(name, digest);
                } else if let Some(until) = lost_until {
                    written.unknown.insert(name, until);
                }
            }
            Write::Group(name, status) => groups.ended(name, *status, is_done, lost_until),
        }
    }
    whole
}

/// The queues that are to be written. Deleted ones are forgotten.
fn due(views: &Views, written: &mut Written, now: Timestamp) -> Vec<Write> {
    let mut known = std::mem::take(&mut written.digests);
    let mut due = Vec::new();
    let mut since = std::mem::take(&mut written.since);
    for (condition, shown) in &views.shown {
        since.entry(condition.clone()).or_insert(*shown);
    }
    let children = patch::children(&views.queues);
    for view in &views.queues {
        let mut status = patch::queue(view, &children);
        written.stamp(&mut since, &view.queue, &mut status, now);
        let (name, digest) = (view.queue.clone(), digest(&status.to_string()));
        if known.remove(&name) == Some(digest) {
            written.digests.insert(name, digest);
        } else {
            due.push(Write::Queue(name, status, digest));
        }
    }
    due
}

fn digest(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
