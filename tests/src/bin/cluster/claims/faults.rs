//! Agents, claims and nodes that end in the middle of something.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::PROGRAM;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::setup::{
    LIMIT, claim_pod, files, gpus, ledger_is, manifest, naming, object, says, template, with_driver,
};
use crate::kubelet::lose_what_a_reboot_loses;
use crate::modes::policy;

/// The progress of a prepare when its agent was killed, by the state of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Nothing does.
    Before,
    /// Its MPS server is requested: it is in the ledger.
    Entered,
    /// Its file is written, and its container does not exist.
    Written,
    /// Its container starts, or runs.
    Started,
}

/// In their order in time.
const PHASES: [Phase; 4] = [
    Phase::Before,
    Phase::Entered,
    Phase::Written,
    Phase::Started,
];

pub(crate) async fn an_agent_killed_in_every_phase_of_a_prepare_leaves_nothing_half_done(
    cluster: &mut Cluster,
) -> Result<()> {
    /// How much later the next kill is while no kill was too late yet.
    const STEP: Duration = Duration::from_millis(250);
    const TRIES: u32 = 40;
    with_driver(cluster, 1, async |cluster, ns| {
        // Each with a server of its own, that takes its time.
        policy(cluster, json!({ "defaultMode": "mps-isolated" })).await?;
        template(cluster, ns, "share", "2000Mi", &json!({})).await?;
        let before = files()?;
        let mut met = BTreeSet::new();
        // The delay is bisected between one that was too early for the first missing phase and
        // one that was too late for it.
        let (mut delay, mut early, mut late) = (Duration::ZERO, Duration::ZERO, None);
        for n in 0..TRIES {
            let name = format!("p{n}");
            let mut pod = manifest(ns, &name, "share", "report alloc 100 hold");
            pod["spec"]["restartPolicy"] = json!("Always");
            let begin = bound(cluster, ns, &name, &pod).await?;
            tokio::time::sleep_until((begin + delay).into()).await;
            gpus(cluster)?.agent.kill().await?;
            let phase = phase(before)?;
            met.insert(phase);
            gpus(cluster)?.agent.start_again()?;
            let held = whole(cluster, ns, &name, before).await;
            held.with_context(|| format!("killed {delay:?} after it was bound: {phase:?}"))?;
            let Some(wanted) = PHASES.into_iter().find(|phase| !met.contains(phase)) else {
                return policy(cluster, json!({})).await;
            };
            if phase < wanted {
                early = delay;
            } else {
                late = Some((delay, phase));
            }
            late = late.filter(|(_, phase)| *phase > wanted);
            delay = match late {
                // Prepares differ in length: start over from before the bracket.
                Some((end, _)) if end < early + Duration::from_millis(10) => {
                    late = None;
                    early = end.saturating_sub(STEP);
                    early
                }
                Some((end, _)) => (early + end) / 2,
                None => early + STEP,
            };
        }
        bail!("in {TRIES} tries it was killed in {met:?} alone")
    })
    .await
}

/// The pod runs with what it claimed, and when it goes nothing is left.
async fn whole(cluster: &Cluster, ns: &str, name: &str, before: usize) -> Result<()> {
    let running = |pod: &Pod| phase_of(pod) == "Running";
    cluster.pod_until(ns, name, "running", running).await?;
    cluster.said(ns, name, "main", "alloc").await?;
    ledger_is(cluster, ns, &[(name, 2000)]).await?;
    ensure!(
        files()? == before + 1,
        "{} CDI files, {before} before",
        files()?
    );
    cluster.delete_pod(ns, name).await?;
    ledger_is(cluster, ns, &[]).await?;
    until("its files gone", LIMIT, || async {
        let (files, proofs) = (files()?, proofs()?);
        let gone = files == before && proofs == 0;
        Ok(Seen::when(
            gone,
            format!("{files} CDI files, {proofs} proofs"),
        ))
    })
    .await
}

