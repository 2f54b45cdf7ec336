//! How the kubelet finds the driver: it watches a folder, calls what listens there, and then
//! connects to the endpoint in the plugin's answer.

use super::authority;
use super::service::Service;
use crate::kubelet::session::bind;
use futures::StreamExt as _;
use proto::dra::dra_plugin_server::DraPluginServer;
use proto::dra_health::dra_resource_health_server::DraResourceHealthServer;
use proto::names::dra as names;
use proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use std::io;
use std::path::PathBuf;
use tokio::io::DuplexStream;
use tokio::net::UnixStream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Bytes under way between the kubelet and the registration server.
const UNDER_WAY: usize = 64 << 10;

/// Answers with this driver's name and versions.
#[derive(Debug)]
struct Registrar {
    endpoint: PathBuf,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: names::PLUGIN_TYPE.to_owned(),
            name: names::DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![
                names::SERVICE_V1.to_owned(),
                names::SERVICE_HEALTH.to_owned(),
            ],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = names::DRIVER, "registered");
        } else {
            tracing::error!(
                driver = names::DRIVER,
                error = status.error,
                "the kubelet refused the DRA driver"
            );
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Serves the driver, then says that it is there, until its `stop`. Both sockets go at the end,
/// so that the kubelet forgets a driver that is away.
///
/// # Errors
/// When a socket cannot be made or a server ends.
pub async fn run(service: Service) -> io::Result<()> {
    let endpoint = service.config.dra_socket();
    let registry = service.config.dra_registration_socket();
    let stop = service.stop.clone();
    for folder in [&endpoint, &registry]
        .iter()
        .filter_map(|path| path.parent())
    {
        std::fs::create_dir_all(folder)?;
    }
    let serve = Server::builder()
        .add_service(DraPluginServer::new(service.clone()))
        .add_service(DraResourceHealthServer::new(service))
        .serve_with_incoming_shutdown(
            UnixListenerStream::new(bind(&endpoint)?),
            stop.clone().cancelled_owned(),
        );
    let registrar = Registrar {
        endpoint: endpoint.clone(),
    };
    let calls = UnixListenerStream::new(bind(&registry)?).map(|stream| stream.map(lenient));
    let register = Server::builder()
        .add_service(RegistrationServer::new(registrar))
        .serve_with_incoming_shutdown(calls, stop.cancelled_owned());
    let ended = tokio::try_join!(serve, register);
    let _ = std::fs::remove_file(&registry);
    let _ = std::fs::remove_file(&endpoint);
    ended.map(drop).map_err(io::Error::other)
}

/// The kubelet's connection as HTTP/2 in Rust takes it.
fn lenient(stream: UnixStream) -> DuplexStream {
    let (near, far) = tokio::io::duplex(UNDER_WAY);
    tokio::spawn(async move {
        let (from, mut to) = stream.into_split();
        let (mut answers, calls) = tokio::io::split(far);
        let back = tokio::io::copy(&mut answers, &mut to);
        // The kubelet hangs up after two calls.
        tokio::select! {
            ended = authority::forward(from, calls) => if let Err(error) = ended {
                tracing::debug!(%error, "a registration call ended");
            },
            _ = back => {}
        }
    });
    near
}
