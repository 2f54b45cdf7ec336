//! The node-local service: a unix socket of mode 0600 in front of the supervisor.
//!
//! In: plans and questions over gRPC. Out: what is. One supervisor per run directory: a
//! lock file says so.

use super::cgroup::DaemonCgroups;
use super::daemon::{Terminate, Tools};
use super::place::Mounting;
use super::process::Processes;
use super::program::Program;
use super::sequence::PlanSequence;
use super::smi::Smi;
use super::supervisor::{PlanError, Request as Ask, Supervisor};
use crate::config::Config;
use api::Mib;
use driver_root::DriverRoot;
use futures::StreamExt as _;
use nix::fcntl::{Flock, FlockArg};
use proto::mps::mps_server::{Mps, MpsServer};
use proto::mps::{
    Observation, ObserveRequest, Plan, ServerPhase, TerminateRequest, TerminateResponse,
};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::info;

/// How long `Ensure` waits for a plan to be carried out before it answers what is.
const SETTLE: Duration = Duration::from_secs(2);

/// Why the supervisor does not run. All end the process.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A second one would pull at the same daemons.
    #[error("another MPS supervisor holds {}", .0.display())]
    Running(PathBuf),
    /// Socket or lock file.
    #[error("cannot make {}: {source}", path.display())]
    Io {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A flag of the form `KEY=VALUE` is not.
    #[error("{0:?} is not KEY=VALUE")]
    Env(String),
    /// The server ended by itself.
    #[error("the MPS service ended: {0}")]
    Server(#[from] tonic::transport::Error),
}

/// `aliquot-agent mps`: serves until `stop`, then lets idle daemons end.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(config: Config, stop: CancellationToken) -> Result<(), ServeError> {
    let base = config.mps_dir();
    let make = |path: &Path, source| ServeError::Io {
        path: path.to_owned(),
        source,
    };
    fs::create_dir_all(&base).map_err(|e| make(&base, e))?;
    let _lock = lock(&config.run_dir.join("mps.lock"))?;
    let tools = tools(&config)?;
    let supervisor = Supervisor::new(tools);
    let socket = config.mps_socket();
    let listener = listen(&socket).map_err(|e| make(&socket, e))?;
    info!(socket = %socket.display(), "MPS service");
    let (asks, asks_in) = mpsc::channel(16);
    let service = Service {
        asks,
        turn: Mutex::default(),
        view: supervisor.view(),
    };
    let supervising = supervisor.run(asks_in, stop.clone());
    let serving = tonic::transport::Server::builder()
        .add_service(MpsServer::new(service))
        .serve_with_incoming_shutdown(
            UnixListenerStream::new(listener),
            stop.clone().cancelled_owned(),
        );
    // The end of either is the end of both.
    let serving = async {
        let ended = serving.await;
        stop.cancel();
        ended
    };
    let ((), served) = tokio::join!(supervising, serving);
    // The lock is still held: no other process's socket is removed.
    let _ = fs::remove_file(&socket);
    Ok(served?)
}

/// NVIDIA's programs, and the environment they get.
fn tools(config: &Config) -> Result<Tools, ServeError> {
    let mut extra = Vec::new();
    for pair in &config.mps_env {
        let (name, value) = pair
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| ServeError::Env(pair.clone()))?;
        extra.push((OsString::from(name), OsString::from(value)));
    }
    let here = config.driver_root_here();
    let root = DriverRoot::at(here);
    let program = |path| {
        let own = std::env::vars_os();
        Program::new(root.clone(), path, own, &extra, config.mps_dir())
    };
    Ok(Tools {
        control: program(config.mps_control()),
        smi: Smi::new(program(here.join("usr/bin/nvidia-smi"))),
        processes: Processes::new("/proc"),
        base: config.mps_dir(),
        cgroups: DaemonCgroups::own(),
        mounting: Mounting {
            on: config.mps_mounts,
            shm: Mib(config.mps_shm_mib),
        },
    })
}

fn lock(path: &Path) -> Result<Flock<File>, ServeError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|source| ServeError::Io {
            path: path.to_owned(),
            source,
        })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| ServeError::Running(path.to_owned()))
}

/// Bound under another name, closed to others, then put in place of an older one: at no
/// time can anyone else connect.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let mut temporary = socket.as_os_str().to_owned();
    temporary.push("~");
    let temporary = PathBuf::from(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&temporary)?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
    fs::rename(&temporary, socket)?;
    Ok(listener)
}

/// The service.
#[derive(Debug)]
struct Service {
    asks: mpsc::Sender<Ask>,
    /// Of the plan that was passed on last.
    turn: Mutex<Option<PlanSequence>>,
    view: watch::Receiver<Observation>,
}

