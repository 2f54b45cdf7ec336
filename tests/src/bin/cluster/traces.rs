//! A pod, followed by one id through the scheduler and the agent.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::collector::{Collector, Span};
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::{grant_of, pod};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use kube::ResourceExt;

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn a_pods_way_through_scheduler_and_agent_is_one_trace_with_its_uid(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let collector = Collector::start().await?;
    let flag = format!("--otlp-endpoint={}", collector.endpoint());
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    let agent = &mut cluster.gpus.as_mut().context("no GPUs")?.agent;
    let mut usual = Vec::new();
    for daemon in [&mut scheduler.daemon, &mut *agent] {
        let changed = daemon.restart_with(|command| command.arg(flag.as_str()));
        usual.push(changed.await?);
    }
    scheduler.ready().await?;
    cluster.node_ready().await?;
    let outcome = one_trace(cluster, &collector).await;
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    let agent = &mut cluster.gpus.as_mut().context("no GPUs")?.agent;
    for (daemon, usual) in [&mut scheduler.daemon, &mut *agent].into_iter().zip(usual) {
        daemon.restart_with(|_| usual).await?;
    }
    scheduler.ready().await?;
    outcome
}

async fn one_trace(cluster: &mut Cluster, collector: &Collector) -> Result<()> {
    let ns = cluster.namespace().await?;
    let manifest = pod(&ns, "traced", &[("gpu-memory", "2000")], "hold");
    let running = cluster.run_share(&manifest).await?;
    let grant = grant_of(&running)?;
    let uid = running.uid().context("a UID")?;
    let id = u128::from_str_radix(&uid.replace('-', ""), 16)?;
    let wanted = [
        ("aliquot-scheduler", "group"),
        ("aliquot-scheduler", "bind"),
        ("aliquot-agent", "prestart"),
    ];
    let spans = until("the pod's spans", LIMIT, || async {
        let spans = collector.trace(id);
        let has = |(service, name): &(&str, &str)| {
            let same = |span: &Span| span.service == *service && span.name == *name;
            spans.iter().any(same)
        };
        let said = format!("{spans:?}");
        Ok(Seen::from_option(
            wanted.iter().all(has).then_some(spans),
            said,
        ))
    })
    .await?;
    // The decision is in the grant, and so in the pod's annotations.
    for span in spans.iter().filter(|span| span.name != "group") {
        ensure!(
            span.attribute("decision") == Some(grant.decision.as_str()),
            "{span:?} is not of {}",
            grant.decision
        );
    }
    Ok(())
}
