//! Device plugins over their sockets: registration, the stream, the four calls.
//!
//! Owns the books ([`Devices`]) behind one lock, which no RPC is made under, and the
//! checkpoint that follows every change. In: `Register` calls, streams, what admission and
//! the pod workers ask. Out: IDs, cached answers, the node's device counts.
//!
//! Kept bug of the real one: when a stream ends, whichever client has the resource's name
//! *now* is disconnected, a newly registered one too.

use super::checkpoint;
use super::devices::{Choice, Devices, Held, Ids, Listed, Owner};
use prost::Message as _;
use proto::deviceplugin::device_plugin_client::DevicePluginClient;
use proto::deviceplugin::registration_server::{Registration, RegistrationServer};
use proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest, RegisterRequest,
};
use proto::names::kubelet as name;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

const DIAL: Duration = Duration::from_secs(10);
const PRE_START: Duration = Duration::from_secs(30);

/// The plugins of one node.
#[derive(Debug)]
pub(super) struct Plugins {
    dir: PathBuf,
    grace: Duration,
    state: Mutex<State>,
    connected: mpsc::UnboundedSender<Connection>,
}

#[derive(Debug, Default)]
struct State {
    devices: Devices,
    clients: BTreeMap<String, Client>,
}

#[derive(Clone, Debug)]
struct Client {
    rpc: DevicePluginClient<Channel>,
    options: DevicePluginOptions,
    /// Ends its stream.
    end: CancellationToken,
}

/// A registered plugin whose stream is to be read.
#[derive(Debug)]
pub(super) struct Connection {
    resource: String,
    client: Client,
}

impl Plugins {
    /// Clears the directory of old sockets and reads the checkpoint.
    /// The flag says whether there was one.
    pub(super) fn open(
        dir: PathBuf,
        grace: Duration,
    ) -> io::Result<(Arc<Self>, mpsc::UnboundedReceiver<Connection>, bool)> {
        std::fs::create_dir_all(&dir)?;
        for entry in std::fs::read_dir(&dir)? {
            use std::os::unix::fs::FileTypeExt as _;
            let entry = entry?;
            if entry.file_type()?.is_socket() {
                std::fs::remove_file(entry.path())?;
            }
        }
        let mut state = State::default();
        let restored = checkpoint::read(&dir.join(name::CHECKPOINT))?;
        let had_checkpoint = restored.is_some();
        if let Some((held, resources)) = restored {
            state.devices.restore(held, resources, Instant::now());
        }
        let (connected, connections) = mpsc::unbounded_channel();
        let plugins = Self {
            dir,
            grace,
            state: Mutex::new(state),
            connected,
        };
        Ok((Arc::new(plugins), connections, had_checkpoint))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, state: &State) -> io::Result<()> {
        checkpoint::write(&self.dir.join(name::CHECKPOINT), &state.devices)
    }

    /// Serves `Register` and reads the streams, until stopped.
    pub(super) async fn serve(
        self: Arc<Self>,
        mut connections: mpsc::UnboundedReceiver<Connection>,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let listener = UnixListener::bind(self.dir.join(name::SOCKET))?;
        let server = Server::builder()
            .add_service(RegistrationServer::new(Registrar(self.clone())))
            .serve_with_incoming_shutdown(
                UnixListenerStream::new(listener),
                stop.clone().cancelled_owned(),
            );
        let mut streams = JoinSet::new();
        tokio::pin!(server);
        loop {
            tokio::select! {
                ended = &mut server => {
                    streams.shutdown().await;
                    return ended.map_err(io::Error::other);
                }
                Some(connection) = connections.recv() => {
                    streams.spawn(self.clone().stream(connection));
                }
                Some(_) = streams.join_next() => {}
            }
        }
    }

    async fn stream(self: Arc<Self>, mut connection: Connection) {
        let resource = connection.resource;
        if let Ok(answer) = connection.client.rpc.list_and_watch(Empty {}).await {
            let mut stream = answer.into_inner();
            loop {
                let message = tokio::select! {
                    message = stream.message() => message,
                    () = connection.client.end.cancelled() => break,
                };
                match message {
                    Ok(Some(list)) => self.listed(&resource, list),
                    Ok(None) | Err(_) => break,
                }
            }
        }
        let mut state = self.state();
        if let Some(client) = state.clients.remove(&resource) {
            tracing::info!(resource, "device plugin disconnected");
            client.end.cancel();
            state.devices.disconnected(&resource, Instant::now());
        }
    }

    fn listed(&self, resource: &str, list: ListAndWatchResponse) {
        let devices = list
            .devices
            .into_iter()
            .map(|device| Listed {
                healthy: device.health == name::HEALTHY,
                id: device.id,
                numa: device
                    .topology
                    .into_iter()
                    .flat_map(|topology| topology.nodes)
                    .map(|node| node.id)
                    .collect(),
            })
            .collect();
        let mut state = self.state();
        state.devices.update(resource, devices);
        if let Err(error) = self.save(&state) {
            tracing::error!(%error, "device manager checkpoint cannot be written");
        }
    }