#[tonic::async_trait]
impl Mps for Service {
    async fn ensure(&self, request: Request<Plan>) -> Result<Response<Observation>, Status> {
        let turn = PlanSequence::of(request.metadata());
        let plan = request.into_inner();
        let names: Vec<String> = plan.servers.iter().map(|s| s.name.clone()).collect();
        let cards: Vec<String> = plan.cards.iter().map(|c| c.uuid.clone()).collect();
        let (reply, answer) = oneshot::channel();
        {
            // Held until it is passed on, so that the order checked here is the order there.
            let mut last = self.turn.lock().await;
            let late = turn
                .zip(*last)
                .is_some_and(|(turn, last)| turn.is_before(last));
            if late {
                return Err(Status::aborted("a newer plan has come before this one"));
            }
            *last = turn;
            self.ask(Ask::Ensure(plan, reply)).await?;
        }
        answer
            .await
            .map_err(|_| ending())?
            .map_err(|error: PlanError| Status::invalid_argument(error.to_string()))?;
        let mut view = self.view.clone();
        let settled = view.wait_for(|view| is_settled(view, &names, &cards));
        // Late is not wrong: the answer says what is.
        let _ = tokio::time::timeout(SETTLE, settled).await;
        let observation = self.view.borrow().clone();
        Ok(Response::new(observation))
    }

    async fn observe(&self, _: Request<ObserveRequest>) -> Result<Response<Observation>, Status> {
        let observation = self.view.borrow().clone();
        Ok(Response::new(observation))
    }

    type WatchStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<Observation, Status>> + Send>>;

    async fn watch(
        &self,
        _: Request<ObserveRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let stream = WatchStream::new(self.view.clone()).map(Ok);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn terminate_clients(
        &self,
        request: Request<TerminateRequest>,
    ) -> Result<Response<TerminateResponse>, Status> {
        let TerminateRequest { server, pids } = request.into_inner();
        let (reply, answer) = oneshot::channel();
        let ask = Ask::Terminate(server.clone(), Terminate { pids, reply });
        self.ask(ask).await?;
        match answer.await {
            Ok(terminated) => Ok(Response::new(TerminateResponse { terminated })),
            Err(_) => Err(Status::unavailable(format!(
                "server {server:?} does not run or cannot be asked"
            ))),
        }
    }
}

impl Service {
    async fn ask(&self, ask: Ask) -> Result<(), Status> {
        self.asks.send(ask).await.map_err(|_| ending())
    }
}

fn ending() -> Status {
    Status::unavailable("the MPS supervisor is ending")
}

/// Whether nothing more will happen soon: every server that is named is up or cannot be,
/// and nothing else is on its way out but for its clients.
fn is_settled(view: &Observation, names: &[String], cards: &[String]) -> bool {
    let named = names.iter().all(|name| {
        view.servers.iter().any(|server| {
            let up_or_down = matches!(
                server.phase(),
                ServerPhase::Ready | ServerPhase::Dead | ServerPhase::ServerFault
            );
            server.name == *name && up_or_down
        })
    });
    let others = view
        .servers
        .iter()
        .filter(|server| !names.contains(&server.name))
        .all(|server| match server.phase() {
            ServerPhase::Dead | ServerPhase::ServerFault => true,
            ServerPhase::Draining => !server.clients.is_empty(),
            _ => false,
        });
    let sliced = cards.iter().all(|uuid| {
        let mut seen = view.cards.iter();
        seen.any(|card| card.uuid == *uuid && (card.ready || !card.reason.is_empty()))
    });
    named && others && sliced
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::mps::{Client, ServerState};

    #[tokio::test]
    async fn a_plan_that_arrives_after_a_newer_one_is_not_handed_on() {
        let (asks, mut handed) = mpsc::channel(4);
        let (_out, view) = watch::channel(Observation::default());
        let service = Service {
            asks,
            turn: Mutex::default(),
            view,
        };
        tokio::spawn(async move {
            while let Some(ask) = handed.recv().await {
                if let Ask::Ensure(_, reply) = ask {
                    let _ = reply.send(Ok(()));
                }
            }
        });
        for (client, plan, taken) in [(1, 2, true), (1, 1, false), (1, 3, true), (2, 0, true)] {
            let mut call = Request::new(Plan::default());
            PlanSequence { client, plan }.mark(call.metadata_mut());
            let answer = service.ensure(call).await;
            assert_eq!(answer.is_ok(), taken, "{client}/{plan}: {answer:?}");
        }
    }

    #[test]
    fn a_plan_is_settled_when_its_servers_are_up_and_others_wait_only_for_clients() {
        let server = |name: &str, phase: ServerPhase, clients: usize| ServerState {
            name: name.into(),
            phase: phase.into(),
            clients: vec![Client::default(); clients],
            ..ServerState::default()
        };
        let names = ["a".to_owned()];
        let settled = |servers: Vec<ServerState>| {
            let seen = Observation {
                servers,
                ..Observation::default()
            };
            is_settled(&seen, &names, &[])
        };
        assert!(!settled(vec![]));
        assert!(!settled(vec![server("a", ServerPhase::Starting, 0)]));
        assert!(settled(vec![server("a", ServerPhase::Ready, 0)]));
        assert!(settled(vec![server("a", ServerPhase::Dead, 0)]));
        assert!(!settled(vec![
            server("a", ServerPhase::Ready, 0),
            server("b", ServerPhase::Draining, 0)
        ]));
        assert!(settled(vec![
            server("a", ServerPhase::Ready, 0),
            server("b", ServerPhase::Draining, 1)
        ]));
    }
}
