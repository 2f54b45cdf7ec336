//! What the scheduler's measurements have in common.

use std::path::PathBuf;
use std::time::Duration;

use aliquot_tests::burst::{make, whole};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::scheduler::{Replica, Scheduler};
use anyhow::Result;
use clap::Args;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use proto::names::{NAMESPACE, kai, object};
use serde_json::{Value, json};

pub(crate) const LOAD: &str = "load";

pub(crate) const CARDS: u32 = 8;

pub(crate) const LIMIT: Duration = Duration::from_mins(8);

/// The size of a measurement.
#[derive(Debug, Args)]
pub(crate) struct Sizes {
    /// Simulated nodes, of eight cards each.
    #[arg(long, default_value_t = 500)]
    pub(crate) nodes: usize,
    /// Pods with one whole card each.
    #[arg(long, default_value_t = 4000)]
    pub(crate) pods: usize,
    /// Pods with a tenth of a card each.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) shares: usize,
    /// Pods that wait for what there is not, while others come.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) pending: usize,
    /// Pairs of the scheduler and the bare writes, or kube-scheduler; repetitions of gangs and
    /// fail-overs.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Only this part: whole, shares, jobs, gangs, rate, owned, agents, failover; or large, which
    /// is never one of all: `--only large --nodes 4000 --pods 130000` takes a quarter of an hour.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Leaves profiles of the API server's processor time here, of the first seconds of each
    /// burst of the scheduler's and of the bare one.
    #[arg(long)]
    pub(crate) profiles: Option<PathBuf>,
}

pub(crate) fn names(prefix: &str, count: usize, pod: impl Fn(&str) -> Value) -> Vec<Value> {
    (0..count)
        .map(|at| pod(&format!("{prefix}-{at:05}")))
        .collect()
}

pub(crate) fn replica(name: &str) -> Replica {
    Replica {
        name: name.to_owned(),
        args: Vec::new(),
        ..Replica::only()
    }
}

/// Makes pods as users do, through admission, while no scheduler runs.
pub(crate) async fn admit(cluster: &Cluster, pods: &[Value]) -> Result<()> {
    make(&cluster.client, pods.to_vec()).await?;
    free_lease(cluster).await
}

pub(crate) async fn free_lease(cluster: &Cluster) -> Result<()> {
    let now = DeleteParams::default();
    match leases(cluster).delete(object::LEASE, &now).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}

pub(crate) fn leases(cluster: &Cluster) -> Api<Lease> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

/// Starts it, with every agent looking for it.
pub(crate) async fn start(cluster: &Cluster, name: &str) -> Result<Scheduler> {
    start_with(cluster, name, Vec::new()).await
}

/// Starts a scheduler with these flags.
pub(crate) async fn start_with(
    cluster: &Cluster,
    name: &str,
    args: Vec<String>,
) -> Result<Scheduler> {
    let scheduler = cluster
        .start_scheduler(Replica {
            args,
            ..replica(name)
        })
        .await?;
    cluster
        .simulated_agents()?
        .speak_to(&[scheduler.replica.telemetry()]);
    Ok(scheduler)
}

/// Ends it; no agent connects to it any more.
pub(crate) async fn stop(cluster: &Cluster, mut scheduler: Scheduler) -> Result<()> {
    cluster.simulated_agents()?.speak_to(&[]);
    scheduler.daemon.stop().await
}

pub(crate) fn gang(name: &str, size: usize) -> Value {
    json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": { "name": name, "namespace": LOAD },
        "spec": { "minMember": size, "queue": kai::DEFAULT_QUEUE },
    })
}

pub(crate) fn member(name: &str, group: &str) -> Value {
    let mut pod = whole(LOAD, name, 1);
    pod["metadata"]["annotations"] = json!({ kai::POD_GROUP: group });
    pod
}
