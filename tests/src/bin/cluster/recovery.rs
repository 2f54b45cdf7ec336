//! What survives when the agent or the kubelet is killed at the worst moment.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::{Gpus, Hardware};
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{container, pod};
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use nix::sys::signal::Signal;
use serde_json::json;

/// How long the agent may take to be registered again.
const REGISTERED: Duration = Duration::from_secs(5);

pub(crate) async fn killed_during_prestart_and_with_the_kubelet_restarted_nothing_is_lost(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = two_tenants(cluster).await?;
    let before = tenants(cluster, &ns).await?;

    // PreStartContainer waits for the MPS daemon, which is stopped: so it is open when
    // the agent dies.
    gpus(cluster)?.mps.signal(Signal::SIGSTOP)?;
    // Too large for the tenants' card: the other one needs a server that does not exist yet.
    let third = pod(&ns, "third", &[("gpu-memory", "47000")], "report hold");
    cluster.apply_one(&third).await?;
    let uid = cluster
        .pod_until(&ns, "third", "bound", |pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_some())
        })
        .await?
        .uid()
        .context("a UID")?;
    until(
        "Allocate for the third share done",
        Duration::from_secs(20),
        || async {
            // The kubelet writes the checkpoint after Allocate and before PreStartContainer.
            let checkpoint = std::fs::read_to_string(aliquot_tests::node::CHECKPOINT)?;
            Ok(Seen::when(
                checkpoint.contains(&uid),
                "not in the checkpoint",
            ))
        },
    )
    .await?;
    stays_pending(cluster, &ns, "third").await?;
    gpus(cluster)?.agent.kill().await?;
    cluster.node.kubelet.kill().await?;
    gpus(cluster)?.mps.signal(Signal::SIGCONT)?;

    let mark = cluster.node.kubelet.mark()?;
    cluster.node.kubelet.start_again()?;
    gpus(cluster)?.agent.start_again()?;
    cluster.node_ready().await?;
    registered(cluster, mark, Instant::now()).await?;

    cluster.pod_phase(&ns, "third", "Running").await?;
    ensure!(
        tenants(cluster, &ns).await? == before,
        "a running container was touched"
    );
    let names = [
        format!("{ns}/first"),
        format!("{ns}/second"),
        format!("{ns}/third"),
    ];
    cluster
        .ledger_is(&[
            (&names[0], "main", 2000),
            (&names[1], "main", 3000),
            (&names[2], "main", 47000),
        ])
        .await?;
    cluster.limits_hold().await
}

pub(crate) async fn a_restarted_agent_has_the_ledger_it_had(cluster: &mut Cluster) -> Result<()> {
    let ns = two_tenants(cluster).await?;
    let names = [format!("{ns}/first"), format!("{ns}/second")];
    let wanted = [
        (names[0].as_str(), "main", 2000),
        (names[1].as_str(), "main", 3000),
    ];
    let containers = tenants(cluster, &ns).await?;
    // What the cluster sees of it is written from time to time.
    let ledger = until("a ledger of what runs", Duration::from_secs(20), || async {
        let ledger = cluster.ledger_is(&wanted).await?;
        let run = ledger
            .iter()
            .all(|(_, grant)| grant.phase == "Running" && grant.fence.is_some());
        Ok(if run {
            Seen::Done(ledger)
        } else {
            Seen::NotYet(format!("{ledger:?}"))
        })
    })
    .await?;

    gpus(cluster)?.agent.kill().await?;
    let mark = cluster.node.kubelet.mark()?;
    gpus(cluster)?.agent.start_again()?;
    registered(cluster, mark, Instant::now()).await?;

    until("the same ledger", Duration::from_secs(10), || async {
        let now = cluster.ledger_is(&wanted).await?;
        Ok(Seen::when(
            now == ledger,
            format!("{now:?}, before {ledger:?}"),
        ))
    })
    .await?;
    ensure!(
        tenants(cluster, &ns).await? == containers,
        "a running container was touched"
    );
    Ok(())
}

pub(crate) async fn killed_during_allocate_an_owned_pod_comes_back_and_others_do_not_notice(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = two_tenants(cluster).await?;
    let before = tenants(cluster, &ns).await?;

    // A stopped agent answers nothing: the kubelet's call stays open until it is killed.
    gpus(cluster)?.agent.signal(Signal::SIGSTOP)?;
    let labels = json!({ "app": "owned" });
    let mut template = pod(&ns, "unnamed", &[("gpu-memory", "1000")], "report hold");
    template["spec"]["restartPolicy"] = json!("Always");
    template["spec"]["containers"] = json!([container("main", "report hold")]);
    cluster
        .apply_one(&json!({
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": { "namespace": ns, "name": "owned" },
            "spec": {
                "replicas": 1,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels, "annotations": template["metadata"]["annotations"] },
                    "spec": template["spec"],
                },
            },
        }))
        .await?;
    let lost = until("the owned pod bound", Duration::from_secs(20), || async {
        let pods = owned(cluster, &ns).await?;
        let bound = pods
            .iter()
            .find(|pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.is_some())
            })
            .map(ResourceExt::name_any);
        Ok(Seen::from_option(
            bound,
            pods.iter().map(describe).collect::<Vec<_>>().join(" | "),
        ))
    })
    .await?;
    stays_pending(cluster, &ns, &lost).await?;
    gpus(cluster)?.agent.kill().await?;
    let mark = cluster.node.kubelet.mark()?;
    gpus(cluster)?.agent.start_again()?;
    registered(cluster, mark, Instant::now()).await?;

    let replacement = until(
        "an owned pod that runs",
        Duration::from_secs(30),
        || async {
            let pods = owned(cluster, &ns).await?;
            let running = pods
                .iter()
                .find(|pod| phase_of(pod) == "Running")
                .map(ResourceExt::name_any);
            Ok(Seen::from_option(
                running,
                pods.iter().map(describe).collect::<Vec<_>>().join(" | "),
            ))
        },
    )
    .await?;
    ensure!(
        replacement != lost,
        "the pod that the kubelet had refused runs"
    );
    ensure!(
        tenants(cluster, &ns).await? == before,
        "a running container was touched"
    );
    let names = [
        format!("{ns}/first"),
        format!("{ns}/second"),
        format!("{ns}/{replacement}"),
    ];
    cluster
        .ledger_is(&[
            (&names[0], "main", 2000),
            (&names[1], "main", 3000),
            (&names[2], "main", 1000),
        ])
        .await?;
    cluster.limits_hold().await
}

