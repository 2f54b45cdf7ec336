//! A kubelet whose every step is the test's: device manager, checkpoint, `PodResources`.

use base64::Engine as _;
use prost::Message as _;
use proto::deviceplugin::device_plugin_client::DevicePluginClient;
use proto::deviceplugin::registration_server::{Registration, RegistrationServer};
use proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, Empty, PreStartContainerRequest,
    PreferredAllocationRequest, RegisterRequest,
};
use proto::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use proto::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices,
    ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// One container's hold.
#[derive(Clone, Debug)]
pub struct Entry {
    pub pod_uid: String,
    pub pod: String,
    pub container: String,
    pub init: bool,
    pub resource: String,
    pub ids: BTreeSet<String>,
    pub response: ContainerAllocateResponse,
}

impl Entry {
    /// The CDI name's device: the `alloc_id`.
    pub fn alloc(&self) -> String {
        let name = &self.response.cdi_devices[0].name;
        name.strip_prefix("aliquot.dev/grant=").unwrap().to_owned()
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// The IDs that were Unhealthy in a list, in the order of the lists.
    withdrawn: Vec<String>,
    entries: Vec<Entry>,
    /// By resource: the plugin's channel and its last list.
    plugins: BTreeMap<String, Plugin>,
    registrations: u32,
    lists: u32,
}

#[derive(Debug, Clone)]
struct Plugin {
    number: u32,
    client: DevicePluginClient<Channel>,
    devices: Vec<Device>,
    /// Ends the kubelet's stream, as it does when it forgets a plugin.
    hang_up: CancellationToken,
}

/// The kubelet; its entries outlive its sockets, as the checkpoint does.
#[derive(Debug)]
pub struct Kubelet {
    dir: PathBuf,
    shared: Arc<Mutex<Shared>>,
    running: Option<(CancellationToken, JoinSet<()>)>,
}

#[derive(Clone)]
struct Service {
    dir: PathBuf,
    shared: Arc<Mutex<Shared>>,
    stop: CancellationToken,
}

impl Kubelet {
    pub fn new(dir: &Path) -> Self {
        std::fs::create_dir_all(dir.join("device-plugins")).unwrap();
        std::fs::create_dir_all(dir.join("pod-resources")).unwrap();
        Self {
            dir: dir.to_owned(),
            shared: Arc::default(),
            running: None,
        }
    }

