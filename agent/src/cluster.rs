//! What the API server knows of this node: its pods, the Node, `GpuNode.spec` and what the
//! cluster trusts; and the two things that the agent writes about itself: the opaque
//! capacities of its Node, and the `GpuNode` when it is missing.
//!
//! In: watches. Out: [`Event`]s to the owner. An API server that is away changes nothing:
//! everything that runs stays, and watches begin again with backoff.

use crate::Config;
use crate::inventory::{Card, Inventory};
use crate::node::{Event, Owner, Policy, State, Stopped};
use crate::pods::{PodView, kubelet_uid};
use api::gpu_node::{GpuNode, GpuNodeSpec};
use api::grant::Verifier;
use api::node_topology::NodeResourceTopology;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event as Watched, watcher};
use kube::{Api, Client, Resource};
use proto::names;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Between two tries of a write.
const RETRY: Duration = Duration::from_secs(2);

/// Follows the API server until `stop`.
pub async fn run(
    config: Arc<Config>,
    client: Client,
    owner: Owner,
    state: watch::Receiver<Arc<State>>,
    stop: CancellationToken,
) {
    let (told, node) = watch::channel(NodeFacts::default());
    let (gpu_told, gpu_node) = watch::channel(None);
    let all = async {
        tokio::join!(
            pods(&config, client.clone(), &owner),
            nodes(&config, client.clone(), &owner, told),
            policy(&config, client.clone(), &owner, gpu_told),
            topology(&config, client.clone(), &owner),
            trust(&config, client.clone(), &owner),
            capacities(&config, client.clone(), state, node.clone()),
            presence(&config, client.clone(), node, gpu_node),
        )
    };
    tokio::select! {
        _ = all => {}
        () = stop.cancelled() => {}
    }
}

