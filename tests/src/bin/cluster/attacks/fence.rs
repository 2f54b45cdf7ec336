//! A tenant against the fence of its share: limits, processes that no list shows, names.

use std::time::Duration;

use aliquot_tests::claims;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{DRIVER_ROOT, Hardware};
use aliquot_tests::image::WORKLOAD_IMAGE;
use aliquot_tests::node;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::suite::Claim;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

use crate::attacks;
use crate::modes::policy;

/// MiB of the card of every claim here.
const TOTAL: u64 = 49140;
/// What every condition says of a share with a limit of MPS.
const REACH: &str = "reach 49140 MiB until the watchdog acts";

pub(crate) fn claims() -> Vec<Claim> {
    claims![
        attacks::fence::a_tenant_beside_a_larger_one_is_not_verified_and_its_reach_is_told,
        attacks::fence::under_a_minimum_fence_shares_of_unequal_size_are_never_together,
        attacks::fence::who_calls_itself_an_mps_server_is_a_stranger,
        attacks::fence::who_draws_is_ended_whatever_the_mode,
        attacks::fence::memory_that_no_list_shows_is_granted_to_nobody,
        attacks::fence::a_compute_mode_that_another_process_changes_is_reported_and_set_right,
        attacks::fence::who_takes_all_clients_of_a_server_is_ended,
        attacks::fence::a_client_that_the_driver_lists_late_is_left_alone,
        attacks::fence::a_card_whose_processes_are_not_told_takes_no_share,
    ]
}

/// `IsolationVerified` of a pod, if it has one.
fn isolation(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let kind = proto::names::condition::ISOLATION_VERIFIED;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Waits until `IsolationVerified` of a pod is `status` for `reason` and ends with `words`.
async fn isolated(
    cluster: &Cluster,
    ns: &str,
    name: &str,
    (status, reason, words): (&str, &str, &str),
) -> Result<()> {
    let pods = cluster.pods(ns);
    until(
        &format!("{name}: {status} {reason} {words:?}"),
        Duration::from_secs(15),
        || async {
            let pod = pods.get(name).await?;
            let found = isolation(&pod);
            let holds = found.is_some_and(|condition| {
                let message = condition.message.as_deref().unwrap_or_default();
                condition.status == status
                    && condition.reason.as_deref() == Some(reason)
                    && message.ends_with(words)
            });
            Ok(Seen::when(holds, format!("{found:?}")))
        },
    )
    .await
}

/// Waits until the watchdog has ended a pod's container.
async fn killed(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    let ended = cluster.pod_phase(ns, name, "Failed").await?;
    ensure!(exit_code(&ended) == Some(137), "{:?}", ended.status);
    Ok(())
}

fn exit_code(pod: &Pod) -> Option<i32> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let state = statuses.first()?.state.as_ref()?;
    Some(state.terminated.as_ref()?.exit_code)
}

async fn card(cluster: &mut Cluster) -> Result<String> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    cluster.namespace().await
}

