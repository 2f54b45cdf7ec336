//! Workloads of the real controllers, each in the pod group that KAI would give it.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::{describe, phase_of};
use aliquot_tests::share::{container, pod, why_pending};
use aliquot_tests::wait::{Seen, until};
use anyhow::{Context, Result, ensure};
use api::PodGroup;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use proto::names::kai;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const QUEUE: &str = "grouped";
const PARENT: &str = "grouped-parent";

/// One card of 15360 MiB, and a queue whose quota is all of it: servers are not preemptible, and
/// such work has its quota or nothing.
async fn ready(cluster: &mut Cluster) -> Result<String> {
    cluster.aliquot(&Hardware::preset("T4", 1)).await?;
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    for (name, parent) in [(PARENT, ""), (QUEUE, PARENT)] {
        cluster
            .apply_one(&json!({
                "apiVersion": "scheduling.run.ai/v2",
                "kind": "Queue",
                "metadata": { "name": name },
                "spec": { "parentQueue": parent, "resources": { "cpu": all, "gpu": all, "memory": all } },
            }))
            .await?;
    }
    cluster.namespace().await
}

/// A pod template with a share of this many MiB.
fn template(mib: &str, restart: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": "w" }, "annotations": { "gpu-memory": mib } },
        "spec": {
            "schedulerName": kai::SCHEDULER_NAME,
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 2,
            "containers": [container("main", "report hold")],
        },
    })
}

/// A Job whose pods start together, each with a share of this many MiB.
fn gang(namespace: &str, name: &str, pods: u32, mib: &str) -> Value {
    let min = json!({ "kai.scheduler/batch-min-member": pods.to_string() });
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "namespace": namespace, "name": name, "annotations": min },
        "spec": { "parallelism": pods, "completions": pods, "template": template(mib, "Never") },
    })
}

fn groups(cluster: &Cluster, namespace: &str) -> Api<PodGroup> {
    Api::namespaced(cluster.client.clone(), namespace)
}

/// The pods of a workload, once there are this many and all of them run.
async fn running(cluster: &Cluster, namespace: &str, count: usize) -> Result<Vec<Pod>> {
    let mut found = Vec::new();
    until(
        &format!("{count} pods of the workload running"),
        Duration::from_mins(1),
        || async {
            let pods = of_workload(cluster, namespace).await?;
            let run = pods.iter().filter(|pod| phase_of(pod) == "Running").count();
            let seen: Vec<String> = pods.iter().map(describe).collect();
            Ok(Seen::when(
                run == count && pods.len() == count,
                seen.join("; "),
            ))
        },
    )
    .await?;
    found.extend(of_workload(cluster, namespace).await?);
    Ok(found)
}

async fn of_workload(cluster: &Cluster, namespace: &str) -> Result<Vec<Pod>> {
    let params = ListParams::default().labels("app=w");
    Ok(cluster.pods(namespace).list(&params).await?.items)
}

fn group_of(pod: &Pod) -> Result<String> {
    pod.annotations()
        .get(kai::POD_GROUP)
        .cloned()
        .with_context(|| format!("{} is in no group", pod.name_any()))
}

fn all_in(pods: &[Pod], expected: &str) -> Result<()> {
    for pod in pods {
        let group = group_of(pod)?;
        ensure!(
            group == expected,
            "{} is in {group}, not {expected}",
            pod.name_any()
        );
    }
    Ok(())
}

/// What the API server calls it.
async fn uid(cluster: &Cluster, kind: &str, namespace: &str, name: &str) -> Result<String> {
    let out = cluster
        .kubectl
        .run(&[
            "-n",
            namespace,
            "get",
            kind,
            name,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
        .await?;
    Ok(out.trim().to_owned())
}

pub(crate) async fn pods_of_a_deployment_share_a_group_that_goes_with_it(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = ready(cluster).await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "namespace": ns, "name": "web", "labels": { kai::QUEUE_LABEL: QUEUE } },
            "spec": {
                "replicas": 2,
                "selector": { "matchLabels": { "app": "w" } },
                "template": template("2000", "Always"),
            },
        }))
        .await?;
    let pods = running(cluster, &ns, 2).await?;
    let api = groups(cluster, &ns);
    let expected = format!("pg-web-{}", uid(cluster, "deployment", &ns, "web").await?);
    all_in(&pods, &expected)?;
    let group = api.get(&expected).await?;
    ensure!(
        group.spec.queue.as_deref() == Some(QUEUE)
            && group.spec.priority_class_name.as_deref() == Some("inference")
            && group.spec.min_member == Some(1),
        "{:?}",
        group.spec
    );
    cluster
        .kubectl
        .run(&["-n", &ns, "delete", "deployment", "web"])
        .await?;
    until(
        "the group gone with its Deployment",
        Duration::from_mins(1),
        || async {
            let left = api.list(&ListParams::default()).await?.items.len();
            Ok(Seen::when(left == 0, format!("{left} left")))
        },
    )
    .await
}

