//! One registration after the other: serve first, then register, until it ends.
//!
//! A registration ends when the kubelet's socket is a new one (it started again, and removed
//! ours), when its stream ends, or when it never opened one. The kubelet disconnects
//! whatever is current when an old stream of the same resource ends, so ours are closed
//! before the next registration.

use super::plugin::{Plugin, Streams, options};
use super::prestart::PreStart;
use crate::Config;
use crate::node::offer::Offer;
use crate::node::{Event, Note, Owner};
use crate::resource::Resource;
use futures::future::FusedFuture as _;
use futures::{FutureExt as _, StreamExt as _};
use inotify::{Inotify, WatchMask};
use proto::deviceplugin::RegisterRequest;
use proto::deviceplugin::device_plugin_server::DevicePluginServer;
use proto::deviceplugin::registration_client::RegistrationClient;
use proto::names::kubelet as names;
use ring::rand::SystemRandom;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};

/// First and longest pause between two registrations. A failed one leaks a connection in
/// the kubelet.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A registration that lasted this long was successful.
const GOOD: Duration = Duration::from_secs(10);
/// The kubelet opens its stream within milliseconds after `Register`.
const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// The kubelet does not say when it has taken a list. It writes its checkpoint first, which takes
/// milliseconds on a node that has time.
const TAKES_A_LIST: Duration = Duration::from_millis(100);
/// Longest time for one `Register`; the kubelet calls back within it.
const REGISTERS_WITHIN: Duration = Duration::from_secs(10);
/// Where there is no inotify, the socket is looked at so often.
const POLL: Duration = Duration::from_millis(500);
/// Time for a `PreStartContainer` in flight when its registration ends.
const DRAIN: Duration = Duration::from_millis(300);

/// One resource's conversation with the kubelet.
#[derive(Clone, Debug)]
pub struct Session {
    /// Which resource.
    pub resource: Resource,
    /// Paths.
    pub config: Arc<Config>,
    /// The offer.
    pub offer: watch::Receiver<Arc<Offer>>,
    /// Receives answers and registrations.
    pub owner: Owner,
    /// Where timings go.
    pub notes: channel::Sender<Note>,
    /// Prepares containers.
    pub pre_start: PreStart,
    /// When the agent started.
    pub started: Instant,
}

/// Why a registration ended or did not come about.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the agent stops")]
    Stopped,
    #[error("the kubelet has replaced its socket")]
    NewKubelet,
    #[error("our socket was removed")]
    Removed,
    #[error("the need for PreStartContainer calls has changed")]
    OtherOptions,
    #[error("the kubelet's stream ended")]
    HungUp,
    #[error("the kubelet opened no stream")]
    NoStream,
    #[error("the server ended: {0}")]
    Server(tonic::transport::Error),
    #[error("our socket cannot be created: {0}")]
    Bind(io::Error),
    #[error("the kubelet cannot be reached: {0}")]
    Connect(tonic::transport::Error),
    #[error("the kubelet refused the registration: {0}")]
    Refused(String),
}

impl Session {
    fn endpoint(&self) -> String {
        match self.resource {
            Resource::Share => names::SHARE_SOCKET.to_owned(),
            Resource::Whole => names::GPU_SOCKET.to_owned(),
            Resource::Slice(profile) => format!("{}{profile}.sock", names::MIG_SOCKET_PREFIX),
        }
    }

