//! A kubelet whose topology manager refuses pods, on a machine of two sockets.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::describe;
use aliquot_tests::share::pod;
use aliquot_tests::two_sockets::{self, RUNTIME_CLASS};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::modes::policy;

/// The kubelet's reason.
const REFUSED: &str = "TopologyAffinityError";
/// Two of them fill more than one socket of 32 CPUs, one of which is reserved.
const MOST_OF_A_SOCKET: u64 = 20;

/// A share with most of a socket's CPUs.
fn large(ns: &str, name: &str) -> Value {
    let mut pod = pod(ns, name, &[("gpu-fraction", "0.25")], "report hold");
    pod["spec"]["runtimeClassName"] = json!(RUNTIME_CLASS);
    // Guaranteed.
    let limits = json!({ "cpu": MOST_OF_A_SOCKET, "memory": "64Mi" });
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": limits });
    pod
}

pub(crate) async fn what_a_topology_manager_would_refuse_waits_until_a_zone_has_room(
    cluster: &mut Cluster,
) -> Result<()> {
    let outcome = async {
        two_sockets::align(cluster, "single-numa-node", "container").await?;
        cluster.aliquot(&Hardware::preset("T4", 8)).await?;
        without_a_word(cluster).await?;
        let said = json!({ "policy": "single-numa-node", "scope": "container" });
        policy(cluster, json!({ "topologyManager": said })).await?;
        third_waits(cluster).await
    }
    .await;
    let cleaned = cluster.clean().await;
    two_sockets::leave(cluster).await?;
    policy(cluster, json!({ "topologyManager": null })).await?;
    outcome.and(cleaned)
}

/// A scheduler that knows nothing of zones binds a pod that fits in sum.
async fn without_a_word(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    for name in ["first", "second"] {
        cluster.run_share(&large(&ns, name)).await?;
    }
    cluster.apply_one(&large(&ns, "third")).await?;
    let refused = cluster.pod_phase(&ns, "third", "Failed").await?;
    let reason = refused.status.as_ref().and_then(|s| s.reason.as_deref());
    ensure!(reason == Some(REFUSED), "{}", describe(&refused));
    cluster.clean().await
}

/// One that knows lets it wait until a zone has room.
async fn third_waits(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    for name in ["first", "second"] {
        cluster.run_share(&large(&ns, name)).await?;
    }
    cluster.apply_one(&large(&ns, "third")).await?;
    let reason = cluster.reason(&ns, "third").await?;
    ensure!(reason.contains("cannot NUMA-align"), "{reason}");
    cluster.delete_pod(&ns, "first").await?;
    cluster.pod_phase(&ns, "third", "Running").await?;
    cluster.clean().await
}