pub(crate) async fn a_tenant_beside_a_larger_one_is_not_verified_and_its_reach_is_told(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = card(cluster).await?;
    let guarded = |mib: u64| {
        (
            "False",
            "Guarded",
            format!("Guarded by ServerLimit, {mib} MiB granted, {mib} MiB read back, {REACH}"),
        )
    };
    let small = pod(
        &ns,
        "small",
        &[("gpu-memory", "2000")],
        "await /tmp/go unset-limits alloc 6000 hold",
    );
    cluster.run_share(&small).await?;
    let (status, reason, words) = guarded(2000);
    isolated(cluster, &ns, "small", (status, reason, &words)).await?;
    let large = pod(&ns, "large", &[("gpu-memory", "8000")], "alloc 500 hold");
    cluster.run_share(&large).await?;
    let (status, reason, words) = guarded(8000);
    isolated(cluster, &ns, "large", (status, reason, &words)).await?;
    let words = format!("Guarded by ClientLimit, 2000 MiB granted, 8000 MiB read back, {REACH}");
    isolated(cluster, &ns, "small", ("False", "Guarded", &words)).await?;
    until("the node says so too", Duration::from_secs(15), || async {
        let ledger = cluster.ledger().await?;
        let reaches = ledger.iter().map(|(_, grant)| grant.reach_mib);
        let both = reaches.clone().count() == 2
            && reaches.flatten().filter(|mib| mib.0 == TOTAL).count() == 2;
        Ok(Seen::when(both, format!("{ledger:?}")))
    })
    .await?;
    // It gets there, and is ended for it.
    let touch = ["/bin/busybox", "touch", "/tmp/go"];
    cluster.kubectl.exec(&ns, "small", "main", &touch).await?;
    killed(cluster, &ns, "small").await?;
    cluster.delete_pod(&ns, "small").await?;
    cluster.delete_pod(&ns, "large").await?;
    // Shares of one size are held by the server, whatever a tenant says of its limit.
    for name in ["one", "two"] {
        let script = "unset-limits raise 30000 grow 100 hold";
        let equal = pod(&ns, name, &[("gpu-memory", "2000")], script);
        cluster.run_share(&equal).await?;
        let grown = cluster.said(&ns, name, "main", "grow").await?;
        let held = grown["held_mib"].as_u64().context("no held_mib")?;
        ensure!(held > 1500 && held <= 2000, "{name} holds {held}: {grown}");
    }
    for name in ["one", "two"] {
        let (status, reason, words) = guarded(2000);
        isolated(cluster, &ns, name, (status, reason, &words)).await?;
    }
    Ok(())
}

pub(crate) async fn under_a_minimum_fence_shares_of_unequal_size_are_never_together(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = card(cluster).await?;
    policy(cluster, json!({ "minimumFence": "ServerLimit" })).await?;
    let outcome = unequal(cluster, &ns).await;
    policy(cluster, json!({})).await?;
    outcome
}

async fn unequal(cluster: &Cluster, ns: &str) -> Result<()> {
    let share = |name: &str, mib: &str| pod(ns, name, &[("gpu-memory", mib)], "report hold");
    cluster.run_share(&share("first", "2000")).await?;
    for (name, mib) in [("smaller", "1000"), ("larger", "3000")] {
        cluster.apply_one(&share(name, mib)).await?;
    }
    cluster.run_share(&share("equal", "2000")).await?;
    let words = format!("ServerLimit, 2000 MiB granted, 2000 MiB read back, {REACH}");
    for name in ["first", "equal"] {
        isolated(cluster, ns, name, ("False", "Guarded", &words)).await?;
    }
    for name in ["smaller", "larger"] {
        // The scheduler does not place it, or the agent does not start it.
        let why = |pod: &Pod| {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
            let conditions = conditions.into_iter().flatten();
            let messages = conditions.filter_map(|condition| condition.message.clone());
            messages.collect::<Vec<_>>().join("\n")
        };
        let waits = cluster
            .pod_until(ns, name, "waits for a reason", |pod| {
                why(pod).contains("ServerLimit")
            })
            .await?;
        ensure!(phase_of(&waits) == "Pending", "{name}: {:?}", waits.status);
    }
    let ledger = cluster.ledger().await?;
    let unlike = ledger.iter().any(|(_, grant)| grant.memory_mib.0 != 2000);
    ensure!(!unlike, "{ledger:?}");
    Ok(())
}

pub(crate) async fn who_calls_itself_an_mps_server_is_a_stranger(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = card(cluster).await?;
    cluster
        .apply_one(&stranger(
            &ns,
            "set-name nvidia-cuda-mps-s direct alloc 3000 hold",
        ))
        .await?;
    cluster.said(&ns, "stranger", "main", "alloc").await?;
    until("the stranger is named", Duration::from_secs(20), || async {
        let status = cluster.gpu_node().await?.status.unwrap_or_default();
        let gpu = status.gpus.first().context("no card")?;
        let named = gpu
            .strangers
            .iter()
            .any(|one| one.command.starts_with("nvidia-cuda-mps") && one.memory_mib.0 >= 3000);
        Ok(Seen::when(
            named && gpu.grantable_mib.0 < TOTAL - 3000,
            format!("{gpu:?}"),
        ))
    })
    .await?;
    cluster.delete_pod(&ns, "stranger").await
}

