//! No namespace, and no client without a token, can harm the others. Every program runs under the
//! memory limit that `deploy/` gives it, takes the largest inputs that its port and its watches
//! take, and outlives them.
#![expect(clippy::print_stdout, reason = "the log of a run has the peaks")]

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::daemon::Daemon;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::phase_of;
use aliquot_tests::ports::SCHEDULER_METRICS;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::{http as plain, node};
use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Client, Config};
use serde_json::{Value, json};

/// Bytes of a body: just below what is taken.
const BODY: usize = (8 << 20) - 4096;
/// Pods of 1.2 MB of one namespace. In pages of 500 they take more than the scheduler's memory.
const FAT_PODS: usize = 400;

/// It is the same process, and the kernel killed nothing for its memory.
fn lives(daemon: &mut Daemon, pid: Option<u32>) -> Result<()> {
    daemon.alive()?;
    ensure!(daemon.pid() == pid, "{} was started again", daemon.name());
    let memory = daemon.memory().context("it has no memory limit")?;
    ensure!(memory.kills()? == 0, "{} ran out of memory", daemon.name());
    println!(
        "    {}: at most {} of {} MiB",
        daemon.name(),
        memory.peak()? >> 20,
        memory.bytes >> 20
    );
    Ok(())
}

/// A share is made, bound and runs.
async fn a_share_runs(cluster: &mut Cluster, name: &str) -> Result<()> {
    let ns = cluster.namespace().await?;
    cluster
        .apply_one(&pod(&ns, name, &[("gpu-memory", "1000")], "report hold"))
        .await?;
    cluster.pod_phase(&ns, name, "Running").await?;
    Ok(())
}

pub(crate) async fn no_body_without_a_token_ends_admission(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let daemon = |cluster: &Cluster| cluster.admission.as_ref().map(|one| one.daemon.pid());
    let pid = daemon(cluster).context("no admission")?;
    let repeated = |piece: &str, before: &str, after: &str| {
        let count = (BODY - before.len() - after.len()) / (piece.len() + 1);
        let all = vec![piece; count].join(",");
        format!("{before}{all}{after}")
    };
    let group =
        r#"{"request":{"uid":"u","kind":{"kind":"PodGroup"},"object":{"spec":{"subGroups":["#;
    let bodies = [
        repeated(r#"{"":0}"#, "[", "]"),
        repeated("[]", r#"{"request":{"uid":"u","object":["#, "]}}"),
        repeated(r#"{"name":"a"}"#, group, "]}}}}"),
        repeated("0", r#"{"request":{"uid":"u","object":["#, "]}}"),
        format!(
            r#"{{"request":{{"uid":"u","object":"{}"}}}}"#,
            "x".repeat(BODY / 2)
        ),
        "[".repeat(BODY),
    ];
    let mut config = Config::new("https://127.0.0.1:8443".parse()?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let stranger = Client::try_from(config)?;
    let paths = [
        "/mutate-pods",
        "/validate",
        "/validate-resize",
        "/validate-resize/passed-on",
    ];
    let mut requests = Vec::new();
    for body in &bodies {
        for path in paths {
            for _ in 0..3 {
                requests.push(
                    Request::post(path)
                        .header("content-type", "application/json")
                        .header("content-length", body.len())
                        .body(body.clone().into_bytes())?,
                );
            }
        }
    }
    // Whatever the answer is.
    stream::iter(requests)
        .for_each_concurrent(24, |request| {
            let stranger = stranger.clone();
            async move {
                let _ = stranger.request::<Value>(request).await;
            }
        })
        .await;
    let admission = cluster.admission.as_mut().context("no admission")?;
    lives(&mut admission.daemon, pid)?;
    a_share_runs(cluster, "after").await
}

pub(crate) async fn a_selector_that_grows_ends_no_scheduler_and_holds_up_nobody(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let driver = "grows.example.com";
    let held = grows(cluster, &ns, driver).await;
    for what in [["resourceslice", "grows"], ["deviceclass", driver]] {
        let [kind, name] = what;
        cluster
            .kubectl
            .run(&["delete", kind, name, "--ignore-not-found"])
            .await?;
    }
    held
}

async fn grows(cluster: &mut Cluster, ns: &str, driver: &str) -> Result<()> {
    let pid = cluster
        .scheduler
        .as_ref()
        .context("no scheduler")?
        .daemon
        .pid();
    cluster
        .apply_one(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": { "name": driver },
            "spec": { "selectors": [{ "cel": {
                "expression": format!("device.driver == \"{driver}\"") } }] },
        }))
        .await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": { "name": "grows" },
            "spec": { "driver": driver, "nodeName": node::NAME,
                "pool": { "name": "grows", "generation": 1, "resourceSliceCount": 1 },
                "devices": [{ "name": "one" }] },
        }))
        .await?;
    let doubled = (0..11).rev().fold("size(v11) > 0".to_owned(), |inner, at| {
        format!(
            "cel.bind(v{}, v{at} + v{at} + v{at} + v{at}, {inner})",
            at + 1
        )
    });
    let eight = (0..7).rev().fold("size(v7) > 0".to_owned(), |inner, at| {
        let all = vec![format!("v{at}"); 8].join(",");
        format!("cel.bind(v{}, [{all}], {inner})", at + 1)
    });
    for (name, expression) in [
        ("doubles", format!("cel.bind(v0, [1, 2], {doubled})")),
        ("eight", format!("cel.bind(v0, [1], {eight})")),
    ] {
        cluster
            .apply_one(&json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": { "name": name, "namespace": ns },
                "spec": { "devices": { "requests": [{ "name": "r", "exactly": {
                    "deviceClassName": driver,
                    "selectors": [{ "cel": { "expression": expression } }] } }] } },
            }))
            .await?;
        let mut claims = pod(ns, name, &[], "report");
        claims["spec"]["resourceClaims"] = json!([{ "name": "c", "resourceClaimName": name }]);
        claims["spec"]["containers"][0]["resources"] = json!({ "claims": [{ "name": "c" }] });
        cluster.apply_one(&claims).await?;
        let why = cluster.reason(ns, name).await?;
        ensure!(why.contains("its CEL expression"), "{name}: {why}");
    }
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    lives(&mut scheduler.daemon, pid)?;
    a_share_runs(cluster, "beside").await
}

