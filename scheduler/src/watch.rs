//! The API server's objects, as facts in the order in which they came.
//!
//! One endless watch per kind, with backoff. A kind whose CRD is not installed counts as empty
//! until it is. Out: [`Fact`]s, and [`Unreadable`] objects. Kept here are the keys of what is there, so
//! that readers are told once that an object is gone, whether the watch or a listing showed it.

mod kept;
mod key;
mod seen;

use crate::act::event::{self, Annotations, KubeEvent};
use api::GpuNode;
use api::kai::{Config as KaiConfig, PodGroup, Queue, SchedulingShard, Topology};
use futures::stream::BoxStream;
use futures::{FutureExt as _, Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
pub use key::Key;
use key::Known;
use kube::core::{DeserializeGuard, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::events::Reporter;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use proto::names::resource;
use scheduler_core::ids::ResourceName;
use scheduler_core::model::Attachment;
pub use seen::Seen;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// One event of the API server.
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
    /// Of an admin's shard.
    Shard(Seen<SchedulingShard>),
    /// Of KAI's settings.
    Config(Seen<KaiConfig>),
    /// Of a priority class.
    Class(Seen<PriorityClass>),
    /// Of a namespace.
    Namespace(Seen<Namespace>),
    /// A config map's name.
    ConfigMap(Seen<PartialObjectMeta<ConfigMap>>),
    /// Of a claim on a volume.
    Claim(Seen<PersistentVolumeClaim>),
    /// Of a volume.
    Volume(Seen<PersistentVolume>),
    /// Of a class of volumes.
    Storage(Seen<StorageClass>),
    /// Of the CSI drivers of a node.
    CsiNode(Seen<CSINode>),
    /// Of a CSI driver.
    CsiDriver(Seen<CSIDriver>),
    /// Of what a CSI driver can still provision.
    CsiCapacity(Seen<CSIStorageCapacity>),
    /// Of devices that a driver publishes.
    DeviceSlice(Seen<ResourceSlice>),
    /// Of a class of devices.
    DeviceClass(Seen<DeviceClass>),
    /// Of a claim on devices.
    DeviceClaim(Seen<ResourceClaim>),
}

/// Where facts go. Unbounded: the reader never waits for anything but these.
pub type Facts = channel::Sender<Fact>;

/// An object that the API server accepted and this process cannot read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Which.
    pub about: ObjectReference,
    /// Its error.
    pub why: String,
}

/// Where they are reported, as many as fit; the log names all.
pub type Complaints = mpsc::Sender<Unreadable>;

/// Reports each by an event on the object, while this replica leads, until `stop`.
pub(crate) async fn complain(
    client: Client,
    reporter: Reporter,
    mut leading: watch::Receiver<bool>,
    mut unreadable: mpsc::Receiver<Unreadable>,
    stop: CancellationToken,
) {
    let telling = async {
        while let Some(Unreadable { about, why }) = unreadable.recv().await {
            if leading.wait_for(|leading| *leading).await.is_err() {
                return;
            }
            let event = KubeEvent {
                about,
                warning: true,
                reason: "Unreadable",
                action: "Reading",
                note: format!("it is ignored, correct or delete it: {why}"),
            };
            event::publish(&client, &reporter, event, Annotations::new()).await;
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = telling => {}
    }
}

/// Follows queues alone until `stop`.
pub async fn queues(client: Client, queues: impl Fn(&Seen<Queue>), stop: CancellationToken) {
    let (facts, mut told) = channel::unbounded();
    let followed = follow(readable(client, None), &facts, |seen| {
        queues(&seen);
        Fact::Queue(seen)
    });
    let taken = async { while told.recv().await.is_some() {} };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        _ = async { tokio::join!(biased; followed, taken) } => {}
    }
}