/// A pod whose owner owns the node anyhow: the card's device nodes come from the host's own
/// tree.
fn stranger(ns: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": ns, "name": "stranger" },
        "spec": {
            "nodeName": node::NAME, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "volumes": [{ "name": "host", "hostPath": { "path": "/" } }],
            "containers": [{
                "name": "main", "image": WORKLOAD_IMAGE, "securityContext": { "privileged": true },
                "volumeMounts": [{ "name": "host", "mountPath": "/host" }],
                "env": [
                    { "name": "SIM_ROOT", "value": format!("/host{DRIVER_ROOT}") },
                    { "name": "SIM_WORKLOAD", "value": script },
                ],
            }],
        },
    })
}

/// What a share of 2000 MiB in a container of its own does, until it ends or holds.
async fn tenant(cluster: &Cluster, ns: &str, name: &str, script: &str) -> Result<()> {
    let manifest = pod(ns, name, &[("gpu-memory", "2000")], script);
    cluster.apply_one(&manifest).await.map(drop)
}

async fn touch(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    let touch = ["/bin/busybox", "touch", "/tmp/go"];
    // Its container may end before the command does.
    let _ = cluster.kubectl.exec(ns, name, "main", &touch).await;
    Ok(())
}

pub(crate) async fn who_draws_is_ended_whatever_the_mode(cluster: &mut Cluster) -> Result<()> {
    let ns = card(cluster).await?;
    let outcome = drawing(cluster, &ns).await;
    policy(cluster, json!({})).await?;
    outcome
}

async fn drawing(cluster: &Cluster, ns: &str) -> Result<()> {
    for mode in ["mps", "mps-isolated", "time-slicing"] {
        policy(cluster, json!({ "defaultMode": mode })).await?;
        // Under a server, for that it draws; without one, for what it holds by drawing.
        let mib = if mode == "time-slicing" { 2500 } else { 300 };
        let name = format!("draws-{mode}");
        tenant(cluster, ns, &name, &format!("graphics {mib} hold")).await?;
        killed(cluster, ns, &name).await.context(mode)?;
        cluster.delete_pod(ns, &name).await?;
    }
    Ok(())
}

pub(crate) async fn memory_that_no_list_shows_is_granted_to_nobody(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = card(cluster).await?;
    tenant(cluster, &ns, "raw", "raw 3000 hold").await?;
    cluster.said(&ns, "raw", "main", "raw").await?;
    until("it is told", Duration::from_secs(20), || async {
        let status = cluster.gpu_node().await?.status.unwrap_or_default();
        let gpu = status.gpus.first().context("no card")?;
        let told = gpu.strangers.iter().any(|one| {
            one.pid == 0 && one.command == "in no list of the driver" && one.memory_mib.0 >= 2900
        });
        let kept = gpu.grantable_mib.0 < TOTAL - 3000;
        Ok(Seen::when(told && kept, format!("{gpu:?}")))
    })
    .await
}

pub(crate) async fn a_compute_mode_that_another_process_changes_is_reported_and_set_right(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = card(cluster).await?;
    tenant(cluster, &ns, "held", "report hold").await?;
    let words = format!("ServerLimit, 2000 MiB granted, 2000 MiB read back, {REACH}");
    let right = ("False", "Guarded", words.as_str());
    isolated(cluster, &ns, "held", right).await?;
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let pods = cluster.pods(&ns);
    // The agent sets the mode right about two seconds later; until then the fence is weaker.
    let weaker = until("the condition says so", Duration::from_secs(10), || async {
        let pod = pods.get("held").await?;
        let reason = isolation(&pod).and_then(|condition| condition.reason.clone());
        let holds = reason.as_deref() == Some("Watched");
        Ok(Seen::when(holds, format!("{reason:?}")))
    });
    let changed = gpus.driver.smi(&["-i", "0", "-c", "DEFAULT"]);
    let (changed, weaker) = tokio::join!(changed, weaker);
    changed?;
    weaker?;
    until("it is set right", Duration::from_secs(10), || async {
        let query = [
            "-i",
            "0",
            "--query-gpu=compute_mode",
            "--format=csv,noheader",
        ];
        let is = gpus.driver.smi(&query).await?;
        let page = gpus.metrics().await?;
        let told = page.lines().any(|line| {
            line.starts_with("aliquot_compute_mode_changes_total") && !line.ends_with(" 0")
        });
        Ok(Seen::when(
            is.trim() == "Exclusive_Process" && told,
            format!("{is}, told: {told}"),
        ))
    })
    .await?;
    isolated(cluster, &ns, "held", right).await
}

