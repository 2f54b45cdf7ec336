//! What docs/claims.md says, done, and what it costs.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::manifest::documents;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::{IMAGE, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use serde_json::{Value, json};

use super::{gpus, ledger_is, manifest, template, waits, with_driver, with_driver_on};
use crate::bench::{bound, histogram, median, millis, time_one};
use crate::modes::policy;

const PAGE: &str = "docs/claims.md";
/// The card of the page's example.
const CARD: &str = "GPU-6f0a1c9e-0000-0000-0000-000000000000";

/// The page's YAML as it stands, but for names that are this cluster's own: the card and the
/// image.
fn examples(page: &str, card: &str) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for block in page.split("```yaml\n").skip(1) {
        let block = block.split("```").next().context("a block without end")?;
        found.extend(documents(&block.replace(CARD, card))?);
    }
    Ok(found)
}

pub(crate) async fn the_page_of_claims_is_done_as_it_stands(cluster: &mut Cluster) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        // There is a status once the agent has followed it.
        policy(cluster, json!({})).await?;
        let status = cluster.gpu_node().await?.status.context("no status")?;
        let card = status.gpus.first().context("no card")?.uuid.clone();
        let page = std::fs::read_to_string(cluster.programs.tree.join(PAGE))?;
        let mut pods = 0;
        for mut object in examples(&page, &card)? {
            if object["kind"] == "GpuNode" {
                policy(cluster, object["spec"].clone()).await?;
                continue;
            }
            object["metadata"]["namespace"] = json!(ns);
            if object["kind"] == "Pod" {
                pods += 1;
                let container = &mut object["spec"]["containers"][0];
                container["image"] = json!(IMAGE);
                container["env"] = json!([{ "name": "SIM_WORKLOAD", "value": "report hold" }]);
            }
            cluster.apply_one(&object).await?;
        }
        ensure!(pods == 1, "{pods} pods in {PAGE}");
        cluster.pod_phase(ns, "by-claim", "Running").await?;
        ledger_is(cluster, ns, &[("by-claim", 2000)]).await?;
        // Its classes: the card is in mode mps now.
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
        ledger_is(cluster, ns, &[("by-claim", 2000), ("mps", 1000)]).await?;
        policy(cluster, json!({})).await
    })
    .await
}

const CLAIMS: usize = 64;
const PAIRS: usize = 8;

pub(crate) async fn sixty_four_claims_at_once_each_start_with_what_they_were_allocated(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver_on(cluster, &Hardware::preset("H100-80", 2), async |cluster, ns| {
        template(cluster, ns, "share", "1500Mi", &json!({})).await?;
        // One of each that is not counted: the image is pulled, the MPS server started.
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for at in 0..=PAIRS {
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
        for n in 0..CLAIMS {
            let manifest = manifest(ns, &format!("p{n}"), "share", "report hold");
            cluster.apply_one(&manifest).await?;
        }
        let pods = cluster.pods(ns);
        until("all of them run", Duration::from_secs(150), || async {
            let all = pods.list(&ListParams::default()).await?.items;
            let up = all.iter().filter(|pod| phase_of(pod) == "Running").count();
            Ok(Seen::when(up == CLAIMS, format!("{up} run")))
        })
        .await?;
        let took = begin.elapsed();
        let names: Vec<String> = (0..CLAIMS).map(|n| format!("p{n}")).collect();
        let rows: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1500)).collect();
        let held = ledger_is(cluster, ns, &rows).await?;
        for card in held.iter().map(|(card, _)| card) {
            let on = held.iter().filter(|(other, _)| other == card).count();
            ensure!(on <= 48, "{on} of {CLAIMS} on one card with 48 slots");
        }
        let crowded = gpus(cluster)?.metrics().await?;
        #[expect(clippy::print_stdout, reason = "the figures are worth lines")]
        {
            println!("{CLAIMS} claims at once: all run after {took:?}");
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
                "bound to started, {PAIRS} pairs, medians: {:.0} ms with a claim, {:.0} ms without",
                millis(median(with)),
                millis(median(without))
            );
        }
        Ok(())
    })
    .await
}
