//! A scripted device plugin that records its calls.

use super::*;

/// What the fake plugin was asked, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Preferred {
        available: Vec<String>,
        must: Vec<String>,
        size: i32,
    },
    Allocate(Vec<String>),
    PreStart(Vec<String>),
}

#[derive(Default)]
pub(super) struct Script {
    pub(super) calls: Vec<Call>,
    /// Answers of `PreStartContainer` that fail, first to last.
    pub(super) pre_start_errors: Vec<&'static str>,
    pub(super) allocate_error: Option<&'static str>,
    /// Whether the checkpoint named the allocation each time `PreStart` was called.
    pub(super) checkpointed: Vec<bool>,
}

#[derive(Clone)]
pub(super) struct Plugin {
    pub(super) script: Arc<Mutex<Script>>,
    pub(super) devices: watch::Receiver<Vec<Device>>,
    pub(super) checkpoint: PathBuf,
    pub(super) cdi: PathBuf,
    pub(super) end: CancellationToken,
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        }))
    }

    type ListAndWatchStream = std::pin::Pin<
        Box<dyn tokio_stream::Stream<Item = Result<ListAndWatchResponse, Status>> + Send>,
    >;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let stream = WatchStream::new(self.devices.clone())
            .map(|devices| Ok(ListAndWatchResponse { devices }))
            .take_until(self.end.clone().cancelled_owned());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut asked = request.into_inner().container_requests;
        assert_eq!(asked.len(), 1, "one element");
        let one = asked.remove(0);
        // The last ones, so that a choice by order alone is detected.
        let mut preferred = one.available_device_i_ds.clone();
        preferred.reverse();
        preferred.truncate(usize::try_from(one.allocation_size).unwrap());
        self.script.lock().unwrap().calls.push(Call::Preferred {
            available: one.available_device_i_ds,
            must: one.must_include_device_i_ds,
            size: one.allocation_size,
        });
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: vec![ContainerPreferredAllocationResponse {
                device_i_ds: preferred,
            }],
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let ids = request
            .into_inner()
            .container_requests
            .remove(0)
            .devices_ids;
        let mut script = self.script.lock().unwrap();
        script.calls.push(Call::Allocate(ids));
        if let Some(why) = script.allocate_error {
            return Err(Status::internal(why));
        }
        let count = script
            .calls
            .iter()
            .filter(|call| matches!(call, Call::Allocate(_)))
            .count();
        Ok(Response::new(AllocateResponse {
            container_responses: vec![ContainerAllocateResponse {
                envs: [
                    ("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned()),
                    ("FROM_PLUGIN".to_owned(), "p".to_owned()),
                ]
                .into(),
                cdi_devices: vec![CdiDevice {
                    name: format!("aliquot.dev/grant=alloc{count}"),
                }],
                ..ContainerAllocateResponse::default()
            }],
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let mut script = self.script.lock().unwrap();
        script
            .calls
            .push(Call::PreStart(request.into_inner().devices_ids));
        let count = script
            .calls
            .iter()
            .filter(|call| matches!(call, Call::Allocate(_)))
            .count();
        let checkpoint: Value =
            serde_json::from_slice(&std::fs::read(&self.checkpoint).unwrap()).unwrap();
        let known = checkpoint["Data"]["PodDeviceEntries"]
            .as_array()
            .is_some_and(|list| list.len() == count);
        script.checkpointed.push(known);
        if !script.pre_start_errors.is_empty() {
            return Err(Status::failed_precondition(
                script.pre_start_errors.remove(0),
            ));
        }
        for alloc in 1..=count {
            let spec = json!({"cdiVersion": "0.6.0", "kind": "aliquot.dev/grant", "devices": [
                {"name": format!("alloc{alloc}"), "containerEdits": {"env": [format!("ALLOC={alloc}"), "FROM_PLUGIN=cdi"]}}]});
            std::fs::write(
                self.cdi
                    .join(format!("aliquot.dev-grant_alloc{alloc}.json")),
                spec.to_string(),
            )
            .unwrap();
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
