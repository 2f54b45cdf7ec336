//! The cycles of a scheduler: one for each shard, with a core of its own.
//!
//! If there are several, the router divides the input among them, and the front presents them as
//! one scheduler.

use crate::convert::World;
use crate::cycle::{self, CoalesceWindow, CycleInputs, CycleOutputs};
use crate::mig_layout;
use crate::observe::Observer;
use crate::report::Views;
use crate::run::{Part, named};
use crate::scale_up::{self, ScaleUp};
use crate::shard::{self, CoreChannels, InForce, Lane, Live, Plan, Pool, Shard};
use crate::usage::{self, UsageMeters};
use crate::{Config, forecast, telemetry};
use futures::FutureExt as _;
use scheduler_core::Core;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The work for each cycle besides its decisions.
pub(crate) struct CycleServices {
    pub(crate) usage_meters: Arc<UsageMeters>,
    /// `None`: no nodes are requested.
    pub(crate) scale_up: Option<ScaleUp>,
    /// Writes MIG layouts, only while leading. `None`: none is chosen.
    pub(crate) layouts: Option<kube::Client>,
}

/// Starts a cycle for each shard, and what makes one of them where there are several.
pub(crate) fn start(
    config: &Config,
    plan: &Plan,
    inputs: CycleInputs,
    outputs: CycleOutputs,
    services: &CycleServices,
    end: &CancellationToken,
    tasks: &mut JoinSet<Part>,
) {
    let mut begin = |shard: &Shard, inputs: CycleInputs, outputs: CycleOutputs| {
        let pool = shard.pool.name();
        let outputs = CycleOutputs {
            pool: pool.to_owned(),
            ..outputs
        };
        let (line, links) = usage::UsageClient::new(
            outputs.views.subscribe(),
            inputs.wall.clone(),
            services.usage_meters.clone(),
            pool.to_owned(),
        );
        tasks.spawn(named("past use", usage::run(links, end.clone())));
        let wall = inputs.wall.clone();
        let scale_up = services.scale_up.as_ref().map(|scale_up| {
            let (line, links) = scale_up.line(wall, pool.to_owned());
            tasks.spawn(named(
                "the plan of new nodes",
                scale_up::run(links, end.clone()),
            ));
            line
        });
        let layouts = services.layouts.as_ref().map(|client| {
            let (line, links) = mig_layout::Line::new(client.clone(), inputs.wall.clone());
            tasks.spawn(named(
                "the plan of MIG layouts",
                mig_layout::run(links, end.clone()),
            ));
            line
        });
        let forecasts = (!config.observe).then(|| {
            let (line, links) = forecast::Line::new(outputs.meters.clone());
            tasks.spawn(named("the forecasts", forecast::run(links, end.clone())));
            line
        });
        let inputs = CycleInputs {
            usage: line,
            scale_up,
            layouts,
            forecasts,
            ..inputs
        };
        let world = World::new(&config.scheduler_name)
            .with_queue_label(&plan.queue_label)
            .with_limits(config.limits)
            .with_lone_pods_waiting(config.lone_pods_wait() && !config.observe);
        let is_first = plan.shards.first() == Some(shard);
        let in_force = is_first.then(|| InForce {
            scheduler_name: config.scheduler_name.clone(),
            queue_label_key: plan.queue_label.clone(),
            node_pool_label_key: config.node_pool_label_key.clone(),
            volume_binding_timeout_s: config.volume_binding_timeout_s,
            deployment_gang_schedule: config.deployment_gang_schedule,
        });
        let live = shard.live.then(|| Live::new(shard, in_force));
        let world = world
            .of_shard(&shard.pool, live)
            .with_usage(shard.usage.as_ref());
        let removable = services.scale_up.as_ref().map(ScaleUp::groups);
        let removable = removable.filter(|_| shard.core.scale_down.is_some());
        let world = world
            .with_bursts(config.bursts())
            .with_bare_pods_moved(config.consolidate_bare_pods)
            .with_removable(removable);
        let meters = outputs.meters.clone();
        let (world, observer) = if config.observe {
            let observer = Observer::new(&config.scheduler_name, meters);
            (world.observing(), Some(observer))
        } else {
            (world, None)
        };
        let core = Core::new(shard.core.clone());
        let (pace, end) = (pace(config), end.clone());
        tasks.spawn(named("a cycle", async move {
            Box::pin(cycle::run(
                core, world, observer, pace, inputs, outputs, end,
            ))
            .await;
        }));
    };
    if let [only] = plan.shards.as_slice()
        && only.pool == Pool::All
    {
        begin(only, inputs, outputs);
        return;
    }
    let lengths = outputs.meters.lengths().clone();
    let (mut lanes, mut cores) = (Vec::new(), Vec::new());
    for shard in &plan.shards {
        let (facts_out, facts) = lengths.unbounded("facts_of_router");
        let (heard_out, heard) = telemetry::channel(None);
        let (outcomes_out, outcomes) = lengths.unbounded("outcomes_of_router");
        let (questions_out, questions) = mpsc::channel(QUESTIONS);
        let (status_out, status) = watch::channel(outputs.status.borrow().clone());
        let (views_out, views) = watch::channel(Views::default());
        lanes.push(Lane {
            facts: facts_out,
            heard: heard_out,
        });
        cores.push(CoreChannels {
            name: shard.name.clone(),
            epoch: shard.core.epoch,
            outcomes: outcomes_out,
            questions: questions_out,
            status,
            views,
        });
        let inputs = CycleInputs {
            facts,
            heard,
            outcomes,
            questions,
            leading: inputs.leading.clone(),
            usage: usage::UsageClient::silent(),
            scale_up: None,
            layouts: None,
            forecasts: None,
            wall: inputs.wall.clone(),
        };
        let outputs = CycleOutputs {
            relist: outputs.relist.clone(),
            work: outputs.work.clone(),
            awaited: outputs.awaited.clone(),
            status: status_out,
            views: views_out,
            groups: outputs.groups.clone(),
            meters: outputs.meters.clone(),
            pool: String::new(),
        };
        begin(shard, inputs, outputs);
    }
    let pools = plan.shards.iter().map(|shard| shard.pool.clone()).collect();
    let (facts, heard) = (inputs.facts, inputs.heard);
    let front = shard::front(
        cores,
        inputs.outcomes,
        inputs.questions,
        outputs.status,
        outputs.views,
    );
    for (name, part) in [
        (
            "the router",
            shard::route(pools, facts, heard, lanes).boxed(),
        ),
        ("the front", front.boxed()),
    ] {
        let end = end.clone();
        tasks.spawn(named(name, async move {
            tokio::select! {
                biased;
                () = part => {}
                () = end.cancelled() => {}
            }
        }));
    }
}

fn pace(config: &Config) -> CoalesceWindow {
    CoalesceWindow {
        quiet: Duration::from_millis(config.quiet_ms),
        patience: Duration::from_millis(config.patience_ms),
    }
}

/// Questions of people that wait.
pub(crate) const QUESTIONS: usize = 16;
