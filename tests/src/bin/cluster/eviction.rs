//! A victim, from the moment it is chosen until another pod has its memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::phase_of;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use proto::names::kai;
use serde_json::{Value, json};

use crate::hostile::held;

const LIMIT: Duration = Duration::from_mins(1);

pub(crate) async fn an_evicted_pods_memory_is_free_before_anybody_else_is_bound_to_it(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let ns = cluster.namespace().await?;
    let mut low = of_class(
        pod(&ns, "low", &[("gpu-memory", "12000")], "alloc 11000 hold"),
        "train",
    );
    // It takes its time to leave, with all that it holds.
    low["spec"]["terminationGracePeriodSeconds"] = json!(20);
    low["spec"]["containers"][0]["lifecycle"] =
        json!({ "preStop": { "exec": { "command": ["/bin/busybox", "sleep", "4"] } } });
    let victim = cluster.run_share(&low).await?;
    cluster.said(&ns, "low", "main", "alloc").await?;
    let uid = victim.uid().context("a UID")?;
    let high = pod(&ns, "high", &[("gpu-memory", "12000")], "alloc 11000 hold");
    cluster
        .apply_one(&of_class(high, "build-preemptible"))
        .await?;

    let pods = cluster.pods(&ns);
    let gpus = cluster.gpus.as_ref().context("no GPUs")?;
    let (mut disrupted, mut leaving_with_memory) = (false, 0);
    let begin = Instant::now();
    loop {
        // In this order: the allocation is queried after the binding was seen.
        let high = pods.get("high").await?;
        let held = held(gpus, &uid).await?.unwrap_or(0);
        let bound = high
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        ensure!(!bound || held == 0, "bound while {held} MiB are held");
        if let Some(low) = pods.get_opt("low").await? {
            disrupted |= is_disrupted(&low);
            let leaving = low.metadata.deletion_timestamp.is_some();
            leaving_with_memory += u32::from(leaving && held > 0);
        }
        if phase_of(&high) == "Running" {
            break;
        }
        ensure!(begin.elapsed() < Duration::from_mins(1), "high waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(
        leaving_with_memory > 10,
        "it left at once: nothing was shown"
    );
    ensure!(disrupted, "no DisruptionTarget on the victim");
    let taken = cluster.said(&ns, "high", "main", "alloc").await?;
    ensure!(taken["ok"] == true, "{taken}");
    let high = pods.get("high").await?;
    told_as_kai_tells_it(cluster, &ns, &victim, &high).await
}

/// The victim's group has KAI's event with the annotations that tools read, and the pod that was
/// bound has KAI's condition.
async fn told_as_kai_tells_it(
    cluster: &Cluster,
    ns: &str,
    victim: &Pod,
    winner: &Pod,
) -> Result<()> {
    let group_of = |pod: &Pod| pod.annotations().get(kai::POD_GROUP).cloned();
    let lost = group_of(victim).context("the victim's group")?;
    let won = group_of(winner).context("the group that was made room for")?;
    let wanted = [
        ("num-evicted-pods", "1"),
        ("evictor-action-type", "preempt"),
        ("evictor-pod-group-name", &won),
        ("evictor-pod-group-namespace", ns),
    ];
    let wanted: BTreeMap<String, String> = wanted
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    // As `kubectl describe podgroup` asks.
    let about = format!("involvedObject.kind=PodGroup,involvedObject.name={lost},reason=Evict");
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), ns);
    until("an event on the victim's group", LIMIT, || async {
        let found = events.list(&ListParams::default().fields(&about)).await?;
        let is_it = |event: &Event| {
            let says = event.message.as_deref().unwrap_or_default();
            *event.annotations() == wanted
                && event.involved_object.uid.is_some()
                && says.contains("/low was preempted by higher priority workload")
        };
        let holds = matches!(found.items.as_slice(), [one] if is_it(one));
        Ok(Seen::when(holds, format!("{:?}", found.items)))
    })
    .await?;
    Ok(())
}

/// Two shares have to go for a larger one, and a budget protects one of them: neither goes
/// before both may.
pub(crate) async fn where_a_budget_protects_one_of_two_pods_neither_goes_and_who_waits_is_told(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let mut respectful = Replica::only();
    let flag = "--respect-disruption-budgets".to_owned();
    respectful.args.push(flag);
    cluster.replace_scheduler(respectful).await?;
    let result = spared_by_a_budget(cluster).await;
    cluster.replace_scheduler(Replica::only()).await?;
    result
}

async fn spared_by_a_budget(cluster: &mut Cluster) -> Result<()> {
    let ns = cluster.namespace().await?;
    for name in ["low-a", "low-b"] {
        let mut low = of_class(pod(&ns, name, &[("gpu-memory", "6000")], "hold"), "train");
        low["metadata"]["labels"]["app"] = json!(name);
        cluster.run_share(&low).await?;
    }
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "one", "namespace": ns },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "low-b" } } },
    });
    cluster.apply_one(&budget).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), &ns);
    until("the budget counted", LIMIT, || async {
        let status = budgets.get("one").await?.status.unwrap_or_default();
        let healthy = status.current_healthy == Some(1);
        Ok(Seen::when(healthy, format!("{status:?}")))
    })
    .await?;
    let high = pod(&ns, "high", &[("gpu-memory", "12000")], "hold");
    cluster
        .apply_one(&of_class(high, "build-preemptible"))
        .await?;
    let pods = cluster.pods(&ns);
    until("high told why", LIMIT, || async {
        let high = pods.get("high").await?;
        let conditions = high.status.and_then(|status| status.conditions);
        let said = conditions.unwrap_or_default().into_iter();
        let said: Vec<String> = said.filter_map(|one| one.message).collect();
        let wanted = format!("pod {ns}/low-b may not be evicted");
        let told = said.iter().any(|line| line.contains(&wanted));
        Ok(Seen::when(told, format!("{said:?}")))
    })
    .await?;
    // Long enough for a second question.
    tokio::time::sleep(Duration::from_secs(4)).await;
    for name in ["low-a", "low-b"] {
        let low = pods.get(name).await?;
        let stays = low.metadata.deletion_timestamp.is_none() && phase_of(&low) == "Running";
        ensure!(stays, "{name} was evicted: {:?}", low.status);
    }
    budgets.delete("one", &DeleteParams::default()).await?;
    until("high running", LIMIT, || async {
        let high = pods.get("high").await?;
        let phase = phase_of(&high);
        Ok(Seen::when(phase == "Running", phase.to_owned()))
    })
    .await?;
    Ok(())
}

fn of_class(mut pod: Value, class: &str) -> Value {
    pod["metadata"]["labels"][kai::PRIORITY_CLASS_LABEL] = json!(class);
    pod
}

fn is_disrupted(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|one| one.type_ == "DisruptionTarget" && one.status == "True")
}