    async fn register(&self, request: RegisterRequest) -> Result<(), String> {
        if request.version != name::VERSION {
            return Err(format!(
                "requested API version \"{}\" is not supported by kubelet. Supported versions are [\"{}\"]",
                request.version,
                name::VERSION
            ));
        }
        let resource = request.resource_name;
        if !is_extended(&resource) {
            return Err(format!(
                "the ResourceName \"{resource}\" is not a valid extended resource name"
            ));
        }
        let socket = self.dir.join(&request.endpoint);
        let url = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(url).map_err(|error| error.to_string())?;
        let dialled = async {
            let channel = endpoint.connect().await.map_err(|e| e.to_string())?;
            let mut rpc = DevicePluginClient::new(channel);
            let options = rpc
                .get_device_plugin_options(Empty {})
                .await
                .map_err(|status| wire(&status))?
                .into_inner();
            Ok::<_, String>((rpc, options))
        };
        let (rpc, options) = tokio::time::timeout(DIAL, dialled)
            .await
            .map_err(|_| "failed to dial device plugin: context deadline exceeded".to_owned())?
            .map_err(|why| format!("failed to dial device plugin: {why}"))?;
        let client = Client {
            rpc,
            options,
            end: CancellationToken::new(),
        };
        let mut state = self.state();
        state.devices.registered(&resource);
        state.clients.insert(resource.clone(), client.clone());
        drop(state);
        tracing::info!(
            resource,
            endpoint = request.endpoint,
            "device plugin registered"
        );
        self.connected
            .send(Connection { resource, client })
            .map_err(|_| "the kubelet is stopping".to_owned())
    }

    /// Gives a container its devices, one resource after the other. `reusable` is what
    /// init containers of the pod left, by resource.
    ///
    /// # Errors
    /// The text that ends up in the pod's status.
    pub(super) async fn allocate(
        &self,
        pod_uid: &str,
        container: &str,
        limits: &BTreeMap<String, usize>,
        reusable: &BTreeMap<String, Ids>,
        active: &BTreeSet<String>,
    ) -> Result<(), String> {
        for (resource, count) in limits {
            if !self.state().devices.knows(resource) {
                // Fail-open, as the real one: no plugin knows this resource.
                continue;
            }
            let owner = Owner {
                pod_uid: pod_uid.to_owned(),
                container: container.to_owned(),
                resource: resource.clone(),
            };
            let none = Ids::new();
            let reused = reusable.get(resource).unwrap_or(&none);
            self.allocate_one(owner, *count, reused, active).await?;
        }
        Ok(())
    }

    async fn allocate_one(
        &self,
        owner: Owner,
        count: usize,
        reusable: &Ids,
        active: &BTreeSet<String>,
    ) -> Result<(), String> {
        let choice = {
            let mut state = self.state();
            state.devices.release(active);
            state.devices.begin(&owner, count, reusable)?
        };
        let ids = match choice {
            Choice::Nothing => return Ok(()),
            Choice::Done(ids) => ids,
            Choice::Ask(question) => {
                let preferred = match self.preferred(&owner, &question).await {
                    Ok(preferred) => preferred,
                    Err(why) => {
                        self.state().devices.abort();
                        return Err(why);
                    }
                };
                self.state().devices.choose(&owner, &question, &preferred)
            }
        };
        let response = match self.ask_for(&owner.resource, &ids).await {
            Ok(response) => response,
            Err(why) => {
                self.state().devices.abort();
                return Err(why);
            }
        };
        let mut state = self.state();
        let held = Held {
            ids,
            response: response.encode_to_vec(),
        };
        state.devices.insert(owner, held);
        self.save(&state).map_err(|error| error.to_string())
    }

    fn client(&self, resource: &str) -> Result<Client, String> {
        let client = self.state().clients.get(resource).cloned();
        client.ok_or_else(|| format!("endpoint {resource} has been stopped"))
    }

