//! A node's kubelet: the real sockets, the real order of calls, the real texts.
//!
//! - `plugins` over `devices` and `checkpoint`: the device manager;
//! - `pod_resources`: what it serves to others; `node`: what it reports to the cluster;
//! - `config`: how it is started; `shared`: what its parts share;
//! - `admit`, then one `worker` per pod over `slot`: a pod's life; `table`: which are active.
//!
//! Left out: probes, volumes, images, network, cgroups, in-place resize, preemption.

mod admit;
mod checkpoint;
mod config;
mod devices;
mod node;
mod plugins;
mod pod_resources;
mod shared;
mod slot;
mod table;
mod worker;

pub use config::Config;

use crate::runtime::Runtime;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use node::Allocatable;
use plugins::Plugins;
use shared::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use table::PodTable;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Why a kubelet ends.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// A directory, a socket or the checkpoint.
    #[error("kubelet of {node}: {source}")]
    Io {
        /// Which node.
        node: String,
        /// What failed.
        #[source]
        source: std::io::Error,
    },
    /// The node could not be registered.
    #[error("kubelet cannot register its node: {0}")]
    Register(#[from] kube::Error),
}

/// Runs a kubelet until it is stopped. Its containers keep running: they belong to the runtime.
///
/// # Errors
/// A socket, the checkpoint, or the first contact with the API server.
pub async fn run(
    config: Config,
    client: Client,
    runtime: Runtime,
    stop: CancellationToken,
) -> Result<(), KubeletError> {
    let name = config.node_name.clone();
    let io = move |source| KubeletError::Io {
        node: name.clone(),
        source,
    };
    // Ours to cancel: if one part ends, this kubelet ends, and no other.
    let stop = stop.child_token();
    let config = Arc::new(config);
    let (plugins, connections, had_checkpoint) =
        Plugins::open(config.root.join("device-plugins"), config.endpoint_grace).map_err(&io)?;
    node::register(&client, &config, had_checkpoint).await?;
    let pods = Arc::new(PodTable::default());
    let (allocatable, seen) = watch::channel(Allocatable::new());

    let mut tasks: JoinSet<Result<(), std::io::Error>> = JoinSet::new();
    let (socket, resources) = (stop.child_token(), stop.child_token());
    tasks.spawn(plugins.clone().serve(connections, socket));
    tasks.spawn({
        let (root, plugins, pods) = (config.root.clone(), plugins.clone(), pods.clone());
        async move { pod_resources::serve(&root, plugins, pods, resources).await }
    });
    tasks.spawn({
        let (client, config, plugins) = (client.clone(), config.clone(), plugins.clone());
        let stop = stop.clone();
        async move {
            node::keep(client, config, plugins, allocatable, stop).await;
            Ok(())
        }
    });
    let node = Arc::new(Node {
        config,
        client,
        runtime,
        plugins,
        pods,
        stop: stop.clone(),
    });
    tasks.spawn(async move {
        sync_loop(node, seen).await;
        Ok(())
    });
    let mut outcome = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(std::io::Error::other).and_then(|inner| inner);
        if ended.is_err() && outcome.is_ok() {
            outcome = ended;
        }
        stop.cancel();
    }
    outcome.map_err(io)
}

/// The one loop that admits pods, one at a time.
async fn sync_loop(node: Arc<Node>, mut allocatable: watch::Receiver<Allocatable>) {
    let api: Api<Pod> = Api::all(node.client.clone());
    let selector = format!("spec.nodeName={}", node.config.node_name);
    let mut events = watcher(api, watcher::Config::default().fields(&selector))
        .default_backoff()
        .boxed();
    let mut workers: BTreeMap<String, watch::Sender<Option<Arc<Pod>>>> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut listed: Option<Vec<Arc<Pod>>> = None;
    // Pods are admitted against a node that has reported its resources.
    let ready = tokio::select! {
        ready = allocatable.wait_for(|known| !known.is_empty()) => ready.is_ok(),
        () = node.stop.cancelled() => false,
    };
    if !ready {
        return;
    }
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            Some(_) = tasks.join_next() => continue,
            () = node.stop.cancelled() => break,
        };
        let mut batch = Vec::new();
        match event {
            None => break,
            Some(Err(error)) => tracing::debug!(%error, "pod watch begins again"),
            Some(Ok(watcher::Event::Init)) => listed = Some(Vec::new()),
            Some(Ok(watcher::Event::InitApply(pod))) => {
                listed.get_or_insert_default().push(Arc::new(pod));
            }
            Some(Ok(watcher::Event::InitDone)) => {
                batch = listed.take().unwrap_or_default();
                // One batch is handled in order of creation, not of binding.
                batch.sort_by_key(|pod| pod.creation_timestamp().map(|time| time.0));
                let there: BTreeSet<String> = batch.iter().filter_map(|pod| pod.uid()).collect();
                for uid in node.pods.uids().difference(&there) {
                    gone(&node, &mut workers, uid);
                }
            }
            Some(Ok(watcher::Event::Apply(pod))) => batch.push(Arc::new(pod)),
            Some(Ok(watcher::Event::Delete(pod))) => {
                gone(&node, &mut workers, &pod.uid().unwrap_or_default());
            }
        }
        for pod in batch {
            let uid = pod.uid().unwrap_or_default();
            if !node.pods.put(&pod) {
                if let Some(worker) = workers.get(&uid) {
                    worker.send_replace(Some(pod));
                }
                continue;
            }
            if table::is_over(&pod) {
                continue;
            }
            let known = allocatable.borrow().clone();
            if let Some(task) = admitted(&node, pod, &known, &mut workers).await {
                tasks.spawn(task);
            }
        }
    }
    // Dropping the senders would end workers too; they hear the stop themselves.
    while tasks.join_next().await.is_some() {}
}

fn gone(node: &Node, workers: &mut BTreeMap<String, watch::Sender<Option<Arc<Pod>>>>, uid: &str) {
    match workers.remove(uid) {
        Some(worker) => {
            worker.send_replace(None);
        }
        None => node.pods.remove(uid),
    }
}

/// Admits one pod; its worker if it is let in.
async fn admitted(
    node: &Arc<Node>,
    pod: Arc<Pod>,
    allocatable: &Allocatable,
    workers: &mut BTreeMap<String, watch::Sender<Option<Arc<Pod>>>>,
) -> Option<impl Future<Output = ()> + use<>> {
    let uid = pod.uid().unwrap_or_default();
    // Containers that survived a restart of the kubelet are not admitted again.
    let survives = node
        .runtime
        .running()
        .iter()
        .any(|running| running.pod_uid == uid);
    if !survives && pod.metadata.deletion_timestamp.is_none() {
        let active = node.pods.active();
        if let Err(refused) = admit::admit(&node.plugins, &pod, &active, allocatable).await {
            node.pods.over(&uid);
            let status = slot::rejected(&pod, &refused.reason, &refused.message, &worker::stamp());
            worker::warn(node, &pod, &refused.reason, &refused.message).await;
            if let Err(error) = worker::write_status(node, &pod, &status).await {
                tracing::warn!(pod = pod.name_any(), %error, "refusal cannot be written");
            }
            return None;
        }
    }
    let (tell, heard) = watch::channel(Some(pod.clone()));
    workers.insert(uid, tell);
    Some(worker::run(node.clone(), pod, heard))
}
