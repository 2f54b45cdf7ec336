//! Programs of the node that are killed while shares run.

use aliquot_tests::pod::LIMIT;
use aliquot_tests::share;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use serde_json::json;

use crate::{MachineCluster, installed};

/// The command lines of the agent, of the supervisor and of a server, as `pgrep -f` finds them.
const AGENT: &str = "^aliquot-agent run";
const SUPERVISOR: &str = "^aliquot-agent mps";
const SERVER: &str = "nvidia-cuda-mps-server";

pub(crate) async fn killed_programs_end_no_share_and_know_them_again(
    cluster: &mut MachineCluster,
) -> Result<()> {
    let _binds = installed::bring_up(cluster).await?;
    let ns = cluster.namespace().await?;
    let mut tenant = share::pod(&ns, "tenant", &[("gpu-memory", "2000")], "alloc 500 hold");
    // A container that ends starts again, and its count says so.
    tenant["spec"]["restartPolicy"] = json!("Always");
    cluster.run_share(&tenant).await?;
    cluster.said(&ns, "tenant", "main", "alloc").await?;
    let holder = format!("{ns}/tenant");
    let mut expected = vec![(holder.as_str(), "main", 2000)];
    let before = cluster.ledger_is(&expected).await?;
    installed::verified(cluster, &ns, "tenant").await?;
    let servers = pids(cluster, SERVER).await?;
    ensure!(!servers.is_empty(), "no MPS server");

    for program in [SUPERVISOR, AGENT] {
        replaced(cluster, program).await?;
        let now = pids(cluster, SERVER).await?;
        ensure!(
            now == servers,
            "after {program}: servers {now:?}, not {servers:?}"
        );
        installed::ready(cluster).await?;
    }
    let after = cluster.ledger_is(&expected).await?;
    ensure!(
        after == before,
        "the ledger is {after:?}, and was {before:?}"
    );
    // The supervisor serves on, and the agent prepares a share: of the server that was found.
    let next = share::pod(&ns, "next", &[("gpu-memory", "3000")], "alloc 2500 hold");
    cluster.run_share(&next).await?;
    let said = cluster.said(&ns, "next", "main", "alloc").await?;
    ensure!(said["ok"] == true, "the next share: {said}");
    let now = pids(cluster, SERVER).await?;
    ensure!(
        now == servers,
        "for the next share: servers {now:?}, not {servers:?}"
    );
    let other = format!("{ns}/next");
    expected.push((&other, "main", 3000));
    cluster.ledger_is(&expected).await?;
    installed::verified(cluster, &ns, "next").await?;
    let words = [share::PROGRAM, "alloc", "100"];
    let said = cluster.kubectl.exec(&ns, "tenant", "main", &words).await?;
    ensure!(
        share::line(&said, "alloc").is_some_and(|line| line["ok"] == true),
        "another process of the tenant: {said}"
    );
    let pod = cluster.pods(&ns).get("tenant").await?;
    ensure!(installed::restarts(&pod) == 0, "the tenant started again");
    Ok(())
}

/// Kills a program hard, and waits until another runs in its place.
async fn replaced(cluster: &MachineCluster, program: &str) -> Result<()> {
    // A child of it has its command line until it runs its own program.
    let old = until("one process of it", LIMIT, || async {
        let found = pids(cluster, program).await?;
        let said = format!("{program}: {found:?}");
        Ok(Seen::from_option((found.len() == 1).then_some(found), said))
    })
    .await?;
    cluster.node.run(&format!("kill -KILL {}", old[0])).await?;
    until("another process of it", LIMIT, || async {
        let found = pids(cluster, program).await?;
        let other = found.len() == 1 && found != old;
        Ok(Seen::when(other, format!("{program}: {found:?}")))
    })
    .await
}

/// Pids of those whose command line matches, ascending; none is an answer.
async fn pids(cluster: &MachineCluster, pattern: &str) -> Result<Vec<u32>> {
    let said = cluster
        .node
        .run(&format!("pgrep -f '{pattern}' || true"))
        .await?;
    let mut found = said
        .split_whitespace()
        .map(|pid| Ok(pid.parse()?))
        .collect::<Result<Vec<u32>>>()?;
    found.sort_unstable();
    Ok(found)
}
