//! Streams to schedulers, over TLS, against schedulers of the test's own.

use crate::{sample, until};
use agent::Config;
use agent::node::{Note, RefusedGrant, State};
use agent::telemetry::{TelemetryInputs, run};
use api::Mib;
use api::grant::PodIdentity;
use proto::telemetry::agent_message::Body;
use proto::telemetry::telemetry_server::{Telemetry, TelemetryServer};
use proto::telemetry::{AgentMessage, SchedulerMessage};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

/// A CA and a certificate for 127.0.0.1 that it signed.
struct Authority {
    ca: String,
    identity: Identity,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()])
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap();
        Self {
            ca: issuer.pem(),
            identity: Identity::from_pem(leaf.pem(), key.serialize_pem()),
        }
    }
}

/// A scheduler that passes every message on, and ends all streams on request.
#[derive(Clone)]
struct Scheduler {
    messages: channel::Sender<AgentMessage>,
    refused: Arc<AtomicUsize>,
    cut: watch::Receiver<u32>,
}

#[tonic::async_trait]
impl Telemetry for Scheduler {
    type ReportStream = UnboundedReceiverStream<Result<SchedulerMessage, Status>>;

    async fn report(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::ReportStream>, Status> {
        let token = request.metadata().get("authorization");
        if token.is_none_or(|token| token != "Bearer good") {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(Status::unauthenticated("the token is not good"));
        }
        let mut incoming = request.into_inner();
        let (answers, outgoing) = tokio::sync::mpsc::unbounded_channel();
        let messages = self.messages.clone();
        let mut cut = self.cut.clone();
        cut.mark_unchanged();
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = incoming.message() => message,
                    _ = cut.changed() => break,
                };
                let Ok(Some(message)) = message else { break };
                let acknowledged = message.sequence;
                let _ = messages.send(message);
                let _ = answers.send(Ok(SchedulerMessage {
                    acknowledged,
                    ..SchedulerMessage::default()
                }));
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(outgoing)))
    }
}

/// A scheduler, and an agent's telemetry that connects to it.
struct Fixture {
    folder: tempfile::TempDir,
    state: watch::Sender<Arc<State>>,
    notes: channel::Sender<Note>,
    messages: channel::Receiver<AgentMessage>,
    /// Streams that were refused for their token, connections that were made.
    refused: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    cut: watch::Sender<u32>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Fixture {
    async fn new(token: &str, state: State) -> Self {
        let authority = Authority::new();
        let state = State {
            trusted_ca: authority.ca.clone(),
            ..state
        };
        Self::with(&authority, token, state).await
    }

    async fn with(authority: &Authority, token: &str, state: State) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), token).unwrap();
        let (messages_in, messages) = channel::unbounded();
        let (cut, cut_in) = watch::channel(0);
        let refused = Arc::new(AtomicUsize::new(0));
        let connections = Arc::new(AtomicUsize::new(0));
        let scheduler = Scheduler {
            messages: messages_in,
            refused: Arc::clone(&refused),
            cut: cut_in,
        };
        let stop = CancellationToken::new();
        let counter = Arc::clone(&connections);
        let (address, server) = serve(scheduler, authority, counter, stop.clone()).await;
        let (state, receiver) = watch::channel(Arc::new(state));
        let (notes, notes_in) = channel::unbounded();
        let config = Config {
            telemetry_endpoint: Some(address.to_string()),
            telemetry_token_file: folder.path().join("token"),
            ..Config::for_node("n1")
        };
        // There is no API server: the status cannot be written, and that delays nothing.
        let nobody = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let inputs = TelemetryInputs {
            config: Arc::new(config),
            client: kube::Client::try_from(nobody).unwrap(),
            state: receiver,
            notes: notes_in,
            stop: stop.clone(),
            lengths: channel::Lengths::default(),
        };
        let telemetry = tokio::spawn(async move { run(inputs).await.unwrap() });
        Self {
            folder,
            state,
            notes,
            messages,
            refused,
            connections,
            cut,
            stop,
            tasks: vec![server, telemetry],
        }
    }

    async fn next(&mut self) -> AgentMessage {
        tokio::time::timeout(Duration::from_secs(20), self.messages.recv())
            .await
            .expect("a message within 20 s")
            .unwrap()
    }

    fn change(&self, used: u64) {
        self.state.send_modify(|state| {
            Arc::make_mut(state).inventory.cards[0].used = Mib(used);
        });
    }

    async fn end(self) {
        self.stop.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

async fn serve(
    scheduler: Scheduler,
    authority: &Authority,
    connections: Arc<AtomicUsize>,
    stop: CancellationToken,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = ServerTlsConfig::new().identity(authority.identity.clone());
    let incoming = TcpListenerStream::new(listener).map(move |connection| {
        connections.fetch_add(1, Ordering::SeqCst);
        connection
    });
    let server = Server::builder()
        .tls_config(tls)
        .unwrap()
        .add_service(TelemetryServer::new(scheduler))
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned());
    (address, tokio::spawn(async move { server.await.unwrap() }))
}

async fn at_least(counter: &AtomicUsize, count: usize) {
    until("it is counted", async || {
        (counter.load(Ordering::SeqCst) >= count).then_some(())
    })
    .await;
}

fn used(message: &AgentMessage) -> Option<u64> {
    match &message.body {
        Some(Body::State(state)) => Some(state.gpus[0].memory_used_mib),
        _ => None,
    }
}

fn refusal(reason: &str) -> Note {
    Note::Refused(RefusedGrant {
        pod: PodIdentity {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "p".into(),
        },
        container: "main".into(),
        decision: "d".into(),
        reason: reason.into(),
        is_final: true,
    })
}