    async fn preferred(
        &self,
        owner: &Owner,
        question: &super::devices::PreferredAllocationCall,
    ) -> Result<Ids, String> {
        let mut client = self.client(&owner.resource)?;
        if !client.options.get_preferred_allocation_available {
            return Ok(Ids::new());
        }
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: question.available.iter().cloned().collect(),
                must_include_device_i_ds: question.reserved.iter().cloned().collect(),
                allocation_size: i32::try_from(question.size).unwrap_or(i32::MAX),
            }],
        };
        let answer = client
            .rpc
            .get_preferred_allocation(request)
            .await
            .map_err(|status| {
                format!(
                    "device plugin GetPreferredAllocation rpc failed with err: {}",
                    wire(&status)
                )
            })?
            .into_inner();
        Ok(answer
            .container_responses
            .into_iter()
            .next()
            .map(|one| one.device_i_ds.into_iter().collect())
            .unwrap_or_default())
    }

    async fn ask_for(
        &self,
        resource: &str,
        ids: &Ids,
    ) -> Result<ContainerAllocateResponse, String> {
        let mut client = self.client(resource)?;
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest {
                devices_ids: ids.iter().cloned().collect(),
            }],
        };
        let answer = client.rpc.allocate(request).await.map_err(|s| wire(&s))?;
        answer
            .into_inner()
            .container_responses
            .into_iter()
            .next()
            .ok_or_else(|| format!("no containers return in allocation response for {resource}"))
    }

    /// `PreStartContainer` for everything that a container holds, then the cached answers.
    ///
    /// # Errors
    /// The text of `CreateContainerConfigError`.
    pub(super) async fn prepare(
        &self,
        pod_uid: &str,
        container: &str,
        limits: &BTreeMap<String, usize>,
    ) -> Result<Vec<ContainerAllocateResponse>, String> {
        let mut answers = Vec::new();
        for resource in limits.keys() {
            if !self.state().devices.knows(resource) {
                continue;
            }
            let owner = Owner {
                pod_uid: pod_uid.to_owned(),
                container: container.to_owned(),
                resource: resource.clone(),
            };
            let (held, client, listed_here) = {
                let state = self.state();
                (
                    state.devices.held(&owner).cloned(),
                    state.clients.get(resource).cloned(),
                    state.devices.listed_here(resource),
                )
            };
            let Some(held) = held else {
                return Err(format!(
                    "no devices found allocated in local cache for pod {pod_uid}, container {container}, resource {resource}"
                ));
            };
            match client {
                Some(client) if client.options.pre_start_required => {
                    pre_start(client, &held.ids).await?;
                }
                Some(_) => {}
                // Restarted kubelet, plugin not back: options are unknown, the call is skipped.
                None if !listed_here => {}
                None => return Err(format!("endpoint {resource} has been stopped")),
            }
            let answer = ContainerAllocateResponse::decode(held.response.as_slice())
                .map_err(|error| format!("cached allocation of {resource}: {error}"))?;
            answers.push(answer);
        }
        Ok(answers)
    }

    /// What the node has of each resource: capacity, allocatable.
    pub(super) fn counts(&self) -> BTreeMap<String, (usize, usize)> {
        self.state().devices.counts(Instant::now(), self.grace)
    }

    /// Forgets what inactive pods held; as the real one does when its books are read.
    pub(super) fn release(&self, active: &BTreeSet<String>) {
        let mut state = self.state();
        if state.devices.release(active)
            && let Err(error) = self.save(&state)
        {
            tracing::error!(%error, "device manager checkpoint cannot be written");
        }
    }

    /// IDs that a container holds, by resource.
    pub(super) fn held_by(&self, pod_uid: &str, container: &str) -> BTreeMap<String, Ids> {
        self.state()
            .devices
            .all_held()
            .filter(|(owner, _)| owner.pod_uid == pod_uid && owner.container == container)
            .map(|(owner, held)| (owner.resource.clone(), held.ids.clone()))
            .collect()
    }

    /// Every healthy ID with its NUMA nodes, by resource.
    pub(super) fn allocatable(&self) -> Vec<(String, String, Vec<i64>)> {
        let state = self.state();
        let mut all = Vec::new();
        for (resource, ids) in state.devices.healthy() {
            for id in ids {
                let numa = state.devices.numa(resource, id).to_vec();
                all.push((resource.clone(), id.clone(), numa));
            }
        }
        all
    }

    /// NUMA nodes of an ID.
    pub(super) fn numa(&self, resource: &str, id: &str) -> Vec<i64> {
        self.state().devices.numa(resource, id).to_vec()
    }

    /// Whether an ID is healthy.
    pub(super) fn is_healthy(&self, resource: &str, id: &str) -> bool {
        self.state().devices.is_healthy(resource, id)
    }
}

async fn pre_start(mut client: Client, ids: &Ids) -> Result<(), String> {
    let failed = |why: &str| format!("device plugin PreStartContainer rpc failed with err: {why}");
    let request = PreStartContainerRequest {
        devices_ids: ids.iter().cloned().collect(),
    };
    match tokio::time::timeout(PRE_START, client.rpc.pre_start_container(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(failed(&wire(&status))),
        Err(_) => Err(failed(
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        )),
    }
}

/// A status as grpc-go prints it.
fn wire(status: &Status) -> String {
    format!(
        "rpc error: code = {:?} desc = {}",
        status.code(),
        status.message()
    )
}

/// A qualified name outside of Kubernetes' own domain.
fn is_extended(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(domain, rest)| {
        !domain.is_empty()
            && !rest.is_empty()
            && !rest.contains('/')
            && domain != "kubernetes.io"
            && !domain.ends_with(".kubernetes.io")
            && !domain.starts_with("requests.")
    })
}

#[derive(Debug)]
struct Registrar(Arc<Plugins>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0
            .register(request.into_inner())
            .await
            .map(|()| Response::new(Empty {}))
            .map_err(Status::unknown)
    }
}