pub(crate) async fn a_job_that_is_a_gang_starts_whole_or_not_at_all(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = ready(cluster).await?;
    // Three shares of 5000 MiB fit the card, but not beside this one.
    cluster
        .run_share(&pod(
            &ns,
            "before",
            &[("gpu-memory", "2000")],
            "report hold",
        ))
        .await?;
    cluster.apply_one(&gang(&ns, "train", 3, "5000")).await?;
    until("the gang's reason", Duration::from_secs(30), || async {
        let pods = of_workload(cluster, &ns).await?;
        let bound = |pod: &Pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.is_some())
        };
        let said: Vec<String> = pods.iter().filter_map(why_pending).collect();
        let seen = format!("{said:?}");
        if pods.iter().any(bound) {
            return Ok(Seen::Never(anyhow::anyhow!(
                "a part of the gang is bound: {seen}"
            )));
        }
        let told = said.len() == 3 && said.iter().all(|text| text.contains("gang"));
        Ok(Seen::when(told, seen))
    })
    .await?;
    cluster.delete_pod(&ns, "before").await?;
    let pods = running(cluster, &ns, 3).await?;
    let expected = format!("pg-train-{}", uid(cluster, "job", &ns, "train").await?);
    all_in(&pods, &expected)?;
    cluster.limits_hold().await
}

pub(crate) async fn pods_of_a_job_or_a_cron_job_are_grouped_as_kai_does(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = ready(cluster).await?;
    let spec = json!({ "parallelism": 2, "completions": 2, "template": template("2000", "Never") });
    cluster
        .apply_one(&json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": { "namespace": ns, "name": "two" },
            "spec": spec,
        }))
        .await?;
    let job = uid(cluster, "job", &ns, "two").await?;
    for pod in running(cluster, &ns, 2).await? {
        let expected = format!("pg-{}-{job}", pod.name_any());
        all_in(&[pod], &expected)?;
    }
    cluster
        .kubectl
        .run(&["-n", &ns, "delete", "job", "two"])
        .await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": { "namespace": ns, "name": "nightly" },
            // On the 31st of February.
            "spec": { "schedule": "0 0 31 2 *", "jobTemplate": { "spec": spec } },
        }))
        .await?;
    cluster
        .kubectl
        .run(&["-n", &ns, "create", "job", "now", "--from=cronjob/nightly"])
        .await?;
    let expected = format!("pg-now-{}", uid(cluster, "job", &ns, "now").await?);
    until(
        "the cron job's two pods in one group",
        Duration::from_mins(1),
        || async {
            let pods = of_workload(cluster, &ns).await?;
            let of_now: Vec<&Pod> = pods
                .iter()
                .filter(|pod| pod.name_any().starts_with("now-"))
                .collect();
            let run = of_now.iter().all(|pod| {
                phase_of(pod) == "Running" && group_of(pod).is_ok_and(|group| group == expected)
            });
            let seen: Vec<String> = of_now.iter().map(|pod| describe(pod)).collect();
            Ok(Seen::when(run && of_now.len() == 2, seen.join("; ")))
        },
    )
    .await
}

pub(crate) async fn a_stateful_sets_group_keeps_what_a_person_edits(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = ready(cluster).await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": { "namespace": ns, "name": "db" },
            "spec": {
                "replicas": 1,
                "serviceName": "db",
                "selector": { "matchLabels": { "app": "w" } },
                "template": template("2000", "Always"),
            },
        }))
        .await?;
    let expected = format!("pg-db-{}", uid(cluster, "statefulset", &ns, "db").await?);
    let first = running(cluster, &ns, 1).await?;
    all_in(&first, &expected)?;
    let edit = json!({ "spec": { "queue": QUEUE, "markUnschedulable": false } }).to_string();
    let kubectl = &cluster.kubectl;
    kubectl
        .run(&[
            "-n",
            &ns,
            "patch",
            "podgroup",
            &expected,
            "--type=merge",
            "-p",
            &edit,
        ])
        .await?;
    kubectl
        .run(&["-n", &ns, "scale", "statefulset", "db", "--replicas=2"])
        .await?;
    all_in(&running(cluster, &ns, 2).await?, &expected)?;
    let api = groups(cluster, &ns);
    let all = api.list(&ListParams::default()).await?.items;
    ensure!(all.len() == 1, "{} groups", all.len());
    ensure!(
        all[0].spec.queue.as_deref() == Some(QUEUE)
            && all[0].spec.mark_unschedulable == Some(false),
        "{:?}",
        all[0].spec
    );
    Ok(())
}

