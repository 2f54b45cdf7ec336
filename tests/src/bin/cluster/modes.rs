//! Every way of sharing a card, and the way from one to the next.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::node;
use aliquot_tests::share::{PROGRAM, grant_of, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use api::Mode;
use api::gpu_node::GpuNode;
use api::units::Fence;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// KAI's annotation for a container's way of sharing.
pub(crate) const COMPUTE_MODE: &str = "nvidia.com/container.main.gpu-compute.mode";
/// KAI's annotation for a container's memory.
pub(crate) const REQUEST: &str = "nvidia.com/container.main.gpu-memory.request";

/// Writes the admin's wishes and waits until the agent knows them.
pub(crate) async fn policy(cluster: &Cluster, spec: Value) -> Result<()> {
    let nodes: Api<GpuNode> = Api::all(cluster.client.clone());
    until("the GpuNode", Duration::from_secs(20), || async {
        Ok(Seen::from_option(nodes.get_opt(node::NAME).await?, "none"))
    })
    .await?;
    let mut whole = json!({
        "defaultMode": null, "defaultFront": null, "gpus": null, "reserveMib": null, "contextAllowanceMib": null,
        "minimumFence": null, "timeSlice": null, "onViolation": null, "onPressure": null, "onStranger": null,
        "topologyManager": null,
    });
    if let (Some(whole), Some(spec)) = (whole.as_object_mut(), spec.as_object()) {
        whole.extend(spec.clone());
    }
    let patch = Patch::Merge(json!({ "spec": whole }));
    let written = nodes
        .patch(node::NAME, &PatchParams::default(), &patch)
        .await?;
    until(
        "the agent has read the GpuNode",
        Duration::from_secs(10),
        || async {
            let object = nodes.get(node::NAME).await?;
            let read = object.status.and_then(|status| status.observed_generation);
            Ok(Seen::when(
                read >= written.metadata.generation,
                format!("{read:?}"),
            ))
        },
    )
    .await
}

/// The fence of a pod's share by the agent's own account, once its container runs.
pub(crate) async fn fence(cluster: &Cluster, pod: &str, wanted: Fence) -> Result<()> {
    until(
        &format!("{pod} behind {wanted}"),
        Duration::from_secs(20),
        || async {
            let ledger = cluster.ledger().await?;
            let found = ledger
                .iter()
                .find(|(_, grant)| grant.pod == pod)
                .and_then(|(_, grant)| grant.fence);
            Ok(Seen::when(found == Some(wanted), format!("{found:?}")))
        },
    )
    .await
}

/// What `nvidia-smi` says of the first card.
async fn compute_mode(cluster: &Cluster) -> Result<String> {
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let query = [
        "-i",
        "0",
        "--query-gpu=compute_mode",
        "--format=csv,noheader",
    ];
    Ok(gpus.driver.smi(&query).await?.trim().to_owned())
}

pub(crate) async fn each_isolated_share_is_held_by_a_server_of_its_own(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    policy(cluster, json!({ "defaultMode": "mps-isolated" })).await?;
    let outcome = isolated(cluster).await;
    policy(cluster, json!({})).await?;
    outcome
}

async fn isolated(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    // The tenant's own limit does not matter: it asks the library for more.
    let script = "report unset-limits raise 30000 grow 10 hold";
    for (name, mib) in [("small", "2000"), ("large", "3500")] {
        let manifest = pod(&ns, name, &[("gpu-memory", mib)], script);
        let running = cluster.run_share(&manifest).await?;
        let granted = grant_of(&running)?.containers[0].mode;
        ensure!(granted == Mode::MpsIsolated, "{name} was granted {granted}");
        let limit: u64 = mib.parse()?;
        let grown = cluster.said(&ns, name, "main", "grow").await?;
        let held = grown["held_mib"].as_u64().context("no held_mib")?;
        ensure!(
            held <= limit && held + 20 > limit,
            "{name}, limited to {limit}: {grown}"
        );
        fence(cluster, &format!("{ns}/{name}"), Fence::ServerLimit).await?;
    }
    let mode = compute_mode(cluster).await?;
    ensure!(mode == "Default", "the card is in {mode}");
    // A fault ends its own server's clients alone. The neighbour that is asked has room for
    // one process more: a share is what all its processes hold.
    let beside = pod(&ns, "beside", &[("gpu-memory", "1500")], "alloc 300 hold");
    cluster.run_share(&beside).await?;
    let faulty = pod(
        &ns,
        "faulty",
        &[("gpu-memory", "1000")],
        "context fault exit 3",
    );
    cluster.apply_one(&faulty).await?;
    cluster.pod_phase(&ns, "faulty", "Failed").await?;
    let more = cluster
        .kubectl
        .exec(&ns, "beside", "main", &[PROGRAM, "alloc", "100"])
        .await?;
    ensure!(
        more.contains(r#""ok":true"#),
        "the neighbour notices: {more}"
    );
    cluster.limits_hold().await
}

pub(crate) async fn a_share_of_several_cards_has_one_server_over_them(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 2))
        .await?;
    let ns = cluster.namespace().await?;
    let annotations = [("gpu-fraction", "0.25"), ("gpu-fraction-num-devices", "2")];
    let running = cluster
        .run_share(&pod(&ns, "wide", &annotations, "report hold"))
        .await?;
    let grant = grant_of(&running)?.containers[0].clone();
    ensure!(
        grant.gpus.len() == 2 && grant.mode == Mode::MpsIsolated,
        "{grant:?}"
    );
    let report = cluster.said(&ns, "wide", "main", "report").await?;
    let devices = report["devices"].as_array().context("no devices")?;
    ensure!(devices.len() == 2, "it sees {report}");
    for device in devices {
        ensure!(
            device["limit_mib"] == grant.memory_mib.0,
            "{} MiB of each were granted: {report}",
            grant.memory_mib
        );
    }
    fence(cluster, &format!("{ns}/wide"), Fence::ServerLimit).await
}

