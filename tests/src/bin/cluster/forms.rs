//! Manifests for KAI 0.18 to 0.20: the pod runs with what it says, or one sentence says what to
//! change.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::forms::{Becomes, FORMS, pod as form_of};
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{PROGRAM, grant_of, line, pod};
use aliquot_tests::verdict::{Verdict, Write, judge};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use proto::names::condition::ISOLATION_VERIFIED;
use serde_json::json;

use crate::guard::{Table, guarded};
use crate::modes::policy;
use crate::strangers::notice;

/// Webhook and policies together, as `kubectl apply` meets them; and for what KAI's binder
/// alone writes the policy by itself, for pods that the webhook does not see.
pub(crate) async fn each_form_of_kais_shares_is_taken_or_refused_in_one_sentence(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = guarded(cluster).await?;
    let path = format!("/api/v1/namespaces/{ns}/pods");
    // The webhook's configuration is written a moment after the scheduler is up.
    until("the webhook", Duration::from_secs(20), || async {
        let none = Write::create(&path, form_of(&ns, &[("gpu-memory", "0")]));
        Ok(match judge(&cluster.client, &none).await? {
            Verdict::Refused(why) => Seen::Done(why),
            Verdict::Admitted(_) => Seen::NotYet("admitted".to_owned()),
        })
    })
    .await?;
    let mut table = Table::new(cluster, "aliquot-grant", &ns);
    for form in FORMS {
        let write = Write::create(&path, form_of(&ns, form.says));
        match (judge(&cluster.client, &write).await?, &form.becomes) {
            (Verdict::Admitted(warnings), Becomes::Taken(_, warns)) => {
                // Mistakes that are likely in a manifest begin with their field, and are the lint's.
                let of_form =
                    |one: &String| !one.contains("\"spec.") && !one.contains("\"metadata.");
                let warnings: Vec<String> = warnings.into_iter().filter(of_form).collect();
                let all = warns
                    .iter()
                    .all(|name| warnings.iter().any(|warning| warning.contains(name)));
                ensure!(
                    all && warnings.len() == warns.len(),
                    "{form:?}: {warnings:?}"
                );
            }
            (Verdict::Refused(why), Becomes::Refused(words) | Becomes::RefusedByPolicy(words)) => {
                ensure!(why.contains(words), "{form:?}: {why}");
                ensure!(why.lines().count() == 1, "{form:?}: {why}");
            }
            (verdict, _) => bail!("{form:?}: {verdict:?}"),
        }
        if let Becomes::RefusedByPolicy(words) = form.becomes {
            let mut unseen = form_of(&ns, form.says);
            unseen["spec"]["schedulerName"] = json!("nobody");
            table.refused_write(Write::create(&path, unseen), words);
        }
    }
    table.refuses().await
}

/// A limit alone, quantities with a point, and so much of each of two cards.
pub(crate) async fn shares_of_containers_run_with_what_their_annotations_say(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    let limit = [("nvidia.com/container.main.gpu-memory.limit", "1.5Gi")];
    cluster
        .run_share(&pod(&ns, "limit", &limit, "grow 10 hold"))
        .await?;
    let grown = cluster.said(&ns, "limit", "main", "grow").await?;
    let held = grown["held_mib"].as_u64().context("no held_mib")?;
    ensure!(held <= 1536 && held > 1436, "{grown}");
    cluster.delete_pod(&ns, "limit").await?;
    let both = [
        ("nvidia.com/container.main.gpu-memory.request", "1e9"),
        ("gpu-fraction-num-devices", "2"),
    ];
    let running = cluster
        .run_share(&pod(&ns, "both", &both, "report hold"))
        .await?;
    let grant = &grant_of(&running)?.containers[0];
    ensure!(
        grant.gpus.len() == 2 && grant.memory_mib == api::Mib(954),
        "{grant:?}"
    );
    Ok(())
}