/// Follows everything until `stop`. When `relist` changes, pods, groups and claims on devices
/// are listed again: a watch may lag behind what another replica wrote. `queues` sees each fact
/// about a queue first.
pub async fn run(
    client: Client,
    facts: Facts,
    queues: impl Fn(&Seen<Queue>),
    complaints: Option<Complaints>,
    relist: watch::Receiver<u64>,
    stop: CancellationToken,
) {
    let complaints = &complaints;
    // The priority of a pod and of a group is its class's, which of a pod's volumes count is what
    // nodes say, and whether its GPUs are devices is what their class says: they are listed after
    // these, and again when these change.
    let (classes, class) = watch::channel(0);
    let (limits, limit) = watch::channel(0);
    let (devices, device) = watch::channel(0);
    let kinds = async {
        // In this order, so that a simulated world is the same run each time. Pods have the most changes
        // and come last: a kind with few changes never waits for them.
        tokio::join!(
            biased;
            follow_classes(client.clone(), &facts, classes),
            follow_limits(client.clone(), &facts, limits),
            follow(all(client.clone()), &facts, Fact::Node),
            follow(
                readable(client.clone(), complaints.clone()),
                &facts,
                Fact::GpuNode
            ),
            follow(
                readable(client.clone(), complaints.clone()),
                &facts,
                |seen| {
                    queues(&seen);
                    Fact::Queue(seen)
                }
            ),
            follow(
                readable(client.clone(), complaints.clone()),
                &facts,
                Fact::Topology
            ),
            follow(all(client.clone()), &facts, Fact::Shard),
            follow(all(client.clone()), &facts, Fact::Config),
            follow(all(client.clone()), &facts, Fact::Namespace),
            follow(all(client.clone()), &facts, Fact::ConfigMap),
            follow(all(client.clone()), &facts, Fact::Claim),
            follow(all(client.clone()), &facts, Fact::Volume),
            follow(all(client.clone()), &facts, Fact::Storage),
            follow(all(client.clone()), &facts, Fact::CsiDriver),
            follow(all(client.clone()), &facts, Fact::CsiCapacity),
            follow(all(client.clone()), &facts, Fact::DeviceSlice),
            follow_device_classes(client.clone(), &facts, devices),
            follow_again(
                || all(client.clone()),
                &facts,
                Fact::DeviceClaim,
                [],
                relist.clone()
            ),
            follow_again(
                || readable(client.clone(), complaints.clone()),
                &facts,
                Fact::Group,
                [class.clone()],
                relist.clone()
            ),
            follow_again(
                || all(client.clone()),
                &facts,
                pod,
                [class, limit, device],
                relist.clone()
            ),
        )
    };
    tokio::select! {
        biased;
        _ = kinds => {}
        () = stop.cancelled() => {}
    }
}

/// One kind, listed once each of `known` has changed, and again whenever one of them or
/// `relist` changes.
async fn follow_again<K, const N: usize>(
    events: impl Fn() -> Events<K>,
    facts: &Facts,
    of: fn(Seen<K>) -> Fact,
    mut known: [watch::Receiver<u64>; N],
    mut relist: watch::Receiver<u64>,
) where
    K: Key,
{
    let mut there = Known::default();
    for one in &mut known {
        if one.changed().await.is_err() {
            return;
        }
    }
    loop {
        // One that never ends, where nothing else has to be known.
        let never = futures::future::pending().boxed();
        let news = known.iter_mut().map(|one| one.changed().boxed());
        let news = futures::future::select_all(news.chain([never]));
        tokio::select! {
            biased;
            () = follow_with(events(), &mut there, facts, |seen| (of(seen), false), || {}) => return,
            (changed, ..) = news => {
                if changed.is_err() {
                    return;
                }
            }
            () = changed(&mut relist) => {}
        }
    }
}

