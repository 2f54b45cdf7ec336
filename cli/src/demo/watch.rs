//! What changes in the cluster, gathered into scenes.
//! Owns the two watches; out: the latest scene, whenever it is another.

use crate::view::{Scene, is_shown};
use api::GpuNode;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;

/// Feeds `scenes` until nobody looks any more.
pub(super) async fn run(client: Client, scenes: watch::Sender<Scene>) {
    let config = watcher::Config::default;
    let mut pods = watcher(Api::<Pod>::all(client.clone()), config())
        .default_backoff()
        .boxed();
    let mut nodes = watcher(Api::<GpuNode>::all(client), config())
        .default_backoff()
        .boxed();
    let mut scene = Scene::default();
    loop {
        tokio::select! {
            Some(event) = pods.next() => match event {
                Ok(event) => pod(&mut scene, event),
                Err(error) => tracing::debug!(%error, "the watch of pods begins again"),
            },
            Some(event) = nodes.next() => match event {
                Ok(event) => node(&mut scene, event),
                Err(error) => tracing::debug!(%error, "the watch of GpuNodes begins again"),
            },
            () = scenes.closed() => return,
        }
        scenes.send_replace(scene.clone());
    }
}

fn pod(scene: &mut Scene, event: watcher::Event<Pod>) {
    let key = |pod: &Pod| (pod.namespace().unwrap_or_default(), pod.name_any());
    match event {
        watcher::Event::Init => scene.pods.clear(),
        watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) if is_shown(&pod) => {
            scene.pods.insert(key(&pod), pod);
        }
        watcher::Event::Delete(pod) => {
            scene.pods.remove(&key(&pod));
        }
        _ => {}
    }
}

fn node(scene: &mut Scene, event: watcher::Event<GpuNode>) {
    match event {
        watcher::Event::Init => scene.nodes.clear(),
        watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
            scene.nodes.insert(node.name_any(), node);
        }
        watcher::Event::Delete(node) => {
            scene.nodes.remove(&node.name_any());
        }
        watcher::Event::InitDone => {}
    }
}
