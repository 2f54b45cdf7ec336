//! One claim of several containers and pods: one share, one limit.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::pod::describe;
use aliquot_tests::share::PROGRAM;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::setup::{
    LIMIT, beside, files, gpus, manifest, naming, object, says, template, with_driver,
};
use super::status::isolation_of;

/// The rows that the agent reports: pod and container, with the MiB of each.
async fn rows_are(cluster: &Cluster, ns: &str, wanted: &[(&str, &str)], mib: u64) -> Result<()> {
    let names: Vec<(String, &str)> = wanted
        .iter()
        .map(|(pod, container)| (format!("{ns}/{pod}"), *container))
        .collect();
    let rows: Vec<(&str, &str, u64)> = names
        .iter()
        .map(|(pod, container)| (pod.as_str(), *container, mib))
        .collect();
    let found = cluster.ledger_is(&rows).await?;
    ensure!(
        found.iter().all(|(_, grant)| !grant.claim.is_empty()),
        "rows without a claim: {found:?}"
    );
    cluster.limits_hold().await
}

pub(crate) async fn the_containers_of_a_claim_are_held_to_its_limit_together(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        template(cluster, ns, "share", "2000Mi", &json!({})).await?;
        let mut pod = manifest(ns, "two", "share", "report alloc 900 hold");
        beside(&mut pod, "side", "report alloc 900 hold")?;
        pod["spec"]["initContainers"] = json!([{
            "name": "first", "image": aliquot_tests::image::WORKLOAD_IMAGE,
            "env": [{ "name": "SIM_WORKLOAD", "value": "report alloc 1500" }],
            "resources": { "claims": [{ "name": "gpu" }] },
        }]);
        cluster.apply_one(&pod).await?;
        cluster.pod_phase(ns, "two", "Running").await?;
        for container in ["main", "side"] {
            let took = cluster.said(ns, "two", container, "alloc").await?;
            ensure!(took["ok"] == true, "{container}: {took}");
        }
        let all = [("two", "first"), ("two", "main"), ("two", "side")];
        rows_are(cluster, ns, &all, 2000).await?;
        // Another claim finds all of the card but those 2000 MiB.
        let status = cluster.gpu_node().await?.status.context("no status")?;
        let gpu = status.gpus.first().context("no card")?;
        ensure!(
            gpu.granted_mib.0 == 2000,
            "{} MiB granted",
            gpu.granted_mib.0
        );
        until("the condition says so", LIMIT, || async {
            let said = isolation_of(cluster, ns, "two").await?;
            let words = "one limit for the 3 containers of its claim together";
            Ok(Seen::when(said.contains(words), said))
        })
        .await?;
        // Each is below the limit, and both are above it: the watchdog sees the sum.
        let more = [PROGRAM, "alloc", "700", "hold"];
        let ended = cluster.kubectl.exec(ns, "two", "side", &more).await;
        ensure!(ended.is_err(), "{ended:?}");
        let ended = cluster.pod_phase(ns, "two", "Failed").await?;
        let statuses = ended
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.clone());
        let codes: Vec<Option<i32>> = statuses
            .into_iter()
            .flatten()
            .map(|one| Some(one.state?.terminated?.exit_code))
            .collect();
        ensure!(
            codes == [Some(137), Some(137)],
            "{codes:?}: {}",
            describe(&ended)
        );
        cluster.delete_pod(ns, "two").await
    })
    .await
}

