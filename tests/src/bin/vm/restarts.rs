//! Programs of the node that are killed or restarted while shares run.

use aliquot_tests::pod::LIMIT;
use aliquot_tests::share;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use api::gpu_node::GrantStatus;
use api::units::Fence;
use serde_json::json;

use crate::cluster::MachineCluster;
use crate::installed;

/// Patterns with which `pgrep -f` finds the agent, the supervisor and an MPS server.
const AGENT: &str = "^aliquot-agent run";
const SUPERVISOR: &str = "^aliquot-agent mps";
const SERVER: &str = "nvidia-cuda-mps-server";

pub(crate) async fn killed_programs_end_no_share_and_know_them_again(
    cluster: &mut MachineCluster,
) -> Result<()> {
    let _binds = installed::bring_up(cluster).await?;
    let tenant = Tenant::begin(cluster).await?;
    for program in [SUPERVISOR, AGENT] {
        let old = one(cluster, program).await?;
        cluster.node.run(&format!("kill -KILL {old}")).await?;
        another(cluster, program, old).await?;
        tenant.served_by_the_same(cluster).await?;
        installed::ready(cluster).await?;
    }
    tenant.goes_on(cluster).await
}

/// With crun the processes of a container are in a cgroup one level below the container's scope.
pub(crate) async fn killed_programs_end_no_share_with_crun(
    cluster: &mut MachineCluster,
) -> Result<()> {
    killed_programs_end_no_share_and_know_them_again(cluster).await?;
    let own = cluster
        .node
        .run(&format!("cat /proc/$(pgrep -o -f '{SUPERVISOR}')/cgroup"))
        .await?;
    ensure!(
        own.trim().ends_with(".scope/container"),
        "the supervisor runs in {own}, as another runtime has it"
    );
    Ok(())
}

pub(crate) async fn systemd_containerd_and_kubelet_restart_under_a_share(
    cluster: &mut MachineCluster,
) -> Result<()> {
    let _binds = installed::bring_up(cluster).await?;
    let tenant = Tenant::begin(cluster).await?;
    let before = cgroup_of_servers(cluster).await?;
    for restart in [
        "systemctl daemon-reload",
        "systemctl daemon-reexec",
        "systemctl restart containerd",
        "systemctl restart kubelet",
    ] {
        cluster.node.run(restart).await?;
        tenant.served_by_the_same(cluster).await?;
        let now = cgroup_of_servers(cluster).await?;
        ensure!(now == before, "after {restart}: {now}, not {before}");
    }
    cluster.node_ready().await?;
    installed::ready(cluster).await?;
    cluster.shares_are_offered().await?;
    tenant.goes_on(cluster).await
}

/// A running share, with its ledger entry and MPS servers from the beginning of the claim.
struct Tenant {
    namespace: String,
    ledger: Vec<(String, GrantStatus)>,
    servers: Vec<u32>,
}

impl Tenant {
    async fn begin(cluster: &mut MachineCluster) -> Result<Self> {
        let namespace = cluster.namespace().await?;
        let says = [("gpu-memory", "2000")];
        let mut pod = share::pod(&namespace, "tenant", &says, "alloc 500 hold");
        // If the container ends, the kubelet starts it again and counts that.
        pod["spec"]["restartPolicy"] = json!("Always");
        cluster.run_share(&pod).await?;
        cluster.said(&namespace, "tenant", "main", "alloc").await?;
        installed::guarded(cluster, &namespace, "tenant").await?;
        let holder = format!("{namespace}/tenant");
        let ledger = ledger_with_its_fence(cluster, &holder).await?;
        let servers = pids(cluster, SERVER).await?;
        ensure!(!servers.is_empty(), "no MPS server");
        Ok(Self {
            namespace,
            ledger,
            servers,
        })
    }

    async fn served_by_the_same(&self, cluster: &MachineCluster) -> Result<()> {
        let now = pids(cluster, SERVER).await?;
        ensure!(
            now == self.servers,
            "servers {now:?}, not {:?}",
            self.servers
        );
        Ok(())
    }

