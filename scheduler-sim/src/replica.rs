//! One process of the scheduler, driven from outside: a runtime of its own with a paused
//! clock, which is let run up to a moment, or until it sends a request.
//!
//! So a replica can be suspended while time goes on, die between two instructions, and have a wrong
//! wall clock, all of it on one thread, in one order.

use crate::server::{Asked, TOKEN};
use crate::time::{Ms, Stamp};
use axum::Router;
use axum::body::{Body, Bytes};
use futures::FutureExt as _;
use http::{Request, Response};
use kube::Client;
use proto::telemetry::AgentMessage;
use proto::telemetry::telemetry_client::TelemetryClient;
use scheduler::clock::Wall;
use scheduler::serve::Endpoint;
use scheduler::{Config, Endpoints, RunError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Bytes of a watch, or why it broke.
pub type Line = Result<Bytes, io::Error>;

/// The result of a request for a replica.
#[derive(Debug)]
pub enum Reply {
    /// Status and body.
    Whole(u16, Vec<u8>),
    /// A watch.
    Stream(mpsc::UnboundedReceiver<Line>),
}

/// A request that a replica sent.
#[derive(Debug)]
pub struct Sent {
    /// Its requests.
    pub asked: Asked,
    /// Dropped: the connection broke. Closed: the replica does not wait any more.
    pub reply: oneshot::Sender<Reply>,
}

/// How a run of a process came to its end.
#[derive(Debug)]
pub enum Ran {
    /// It is that late now.
    Reached,
    /// It sent a request.
    Sent(Box<Sent>),
    /// The process ended.
    Ended(Result<(), RunError>),
}

/// A process of the scheduler.
#[derive(Debug)]
pub struct Process {
    runtime: Runtime,
    requests: mpsc::UnboundedReceiver<Sent>,
    task: JoinHandle<Result<(), RunError>>,
    telemetry: Routes,
    pages: Routes,
    stop: CancellationToken,
    /// When it was started, by its own clock and by the run's.
    born: Instant,
    start: Ms,
    /// Until when it ran.
    pub now: Ms,
}

#[derive(Debug)]
struct Routes {
    coming: oneshot::Receiver<Router>,
    here: Option<Router>,
}

impl Routes {
    fn new() -> (Endpoint, Self) {
        let (to, coming) = oneshot::channel();
        (Endpoint::Routes(to), Self { coming, here: None })
    }

    fn get(&mut self) -> Option<Router> {
        if let Ok(routes) = self.coming.try_recv() {
            self.here = Some(routes);
        }
        self.here.clone()
    }
}

impl Process {
    /// Starts one. `ahead`: how far its wall clock is ahead, in milliseconds.
    ///
    /// # Panics
    /// The machine gives no runtime.
    pub fn start(config: Config, now: Ms, ahead: Arc<AtomicI64>) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let (sender, requests) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let (webhook, _) = Routes::new();
        let (telemetry_endpoint, telemetry) = Routes::new();
        let (pages_endpoint, pages) = Routes::new();
        let endpoints = Endpoints {
            webhook,
            telemetry: telemetry_endpoint,
            metrics: Some(pages_endpoint),
            page: None,
        };
        let (task, born) = runtime.block_on(async {
            let born = Instant::now();
            let wall = Wall::reads(move || {
                let since = Instant::now().saturating_duration_since(born);
                let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                Stamp::skewed(now + since, ahead.load(Ordering::Relaxed)).timestamp()
            });
            let client = client(sender);
            let running = scheduler::run_in(endpoints, wall, config, client.into(), stop.clone());
            (tokio::spawn(running), born)
        });
        Self {
            runtime,
            requests,
            task,
            telemetry,
            pages,
            stop,
            born,
            start: now,
            now,
        }
    }

    /// Lets it run until then, or until it has something to say.
    pub fn run(&mut self, until: Ms) -> Ran {
        let at = self.born + Duration::from_millis(until - self.start);
        let Self {
            runtime,
            requests,
            task,
            ..
        } = self;
        let (ran, at) = runtime.block_on(async {
            let ran = tokio::select! {
                biased;
                Some(sent) = requests.recv() => Ran::Sent(Box::new(sent)),
                ended = task => Ran::Ended(match ended {
                    Ok(ended) => ended,
                    Err(error) => Err(RunError::Failed(error)),
                }),
                () = tokio::time::sleep_until(at) => Ran::Reached,
            };
            (ran, Instant::now())
        });
        self.now = self.moment(at);
        ran
    }

    /// It was suspended: its clock jumps to that moment, and only then everything that became due
    /// is handled.
    pub fn skip(&mut self, until: Ms) {
        let gap = Duration::from_millis(until.saturating_sub(self.now));
        self.runtime.block_on(tokio::time::advance(gap));
        self.now = self.now.max(until);
    }

    /// Ends it as a kubelet does, with a grace period for work in flight.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// An agent's stream; `false` if there is no server yet. The agent's messages come by
    /// `messages`; `ended` is dropped when the stream is over.
    pub fn connect(
        &mut self,
        node: &str,
        messages: mpsc::UnboundedReceiver<AgentMessage>,
        ended: oneshot::Sender<()>,
    ) -> bool {
        let Some(routes) = self.telemetry.get() else {
            return false;
        };
        let mut request = tonic::Request::new(UnboundedReceiverStream::new(messages));
        let token = format!("Bearer {TOKEN}{node}");
        if let Ok(token) = token.parse() {
            request.metadata_mut().insert("authorization", token);
        }
        self.runtime.spawn(async move {
            let _ended = ended;
            let mut client = TelemetryClient::new(routes);
            if let Ok(answer) = client.report(request).await {
                let mut said = answer.into_inner();
                while let Ok(Some(_)) = said.message().await {}
            }
        });
        true
    }

    /// A page of it: status and text; `None` where there is none yet. A replica without an answer
    /// within a millisecond is itself waiting for the API server.
    pub fn page(&mut self, path: &str) -> Option<(u16, String)> {
        let routes = self.pages.get()?;
        let request = Request::get(path).body(Body::empty()).ok()?;
        let (page, at) = self.runtime.block_on(async {
            let page = async {
                let answer = routes.oneshot(request).await.ok()?;
                let status = answer.status().as_u16();
                let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
                Some((status, String::from_utf8_lossy(&body.ok()?).into_owned()))
            };
            let page = tokio::time::timeout(Duration::from_millis(1), page).await;
            (page.ok().flatten(), Instant::now())
        });
        self.now = self.now.max(self.moment(at));
        page
    }

    fn moment(&self, at: Instant) -> Ms {
        let since = at.saturating_duration_since(self.born);
        self.start + u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A client whose requests go to the run instead of the network.
fn client(to: mpsc::UnboundedSender<Sent>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let to = to.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let content = head.headers.get(http::header::CONTENT_TYPE);
            let content = content
                .and_then(|text| text.to_str().ok())
                .unwrap_or_default();
            let asked = Asked::new(head.method.as_str(), &head.uri, content, &body);
            let (reply, replied) = oneshot::channel();
            let broken = || io::Error::new(io::ErrorKind::ConnectionReset, "connection reset");
            to.send(Sent { asked, reply }).map_err(|_| broken())?;
            let reply = replied.await.map_err(|_| broken())?;
            let (status, body) = match reply {
                Reply::Whole(status, body) => (status, Body::from(body)),
                Reply::Stream(lines) => {
                    (200, Body::from_stream(UnboundedReceiverStream::new(lines)))
                }
            };
            Ok::<_, tower::BoxError>(Response::builder().status(status).body(body)?)
        }
        .boxed()
    });
    Client::new(service, "default")
}
