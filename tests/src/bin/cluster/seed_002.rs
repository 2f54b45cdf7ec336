//! Four nodes of eight GPUs, two departments, and the jobs that a user watches being
//! placed and moved. The nodes are simulated, the API server is real.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::manifest::documents;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

const NODES: [&str; 4] = ["node-1", "node-2", "node-3", "node-4"];
const PROJECTS: [&str; 4] = ["project-a", "project-b", "project-c", "project-d"];
const INITIAL: [(&str, &str); 4] = [
    ("training-job-1", "node-1"),
    ("training-job-2", "node-1"),
    ("training-job-3", "node-2"),
    ("interactive-job", "node-3"),
];
/// The controller that recreates a moved pod takes some time.
const LIMIT: Duration = Duration::from_mins(1);

/// Every job and the node that its one running pod is on.
async fn seats(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let pods = Api::<Pod>::all(cluster.client.clone())
        .list(&ListParams::default().labels("job-name"))
        .await?;
    Ok(pods
        .into_iter()
        .filter(|pod| phase_of(pod) == "Running" && pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| {
            let job = pod.labels().get("job-name")?.clone();
            let node = pod.spec.as_ref()?.node_name.clone()?;
            Some((job, node))
        })
        .collect())
}

fn places(of: &[(&str, &str)]) -> BTreeMap<String, String> {
    of.iter()
        .map(|(job, node)| ((*job).to_owned(), (*node).to_owned()))
        .collect()
}

async fn seats_are(cluster: &Cluster, wanted: &[(&str, &str)]) -> Result<()> {
    let wanted = places(wanted);
    until("every job in its place", LIMIT, || async {
        let seen = seats(cluster).await?;
        Ok(Seen::when(
            seen == wanted,
            format!("{seen:?} instead of {wanted:?}"),
        ))
    })
    .await
}

/// No pod is moved any more.
async fn stay(cluster: &Cluster, wanted: &[(&str, &str)]) -> Result<()> {
    let wanted = places(wanted);
    stays("every job in its place", Duration::from_secs(2), || async {
        let seen = seats(cluster).await?;
        Ok(Seen::when(seen == wanted, format!("{seen:?}")))
    })
    .await
}

async fn initial_state(cluster: &mut Cluster) -> Result<()> {
    // The real node is no part of it: its one card is in use, and too small for any job.
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&pod(
            &ns,
            "elsewhere",
            &[("gpu-memory", "1000")],
            "report hold",
        ))
        .await?;
    cluster.simulate_nodes(&NODES, 8).await?;
    for project in PROJECTS {
        cluster.make_namespace(project).await?;
    }
    cluster.apply_file("tests/seeds/002/1-queues.yaml").await?;
    // One after the other: of jobs that come at once, the larger ones may go first, and
    // then others share a node.
    let file = cluster
        .programs
        .tree
        .join("tests/seeds/002/2-initial-state.yaml");
    let jobs = documents(&std::fs::read_to_string(file)?)?;
    for (at, job) in jobs.iter().enumerate() {
        cluster.apply_one(job).await?;
        seats_are(cluster, &INITIAL[..=at]).await?;
    }
    stay(cluster, &INITIAL).await
}

pub(crate) async fn seed_002_as_written_every_job_has_room_without_a_move(
    cluster: &mut Cluster,
) -> Result<()> {
    initial_state(cluster).await?;
    cluster
        .apply_file("tests/seeds/002/3-new-workloads.yaml")
        .await?;
    // Node 4 is free: no pod is moved for a job that fits there.
    let mut wanted = INITIAL.to_vec();
    wanted.extend([("training-job-b", "node-3"), ("training-job-a", "node-4")]);
    seats_are(cluster, &wanted).await?;
    stay(cluster, &wanted).await
}

pub(crate) async fn seed_002_with_a_node_kept_empty_jobs_are_moved_together(
    cluster: &mut Cluster,
) -> Result<()> {
    // Restarted with the setting, and without it again, whatever comes of the claim.
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    let changed = scheduler.daemon.restart_with(|command| {
        // The example's jobs are bare pods that must be moved at once, as by KAI.
        command
            .flag("--keep-empty-nodes", "1")
            .flag("--consolidation-min-age-s", "0")
            .arg("--consolidate-bare-pods")
    });
    let plain = changed.await?;
    let outcome = consolidated(cluster).await;
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    scheduler.daemon.restart_with(|_| plain).await?;
    outcome
}

async fn consolidated(cluster: &mut Cluster) -> Result<()> {
    initial_state(cluster).await?;
    cluster
        .apply_file("tests/seeds/002/3-new-workloads.yaml")
        .await?;
    let last = [
        ("training-job-1", "node-1"),
        ("training-job-a", "node-1"),
        ("training-job-3", "node-2"),
        ("training-job-2", "node-2"),
        ("interactive-job", "node-3"),
        ("training-job-b", "node-3"),
    ];
    seats_are(cluster, &last).await?;
    stay(cluster, &last).await
}
