//! The observer of another scheduler: it reads and decides, and no part of it can write.

use super::part::{Part, named};
use crate::clock::Wall;
use crate::cycle::{CycleInputs, CycleOutputs, Question};
use crate::report::{self, QueueMeters, Views};
use crate::shard::Plan;
use crate::status::{Meters, Status};
use crate::usage::{self, UsageMeters};
use crate::{Config, cycles, telemetry, watch as facts};
use kube::Client;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What people see.
pub(super) struct Show {
    pub(super) status: watch::Sender<Status>,
    pub(super) questions: mpsc::Receiver<Question>,
    pub(super) meters: Arc<Meters>,
    pub(super) queue_meters: Arc<QueueMeters>,
    pub(super) usage_meters: Arc<UsageMeters>,
    pub(super) agent_meters: Arc<telemetry::AgentMeters>,
}

/// Starts it.
pub(super) fn observe(
    config: &Config,
    plan: &Plan,
    wall: &Wall,
    client: Client,
    end: &CancellationToken,
    tasks: &mut JoinSet<Part>,
    show: Show,
) {
    tracing::info!(
        scheduler = config.scheduler_name,
        "observes, and writes nothing"
    );
    let (leading_out, leading) = watch::channel(false);
    let relist = watch::Sender::new(0);
    let lengths = show.meters.lengths();
    let (facts_out, facts) = lengths.unbounded("facts_of_watches");
    tasks.spawn(named(
        "the watches",
        facts::run(
            client.clone(),
            facts_out,
            |_| {},
            None,
            relist.subscribe(),
            end.clone(),
        ),
    ));
    // The reports' gauges; a replica that does not lead reports nothing else.
    let (views_out, views) = watch::channel(Views::default());
    let (groups_out, groups) = mpsc::channel(1);
    tasks.spawn(named(
        "the reports",
        report::run(
            client,
            show.queue_meters,
            None,
            report::ReportInputs {
                views,
                groups,
                with_phase: false,
            },
            wall.clone(),
            end.clone(),
        ),
    ));
    let (heard_out, heard) = telemetry::channel(None);
    let (outcomes_out, outcomes) = lengths.unbounded("outcomes");
    // Nothing comes from there: agents are read where they write, and nothing is done.
    let silent = end.clone();
    tasks.spawn(async move {
        silent.cancelled().await;
        drop((leading_out, heard_out, outcomes_out));
        Ok("silence")
    });
    let (work, _) = lengths.unbounded("actions");
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
        awaited: crate::act::AwaitedClaims::default(),
        pool: String::new(),
        relist,
        work,
        status: show.status,
        views: views_out,
        groups: groups_out,
        meters: show.meters,
    };
    let services = cycles::CycleServices {
        usage_meters: show.usage_meters,
        scale_up: None,
        layouts: None,
    };
    cycles::start(config, plan, inputs, outputs, &services, end, tasks);
}