/// The scheduler counts what is kept, the server enforces a share's limit, and a share above what
/// is kept for it gives memory back when a neighbour arrives.
pub(crate) async fn a_share_bursts_into_what_is_kept_for_nobody_and_gives_it_back(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    policy(cluster, json!({ "defaultMode": "mps-isolated" })).await?;
    let held = bursts(cluster).await;
    policy(cluster, json!({})).await?;
    held
}

async fn bursts(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let says = [
        ("nvidia.com/container.main.gpu-memory.request", "2000Mi"),
        ("nvidia.com/container.main.gpu-memory.limit", "10000Mi"),
    ];
    let running = cluster
        .run_share(&pod(&ns, "burster", &says, "grow 100 hold"))
        .await?;
    let grant = &grant_of(&running)?.containers[0];
    ensure!(
        grant.memory_mib == api::Mib(10_000) && grant.request_mib == Some(api::Mib(2000)),
        "{grant:?}"
    );
    let grown = cluster.said(&ns, "burster", "main", "grow").await?;
    let held = grown["held_mib"].as_u64().context("no held_mib")?;
    ensure!(held <= 10_000 && held > 9800, "{grown}");
    // Beside a share that needs none of it, it stays.
    let small = pod(&ns, "small", &[("gpu-memory", "2000")], "alloc 900 hold");
    cluster.run_share(&small).await?;
    let taken = cluster.said(&ns, "small", "main", "alloc").await?;
    ensure!(taken["ok"] == true, "the small one is refused: {taken}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let still = cluster.pods(&ns).get("burster").await?;
    ensure!(phase_of(&still) == "Running", "{}", describe(&still));
    // 2000 + 2000 + 9000 of some 14,900 are kept: 10,000 held are too much now.
    let says = [("gpu-memory", "9000")];
    let neighbour = pod(&ns, "neighbour", &says, "alloc 8000 hold");
    cluster.run_share(&neighbour).await?;
    let taken = cluster.said(&ns, "neighbour", "main", "alloc").await?;
    ensure!(taken["ok"] == true, "the neighbour is refused: {taken}");
    let ended = cluster.pod_phase(&ns, "burster", "Failed").await?;
    let said = notice(cluster, &ns, "burster", "GPUShare").await?;
    ensure!(said.contains("2000 MiB are kept for it"), "{said}");
    ensure!(condition(&ended).is_some(), "{}", describe(&ended));
    // No share is stopped within what is kept for it.
    let small = cluster.pods(&ns).get("small").await?;
    ensure!(phase_of(&small) == "Running", "{}", describe(&small));
    let more = cluster
        .kubectl
        .exec(&ns, "neighbour", "main", &[PROGRAM, "alloc", "300"])
        .await?;
    let more = line(&more, "alloc").with_context(|| more.clone())?;
    ensure!(more["ok"] == true, "{more}");
    Ok(())
}

/// Whose pod is evicted holds its memory until it has ended; the pod that comes for it starts
/// with it, instead of failing at its first allocation.
pub(crate) async fn a_container_starts_once_its_memory_was_given_back(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let evicts = json!({ "defaultMode": "mps-isolated", "onPressure": "Evict" });
    policy(cluster, evicts).await?;
    let held = waits(cluster).await;
    policy(cluster, json!({})).await?;
    held
}

async fn waits(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    let says = [
        ("nvidia.com/container.main.gpu-memory.request", "2000Mi"),
        ("nvidia.com/container.main.gpu-memory.limit", "10000Mi"),
    ];
    let mut burster = pod(&ns, "burster", &says, "grow 100 hold");
    burster["spec"]["terminationGracePeriodSeconds"] = json!(15);
    burster["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 6}}});
    cluster.run_share(&burster).await?;
    cluster.said(&ns, "burster", "main", "grow").await?;
    let says = [("gpu-memory", "9000")];
    let neighbour = pod(&ns, "neighbour", &says, "alloc 8000 hold");
    cluster.run_share(&neighbour).await?;
    let taken = cluster.said(&ns, "neighbour", "main", "alloc").await?;
    ensure!(taken["ok"] == true, "the neighbour is refused: {taken}");
    Ok(())
}

fn condition(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == ISOLATION_VERIFIED)?;
    found.message.as_deref()
}
