//! A claim's device status, and which accounts may write it.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::node;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::{Patch, PatchParams};
use proto::names::condition::ISOLATION_VERIFIED;
use proto::names::object;
use serde_json::json;

use super::setup::{LIMIT, claim_pod, device_conditions, gpus, ready, with_driver};
use crate::accounts::{OTHER, account, with_other_node};

pub(crate) async fn a_claims_device_status_says_what_its_pods_condition_says(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        claim_pod(cluster, ns, "first", "2000Mi", "report alloc 500 hold").await?;
        cluster.pod_phase(ns, "first", "Running").await?;
        as_the_pod(cluster, ns, "first", &reach(2000)).await?;
        // An agent that did not prepare it says what changes of it.
        gpus(cluster)?.agent.kill().await?;
        gpus(cluster)?.agent.start_again()?;
        claim_pod(cluster, ns, "larger", "3000Mi", "report alloc 500 hold").await?;
        cluster.pod_phase(ns, "larger", "Running").await?;
        as_the_pod(cluster, ns, "first", &reach(3000)).await?;
        as_the_pod(cluster, ns, "larger", &reach(3000)).await
    })
    .await
}

/// How a condition ends where the server's default is this; a T4 has 15360 MiB.
fn reach(default: u64) -> String {
    format!("{default} MiB read back, reach 15360 MiB until the watchdog acts")
}

pub(crate) async fn a_claims_device_status_is_written_by_the_agent_of_its_node_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        claim_pod(cluster, ns, "first", "2000Mi", "report hold").await?;
        cluster.pod_phase(ns, "first", "Running").await?;
        let (claim, _) = ready(cluster, ns, "first", |ready| ready.status == "True").await?;
        let name = claim.metadata.name.as_deref().context("a name")?;
        let status = claim.status.clone().context("no status")?;
        let mut device = serde_json::to_value(status.devices.iter().flatten().next())?;
        device["conditions"][0]["message"] = json!("written by hand");
        let devices = json!({ "status": { "devices": [device] } });
        with_other_node(cluster, async |cluster| {
            // By its token's node, not by what it says.
            for (of, write, may) in [
                (Some(OTHER), &devices, false),
                (None, &devices, false),
                (Some(node::NAME), &json!({ "status": { "reservedFor": null } }), false),
                (Some(node::NAME), &json!({ "status": { "allocation": null, "reservedFor": null, "devices": null } }), false),
                (Some(node::NAME), &devices, true),
            ] {
                let agent = account(cluster, object::AGENT_ACCOUNT, of).await?;
                let claims: Api<ResourceClaim> = Api::namespaced(agent, ns);
                let params = PatchParams::default();
                let patch = Patch::Merge(write);
                let written = claims.patch_status(name, &params, &patch).await;
                match written {
                    Ok(_) if may => {}
                    Err(kube::Error::Api(answer)) if !may && [403, 422].contains(&answer.code) => {}
                    other => anyhow::bail!("{of:?} {write}: {other:?}"),
                }
            }
            Ok(())
        })
        .await
    })
    .await
}

/// What a pod's condition says of its fence; empty while it says nothing.
pub(super) async fn isolation_of(cluster: &Cluster, ns: &str, name: &str) -> Result<String> {
    let pod = cluster.pods(ns).get(name).await?;
    let conditions = pod.status.and_then(|status| status.conditions);
    let mut conditions = conditions.unwrap_or_default().into_iter();
    let one = conditions.find(|one| one.type_ == ISOLATION_VERIFIED);
    Ok(one.and_then(|one| one.message).unwrap_or_default())
}

/// Waits until a pod's claim says of its fence, word for word, what the pod's condition says,
/// and that ends with `words`.
async fn as_the_pod(cluster: &Cluster, ns: &str, name: &str, words: &str) -> Result<()> {
    until(&format!("{name}: {words}"), LIMIT, || async {
        let pod = cluster.pods(ns).get(name).await?;
        let of_pod = pod
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let of_pod = of_pod
            .into_iter()
            .find(|one| one.type_ == ISOLATION_VERIFIED);
        let of_pod = of_pod.map(|one| {
            (
                one.status,
                one.reason.unwrap_or_default(),
                one.message.unwrap_or_default(),
            )
        });
        let of_claim = device_conditions(cluster, ns, name)
            .await?
            .map(|(_, all)| all);
        let of_claim = of_claim.unwrap_or_default().into_iter();
        let mut of_claim = of_claim.filter(|one| one.type_ == ISOLATION_VERIFIED);
        let of_claim = of_claim
            .next()
            .map(|one| (one.status, one.reason, one.message));
        let ends = of_pod
            .as_ref()
            .is_some_and(|(_, _, message)| message.ends_with(words));
        Ok(Seen::when(
            ends && of_pod == of_claim,
            format!("pod {of_pod:?}, claim {of_claim:?}"),
        ))
    })
    .await
}