    /// As a kubelet starts: every socket of the directory goes, then its own appear.
    pub fn start(&mut self) {
        let plugins = self.dir.join("device-plugins");
        for file in std::fs::read_dir(&plugins).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|ext| ext == "sock") {
                // A plugin that saw its kubelet go may be quicker.
                let _ = std::fs::remove_file(path);
            }
        }
        let _ = std::fs::remove_file(self.dir.join("pod-resources/kubelet.sock"));
        let stop = CancellationToken::new();
        let service = Service {
            dir: self.dir.clone(),
            shared: self.shared.clone(),
            stop: stop.clone(),
        };
        let resources = UnixListener::bind(self.dir.join("pod-resources/kubelet.sock")).unwrap();
        let registration = UnixListener::bind(plugins.join("kubelet.sock")).unwrap();
        let mut tasks = JoinSet::new();
        let (a, b) = (service.clone(), service);
        let (stop_a, stop_b) = (stop.clone(), stop.clone());
        tasks.spawn(async move {
            let serve = Server::builder()
                .add_service(PodResourcesListerServer::new(a))
                .serve_with_incoming(UnixListenerStream::new(resources));
            tokio::select! { result = serve => result.unwrap(), () = stop_a.cancelled() => {} }
        });
        tasks.spawn(async move {
            let serve = Server::builder()
                .add_service(RegistrationServer::new(b))
                .serve_with_incoming(UnixListenerStream::new(registration));
            tokio::select! { result = serve => result.unwrap(), () = stop_b.cancelled() => {} }
        });
        self.running = Some((stop, tasks));
    }

    /// It dies: sockets' files stay, plugins are forgotten.
    pub async fn kill(&mut self) {
        let (stop, mut tasks) = self.running.take().unwrap();
        stop.cancel();
        while tasks.join_next().await.is_some() {}
        let mut shared = self.shared.lock().unwrap();
        for plugin in shared.plugins.values() {
            plugin.hang_up.cancel();
        }
        shared.plugins.clear();
    }

    /// Its stream to a plugin ends, and with it all it knows of the plugin.
    pub fn hang_up(&self, resource: &str) {
        let plugin = self.shared.lock().unwrap().plugins.remove(resource);
        plugin.unwrap().hang_up.cancel();
    }

    pub fn registrations(&self) -> u32 {
        self.shared.lock().unwrap().registrations
    }

    /// Messages of `ListAndWatch`, of all resources.
    pub fn lists(&self) -> u32 {
        self.shared.lock().unwrap().lists
    }

    /// Healthy IDs of a resource; `None` while it is not registered.
    pub fn healthy(&self, resource: &str) -> Option<BTreeSet<String>> {
        let shared = self.shared.lock().unwrap();
        let devices = &shared.plugins.get(resource)?.devices;
        Some(
            devices
                .iter()
                .filter(|device| device.health == "Healthy")
                .map(|device| device.id.clone())
                .collect(),
        )
    }

    /// Returns the IDs that were Unhealthy in any list since the last call of this function.
    pub fn withdrawn(&self) -> BTreeSet<String> {
        let mut shared = self.shared.lock().unwrap();
        std::mem::take(&mut shared.withdrawn).into_iter().collect()
    }

    /// The pod is gone, and the kubelet has noticed.
    pub fn forget(&self, pod_uid: &str) {
        self.shared
            .lock()
            .unwrap()
            .entries
            .retain(|entry| entry.pod_uid != pod_uid);
        self.write_checkpoint();
    }

    /// Admission of one container: pick, `GetPreferredAllocation`, `Allocate`, checkpoint.
    pub async fn allocate(&self, want: Want<'_>) -> Result<Entry, Status> {
        let (mut client, free) = {
            let shared = self.shared.lock().unwrap();
            let plugin = shared.plugins.get(want.resource).expect("registered");
            let taken: BTreeSet<&String> = shared
                .entries
                .iter()
                .filter(|entry| entry.resource == want.resource)
                .flat_map(|entry| &entry.ids)
                .collect();
            let free: Vec<String> = plugin
                .devices
                .iter()
                .filter(|device| device.health == "Healthy" && !taken.contains(&device.id))
                .map(|device| device.id.clone())
                .collect();
            (plugin.client.clone(), free)
        };
        let ids: Vec<String> = match want.ids {
            Some(ids) => ids.iter().map(|id| (*id).to_owned()).collect(),
            None => {
                client
                    .get_preferred_allocation(PreferredAllocationRequest {
                        container_requests: vec![ContainerPreferredAllocationRequest {
                            available_device_i_ds: free,
                            must_include_device_i_ds: Vec::new(),
                            allocation_size: want.count,
                        }],
                    })
                    .await?
                    .into_inner()
                    .container_responses
                    .remove(0)
                    .device_i_ds
            }
        };
        let response = client
            .allocate(AllocateRequest {
                container_requests: vec![ContainerAllocateRequest {
                    devices_ids: ids.clone(),
                }],
            })
            .await?
            .into_inner()
            .container_responses
            .remove(0);
        let entry = Entry {
            pod_uid: want.pod_uid.to_owned(),
            pod: want.pod.to_owned(),
            container: want.container.to_owned(),
            init: want.init,
            resource: want.resource.to_owned(),
            ids: ids.into_iter().collect(),
            response,
        };
        self.shared.lock().unwrap().entries.push(entry.clone());
        self.write_checkpoint();
        Ok(entry)
    }

    /// Start of one container.
    pub async fn pre_start(&self, entry: &Entry) -> Result<(), Status> {
        let mut client = {
            let shared = self.shared.lock().unwrap();
            let plugin = shared.plugins.get(&entry.resource);
            plugin
                .ok_or_else(|| Status::unavailable("not registered"))?
                .client
                .clone()
        };
        client
            .pre_start_container(PreStartContainerRequest {
                devices_ids: entry.ids.iter().cloned().collect(),
            })
            .await
            .map(|_| ())
    }

    pub fn write_checkpoint(&self) {
        let shared = self.shared.lock().unwrap();
        let entries: Vec<_> = shared
            .entries
            .iter()
            .map(|entry| {
                let response = entry.response.encode_to_vec();
                json!({
                    "PodUID": entry.pod_uid, "ContainerName": entry.container,
                    "ResourceName": entry.resource, "DeviceIDs": {"-1": entry.ids},
                    "AllocResp": base64::engine::general_purpose::STANDARD.encode(response),
                })
            })
            .collect();
        let text =
            json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0});
        self.put_checkpoint(&text.to_string());
    }

    pub fn put_checkpoint(&self, text: &str) {
        let plugins = self.dir.join("device-plugins");
        std::fs::write(plugins.join(".tmp"), text).unwrap();
        std::fs::rename(
            plugins.join(".tmp"),
            plugins.join("kubelet_internal_checkpoint"),
        )
        .unwrap();
    }
}