/// Returns when it changes; never, once its sender has ended.
async fn changed(relist: &mut watch::Receiver<u64>) {
    if relist.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Priority classes; counts up when all are known, and with each change afterwards.
async fn follow_classes(client: Client, facts: &Facts, told: watch::Sender<u64>) {
    let mut listing = true;
    follow_with(
        all(client),
        &mut Known::default(),
        facts,
        |seen| {
            match &seen {
                Seen::Listing => listing = true,
                Seen::Listed => listing = false,
                Seen::There(_) | Seen::Gone(_) => {}
            }
            // The fact goes first: a receiver of the change finds it there.
            (Fact::Class(seen), !listing)
        },
        || told.send_modify(|count| *count += 1),
    )
    .await;
}

/// What CSI drivers attach to nodes at most; counts up when all is known, and when a driver
/// has a limit that had none on any node.
async fn follow_limits(client: Client, facts: &Facts, told: watch::Sender<u64>) {
    let (mut limited, mut listed) = (BTreeSet::new(), false);
    follow_with(
        all(client),
        &mut Known::default(),
        facts,
        |seen| {
            let mut news = false;
            if let Seen::There(node) = &seen {
                for name in limits(node).into_keys() {
                    news |= limited.insert(name) && listed;
                }
            }
            if let Seen::Listed = seen {
                news = !std::mem::replace(&mut listed, true);
            }
            (Fact::CsiNode(seen), news)
        },
        || told.send_modify(|count| *count += 1),
    )
    .await;
}

/// Classes of devices; counts up when all are known, and when `nvidia.com/gpu` has a class that had
/// none: pods that only ask for it were no case for claims until then.
async fn follow_device_classes(client: Client, facts: &Facts, told: watch::Sender<u64>) {
    let (mut serving, mut listed) = (BTreeSet::new(), false);
    follow_with(
        all(client),
        &mut Known::default(),
        facts,
        |seen: Seen<DeviceClass>| {
            let news = match &seen {
                Seen::There(class) if is_of_gpus(class) => {
                    let is_first = serving.is_empty();
                    serving.insert(class.key());
                    is_first && listed
                }
                Seen::There(class) => {
                    serving.remove(&class.key());
                    false
                }
                Seen::Gone(name) => {
                    serving.remove(name);
                    false
                }
                Seen::Listing => false,
                Seen::Listed => !std::mem::replace(&mut listed, true),
            };
            (Fact::DeviceClass(seen), news)
        },
        || told.send_modify(|count| *count += 1),
    )
    .await;
}

/// One kind; ends when the receiver is gone.
async fn follow<K: Key>(events: Events<K>, facts: &Facts, of: impl Fn(Seen<K>) -> Fact) {
    let of = |seen| (of(seen), false);
    follow_with(events, &mut Known::default(), facts, of, || {}).await;
}

/// One kind; `of` also says whether `then` is to run once the fact is sent.
async fn follow_with<K: Key>(
    mut events: Events<K>,
    known: &mut Known,
    facts: &Facts,
    mut of: impl FnMut(Seen<K>) -> (Fact, bool),
    then: impl Fn(),
) {
    while let Some(event) = events.next().await {
        let seen = match event {
            Some(Event::Init) => {
                known.begin();
                vec![Seen::Listing]
            }
            Some(Event::InitApply(mut object) | Event::Apply(mut object)) => {
                trim(object.meta_mut());
                known.there(&object.key());
                vec![Seen::There(Box::new(object))]
            }
            Some(Event::InitDone) => known.end().chain([Seen::Listed]).collect(),
            Some(Event::Delete(object)) => {
                let key = object.key();
                let was_there = known.gone(&key);
                was_there.then_some(Seen::Gone(key)).into_iter().collect()
            }
            // Not installed: there is none of it.
            None => {
                known.begin();
                let gone = known.end();
                [Seen::Listing]
                    .into_iter()
                    .chain(gone)
                    .chain([Seen::Listed])
                    .collect()
            }
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

/// Managed fields and kubectl's last-applied annotation are not needed.
fn trim(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

fn pod(mut seen: Seen<Pod>) -> Fact {
    if let Seen::There(pod) = &mut seen {
        kept::trim(pod);
    }
    Fact::Pod(seen)
}

/// In a box: twenty of them at once would fill a thread's stack.
type Events<K> = BoxStream<'static, Option<Event<K>>>;

/// Objects of a kind that Kubernetes itself defines.
fn all<K>(client: Client) -> Events<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watched(Api::all(client)).boxed()
}

/// A kind of ours or of KAI. The definition that is installed may let in what cannot be read:
/// KAI's has no required `spec`.
trait Custom: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    /// The object with that metadata, without its content.
    fn bare(meta: ObjectMeta) -> Self;
}

macro_rules! custom {
    ($($kind:ty),*) => {
        $(impl Custom for $kind {
            fn bare(meta: ObjectMeta) -> Self {
                let mut object = Self::new("", Default::default());
                object.metadata = meta;
                object
            }
        })*
    };
}

custom!(PodGroup, Queue, Topology, GpuNode);

/// Readable objects. An unreadable one counts as missing, and is named in the log and in
/// `complaints`: it must not hide the others.
fn readable<K: Custom>(client: Client, complaints: Option<Complaints>) -> Events<K> {
    let mut last = String::new();
    let mut read = move |guard: DeserializeGuard<K>| {
        guard.0.map_err(|invalid| {
            let bare = K::bare(invalid.metadata);
            let kind = K::kind(&());
            let (namespace, name) = (bare.namespace().unwrap_or_default(), bare.name_any());
            let text = format!("{kind} {namespace}/{name}: {}", invalid.error);
            if text != last {
                tracing::warn!(
                    object = text,
                    "it cannot be read, and is ignored: correct or delete it"
                );
                last = text;
                let unreadable = Unreadable {
                    about: bare.object_ref(&()),
                    why: invalid.error,
                };
                if let Some(complaints) = &complaints {
                    let _ = complaints.try_send(unreadable);
                }
            }
            bare
        })
    };
    let readable = move |event: Option<Event<DeserializeGuard<K>>>| {
        std::future::ready(match event {
            None => Some(None),
            Some(Event::Init) => Some(Some(Event::Init)),
            Some(Event::InitDone) => Some(Some(Event::InitDone)),
            // Objects that a listing does not name are deleted.
            Some(Event::InitApply(guard)) => {
                read(guard).ok().map(|one| Some(Event::InitApply(one)))
            }
            Some(Event::Apply(guard)) => Some(Some(match read(guard) {
                Ok(object) => Event::Apply(object),
                Err(bare) => Event::Delete(bare),
            })),
            Some(Event::Delete(guard)) => {
                Some(Some(Event::Delete(read(guard).unwrap_or_else(|bare| bare))))
            }
        })
    };
    watched(Api::all(client)).filter_map(readable).boxed()
}

/// The number of objects in one answer to a list. An object may have 1.5 MiB (etcd's limit), and a
/// page is parsed before anything is taken out of it: 500 pods of that size exceed the memory limit of
/// `deploy/scheduler.yaml`.
pub(crate) const OBJECTS_AT_ONCE: u32 = 32;

/// An endless watch. Each cause of failure is logged once. `None`: the server does not know this
/// kind.
fn watched<K>(api: Api<K>) -> impl Stream<Item = Option<Event<K>>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut last = String::new();
    watcher(api, watcher::Config::default().page_size(OBJECTS_AT_ONCE))
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

/// Limits of a node's drivers.
pub(crate) fn limits(node: &CSINode) -> BTreeMap<ResourceName, u64> {
    let drivers = node.spec.drivers.iter();
    drivers
        .filter_map(|driver| {
            let count = driver.allocatable.as_ref()?.count?;
            let count = u64::try_from(count).unwrap_or(0);
            Some((Attachment::limit_of(&driver.name), count))
        })
        .collect()
}

/// Whether `nvidia.com/gpu` is devices of this class.
pub(crate) fn is_of_gpus(class: &DeviceClass) -> bool {
    let spec = class.spec.as_ref();
    let of = spec.and_then(|spec| spec.extended_resource_name.as_deref());
    of == Some(resource::GPU)
}

#[cfg(test)]
mod tests;
