//! The `PodResources` service, v1: which active pod's container holds which IDs.
//!
//! As the real one: no pod UIDs, init containers only where they are restartable, one
//! entry per ID, `List` cleans up after inactive pods and `Get` does not, 100 calls a
//! second for the whole server.

use super::plugins::Plugins;
use super::table::{PodTable, is_sidecar};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use proto::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices,
    ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, NumaNode, PodResources, TopologyInfo,
};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

const PER_SECOND: f64 = 100.0;
const BURST: f64 = 10.0;

/// Serves on `<root>/pod-resources/kubelet.sock` until stopped.
pub(super) async fn serve(
    root: &Path,
    plugins: Arc<Plugins>,
    pods: Arc<PodTable>,
    stop: CancellationToken,
) -> io::Result<()> {
    let dir = root.join("pod-resources");
    std::fs::create_dir_all(&dir)?;
    let socket = dir.join("kubelet.sock");
    if socket.exists() {
        std::fs::remove_file(&socket)?;
    }
    let listener = UnixListener::bind(socket)?;
    let lister = Lister {
        plugins,
        pods,
        bucket: Mutex::new((BURST, Instant::now())),
    };
    Server::builder()
        .add_service(PodResourcesListerServer::new(lister))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled_owned())
        .await
        .map_err(io::Error::other)
}

#[derive(Debug)]
struct Lister {
    plugins: Arc<Plugins>,
    pods: Arc<PodTable>,
    /// Calls left, and when that was counted.
    bucket: Mutex<(f64, Instant)>,
}

impl Lister {
    fn admit(&self) -> Result<(), Status> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let earned = now.duration_since(bucket.1).as_secs_f64() * PER_SECOND;
        *bucket = ((bucket.0 + earned).min(BURST), now);
        if bucket.0 < 1.0 {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        bucket.0 -= 1.0;
        Ok(())
    }

    fn of(&self, pod: &Pod) -> PodResources {
        let uid = pod.uid().unwrap_or_default();
        let spec = pod.spec.as_ref();
        let sidecars = spec
            .and_then(|spec| spec.init_containers.as_deref())
            .unwrap_or_default()
            .iter()
            .filter(|container| is_sidecar(container));
        let apps = spec
            .map(|spec| spec.containers.as_slice())
            .unwrap_or_default();
        let containers = sidecars
            .chain(apps)
            .map(|container| ContainerResources {
                name: container.name.clone(),
                devices: self
                    .plugins
                    .held_by(&uid, &container.name)
                    .into_iter()
                    .flat_map(|(resource, ids)| {
                        ids.into_iter().map(move |id| (resource.clone(), id))
                    })
                    .map(|(resource, id)| {
                        let numa = self.plugins.numa(&resource, &id);
                        devices(resource, id, &numa)
                    })
                    .collect(),
                ..ContainerResources::default()
            })
            .collect();
        PodResources {
            name: pod.name_any(),
            namespace: pod.namespace().unwrap_or_default(),
            containers,
        }
    }
}

fn devices(resource: String, id: String, numa: &[i64]) -> ContainerDevices {
    let topology = (!numa.is_empty()).then(|| TopologyInfo {
        nodes: numa.iter().map(|node| NumaNode { id: *node }).collect(),
    });
    ContainerDevices {
        resource_name: resource,
        device_ids: vec![id],
        topology,
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.admit()?;
        self.plugins.release(&self.pods.active_uids());
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: self.pods.active().iter().map(|pod| self.of(pod)).collect(),
        }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.admit()?;
        Ok(Response::new(AllocatableResourcesResponse {
            devices: self
                .plugins
                .allocatable()
                .into_iter()
                .map(|(resource, id, numa)| devices(resource, id, &numa))
                .collect(),
            ..AllocatableResourcesResponse::default()
        }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.admit()?;
        let asked = request.into_inner();
        let pod = self.pods.active().into_iter().find(|pod| {
            pod.name_any() == asked.pod_name
                && pod.namespace().unwrap_or_default() == asked.pod_namespace
        });
        let pod = pod.ok_or_else(|| {
            Status::unknown(format!(
                "pod {} in namespace {} not found",
                asked.pod_name, asked.pod_namespace
            ))
        })?;
        Ok(Response::new(GetPodResourcesResponse {
            pod_resources: Some(self.of(&pod)),
        }))
    }
}
