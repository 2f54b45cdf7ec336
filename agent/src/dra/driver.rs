//! The two calls of the kubelet's DRA service.
//!
//! Both may be repeated at any time. Each claim has an answer of its own: an error of one does not
//! affect the others. The kubelet shows the sentence in the pod's events and tries again.

use super::request;
use super::status::{Place, StatusUpdate};
use crate::Config;
use crate::cluster::in_words;
use crate::kubelet::prestart::PreStart;
use crate::ledger::AllocId;
use crate::node::Note;
use crate::node::claims::Prepared;
use crate::node::claims::parts::Allocated;
use futures::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use proto::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use proto::names;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;

/// Longest time for one question to the API server; the kubelet allows 45 s for a call.
const ASKS_WITHIN: Duration = Duration::from_secs(10);
/// Time between two checks whether a container has ended.
const AGAIN: Duration = Duration::from_millis(100);

/// The DRA driver of this node.
#[derive(Clone)]
pub struct Driver {
    /// Reads claims.
    pub client: Client,
    /// Makes shares, as for the other front.
    pub pre_start: PreStart,
    /// Results for claims, for their device status.
    pub words: channel::Sender<StatusUpdate>,
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

    /// Makes the shares of one claim, and answers its devices. Adds to `waited` the time
    /// in which this agent has nothing to do for it.
    async fn prepare(&self, asked: &Claim, waited: &mut Duration) -> Result<Vec<Device>, String> {
        let node = &self.config().node_name;
        let claims = Api::<ResourceClaim>::namespaced(self.client.clone(), &asked.namespace);
        let object = get(&claims, asked, waited).await?;
        let made = self.make(asked, &object, waited).await;
        let same = object.metadata.uid.as_deref() == Some(&asked.uid);
        if let Some(place) = Place::of(&object, node).filter(|_| same) {
            let result = made.as_ref().map(drop).map_err(Clone::clone);
            let _ = self.words.send(StatusUpdate::Prepared(place, result));
        }
        made
    }

    async fn make(
        &self,
        asked: &Claim,
        object: &ResourceClaim,
        waited: &mut Duration,
    ) -> Result<Vec<Device>, String> {
        let allocated = request::allocated(object, asked, &self.config().node_name)?;
        let made = self.pre_start.claim(&allocated, waited).await;
        let prepared = made.map_err(|error| error.to_string());
        // Some sentences name the claim already.
        let claim = allocated.claim();
        let prepared = prepared.map_err(|why| {
            if why.contains(&claim) {
                why
            } else {
                format!("claim {claim}: {why}")
            }
        })?;
        Ok(devices(&allocated, &prepared))
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
            let freed = self.pre_start.owner.unprepare(&asked.uid).await;
            match freed.map_err(|stopped| stopped.to_string())? {
                Ok(()) => {
                    let _ = self.words.send(StatusUpdate::Unprepared(alloc));
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

async fn get(
    claims: &Api<ResourceClaim>,
    asked: &Claim,
    waited: &mut Duration,
) -> Result<ResourceClaim, String> {
    let name = &asked.name;
    let failed = |why: &str| format!("claim {}/{name} cannot be read: {why}", asked.namespace);
    let begin = Instant::now();
    let answer = tokio::time::timeout(ASKS_WITHIN, claims.get(name)).await;
    *waited += begin.elapsed();
    match answer {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(error)) => Err(failed(&in_words(&error))),
        Err(_) => Err(failed("the API server did not answer in time")),
    }
}

/// Each of the claim's devices. The edit of a part is that of one of them: the kubelet hands all
/// that a container takes to the runtime, and an edit must come once.
fn devices(allocated: &Allocated, prepared: &[Prepared]) -> Vec<Device> {
    let mut open: Vec<&Prepared> = prepared.iter().collect();
    let mut devices = Vec::new();
    for device in &allocated.devices {
        let edits = |part: &&Prepared| {
            let claimed = part.share.claimed.as_ref();
            claimed.and_then(|of| of.requests.first()) == Some(&device.request)
        };
        let part = open.iter().position(edits).map(|at| open.remove(at));
        let name = |part: &Prepared| format!("{}={}", names::cdi::KIND, part.alloc);
        devices.push(Device {
            request_names: vec![device.request.clone()],
            pool_name: device.pool.clone(),
            device_name: device.device.clone(),
            cdi_device_ids: part.map(name).into_iter().collect(),
            share_id: device.share_id.clone(),
        });
    }
    devices
}

impl Driver {
    /// `NodePrepareResources`.
    ///
    /// # Errors Never: each claim's error is in its own answer.
    pub async fn prepare_all(
        &self,
        request: NodePrepareResourcesRequest,
    ) -> Result<NodePrepareResourcesResponse, Status> {
        let prepared = request.claims.into_iter().map(async |asked| {
            let started = Instant::now();
            let mut waited = Duration::ZERO;
            let result = self.prepare(&asked, &mut waited).await;
            let _ = self.pre_start.notes.send(Note::Claimed {
                took: started.elapsed(),
                waited,
                granted: result.is_ok(),
            });
            let answer = match result {
                Ok(devices) => NodePrepareResourceResponse {
                    devices,
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
        Ok(NodePrepareResourcesResponse { claims })
    }

    /// `NodeUnprepareResources`.
    ///
    /// # Errors
    /// Never, as above.
    pub async fn unprepare_all(
        &self,
        request: NodeUnprepareResourcesRequest,
    ) -> Result<NodeUnprepareResourcesResponse, Status> {
        let freed = request.claims.into_iter().map(async |asked| {
            let error = self.unprepare(&asked).await.err().unwrap_or_default();
            (asked.uid, NodeUnprepareResourceResponse { error })
        });
        let claims = join_all(freed).await.into_iter().collect();
        Ok(NodeUnprepareResourcesResponse { claims })
    }
}
