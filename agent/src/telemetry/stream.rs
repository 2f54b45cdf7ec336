//! One stream to one scheduler replica.
//!
//! In: the node's state and refusals, as watches. Out: a full state first, another one whenever it
//! changed, refusals, a heartbeat after five seconds of silence; sequence numbers without a gap.
//! The stream ends with the first error and is opened again, with pauses. The token is read again
//! each time, because the projected token rotates. It observes and never commands: nothing that the
//! scheduler sends changes the node.

use super::metrics::Meters;
use super::pace::Backoff;
use super::refusals::Refusals;
use super::report;
use crate::Config;
use crate::node::State;
use proto::telemetry::agent_message::Body;
use proto::telemetry::telemetry_client::TelemetryClient;
use proto::telemetry::{AgentMessage, Heartbeat, NodeState};
use std::future::pending;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};
use tracing::{debug, info, warn};

/// After so much silence a heartbeat is sent: more silence means loss.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Between two states; what changes in between is sent as one.
const COALESCE: Duration = Duration::from_millis(50);
/// For a connection, an answer to it, and for the peer to read what is sent.
const PATIENCE: Duration = Duration::from_secs(10);
/// A peer that disappeared silently is detected after twice this time.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How long to wait for NVML's first reading: "no cards" must not be reported only because none was
/// read yet.
const FIRST_LOOK: Duration = Duration::from_secs(10);

/// What all streams of an agent share.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Token, CA, name.
    pub config: Arc<Config>,
    /// Chosen at the agent's start.
    pub instance: String,
    /// The node.
    pub state: watch::Receiver<Arc<State>>,
    /// Grants that are not honoured.
    pub refusals: watch::Receiver<Refusals>,
    /// Counters.
    pub meters: Arc<Meters>,
    /// The agent's start, from which refusals count time.
    pub start: Instant,
    /// Name that the peer's certificate must carry.
    pub server_name: String,
}

