//! An MPS supervisor that makes every server ready at once, unless the test holds it back.

use proto::mps::mps_server::{Mps, MpsServer};
use proto::mps::{
    CardState, Observation, ObserveRequest, Plan, ServerPhase, ServerState, TerminateRequest,
    TerminateResponse,
};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

#[derive(Clone, Debug)]
pub struct Supervisor {
    pub phase: Arc<Mutex<ServerPhase>>,
    pub plan: Arc<Mutex<Plan>>,
    /// Every plan that was asked for, in order.
    pub plans: Arc<Mutex<Vec<Plan>>>,
    /// Every request to break off the work of clients.
    pub terminated: Arc<Mutex<Vec<TerminateRequest>>>,
}

impl Supervisor {
    pub fn serve(socket: &Path, stop: CancellationToken) -> Self {
        let supervisor = Self {
            phase: Arc::new(Mutex::new(ServerPhase::Ready)),
            plan: Arc::default(),
            plans: Arc::default(),
            terminated: Arc::default(),
        };
        let listener = UnixListener::bind(socket).unwrap();
        let service = MpsServer::new(supervisor.clone());
        tokio::spawn(async move {
            Server::builder()
                .add_service(service)
                .serve_with_incoming_shutdown(
                    UnixListenerStream::new(listener),
                    stop.cancelled_owned(),
                )
                .await
                .unwrap();
        });
        supervisor
    }

    fn observation(&self) -> Observation {
        let phase = *self.phase.lock().unwrap();
        let plan = self.plan.lock().unwrap();
        let servers = plan.servers.iter().map(|server| ServerState {
            name: server.name.clone(),
            gpu_uuids: server.gpu_uuids.clone(),
            phase: phase.into(),
            observed_default_memory_mib: server.default_memory_mib,
            ..ServerState::default()
        });
        let cards = plan.cards.iter().map(|card| CardState {
            uuid: card.uuid.clone(),
            ready: true,
            ..CardState::default()
        });
        Observation {
            servers: servers.collect(),
            cards: cards.collect(),
            ..Observation::default()
        }
    }
}

#[tonic::async_trait]
impl Mps for Supervisor {
    async fn ensure(&self, request: Request<Plan>) -> Result<Response<Observation>, Status> {
        let plan = request.into_inner();
        self.plans.lock().unwrap().push(plan.clone());
        *self.plan.lock().unwrap() = plan;
        Ok(Response::new(self.observation()))
    }

    async fn observe(&self, _: Request<ObserveRequest>) -> Result<Response<Observation>, Status> {
        Ok(Response::new(self.observation()))
    }

    type WatchStream = tokio_stream::Pending<Result<Observation, Status>>;

    /// Says nothing: the agent asks every now and then as well.
    async fn watch(
        &self,
        _: Request<ObserveRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(tokio_stream::pending()))
    }

    async fn terminate_clients(
        &self,
        request: Request<TerminateRequest>,
    ) -> Result<Response<TerminateResponse>, Status> {
        let request = request.into_inner();
        self.terminated.lock().unwrap().push(request.clone());
        Ok(Response::new(TerminateResponse {
            terminated: request.pids,
        }))
    }
}