pub(crate) async fn who_takes_all_clients_of_a_server_is_ended(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = card(cluster).await?;
    tenant(cluster, &ns, "neighbour", "await /tmp/go context hold").await?;
    cluster.pod_phase(&ns, "neighbour", "Running").await?;
    // Half of the 48 are its part; what is free it may have. A context is some hundred MiB.
    let busy = [("gpu-memory", "40000")];
    let busy = pod(&ns, "busy", &busy, "clients 46 hold");
    cluster.apply_one(&busy).await?;
    let said = cluster.said(&ns, "busy", "main", "clients").await?;
    ensure!(said["connected"] == 46, "{said}");
    tenant(cluster, &ns, "greedy", "await /tmp/go clients 2 hold").await?;
    cluster.pod_phase(&ns, "greedy", "Running").await?;
    touch(cluster, &ns, "greedy").await?;
    killed(cluster, &ns, "busy").await?;
    touch(cluster, &ns, "neighbour").await?;
    let connected = cluster.said(&ns, "neighbour", "main", "context").await?;
    ensure!(connected["ok"] == true, "{connected}");
    let within = cluster.pods(&ns).get("greedy").await?;
    ensure!(phase_of(&within) == "Running", "two are within its part");
    Ok(())
}

pub(crate) async fn a_client_that_the_driver_lists_late_is_left_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = card(cluster).await?;
    set(cluster, "mps-listed-late-ms", 400).await?;
    let outcome = late(cluster, &ns).await;
    set(cluster, "mps-listed-late-ms", 0).await?;
    outcome
}

async fn late(cluster: &Cluster, ns: &str) -> Result<()> {
    let before = past_server(cluster).await?;
    tenant(cluster, ns, "honest", "alloc 1000 hold").await?;
    cluster.said(ns, "honest", "main", "hold").await?;
    // By the agent's account: the kubelet reports an end a second later.
    stays("nothing is done", Duration::from_millis(1500), || async {
        let now = past_server(cluster).await?;
        Ok(Seen::when(now.1 == before.1, format!("{now:?}")))
    })
    .await?;
    let after = past_server(cluster).await?;
    ensure!(after.0 > before.0, "it was not listed late: {after:?}");
    Ok(())
}

/// How often the agent has found a process past its server: warned, killed.
async fn past_server(cluster: &Cluster) -> Result<(u64, u64)> {
    let page = cluster.gpus.as_ref().context("no GPUs")?.metrics().await?;
    let count = |action: &str| -> Result<u64> {
        let series =
            format!("aliquot_violations_total{{wrong=\"past-server\",action=\"{action}\"}} ");
        let found = page.lines().find_map(|line| line.strip_prefix(&series));
        Ok(found.with_context(|| series.clone())?.parse()?)
    };
    Ok((count("warned")?, count("killed")?))
}

pub(crate) async fn a_card_whose_processes_are_not_told_takes_no_share(
    cluster: &mut Cluster,
) -> Result<()> {
    card(cluster).await?;
    for (key, code, words) in [
        ("mps-list", 3, "does not tell its MPS processes"),
        ("process-lists", 4, "does not tell its"),
    ] {
        set(cluster, key, code).await?;
        let seen = unhealthy(cluster, words).await;
        set(cluster, key, 0).await?;
        seen.context(key)?;
    }
    Ok(())
}

async fn unhealthy(cluster: &Cluster, words: &str) -> Result<()> {
    until("the card is unhealthy", Duration::from_secs(10), || async {
        let status = cluster.gpu_node().await?.status.unwrap_or_default();
        let gpu = status.gpus.first().context("no card")?;
        let closed = gpu.health == "Unhealthy" && !gpu.ready;
        Ok(Seen::when(
            closed && gpu.health_reason.contains(words),
            format!("{} {}", gpu.health, gpu.health_reason),
        ))
    })
    .await
}

/// Sets something of the first card.
async fn set(cluster: &Cluster, key: &str, value: u64) -> Result<()> {
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let value = value.to_string();
    gpus.driver
        .control(&["set", key, &value, "--gpu", "0"])
        .await?;
    Ok(())
}
