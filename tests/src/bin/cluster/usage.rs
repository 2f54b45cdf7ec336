//! What queues used in the past, as a server of Prometheus' API says it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::ports::SCHEDULER_METRICS;
use aliquot_tests::prometheus::Prometheus as Recorder;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sim_cluster::prometheus::{Answer, Prometheus};

const SHARD: &str = "schedulingshard/default";
/// From a change until it takes effect.
const SOON: Duration = Duration::from_secs(30);
/// A decision and a binding, which wait for no answer: `usageQueryTimeout` is twice as long.
const AT_ONCE: Duration = Duration::from_secs(10);

pub(crate) async fn a_queue_that_used_much_waits_behind_the_one_that_used_little(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let outcome = waits(cluster).await;
    forget_shard(cluster, outcome).await
}

/// The same of what a real Prometheus has read from the scheduler's own page, also by a scheduler
/// that has just started.
pub(crate) async fn a_real_prometheus_knows_who_used_much(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let labels = json!({ "namespace": "aliquot-system", "pod": "aliquot-scheduler-0" });
    let server = Recorder::start(cluster, &[(SCHEDULER_METRICS, labels)]).await?;
    let outcome = recorded(cluster, &server).await;
    let stopped = server.stop().await;
    forget_shard(cluster, outcome.and(stopped)).await
}

async fn forget_shard(cluster: &Cluster, outcome: Result<()>) -> Result<()> {
    let args = ["delete", SHARD, "--ignore-not-found"];
    let deleted = cluster.kubectl.run(&args).await;
    outcome?;
    deleted.map(drop)
}

fn queue(name: &str) -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let gpu = json!({ "quota": 0, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": name },
        "spec": { "resources": { "cpu": all, "gpu": gpu, "memory": all } },
    })
}

/// A pod that needs the only card for itself.
fn large(ns: &str, name: &str, queue: &str) -> Value {
    let mut large = pod(ns, name, &[("gpu-memory", "12000")], "report hold");
    large["metadata"]["labels"] = json!({ "kai.scheduler/queue": queue });
    large
}

fn shard(url: &str, resolution: &str) -> Value {
    let params = json!({ "windowSize": "10m", "fetchInterval": "1s", "stalenessPeriod": "5s",
        "extraParams": { "usageQueryTimeout": "20s", "queryResolution": resolution } });
    json!({
        "apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard",
        "metadata": { "name": "default" },
        "spec": { "usageDBConfig": { "clientType": "prometheus", "connectionString": url,
            "usageParams": params } },
    })
}

/// Waits for `UsageStale` with this status, reason and word in the message.
async fn says(cluster: &Cluster, wanted: [&str; 3]) -> Result<()> {
    let path = "-o=jsonpath={range .status.conditions[?(@.type==\"UsageStale\")]}{.status} {.reason} {.message}{end}";
    until("the condition UsageStale", SOON, || async {
        let said = cluster.kubectl.run(&["get", SHARD, path]).await?;
        let all = wanted.iter().all(|word| said.contains(word));
        Ok(Seen::when(all, said))
    })
    .await
    .map(drop)
}

/// Both wait for the card that `blocker` holds; it goes, and the one that gets the card is named.
async fn next(cluster: &Cluster, ns: &str, blocker: &str, round: &str) -> Result<String> {
    let pods = cluster.pods(ns);
    let names = ["much", "little"].map(|queue| (queue, format!("{queue}-{round}")));
    for (queue, name) in &names {
        cluster.apply_one(&large(ns, name, queue)).await?;
        until("it waits", SOON, || async {
            let why = why_pending(&pods.get(name).await?);
            Ok(Seen::when(why.is_some(), "it is not told why"))
        })
        .await?;
    }
    let args = ["-n", ns, "delete", "pod", blocker, "--wait=true"];
    cluster.kubectl.run(&args).await?;
    until("one of them is bound", AT_ONCE, || async {
        for (queue, name) in &names {
            let spec = pods.get(name).await?.spec.unwrap_or_default();
            if spec.node_name.is_some() {
                return Ok(Seen::Done((*queue).to_owned()));
            }
        }
        Ok(Seen::NotYet("both wait".to_owned()))
    })
    .await
}

/// The older queue comes first if nothing else decides, and has the card then.
async fn without_past_use(cluster: &mut Cluster) -> Result<String> {
    let ns = cluster.namespace().await?;
    cluster.apply_one(&queue("much")).await?;
    tokio::time::sleep(Duration::from_millis(1100)).await;
    cluster.apply_one(&queue("little")).await?;
    cluster.run_share(&large(&ns, "before", "much")).await?;
    let first = next(cluster, &ns, "before", "without").await?;
    ensure!(first == "much", "without past use {first} is next");
    cluster.delete_pod(&ns, "little-without").await?;
    Ok(ns)
}

async fn recorded(cluster: &mut Cluster, server: &Recorder) -> Result<()> {
    let ns = without_past_use(cluster).await?;
    // Only what a step of the query falls into counts: with a minute, nothing that is younger.
    cluster.apply_one(&shard(&server.url(), "1s")).await?;
    until("the use of the older queue", SOON, || async {
        let query = "kai_queue_gpu_usage{queue_name=\"much\"}";
        let values = server.query(query).await?;
        let some = values.iter().any(|value| *value > 0.0);
        Ok(Seen::when(some, format!("{values:?}")))
    })
    .await?;
    says(cluster, ["False", "current", "sliding, 10m"]).await?;
    let second = next(cluster, &ns, "much-without", "with").await?;
    ensure!(second == "little", "with past use {second} is next");
    cluster.delete_pod(&ns, "much-with").await?;
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    scheduler.daemon.kill().await?;
    scheduler.daemon.start_again()?;
    // `little` has held the card for some seconds now, and `much` for longer before it.
    let third = next(cluster, &ns, "little-with", "again").await?;
    ensure!(third == "little", "after a restart {third} is next");
    cluster.limits_hold().await
}

async fn waits(cluster: &mut Cluster) -> Result<()> {
    let server = Prometheus::start().await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    for at in (now - 1200..now + 1200).step_by(60) {
        for (resource, amount) in [("nvidia_com_gpu", 1.0), ("cpu", 64.0), ("memory", 1e12)] {
            let labels = [("resource", resource), ("node", "n1")];
            server.put("kube_node_status_capacity", &labels, at, amount);
        }
        for (queue, held) in [("much", 0.9), ("little", 0.1)] {
            let labels = [("queue_name", queue), ("instance", "10.0.0.1:8080")];
            server.put("kai_queue_allocated_gpus", &labels, at, held);
        }
    }
    let ns = without_past_use(cluster).await?;
    cluster.apply_one(&shard(&server.url(), "1m")).await?;
    says(cluster, ["False", "current", "sliding, 10m"]).await?;
    let second = next(cluster, &ns, "much-without", "with").await?;
    ensure!(second == "little", "with past use {second} is next");
    let args = ["-n", &ns, "delete", "pod", "much-with", "--wait=true"];
    cluster.kubectl.run(&args).await?;

    // It no longer answers: decisions continue as without it, and the shard reports it.
    server.answer(Answer::Silence);
    says(cluster, ["True", "stale", "no answer came"]).await?;
    let third = next(cluster, &ns, "little-with", "silent").await?;
    ensure!(third == "much", "with a silent server {third} is next");
    server.answer(Answer::Samples);
    says(cluster, ["False", "current", "sliding"]).await?;
    drop(server);
    says(cluster, ["True", "stale", "127.0.0.1"]).await?;
    cluster.limits_hold().await
}
