//! Installed by helm, upgraded, and uninstalled, under a tenant that runs all along.

use std::path::Path;
use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::share::{grant_of, pod};
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::{scheduler, stand_in};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use proto::names::NAMESPACE;
use tokio::process::Command;

use crate::install::{self, bind, is_ready};

/// How KAI's quick start installs it.
const VALUES: [&str; 4] = [
    "--set",
    "global.gpuSharing=true",
    "--set",
    "global.resourceReservation.runtimeClassName=nvidia",
];

pub(crate) async fn an_upgrade_leaves_what_runs_alone_and_an_uninstall_says_what_it_leaves_behind(
    cluster: &mut Cluster,
) -> Result<()> {
    let mut machine = install::begin(cluster).await?;
    let outcome = a_life(cluster).await;
    // Gone already, where all went well.
    let _ = helm(cluster, &["uninstall", "aliquot", "--no-hooks"]).await;
    let ended = install::end(cluster, &mut machine).await;
    // Helm took along what the other claims' programs need.
    for document in scheduler::manifests(&cluster.programs.tree)? {
        cluster.apply_one(&document).await?;
    }
    outcome.and(ended)
}

async fn a_life(cluster: &mut Cluster) -> Result<()> {
    install::push(cluster).await?;
    for (reference, recipe) in stand_in::images(&cluster.programs) {
        cluster.serve_image(&recipe, reference).await?;
    }
    // How an admin who has applied the manifests continues with Helm.
    let install = [
        "install",
        "aliquot",
        "--create-namespace",
        "--take-ownership",
        "--set",
        "scheduler.args.max-consolidation-preemptees=4",
    ];
    let said = chart(cluster, &install).await?;
    ensure!(said.contains("gpunodes"), "the notes: {said}");
    install::ready(cluster).await?;
    shard_in_force(cluster, "4").await?;
    cluster.shares_are_offered().await?;
    install::seed_004(cluster).await?;
    let said = helm(cluster, &["test", "aliquot", "--logs"]).await?;
    ensure!(said.contains("Succeeded"), "helm test: {said}");

    let ns = cluster.namespace().await?;
    let first = pod(
        &ns,
        "first",
        &[("gpu-memory", "2000")],
        "report alloc 1000 hold",
    );
    cluster.run_share(&first).await?;
    cluster.said(&ns, "first", "main", "alloc").await?;
    let before = tenant(cluster, &ns).await?;
    let agents = running(cluster, "aliquot-agent").await?;
    let schedulers = running(cluster, "aliquot-scheduler").await?;

    let upgrade = [
        "upgrade",
        "aliquot",
        "--set",
        "nodeAgent.args={--watchdog-slack-mib=32}",
        "--set",
        "scheduler.args.max-consolidation-preemptees=5",
    ];
    chart(cluster, &upgrade).await?;
    until("another agent", Duration::from_secs(90), || async {
        bind_all(cluster).await?;
        let now = running(cluster, "aliquot-agent").await?;
        let replaced = !now.is_empty() && now.iter().all(|agent| !agents.contains(agent));
        Ok(Seen::when(replaced, format!("{now:?}, before {agents:?}")))
    })
    .await?;
    install::ready(cluster).await?;
    shard_in_force(cluster, "5").await?;
    let now = running(cluster, "aliquot-scheduler").await?;
    ensure!(now == schedulers, "the scheduler was restarted for it");
    let second = pod(
        &ns,
        "second",
        &[("gpu-memory", "3000")],
        "report alloc 1000 hold",
    );
    cluster.run_share(&second).await?;
    ensure!(
        tenant(cluster, &ns).await? == before,
        "the upgrade touched what ran"
    );

    // A node's report, which an uninstall reads, follows within two seconds of a change.
    until("second reported", Duration::from_secs(10), || async {
        let status = cluster.gpu_node().await?.status.unwrap_or_default();
        let grants = status.gpus.into_iter().flat_map(|gpu| gpu.grants);
        let reported: Vec<String> = grants.map(|grant| grant.pod).collect();
        let seen = reported.contains(&format!("{ns}/second"));
        Ok(Seen::when(seen, format!("{reported:?}")))
    })
    .await?;
    let said = helm(cluster, &["uninstall", "aliquot"]).await?;
    for name in ["first", "second"] {
        ensure!(
            said.contains(&ns) && said.contains(name),
            "an uninstall that leaves {ns}/{name} behind says: {said}"
        );
    }
    until("the agent gone", Duration::from_mins(1), || async {
        let left = running(cluster, "aliquot-agent").await?;
        Ok(Seen::when(left.is_empty(), format!("{left:?}")))
    })
    .await?;
    ensure!(
        tenant(cluster, &ns).await? == before,
        "the uninstall touched what ran"
    );
    Ok(())
}