/// What one container asks for.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    pub pod_uid: &'a str,
    pub pod: &'a str,
    pub container: &'a str,
    pub init: bool,
    pub resource: &'a str,
    pub count: i32,
    /// Instead of what the plugin prefers.
    pub ids: Option<&'a [&'a str]>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        assert_eq!(request.version, "v1beta1");
        let socket = self.dir.join("device-plugins").join(&request.endpoint);
        let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .unwrap()
            .connect()
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        let mut client = DevicePluginClient::new(channel);
        // The kubelet calls back before it answers.
        let options = client
            .get_device_plugin_options(Empty {})
            .await?
            .into_inner();
        assert!(options.pre_start_required && options.get_preferred_allocation_available);
        let hang_up = self.stop.child_token();
        let resource = request.resource_name;
        let number = {
            let mut shared = self.shared.lock().unwrap();
            shared.registrations += 1;
            let plugin = Plugin {
                number: shared.registrations,
                client: client.clone(),
                devices: Vec::new(),
                hang_up: hang_up.clone(),
            };
            shared.plugins.insert(resource.clone(), plugin);
            shared.registrations
        };
        let shared = self.shared.clone();
        tokio::spawn(async move {
            if let Ok(stream) = client.list_and_watch(Empty {}).await {
                let mut stream = stream.into_inner();
                loop {
                    let message = tokio::select! {
                        message = stream.message() => message,
                        () = hang_up.cancelled() => break,
                    };
                    let Ok(Some(list)) = message else { break };
                    let mut shared = shared.lock().unwrap();
                    shared.lists += 1;
                    let unhealthy = list.devices.iter().filter(|d| d.health != "Healthy");
                    shared
                        .withdrawn
                        .extend(unhealthy.map(|device| device.id.clone()));
                    if let Some(plugin) = shared.plugins.get_mut(&resource) {
                        plugin.devices = list.devices;
                    }
                }
            }
            // A plugin whose stream ended is forgotten.
            let mut shared = shared.lock().unwrap();
            if shared
                .plugins
                .get(&resource)
                .is_some_and(|p| p.number == number)
            {
                shared.plugins.remove(&resource);
            }
        });
        Ok(Response::new(Empty {}))
    }
}

fn listed(entries: &[Entry]) -> Vec<PodResources> {
    let mut pods: BTreeMap<&str, BTreeMap<&str, Vec<ContainerDevices>>> = BTreeMap::new();
    // Ordinary init containers are not listed.
    for entry in entries.iter().filter(|entry| !entry.init) {
        let devices = entry.ids.iter().map(|id| ContainerDevices {
            resource_name: entry.resource.clone(),
            device_ids: vec![id.clone()],
            ..ContainerDevices::default()
        });
        let containers = pods.entry(&entry.pod).or_default();
        containers
            .entry(&entry.container)
            .or_default()
            .extend(devices);
    }
    pods.into_iter()
        .map(|(name, containers)| PodResources {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            containers: containers
                .into_iter()
                .map(|(name, devices)| ContainerResources {
                    name: name.to_owned(),
                    devices,
                    ..ContainerResources::default()
                })
                .collect(),
        })
        .collect()
}

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = listed(&self.shared.lock().unwrap().entries);
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let shared = self.shared.lock().unwrap();
        let devices = shared
            .plugins
            .iter()
            .flat_map(|(resource, plugin)| {
                let healthy = plugin.devices.iter().filter(|d| d.health == "Healthy");
                healthy.map(|device| ContainerDevices {
                    resource_name: resource.clone(),
                    device_ids: vec![device.id.clone()],
                    ..ContainerDevices::default()
                })
            })
            .collect();
        Ok(Response::new(AllocatableResourcesResponse {
            devices,
            ..AllocatableResourcesResponse::default()
        }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        let name = request.into_inner().pod_name;
        let pods = listed(&self.shared.lock().unwrap().entries);
        let pod_resources = pods.into_iter().find(|pod| pod.name == name);
        Ok(Response::new(GetPodResourcesResponse { pod_resources }))
    }
}
