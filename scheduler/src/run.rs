//! Starts everything of one scheduler, and ends with the first part that ends.
//! - [`observer`], [`self::admission`]: the parts of the other two roles.

mod admission;
mod observer;
mod part;

pub use part::RunError;
pub(crate) use part::{Part, named};

use crate::act::{self, Settings};
use crate::admission::QueueTree;
use crate::clock::Wall;
use crate::config::Role;
use crate::cycle::{CycleInputs, CycleOutputs};
use crate::cycles::QUESTIONS;
use crate::endpoints::{Endpoints, Listeners};
use crate::leader::ApiAccess;
use crate::preflight::PodSelection;
use crate::report::{self, QueueMeters, ReportInputs, Views};
use crate::scale_up::{self, ScaleUp, ScaleUpMeters};
use crate::shard::Plan;
use crate::status::{Meters, Pages, Status, counted, router};
use crate::trust;
use crate::usage::{self, UsageMeters};
use crate::{
    Config, cycles, group, leader, lease, page, preflight, snapshot, telemetry, watch as facts,
};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use kube::runtime::events::Reporter;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::admission::{Admission, admit};
use self::observer::{Show, observe};

/// Time for work in flight after a stop.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Unreadable objects that have not been reported yet: more than one kind has.
const UNREADABLE: usize = 64;
/// Reports of pod groups at once: as many statuses as are written in about two seconds.
const GROUP_REPORTS: usize = 4096;

/// Runs one scheduler until `stop`.
///
/// # Errors
/// What kept it from starting, or which part ended on its own.
pub async fn run(
    config: Config,
    access: ApiAccess,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let listeners = Listeners::bind(&config).await?;
    run_on(listeners, config, access, stop).await
}

/// Runs one scheduler on these listeners until `stop`; their addresses in `config` count
/// for nothing.
///
/// # Errors
/// What kept it from starting, or which part ended on its own.
pub async fn run_on(
    listeners: Listeners,
    config: Config,
    access: ApiAccess,
    stop: CancellationToken,
) -> Result<(), RunError> {
    run_in(listeners.into(), Wall::machine(), config, access, stop).await
}

/// Runs one scheduler at these endpoints and this clock until `stop`.
///
/// # Errors
/// What kept it from starting, or which part ended on its own.
// Boxed, so that crates that embed it do not compile all of it again.
pub fn run_in(
    endpoints: Endpoints,
    wall: Wall,
    config: Config,
    access: ApiAccess,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), RunError>> {
    run_all(endpoints, wall, config, access, stop).boxed()
}

async fn run_all(
    endpoints: Endpoints,
    wall: Wall,
    config: Config,
    access: ApiAccess,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let end = stop.child_token();
    let _guard = end.clone().drop_guard();
    let mut tasks: JoinSet<Part> = JoinSet::new();
    let started = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        started = start(&config, endpoints, &wall, access, &end, &mut tasks) => started,
    };
    let result = match started {
        Ok(()) => first_end(&mut tasks, &stop).await,
        Err(error) => Err(error),
    };
    end.cancel();
    let rest = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORDS, rest).await.is_err() {
        tracing::warn!("some tasks did not end in time");
    }
    result
}

