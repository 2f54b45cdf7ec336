//! Whose card a container gets, whatever order, copy or forgery it comes by.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::node;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{container, grant_of, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

pub(crate) async fn two_pods_of_one_shape_bound_in_reverse_order_get_their_own_card(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    let names = ["first", "second"];
    for name in names {
        let mut manifest = pod(&ns, name, &[("gpu-memory", "12000")], "report hold");
        manifest["spec"]["schedulingGates"] = json!([{ "name": "tests/order" }]);
        cluster.apply_one(&manifest).await?;
    }
    // The younger one is let go first, and the older one as soon as that is bound.
    for name in names.iter().rev() {
        let open = json!({ "spec": { "schedulingGates": null } });
        cluster
            .pods(&ns)
            .patch(name, &PatchParams::default(), &Patch::Merge(open))
            .await?;
        cluster
            .pod_until(&ns, name, "bound", |pod| {
                pod.spec
                    .as_ref()
                    .is_some_and(|spec| spec.node_name.is_some())
            })
            .await?;
    }
    let mut cards = Vec::new();
    for name in names {
        let running = cluster.pod_phase(&ns, name, "Running").await?;
        let granted = grant_of(&running)?.containers[0].gpus[0].clone();
        let report = cluster.said(&ns, name, "main", "report").await?;
        ensure!(
            report["devices"][0]["uuid"] == granted.as_str(),
            "{name} was granted {granted}, sees {report}"
        );
        cards.push(granted);
    }
    ensure!(cards[0] != cards[1], "both on {}", cards[0]);
    Ok(())
}

pub(crate) async fn an_init_container_and_its_app_container_get_their_own_grants(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = with_an_init_container(cluster, "1000Mi", "2000Mi").await?;
    for (name, limit) in [(INIT, 1000), ("main", 2000)] {
        let report = cluster.said(&ns, "pod", name, "report").await?;
        ensure!(
            report["devices"][0]["limit_mib"] == limit,
            "{name}: {report}"
        );
    }
    // Both for the pod's life: the kubelet may run an init container again.
    let name = format!("{ns}/pod");
    cluster
        .ledger_is(&[(&name, INIT, 1000), (&name, "main", 2000)])
        .await?;
    Ok(())
}

pub(crate) async fn an_init_container_and_its_app_container_count_as_the_larger(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = with_an_init_container(cluster, "30000Mi", "30000Mi").await?;
    let beside = pod(&ns, "beside", &[("gpu-memory", "15000")], "report hold");
    cluster.run_share(&beside).await?;
    let more = pod(&ns, "more", &[("gpu-memory", "5000")], "report hold");
    cluster.apply_one(&more).await?;
    let reason = cluster.reason(&ns, "more").await?;
    ensure!(reason.contains("MiB free, 5000 needed"), "{reason}");
    // After a restart the agent counts by the turns in its own records.
    let agent = &mut cluster.gpus.as_mut().context("an agent")?.agent;
    agent.kill().await?;
    agent.start_again()?;
    cluster.delete_pod(&ns, "beside").await?;
    cluster.pod_phase(&ns, "more", "Running").await?;
    Ok(())
}

/// The init container of [`with_an_init_container`].
const INIT: &str = "init";

/// Runs the pod "pod" on a card of 48 GB, with a share for its init container and one for its app.
/// Returns its namespace.
async fn with_an_init_container(cluster: &mut Cluster, init: &str, app: &str) -> Result<String> {
    cluster
        .aliquot(&Hardware::preset("RTX-6000-Ada", 1))
        .await?;
    let ns = cluster.namespace().await?;
    let annotations = [
        ("nvidia.com/container.init.gpu-memory.request", init),
        ("nvidia.com/container.main.gpu-memory.request", app),
    ];
    let mut manifest = pod(&ns, "pod", &annotations, "report hold");
    manifest["spec"]["initContainers"] = json!([container(INIT, "report exit 0")]);
    cluster.run_share(&manifest).await?;
    Ok(ns)
}

pub(crate) async fn a_pod_bound_without_a_grant_gets_no_gpu(cluster: &mut Cluster) -> Result<()> {
    let (ns, _) = full_card(cluster).await?;
    bind(&cluster.client, &ns, &waiting(cluster, &ns).await?, None).await?;
    gets_no_gpu(cluster, &ns, "waiting", "grant").await
}