/// KAI's default shard, as the values have it, and that the scheduler follows it.
async fn shard_in_force(cluster: &Cluster, preemptees: &str) -> Result<()> {
    let object = "schedulingshard/default";
    let path = "jsonpath={.spec.args.max-consolidation-preemptees} {.metadata.generation} {.status.conditions[?(@.type==\"Ready\")].status} {.status.conditions[?(@.type==\"Ready\")].observedGeneration}";
    until("the shard in force", Duration::from_secs(30), || async {
        let said = cluster.kubectl.run(&["get", object, "-o", path]).await?;
        let words: Vec<&str> = said.split_whitespace().collect();
        let holds = matches!(words.as_slice(), [args, generation, "True", seen]
            if *args == preemptees && generation == seen);
        Ok(Seen::when(holds, said))
    })
    .await
}

/// Which container it is, how often it started, and its grant.
async fn tenant(cluster: &Cluster, ns: &str) -> Result<(String, i32, String)> {
    let pod = cluster.pods(ns).get("first").await?;
    let grant = format!("{:?}", grant_of(&pod)?);
    let statuses = pod.status.and_then(|status| status.container_statuses);
    let status = statuses.into_iter().flatten().next().context("no status")?;
    ensure!(
        status.state.is_some_and(|state| state.running.is_some()),
        "it does not run"
    );
    let id = status.container_id.context("no container")?;
    Ok((id, status.restart_count, grant))
}

/// UIDs of the ready pods of a workload.
async fn running(cluster: &Cluster, app: &str) -> Result<Vec<String>> {
    let its = ListParams::default().labels(&format!("app.kubernetes.io/name={app}"));
    let pods = cluster.pods(NAMESPACE).list(&its).await?;
    let ready = pods.iter().filter(|pod| is_ready(pod));
    Ok(ready.filter_map(|pod: &Pod| pod.uid()).collect())
}

/// What a scheduler of Kubernetes' own would do, had this cluster one.
async fn bind_all(cluster: &Cluster) -> Result<()> {
    let pods = cluster.pods(NAMESPACE);
    for pod in pods.list(&ListParams::default()).await? {
        if pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_none())
        {
            bind(&pods, &pod).await?;
        }
    }
    Ok(())
}

/// Helm with the chart, fitted to this cluster.
async fn chart(cluster: &Cluster, words: &[&str]) -> Result<String> {
    let chart = cluster.programs.tree.join("deploy/chart");
    let adapt = cluster.programs.ours.join("adapt");
    let mut all = words.to_vec();
    all.insert(2, text(&chart)?);
    all.extend(VALUES);
    all.extend(["--post-renderer", text(&adapt)?]);
    helm(cluster, &all).await
}

/// Helm, while its hooks' pods are bound; answers what it printed.
async fn helm(cluster: &Cluster, words: &[&str]) -> Result<String> {
    let program = cluster.programs.helm.as_ref();
    let home = cluster.work.state().join("helm");
    let mut command = Command::new(program.context("no helm was built: --helm")?);
    command
        .args(words)
        .args(["--namespace", NAMESPACE, "--timeout", "90s"])
        .env("KUBECONFIG", &cluster.kubectl.kubeconfig)
        .env("HELM_CACHE_HOME", home.join("cache"))
        .env("HELM_CONFIG_HOME", home.join("config"))
        .env("HELM_DATA_HOME", home.join("data"))
        .kill_on_drop(true);
    let mut ended = std::pin::pin!(command.output());
    let output = loop {
        tokio::select! {
            output = &mut ended => break output?,
            () = tokio::time::sleep(Duration::from_millis(500)) => bind_all(cluster).await?,
        }
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    ensure!(output.status.success(), "helm {}: {said}", words.join(" "));
    Ok(said)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}
