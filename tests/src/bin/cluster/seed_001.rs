//! A Ray user's clusters, through Ray's operator: a gang, a priority, two workers
//! on one GPU. The two samples are the operator's own.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gang::{bound_together, ready};
use aliquot_tests::gpu::Hardware;
use aliquot_tests::operator::KUBERAY;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::fs;
use std::time::Duration;

/// The samples name no namespace.
const NAMESPACE: &str = "default";
const SAMPLE: &str = "ray.io/cluster=raycluster-sample";
const HALF: &str = "ray.io/cluster=raycluster-half-gpu";
const COLUMNS: &str = "custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,GPU-FRACTION:.metadata.annotations.gpu-fraction,GPU-GROUP:.metadata.labels.runai-gpu-group";

/// One of the operator's two samples for KAI.
fn sample(cluster: &Cluster, name: &str) -> Result<String> {
    let path = cluster
        .programs
        .operator_file(&format!("samples/kuberay/ray-cluster.{name}.yaml"))?;
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

async fn prepare(cluster: &mut Cluster) -> Result<()> {
    cluster.operator(&KUBERAY).await?;
    cluster.aliquot(&Hardware::preset("L4", 1)).await
}

/// Waits until all are ready: the head's GCS, then the workers behind it.
async fn all_ready(cluster: &Cluster, selector: &str, count: usize) -> Result<Vec<Pod>> {
    cluster
        .pods_until(NAMESPACE, selector, count, "ready", ready)
        .await
}

pub(crate) async fn seed_001_a_raycluster_is_a_gang_in_its_queue(
    cluster: &mut Cluster,
) -> Result<()> {
    prepare(cluster).await?;
    cluster.apply(&sample(cluster, "kai-scheduler")?).await?;

    until("the queues' columns", Duration::from_secs(10), || async {
        let table = cluster.kubectl.run(&["get", "queues"]).await?;
        let has = |cells: &[&str]| {
            table
                .lines()
                .any(|line| line.split_whitespace().eq(cells.iter().copied()))
        };
        Ok(Seen::when(
            has(&["NAME", "PRIORITY", "PARENT", "CHILDREN", "DISPLAYNAME"])
                && has(&["department-1", r#"["team-a"]"#])
                && has(&["team-a", "department-1"]),
            table.clone(),
        ))
    })
    .await?;

    let pods = cluster.pods_running(NAMESPACE, SAMPLE, 3).await?;
    bound_together(&pods)?;
    let group = cluster.group_of(&pods[0]).await?;
    for pod in &pods {
        let other = cluster.group_of(pod).await?;
        ensure!(other.name_any() == group.name_any(), "two groups");
        ensure!(
            pod.labels()
                .get(proto::names::kai::QUEUE_LABEL)
                .is_some_and(|queue| queue == "team-a"),
            "{:?}",
            pod.labels()
        );
    }
    ensure!(
        group.spec.min_member == Some(3) && group.spec.queue.as_deref() == Some("team-a"),
        "{:?}",
        group.spec
    );
    ensure!(
        group.name_any().starts_with("pg-raycluster-sample-"),
        "{}",
        group.name_any()
    );
    all_ready(cluster, SAMPLE, 3).await?;
    Ok(())
}

pub(crate) async fn seed_001_a_missing_queue_label_is_told_by_the_operator(
    cluster: &mut Cluster,
) -> Result<()> {
    prepare(cluster).await?;
    let whole = sample(cluster, "kai-scheduler")?;
    let unlabelled: String = whole
        .split_inclusive('\n')
        .filter(|line| !line.contains("kai.scheduler/queue:"))
        .collect();
    ensure!(unlabelled.len() < whole.len(), "the sample has no label");
    cluster.apply(&unlabelled).await?;
    until(
        "the operator's word about the label",
        Duration::from_secs(20),
        || async {
            let log = cluster.operator_log(&KUBERAY).await?;
            Ok(Seen::when(
                log.contains("Queue label missing from"),
                "not in its log",
            ))
        },
    )
    .await?;
    // As with KAI, they are the default queue's.
    let pods = cluster.pods_running(NAMESPACE, SAMPLE, 3).await?;
    let group = cluster.group_of(&pods[0]).await?;
    ensure!(
        group.spec.queue.as_deref() == Some(proto::names::kai::DEFAULT_QUEUE),
        "{:?}",
        group.spec
    );
    Ok(())
}

pub(crate) async fn seed_001_a_label_gives_the_cluster_its_priority(
    cluster: &mut Cluster,
) -> Result<()> {
    prepare(cluster).await?;
    let label = "kai.scheduler/queue: team-a";
    let build = sample(cluster, "kai-scheduler")?.replace(
        label,
        &format!("{label}\n    priorityClassName: build # as the user writes it"),
    );
    cluster.apply(&build).await?;
    let pods = cluster.pods_running(NAMESPACE, SAMPLE, 3).await?;
    let group = cluster.group_of(&pods[0]).await?;
    ensure!(
        group.spec.priority_class_name.as_deref() == Some("build"),
        "{:?}",
        group.spec
    );
    Ok(())
}

pub(crate) async fn seed_001_two_workers_share_one_gpu(cluster: &mut Cluster) -> Result<()> {
    prepare(cluster).await?;
    cluster.apply(&sample(cluster, "kai-gpu-sharing")?).await?;
    let pods = cluster.pods_running(NAMESPACE, HALF, 3).await?;
    let table = cluster
        .kubectl
        .run(&["get", "pods", "-l", HALF, "-o", COLUMNS])
        .await?;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    ensure!(rows.iter().all(|row| row.len() == 4), "{table}");
    let heads: Vec<_> = rows.iter().filter(|row| row[2] == "<none>").collect();
    let workers: Vec<_> = rows.iter().filter(|row| row[2] == "0.5").collect();
    ensure!(
        heads.len() == 1 && heads[0][0].contains("-head") && heads[0][3] == "<none>",
        "{table}"
    );
    ensure!(
        workers.len() == 2
            && workers
                .iter()
                .all(|row| row[0].contains("-shared-gpu-worker-"))
            && workers[0][1] == workers[1][1]
            && workers[0][3] == workers[1][3]
            && workers[0][3] != "<none>",
        "{table}"
    );

    // Both see the same card and no other, and hold memory on it.
    let mut cards = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.name_any().contains("-head")) {
        let name = pod.name_any();
        // Ray's operator gives every pod a memory of its own for its object store.
        let mounts = serde_json::to_string(&pod.spec)?;
        ensure!(mounts.contains("/dev/shm"), "no /dev/shm of its own");
        let report = cluster.said(NAMESPACE, &name, "worker", "report").await?;
        let devices = report["devices"].as_array().context("devices")?;
        ensure!(devices.len() == 1, "{report}");
        cards.push(devices[0]["uuid"].clone());
        cluster.said(NAMESPACE, &name, "worker", "alloc").await?;
    }
    ensure!(cards.len() == 2 && cards[0] == cards[1], "{cards:?}");
    cluster.limits_hold().await?;
    all_ready(cluster, HALF, 3).await?;
    Ok(())
}