pub(crate) async fn a_pod_alone_runs_and_has_its_group(cluster: &mut Cluster) -> Result<()> {
    let ns = ready(cluster).await?;
    let started = cluster
        .run_share(&pod(&ns, "alone", &[("gpu-memory", "2000")], "report hold"))
        .await?;
    let expected = format!("pg-alone-{}", started.uid().unwrap_or_default());
    let grouped = cluster
        .pod_until(&ns, "alone", "in its group", |pod| {
            group_of(pod).is_ok_and(|group| group == expected)
        })
        .await?;
    ensure!(phase_of(&grouped) == "Running", "{}", describe(&grouped));
    let group = groups(cluster, &ns).get(&expected).await?;
    ensure!(
        group
            .owner_references()
            .iter()
            .any(|owner| owner.name == "alone"),
        "{:?}",
        group.owner_references()
    );
    ensure!(
        group.spec.priority_class_name.as_deref() == Some("train"),
        "{:?}",
        group.spec
    );
    Ok(())
}

pub(crate) async fn pods_in_a_group_made_by_hand_start_together_and_the_group_is_left_alone(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = ready(cluster).await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": { "namespace": ns, "name": "mine" },
            "spec": { "minMember": 2, "queue": QUEUE },
        }))
        .await?;
    let member = |name: &str| {
        let annotations = [
            ("gpu-memory", "2000"),
            (kai::SKIP_GROUPER, "true"),
            (kai::POD_GROUP, "mine"),
        ];
        pod(&ns, name, &annotations, "report hold")
    };
    cluster.apply_one(&member("a")).await?;
    let waiting = cluster
        .pod_until(&ns, "a", "told why it waits", |pod| {
            why_pending(pod).is_some()
        })
        .await?;
    ensure!(
        waiting
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_none()),
        "bound alone: {}",
        describe(&waiting)
    );
    let events: Api<k8s_openapi::api::events::v1::Event> =
        Api::namespaced(cluster.client.clone(), &ns);
    until("the group's event", Duration::from_secs(10), || async {
        let all = events.list(&ListParams::default()).await?.items;
        let told = all.iter().filter_map(|event| {
            let about = event.regarding.as_ref()?;
            let of_group = about.kind.as_deref() == Some("PodGroup") && about.uid.is_some();
            of_group.then(|| (event.reason.clone(), event.note.clone()))
        });
        let told: Vec<_> = told.collect();
        let ready = told
            .iter()
            .any(|(reason, _)| reason.as_deref() == Some("NotReady"));
        Ok(Seen::when(ready, format!("{told:?}")))
    })
    .await?;
    let waits = groups(cluster, &ns).get_status("mine").await?;
    let conditions = waits.status.unwrap_or_default().scheduling_conditions;
    ensure!(conditions.is_empty(), "{conditions:?}");
    cluster.apply_one(&member("b")).await?;
    for name in ["a", "b"] {
        let started = cluster.pod_phase(&ns, name, "Running").await?;
        ensure!(group_of(&started)? == "mine", "{}", group_of(&started)?);
    }
    let all = groups(cluster, &ns)
        .list(&ListParams::default())
        .await?
        .items;
    ensure!(
        all.len() == 1 && all[0].owner_references().is_empty(),
        "{} groups",
        all.len()
    );
    Ok(())
}