pub(crate) async fn the_largest_pods_of_a_namespace_end_no_scheduler_that_starts_or_shows_them(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let value = "x".repeat(100_000);
    let env: Vec<Value> = (0..12)
        .map(|at| json!({ "name": format!("N{at}"), "value": value }))
        .collect();
    let fat = |at: usize| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("fat-{at}"), "namespace": ns },
            "spec": { "schedulerName": "nobody", "containers": [
                { "name": "main", "image": "none", "env": env }] },
        })
    };
    let pods = cluster.pods(&ns);
    stream::iter(0..FAT_PODS)
        .map(|at| {
            let (pods, fat) = (pods.clone(), serde_json::from_value(fat(at)));
            async move { anyhow::Ok(pods.create(&PostParams::default(), &fat?).await?) }
        })
        .buffer_unordered(4)
        .try_for_each(|_| std::future::ready(Ok(())))
        .await?;
    cluster.replace_scheduler(Replica::only()).await?;
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    let pid = scheduler.daemon.pid();
    lives(&mut scheduler.daemon, pid)?;
    let snapshot = plain::length(SCHEDULER_METRICS, "/get-snapshot").await?;
    // What is long in a pod is not in it.
    ensure!(snapshot > 10_000, "{snapshot} bytes");
    lives(&mut scheduler.daemon, pid)?;
    a_share_runs(cluster, "beside").await?;
    let still = cluster.pods(&ns).get("fat-0").await?;
    ensure!(phase_of(&still) == "Pending", "it was placed");
    // The pods are large, and each list of pods in a later claim would read them.
    let all = ListParams::default();
    cluster
        .pods(&ns)
        .delete_collection(&DeleteParams::default().grace_period(0), &all)
        .await?;
    until("the large pods gone", Duration::from_mins(1), || async {
        let left = cluster.pods(&ns).list_metadata(&all).await?.items.len();
        Ok(Seen::when(left <= 1, format!("{left} left")))
    })
    .await
}