/// Why a stream ended. Each is followed by another try.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("cannot read {}: {source}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the token in {} is not a valid header value", .0.display())]
    Token(PathBuf),
    #[error("cannot connect: {}", chain(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("the scheduler refuses: {} ({:?})", .0.message(), .0.code())]
    Refused(#[from] Status),
    #[error("the scheduler ended the stream")]
    Ended,
    #[error("the scheduler does not {what} within {} s", PATIENCE.as_secs())]
    Slow { what: &'static str },
}

/// The messages of one connection, numbered from 1 without a gap.
#[derive(Debug)]
struct Outbox {
    instance: String,
    sequence: u64,
    /// The last state that was sent.
    last_state: Option<NodeState>,
    /// Number of the last refusal.
    refused: u64,
}

impl Outbox {
    fn message(&mut self, body: Body) -> AgentMessage {
        self.sequence += 1;
        AgentMessage {
            sequence: self.sequence,
            agent_instance: self.instance.clone(),
            release: proto::names::RELEASE.to_owned(),
            body: Some(body),
        }
    }

    /// Returns a message with the state if it differs from the last one in more than the values that
    /// change all the time.
    fn state(&mut self, state: NodeState) -> Option<AgentMessage> {
        let last = self.last_state.as_ref();
        let is_news = last.is_none_or(|last| without_fast(last) != without_fast(&state));
        is_news.then(|| self.whole(state))
    }

    /// Returns the message that ends a silence: the state if any value differs, otherwise a heartbeat.
    fn beat(&mut self, state: NodeState) -> AgentMessage {
        if self.last_state.as_ref() == Some(&state) {
            return self.message(Body::Heartbeat(Heartbeat {}));
        }
        self.whole(state)
    }

    fn whole(&mut self, state: NodeState) -> AgentMessage {
        self.last_state = Some(state.clone());
        self.message(Body::State(state))
    }
}

/// Returns the state without SM time, and without how many minutes a share did no work.
fn without_fast(state: &NodeState) -> NodeState {
    let mut state = state.clone();
    for share in &mut state.shares {
        share.sm_percent = None;
        share.idle_minutes = share.idle_minutes.map(|minutes| minutes.min(1));
    }
    state
}

/// Keeps a stream to this address until `stop`.
pub async fn run(sources: Sources, address: SocketAddr, stop: CancellationToken) {
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
    let mut complaint = String::new();
    loop {
        let mut accepted = false;
        let error = tokio::select! {
            () = stop.cancelled() => return,
            error = session(&sources, address, &mut accepted) => error,
        };
        if accepted {
            sources.meters.disconnected();
            backoff.succeed();
            complaint.clear();
        }
        let pause = backoff.fail();
        let text = error.to_string();
        if text == complaint {
            debug!(%address, error = text, "telemetry");
        } else {
            warn!(%address, error = text, retry_ms = pause.as_millis(), "telemetry");
            complaint = text;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One connection, from its token to its end.
async fn session(sources: &Sources, address: SocketAddr, accepted: &mut bool) -> StreamError {
    match talk(sources, address, accepted).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

async fn talk(
    sources: &Sources,
    address: SocketAddr,
    accepted: &mut bool,
) -> Result<std::convert::Infallible, StreamError> {
    let mut state = sources.state.clone();
    let ca = first_ca(sources, &mut state).await?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(&sources.server_name);
    let channel = Endpoint::from_shared(format!("https://{address}"))?
        .tls_config(tls)?
        .connect_timeout(PATIENCE)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect()
        .await?;
    let mut outbox = Outbox {
        instance: sources.instance.clone(),
        sequence: 0,
        last_state: None,
        refused: 0,
    };
    let (out, messages) = mpsc::channel(8);
    let first = report::node_state(&state.borrow_and_update());
    send(&out, outbox.state(first)).await?;
    let mut last_state = Instant::now();
    let mut last_sent = last_state;
    let mut request = Request::new(ReceiverStream::new(messages));
    let token = read_token(&sources.config.telemetry_token_file)?;
    request.metadata_mut().insert("authorization", token);
    let mut client = TelemetryClient::new(channel);
    let answers = timeout(PATIENCE, client.report(request)).await;
    let mut answers = answers
        .map_err(|_| StreamError::Slow {
            what: "accept the stream",
        })??
        .into_inner();
    info!(%address, "telemetry connected");
    *accepted = true;
    sources.meters.connected();

    let mut refusals = sources.refusals.clone();
    refusals.mark_changed();
    let mut dirty = false;
    loop {
        let due = async {
            if dirty {
                sleep_until(last_state + COALESCE).await;
            } else {
                pending::<()>().await;
            }
        };
        tokio::select! {
            answer = answers.message() => match answer? {
                Some(answer) => debug!(%address, acknowledged = answer.acknowledged, "telemetry"),
                None => return Err(StreamError::Ended),
            },
            changed = state.changed(), if !dirty => {
                // The agent ends: so does this, by its stop.
                if changed.is_err() { pending::<()>().await; }
                dirty = true;
            }
            () = due => {
                dirty = false;
                let now = report::node_state(&state.borrow_and_update());
                if let Some(message) = outbox.state(now) {
                    send(&out, Some(message)).await?;
                    last_state = Instant::now();
                    last_sent = last_state;
                }
            }
            changed = refusals.changed() => {
                if changed.is_err() { pending::<()>().await; }
                let since_start = sources.start.elapsed();
                let (fresh, number) = refusals
                    .borrow_and_update()
                    .after(since_start, outbox.refused);
                outbox.refused = number;
                for refusal in fresh {
                    let message = outbox.message(Body::Refusal(refusal));
                    send(&out, Some(message)).await?;
                    last_sent = Instant::now();
                }
            }
            () = sleep_until(last_sent + HEARTBEAT) => {
                let now = report::node_state(&state.borrow());
                let message = outbox.beat(now);
                send(&out, Some(message)).await?;
                last_sent = Instant::now();
            }
        }
    }
}

async fn send(
    out: &mpsc::Sender<AgentMessage>,
    message: Option<AgentMessage>,
) -> Result<(), StreamError> {
    let Some(message) = message else {
        return Ok(());
    };
    match timeout(PATIENCE, out.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(StreamError::Ended),
        Err(_) => Err(StreamError::Slow { what: "read" }),
    }
}

/// The CA, once the agent knows enough of its node to report on it.
async fn first_ca(
    sources: &Sources,
    state: &mut watch::Receiver<Arc<State>>,
) -> Result<Vec<u8>, StreamError> {
    loop {
        {
            let state = state.borrow_and_update();
            if is_worth_telling(&state, sources.start.elapsed()) {
                match &sources.config.telemetry_ca_file {
                    Some(path) => return read(path),
                    None if !state.trusted_ca.is_empty() => {
                        return Ok(state.trusted_ca.clone().into_bytes());
                    }
                    None => {}
                }
            }
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { pending::<()>().await },
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

/// Whether the state is the node's and not just an agent's that has begun to look: shares
/// that it does not know yet are not gone.
pub fn is_worth_telling(state: &State, age: Duration) -> bool {
    state.ready.cluster && (state.ready.nvml || age >= FIRST_LOOK)
}

fn read_token(path: &Path) -> Result<MetadataValue<tonic::metadata::Ascii>, StreamError> {
    let bytes = read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut value: MetadataValue<_> = format!("Bearer {}", text.trim())
        .parse()
        .map_err(|_| StreamError::Token(path.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn read(path: &Path) -> Result<Vec<u8>, StreamError> {
    std::fs::read(path).map_err(|source| StreamError::File {
        path: path.to_owned(),
        source,
    })
}

/// An error with its causes: tonic's own line says no more than "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
