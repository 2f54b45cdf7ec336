//! What is refused before a pod exists, in one clear sentence each.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const MEMORY: &str = "gpu-memory annotation value must be a positive integer greater than 0";
const FRACTION: &str = "gpu-fraction annotation value must be a positive number smaller than 1.0";
const BOTH: &str = "cannot request both";

pub(crate) async fn wrong_values_are_refused_at_admission_with_one_sentence(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let table: [(&[(&str, &str)], &str); 6] = [
        (&[("gpu-memory", "0")], MEMORY),
        (&[("gpu-memory", "-5")], MEMORY),
        (&[("gpu-memory", "abc")], MEMORY),
        (&[("gpu-memory", "2000"), ("gpu-fraction", "0.5")], BOTH),
        (&[("gpu-fraction", "1.5")], FRACTION),
        (&[("gpu-fraction", "NaN")], FRACTION),
    ];
    for (annotations, sentence) in table {
        let refusal = match cluster
            .apply_one(&pod(&ns, "wrong", annotations, "report"))
            .await
        {
            Ok(_) => anyhow::bail!("{annotations:?} was admitted"),
            Err(refusal) => format!("{refusal:#}"),
        };
        ensure!(refusal.contains(sentence), "{annotations:?}: {refusal}");
        ensure!(
            refusal.lines().count() == 1,
            "{annotations:?}: more than one line: {refusal}"
        );
    }
    Ok(())
}

pub(crate) async fn a_value_that_is_merely_too_large_waits_with_a_reason(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    cluster
        .apply_one(&pod(&ns, "huge", &[("gpu-memory", "99999999")], "report"))
        .await?;
    // The first reason may be that no agent is connected yet.
    until(
        "a reason that says what was asked for",
        Duration::from_secs(10),
        || async {
            let reason = cluster.reason(&ns, "huge").await?;
            Ok(Seen::when(reason.contains("99999999"), reason))
        },
    )
    .await
}

pub(crate) async fn a_queue_or_group_that_nobody_can_mean_is_refused_with_one_sentence(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let sub = |name: &str, parent: &str| json!({"name": name, "minMember": 1, "parent": parent});
    let group = |subs: Value| {
        json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": "wrong", "namespace": ns},
            "spec": {"minMember": 1, "queue": "default-queue", "subGroups": subs},
        })
    };
    let table = [
        (
            json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "wrong"}, "spec": {}}),
            "resources must be specified",
        ),
        (
            json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "wrong",
                "annotations": {"aliquot.dev/gpu-quota-by-product": "{\"NVIDIA-L4\": {\"quota\": -3}}"}},
                "spec": {"resources": {}}}),
            "NVIDIA-L4: quota is -3, and must be 0 or more, or -1 for unlimited",
        ),
        (
            group(json!([sub("a", ""), sub("a", "")])),
            "the name a is used twice",
        ),
        (
            group(json!([sub("a", "x")])),
            "the parent x of a does not exist",
        ),
        (
            group(json!([sub("a", "b"), sub("b", "a")])),
            "a is its own ancestor",
        ),
    ];
    for (object, sentence) in table {
        refused(cluster, &object, sentence).await?;
    }
    Ok(())
}

/// Once the configuration of the webhook is written, a moment after the scheduler is up, and
/// the scheduler's watch has come so far.
async fn refused(cluster: &Cluster, object: &Value, sentence: &str) -> Result<()> {
    until(sentence, Duration::from_secs(10), || async {
        let refusal = match cluster.apply_one(object).await {
            Ok(_) => "it was taken".to_owned(),
            Err(refusal) => format!("{refusal:#}"),
        };
        let seen = refusal.contains(sentence) && refusal.lines().count() == 1;
        Ok(Seen::when(seen, refusal))
    })
    .await
}

pub(crate) async fn a_group_or_a_tree_of_queues_of_absurd_size_is_refused_with_its_limit(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let group = |spec: Value| {
        json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": "absurd", "namespace": ns}, "spec": spec,
        })
    };
    let subs = |count: usize| -> Vec<Value> {
        let sub = |at| json!({"name": format!("s{at}"), "minMember": 1});
        (0..count).map(sub).collect()
    };
    let many = group(json!({"queue": "default-queue", "subGroups": subs(1025)}));
    let sentence = "1025 sub-groups are more than 1024 (--max-sub-groups)";
    refused(cluster, &many, sentence).await?;
    let large = group(json!({"queue": "default-queue", "minMember": i32::MAX}));
    let sentence = "2147483647 pods at once are more than 100000 (--max-gang-pods)";
    refused(cluster, &large, sentence).await?;
    let most = group(json!({"queue": "default-queue", "subGroups": subs(1024)}));
    cluster.apply_one(&most).await?;

    let level = |at: usize| {
        let parent = (at > 1).then(|| format!("level-{}", at - 1));
        json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": format!("level-{at}")},
            "spec": {"parentQueue": parent.unwrap_or_default(), "resources": {}},
        })
    };
    for at in 1..=16 {
        cluster.apply_one(&level(at)).await?;
    }
    let sentence = "with queue level-17 the tree of queues is more than 16 levels deep";
    refused(cluster, &level(17), sentence).await?;
    let mut ring = level(1);
    ring["spec"]["parentQueue"] = json!("level-16");
    refused(cluster, &ring, "queue level-1 would be its own ancestor").await
}

