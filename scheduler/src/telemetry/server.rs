//! gRPC: a stream from its token to its end.

use super::caller::{Callers, peer_of};
use super::presence::{NodeStream, Presence, SILENCE};
use super::session::Session;
use super::{AgentEventSender, AgentMeters};
use proto::telemetry::telemetry_server::Telemetry;
use proto::telemetry::{AgentMessage, SchedulerMessage};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// Pending acknowledgements for a slow agent; more are dropped, because each includes the earlier
/// ones.
const ANSWERS: usize = 16;

/// Between two messages of one stream. An agent gathers what changes for longer than that.
const PAUSE: Duration = Duration::from_millis(20);

/// The service.
pub(super) struct Service {
    pub(super) callers: Callers,
    pub(super) presence: Presence,
    pub(super) heard: AgentEventSender,
    pub(super) meters: Arc<AgentMeters>,
    pub(super) stop: CancellationToken,
}

type Answer = Result<SchedulerMessage, Status>;

#[tonic::async_trait]
impl Telemetry for Service {
    type ReportStream = ReceiverStream<Answer>;

    async fn report(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        if self.heard.is_closed() {
            return Err(Status::unavailable("the scheduler stops"));
        }
        let peer = peer_of(request.extensions());
        let caller = self.callers.node(request.metadata(), peer).await;
        let node = caller.inspect_err(|status| {
            self.meters.refused(status.code());
            tracing::warn!(
                ?peer,
                code = ?status.code(),
                "telemetry refused: {}",
                status.message()
            );
        })?;
        let (answers, stream) = mpsc::channel(ANSWERS);
        let speaker = self.presence.enter(&node);
        let stop = self.stop.clone();
        let meters = Arc::clone(&self.meters);
        tokio::spawn(hear(
            node,
            request.into_inner(),
            speaker,
            answers,
            meters,
            stop,
        ));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// One stream, and the time after it in which another one may follow.
async fn hear(
    node: String,
    mut messages: Streaming<AgentMessage>,
    speaker: NodeStream,
    answers: mpsc::Sender<Answer>,
    meters: Arc<AgentMeters>,
    stop: CancellationToken,
) {
    tracing::info!(node, "telemetry begins");
    let mut session = Session::new(node.clone());
    let (ended, grace) = loop {
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => {
                let stops = Status::unavailable("the scheduler stops");
                let _ = answers.try_send(Err(stops));
                return;
            }
            () = speaker.superseded() => {
                let newer = "another stream speaks for this node";
                break (Some(Status::aborted(newer)), Duration::ZERO);
            }
            message = timeout(SILENCE, messages.message()) => message,
        };
        match message {
            Err(_) => {
                let silent = format!("nothing heard for {} s", SILENCE.as_secs());
                break (Some(Status::deadline_exceeded(silent)), Duration::ZERO);
            }
            Ok(Err(status)) => {
                tracing::debug!(node, %status, "telemetry was interrupted");
                break (None, SILENCE);
            }
            Ok(Ok(None)) => break (None, SILENCE),
            Ok(Ok(Some(message))) => match session.take(message) {
                Err(status) => break (Some(status), SILENCE),
                Ok(heard) => {
                    if let Some(heard) = heard {
                        speaker.pass(heard);
                    }
                    let _ = answers.try_send(Ok(SchedulerMessage {
                        acknowledged: session.taken(),
                        release: proto::names::RELEASE.to_owned(),
                    }));
                    // What comes faster waits at the agent: HTTP/2 takes no more than it may.
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    };
    let why = ended.as_ref().map_or("the agent ended it", Status::message);
    tracing::info!(node, why, "telemetry ends");
    if let Some(status) = ended {
        meters.refused(status.code());
        tracing::warn!(node, code = ?status.code(), "a message of the agent of {node} is refused: {}", status.message());
        let _ = timeout(SILENCE, answers.send(Err(status))).await;
    }
    drop(answers);
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = speaker.leave(grace) => {}
    }
}
