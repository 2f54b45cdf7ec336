//! Slices of cards in MIG mode, beside shares of other cards: what docs/mig.md says, done.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::image::WORKLOAD_IMAGE;
use aliquot_tests::manifest::documents;
use aliquot_tests::node;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::{grant_of, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use api::gpu_node::{GpuNode, GpuStatus};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use proto::names::grant::RECEIVED_TYPE;
use serde_json::{Value, json};

use crate::scale_up::explained;

const PAGE: &str = "docs/mig.md";
const SMALL: &str = "nvidia.com/mig-1g.5gb";
const LARGE: &str = "nvidia.com/mig-3g.20gb";

/// The pods of the page, with an image of this cluster.
fn pods_of_the_page(cluster: &Cluster, ns: &str) -> Result<Vec<Value>> {
    let page = std::fs::read_to_string(cluster.programs.tree.join(PAGE))?;
    let mut pods = Vec::new();
    for block in page.split("```yaml\n").skip(1) {
        let block = block.split("```").next().context("a block without end")?;
        for mut object in documents(block)? {
            if object["kind"] != "Pod" {
                continue;
            }
            object["metadata"]["namespace"] = json!(ns);
            object["spec"]["terminationGracePeriodSeconds"] = json!(2);
            let container = &mut object["spec"]["containers"][0];
            container["image"] = json!(WORKLOAD_IMAGE);
            container["env"] = json!([{ "name": "SIM_WORKLOAD", "value": "report hold" }]);
            pods.push(object);
        }
    }
    ensure!(!pods.is_empty(), "{PAGE} has no pod");
    Ok(pods)
}

/// A pod that requests one device of a resource.
fn asks(ns: &str, name: &str, scheduler: &str, resource: &str) -> Value {
    let mut pod = pod(ns, name, &[], "report hold");
    pod["spec"]["schedulerName"] = json!(scheduler);
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { resource: "1" } });
    pod
}

/// Waits until the node's allocatable has these amounts.
async fn allocatable(cluster: &Cluster, wanted: &[(&str, &str)]) -> Result<()> {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    until(&format!("{wanted:?}"), Duration::from_secs(30), || async {
        let status = nodes.get(node::NAME).await?.status;
        let there = status.and_then(|s| s.allocatable).unwrap_or_default();
        let has = |(name, amount): &(&str, &str)| {
            there.get(*name).is_some_and(|there| there.0 == *amount)
        };
        Ok(Seen::when(wanted.iter().all(has), format!("{there:?}")))
    })
    .await
}

/// The one device that a pod's container sees.
async fn device_of(cluster: &Cluster, ns: &str, name: &str) -> Result<String> {
    let report = cluster.said(ns, name, "main", "report").await?;
    let devices = report["devices"].as_array().context("no devices")?;
    ensure!(devices.len() == 1, "{name}: {report}");
    let uuid = devices[0]["uuid"].as_str().context("no UUID")?;
    Ok(uuid.to_owned())
}

/// What the agent says of a card or slice.
async fn row(cluster: &Cluster, uuid: &str) -> Result<GpuStatus> {
    let status = cluster.gpu_node().await?.status.context("no status")?;
    let mut rows = status.gpus.into_iter();
    rows.find(|row| row.uuid == *uuid)
        .with_context(|| format!("no row of {uuid}"))
}

/// Waits until the agent's row of a pod is on this device.
async fn holds(cluster: &Cluster, ns: &str, name: &str, uuid: &str) -> Result<()> {
    let pod = format!("{ns}/{name}");
    until(
        &format!("{pod} on {uuid}"),
        Duration::from_secs(20),
        || async {
            let ledger = cluster.ledger().await?;
            let found: Vec<_> = ledger.iter().filter(|(_, row)| row.pod == pod).collect();
            let one = found.len() == 1 && found[0].0 == *uuid && found[0].1.phase == "Running";
            Ok(Seen::when(one, format!("{found:?}")))
        },
    )
    .await
}