pub(crate) async fn a_pod_that_asks_for_time_slices_gets_them_with_hints_and_no_server(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    policy(cluster, json!({ "timeSlice": "Long" })).await?;
    let outcome = sliced(cluster).await;
    policy(cluster, json!({})).await?;
    outcome
}

async fn sliced(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let annotations = [(REQUEST, "2000Mi"), (COMPUTE_MODE, "time-slicing")];
    for name in ["one", "two"] {
        let running = cluster
            .run_share(&pod(&ns, name, &annotations, "report alloc 1000 hold"))
            .await?;
        let granted = grant_of(&running)?.containers[0].mode;
        ensure!(granted == Mode::TimeSlicing, "{name} was granted {granted}");
        let taken = cluster.said(&ns, name, "main", "alloc").await?;
        ensure!(taken["ok"] == true, "{taken}");
        fence(cluster, &format!("{ns}/{name}"), Fence::WatchdogOnly).await?;
    }
    let environ = cluster
        .kubectl
        .exec(&ns, "one", "main", &["/bin/busybox", "env"])
        .await?;
    for (variable, there) in [
        ("ALIQUOT_GPU_MEMORY_MIB=2000", true),
        ("XLA_CLIENT_MEM_FRACTION=0.0", true),
        ("CUPY_GPU_MEMORY_LIMIT=", true),
        ("CUDA_MPS_PIPE_DIRECTORY=", false),
    ] {
        ensure!(environ.contains(variable) == there, "{variable}: {environ}");
    }
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let slice = gpus.driver.smi(&["compute-policy", "-l"]).await?;
    ensure!(slice.contains("LONG"), "{slice}");
    cluster.delete_pods(&ns, ["one", "two"]).await?;
    until(
        "the driver's own slice",
        Duration::from_secs(10),
        || async {
            let slice = gpus.driver.smi(&["compute-policy", "-l"]).await?;
            Ok(Seen::when(slice.contains("DEFAULT"), slice))
        },
    )
    .await
}

pub(crate) async fn a_card_goes_from_every_mode_to_every_other(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    let ns = cluster.namespace().await?;
    let outcome = around(cluster, &ns).await;
    policy(cluster, json!({})).await?;
    outcome
}

async fn around(cluster: &mut Cluster, ns: &str) -> Result<()> {
    use Mode::{Exclusive, Mps, MpsIsolated, TimeSlicing};
    // Each of the twelve transitions once: the next mode is requested while the last one's pod
    // still exists, so that the card is switched by a start that waits for it.
    let tour = [
        Mps,
        Exclusive,
        Mps,
        MpsIsolated,
        Mps,
        TimeSlicing,
        Exclusive,
        MpsIsolated,
        Exclusive,
        TimeSlicing,
        MpsIsolated,
        TimeSlicing,
        Mps,
    ];
    for (at, mode) in tour.into_iter().enumerate() {
        let name = format!("p{at}");
        let mut manifest = pod(ns, &name, &[], "report hold");
        if mode == Exclusive {
            manifest["spec"]["containers"][0]["resources"] =
                json!({ "limits": { "nvidia.com/gpu": 1 } });
        } else {
            manifest["metadata"]["annotations"] = json!({ "gpu-memory": "2000" });
            policy(cluster, json!({ "defaultMode": mode.as_str() })).await?;
        }
        cluster.apply_one(&manifest).await?;
        if at > 0 {
            cluster.delete_pod(ns, &format!("p{}", at - 1)).await?;
        }
        let running = cluster.pod_phase(ns, &name, "Running").await?;
        let granted = grant_of(&running)?.containers[0].mode;
        ensure!(granted == mode, "{name} was granted {granted}, not {mode}");
        let report = cluster.said(ns, &name, "main", "report").await?;
        ensure!(report["devices"][0]["uuid"].is_string(), "{mode}: {report}");
        let wanted = if mode == Mps {
            "Exclusive_Process"
        } else {
            "Default"
        };
        let is = compute_mode(cluster).await?;
        ensure!(is == wanted, "{mode}: compute mode {is}");
    }
    Ok(())
}

pub(crate) async fn a_fence_that_the_admin_finds_too_weak_is_not_offered(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    let strict = json!({ "minimumFence": "ServerLimit", "defaultMode": "mps-isolated" });
    policy(cluster, strict).await?;
    let outcome = too_weak(cluster).await;
    policy(cluster, json!({})).await?;
    outcome
}

async fn too_weak(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let weak = [(REQUEST, "2000Mi"), (COMPUTE_MODE, "time-slicing")];
    cluster
        .apply_one(&pod(&ns, "weak", &weak, "report hold"))
        .await?;
    let why = cluster.reason(&ns, "weak").await?;
    ensure!(why.contains("time-slicing"), "{why}");
    let strong = pod(&ns, "strong", &[("gpu-memory", "2000")], "report hold");
    cluster.run_share(&strong).await?;
    fence(cluster, &format!("{ns}/strong"), Fence::ServerLimit).await
}
