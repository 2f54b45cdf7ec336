//! An agent that another one replaces.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;

use super::setup::{LIMIT, gpus, ledger_is, manifest, template, with_driver};

/// In the log and on the health page of an agent that waits for the previous one.
const WAITS: &str = "waits until the node's other agent has ended";

pub(crate) async fn a_claim_is_prepared_at_every_moment_of_a_rolling_update(
    cluster: &mut Cluster,
) -> Result<()> {
    /// Pods, and at which of them the old agent is stopped.
    const PODS: usize = 24;
    const ENDS: usize = 10;
    with_driver(cluster, 1, async |cluster, ns| {
        template(cluster, ns, "share", "300Mi", &json!({})).await?;
        let logs = cluster.work.logs();
        let agent = &mut gpus(cluster)?.agent;
        agent.stop().await?;
        let mark = agent.mark()?;
        agent.start_again_with(|command| command.flag("--pod-uid", "old"))?;
        // Otherwise either of the two may be the one that waits.
        until("the old one is registered", LIMIT, || async {
            let said = agent.said_since(mark)?;
            Ok(Seen::when(said.contains("registered driver"), said))
        })
        .await?;
        // As a DaemonSet with maxSurge starts it: beside the old one, in a network of its own.
        let next = agent.command();
        let next = next
            .replace("--pod-uid", "new")
            .replace("--listen", "127.0.0.1:9410");
        let mut next = next.start(&logs)?;
        let mark = next.mark()?;
        until("both are registered", LIMIT, || async {
            let said = next.said()?;
            let ready = aliquot_tests::http::get("127.0.0.1:9410", "/readyz").await?;
            let both = said.contains(WAITS) && ready.contains(WAITS);
            let registered = said.contains("registered driver");
            Ok(Seen::when(both && registered, said))
        })
        .await?;
        let mut names = Vec::new();
        for n in 0..PODS {
            let name = format!("p{n:02}");
            let pod = manifest(ns, &name, "share", "report hold");
            cluster.apply_one(&pod).await?;
            names.push(name);
            if n == ENDS {
                gpus(cluster)?.agent.signal(Signal::SIGTERM)?;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        gpus(cluster)?.agent.stop().await?;
        // What the claim's end stops is the one that runs now.
        std::mem::swap(&mut gpus(cluster)?.agent, &mut next);
        for name in &names {
            cluster.pod_phase(ns, name, "Running").await?;
            let events = cluster.events_of(ns, name).await?;
            let failed = events
                .iter()
                .find(|event| event.starts_with("FailedPrepare"));
            ensure!(failed.is_none(), "{name}: {failed:?}");
        }
        let rows: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 300)).collect();
        ledger_is(cluster, ns, &rows).await?;
        let said = gpus(cluster)?.agent.said_since(mark)?;
        let own = said
            .lines()
            .filter(|line| line.contains("prepared"))
            .count();
        ensure!(own > 0, "the new one prepared nothing: {said}");
        cluster.delete_pods(ns, &names).await?;
        ledger_is(cluster, ns, &[])
            .await
            .context("after the update")
            .map(drop)
    })
    .await
}