pub(crate) async fn a_pod_gets_exactly_one_slice_under_either_scheduler_beside_shares_of_other_cards(
    cluster: &mut Cluster,
) -> Result<()> {
    let hardware = Hardware::described(json!({ "cards": [
        { "preset": "A100-40", "mig": true, "mig_instances": ["3g.20gb", "1g.5gb", "1g.5gb"] },
        { "preset": "A100-40" },
    ] }));
    cluster.aliquot(&hardware.mig_strategy("mixed")).await?;
    allocatable(
        cluster,
        &[(SMALL, "2"), (LARGE, "1"), ("nvidia.com/gpu", "1")],
    )
    .await?;
    let kube_scheduler = cluster.start_kube_scheduler()?;
    let ns = cluster.namespace().await?;

    // The page's pods: a slice and a share.
    for manifest in pods_of_the_page(cluster, &ns)? {
        cluster.run_share(&manifest).await?;
    }
    let ours = device_of(cluster, &ns, "on-a-slice").await?;
    ensure!(ours.starts_with("MIG-"), "{ours}");
    let report = cluster.said(&ns, "on-a-slice", "main", "report").await?;
    ensure!(report["devices"][0]["total_mib"] == 4864, "{report}");
    let placed = cluster.pod_phase(&ns, "on-a-slice", "Running").await?;
    let received = placed.annotations().get(RECEIVED_TYPE);
    ensure!(
        received.is_some_and(|got| got == "MigInstance"),
        "{received:?}"
    );
    ensure!(
        grant_of(&placed).is_err(),
        "a grant for what Kubernetes counts"
    );
    let share = device_of(cluster, &ns, "beside-it").await?;
    ensure!(share.starts_with("GPU-"), "{share}");

    let other = asks(&ns, "by-default", "default-scheduler", SMALL);
    cluster.run_share(&other).await?;
    let theirs = device_of(cluster, &ns, "by-default").await?;
    ensure!(theirs != ours, "one slice for two pods");
    for (name, uuid) in [("on-a-slice", &ours), ("by-default", &theirs)] {
        holds(cluster, &ns, name, uuid).await?;
    }
    let metrics = cluster.gpus.as_ref().context("no GPUs")?.metrics().await?;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("aliquot_share_running") && line.contains(&ours));
    let line = line.context("no metric of the slice")?;
    ensure!(
        line.contains("GPU_I_PROFILE=\"1g.5gb\"") && line.contains("on-a-slice"),
        "{line}"
    );

    refused(cluster, &ns).await?;
    restarted_and_broken(cluster, &ns, &ours, &theirs).await?;
    drop(kube_scheduler);
    Ok(())
}

/// What there is no room for waits with the reason, and a share goes to no slice.
async fn refused(cluster: &Cluster, ns: &str) -> Result<()> {
    // There is no third small one.
    cluster
        .apply_one(&asks(ns, "third", "kai-scheduler", SMALL))
        .await?;
    let why = cluster.reason(ns, "third").await?;
    ensure!(why.contains("didn't have enough of mig profile"), "{why}");
    cluster.delete_pod(ns, "third").await?;

    // A share goes to no slice.
    let large = [("gpu-memory", "39500")];
    cluster
        .apply_one(&pod(ns, "too-large", &large, "report hold"))
        .await?;
    let why = cluster.reason(ns, "too-large").await?;
    ensure!(why.contains("a slice holds no shares"), "{why}");
    cluster.delete_pod(ns, "too-large").await?;
    Ok(())
}