/// The API server's error, or why the request failed: one line.
pub fn in_words(error: &kube::Error) -> String {
    match error {
        // Its own sentence names object and reason; the rest of a Status says it again.
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// The same of a watch.
fn watch_in_words(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => in_words(error),
        watcher::Error::WatchError(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Pods of one answer to a list.
const PODS_AT_ONCE: u32 = 16;

/// What the writers learn from the Node's watch.
#[derive(Clone, Debug, Default, PartialEq)]
struct NodeFacts {
    uid: String,
    capacity: BTreeMap<String, String>,
}

/// An endless watch. Each cause of failure is logged once.
pub(crate) fn watched<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = Watched<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut last = String::new();
    watcher(api, config)
        .default_backoff()
        .into_stream()
        .filter_map(move |event| {
            let event = match event {
                Ok(event) => {
                    last.clear();
                    Some(event)
                }
                Err(error) => {
                    let text = watch_in_words(&error);
                    if text != last {
                        tracing::warn!(kind, error = text, "a watch failed; trying again");
                        last = text;
                    }
                    None
                }
            };
            std::future::ready(event)
        })
}

/// One object, each time that it is read: `None` where there is none.
fn watched_one<K>(api: Api<K>, name: &str) -> impl Stream<Item = Option<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let mut listed = None;
    watched(api, one(name)).filter_map(move |event| {
        let seen = match event {
            Watched::Init => {
                listed = None;
                None
            }
            Watched::InitApply(object) => {
                listed = Some(object);
                None
            }
            Watched::InitDone => Some(listed.take()),
            Watched::Apply(object) => Some(Some(object)),
            Watched::Delete(_) => Some(None),
        };
        std::future::ready(seen)
    })
}

pub(crate) fn one(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

async fn pods(config: &Config, client: Client, owner: &Owner) -> Result<(), Stopped> {
    // The heap stays as large as the largest page was.
    let mine = watcher::Config::default()
        .fields(&format!("spec.nodeName={}", config.node_name))
        .page_size(PODS_AT_ONCE);
    let mut events = std::pin::pin!(watched(Api::<Pod>::all(client), mine));
    let mut list = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Watched::Init => list.clear(),
            Watched::InitApply(pod) => list.extend(PodView::listed(&pod, Timestamp::now())),
            Watched::InitDone => owner.tell(Event::PodsListed(std::mem::take(&mut list)))?,
            Watched::Apply(pod) => {
                if let Some(pod) = PodView::of(&pod) {
                    owner.tell(Event::Pod(Box::new(pod)))?;
                }
            }
            Watched::Delete(pod) => {
                if let Some(uid) = kubelet_uid(&pod.metadata) {
                    owner.tell(Event::PodGone(uid.to_owned()))?;
                }
            }
        }
    }
    Ok(())
}

async fn nodes(
    config: &Config,
    client: Client,
    owner: &Owner,
    told: watch::Sender<NodeFacts>,
) -> Result<(), Stopped> {
    let mut events = std::pin::pin!(watched(Api::<Node>::all(client), one(&config.node_name)));
    while let Some(event) = events.next().await {
        let (Watched::Apply(node) | Watched::InitApply(node)) = event else {
            continue;
        };
        let uid = node.metadata.uid.unwrap_or_default();
        let capacity = node.status.and_then(|status| status.capacity);
        owner.tell(Event::NodeUid(uid.clone()))?;
        let known = NodeFacts {
            uid,
            capacity: capacity
                .unwrap_or_default()
                .into_iter()
                .map(|(name, amount)| (name, amount.0))
                .collect(),
        };
        told.send_if_modified(|old| {
            let changed = *old != known;
            *old = known;
            changed
        });
    }
    Ok(())
}

/// `Some(true)`: there is a `GpuNode`; `Some(false)`: there is none; `None`: not known.
async fn policy(
    config: &Config,
    client: Client,
    owner: &Owner,
    told: watch::Sender<Option<bool>>,
) -> Result<(), Stopped> {
    let api = Api::<GpuNode>::all(client);
    let mut seen = std::pin::pin!(watched_one(api, &config.node_name));
    while let Some(found) = seen.next().await {
        told.send_replace(Some(found.is_some()));
        owner.tell(Event::Policy(found.map(|object| Policy {
            spec: object.spec,
            generation: object.metadata.generation.unwrap_or_default(),
        })))?;
    }
    Ok(())
}

/// Between two looks for a resource that the API server does not have, or does not let be read.
const ABSENT: Duration = Duration::from_mins(1);

/// The policy of the kubelet's topology manager, where something writes it into a
/// `NodeResourceTopology`.
async fn topology(config: &Config, client: Client, owner: &Owner) -> Result<(), Stopped> {
    let api = Api::<NodeResourceTopology>::all(client);
    // Most clusters do not have the resource, and a watch would be tried again every few seconds.
    let none = ListParams::default().limit(1);
    while let Err(kube::Error::Api(status)) = api.list_metadata(&none).await
        && [403, 404].contains(&status.code)
    {
        tracing::debug!(why = status.message, "no NodeResourceTopology is read");
        tokio::time::sleep(ABSENT).await;
    }
    let mut seen = std::pin::pin!(watched_one(api, &config.node_name));
    while let Some(found) = seen.next().await {
        let manager = found.and_then(|object| object.topology_manager());
        owner.tell(Event::TopologyManager(manager))?;
    }
    Ok(())
}

async fn trust(config: &Config, client: Client, owner: &Owner) -> Result<(), Stopped> {
    let api = Api::<ConfigMap>::namespaced(client, &config.namespace);
    let mut events = std::pin::pin!(watched(api, one(names::object::TRUST_CONFIG_MAP)));
    while let Some(event) = events.next().await {
        let (Watched::Apply(map) | Watched::InitApply(map)) = event else {
            continue;
        };
        match read_trust(&map) {
            Ok((verifier, ca)) => owner.tell(Event::Trust(verifier, ca))?,
            Err(why) => {
                tracing::warn!(
                    why,
                    "the trust ConfigMap cannot be read; its last state stays in use"
                );
            }
        }
    }
    Ok(())
}

/// Keys by id, the cluster's id, and the CA in PEM.
fn read_trust(map: &ConfigMap) -> Result<(Verifier, String), &'static str> {
    let data = map.data.as_ref().ok_or("it is empty")?;
    let entry = |name: &str| data.get(name).map(String::as_str);
    let cluster = entry(names::object::TRUST_CLUSTER_ID)
        .filter(|id| !id.is_empty())
        .ok_or("it names no cluster")?;
    let keys = entry(names::object::TRUST_KEYS).ok_or("it has no keys")?;
    let keys: BTreeMap<String, String> =
        serde_json::from_str(keys).map_err(|_| "its keys are no JSON object of strings")?;
    let keys = keys
        .into_iter()
        .map(|(id, key)| Ok((id, STANDARD.decode(key).map_err(|_| "a key is not base64")?)))
        .collect::<Result<BTreeMap<_, _>, &'static str>>()?;
    let ca = entry(names::object::TRUST_CA).unwrap_or_default();
    Ok((Verifier::new(cluster.trim(), keys), ca.to_owned()))
}

/// What the node's capacity says of its cards: sums that do not change with what runs.
fn opaque(inventory: &Inventory) -> BTreeMap<String, String> {
    let shared = |card: &&Card| !card.mig && card.slice.is_none();
    let cards = || inventory.cards.iter().filter(shared);
    let mib = cards().fold(0_u64, |sum, card| sum.saturating_add(card.capacity().0));
    BTreeMap::from([
        (names::resource::MEMORY_MIB.to_owned(), mib.to_string()),
        (
            names::resource::MILLI.to_owned(),
            (cards().count() * 1000).to_string(),
        ),
    ])
}