/// Applies it; the moment at which the kubelet can have it.
async fn bound(cluster: &Cluster, ns: &str, name: &str, pod: &Value) -> Result<Instant> {
    cluster.apply_one(pod).await?;
    let bound = |pod: &Pod| {
        pod.spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some())
    };
    cluster.pod_until(ns, name, "bound", bound).await?;
    Ok(Instant::now())
}

fn phase(before: usize) -> Result<Phase> {
    if proofs()? > 0 {
        return Ok(Phase::Started);
    }
    if files()? > before {
        return Ok(Phase::Written);
    }
    let servers = std::fs::read_dir("/run/aliquot/mps")
        .into_iter()
        .flatten()
        .count();
    Ok(if servers > 0 {
        Phase::Entered
    } else {
        Phase::Before
    })
}

fn proofs() -> Result<usize> {
    let entries = std::fs::read_dir(Path::new("/run/aliquot/proof"))?.flatten();
    let names = entries.map(|entry| entry.file_name());
    Ok(names
        .filter(|name| !name.to_string_lossy().starts_with('.'))
        .count())
}

pub(crate) async fn a_claim_that_runs_comes_back_after_a_reboot(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        object(cluster, ns, "shared", "3000Mi", &json!({})).await?;
        for name in ["one", "two"] {
            let mut pod = naming(ns, name, "shared", "report hold");
            pod["spec"]["restartPolicy"] = json!("Always");
            cluster.apply_one(&pod).await?;
            cluster.pod_phase(ns, name, "Running").await?;
        }
        lose_what_a_reboot_loses(cluster, ns).await?;
        for name in ["one", "two"] {
            until(&format!("{name} works"), LIMIT, || async {
                let words = [PROGRAM, "alloc", "100"];
                let said = cluster.kubectl.exec(ns, name, "main", &words).await?;
                Ok(Seen::when(said.contains("\"ok\":true"), said))
            })
            .await?;
        }
        ledger_is(cluster, ns, &[("one", 3000), ("two", 3000)]).await?;
        cluster.limits_hold().await?;
        cluster.delete_pods(ns, ["one", "two"]).await?;
        ledger_is(cluster, ns, &[]).await.map(drop)
    })
    .await
}

pub(crate) async fn a_claim_deleted_by_force_gives_nothing_away_while_its_container_lives(
    cluster: &mut Cluster,
) -> Result<()> {
    with_driver(cluster, 1, async |cluster, ns| {
        object(cluster, ns, "first", "8000Mi", &json!({})).await?;
        let first = naming(ns, "first", "first", "report alloc 7000 hold");
        cluster.apply_one(&first).await?;
        cluster.pod_phase(ns, "first", "Running").await?;
        let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), ns);
        claims.delete("first", &DeleteParams::default()).await?;
        let free = json!({ "metadata": { "finalizers": null } });
        claims
            .patch("first", &PatchParams::default(), &Patch::Merge(free))
            .await?;
        until("the claim gone", LIMIT, || async {
            let claim = claims.get_opt("first").await?;
            Ok(Seen::when(claim.is_none(), "it is there"))
        })
        .await?;
        // Kubernetes' scheduler takes the card for free.
        claim_pod(cluster, ns, "second", "10000Mi", "report hold").await?;
        says(cluster, ns, "second", "MiB left of").await?;
        let first = cluster.pods(ns).get("first").await?;
        ensure!(phase_of(&first) == "Running", "{}", describe(&first));
        ledger_is(cluster, ns, &[("first", 8000)]).await?;
        cluster.delete_pod(ns, "first").await?;
        cluster.pod_phase(ns, "second", "Running").await?;
        ledger_is(cluster, ns, &[("second", 10_000)]).await?;
        // A pod that is deleted by force has its processes until the kubelet has ended them.
        let now = DeleteParams::default().grace_period(0);
        cluster.pods(ns).delete("second", &now).await?;
        ledger_is(cluster, ns, &[]).await.map(drop)
    })
    .await
}
