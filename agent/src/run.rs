//! Starts everything of one agent, and ends with the first part that ends.
//!
//! Several agents can run in one process, each with its own paths and its own copy of the
//! NVML library: libraries loaded from one path share their state.

use crate::Config;
use crate::dra::service::Service;
use crate::gpu::{MigStrategy, Profile};
use crate::inventory::build::Settings;
use crate::kubelet::pod_resources::{self, Lister};
use crate::kubelet::prestart::{PreStart, Renames};
use crate::kubelet::session::Session;
use crate::node::disk::{self, Disk};
use crate::node::lists::Lists;
use crate::node::owner::Owner;
use crate::node::task::{self, OwnerChannels};
use crate::node::{Core, Event, Obstacle, Terms, mps_sync};
use crate::resource::Resource;
use crate::{cluster, dra, install, kubelet, nvml, telemetry, termination};
use nix::fcntl::{Flock, FlockArg};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long to wait for NVML's first reading: the kubelet should only learn of known cards.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// Between the report that this agent stops and the end of its plugin. The kubelet permanently
/// rejects a pod that it has to start without the plugin. Pods that were bound before the
/// schedulers received the report reach the kubelet well within this time.
const LEAVES_AFTER: Duration = Duration::from_secs(1);
/// Time for work in flight after the end of the plugin.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// For an agent that is being replaced to end.
const PREDECESSOR: Duration = Duration::from_secs(3);
/// Between two tries to be alone.
const AGAIN: Duration = Duration::from_millis(20);
/// Interval of the check whether another plugin serves whole cards.
const OTHER_PLUGIN: Duration = Duration::from_secs(10);
/// The socket of NVIDIA's plugin for whole cards.
const NVIDIA_SOCKET: &str = "nvidia-gpu.sock";
/// How its sockets for slices begin.
const NVIDIA_MIG_SOCKETS: &str = "nvidia-mig-";

