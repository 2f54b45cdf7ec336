//! What docs/claims.md says, done, and what it costs.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::image::WORKLOAD_IMAGE;
use aliquot_tests::manifest::documents;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use proto::names::dra;
use serde_json::{Value, json};

use super::setup::{
    claim_pod, container_of, device_until, gpus, ledger_is, manifest, tainted, template, waits,
    with_driver, with_driver_on,
};
use crate::bench::{bound, histogram, median, millis, time_one};
use crate::modes::policy;

const PAGE: &str = "docs/claims.md";
/// The card of the page's example.
const CARD: &str = "GPU-6f0a1c9e-0000-0000-0000-000000000000";

/// The YAML of a section of the page, unchanged except for names of this cluster: the card. The
/// first section has no heading.
fn section(cluster: &Cluster, heading: &str, card: &str) -> Result<Vec<Value>> {
    let page = std::fs::read_to_string(cluster.programs.tree.join(PAGE))?;
    let mut sections = page.split("\n## ");
    let found = match heading {
        "" => sections.next(),
        heading => sections.find(|section| section.starts_with(&format!("{heading}\n"))),
    };
    let found = found.with_context(|| format!("{PAGE} has no section {heading}"))?;
    let mut objects = Vec::new();
    for block in found.split("```yaml\n").skip(1) {
        let block = block.split("```").next().context("a block without end")?;
        objects.extend(documents(&block.replace(CARD, card))?);
    }
    ensure!(!objects.is_empty(), "{PAGE}: {heading:?} has no YAML");
    Ok(objects)
}

/// Applies what a user would; the names of the pods, which run.
async fn done(cluster: &Cluster, ns: &str, objects: &[Value]) -> Result<Vec<String>> {
    let mut pods = Vec::new();
    for object in objects {
        let mut object = object.clone();
        match object["kind"].as_str() {
            Some("GpuNode") => {
                policy(cluster, object["spec"].clone()).await?;
                continue;
            }
            // Its labels are this namespace's.
            Some("Namespace") => {
                for (label, value) in object["metadata"]["labels"]
                    .as_object()
                    .into_iter()
                    .flatten()
                {
                    let label = format!("{label}={}", value.as_str().unwrap_or_default());
                    cluster
                        .kubectl
                        .run(&["label", "namespace", ns, &label])
                        .await?;
                }
                continue;
            }
            Some("Pod") => {
                pods.push(
                    object["metadata"]["name"]
                        .as_str()
                        .context("a name")?
                        .to_owned(),
                );
                let containers = object["spec"]["containers"].as_array_mut();
                for container in containers.into_iter().flatten() {
                    container["image"] = json!(WORKLOAD_IMAGE);
                    container["env"] = json!([{ "name": "SIM_WORKLOAD", "value": "report hold" }]);
                }
            }
            _ => {}
        }
        object["metadata"]["namespace"] = json!(ns);
        cluster.apply_one(&object).await?;
    }
    for pod in &pods {
        cluster.pod_phase(ns, pod, "Running").await?;
    }
    Ok(pods)
}