async fn first_end(tasks: &mut JoinSet<Part>, stop: &CancellationToken) -> Result<(), RunError> {
    tokio::select! {
        biased;
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

async fn start(
    config: &Config,
    endpoints: Endpoints,
    wall: &Wall,
    access: ApiAccess,
    end: &CancellationToken,
    tasks: &mut JoinSet<Part>,
) -> Result<(), RunError> {
    if config.role == Role::Scheduler && !config.leader_elect {
        return Err(RunError::NoLease);
    }
    let identity = config.identity.clone().unwrap_or_else(identity);
    let mut registry = Registry::default();
    let meters = Arc::new(Meters::registered(&mut registry));
    let queue_meters = Arc::new(QueueMeters::registered(&mut registry));
    let usage_meters = Arc::new(UsageMeters::registered(&mut registry));
    let scale_up_meters = Arc::new(ScaleUpMeters::registered(&mut registry));
    let agent_meters = Arc::new(telemetry::AgentMeters::registered(&mut registry));
    let client = counted(access.client()?, Arc::clone(&meters));

    let plan = Plan::of(config, epoch(wall))?;
    let (status_out, status) = watch::channel(Status {
        missing: vec!["anything"],
        ..Status::default()
    });
    let (questions_out, questions) = mpsc::channel(QUESTIONS);
    let (admits_out, admits) = watch::channel(false);
    let page = endpoints.page.is_some().then(page::channel);
    if let Some(endpoint) = endpoints.metrics {
        let pages = router(Pages {
            // A process with admission only has nothing to count.
            registry: Arc::new(if config.role == Role::Admission {
                Registry::default()
            } else {
                registry
            }),
            status: status.clone(),
            admits: (!config.observe && config.role != Role::Scheduler).then_some(admits),
            questions: questions_out.clone(),
            page: page.as_ref().map(|(client, _)| client.clone()),
            snapshots: Arc::new(Semaphore::new(1)),
        });
        let pages = pages.merge(snapshot::router(
            client.clone(),
            config,
            &plan,
            questions_out.clone(),
        ));
        let end = end.clone();
        tasks.spawn(async move {
            let served = crate::serve::serve(endpoint, None, pages, end).await;
            served.map_err(RunError::Pages)?;
            Ok("the pages")
        });
    }

    let show = Show {
        status: status_out,
        questions,
        meters,
        queue_meters,
        usage_meters,
        agent_meters,
    };
    if config.observe {
        preflight::shapes(&client).await?;
        observe(config, &plan, wall, client, end, tasks, show);
        return Ok(());
    }

    let territory = PodSelection {
        scheduler: config.scheduler_name.clone(),
        pools: plan.pools(),
    };
    if config.role == Role::Admission {
        preflight::alone(&client, &territory).await?;
        let admission = Admission {
            endpoint: endpoints.webhook,
            own: None,
            admits: admits_out,
        };
        return admit(config, admission, client, show.status, end, tasks).await;
    }
    let scale_up = scale_up::Settings::of(config)?;
    let with_phase = preflight::clear(&client, &territory).await?;
    let names = config.names();
    let trust = trust::establish(&client, &config.namespace, &names).await?;
    tasks.spawn(named(
        "the keys' keeper",
        trust::keep(
            trust.clone(),
            client.clone(),
            config.namespace.clone(),
            names,
            end.clone(),
        ),
    ));
    let (leading_out, leading) = watch::channel(!config.leader_elect);
    let (queues_out, queues) = watch::channel(QueueTree::default());
    let own_url = endpoints
        .webhook
        .port()
        .and_then(|port| config.own_url(port));
    let admission = Admission {
        endpoint: endpoints.webhook,
        own: Some((questions_out.clone(), leading.clone())),
        admits: admits_out,
    };
    let certificates = trust.certificates();
    tasks.spawn(admission.serve(config, queues, certificates, &client, end));

    let (heard_out, heard) = telemetry::channel(Some(show.agent_meters.clone()));
    {
        let endpoint = endpoints.telemetry;
        let (trust, client, end) = (trust.clone(), client.clone(), end.clone());
        let namespace = config.namespace.clone();
        let meters = show.agent_meters.clone();
        tasks.spawn(async move {
            telemetry::run(endpoint, trust, client, namespace, heard_out, meters, end).await?;
            Ok("telemetry")
        });
    }

    let (grantor, leadership) = leader::leadership();
    if config.leader_elect {
        let (client, end) = (client.clone(), end.clone());
        let leases = kube::Api::namespaced(client, &config.namespace);
        let candidate = lease::Candidate {
            lease: config.lease(),
            identity: identity.clone(),
            address: own_url,
        };
        let wall = wall.clone();
        tasks.spawn(async move {
            lease::run(leases, candidate, leading_out, grantor, wall, end).await?;
            Ok("the lease")
        });
    } else {
        let end = end.clone();
        grantor.for_ever();
        tasks.spawn(async move {
            end.cancelled().await;
            drop((leading_out, grantor));
            Ok("leading")
        });
    }
    // What only the leader writes goes through this one.
    let writes = counted(access.leaders(&leadership)?, Arc::clone(&show.meters));
    let leaders = leader::client(client.clone(), writes, leadership);

    let relist = watch::Sender::new(0);
    let lengths = show.meters.lengths().clone();
    let (facts_out, facts) = lengths.unbounded("facts_of_watches");
    let (complaints, unreadable) = mpsc::channel(UNREADABLE);
    let reporter = Reporter {
        controller: config.scheduler_name.clone(),
        instance: Some(identity.clone()),
    };
    tasks.spawn(named(
        "the complaints",
        facts::complain(
            leaders.clone(),
            reporter,
            leading.clone(),
            unreadable,
            end.clone(),
        ),
    ));
    tasks.spawn(named(
        "the watches",
        facts::run(
            client.clone(),
            facts_out,
            move |queue| queues_out.send_modify(|tree| tree.note(queue)),
            Some(complaints),
            relist.subscribe(),
            end.clone(),
        ),
    ));
    let (views_out, views) = watch::channel(Views::default());
    let (groups_out, groups) = mpsc::channel(GROUP_REPORTS);
    let mut flows = page::Flows { facts, heard };
    if let (Some(listener), Some(page)) = (endpoints.page, page) {
        let access = if config.page_is_open {
            page::Access::Anybody(client.clone())
        } else {
            page::Access::Tokens(trust.clone(), client.clone())
        };
        let sources = page::Sources {
            views: views.clone(),
            status,
            questions: questions_out,
            queue_label: plan.queue_label.clone(),
            prometheus: config.prometheus_url.clone(),
            links: config.page_link.clone(),
            wall: wall.clone(),
            lengths: lengths.clone(),
        };
        let name = &config.scheduler_name;
        let (onward, parts) = page::start(name, listener, access, flows, page, sources, end);
        flows = onward;
        for (name, part) in parts {
            tasks.spawn(async move { part.await.map_err(RunError::Pages).map(|()| name) });
        }
    }
    let page::Flows { facts, heard } = flows;
    let busy = watch::Sender::new(false);
    let awaited = act::AwaitedClaims::default();
    let settings = group::Settings {
        scheduler_name: config.scheduler_name.clone(),
        identity: identity.clone(),
        at_once: config.writes_at_once,
        busy: busy.subscribe(),
        queue_label: plan.queue_label.clone(),
        types: config.types(),
        alone_wait: config.lone_pods_wait(),
        deployment_gangs: config.deployment_gang_schedule,
        wall: wall.clone(),
        lengths: lengths.clone(),
    };
    let grouping = group::Shared::new(leaders.clone(), config.lone_pod_groups);
    let facts = group_pods(
        settings,
        &leaders,
        facts,
        grouping.clone(),
        &leading,
        end,
        tasks,
    );
    let events = report::GroupEvents::new(
        leaders.clone(),
        grouping.known.clone(),
        config.scheduler_name.clone(),
        identity.clone(),
    );
    tasks.spawn(named(
        "the reports",
        report::run(
            leaders.clone(),
            show.queue_meters.clone(),
            Some(events),
            ReportInputs {
                views,
                groups,
                with_phase,
            },
            wall.clone(),
            end.clone(),
        ),
    ));
    let scale_up = scale_up.map(|settings| ScaleUp {
        settings,
        client: leaders.clone(),
        meters: scale_up_meters,
    });
    let layouts = Some(leaders.clone());
    let (work_out, work) = lengths.unbounded("actions");
    let (outcomes_out, outcomes) = lengths.unbounded("outcomes");
    tasks.spawn(named(
        "the writes",
        act::run(
            Settings {
                scheduler_name: config.scheduler_name.clone(),
                identity,
                at_once: config.writes_at_once,
                volume_timeout: Duration::from_secs(config.volume_binding_timeout_s),
                awaited: awaited.clone(),
                respect_budgets: config.respect_disruption_budgets,
                pools: plan
                    .shards
                    .iter()
                    .map(|shard| (shard.core.epoch, shard.pool.name().to_owned()))
                    .collect(),
                busy,
                asks_for_nodes: scale_up.is_some(),
                grouping,
                wall: wall.clone(),
            },
            leaders,
            trust,
            show.meters.clone(),
            work,
            outcomes_out,
            end.clone(),
        ),
    ));
    let inputs = CycleInputs {
        facts,
        heard,
        outcomes,
        questions: show.questions,
        leading,
        usage: usage::UsageClient::silent(),
        scale_up: None,
        layouts: None,
        forecasts: None,
        wall: wall.clone(),
    };
    let outputs = CycleOutputs {
        pool: String::new(),
        relist,
        work: work_out,
        awaited,
        status: show.status,
        views: views_out,
        groups: groups_out,
        meters: show.meters,
    };
    let services = cycles::CycleServices {
        usage_meters: show.usage_meters,
        scale_up,
        layouts,
    };
    cycles::start(config, &plan, inputs, outputs, &services, end, tasks);
    Ok(())
}

/// Starts what puts pods into their groups; the facts go through it.
fn group_pods(
    settings: group::Settings,
    client: &Client,
    facts: channel::Receiver<facts::Fact>,
    shared: group::Shared,
    leading: &watch::Receiver<bool>,
    end: &CancellationToken,
    tasks: &mut JoinSet<Part>,
) -> channel::Receiver<facts::Fact> {
    let name = &settings.scheduler_name;
    let (relay, onward, told) =
        group::FactRelay::new(name, shared.clone(), facts, &settings.lengths);
    let (client, leading, end) = (client.clone(), leading.clone(), end.clone());
    tasks.spawn(named("the pod grouper", async move {
        tokio::select! {
            biased;
            () = relay.run() => {}
            () = group::run(settings, client, shared, told, leading, end.clone()) => {}
            () = end.cancelled() => {}
        }
    }));
    onward
}

/// Rises with each start. Nanoseconds: two replicas that start in the same millisecond, with
/// a number for each shard, would decide under the same names.
fn epoch(wall: &Wall) -> u64 {
    u64::try_from(wall.now().as_nanosecond()).unwrap_or_default()
}

/// The host's name, and which process on it.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), std::process::id())
}
