//! What answers the kubelet's DRA calls: this agent, or the one that it is about to replace.
//!
//! In a rolling update two agents of a node are registered at once, and the kubelet calls the
//! one that came last. Until that one is the only one it hands calls on, so that none is lost
//! between the two, and none waits for the update.

use super::driver::Driver;
use super::health::Monitor;
use crate::Config;
use futures::stream::BoxStream;
use proto::dra::dra_plugin_client::DraPluginClient;
use proto::dra::dra_plugin_server::DraPlugin;
use proto::dra::{
    NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};
use proto::dra_health::dra_resource_health_server::DraResourceHealth;
use proto::dra_health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// The kubelet allows 45 s for a call.
const PATIENCE: Duration = Duration::from_secs(40);
/// Between two tries, while neither agent answers.
const AGAIN: Duration = Duration::from_millis(100);
/// For an agent of this node to take a connection.
const CONNECTED: Duration = Duration::from_secs(1);
/// Marks a call that was passed on once: it is not passed on again.
const HANDED_ON: &str = "aliquot-handed-on";

/// The kubelet's counterpart.
#[derive(Clone)]
pub struct Service {
    /// Paths.
    pub config: Arc<Config>,
    /// `None` while another agent of this node has not ended.
    pub driver: watch::Receiver<Option<Driver>>,
    /// Ends what waits.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}

impl Service {
    /// Lets `own` answer, or `other`: whichever of the two agents serves this node.
    async fn answer<T: Clone, R>(
        &self,
        request: Request<T>,
        own: impl AsyncFn(Driver, T) -> Result<R, Status>,
        other: impl AsyncFn(DraPluginClient<Channel>, Request<T>) -> Result<R, Status>,
    ) -> Result<R, Status> {
        let handed_on = request.metadata().contains_key(HANDED_ON);
        let request = request.into_inner();
        let until = Instant::now() + PATIENCE;
        let mut driver = self.driver.clone();
        loop {
            let now = driver.borrow_and_update().clone();
            if let Some(driver) = now {
                let answer = own(driver, request).await;
                // Calls that its end interrupts get an error for each claim: the kubelet repeats
                // them.
                if handed_on && self.stop.is_cancelled() {
                    return Err(Status::unavailable("this agent is ending"));
                }
                return answer;
            }
            if handed_on || Instant::now() >= until || self.stop.is_cancelled() {
                return Err(Status::unavailable(
                    "this agent waits until the previous one has ended",
                ));
            }
            for socket in self.others() {
                let Ok(client) = connect(&socket).await else {
                    continue;
                };
                let mut handed = Request::new(request.clone());
                let mark = tonic::metadata::MetadataValue::from_static("1");
                handed.metadata_mut().insert(HANDED_ON, mark);
                // One that is just ending breaks off what it does; this one does it again.
                if let Ok(answer) = other(client, handed).await {
                    return Ok(answer);
                }
            }
            let _ = timeout(AGAIN, driver.changed()).await;
        }
    }

    /// Sockets of other agents of this node.
    fn others(&self) -> Vec<PathBuf> {
        let own = self.config.dra_socket();
        let folder = own.parent().map(sockets);
        let mut others = folder.unwrap_or_default();
        others.retain(|socket| *socket != own);
        others
    }
}

/// The sockets in a folder.
fn sockets(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|of| of == "sock"))
        .collect()
}

async fn connect(socket: &Path) -> Result<DraPluginClient<Channel>, tonic::transport::Error> {
    let address = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(address)?.connect_timeout(CONNECTED);
    Ok(DraPluginClient::new(endpoint.connect().await?))
}

/// Removes what agents left that were killed: each has names of its own. Those that answer stay.
pub async fn sweep(config: &Config) {
    let (endpoint, registry) = (config.dra_socket(), config.dra_registration_socket());
    let mut left = endpoint.parent().map(sockets).unwrap_or_default();
    let registered = registry.parent().map(sockets).unwrap_or_default();
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| {
            name.starts_with(proto::names::dra::DRIVER) && name.ends_with("-reg.sock")
        })
    };
    left.extend(registered.into_iter().filter(ours));
    for socket in left {
        if socket == endpoint || socket == registry {
            continue;
        }
        let Err(error) = UnixStream::connect(&socket).await else {
            continue;
        };
        if error.kind() == io::ErrorKind::ConnectionRefused {
            tracing::info!(socket = %socket.display(), "removed the socket of a former agent");
            let _ = std::fs::remove_file(&socket);
        }
    }
}

#[tonic::async_trait]
impl DraPlugin for Service {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let own = async |driver: Driver, request| driver.prepare_all(request).await;
        let other = async |mut client: DraPluginClient<Channel>, request| {
            let answer = client.node_prepare_resources(request).await;
            answer.map(Response::into_inner)
        };
        let answer = self.answer(request, own, other).await;
        answer.map(Response::new)
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let own = async |driver: Driver, request| driver.unprepare_all(request).await;
        let other = async |mut client: DraPluginClient<Channel>, request| {
            let answer = client.node_unprepare_resources(request).await;
            answer.map(Response::into_inner)
        };
        let answer = self.answer(request, own, other).await;
        answer.map(Response::new)
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Service {
    type NodeWatchResourcesStream = BoxStream<'static, Result<NodeWatchResourcesResponse, Status>>;

    /// The previous agent has a stream of its own: nothing is sent until it has ended.
    async fn node_watch_resources(
        &self,
        request: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut driver = self.driver.clone();
        let driver = tokio::select! {
            driver = driver.wait_for(Option::is_some) => driver.ok().and_then(|now| now.clone()),
            () = self.stop.cancelled() => None,
        };
        let driver = driver.ok_or_else(|| Status::unavailable("the agent is stopping"))?;
        let monitor = Monitor {
            state: driver.pre_start.state.clone(),
            stop: self.stop.clone(),
        };
        monitor.node_watch_resources(request).await
    }
}