pub(crate) async fn the_page_of_claims_is_done_as_it_stands(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 2, async |cluster, ns| {
        // There is a status once the agent has followed it.
        policy(cluster, json!({})).await?;
        let status = cluster.gpu_node().await?.status.context("no status")?;
        let first = status.gpus.first().context("no card")?;
        let (card, whole) = (first.uuid.clone(), first.grantable_mib.0);
        let rows = |rows: &[(&str, &str, u64)]| -> Vec<(String, String, u64)> {
            let row = |(pod, container, mib): &(&str, &str, u64)| {
                (format!("{ns}/{pod}"), (*container).to_owned(), *mib)
            };
            rows.iter().map(row).collect()
        };
        for (heading, held) in [
            ("", rows(&[("by-claim", "main", 2000)])),
            (
                "Several containers and pods",
                rows(&[
                    ("server", "main", 4000),
                    ("server", "side", 4000),
                    ("helper", "main", 4000),
                ]),
            ),
            (
                "Several cards",
                rows(&[
                    ("on-two-cards", "main", 2000),
                    ("on-two-cards", "main", 2000),
                ]),
            ),
            ("Whole cards", rows(&[("with-a-card", "main", whole)])),
            (
                "Settings of a claim",
                rows(&[("with-config", "main", 2000)]),
            ),
            ("Monitoring", Vec::new()),
            (
                "Under Aliquot's scheduler",
                rows(&[("queued", "main", 2000)]),
            ),
            (
                "`nvidia.com/gpu` by claim",
                rows(&[("either-way", "main", whole)]),
            ),
        ] {
            let objects = section(cluster, heading, &card)?;
            let pods = done(cluster, ns, &objects).await.context(heading)?;
            ensure!(!pods.is_empty(), "{PAGE}: no pod in {heading:?}");
            let held: Vec<(&str, &str, u64)> = held
                .iter()
                .map(|(pod, container, mib)| (pod.as_str(), container.as_str(), *mib))
                .collect();
            cluster.ledger_is(&held).await.context(heading)?;
            cluster.delete_pods(ns, &pods).await?;
            cluster.ledger_is(&[]).await.context(heading)?;
        }
        // What one front has, by the admin's word.
        done(
            cluster,
            ns,
            &section(cluster, "One front at a time", &card)?,
        )
        .await?;
        claim_pod(cluster, ns, "by-front", "1000Mi", "report hold").await?;
        cluster.pod_phase(ns, "by-front", "Running").await?;
        let on = ledger_is(cluster, ns, &[("by-front", 1000)]).await?;
        ensure!(on[0].0 == card, "{on:?} and not {card}");
        // Its classes: the card is in mode mps now, and the other one takes no claims.
        for mode in ["time-slicing", "mps-isolated", "mps"] {
            let class = json!({ "deviceClassName": format!("{mode}.share.aliquot.dev") });
            template(cluster, ns, mode, "1000Mi", &class).await?;
            let manifest = manifest(ns, mode, mode, "report hold");
            cluster.apply_one(&manifest).await?;
        }
        cluster.pod_phase(ns, "mps", "Running").await?;
        for mode in ["time-slicing", "mps-isolated"] {
            waits(cluster, ns, mode).await?;
        }
        ledger_is(cluster, ns, &[("by-front", 1000), ("mps", 1000)])
            .await
            .map(drop)
    })
    .await
}

/// The agent is another one, with the flag or without.
async fn serves_claims(cluster: &mut Cluster, serves: bool) -> Result<()> {
    let agent = &mut gpus(cluster)?.agent;
    agent.stop().await?;
    agent.start_again_with(|command| command.replace("--dra", serves.to_string()))
}

pub(crate) async fn from_annotations_to_claims_and_back_nothing_that_runs_is_touched(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        let steps = section(cluster, "From annotations to claims and back", "")?;
        let [to_claims, back] = &steps[..] else {
            anyhow::bail!("{} steps in {PAGE}", steps.len())
        };
        let granted = |name: &str| pod(ns, name, &[("gpu-memory", "2000")], "report hold");
        serves_claims(cluster, false).await?;
        cluster.run_share(&granted("granted")).await?;
        let before = container_of(cluster, ns, "granted").await?;
        serves_claims(cluster, true).await?;
        done(cluster, ns, std::slice::from_ref(to_claims)).await?;
        // The slice of the agent before last shows the card free until this one has written its.
        device_until(cluster, "closed to claims", |device| {
            tainted(device, dra::TAINT_FRONT)
        })
        .await?;
        claim_pod(cluster, ns, "claimed", "2000Mi", "report hold").await?;
        waits(cluster, ns, "claimed").await?;
        ensure!(
            before == container_of(cluster, ns, "granted").await?,
            "it was touched"
        );
        cluster.delete_pod(ns, "granted").await?;
        cluster.pod_phase(ns, "claimed", "Running").await?;
        let before = container_of(cluster, ns, "claimed").await?;
        done(cluster, ns, std::slice::from_ref(back)).await?;
        cluster.apply_one(&granted("again")).await?;
        super::setup::unbound(cluster, ns, "again").await?;
        ensure!(
            before == container_of(cluster, ns, "claimed").await?,
            "it was touched"
        );
        cluster.delete_pod(ns, "claimed").await?;
        cluster.pod_phase(ns, "again", "Running").await?;
        ledger_is(cluster, ns, &[("again", 2000)]).await.map(drop)
    })
    .await
}