async fn two_tenants(cluster: &mut Cluster) -> Result<String> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 2))
        .await?;
    let ns = cluster.namespace().await?;
    for (name, mib) in [("first", "2000"), ("second", "3000")] {
        cluster
            .run_share(&pod(
                &ns,
                name,
                &[("gpu-memory", mib)],
                "report alloc 500 hold",
            ))
            .await?;
        cluster.said(&ns, name, "main", "alloc").await?;
    }
    Ok(ns)
}

/// Container ids and restarts of the two tenants, and what their processes hold: what a
/// restart of ours must leave alone.
async fn tenants(cluster: &Cluster, ns: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut uids = Vec::new();
    for name in ["first", "second"] {
        let pod = cluster.pods(ns).get(name).await?;
        uids.extend(pod.uid());
        let status = pod
            .status
            .and_then(|status| status.container_statuses)
            .unwrap_or_default();
        let status = status.first().context("no container")?;
        found.push(format!(
            "{name} {:?} {}",
            status.container_id, status.restart_count
        ));
    }
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let apps = gpus
        .driver
        .smi(&[
            "--query-compute-apps=gpu_uuid,pid,used_memory",
            "--format=csv,noheader",
        ])
        .await?;
    // Theirs alone: not the MPS server's own figure, and not that of a third pod.
    let theirs = |line: &&str| tenant(line, &uids);
    found.extend(apps.lines().filter(theirs).map(str::to_owned));
    Ok(found)
}

fn tenant(app: &str, uids: &[String]) -> bool {
    let pid = app.split(", ").nth(1).unwrap_or_default();
    std::fs::read_to_string(format!("/proc/{pid}/cgroup"))
        .is_ok_and(|cgroup| uids.iter().any(|uid| cgroup.contains(uid)))
}

async fn owned(cluster: &Cluster, ns: &str) -> Result<Vec<Pod>> {
    Ok(cluster
        .pods(ns)
        .list(&ListParams::default().labels("app=owned"))
        .await?
        .items)
}

/// For a while: the kubelet's call is open, and the pod gets no further.
async fn stays_pending(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    let pods = cluster.pods(ns);
    stays(
        &format!("{name} Pending"),
        Duration::from_millis(700),
        || async {
            let pod = pods.get(name).await?;
            Ok(Seen::when(phase_of(&pod) == "Pending", describe(&pod)))
        },
    )
    .await
}

/// The kubelet has taken the registration of the share resource, in time.
async fn registered(cluster: &Cluster, mark: u64, since: Instant) -> Result<()> {
    let kubelet = &cluster.node.kubelet;
    until("the agent registered again", REGISTERED, || async {
        let said = kubelet.said_since(mark)?;
        let took = said.lines().any(|line| {
            line.contains("Got registration request")
                && line.contains(proto::names::resource::SHARE)
        });
        Ok(Seen::when(took, "no registration in the kubelet's log"))
    })
    .await?;
    ensure!(
        since.elapsed() <= REGISTERED,
        "registered after {:?}",
        since.elapsed()
    );
    Ok(())
}

fn gpus(cluster: &mut Cluster) -> Result<&mut Gpus> {
    cluster.gpus.as_mut().context("no GPUs")
}

/// As in a rolling update that goes wrong, or where two were installed.
pub(crate) async fn a_second_agent_refuses_and_the_first_does_not_notice(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .run_share(&pod(&ns, "before", &[("gpu-memory", "2000")], "hold"))
        .await?;
    let agent = &cluster.gpus.as_ref().context("no GPUs")?.agent;
    let mark = agent.mark()?;
    // It writes to the same log.
    let mut second = agent.command().start(&cluster.work.logs())?;
    until("the second ends", Duration::from_secs(40), || {
        let ended = second.alive().is_err();
        async move { Ok(Seen::when(ended, "it runs")) }
    })
    .await?;
    let agent = &cluster.gpus.as_ref().context("no GPUs")?.agent;
    let log = agent.said_since(mark)?;
    ensure!(log.contains("agent.lock"), "{log}");
    ensure!(!log.contains("registered resource"), "{log}");
    cluster
        .run_share(&pod(&ns, "after", &[("gpu-memory", "2000")], "hold"))
        .await?;
    Ok(())
}