    /// Checks that the share has not ended, that the ledger is unchanged, and that a second share starts
    /// on the same server.
    async fn goes_on(&self, cluster: &mut MachineCluster) -> Result<()> {
        let ns = &self.namespace;
        let holder = format!("{ns}/tenant");
        let ledger = ledger_with_its_fence(cluster, &holder).await?;
        ensure!(
            ledger == self.ledger,
            "the ledger is {ledger:?}, and was {:?}",
            self.ledger
        );
        let next = share::pod(ns, "next", &[("gpu-memory", "3000")], "alloc 2500 hold");
        cluster.run_share(&next).await?;
        let said = cluster.said(ns, "next", "main", "alloc").await?;
        ensure!(said["ok"] == true, "the next share: {said}");
        self.served_by_the_same(cluster).await?;
        let other = format!("{ns}/next");
        let both = [(&*holder, "main", 2000), (&*other, "main", 3000)];
        cluster.ledger_is(&both).await?;
        installed::guarded(cluster, ns, "next").await?;
        let words = [share::PROGRAM, "alloc", "100"];
        let said = cluster.kubectl.exec(ns, "tenant", "main", &words).await?;
        ensure!(
            share::line(&said, "alloc").is_some_and(|line| line["ok"] == true),
            "another process of the tenant: {said}"
        );
        let pod = cluster.pods(ns).get("tenant").await?;
        ensure!(installed::restarts(&pod) == 0, "the tenant started again");
        Ok(())
    }
}

/// Waits until the ledger shows the tenant with a fence that was read back, and returns the ledger. The
/// agent first publishes the share without a fence, and the pod's condition may be true before that.
async fn ledger_with_its_fence(
    cluster: &MachineCluster,
    holder: &str,
) -> Result<Vec<(String, GrantStatus)>> {
    until("the ledger with the tenant's fence", LIMIT, || async {
        let ledger = cluster.ledger_is(&[(holder, "main", 2000)]).await?;
        let fenced = ledger
            .iter()
            .all(|(_, grant)| grant.fence == Some(Fence::ServerLimit));
        let seen = format!("{ledger:?}");
        Ok(Seen::from_option(fenced.then_some(ledger), seen))
    })
    .await
}

/// Returns the only process of a program. It waits while there are two, because a child has the same
/// command line until it runs its own program.
async fn one(cluster: &MachineCluster, program: &str) -> Result<u32> {
    until("one process of it", LIMIT, || async {
        let found = pids(cluster, program).await?;
        let said = format!("{program}: {found:?}");
        Ok(match found[..] {
            [pid] => Seen::Done(pid),
            _ => Seen::NotYet(said),
        })
    })
    .await
}

/// Waits until the process `old` has ended and another process of the program runs.
async fn another(cluster: &MachineCluster, program: &str, old: u32) -> Result<()> {
    until("another process of it", LIMIT, || async {
        let found = pids(cluster, program).await?;
        let other = found.len() == 1 && found != [old];
        Ok(Seen::when(other, format!("{program}: {found:?}")))
    })
    .await
}

async fn cgroup_of_servers(cluster: &MachineCluster) -> Result<String> {
    let script = format!("for pid in $(pgrep -f '{SERVER}'); do cat /proc/$pid/cgroup; done");
    cluster.node.run(&script).await
}

/// Returns the pids of the processes whose command line matches, in ascending order.
async fn pids(cluster: &MachineCluster, pattern: &str) -> Result<Vec<u32>> {
    let script = format!("pgrep -f '{pattern}' || true");
    let said = cluster.node.run(&script).await?;
    let mut found = said
        .split_whitespace()
        .map(|pid| Ok(pid.parse()?))
        .collect::<Result<Vec<u32>>>()?;
    found.sort_unstable();
    Ok(found)
}
