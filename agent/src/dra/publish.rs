//! Keeps this node's `ResourceSlice`: written once at the start, then when it changed, at most
//! once a second.
//!
//! The kubelet deletes the slices of a driver that is away for longer than 30 s, and all of
//! its node's when it starts: one that is gone, or that another client has changed, is written again.

use super::slice;
use crate::Config;
use crate::cluster::{in_words, one, watched};
use crate::node::State;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::runtime::watcher::Event as Watched;
use kube::{Api, Client, Resource as _};
use proto::names;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Between two writes, and between two tries of one.
const PACE: Duration = Duration::from_secs(1);

/// The known state of the object in the API server.
#[derive(Debug, Default)]
struct Written {
    /// The spec that was written last; `None` if the object is missing, or another client wrote it.
    spec: Option<ResourceSliceSpec>,
    /// The spec that the API server returned for that write. It differs from `spec` in the form of
    /// amounts.
    stored: Option<ResourceSliceSpec>,
    /// Of the pool; each write has another. `None` until the first was read.
    generation: Option<i64>,
}

impl Written {
    /// Compares the object that the watch shows with the last write. An event with an older
    /// generation belongs to a write before the last, and is ignored.
    fn compare(&mut self, shown: &ResourceSlice) {
        let generation = shown.spec.pool.generation;
        if self.generation.is_some_and(|ours| generation >= ours)
            && self.stored.as_ref() != Some(&shown.spec)
        {
            self.spec = None;
            self.generation = Some(generation);
        }
    }
}

/// Name of the node's slice.
pub fn slice_name(node: &str) -> String {
    format!("{}-{node}", names::dra::DRIVER)
}

/// Writes without end.
pub async fn run(config: Arc<Config>, client: Client, mut state: watch::Receiver<Arc<State>>) {
    let name = slice_name(&config.node_name);
    let api = Api::<ResourceSlice>::all(client);
    let mut events = std::pin::pin!(watched(api.clone(), one(&name)));
    let mut written = Written::default();
    let mut listed = false;
    let mut earliest = Instant::now();
    loop {
        let now = state.borrow_and_update().clone();
        let due = slice::spec(&now).filter(|spec| written.spec.as_ref() != Some(spec));
        let waits = due.is_some();
        if let Some(spec) = due.filter(|_| Instant::now() >= earliest) {
            earliest = Instant::now() + PACE;
            if let Err(error) = write(&api, &name, &now.node.uid, spec, &mut written).await {
                let error = in_words(&error);
                tracing::warn!(error, "the node's ResourceSlice cannot be written");
            }
            continue;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(earliest), if waits => {}
            event = events.next() => match event {
                None => return,
                Some(Watched::Init) => listed = false,
                Some(Watched::InitApply(slice)) => {
                    listed = true;
                    written.compare(&slice);
                }
                Some(Watched::Apply(slice)) => written.compare(&slice),
                Some(Watched::InitDone) if !listed => written.spec = None,
                Some(Watched::Delete(_)) => written.spec = None,
                Some(Watched::InitDone) => {}
            },
        }
    }
}

async fn write(
    api: &Api<ResourceSlice>,
    name: &str,
    node_uid: &str,
    spec: ResourceSliceSpec,
    written: &mut Written,
) -> Result<(), kube::Error> {
    // A pool's generation never goes back: readers keep the highest that they know.
    let before = match written.generation {
        Some(generation) => generation,
        None => {
            let found = api.get_opt(name).await?;
            found.map_or(0, |slice| slice.spec.pool.generation)
        }
    };
    let generation = before.saturating_add(1);
    let mut object = ResourceSlice {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: Node::api_version(&()).into_owned(),
                kind: Node::kind(&()).into_owned(),
                name: spec.node_name.clone().unwrap_or_default(),
                uid: node_uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
    };
    object.spec.pool.generation = generation;
    written.generation = Some(generation);
    let params = PatchParams::apply(names::object::AGENT_ACCOUNT).force();
    let stored = api.patch(name, &params, &Patch::Apply(&object)).await?;
    tracing::info!(generation, "the node's ResourceSlice is written");
    written.spec = Some(spec);
    written.stored = Some(stored.spec);
    Ok(())
}