pub(crate) async fn a_pod_that_comes_to_a_claim_later_has_its_share_also_while_no_agent_runs(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        let before = files()?;
        object(cluster, ns, "ours", "2000Mi", &json!({})).await?;
        let again = |name: &str, script: &str| {
            let mut pod = naming(ns, name, "ours", script);
            pod["spec"]["restartPolicy"] = json!("Always");
            pod
        };
        cluster
            .apply_one(&again("one", "report alloc 500 hold"))
            .await?;
        cluster.pod_phase(ns, "one", "Running").await?;
        // The kubelet has prepared the claim, and asks nothing for this one.
        cluster
            .apply_one(&again("two", "report alloc 500 await /tmp/end"))
            .await?;
        cluster.pod_phase(ns, "two", "Running").await?;
        for name in ["one", "two"] {
            let report = cluster.said(ns, name, "main", "report").await?;
            ensure!(
                report["devices"][0]["limit_mib"] == 2000,
                "{name}: {report}"
            );
        }
        rows_are(cluster, ns, &[("one", "main"), ("two", "main")], 2000).await?;
        ensure!(files()? == before + 1, "{} CDI files", files()?);

        // A pod that must not have it is refused by the hook.
        let mut hostile = again("hostile", "report hold");
        hostile["spec"]["hostPID"] = json!(true);
        cluster.apply_one(&hostile).await?;
        says(
            cluster,
            ns,
            "hostile",
            "must not have a share of a GPU: it sets hostPID",
        )
        .await?;
        cluster.delete_pod(ns, "hostile").await?;

        gpus(cluster)?.agent.kill().await?;
        // What is listed starts again without an agent, and what is not does not.
        restart(cluster, ns, "two").await?;
        cluster.apply_one(&again("three", "report hold")).await?;
        says(
            cluster,
            ns,
            "three",
            "is not among those that this GPU share is for",
        )
        .await?;
        gpus(cluster)?.agent.start_again()?;
        until("the third one runs", Duration::from_secs(90), || async {
            let pod = cluster.pods(ns).get("three").await?;
            let ready = pod
                .status
                .as_ref()
                .and_then(|status| status.container_statuses.as_ref());
            let ready = ready
                .and_then(|all| all.first())
                .is_some_and(|one| one.ready);
            Ok(Seen::when(ready, describe(&pod)))
        })
        .await?;
        rows_are(
            cluster,
            ns,
            &[("one", "main"), ("three", "main"), ("two", "main")],
            2000,
        )
        .await?;
        // The pod that it was prepared for ends, and the others continue.
        cluster.delete_pod(ns, "one").await?;
        rows_are(cluster, ns, &[("three", "main"), ("two", "main")], 2000).await?;
        let held = cluster
            .kubectl
            .exec(ns, "two", "main", &[PROGRAM, "alloc", "900"])
            .await;
        ensure!(held.is_ok(), "{held:?}");
        cluster.delete_pods(ns, ["two", "three"]).await?;
        cluster.ledger_is(&[]).await?;
        until("nothing lies around", LIMIT, || async {
            let now = files()?;
            Ok(Seen::when(
                now == before,
                format!("{now} CDI files, {before} before"),
            ))
        })
        .await
    })
    .await
}

/// Lets a pod's container end that waits for it, and waits until the kubelet has started it again.
async fn restart(cluster: &Cluster, ns: &str, name: &str) -> Result<()> {
    let end = ["/bin/busybox", "touch", "/tmp/end"];
    cluster.kubectl.exec(ns, name, "main", &end).await?;
    until(&format!("{name} started again"), LIMIT, || async {
        let pod = cluster.pods(ns).get(name).await?;
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let one = statuses.and_then(|all| all.first());
        let again = one.is_some_and(|one| one.restart_count > 0 && one.ready);
        Ok(Seen::when(again, describe(&pod)))
    })
    .await
}

pub(crate) async fn containers_that_take_requests_of_their_own_have_shares_of_their_own(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        let request = |name: &str, memory: &str| {
            json!({ "name": name, "exactly": {
                "deviceClassName": "share.aliquot.dev", "capacity": { "requests": { "memory": memory } } } })
        };
        let claim: Value = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": { "namespace": ns, "name": "parts" },
            "spec": { "spec": { "devices": { "requests": [request("large", "3000Mi"), request("small", "500Mi")] } } },
        });
        cluster.apply_one(&claim).await?;
        let mut pod = manifest(ns, "parts", "parts", "report grow 10 hold");
        beside(&mut pod, "side", "report grow 10 hold")?;
        for (at, request) in ["large", "small"].iter().enumerate() {
            pod["spec"]["containers"][at]["resources"] =
                json!({ "claims": [{ "name": "gpu", "request": request }] });
        }
        cluster.apply_one(&pod).await?;
        cluster.pod_phase(ns, "parts", "Running").await?;
        for (container, limit) in [("main", 3000), ("side", 500)] {
            let grown = cluster.said(ns, "parts", container, "grow").await?;
            let held = grown["held_mib"].as_u64().context("no held_mib")?;
            ensure!(held <= limit && held > limit - 100, "{container}: {grown}");
        }
        let name = format!("{ns}/parts");
        cluster
            .ledger_is(&[(&name, "main", 3000), (&name, "side", 500)])
            .await?;
        cluster.delete_pod(ns, "parts").await?;
        cluster.ledger_is(&[]).await.map(drop)
    })
    .await
}