    /// Registers again and again, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut pause = PAUSE.0;
        loop {
            let began = Instant::now();
            let ended = self.once(&stop, pause).await;
            if self.resource == Resource::Share {
                let _ = self.owner.tell(Event::Registered(false));
            }
            let at_once = match ended {
                Ended::Stopped => return,
                Ended::NewKubelet | Ended::Removed | Ended::OtherOptions => true,
                ended => {
                    tracing::warn!(resource = %self.resource.name(), reason = %ended, "not registered");
                    // It has waited for the kubelet already.
                    matches!(ended, Ended::Connect(_))
                }
            };
            if began.elapsed() >= GOOD {
                pause = PAUSE.0;
            }
            // The new kubelet listens before its socket's name appears.
            let wait = if at_once {
                Duration::from_millis(10)
            } else {
                pause
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// One registration. Where there is no kubelet, waits `pause` for it.
    async fn once(&self, stop: &CancellationToken, pause: Duration) -> Ended {
        let dir = self.config.plugin_dir();
        let socket = dir.join(self.endpoint());
        // Watched before anything is done, so that nothing is missed.
        let mut kubelet = Watch::on(&dir, &socket);
        let listener = match bind(&socket) {
            Ok(listener) => listener,
            Err(error) => return Ended::Bind(error),
        };
        kubelet.remember();
        let pre_start_required = self.pre_start_required();
        let (streams, mut opened) = watch::channel(Streams::default());
        let close = stop.child_token();
        let plugin = Plugin {
            resource: self.resource,
            offer: self.offer.clone(),
            owner: self.owner.clone(),
            notes: self.notes.clone(),
            pre_start: self.pre_start.clone(),
            random: SystemRandom::new(),
            pre_start_required,
            streams,
            stop: close.clone(),
        };
        let serve = Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming_shutdown(
                UnixListenerStream::new(listener),
                close.clone().cancelled_owned(),
            );
        // Fused: it may end before the rest does, and is waited for again below.
        let mut serve = std::pin::pin!(serve.fuse());
        let ended = {
            let life = async {
                match self.register(&dir, pre_start_required).await {
                    Ok(()) => {}
                    Err(ended @ Ended::Connect(_)) => {
                        return tokio::time::timeout(pause, kubelet.changed())
                            .await
                            .unwrap_or(ended);
                    }
                    Err(ended) => return ended,
                }
                let streams = opened.clone();
                tokio::select! {
                    ended = holds(&mut opened) => ended,
                    ended = self.tell_listed(streams) => ended,
                    ended = kubelet.changed() => ended,
                    ended = self.other_options(pre_start_required) => ended,
                }
            };
            tokio::select! {
                ended = life => ended,
                result = &mut serve => match result {
                    Err(error) => Ended::Server(error),
                    Ok(()) => Ended::Stopped,
                },
                () = stop.cancelled() => Ended::Stopped,
            }
        };
        // Streams first: the kubelet must not find an old one when we are back.
        close.cancel();
        if !serve.is_terminated() {
            let _ = tokio::time::timeout(DRAIN, &mut serve).await;
        }
        if !matches!(ended, Ended::Removed) {
            let _ = std::fs::remove_file(&socket);
        }
        // A stop ends streams and server too, and they may be quicker to say so.
        if stop.is_cancelled() {
            return Ended::Stopped;
        }
        ended
    }

    /// Whether the kubelet is to call `PreStartContainer`. If no card can be allocated whole by
    /// this front, `nvidia.com/gpu` is served by claims (KEP-5004), and a kubelet before 1.37 would
    /// call it for their containers too, without use: kubernetes/kubernetes#141426.
    fn pre_start_required(&self) -> bool {
        self.resource != Resource::Whole || self.offer.borrow().any_whole
    }

    /// Until the answer to that is another.
    async fn other_options(&self, now: bool) -> Ended {
        let mut offer = self.offer.clone();
        while offer.changed().await.is_ok() {
            if self.pre_start_required() != now {
                return Ended::OtherOptions;
            }
        }
        std::future::pending().await
    }

    async fn register(&self, dir: &Path, pre_start_required: bool) -> Result<(), Ended> {
        let socket = dir.join(names::SOCKET);
        let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .map_err(Ended::Connect)?
            .connect_timeout(REGISTERS_WITHIN)
            .timeout(REGISTERS_WITHIN)
            .connect()
            .await
            .map_err(Ended::Connect)?;
        let request = RegisterRequest {
            version: names::VERSION.to_owned(),
            endpoint: self.endpoint(),
            resource_name: self.resource.name().into_owned(),
            options: Some(options(pre_start_required)),
        };
        RegistrationClient::new(channel)
            .register(request)
            .await
            .map_err(|status| Ended::Refused(status.message().to_owned()))?;
        let resource = self.resource.name().into_owned();
        let since_start = self.started.elapsed();
        tracing::info!(resource, ?since_start, "registered");
        let _ = self.notes.send(Note::Registered {
            resource,
            since_start,
        });
        Ok(())
    }

    /// Signals that the kubelet can allocate. Until it has received the first list it rejects a pod
    /// that is bound to its node, and such a pod stays `Failed`.
    async fn tell_listed(&self, mut streams: watch::Receiver<Streams>) -> Ended {
        let listed = streams.wait_for(|streams| streams.listed).await.is_ok();
        if listed && self.resource == Resource::Share {
            tokio::time::sleep(TAKES_A_LIST).await;
            let _ = self.owner.tell(Event::Registered(true));
        }
        std::future::pending().await
    }
}

/// A socket of root's alone, in place of what a predecessor left.
pub(crate) fn bind(socket: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Until the kubelet's last stream has ended.
async fn holds(streams: &mut watch::Receiver<Streams>) -> Ended {
    let opened = streams.wait_for(|streams| streams.opened > 0);
    if tokio::time::timeout(OPENS_WITHIN, opened).await.is_err() {
        return Ended::NoStream;
    }
    // The sender lives in the service, which outlives this.
    let _ = streams.wait_for(|streams| streams.open == 0).await;
    Ended::HungUp
}

/// What is at a path: device and inode.
type Place = Option<(u64, u64)>;

fn place(path: &Path) -> Place {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The plugin directory: the kubelet's socket and ours.
struct Watch {
    theirs: PathBuf,
    ours: PathBuf,
    seen: (Place, Place),
    events: Option<inotify::EventStream<[u8; 4096]>>,
}

impl Watch {
    fn on(dir: &Path, ours: &Path) -> Self {
        let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE;
        let events = Inotify::init().and_then(|inotify| {
            inotify.watches().add(dir, mask)?;
            inotify.into_event_stream([0; 4096])
        });
        let mut watch = Self {
            theirs: dir.join(names::SOCKET),
            ours: ours.to_owned(),
            seen: (None, None),
            events: events.ok(),
        };
        watch.remember();
        watch
    }

    fn remember(&mut self) {
        self.seen = (place(&self.theirs), place(&self.ours));
    }

    /// Until one of the two is another one. An inode number can be used again at once, so
    /// a creation counts as well.
    async fn changed(&mut self) -> Ended {
        loop {
            let ours = place(&self.ours);
            if ours != self.seen.1 {
                return Ended::Removed;
            }
            let theirs = place(&self.theirs);
            // It is missing while the kubelet restarts; what counts is that it is back.
            if theirs.is_some() && theirs != self.seen.0 {
                return Ended::NewKubelet;
            }
            let Some(events) = &mut self.events else {
                tokio::time::sleep(POLL).await;
                continue;
            };
            match events.next().await {
                Some(Ok(event)) => {
                    let created = event.mask.contains(inotify::EventMask::CREATE)
                        || event.mask.contains(inotify::EventMask::MOVED_TO);
                    let name = event.name.as_deref();
                    if created && name == self.theirs.file_name() {
                        return Ended::NewKubelet;
                    }
                }
                Some(Err(_)) | None => self.events = None,
            }
        }
    }
}
