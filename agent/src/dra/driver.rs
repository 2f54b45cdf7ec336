//! The two calls of the kubelet's DRA service.
//!
//! Both may be repeated at any time. A claim's answer is its own: what is wrong with one
//! says nothing of the others. The kubelet shows the sentence in the pod's events and tries
//! again.

use super::request::{self, Allocated};
use super::status::{Place, Word};
use crate::Config;
use crate::cluster::in_words;
use crate::kubelet::prestart::PreStart;
use crate::ledger::AllocId;
use crate::node::Note;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use proto::dra::dra_plugin_server::DraPlugin;
use proto::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use proto::names;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// Longest time for one question to the API server; the kubelet allows 45 s for a call.
const ASKS_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks whether a container has ended.
const AGAIN: Duration = Duration::from_millis(100);

/// The DRA driver of this node.
#[derive(Clone)]
pub struct Driver {
    /// Reads claims and pods.
    pub client: Client,
    /// Makes shares, as for the other front.
    pub pre_start: PreStart,
    /// What became of claims, for their device status.
    pub words: mpsc::UnboundedSender<Word>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl Driver {
    pub(super) fn config(&self) -> &Config {
        &self.pre_start.config
    }

    /// Makes the share of one claim, and answers its device. Adds to `waited` the time
    /// in which this agent has nothing to do for it.
    async fn prepare(&self, asked: &Claim, waited: &mut Duration) -> Result<Device, String> {
        let node = &self.config().node_name;
        let claims = Api::<ResourceClaim>::namespaced(self.client.clone(), &asked.namespace);
        let object = get(&claims, "claim", asked, &asked.name, waited).await?;
        let made = self.make(asked, &object, waited).await;
        let same = object.metadata.uid.as_deref() == Some(&asked.uid);
        if let Some(place) = Place::of(&object, node).filter(|_| same) {
            let result = made.as_ref().map(drop).map_err(Clone::clone);
            let _ = self.words.send(Word::Prepared(place, result));
        }
        made
    }

    async fn make(
        &self,
        asked: &Claim,
        object: &ResourceClaim,
        waited: &mut Duration,
    ) -> Result<Device, String> {
        let node = &self.config().node_name;
        let allocated = request::allocated(object, asked, node)?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), &asked.namespace);
        let pod = get(&pods, "pod", asked, &allocated.pod.0, waited).await?;
        let (identity, container) = request::holder(&pod, &allocated, node)?;
        let state = self.pre_start.state.borrow().clone();
        let claim = request::claim(&state, &allocated, identity, container)?;
        let made = self.pre_start.claim(claim, allocated.alloc, waited).await;
        made.map_err(|error| format!("claim {}: {error}", allocated.claim))?;
        Ok(device(allocated))
    }

    /// Frees the share of one claim. The kubelet asks once nothing of its pod can run any
    /// more; a process that is still there is waited for.
    async fn unprepare(&self, asked: &Claim) -> Result<(), String> {
        // No share has such a name.
        let Some(alloc) = AllocId::of_claim(&asked.uid) else {
            return Ok(());
        };
        let deadline = Instant::now() + self.config().prestart_wait();
        loop {
            let freed = self.pre_start.owner.unprepare(alloc).await;
            match freed.map_err(|stopped| stopped.to_string())? {
                Ok(()) => {
                    let _ = self.words.send(Word::Unprepared(alloc));
                    return Ok(());
                }
                Err(why) if Instant::now() >= deadline => {
                    return Err(format!("claim {}/{}: {why}", asked.namespace, asked.name));
                }
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

async fn get<K>(
    api: &Api<K>,
    kind: &str,
    asked: &Claim,
    name: &str,
    waited: &mut Duration,
) -> Result<K, String>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let failed = |why: &str| format!("{kind} {}/{name} cannot be read: {why}", asked.namespace);
    let begin = Instant::now();
    let answer = tokio::time::timeout(ASKS_WITHIN, api.get(name)).await;
    *waited += begin.elapsed();
    match answer {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(error)) => Err(failed(&in_words(&error))),
        Err(_) => Err(failed("the API server did not answer in time")),
    }
}

fn device(allocated: Allocated) -> Device {
    Device {
        request_names: vec![allocated.request],
        pool_name: allocated.pool,
        device_name: allocated.device,
        cdi_device_ids: vec![format!("{}={}", names::cdi::KIND, allocated.alloc)],
        share_id: allocated.share_id,
    }
}

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let prepared = request.into_inner().claims.into_iter().map(async |asked| {
            let started = Instant::now();
            let mut waited = Duration::ZERO;
            let result = self.prepare(&asked, &mut waited).await;
            let _ = self.pre_start.notes.send(Note::Claimed {
                took: started.elapsed(),
                waited,
                granted: result.is_ok(),
            });
            let answer = match result {
                Ok(device) => NodePrepareResourceResponse {
                    devices: vec![device],
                    error: String::new(),
                },
                Err(error) => {
                    let claim = format!("{}/{}", asked.namespace, asked.name);
                    tracing::warn!(claim, error, "not prepared");
                    NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error,
                    }
                }
            };
            (asked.uid, answer)
        });
        let claims = join_all(prepared).await.into_iter().collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let freed = request.into_inner().claims.into_iter().map(async |asked| {
            let error = self.unprepare(&asked).await.err().unwrap_or_default();
            (asked.uid, NodeUnprepareResourceResponse { error })
        });
        let claims = join_all(freed).await.into_iter().collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}
