//! Broken servers and failing cards: which component notices, and how it is repaired.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::share::{PROGRAM, grant_of, line, pod};
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use api::gpu_node::GpuStatus;
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::modes::policy;
use crate::strangers::notice;

/// A pod whose container starts again when it ends.
fn tenant(ns: &str, name: &str, mib: &str, script: &str) -> Value {
    let mut manifest = pod(ns, name, &[("gpu-memory", mib)], script);
    manifest["spec"]["restartPolicy"] = json!("Always");
    manifest
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .map(|s| s.restart_count)
        .sum()
}

fn gpus(cluster: &Cluster) -> Result<&Gpus> {
    cluster.gpus.as_ref().context("no GPUs")
}

/// The value of one series on the agent's page.
async fn metric(cluster: &Cluster, series: &str) -> Result<f64> {
    let page = gpus(cluster)?.metrics().await?;
    let mut lines = page.lines();
    let found = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(found.with_context(|| format!("no {series}"))?.parse()?)
}

/// Two tenants of the first card and one of the second.
async fn three(cluster: &mut Cluster) -> Result<String> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    for (name, mib) in [("large", "13000"), ("beside", "14000"), ("victim", "1500")] {
        let manifest = tenant(&ns, name, mib, "alloc 500 hold");
        cluster.run_share(&manifest).await?;
        cluster.said(&ns, name, "main", "alloc").await?;
    }
    // The supervisor asks for them from time to time: what broke had these.
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    until("three known clients", Duration::from_secs(10), || async {
        let page = gpus.metrics().await?;
        let clients = |line: &str| -> Option<u64> {
            let rest = line.strip_prefix("aliquot_gpu_mps_clients{")?;
            rest.rsplit(' ').next()?.parse().ok()
        };
        let known: u64 = page.lines().filter_map(clients).sum();
        Ok(Seen::when(known == 3, format!("{known}")))
    })
    .await?;
    Ok(ns)
}

/// It works, or works again, and its container has restarted this often.
async fn works(cluster: &Cluster, ns: &str, name: &str, started: i32) -> Result<()> {
    until(
        &format!("{name} works after {started} restarts"),
        Duration::from_secs(40),
        || async {
            let pod = cluster.pods(ns).get(name).await?;
            let seen = restarts(&pod);
            let more = [PROGRAM, "alloc", "100"];
            let said = cluster.kubectl.exec(ns, name, "main", &more).await?;
            let ok = line(&said, "alloc").is_some_and(|line| line["ok"] == true);
            Ok(Seen::when(ok && seen == started, format!("{seen}: {said}")))
        },
    )
    .await
}

pub(crate) async fn a_fault_costs_the_sharers_of_its_card_alone_and_the_server_comes_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = three(cluster).await?;
    let at = |name: &'static str| {
        let pods = cluster.pods(&ns);
        async move { anyhow::Ok(grant_of(&pods.get(name).await?)?.containers[0].gpus[0].clone()) }
    };
    ensure!(
        at("victim").await? == at("large").await?,
        "it is on the other card"
    );
    let broke = r#"aliquot_mps_servers_broke_total{state="ServerFault"}"#;
    let (before, mended) = (
        metric(cluster, broke).await?,
        metric(cluster, "aliquot_mps_mended_seconds_count").await?,
    );
    // Neither it nor its neighbour leaves by itself.
    let faulty = [PROGRAM, "context", "fault", "hold"];
    let began = Instant::now();
    let mut fault = tokio::process::Command::new(&cluster.kubectl.program)
        .env("KUBECONFIG", &cluster.kubectl.kubeconfig)
        .args(["exec", "-n", &ns, "victim", "-c", "main", "--"])
        .args(faulty)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    until("the fault seen", Duration::from_secs(5), || async {
        let now = metric(cluster, broke).await?;
        Ok(Seen::when(now > before, "not yet"))
    })
    .await?;
    // kubectl alone takes some of it.
    ensure!(
        began.elapsed() < Duration::from_millis(1500),
        "{:?}",
        began.elapsed()
    );
    works(cluster, &ns, "large", 1).await?;
    works(cluster, &ns, "victim", 1).await?;
    works(cluster, &ns, "beside", 0).await?;
    let now = metric(cluster, "aliquot_mps_mended_seconds_count").await?;
    ensure!(now > mended, "it is not counted as mended");
    let _ = fault.kill().await;
    // The server says whose client it was, of the two shares that it has.
    let why = format!("its MPS server faulted, by a process of pod {ns}/victim");
    for pod in ["victim", "large"] {
        let said = notice(cluster, &ns, pod, "GPUShare").await?;
        ensure!(said.contains(&why), "{pod}: {said}");
    }
    Ok(())
}

pub(crate) async fn a_killed_server_costs_its_sharers_alone_and_comes_back(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = three(cluster).await?;
    let large = cluster.pods(&ns).get("large").await?;
    let card = grant_of(&large)?.containers[0].gpus[0].clone();
    let broke = r#"aliquot_mps_servers_broke_total{state="Ended"}"#;
    let before = metric(cluster, broke).await?;
    let driver = &gpus(cluster)?.driver;
    // That of a claim before this one may still be about to end.
    let (server, status) = until(
        "one server of the card",
        Duration::from_secs(10),
        || async {
            let status = driver.control(&["status"]).await?;
            let rows = status.lines().map(|line| line.split('\t').collect());
            let of_card = |row: &Vec<&str>| row.get(2..4) == Some(&[card.as_str(), "server"]);
            let servers: Vec<Vec<&str>> = rows.filter(of_card).collect();
            Ok(match &servers[..] {
                [server] => Seen::Done((server[0].parse()?, status.clone())),
                _ => Seen::NotYet(status.clone()),
            })
        },
    )
    .await?;
    kill(Pid::from_raw(server), Signal::SIGKILL)?;
    until("its end seen", Duration::from_secs(10), || async {
        let now = metric(cluster, broke).await?;
        Ok(Seen::when(
            now > before,
            format!("killed {server} of\n{status}"),
        ))
    })
    .await?;
    works(cluster, &ns, "large", 1).await?;
    works(cluster, &ns, "victim", 1).await?;
    works(cluster, &ns, "beside", 0).await
}

