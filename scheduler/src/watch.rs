//! The API server's objects, as facts in the order in which they came.
//!
//! One watch per kind, with backoff, for ever. A kind whose definition is not installed
//! counts as empty until it is. Out: [`Fact`]s; nothing is kept here.

use api::GpuNode;
use api::kai::{PodGroup, Queue, Topology};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// One thing that a watch said.
#[derive(Clone, Debug)]
pub enum Seen<K> {
    /// Everything of this kind follows, as [`Seen::There`].
    Listing,
    /// It is there, as it is now.
    There(Box<K>),
    /// It is gone.
    Gone(Box<K>),
    /// That was all of this kind: what was not named since [`Seen::Listing`] is gone.
    Listed,
}

/// One thing that the API server said.
#[derive(Clone, Debug)]
pub enum Fact {
    /// Of a pod.
    Pod(Seen<Pod>),
    /// Of a node.
    Node(Seen<Node>),
    /// Of an agent's node.
    GpuNode(Seen<GpuNode>),
    /// Of a queue.
    Queue(Seen<Queue>),
    /// Of a pod group.
    Group(Seen<PodGroup>),
    /// Of a topology.
    Topology(Seen<Topology>),
    /// Of a priority class.
    Class(Seen<PriorityClass>),
    /// Of a claim on a volume.
    Claim(Seen<PersistentVolumeClaim>),
    /// Of a volume.
    Volume(Seen<PersistentVolume>),
    /// Of a class of volumes.
    Storage(Seen<StorageClass>),
}

/// Where facts go. Unbounded: the reader never waits for anything but these.
pub type Facts = mpsc::UnboundedSender<Fact>;

/// Follows everything until `stop`.
pub async fn run(client: Client, facts: Facts, stop: CancellationToken) {
    // A pod's priority is its class's: pods are listed after the classes, and anew when
    // these change.
    let (classes, seen_classes) = watch::channel(0);
    let all = async {
        tokio::join!(
            pods(client.clone(), &facts, seen_classes),
            follow_classes(client.clone(), &facts, classes),
            follow(Api::all(client.clone()), &facts, Fact::Node),
            follow(Api::all(client.clone()), &facts, Fact::GpuNode),
            follow(Api::all(client.clone()), &facts, Fact::Queue),
            follow(Api::all(client.clone()), &facts, Fact::Group),
            follow(Api::all(client.clone()), &facts, Fact::Topology),
            follow(Api::all(client.clone()), &facts, Fact::Claim),
            follow(Api::all(client.clone()), &facts, Fact::Volume),
            follow(Api::all(client.clone()), &facts, Fact::Storage),
        )
    };
    tokio::select! {
        _ = all => {}
        () = stop.cancelled() => {}
    }
}

/// Pods, listed anew whenever the classes change.
async fn pods(client: Client, facts: &Facts, mut classes: watch::Receiver<u64>) {
    while classes.changed().await.is_ok() {
        tokio::select! {
            () = follow(Api::all(client.clone()), facts, Fact::Pod) => return,
            changed = classes.changed() => {
                if changed.is_err() {
                    return;
                }
                classes.mark_changed();
            }
        }
    }
}

/// Priority classes; counts up when all are known, and with each change afterwards.
async fn follow_classes(client: Client, facts: &Facts, told: watch::Sender<u64>) {
    let mut listing = true;
    follow_with(
        Api::all(client),
        facts,
        |seen| {
            match &seen {
                Seen::Listing => listing = true,
                Seen::Listed => listing = false,
                Seen::There(_) | Seen::Gone(_) => {}
            }
            // The fact goes first: who hears of the change finds it there.
            (Fact::Class(seen), !listing)
        },
        || told.send_modify(|count| *count += 1),
    )
    .await;
}

/// One kind; ends when nobody listens any more.
async fn follow<K>(api: Api<K>, facts: &Facts, of: fn(Seen<K>) -> Fact)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    follow_with(api, facts, |seen| (of(seen), false), || {}).await;
}

/// One kind; `of` also says whether `then` is to run once the fact is sent.
async fn follow_with<K>(
    api: Api<K>,
    facts: &Facts,
    mut of: impl FnMut(Seen<K>) -> (Fact, bool),
    then: impl Fn(),
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let mut events = std::pin::pin!(watched(api));
    while let Some(event) = events.next().await {
        let seen = match event {
            Some(Event::Init) => vec![Seen::Listing],
            Some(Event::InitApply(mut object) | Event::Apply(mut object)) => {
                // Nobody here asks who wrote what.
                object.meta_mut().managed_fields = None;
                vec![Seen::There(Box::new(object))]
            }
            Some(Event::InitDone) => vec![Seen::Listed],
            Some(Event::Delete(object)) => vec![Seen::Gone(Box::new(object))],
            // Not installed: there is none of it.
            None => vec![Seen::Listing, Seen::Listed],
        };
        for seen in seen {
            let (fact, news) = of(seen);
            if facts.send(fact).is_err() {
                return;
            }
            if news {
                then();
            }
        }
    }
}

/// A watch that goes on for ever; what goes wrong is said once per cause. `None`: the
/// server does not know this kind.
fn watched<K>(api: Api<K>) -> impl Stream<Item = Option<Event<K>>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut last = String::new();
    watcher(api, watcher::Config::default())
        .default_backoff()
        .filter_map(move |event| {
            let event = match event {
                Ok(event) => {
                    last.clear();
                    Some(Some(event))
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != last {
                        tracing::warn!(kind, error = text, "a watch failed; trying again");
                        last = text;
                    }
                    is_unknown(&error).then_some(None)
                }
            };
            std::future::ready(event)
        })
}

fn is_unknown(error: &watcher::Error) -> bool {
    use watcher::Error as E;
    match error {
        E::InitialListFailed(kube::Error::Api(status))
        | E::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        E::WatchError(status) => status.code == 404,
        _ => false,
    }
}