pub(crate) async fn a_grant_copied_from_another_pod_gives_no_gpu(
    cluster: &mut Cluster,
) -> Result<()> {
    let (ns, holder) = full_card(cluster).await?;
    let copied = annotation(&holder)?;
    bind_as_scheduler(cluster, &ns, copied).await?;
    gets_no_gpu(cluster, &ns, "waiting", "grant").await
}

pub(crate) async fn an_altered_grant_gives_no_gpu(cluster: &mut Cluster) -> Result<()> {
    let (ns, holder) = full_card(cluster).await?;
    let pod = waiting(cluster, &ns).await?;
    // Everything that names the holder now names this pod; only the signature is old.
    let altered = annotation(&holder)?
        .replace(
            &holder.uid().context("a UID")?,
            &pod.uid().context("a UID")?,
        )
        .replace(&holder.name_any(), &pod.name_any());
    bind_as_scheduler(cluster, &ns, altered).await?;
    gets_no_gpu(cluster, &ns, "waiting", "signature").await
}

pub(crate) async fn a_grant_replayed_after_its_pod_was_recreated_gives_no_gpu(
    cluster: &mut Cluster,
) -> Result<()> {
    let (ns, holder) = full_card(cluster).await?;
    let old = annotation(&holder)?;
    // Its place goes to another, so that the new pod of the old name has to wait.
    waiting(cluster, &ns).await?;
    cluster.delete_pod(&ns, "holder").await?;
    cluster.pod_phase(&ns, "waiting", "Running").await?;
    cluster.apply_one(&large(&ns, "holder")).await?;
    cluster.reason(&ns, "holder").await?;
    let recreated = cluster.pods(&ns).get("holder").await?;
    bind(
        &scheduler_client(cluster).await?,
        &ns,
        &recreated,
        Some(old),
    )
    .await?;
    gets_no_gpu(cluster, &ns, "holder", "UID").await
}

pub(crate) async fn nobody_but_the_scheduler_writes_a_grant(cluster: &mut Cluster) -> Result<()> {
    let (ns, holder) = full_card(cluster).await?;
    let copied = annotation(&holder)?;
    let pod = waiting(cluster, &ns).await?;
    let refusal = bind(&cluster.client, &ns, &pod, Some(copied.clone())).await;
    ensure!(refusal.is_err(), "an admin bound a pod with a copied grant");
    let mut manifest = large(&ns, "written");
    manifest["metadata"]["annotations"][proto::names::grant::GRANT] = Value::String(copied);
    let refusal = match cluster.apply_one(&manifest).await {
        Ok(_) => anyhow::bail!("a pod was created with a grant of its own"),
        Err(refusal) => format!("{refusal:#}"),
    };
    ensure!(refusal.contains(proto::names::grant::GRANT), "{refusal}");
    ensure!(
        refusal.lines().count() == 1,
        "more than one line: {refusal}"
    );
    Ok(())
}

pub(crate) async fn a_pod_with_our_cdi_name_in_its_annotations_gets_no_gpu(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let holder = cluster.run_share(&large(&ns, "holder")).await?;
    ensure!(phase_of(&holder) == "Running", "no holder");
    let device = cdi_device()?;
    let mut manifest = pod(
        &ns,
        "thief",
        &[("cdi.k8s.io/thief", &device)],
        "report hold",
    );
    manifest["spec"]["nodeName"] = json!(node::NAME);
    refused_or_empty_handed(cluster, &ns, &manifest, "CDI").await
}

pub(crate) async fn a_token_asked_for_by_hand_gives_no_gpu(cluster: &mut Cluster) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let mut manifest = pod(&ns, "thief", &[], "report hold");
    manifest["spec"]["containers"][0]["resources"] =
        json!({ "limits": { (proto::names::resource::SHARE): "1" } });
    manifest["spec"]["nodeName"] = json!(node::NAME);
    refused_or_empty_handed(cluster, &ns, &manifest, "grant").await
}

/// A share that leaves no room for another like it on a T4.
fn large(ns: &str, name: &str) -> Value {
    pod(ns, name, &[("gpu-memory", "12000")], "report hold")
}