/// A restart of the agent and a fault of a slice, while two pods run.
async fn restarted_and_broken(
    cluster: &mut Cluster,
    ns: &str,
    ours: &str,
    theirs: &str,
) -> Result<()> {
    // A restarted agent knows whose they are.
    let gpus = cluster.gpus.as_mut().context("no GPUs")?;
    gpus.agent.kill().await?;
    gpus.agent.start_again()?;
    for (name, uuid) in [("on-a-slice", ours), ("by-default", theirs)] {
        holds(cluster, ns, name, uuid).await?;
    }

    // A fault of one is no other's. The new agent hears of faults from its second look on.
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    until("the slice's metric", Duration::from_secs(20), || async {
        let metrics = gpus.metrics().await.unwrap_or_default();
        let line = |line: &str| line.starts_with("aliquot_gpu_healthy") && line.contains(ours);
        Ok(Seen::when(metrics.lines().any(line), metrics))
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    gpus.driver.control(&["xid", "95", "--gpu", ours]).await?;
    allocatable(cluster, &[(SMALL, "1"), (LARGE, "1")]).await?;
    let broken = row(cluster, ours).await?;
    ensure!(broken.health_reason.contains("XID 95"), "{broken:?}");
    let healthy = row(cluster, theirs).await?;
    ensure!(healthy.health == "Healthy", "{healthy:?}");
    let neighbour = cluster.pods(ns).get("by-default").await?;
    ensure!(
        phase_of(&neighbour) == "Running",
        "the neighbour's pod ended"
    );
    Ok(())
}

pub(crate) async fn in_strategy_single_a_slice_is_a_gpu(cluster: &mut Cluster) -> Result<()> {
    let hardware = Hardware::described(json!({ "cards": [
        { "preset": "A100-40", "mig": true, "mig_instances": ["3g.20gb", "3g.20gb"] },
    ] }));
    cluster.aliquot(&hardware.mig_strategy("single")).await?;
    let ns = cluster.namespace().await?;
    let manifest = asks(&ns, "first", "kai-scheduler", "nvidia.com/gpu");
    let first = cluster.run_share(&manifest).await?;
    let received = first.annotations().get(RECEIVED_TYPE);
    ensure!(received.is_some_and(|got| got == "Regular"), "{received:?}");
    let grant = grant_of(&first)?.containers[0].clone();
    let device = device_of(cluster, &ns, "first").await?;
    ensure!(
        grant.gpus == [device.clone()],
        "granted {grant:?}, got {device}"
    );
    cluster
        .apply_one(&pod(&ns, "share", &[("gpu-memory", "1000")], "report hold"))
        .await?;
    let why = cluster.reason(&ns, "share").await?;
    ensure!(why.contains("holds no shares"), "{why}");
    cluster.delete_pod(&ns, "share").await?;
    cluster.delete_pod(&ns, "first").await
}

const MEDIUM: &str = "nvidia.com/mig-2g.10gb";

/// Waits until the row of the first card says this of its layout.
async fn says(cluster: &Cluster, word: &str) -> Result<()> {
    let path = format!("the layout's message has `{word}`");
    until(&path, Duration::from_secs(30), || async {
        let status = cluster.gpu_node().await?.status.context("no status")?;
        let row = status.gpus.first().context("no row")?;
        let said = &row.mig_layout_message;
        Ok(Seen::when(said.contains(word), said.clone()))
    })
    .await
}

/// The page's second half: a card whose layout the admin writes, and one that the scheduler chooses.
pub(crate) async fn an_idle_card_is_given_the_slices_that_are_wanted(
    cluster: &mut Cluster,
) -> Result<()> {
    let hardware = Hardware::described(json!({ "cards": [
        { "preset": "A100-40", "mig": true, "mig_instances": ["1g.5gb", "1g.5gb"] },
    ] }));
    cluster.aliquot(&hardware.mig_strategy("mixed")).await?;
    allocatable(cluster, &[(SMALL, "2")]).await?;
    let ns = cluster.namespace().await?;
    let spec = cluster.gpu_node().await?.spec;
    let done = layouts(cluster, &ns).await;
    // Other claims have the node as it was.
    let restored = Patch::Json::<()>(serde_json::from_value(
        json!([{ "op": "replace", "path": "/spec", "value": spec }]),
    )?);
    let nodes: Api<GpuNode> = Api::all(cluster.client.clone());
    let params = PatchParams::default();
    nodes.patch(node::NAME, &params, &restored).await?;
    done
}

async fn layouts(cluster: &Cluster, ns: &str) -> Result<()> {
    let nodes: Api<GpuNode> = Api::all(cluster.client.clone());
    let card = cluster.gpu_node().await?.status.context("no status")?;
    let card = card.gpus.first().context("no card")?.uuid.clone();
    let write = async |own: Value| -> Result<()> {
        let mut policy = json!({ "uuid": card });
        policy
            .as_object_mut()
            .context("an object")?
            .extend(own.as_object().context("fields")?.clone());
        let patch = Patch::Merge(json!({ "spec": { "gpus": [policy] } }));
        nodes
            .patch(node::NAME, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    };

    // By hand: one that runs keeps its slice, and its card the layout.
    cluster
        .run_share(&asks(ns, "holds", "kai-scheduler", SMALL))
        .await?;
    write(json!({ "migLayout": { "2g.10gb": 3, "1g.5gb": 1 } })).await?;
    says(cluster, &format!("pod {ns}/holds has slice")).await?;
    allocatable(cluster, &[(SMALL, "2")]).await?;
    cluster.delete_pod(ns, "holds").await?;
    allocatable(cluster, &[(MEDIUM, "3"), (SMALL, "1")]).await?;
    says(cluster, "").await?;
    cluster
        .run_share(&asks(ns, "medium", "kai-scheduler", MEDIUM))
        .await?;
    let report = cluster.said(ns, "medium", "main", "report").await?;
    ensure!(report["devices"][0]["total_mib"] == 9856, "{report}");
    cluster.delete_pod(ns, "medium").await?;

    // What the card cannot have leaves it as it was.
    write(json!({ "migLayout": { "3g.20gb": 2, "1g.5gb": 1 } })).await?;
    says(cluster, "cannot be created").await?;
    allocatable(cluster, &[(MEDIUM, "3"), (SMALL, "1")]).await?;

    // By the scheduler: of the layouts that the admin allows, the one that a pod waits for.
    write(json!({ "migLayout": null,
        "migLayouts": [{ "1g.5gb": 7 }, { "3g.20gb": 2 }, { "7g.40gb": 1 }] }))
    .await?;
    let begin = std::time::Instant::now();
    // The layout is chosen for the first. The second comes after that, and waits for its other slice.
    for name in ["first", "second"] {
        let pod = asks(ns, name, "kai-scheduler", LARGE);
        cluster.apply_one(&pod).await?;
        let said = "is being given 2 of 3g.20gb, since";
        let what = format!("explain names the card to {name}");
        until(&what, Duration::from_secs(20), || async {
            let text = explained(cluster, ns, name).await?;
            Ok(Seen::when(text.contains(said), text))
        })
        .await?;
    }
    for name in ["first", "second"] {
        cluster.pod_phase(ns, name, "Running").await?;
        let report = cluster.said(ns, name, "main", "report").await?;
        ensure!(report["devices"][0]["total_mib"] == 19968, "{report}");
    }
    #[expect(clippy::print_stdout, reason = "worth a line")]
    {
        println!(
            "    two pods run {:.1} s after they asked for slices that there were none of",
            begin.elapsed().as_secs_f32()
        );
    }
    let written = cluster.gpu_node().await?.spec.gpus;
    let layout = written.first().and_then(|policy| policy.mig_layout.clone());
    ensure!(
        layout == Some([("3g.20gb".to_owned(), 2)].into()),
        "{layout:?}"
    );
    // A pod that no layout beside these two leaves room for changes nothing.
    cluster
        .apply_one(&asks(
            ns,
            "whole",
            "kai-scheduler",
            "nvidia.com/mig-7g.40gb",
        ))
        .await?;
    let why = cluster.reason(ns, "whole").await?;
    ensure!(why.contains("mig"), "{why}");
    cluster.delete_pods(ns, ["first", "second"]).await?;
    // Once they have ended, it gets its own.
    cluster.pod_phase(ns, "whole", "Running").await?;
    let ended = cluster.pods(ns).list(&ListParams::default()).await?.items;
    ensure!(
        ended.iter().all(|pod| phase_of(pod) != "Failed"),
        "a pod was refused"
    );
    cluster.delete_pod(ns, "whole").await
}