fn refused(message: &AgentMessage) -> Option<&str> {
    match &message.body {
        Some(Body::Refusal(refusal)) => Some(&refusal.reason),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_message_is_the_whole_state_and_the_numbers_have_no_gap() {
    let mut scene = Fixture::new("good\n", sample::state()).await;
    let first = scene.next().await;
    assert_eq!((first.sequence, used(&first)), (1, Some(300)));
    assert!(!first.agent_instance.is_empty());
    for (sequence, value) in [(2, 1000), (3, 2000), (4, 3000)] {
        scene.change(value);
        let message = scene.next().await;
        assert_eq!((message.sequence, used(&message)), (sequence, Some(value)));
        assert_eq!(message.agent_instance, first.agent_instance);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_changes_is_sent_as_few_and_ends_with_the_last() {
    let mut scene = Fixture::new("good", sample::state()).await;
    scene.next().await;
    let started = Instant::now();
    for value in 1..=2000 {
        scene.change(value);
        tokio::task::yield_now().await;
    }
    let mut count = 0;
    loop {
        count += 1;
        if used(&scene.next().await) == Some(2000) {
            break;
        }
    }
    let most = 2 + started.elapsed().as_millis() / 50;
    assert!(count <= most, "{count} messages, {most} at most");
    // The same state again is nothing to send; the next message is the other one.
    scene.change(2000);
    scene.change(7);
    assert_eq!(used(&scene.next().await), Some(7));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_broken_by_a_heartbeat() {
    let mut scene = Fixture::new("good", sample::state()).await;
    scene.next().await;
    let since = Instant::now();
    let message = scene.next().await;
    assert!(
        matches!(message.body, Some(Body::Heartbeat(_))),
        "{message:?}"
    );
    assert_eq!(message.sequence, 2);
    let silence = since.elapsed().as_secs_f64();
    assert!((4.5..7.0).contains(&silence), "{silence}");
    scene.end().await;
}

/// SM time changes every second: a message for each change would be one per node and second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_all_the_time_is_sent_in_place_of_a_heartbeat_and_not_before() {
    let mut scene = Fixture::new("good", sample::state()).await;
    scene.next().await;
    let since = Instant::now();
    let busy = |percent: u32| {
        scene.state.send_modify(|state| {
            let ledger = &mut Arc::make_mut(state).ledger;
            let keys: Vec<_> = ledger.all().map(agent::ledger::Share::key).collect();
            for key in keys {
                ledger.update(&key, |share| {
                    (share.sm_percent, share.idle_minutes) = (Some(percent), Some(percent));
                });
            }
        });
    };
    for percent in 50..80 {
        busy(percent);
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let message = scene.next().await;
    let Some(Body::State(state)) = &message.body else {
        panic!("{message:?}");
    };
    assert_eq!(
        (
            message.sequence,
            state.shares[0].sm_percent,
            state.shares[0].idle_minutes
        ),
        (2, Some(79), Some(79))
    );
    let silence = since.elapsed().as_secs_f64();
    assert!((4.5..7.0).contains(&silence), "{silence}");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_was_cut_is_opened_again_with_the_whole_state() {
    let mut scene = Fixture::new("good", sample::state()).await;
    let first = scene.next().await;
    for round in 1..=3 {
        scene.cut.send_replace(round);
        let again = scene.next().await;
        assert_eq!((again.sequence, used(&again)), (1, Some(300)));
        assert_eq!(again.agent_instance, first.agent_instance);
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_is_read_again_before_the_next_try() {
    let mut scene = Fixture::new("bad", sample::state()).await;
    at_least(&scene.refused, 2).await;
    assert!(scene.messages.try_recv().is_err());
    std::fs::write(scene.folder.path().join("token"), "good").unwrap();
    assert_eq!(scene.next().await.sequence, 1);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_said_before_the_node_is_known() {
    let mut unknown = sample::state();
    unknown.ready.cluster = false;
    let mut scene = Fixture::new("good", unknown).await;
    scene.change(5);
    assert_eq!(scene.connections.load(Ordering::SeqCst), 0);
    scene.state.send_modify(|state| {
        let state = Arc::make_mut(state);
        state.inventory.cards[0].used = Mib(6);
        state.ready.cluster = true;
    });
    let first = scene.next().await;
    assert_eq!((first.sequence, used(&first)), (1, Some(6)));
    assert_eq!(scene.connections.load(Ordering::SeqCst), 1);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_reaches_a_scheduler_and_the_one_that_comes_after_it() {
    let mut scene = Fixture::new("good", sample::state()).await;
    scene.next().await;
    scene.notes.send(refusal("the card is taken")).unwrap();
    assert_eq!(refused(&scene.next().await), Some("the card is taken"));
    scene.cut.send_replace(1);
    // The state first: a refusal refers to it.
    assert_eq!(used(&scene.next().await), Some(300));
    let again = scene.next().await;
    assert_eq!(
        (again.sequence, refused(&again)),
        (2, Some("the card is taken"))
    );
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_another_authority_vouches_for_hears_nothing() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let state = State {
        trusted_ca: ours.ca.clone(),
        ..sample::state()
    };
    let mut scene = Fixture::with(&theirs, "good", state).await;
    // Once the right authority is published, the same scheduler is trusted.
    scene.change(9);
    at_least(&scene.connections, 2).await;
    assert!(scene.messages.try_recv().is_err());
    scene.state.send_modify(|state| {
        Arc::make_mut(state).trusted_ca.clone_from(&theirs.ca);
    });
    assert_eq!(used(&scene.next().await), Some(9));
    scene.end().await;
}