async fn card(cluster: &Cluster, uuid: &str) -> Result<GpuStatus> {
    let status = cluster.gpu_node().await?.status.unwrap_or_default();
    let mut cards = status.gpus.into_iter();
    cards
        .find(|card| card.uuid == uuid)
        .with_context(|| format!("no card {uuid}"))
}

async fn health(cluster: &Cluster, uuid: &str, wanted: &str, within: u64) -> Result<GpuStatus> {
    until(
        &format!("{uuid} {wanted}"),
        Duration::from_secs(within),
        || async {
            let card = card(cluster, uuid).await?;
            let seen = format!("{} {}", card.health, card.health_reason);
            Ok(if card.health == wanted {
                Seen::Done(card)
            } else {
                Seen::NotYet(seen)
            })
        },
    )
    .await
}

pub(crate) async fn a_lost_card_takes_its_own_shares_along_and_is_probed_before_it_returns(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    for (name, mib) in [("one", "14000"), ("two", "13000")] {
        let manifest = tenant(&ns, name, mib, "alloc 500 hold");
        cluster.run_share(&manifest).await?;
    }
    let of = |name: &'static str| {
        let pods = cluster.pods(&ns);
        async move { anyhow::Ok(grant_of(&pods.get(name).await?)?.containers[0].gpus[0].clone()) }
    };
    let (lost, other) = (of("one").await?, of("two").await?);
    gpus(cluster)?.driver.control(&["lost", &lost]).await?;
    let sick = health(cluster, &lost, "Unhealthy", 10).await?;
    ensure!(!sick.health_reason.is_empty(), "no reason");
    // Its pod is evicted, with the reason.
    let said = notice(cluster, &ns, "one", "Evict").await?;
    ensure!(said.contains("unhealthy"), "{said}");
    until("one is gone", Duration::from_secs(30), || async {
        let there = cluster.pods(&ns).get_opt("one").await?;
        Ok(Seen::when(there.is_none(), "it is there"))
    })
    .await?;
    let well = card(cluster, &other).await?;
    ensure!(
        well.health == "Healthy" && well.grants.iter().all(|grant| grant.complaint.is_empty()),
        "the other card suffers: {well:?}"
    );
    // What fits on the lost card alone waits.
    cluster
        .apply_one(&tenant(&ns, "late", "3000", "context hold"))
        .await?;
    let why = cluster.reason(&ns, "late").await?;
    ensure!(why.contains(&lost) || why.contains("healthy"), "{why}");
    gpus(cluster)?.driver.control(&["restore", &lost]).await?;
    // Answering once is not enough.
    stays(
        "it is not believed at once",
        Duration::from_secs(5),
        || async {
            let card = card(cluster, &lost).await?;
            Ok(Seen::when(card.health == "Unhealthy", "it is Healthy"))
        },
    )
    .await?;
    health(cluster, &lost, "Healthy", 60).await?;
    Ok(())
}

pub(crate) async fn an_xid_is_judged_by_its_class(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let uuid = cluster.gpu_node().await?.status.context("no status")?.gpus[0]
        .uuid
        .clone();
    // A program's own fault says nothing of the card.
    gpus(cluster)?.driver.control(&["xid", "31"]).await?;
    let series = format!(r#"aliquot_xid_errors_total{{UUID="{uuid}",xid="31"}}"#);
    until("XID 31 counted", Duration::from_secs(5), || async {
        Ok(Seen::when(
            metric(cluster, &series).await? >= 1.0,
            "not yet",
        ))
    })
    .await?;
    stays("the card is well", Duration::from_secs(3), || async {
        let card = card(cluster, &uuid).await?;
        Ok(Seen::when(card.health == "Healthy", card.health_reason))
    })
    .await?;
    gpus(cluster)?.driver.control(&["xid", "48"]).await?;
    let sick = health(cluster, &uuid, "Unhealthy", 10).await?;
    ensure!(
        sick.health_reason.contains("XID 48"),
        "{}",
        sick.health_reason
    );
    // The driver says that nothing is to be done: it returns, after a while.
    health(cluster, &uuid, "Healthy", 60).await?;
    Ok(())
}

pub(crate) async fn a_cordoned_card_keeps_what_it_has_and_gets_nothing_new(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&tenant(&ns, "old", "2000", "alloc 500 hold"))
        .await?;
    let uuid = cluster.gpu_node().await?.status.context("no status")?.gpus[0]
        .uuid
        .clone();
    policy(
        cluster,
        json!({ "gpus": [{ "uuid": uuid, "cordoned": true }] }),
    )
    .await?;
    let outcome = async {
        cluster
            .apply_one(&tenant(&ns, "new", "2000", "context hold"))
            .await?;
        let why = cluster.reason(&ns, "new").await?;
        ensure!(why.contains("cordon"), "{why}");
        works(cluster, &ns, "old", 0).await
    }
    .await;
    policy(cluster, json!({})).await?;
    outcome?;
    cluster.pod_phase(&ns, "new", "Running").await?;
    Ok(())
}
