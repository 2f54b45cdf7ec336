//! What the agent writes of its node's cards: how often, and whose.

use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::node;
use aliquot_tests::share::pod;
use aliquot_tests::verdict::Write;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Context, Result, ensure};
use proto::names::{dra, object};
use serde_json::json;

use super::setup::{LIMIT, claim_pod, device_until, gpus, tainted, with_driver};
use crate::accounts::{OTHER, account, rights_are, with_other_node};
use crate::guard::Table;
use crate::modes::policy;

/// How often the agent has written its slice since a mark in its log.
fn writes(cluster: &Cluster, mark: u64) -> Result<usize> {
    let said = cluster
        .gpus
        .as_ref()
        .context("no GPUs")?
        .agent
        .said_since(mark)?;
    let written = said
        .lines()
        .filter(|line| line.contains("ResourceSlice is written"));
    Ok(written.count())
}

/// This number, and no more some time later.
async fn written(cluster: &Cluster, what: &str, mark: u64, times: usize) -> Result<()> {
    until(what, LIMIT, || async {
        let seen = writes(cluster, mark)?;
        Ok(Seen::when(seen >= times, format!("{seen} writes")))
    })
    .await?;
    stays(what, Duration::from_secs(3), || async {
        let seen = writes(cluster, mark)?;
        Ok(Seen::when(
            seen == times,
            format!("{seen} writes instead of {times}"),
        ))
    })
    .await
}

pub(crate) async fn a_slice_is_written_once_at_the_start_and_once_for_a_change(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        let mark = gpus(cluster)?.agent.mark()?;
        gpus(cluster)?.agent.kill().await?;
        gpus(cluster)?.agent.start_again()?;
        written(cluster, "at the start", mark, 1).await?;
        // What claims hold is Kubernetes' to count: of a card in mode mps nothing changes.
        for name in ["one", "two"] {
            claim_pod(cluster, ns, name, "1000Mi", "report alloc 500 hold").await?;
            cluster.pod_phase(ns, name, "Running").await?;
        }
        written(cluster, "with two claims", mark, 1).await?;
        cluster.delete_pods(ns, ["one", "two"]).await?;
        let granted = pod(ns, "granted", &[("gpu-memory", "2000")], "report hold");
        cluster.run_share(&granted).await?;
        written(cluster, "with a grant", mark, 2).await?;
        cluster.delete_pod(ns, "granted").await?;
        written(cluster, "without it", mark, 3).await?;
        // However often something changes, once a second at most.
        let mark = gpus(cluster)?.agent.mark()?;
        let begin = Instant::now();
        let status = cluster.gpu_node().await?.status.context("no status")?;
        let card = &status.gpus.first().context("no card")?.uuid;
        for n in 0..24 {
            let spec = json!({ "gpus": [{ "uuid": card, "cordoned": n % 2 == 0 }] });
            policy(cluster, spec).await?;
        }
        policy(
            cluster,
            json!({ "gpus": [{ "uuid": card, "cordoned": true }] }),
        )
        .await?;
        device_until(cluster, "cordoned", |device| {
            tainted(device, dra::TAINT_CORDONED)
        })
        .await?;
        let (seen, took) = (writes(cluster, mark)?, begin.elapsed());
        ensure!(
            seen as u64 <= took.as_secs() + 2,
            "{seen} writes in {took:?}"
        );
        Ok(())
    })
    .await
}

pub(crate) async fn an_agent_writes_slices_of_its_own_node_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        let may = "\nagent get resourceclaims.resource.k8s.io\nagent patch resourceclaims/status.resource.k8s.io\nagent associated-node:patch resourceclaims/driver.resource.k8s.io - aliquot.dev\nagent watch resourceslices.resource.k8s.io\nagent create resourceslices.resource.k8s.io\nagent patch resourceslices.resource.k8s.io\n";
        let may_not = "\nagent list resourceclaims.resource.k8s.io\nagent patch resourceclaims.resource.k8s.io\nagent patch resourceclaims/binding.resource.k8s.io\nagent associated-node:patch resourceclaims/driver.resource.k8s.io - gpu.example.com\nagent arbitrary-node:patch resourceclaims/driver.resource.k8s.io - aliquot.dev\nagent delete resourceslices.resource.k8s.io\nagent create deviceclasses.resource.k8s.io\n";
        rights_are(cluster, may, may_not).await?;
        let all = "/apis/resource.k8s.io/v1/resourceslices";
        let slice = |name: &str, node: &str, driver: &str| json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": { "name": name },
            "spec": { "driver": driver, "nodeName": node,
                "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 }, "devices": [] },
        });
        with_other_node(cluster, async |cluster| {
            let policy = "aliquot-agent-slice";
            let mut table = Table::new(cluster, policy, ns);
            table.refused_write(Write::create(all, slice("a", OTHER, dra::DRIVER)), "own node");
            table.refused_write(Write::create(all, slice("a", node::NAME, "gpu.example.com")), "slices of the driver");
            table.admitted_write(Write::create(all, slice("a", node::NAME, dra::DRIVER)));
            let agent = account(cluster, object::AGENT_ACCOUNT, Some(node::NAME)).await?;
            table.by(agent).holds().await
        })
        .await
    })
    .await
}
