//! What changes in the cluster, gathered into views.
//! Owns the two watches; out: the latest view, whenever it is another.

use crate::view::{ClusterView, is_shown};
use api::GpuNode;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;

/// Feeds `views` until it has no reader left.
pub(super) async fn run(client: Client, views: watch::Sender<ClusterView>) {
    let config = watcher::Config::default;
    let mut pods = watcher(Api::<Pod>::all(client.clone()), config())
        .default_backoff()
        .boxed();
    let mut nodes = watcher(Api::<GpuNode>::all(client), config())
        .default_backoff()
        .boxed();
    let mut view = ClusterView::default();
    loop {
        tokio::select! {
            Some(event) = pods.next() => match event {
                Ok(event) => pod(&mut view, event),
                Err(error) => tracing::debug!(%error, "the watch of pods restarts"),
            },
            Some(event) = nodes.next() => match event {
                Ok(event) => node(&mut view, event),
                Err(error) => tracing::debug!(%error, "the watch of GpuNodes restarts"),
            },
            () = views.closed() => return,
        }
        views.send_replace(view.clone());
    }
}

fn pod(view: &mut ClusterView, event: watcher::Event<Pod>) {
    let key = |pod: &Pod| (pod.namespace().unwrap_or_default(), pod.name_any());
    match event {
        watcher::Event::Init => view.pods.clear(),
        watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) if is_shown(&pod) => {
            view.pods.insert(key(&pod), pod);
        }
        watcher::Event::Delete(pod) => {
            view.pods.remove(&key(&pod));
        }
        _ => {}
    }
}

fn node(view: &mut ClusterView, event: watcher::Event<GpuNode>) {
    match event {
        watcher::Event::Init => view.nodes.clear(),
        watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
            view.nodes.insert(node.name_any(), node);
        }
        watcher::Event::Delete(node) => {
            view.nodes.remove(&node.name_any());
        }
        watcher::Event::InitDone => {}
    }
}
