//! The device-plugin service of one resource.
//!
//! `Allocate` answers from the request alone: it mints an `alloc_id` and names it. Every
//! decision is `PreStartContainer`'s, in [`super::prestart`].

use super::prestart::PreStart;
use crate::ledger::AllocId;
use crate::node::offer::Offer;
use crate::node::{Event, Note, Owner};
use crate::resource::Resource;
use futures::Stream;
use proto::deviceplugin::device_plugin_server::DevicePlugin;
use proto::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use proto::names;
use ring::rand::{SecureRandom as _, SystemRandom};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// One resource's service, of one registration.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) resource: Resource,
    pub(super) offer: watch::Receiver<Arc<Offer>>,
    pub(super) owner: Owner,
    pub(super) notes: channel::Sender<Note>,
    pub(super) pre_start: PreStart,
    pub(super) random: SystemRandom,
    /// As in the registration.
    pub(super) pre_start_required: bool,
    /// How many streams are open: the kubelet's hold on us.
    pub(super) streams: watch::Sender<Streams>,
    /// Ends the streams, and with them the registration.
    pub(super) stop: CancellationToken,
}

/// Streams of one registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streams {
    /// Ever opened.
    pub(super) opened: u32,
    /// Open now.
    pub(super) open: u32,
    /// A list was handed to the kubelet.
    pub(super) listed: bool,
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options(self.pre_start_required)))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let resource = self.resource;
        let open = Open::new(self.streams.clone());
        let mut offer = self.offer.clone();
        offer.mark_changed();
        let state = (offer, None::<Vec<_>>, self.stop.clone(), open);
        let lists =
            futures::stream::unfold(state, move |(mut offer, sent, stop, open)| async move {
                if sent.is_some() {
                    open.listed();
                }
                loop {
                    tokio::select! {
                        changed = offer.changed() => changed.ok()?,
                        () = stop.cancelled() => return None,
                    }
                    let devices = offer.borrow_and_update().list(resource).to_vec();
                    // Each message costs the kubelet a checkpoint.
                    if sent.as_ref() != Some(&devices) {
                        let message = ListAndWatchResponse {
                            devices: devices.clone(),
                        };
                        return Some((Ok(message), (offer, Some(devices), stop, open)));
                    }
                }
            });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let offer = self.offer.borrow().clone();
        let container_responses = request
            .into_inner()
            .container_requests
            .iter()
            .map(|wanted| ContainerPreferredAllocationResponse {
                device_i_ds: offer.prefer(
                    self.resource,
                    &wanted.available_device_i_ds,
                    &wanted.must_include_device_i_ds,
                    usize::try_from(wanted.allocation_size).unwrap_or(0),
                ),
            })
            .collect();
        Ok(Response::new(PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let started = Instant::now();
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let mut bits = [0; 16];
            self.random
                .fill(&mut bits)
                .map_err(|_| Status::internal("the machine has no randomness"))?;
            let alloc = AllocId::new(u128::from_be_bytes(bits));
            self.owner
                .tell(Event::Minted {
                    alloc,
                    resource: self.resource,
                    ids: container.devices_ids.into_iter().collect(),
                })
                .map_err(|stopped| Status::unavailable(stopped.to_string()))?;
            tracing::debug!(%alloc, resource = %self.resource.name(), "allocated");
            container_responses.push(answer(alloc));
        }
        let took = started.elapsed();
        let _ = self.notes.send(Note::Allocated { took });
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let started = Instant::now();
        let ids = request.into_inner().devices_ids.into_iter().collect();
        let result = self.pre_start.run(self.resource, ids).await;
        let _ = self.notes.send(Note::PreStarted {
            took: started.elapsed(),
            granted: result.is_ok(),
        });
        match result {
            Ok(()) => Ok(Response::new(PreStartContainerResponse {})),
            Err(error) => Err(Status::failed_precondition(error.to_string())),
        }
    }
}

/// The options that the kubelet learns.
pub(super) fn options(pre_start_required: bool) -> DevicePluginOptions {
    DevicePluginOptions {
        pre_start_required,
        get_preferred_allocation_available: true,
    }
}

/// Nothing that matters is in here: a pod's own environment would win over `envs`, and CDI
/// sets the variable again.
fn answer(alloc: AllocId) -> ContainerAllocateResponse {
    ContainerAllocateResponse {
        envs: HashMap::from([(
            names::env::NVIDIA_VISIBLE_DEVICES.to_owned(),
            "void".to_owned(),
        )]),
        cdi_devices: vec![CdiDevice {
            name: format!("{}={alloc}", names::cdi::KIND),
        }],
        ..ContainerAllocateResponse::default()
    }
}

/// Counts a stream while it lives.
#[derive(Debug)]
struct Open(watch::Sender<Streams>);

impl Open {
    fn new(streams: watch::Sender<Streams>) -> Self {
        streams.send_modify(|streams| {
            streams.opened += 1;
            streams.open += 1;
        });
        Self(streams)
    }

    /// The stream is polled for what follows its first list.
    fn listed(&self) {
        self.0
            .send_if_modified(|streams| !std::mem::replace(&mut streams.listed, true));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|streams| streams.open -= 1);
    }
}