/// The pod of a succeeded member is deleted, as by `kubectl delete --field-selector`, a TTL or an
/// operator's clean-up.
pub(crate) async fn a_gang_goes_on_without_members_that_have_succeeded(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = ready(cluster).await?;
    cluster
        .apply_one(&json!({
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": { "namespace": ns, "name": "mine",
                "annotations": { (kai::STALENESS_GRACE): "2s" } },
            "spec": { "minMember": 2, "queue": QUEUE },
        }))
        .await?;
    let member = |name: &str, mib: &str, does: &str| {
        let annotations = [
            ("gpu-memory", mib),
            (kai::SKIP_GROUPER, "true"),
            (kai::POD_GROUP, "mine"),
        ];
        pod(&ns, name, &annotations, does)
    };
    cluster.apply_one(&member("ends", "2000", "report")).await?;
    cluster
        .apply_one(&member("stays", "2000", "report hold"))
        .await?;
    cluster.pod_phase(&ns, "ends", "Succeeded").await?;
    cluster.pod_phase(&ns, "stays", "Running").await?;
    cluster.delete_pod(&ns, "ends").await?;
    until(
        "the group remembers it",
        Duration::from_secs(20),
        || async {
            let group = groups(cluster, &ns).get("mine").await?;
            let said = group
                .annotations()
                .get(proto::names::pod_group::SUCCEEDED)
                .cloned()
                .unwrap_or_default();
            Ok(Seen::when(said == "{\"default\":1}", said))
        },
    )
    .await?;
    // The pause is longer than the grace of a gang below its minimum.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let stays = cluster.pods(&ns).get("stays").await?;
    ensure!(
        phase_of(&stays) == "Running" && stays.metadata.deletion_timestamp.is_none(),
        "{}",
        describe(&stays)
    );
    // A restarted scheduler knows of the succeeded member from the group alone.
    let scheduler = cluster.scheduler.as_mut().context("no scheduler")?;
    scheduler.daemon.restart_with(|command| command).await?;
    // The new member has no room beside the other, so it is the only one that exists when it runs.
    cluster
        .apply_one(&member("instead", "14000", "report hold"))
        .await?;
    cluster.delete_pod(&ns, "stays").await?;
    cluster.pod_phase(&ns, "instead", "Running").await?;
    Ok(())
}

/// A user who reads why a pod waits looks for its group next.
pub(crate) async fn a_pod_that_waits_names_its_group_with_its_reason(
    cluster: &mut Cluster,
) -> Result<()> {
    let ns = ready(cluster).await?;
    let told = {
        let api = cluster.pods(&ns);
        let is_told = |pod: &Pod| why_pending(pod).is_some();
        tokio::spawn(async move { first_seen(&api, WatchParams::default(), 2, is_told).await })
    };
    cluster.apply_one(&gang(&ns, "large", 2, "9000")).await?;
    let expected = format!("pg-large-{}", uid(cluster, "job", &ns, "large").await?);
    for (pod, _) in told.await?? {
        all_in(&[pod], &expected)?;
    }
    Ok(())
}

/// Tools that see a pod placed look up its group: it is in the pod from its binding on, and the
/// group exists soon after, with its start time.
pub(crate) async fn a_pod_names_its_group_from_its_binding_on(cluster: &mut Cluster) -> Result<()> {
    let ns = ready(cluster).await?;
    // Both are watched from before the first pod on, so that what this test itself
    // takes is in neither time.
    let bound = {
        let api = cluster.pods(&ns);
        tokio::spawn(async move {
            let on_a_node = WatchParams::default().fields("spec.nodeName!=");
            first_seen(&api, on_a_node, 3, |_: &Pod| true).await
        })
    };
    let made = {
        let api = groups(cluster, &ns);
        let has_start = |group: &PodGroup| group.annotations().contains_key(kai::LAST_START);
        tokio::spawn(async move { first_seen(&api, WatchParams::default(), 2, has_start).await })
    };
    cluster.apply_one(&gang(&ns, "two", 2, "2000")).await?;
    cluster
        .run_share(&pod(&ns, "alone", &[("gpu-memory", "2000")], "report hold"))
        .await?;
    let made = made.await??;
    for (pod, bound) in bound.await?? {
        let name = pod.name_any();
        let group = group_of(&pod).context("when its binding is first seen")?;
        let expected = if name == "alone" {
            format!("pg-alone-{}", pod.uid().unwrap_or_default())
        } else {
            format!("pg-two-{}", uid(cluster, "job", &ns, "two").await?)
        };
        all_in(&[pod], &expected)?;
        let found = made.iter().find(|(one, _)| one.name_any() == group);
        let (_, made) = found.with_context(|| format!("{group} has no start"))?;
        let late = made.saturating_duration_since(bound);
        // A second, and what a busy machine takes.
        ensure!(
            name == "alone" || late < Duration::from_secs(6),
            "{group} was made {late:?} after"
        );
    }
    Ok(())
}

/// This many objects in the state in which the watch first shows them with the wanted property, and
/// the time.
async fn first_seen<K>(
    api: &Api<K>,
    params: WatchParams,
    count: usize,
    wanted: impl Fn(&K) -> bool,
) -> Result<Vec<(K, Instant)>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let events = api.watch(&params.timeout(120), "0").await?;
    let mut events = std::pin::pin!(events);
    let mut found: Vec<(K, Instant)> = Vec::new();
    while found.len() < count {
        let event = events.next().await.context("the watch ended")??;
        if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event
            && wanted(&object)
            && found
                .iter()
                .all(|(one, _)| one.name_any() != object.name_any())
        {
            found.push((object, Instant::now()));
        }
    }
    Ok(found)
}
