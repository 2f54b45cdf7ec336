//! The agent's side of the node-local service.
//!
//! In: a plan. Out: the actual state. Connects on demand, and again after the supervisor has
//! restarted; a call without a supervisor fails at once.

use super::phase::read;
use super::sequence::PlanSequence;
use futures::{Stream, TryStreamExt as _};
use proto::mps::mps_client::MpsClient;
use proto::mps::{Observation, ObserveRequest, Plan, TerminateRequest};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// `Ensure` answers within two seconds, and so does a card's daemon that hangs.
const LIMIT: Duration = Duration::from_secs(10);

/// Asks the MPS supervisor of this node.
#[derive(Clone, Debug)]
pub struct SupervisorClient {
    service: MpsClient<Channel>,
    /// Distinguishes this client's plans from another's.
    client: u128,
    plans: Arc<AtomicU64>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// It does not run, or not yet: try again.
    #[error("the MPS supervisor cannot be reached: {0}")]
    Unreachable(String),
    /// The plan is wrong; the same one will be refused again.
    #[error("the MPS supervisor refuses: {0}")]
    Refused(String),
}

impl SupervisorClient {
    /// On this socket. Does not connect yet.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a path that cannot be an address.
    pub fn new(socket: &Path) -> Result<Self, ClientError> {
        let address = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(address)
            .map_err(|error| ClientError::Refused(error.to_string()))?
            .timeout(LIMIT);
        Ok(Self {
            service: MpsClient::new(endpoint.connect_lazy()),
            client: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_nanos()),
            plans: Arc::default(),
        })
    }

    /// Applies the plan and returns the resulting state after at most two seconds. A caller may
    /// drop the call for one with a newer plan; the newer plan applies, whichever arrives first.
    pub async fn ensure(&self, plan: Plan) -> Result<Observation, ClientError> {
        let turn = PlanSequence {
            client: self.client,
            plan: self.plans.fetch_add(1, Ordering::Relaxed),
        };
        let mut request = Request::new(plan);
        turn.mark(request.metadata_mut());
        let answer = self.service.clone().ensure(request).await?;
        Ok(read(answer.into_inner()))
    }

    /// What is.
    pub async fn observe(&self) -> Result<Observation, ClientError> {
        let answer = self.service.clone().observe(ObserveRequest {}).await?;
        Ok(read(answer.into_inner()))
    }

    /// What is, now and whenever it changes; ends when the supervisor does.
    pub async fn watch(
        &self,
    ) -> Result<impl Stream<Item = Result<Observation, Status>> + use<>, ClientError> {
        // The endpoint's limit is for the answer's beginning.
        let answer = self.service.clone().watch(ObserveRequest {}).await?;
        Ok(answer.into_inner().map_ok(read))
    }

    /// Breaks off the GPU work of these processes, on the host's pids; answers which.
    pub async fn terminate(&self, server: &str, pids: Vec<u32>) -> Result<Vec<u32>, ClientError> {
        let request = TerminateRequest {
            server: server.to_owned(),
            pids,
        };
        let answer = self.service.clone().terminate_clients(request).await?;
        Ok(answer.into_inner().terminated)
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        let text = status.message().to_owned();
        match status.code() {
            Code::InvalidArgument => Self::Refused(text),
            _ => Self::Unreachable(text),
        }
    }
}