/// Keeps the opaque capacities: the kubelet sets them to zero when the Node object is recreated.
async fn capacities(
    config: &Config,
    client: Client,
    mut state: watch::Receiver<Arc<State>>,
    mut node: watch::Receiver<NodeFacts>,
) {
    let api = Api::<Node>::all(client);
    loop {
        let wanted = {
            let state = state.borrow_and_update();
            // Before NVML answered nothing is known, and nothing is taken back.
            (!state.inventory.cards.is_empty()).then(|| opaque(&state.inventory))
        };
        let known = node.borrow_and_update().clone();
        let mut failed = false;
        if let Some(wanted) =
            wanted.filter(|wanted| !known.uid.is_empty() && !holds(&known.capacity, wanted))
        {
            let patch = serde_json::json!({"status": {"capacity": wanted}});
            let written = api
                .patch_status(
                    &config.node_name,
                    &PatchParams::default(),
                    &Patch::Merge(patch),
                )
                .await;
            match written {
                Ok(_) => tracing::info!(?wanted, "the node's capacity is written"),
                Err(error) => {
                    let error = in_words(&error);
                    tracing::warn!(error, "the node's capacity cannot be written");
                    failed = true;
                }
            }
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            changed = node.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if failed => {}
        }
    }
}

/// Quantities can be printed in several ways; the API server's for ours are whole numbers
/// with an optional decimal suffix.
fn holds(capacity: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(name, amount)| {
        capacity
            .get(name)
            .and_then(|text| plain(text))
            .is_some_and(|have| have.to_string() == *amount)
    })
}

fn plain(text: &str) -> Option<u64> {
    let (digits, factor) = match text.strip_suffix(['k', 'M', 'G']) {
        None => (text, 1),
        Some(digits) => match text.as_bytes().last() {
            Some(b'k') => (digits, 1_000),
            Some(b'M') => (digits, 1_000_000),
            _ => (digits, 1_000_000_000),
        },
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Makes the `GpuNode` when it is missing. It goes when its Node goes.
async fn presence(
    config: &Config,
    client: Client,
    mut node: watch::Receiver<NodeFacts>,
    mut there: watch::Receiver<Option<bool>>,
) {
    let api = Api::<GpuNode>::all(client);
    loop {
        let uid = node.borrow_and_update().uid.clone();
        let missing = *there.borrow_and_update() == Some(false);
        let mut failed = false;
        if missing && !uid.is_empty() {
            match api
                .create(&PostParams::default(), &blank(&config.node_name, uid))
                .await
            {
                Ok(_) => tracing::info!("the GpuNode is created"),
                // Ours or an admin's, a moment ago; the watch says so.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => {
                    let error = in_words(&error);
                    tracing::warn!(error, "the GpuNode cannot be created");
                    failed = true;
                }
            }
        }
        tokio::select! {
            changed = node.changed() => if changed.is_err() { return },
            changed = there.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if failed => {}
        }
    }
}

fn blank(name: &str, uid: String) -> GpuNode {
    GpuNode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: Node::api_version(&()).into_owned(),
                kind: Node::kind(&()).into_owned(),
                name: name.to_owned(),
                uid,
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: GpuNodeSpec::default(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> ConfigMap {
        ConfigMap {
            data: Some(
                entries
                    .iter()
                    .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                    .collect(),
            ),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn the_trust_map_gives_keys_cluster_and_ca() {
        let good = map(&[
            ("cluster-id", "c1"),
            ("grant-keys.json", r#"{"k1":"AAEC"}"#),
            ("ca.crt", "PEM"),
        ]);
        let keys = BTreeMap::from([("k1".to_owned(), vec![0, 1, 2])]);
        assert_eq!(
            read_trust(&good),
            Ok((Verifier::new("c1", keys), "PEM".to_owned()))
        );
        for (bad, why) in [
            (ConfigMap::default(), "it is empty"),
            (map(&[]), "it names no cluster"),
            (map(&[("cluster-id", "c")]), "it has no keys"),
            (
                map(&[("cluster-id", "c"), ("grant-keys.json", "[]")]),
                "its keys are no JSON object of strings",
            ),
            (
                map(&[("cluster-id", "c"), ("grant-keys.json", r#"{"k":"?"}"#)]),
                "a key is not base64",
            ),
        ] {
            assert_eq!(read_trust(&bad), Err(why));
        }
    }

    #[test]
    fn capacities_are_compared_as_numbers() {
        let wanted = BTreeMap::from([("a".to_owned(), "48000".to_owned())]);
        for (text, same) in [("48000", true), ("48k", true), ("48", false), ("x", false)] {
            let have = BTreeMap::from([("a".to_owned(), text.to_owned())]);
            assert_eq!(holds(&have, &wanted), same, "{text}");
        }
        assert!(!holds(&BTreeMap::new(), &wanted));
    }
}
