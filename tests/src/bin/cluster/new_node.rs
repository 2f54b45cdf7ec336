//! A node that has just come: the reason of pods while its driver boots, and how soon its cards
//! take them.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::http;
use aliquot_tests::share::{pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context as _, Result, ensure};

/// The agent reloads the driver's library at most this often, and kubelets start.
const BOOTED: Duration = Duration::from_secs(40);
/// From an agent's first word of its cards to a binding.
const PLACEABLE: Duration = Duration::from_secs(5);
/// Why nothing is placed on a node whose driver has not started yet.
const REASON: &str = "the driver does not answer";

pub(crate) async fn a_pod_waits_for_a_booting_driver_and_is_bound_within_five_seconds_of_its_cards(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster.boot_without_driver().await?;
    let scheduler = cluster.scheduler.as_ref().context("no scheduler")?;
    let address = scheduler.replica.metrics();
    // The scheduler knows a machine's cards until the next agent says what it has.
    until("the new agent's first word", BOOTED, || async {
        let known = http::get(&address, "/snapshot").await?;
        Ok(Seen::when(
            known.contains(REASON) && !has_cards(&known),
            known,
        ))
    })
    .await?;
    let early = pod(&ns, "early", &[("gpu-memory", "2000")], "report hold");
    cluster.apply_one(&early).await?;
    let pods = cluster.pods(&ns);
    until("the reason that the pod waits for", BOOTED, || async {
        let why = why_pending(&pods.get("early").await?).unwrap_or_default();
        Ok(Seen::when(why.contains(REASON), why))
    })
    .await?;

    cluster.driver_boots().await?;
    until("the agent's first word of its cards", BOOTED, || async {
        let known = http::get(&address, "/snapshot").await?;
        Ok(Seen::when(has_cards(&known), "no card"))
    })
    .await?;
    let first_word = Instant::now();
    until("the binding", BOOTED, || async {
        let spec = pods.get("early").await?.spec.unwrap_or_default();
        Ok(Seen::when(spec.node_name.is_some(), "not bound"))
    })
    .await?;
    let took = first_word.elapsed();
    say(took);
    ensure!(
        took <= PLACEABLE,
        "bound {took:?} after the agent's first word"
    );
    cluster.pod_phase(&ns, "early", "Running").await?;
    cluster.limits_hold().await
}

/// The scheduler's core has cards.
fn has_cards(snapshot: &str) -> bool {
    let mut lines = snapshot.lines();
    lines.any(|line| line.trim_start().starts_with("card "))
}

#[expect(clippy::print_stdout, reason = "the figure is what is asked for")]
fn say(took: Duration) {
    println!(
        "    bound {:.2} s after the agent's first word",
        took.as_secs_f32()
    );
}