/// A pod cannot get its token later; every other pod needs nothing from admission. KAI's CRD admits
/// a group without a spec, which ours does not, and while admission does not run no webhook rejects
/// it.
pub(crate) async fn a_group_that_cannot_be_read_holds_up_no_other_workload(
    cluster: &mut Cluster,
) -> Result<()> {
    const REQUIRED: &str = "/spec/versions/0/schema/openAPIV3Schema/required";
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    if let Some(mut scheduler) = cluster.scheduler.take() {
        scheduler.daemon.stop().await?;
    }
    if let Some(mut admission) = cluster.admission.take() {
        admission.daemon.stop().await?;
    }
    let define = async |cluster: &Cluster, change: Value| {
        let change = json!([change]).to_string();
        let crd = "podgroups.scheduling.run.ai";
        let patch = ["patch", "crd", crd, "--type=json", "-p", &change];
        cluster.kubectl.run(&patch).await
    };
    define(cluster, json!({ "op": "remove", "path": REQUIRED })).await?;
    until(
        "a group without a spec",
        Duration::from_secs(20),
        || async {
            let made = cluster
                .apply_one(&json!({
                    "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                    "metadata": { "namespace": ns, "name": "absurd" },
                }))
                .await;
            Ok(Seen::when(made.is_ok(), format!("{:?}", made.err())))
        },
    )
    .await?;
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let share = pod(&ns, "share", &[("gpu-memory", "2000")], "report hold");
    let ran = cluster.run_share(&share).await;
    let told = until("an event on the group", Duration::from_secs(20), || async {
        let path = "jsonpath={.items[*].note}";
        let of = "--field-selector=reason=Unreadable,regarding.name=absurd";
        let events = ["get", "events.events.k8s.io", "-n", &ns, of, "-o", path];
        let notes = cluster.kubectl.run(&events).await?;
        Ok(Seen::when(notes.contains("it is ignored"), notes))
    })
    .await;
    let delete = ["delete", "podgroup", "absurd", "-n", &ns];
    cluster.kubectl.run(&delete).await?;
    let required = json!({ "op": "add", "path": REQUIRED, "value": ["spec"] });
    define(cluster, required).await?;
    ran?;
    told?;
    cluster.delete_pod(&ns, "share").await?;
    Ok(())
}

/// Waits until a share is admitted, and takes it away again.
pub(crate) async fn admits_shares(cluster: &Cluster, ns: &str) -> Result<()> {
    let share = pod(ns, "first-share", &[("gpu-memory", "2000")], "report");
    until("a share admitted", Duration::from_secs(20), || async {
        let made = cluster.apply_one(&share).await;
        Ok(Seen::when(made.is_ok(), format!("{:?}", made.err())))
    })
    .await?;
    cluster.delete_pod(ns, "first-share").await
}

pub(crate) async fn while_admission_does_not_answer_a_share_is_refused_and_every_other_pod_is_made(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    admits_shares(cluster, &ns).await?;
    if let Some(mut admission) = cluster.admission.take() {
        admission.daemon.stop().await?;
    }
    for (at, annotation) in [
        ("gpu-memory", "2000"),
        ("gpu-fraction", "0.5"),
        ("nvidia.com/container.main.gpu-memory.request", "1Gi"),
    ]
    .into_iter()
    .enumerate()
    {
        let refused = pod(&ns, &format!("share-{at}"), &[annotation], "report");
        let refusal = match cluster.apply_one(&refused).await {
            Ok(_) => anyhow::bail!("{annotation:?} was admitted"),
            Err(refusal) => format!("{refusal:#}"),
        };
        ensure!(
            refusal.contains("failed calling webhook \"pods.aliquot.dev\""),
            "{refusal}"
        );
    }
    // A note about shares is none.
    let note = [("example.com/note", "gpu-memory: 2000")];
    cluster
        .apply_one(&pod(&ns, "plain", &note, "report"))
        .await?;
    cluster
        .pod_until(&ns, "plain", "placed", |pod| {
            let spec = pod.spec.as_ref();
            spec.is_some_and(|spec| spec.node_name.is_some())
        })
        .await?;
    cluster.admit().await?;
    admits_shares(cluster, &ns).await
}

/// It waits no longer for a scheduler than the API server waits for it.
pub(crate) async fn shares_are_made_while_the_scheduler_stands_still_or_is_gone_and_run_once_it_is_back(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    admits_shares(cluster, &ns).await?;
    let make = async |cluster: &Cluster, name: &str| -> Result<()> {
        let begin = Instant::now();
        let share = pod(&ns, name, &[("gpu-memory", "2000")], "hold");
        cluster.apply_one(&share).await?;
        let took = begin.elapsed();
        ensure!(took < Duration::from_secs(2), "{name}: {took:?}");
        let wrong = pod(&ns, "wrong", &[("gpu-memory", "0")], "report");
        let refusal = cluster.apply_one(&wrong).await;
        let refusal = format!("{:#}", refusal.err().context("it was admitted")?);
        ensure!(refusal.contains(MEMORY), "{refusal}");
        Ok(())
    };
    let daemon = &mut cluster.scheduler.as_mut().context("a scheduler")?.daemon;
    daemon.signal(Signal::SIGSTOP)?;
    let stopped = make(cluster, "while-it-stands").await;
    let daemon = &mut cluster.scheduler.as_mut().context("a scheduler")?.daemon;
    daemon.signal(Signal::SIGCONT)?;
    stopped?;
    cluster.pod_phase(&ns, "while-it-stands", "Running").await?;
    let daemon = &mut cluster.scheduler.as_mut().context("a scheduler")?.daemon;
    daemon.kill().await?;
    let gone = make(cluster, "while-it-is-gone").await;
    let daemon = &mut cluster.scheduler.as_mut().context("a scheduler")?.daemon;
    daemon.start_again()?;
    gone?;
    cluster
        .pod_phase(&ns, "while-it-is-gone", "Running")
        .await?;
    Ok(())
}