/// Each takes a second of a machine of two cores; `--extended` has 64.
const CLAIMS: usize = 12;
/// Of pods with a claim and without; `--extended` has eight.
const PAIRS: usize = 2;

pub(crate) async fn claims_at_once_each_start_with_what_they_were_allocated(
    cluster: &mut Cluster,
) -> Result<()> {
    claims_at_once(cluster, CLAIMS, PAIRS).await
}

/// So many claims and pairs of pods, one with a claim and one without.
pub(crate) async fn claims_at_once(
    cluster: &mut Cluster,
    claims: usize,
    pairs: usize,
) -> Result<()> {
    with_driver_on(cluster, &Hardware::preset("H100-80", 2), async |cluster, ns| {
        // More in all than one card has.
        let mib = 96_000 / claims;
        template(cluster, ns, "share", &format!("{mib}Mi"), &json!({})).await?;
        // One of each that is not counted: the image is pulled, the MPS server started.
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for at in 0..=pairs {
            let claimed = manifest(ns, &format!("with-{at}"), "share", "report hold");
            let mut plain = pod(ns, &format!("without-{at}"), &[], "report hold");
            plain["spec"]["schedulerName"] = json!("default-scheduler");
            for (manifest, times) in [(claimed, &mut with), (plain, &mut without)] {
                let took = time_one(cluster, ns, &manifest).await?;
                if at > 0 {
                    times.push(took);
                }
            }
        }
        let alone = gpus(cluster)?.metrics().await?;
        let begin = Instant::now();
        for n in 0..claims {
            let manifest = manifest(ns, &format!("p{n}"), "share", "report hold");
            cluster.apply_one(&manifest).await?;
        }
        let pods = cluster.pods(ns);
        until("all of them run", Duration::from_secs(150), || async {
            let all = pods.list(&ListParams::default()).await?.items;
            let up = all.iter().filter(|pod| phase_of(pod) == "Running").count();
            Ok(Seen::when(up == claims, format!("{up} run")))
        })
        .await?;
        let took = begin.elapsed();
        let names: Vec<String> = (0..claims).map(|n| format!("p{n}")).collect();
        let mib = u64::try_from(mib)?;
        let rows: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), mib)).collect();
        let held = ledger_is(cluster, ns, &rows).await?;
        for card in held.iter().map(|(card, _)| card) {
            let on = held.iter().filter(|(other, _)| other == card).count();
            ensure!(on <= 48, "{on} of {claims} on one card with 48 slots");
        }
        let crowded = gpus(cluster)?.metrics().await?;
        #[expect(clippy::print_stdout, reason = "the figures are worth lines")]
        {
            println!("{claims} claims at once: all run after {took:?}");
            for (part, name) in [
                ("in all", "aliquot_claim_prepare_seconds"),
                ("own work", "aliquot_claim_prepare_work_seconds"),
            ] {
                let alone = histogram(&alone, name).context("no histogram")?;
                let mut crowded = histogram(&crowded, name).context("no histogram")?;
                // Buckets count from the agent's start.
                for (all, before) in crowded.iter_mut().zip(&alone) {
                    all.1 -= before.1;
                }
                for (what, buckets) in [("one at a time", alone), ("all at once", crowded)] {
                    println!(
                        "prepare, {what}, {part}: {} calls, p50 <= {} ms, p99 <= {} ms",
                        buckets.last().map_or(0, |bucket| bucket.1),
                        bound(&buckets, 0.5),
                        bound(&buckets, 0.99)
                    );
                }
            }
            println!(
                "bound to started, {pairs} pairs, medians: {:.0} ms with a claim, {:.0} ms without",
                millis(median(with)),
                millis(median(without))
            );
        }
        Ok(())
    })
    .await
}
