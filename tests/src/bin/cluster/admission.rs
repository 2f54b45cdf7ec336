//! What is refused before a pod exists, in one clear sentence each.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::time::Duration;

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
    // The first reason may be that no agent was heard yet.
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
            group(json!([sub("a", ""), sub("a", "")])),
            "the name a is there twice",
        ),
        (
            group(json!([sub("a", "x")])),
            "the parent x of a is not among them",
        ),
        (
            group(json!([sub("a", "b"), sub("b", "a")])),
            "a is its own ancestor",
        ),
    ];
    for (object, sentence) in table {
        // The configuration is written a moment after the scheduler is up.
        until(sentence, Duration::from_secs(10), || async {
            let refusal = match cluster.apply_one(&object).await {
                Ok(_) => "it was taken".to_owned(),
                Err(refusal) => format!("{refusal:#}"),
            };
            let seen = refusal.contains(sentence) && refusal.lines().count() == 1;
            Ok(Seen::when(seen, refusal))
        })
        .await?;
    }
    Ok(())
}