/// Why an agent ended without a request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A folder that must be there cannot be made.
    #[error("the agent's directories cannot be created: {0}")]
    Folders(#[source] io::Error),
    /// A second one would sweep up and take back what the first one does.
    #[error("another agent of this node holds {}", .0.display())]
    NotAlone(PathBuf),
    /// The machine has no thread left.
    #[error("the thread that owns NVML cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// Its sockets cannot be made, or a server ended.
    #[error("the DRA driver cannot be served: {0}")]
    Dra(#[source] io::Error),
    /// A part ended that never ends by itself.
    #[error("{0} ended")]
    Ended(&'static str),
    /// A part panicked.
    #[error("a task failed: {0}")]
    Failed(#[source] tokio::task::JoinError),
    /// Telemetry's own words.
    #[error(transparent)]
    Telemetry(#[from] telemetry::TelemetryError),
}

/// What a task says when it ends.
type Part = Result<&'static str, RunError>;

/// Runs one agent until `stop`.
///
/// # Errors
/// What kept it from starting, or which part ended on its own.
pub async fn run(
    config: Config,
    client: kube::Client,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let started = Instant::now();
    let config = Arc::new(config);
    // Ends every task, also when only one of them failed. After a stop, pods that are bound to
    // this node are still served for a moment.
    let end = CancellationToken::new();
    // A caller that drops this future leaves no thread behind either.
    let _guard = end.clone().drop_guard();
    let mut tasks: JoinSet<Part> = JoinSet::new();
    let (driver, answering) = watch::channel(None);
    let service = Service {
        config: config.clone(),
        driver: answering,
        stop: end.clone(),
    };
    // The kubelet has it before the agent that it replaces has ended.
    if config.dra && config.pod_uid.is_some() {
        tasks.spawn(claimed(service.clone()));
    }
    let Some(_lock) = alone(&config, &stop, &mut tasks).await? else {
        return Ok(());
    };
    if config.dra {
        dra::service::sweep(&config).await;
    }
    let claims = config.dra.then_some(Claims { driver, service });
    let result = start(&config, client, &end, started, claims, &mut tasks);
    let result = match result {
        Ok(owner) => match first_end(&mut tasks, &stop).await {
            Ok(()) if owner.tell(Event::Leaving).is_ok() => {
                let never = CancellationToken::new();
                let left = tokio::time::timeout(LEAVES_AFTER, first_end(&mut tasks, &never));
                left.await.unwrap_or(Ok(()))
            }
            result => result,
        },
        Err(error) => Err(error),
    };
    end.cancel();
    let rest = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORDS, rest).await.is_err() {
        tracing::warn!("some tasks did not end in time");
    }
    result
}

/// Makes sure that no other agent serves this node: for as long as the lock lives. One that is just
/// ending is waited for; where this one came to replace it, for as long as that takes. `None`:
/// stopped before.
async fn alone(
    config: &Config,
    stop: &CancellationToken,
    tasks: &mut JoinSet<Part>,
) -> Result<Option<Flock<File>>, RunError> {
    let run_dir = &config.run_dir;
    let path = run_dir.join("agent.lock");
    let until = Instant::now() + PREDECESSOR;
    let lock = || -> Result<Option<Flock<File>>, RunError> {
        let open = || {
            std::fs::create_dir_all(run_dir)?;
            File::create(&path)
        };
        let file = open().map_err(RunError::Folders)?;
        Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
    };
    let mut standby = None;
    let lock = loop {
        if let Some(lock) = lock()? {
            break Some(lock);
        }
        if config.pod_uid.is_none() && Instant::now() >= until {
            return Err(RunError::NotAlone(path));
        }
        if config.pod_uid.is_some() && standby.is_none() {
            tracing::info!("waits until the node's other agent has ended");
            standby = Some(Standby::start(config)?);
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = stop.cancelled() => break None,
            Some(ended) = tasks.join_next() => {
                ended.map_err(RunError::Failed)??;
            }
        }
    };
    if let Some(standby) = standby {
        standby.end().await;
    }
    Ok(lock)
}

/// Answers that the agent is well while it waits, so that the one before it is ended.
struct Standby {
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

impl Standby {
    fn start(config: &Config) -> Result<Self, RunError> {
        let stop = CancellationToken::new();
        let served = telemetry::standby(config, stop.clone())?;
        Ok(Self {
            stop,
            served: tokio::spawn(served),
        })
    }

    /// Its address is free then.
    async fn end(self) {
        self.stop.cancel();
        let _ = self.served.await;
    }
}

/// Where the DRA driver goes once there is one, and what the kubelet is served.
struct Claims {
    driver: watch::Sender<Option<dra::driver::Driver>>,
    service: Service,
}

async fn first_end(tasks: &mut JoinSet<Part>, stop: &CancellationToken) -> Result<(), RunError> {
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = tasks.join_next() => match ended {
            // Stopped, and faster than this select.
            Some(Ok(Ok(_))) if stop.is_cancelled() => Ok(()),
            Some(Ok(Ok(part))) => Err(RunError::Ended(part)),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => Err(RunError::Failed(error)),
            None => Ok(()),
        },
    }
}

fn start(
    config: &Arc<Config>,
    client: kube::Client,
    end: &CancellationToken,
    started: Instant,
    claims: Option<Claims>,
    tasks: &mut JoinSet<Part>,
) -> Result<Owner, RunError> {
    let mut disk = Disk::open(config);
    let (watched_out, watched) = watch::channel(nvml::Watched::default());
    let lengths = channel::Lengths::default();
    let (ends_out, ends) = lengths.unbounded("terminations");
    let (layouts_out, layouts) = std::sync::mpsc::channel();
    let nvml = nvml::start(
        nvml::Settings {
            libraries: config.nvml_libraries(),
            interval: config.nvml_interval(),
            sample_interval: config.watchdog_interval(),
            proc_root: config.proc_root.clone(),
            slices: config.mig_strategy != MigStrategy::None,
        },
        watched,
        layouts,
        &lengths,
        end.clone(),
    )
    .map_err(RunError::Thread)?;

    let (owner, inbox) = Owner::channel(&lengths);
    let core = core(config, &mut disk);
    // No task may see a ledger that is empty because it was not rebuilt yet: a plan made from it
    // would end servers whose tenants run.
    let (state_out, state) = watch::channel(Arc::new(core.state()));
    let (offer_out, offer) = watch::channel(Arc::new(core.offer()));
    let lists = Lists::new(config.share_dir(), state.clone());
    let (disk_out, disk_requests) = lengths.unbounded("disk_requests");
    let (notes_out, notes) = lengths.unbounded("notes");
    let outputs = OwnerChannels {
        state: state_out,
        offer: offer_out,
        disk: disk_out,
        notes: notes_out.clone(),
        ends: ends_out,
        watched: watched_out,
        layouts: layouts_out,
    };
    tasks.spawn(named(
        "the task that ends processes",
        termination::run(
            config.proc_root.clone(),
            config.mps_socket(),
            ends,
            end.clone(),
        ),
    ));
    tasks.spawn(named(
        "the task that owns the node's state",
        task::run(core, inbox, outputs, end.clone()),
    ));
    tasks.spawn(named(
        "the disk's task",
        disk::run(
            disk,
            config.reconcile_interval(),
            disk_requests,
            state.clone(),
            lists.clone(),
            owner.clone(),
        ),
    ));
    tasks.spawn(named("NVML's bridge", bridge(nvml, owner.clone())));
    tasks.spawn(named(
        "the MPS plan",
        mps_sync::run(
            config.mps_socket(),
            state.clone(),
            owner.clone(),
            end.clone(),
        ),
    ));
    let (renames, watching) = Renames::of(&config.cdi_dir);
    let watching = end.clone().run_until_cancelled_owned(watching);
    let watching = async move { watching.await.unwrap_or_default() };
    tasks.spawn(named("the renames in the CDI directory", watching));
    let pre_start = PreStart {
        config: config.clone(),
        owner: owner.clone(),
        state: state.clone(),
        lists,
        renames,
        notes: notes_out.clone(),
    };
    let session = Session {
        resource: Resource::Share,
        config: config.clone(),
        offer: offer.clone(),
        owner: owner.clone(),
        notes: notes_out.clone(),
        pre_start: pre_start.clone(),
        started,
    };
    for resource in served(config) {
        let session = Session {
            resource,
            ..session.clone()
        };
        let (state, end) = (state.clone(), end.clone());
        tasks.spawn(named("a registration", async move {
            after_first_look(state).await;
            session.run(end).await;
        }));
    }
    let registrations = by_profile(session, end.clone());
    tasks.spawn(named("the registrations of slices", registrations));
    tasks.spawn(named(
        "PodResources",
        pod_resources::follow(
            Lister::new(config.pod_resources()),
            config.serve_whole,
            offer,
            state.clone(),
            owner.clone(),
            end.clone(),
        ),
    ));
    tasks.spawn(named(
        "the NUMA zones",
        kubelet::numa::follow(
            Lister::new(config.pod_resources()),
            config.sys_root.clone(),
            state.clone(),
            owner.clone(),
            end.clone(),
        ),
    ));
    tasks.spawn(named(
        "the watch for other plugins",
        other_plugin(config.clone(), owner.clone(), end.clone()),
    ));
    tasks.spawn(named(
        "the API server's watches",
        cluster::run(
            config.clone(),
            client.clone(),
            owner.clone(),
            state.clone(),
            end.clone(),
        ),
    ));
    if let Some(claims) = claims {
        let (words, heard) = lengths.unbounded("claim_updates");
        let driver = dra::driver::Driver {
            client: client.clone(),
            pre_start,
            words,
        };
        let node = config.node_name.clone();
        let status = dra::status::run(node, client.clone(), state.clone(), heard);
        let stop = end.clone();
        tasks.spawn(named("the claims' device status", async move {
            let _ = stop.run_until_cancelled(status).await;
        }));
        let reservations = dra::reservations::run(client.clone(), state.clone(), owner.clone());
        let stop = end.clone();
        tasks.spawn(named("the pods of claims", async move {
            let _ = stop.run_until_cancelled(reservations).await;
        }));
        let state_known = state.clone();
        let registered = config.pod_uid.is_some();
        tasks.spawn(async move {
            // Claims can be prepared from the first call on: the ledger is complete.
            after_first_look(state_known).await;
            claims.driver.send_replace(Some(driver));
            if registered {
                claims.service.stop.cancelled().await;
                return Ok("the DRA driver");
            }
            claimed(claims.service).await
        });
        let slice = dra::publish::run(config.clone(), client.clone(), state.clone());
        let end = end.clone();
        tasks.spawn(named("the node's ResourceSlice", async move {
            let _ = end.run_until_cancelled(slice).await;
        }));
    }
    let inputs = telemetry::TelemetryInputs {
        config: config.clone(),
        client,
        state,
        notes,
        lengths,
        stop: end.clone(),
    };
    tasks.spawn(async move {
        telemetry::run(inputs).await?;
        Ok("telemetry")
    });
    Ok(owner)
}

/// Registers the DRA driver.
async fn claimed(service: Service) -> Part {
    let ended = dra::registration::run(service).await;
    ended.map_err(RunError::Dra)?;
    Ok("the DRA driver")
}

fn served(config: &Config) -> Vec<Resource> {
    let whole = config.serve_whole.then_some(Resource::Whole);
    [Resource::Share].into_iter().chain(whole).collect()
}

/// Registers each profile of which a slice was seen, or is held.
async fn by_profile(session: Session, stop: CancellationToken) {
    let mut offer = session.offer.clone();
    let mut sessions = JoinSet::new();
    let mut known = BTreeSet::new();
    loop {
        let profiles: Vec<Profile> = offer.borrow_and_update().slices.keys().copied().collect();
        for profile in profiles
            .into_iter()
            .filter(|profile| known.insert(*profile))
        {
            let session = Session {
                resource: Resource::Slice(profile),
                ..session.clone()
            };
            sessions.spawn(session.run(stop.clone()));
        }
        tokio::select! {
            changed = offer.changed() => {
                if changed.is_err() {
                    break;
                }
            }
            () = stop.cancelled() => break,
        }
    }
    while sessions.join_next().await.is_some() {}
}

/// The core, with the facts that must be known before anything is offered: the holders, and whether
/// containers can be guarded.
fn core(config: &Config, disk: &mut Disk) -> Core {
    let mut core = Core::new(Terms {
        node: config.node_name.clone(),
        cards: Settings {
            mps_reserve: config.mps_reserve(),
            client_slots: config.client_slots,
            context_allowance: config.context_allowance(),
            mig_strategy: config.mig_strategy,
        },
        serve_whole: config.serve_whole,
        allow_ungranted_whole: config.allow_ungranted_whole,
        watchdog_slack: api::Mib(config.watchdog_slack_mib),
        ungranted_grace: config.ungranted_grace(),
    });
    let now = std::time::Instant::now();
    core.apply(Event::Local(disk.look(&BTreeSet::new())), now);
    core.apply(Event::Obstacle(Obstacle::Hook, hook_obstacle(config)), now);
    core
}

async fn named(name: &'static str, part: impl Future<Output = ()>) -> Part {
    part.await;
    Ok(name)
}

/// NVML's outputs as events.
async fn bridge(mut nvml: nvml::NvmlChannels, owner: Owner) {
    loop {
        tokio::select! {
            changed = nvml.observations.changed() => {
                if changed.is_err() {
                    return;
                }
                let observation = nvml.observations.borrow_and_update().clone();
                if owner.tell(Event::Observed(observation)).is_err() {
                    return;
                }
            }
            Some(sample) = nvml.samples.recv() => {
                if owner.tell(Event::Sampled(sample)).is_err() {
                    return;
                }
            }
            Some((order, made)) = nvml.layouts.recv() => {
                if owner.tell(Event::LayoutMade(order, made)).is_err() {
                    return;
                }
            }
            Some(xid) = nvml.xids.recv() => {
                if owner.tell(Event::Fault(xid)).is_err() {
                    return;
                }
            }
            _ = &mut nvml.ended => return,
        }
    }
}

/// Until NVML is up. A node whose driver is late still registers, so that pods keep their tokens.
async fn after_first_look(mut state: watch::Receiver<Arc<crate::node::State>>) {
    let up = state.wait_for(|state| state.ready.nvml);
    let _ = tokio::time::timeout(FIRST_LOOK, up).await;
}

/// Why no container could be guarded, if so.
fn hook_obstacle(config: &Config) -> Option<String> {
    if let Some(binary) = &config.hook_binary {
        match install::hook(binary, &config.hook_path) {
            Ok(true) => tracing::info!(hook = %config.hook_path.display(), "the hook is installed"),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "the hook cannot be installed");
                return Some(format!(
                    "the OCI hook cannot be installed at {}: {error}",
                    config.hook_path.display()
                ));
            }
        }
    } else if !config.hook_path.exists() {
        // The path is the host's; a container without the mount does not see it.
        tracing::warn!(hook = %config.hook_path.display(), "the installed hook cannot be found");
    }
    None
}

/// Two plugins under one name replace each other, so where another serves whole cards this
/// agent steps back.
async fn other_plugin(config: Arc<Config>, owner: Owner, stop: CancellationToken) {
    let dir = config.plugin_dir();
    let mut last = None;
    loop {
        let there = nvidias(&dir, config.mig_strategy).await;
        if last.as_ref() != Some(&there) {
            last = Some(there.clone());
            let why = there.map(|(socket, resource)| {
                format!("another device plugin ({socket}) serves {resource} on this node")
            });
            if owner
                .tell(Event::Obstacle(Obstacle::OtherPlugin, why))
                .is_err()
            {
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(OTHER_PLUGIN) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// A socket of NVIDIA's plugin that answers, and the resource that it serves: for slices only where
/// this agent offers some.
async fn nvidias(dir: &Path, strategy: MigStrategy) -> Option<(String, String)> {
    if serves(&dir.join(NVIDIA_SOCKET)).await {
        return Some((
            NVIDIA_SOCKET.to_owned(),
            Resource::Whole.name().into_owned(),
        ));
    }
    let entries = std::fs::read_dir(dir).ok()?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| strategy != MigStrategy::None && name.starts_with(NVIDIA_MIG_SOCKETS))
        .collect();
    names.sort_unstable();
    for name in names {
        let profile = name.strip_prefix(NVIDIA_MIG_SOCKETS).unwrap_or_default();
        let profile = Profile::parse(profile.trim_end_matches(".sock"));
        if let Some(profile) = profile
            && serves(&dir.join(&name)).await
        {
            return Some((name, Resource::Slice(profile).name().into_owned()));
        }
    }
    None
}

/// A socket file alone may be what a plugin left.
async fn serves(socket: &Path) -> bool {
    tokio::net::UnixStream::connect(socket).await.is_ok()
}