/// Two cards, `holder` on one, `filler` on the other. No card has room for 6000 MiB more,
/// but the node's sum has: what is refused is refused by the agent, not by the kubelet's
/// own count of the opaque amount.
async fn full_card(cluster: &mut Cluster) -> Result<(String, Pod)> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    let holder = cluster.run_share(&large(&ns, "holder")).await?;
    cluster.run_share(&large(&ns, "filler")).await?;
    Ok((ns, holder))
}

/// A share that the scheduler has reported as pending.
async fn waiting(cluster: &Cluster, ns: &str) -> Result<Pod> {
    let manifest = pod(ns, "waiting", &[("gpu-memory", "6000")], "report hold");
    cluster.apply_one(&manifest).await?;
    cluster.reason(ns, "waiting").await?;
    Ok(cluster.pods(ns).get("waiting").await?)
}

fn annotation(pod: &Pod) -> Result<String> {
    pod.annotations()
        .get(proto::names::grant::GRANT)
        .cloned()
        .context("no grant on the pod")
}

/// A client with the scheduler's own token: the only way past the guard, to see that the
/// node does not rely on it.
pub(crate) async fn scheduler_client(cluster: &Cluster) -> Result<Client> {
    cluster
        .client_of(&cluster.work.state().join("scheduler/scheduler.kubeconfig"))
        .await
}

async fn bind_as_scheduler(cluster: &Cluster, ns: &str, grant: String) -> Result<()> {
    let pod = waiting(cluster, ns).await?;
    bind(&scheduler_client(cluster).await?, ns, &pod, Some(grant)).await
}

async fn bind(client: &Client, ns: &str, pod: &Pod, grant: Option<String>) -> Result<()> {
    let annotations = grant.map(|grant| json!({ (proto::names::grant::GRANT): grant }));
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": pod.name_any(), "namespace": ns, "uid": pod.uid(), "annotations": annotations },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node::NAME },
    });
    let request = http::Request::post(format!(
        "/api/v1/namespaces/{ns}/pods/{}/binding",
        pod.name_any()
    ))
    .header("content-type", "application/json")
    .body(serde_json::to_vec(&body)?)?;
    client.request_text(request).await?;
    Ok(())
}

/// The pod never runs, and one line of its events or its status says why.
pub(crate) async fn gets_no_gpu(cluster: &Cluster, ns: &str, name: &str, word: &str) -> Result<()> {
    let pods = cluster.pods(ns);
    let word = word.to_lowercase();
    until(
        &format!("one line with `{word}` about {name}"),
        Duration::from_secs(30),
        || async {
            let mut lines = cluster.events_of(ns, name).await?;
            // A pod that the scheduler took back may be gone; its events are not.
            let pod = pods.get_opt(name).await?;
            if let Some(pod) = &pod {
                if phase_of(pod) == "Running" {
                    return Ok(Seen::Never(anyhow::anyhow!("it runs: {}", describe(pod))));
                }
                lines.push(describe(pod));
            }
            let found = lines
                .iter()
                .flat_map(|text| text.lines())
                .any(|line| line.to_lowercase().contains(&word));
            Ok(Seen::when(found, lines.join(" | ")))
        },
    )
    .await
}

/// Rejected at its creation, or created without a card; in both cases with a message.
async fn refused_or_empty_handed(
    cluster: &Cluster,
    ns: &str,
    manifest: &Value,
    word: &str,
) -> Result<()> {
    match cluster.apply_one(manifest).await {
        Err(refusal) => {
            let refusal = format!("{refusal:#}");
            ensure!(
                refusal.to_lowercase().contains(&word.to_lowercase()),
                "refused, but: {refusal}"
            );
            ensure!(
                refusal.lines().count() == 1,
                "more than one line: {refusal}"
            );
            Ok(())
        }
        Ok(_) => gets_no_gpu(cluster, ns, "thief", word).await,
    }
}

/// The name of a device of ours that is in the CDI directory now.
fn cdi_device() -> Result<String> {
    use proto::names::cdi::{FILE_PREFIX, KIND};
    for entry in std::fs::read_dir("/var/run/cdi")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(id) = name
            .strip_prefix(FILE_PREFIX)
            .and_then(|rest| rest.strip_suffix(".json"))
        {
            return Ok(format!("{KIND}={id}"));
        }
    }
    anyhow::bail!("no CDI file of ours, though a share runs")
}
