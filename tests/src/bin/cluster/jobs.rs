//! Jobs that are created while the scheduler runs, one pod and one card each: how soon all are
//! bound, what each costs, and how soon each pod's group exists. The same with kube-scheduler in
//! its place.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_tests::burst::{Bound, clear, judge, make_one, plain, whole};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::daemon::Daemon;
use anyhow::{Context, Result, ensure};
use api::PodGroup;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use proto::names::kai;
use serde_json::{Value, json};

use crate::meter::{self, Meter};
use crate::scale_setup::{LIMIT, LOAD, Sizes, start, stop};

/// Requests under way at once.
const AT_ONCE: usize = 32;
/// The scheduler of pods that name none.
const KUBE_SCHEDULER: &str = "default-scheduler";

/// One time that all were bound.
struct Burst {
    /// From the first Job's creation to the last binding.
    all: Duration,
    /// The API server's processor time until nothing is written any more, in seconds.
    api_server: f64,
    bound: Bound,
}

/// The Jobs through the real Job controller, bound by the scheduler and then by kube-scheduler.
pub(crate) async fn jobs(cluster: &mut Cluster, sizes: &Sizes) -> Result<()> {
    employ(cluster)?;
    for round in 1..=sizes.rounds {
        println!(
            "\n{} Jobs of one pod and one card, made while the scheduler runs, round {round}",
            sizes.pods
        );
        let ours = by_ours(cluster, sizes).await?;
        cluster.control_plane.recall_controllers()?;
        let theirs = by_kube_scheduler(cluster, sizes).await?;
        if round < sizes.rounds {
            cluster.control_plane.recall_controllers()?;
        }
        println!(
            "  ratio of the times {:.2}, of the API server's CPU {:.2}",
            ours.all.as_secs_f64() / theirs.all.as_secs_f64(),
            ours.api_server / theirs.api_server,
        );
    }
    Ok(())
}

/// From now on Jobs get their pods, and no other controller runs.
pub(crate) fn employ(cluster: &mut Cluster) -> Result<()> {
    let (bin, logs) = (cluster.programs.daemons.clone(), cluster.work.logs());
    cluster.control_plane.employ_job_controller(&bin, &logs)
}

async fn by_ours(cluster: &mut Cluster, sizes: &Sizes) -> Result<Burst> {
    let mut scheduler = start(cluster, "scheduler").await?;
    scheduler.ready().await?;
    cluster.simulated_agents()?.heard().await?;
    let groups = Api::<PodGroup>::namespaced(cluster.client.clone(), LOAD);
    let groups = Bound::first_seen(groups, "");
    let burst = burst(cluster, sizes, kai::SCHEDULER_NAME, &mut scheduler.daemon).await?;
    let mut late = after_binding(cluster, &burst.bound.times(), &groups.times()).await?;
    meter::row("  bound to its group made", &mut late);
    let judged = judge(cluster, LOAD).await?;
    ensure!(judged == sizes.pods, "{judged} are bound");
    stop(cluster, scheduler).await?;
    clear_jobs(cluster).await?;
    Ok(burst)
}

async fn by_kube_scheduler(cluster: &mut Cluster, sizes: &Sizes) -> Result<Burst> {
    let mut scheduler = cluster.start_kube_scheduler()?;
    let mut first = plain(LOAD, "first");
    first["spec"]["schedulerName"] = json!(KUBE_SCHEDULER);
    make_one(&cluster.client, first).await?;
    let mut bound = Bound::follow(cluster.client.clone(), LOAD);
    bound.reach(1, LIMIT).await?;
    drop(bound);
    clear(cluster, LOAD).await?;
    let burst = burst(cluster, sizes, KUBE_SCHEDULER, &mut scheduler).await?;
    scheduler.stop().await?;
    clear_jobs(cluster).await?;
    Ok(burst)
}

async fn burst(
    cluster: &Cluster,
    sizes: &Sizes,
    by: &str,
    scheduler: &mut Daemon,
) -> Result<Burst> {
    let before = Meter::read(cluster, Some(scheduler)).await?;
    let mut bound = Bound::follow(cluster.client.clone(), LOAD);
    let begin = Instant::now();
    let jobs = (0..sizes.pods).map(|at| {
        let mut pod = whole(LOAD, &format!("job-{at:05}"), 1);
        pod["spec"]["schedulerName"] = json!(by);
        job(&pod)
    });
    make_jobs(&cluster.client, jobs).await?;
    let made = begin.elapsed();
    let reached = bound.reach(sizes.pods, LIMIT).await;
    scheduler.alive()?;
    let all = reached?.duration_since(begin);
    let at_last = Meter::read(cluster, Some(scheduler)).await?;
    let settled = meter::settled(cluster, scheduler).await?;
    println!(
        "  {by}: Jobs made in {:.1} s, all bound after {:.1} s",
        made.as_secs_f64(),
        all.as_secs_f64(),
    );
    for (when, meter) in [
        ("at the last binding", &at_last),
        ("when all is said", &settled),
    ] {
        println!("    {when}: {}", meter.since(&before, sizes.pods));
        println!("    {}", meter.writes_since(&before, sizes.pods));
    }
    Ok(Burst {
        all,
        api_server: settled.api_server_since(&before),
        bound,
    })
}

/// Makes Jobs, many at once.
pub(crate) async fn make_jobs(
    client: &Client,
    manifests: impl IntoIterator<Item = Value>,
) -> Result<()> {
    let api: Api<Job> = Api::namespaced(client.clone(), LOAD);
    stream::iter(manifests)
        .map(|manifest| {
            let api = api.clone();
            async move {
                let job: Job = serde_json::from_value(manifest)?;
                api.create(&PostParams::default(), &job).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// Deletes all Jobs with their pods. Their controller ends: it would make the pods again.
pub(crate) async fn clear_jobs(cluster: &mut Cluster) -> Result<()> {
    cluster.control_plane.dismiss_controllers().await?;
    let away = DeleteParams::background().grace_period(0);
    let all = ListParams::default();
    // The finalizers are the controller's to remove.
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let pods = cluster.pods(LOAD);
    let listed = pods.list_metadata(&all).await?;
    stream::iter(listed)
        .map(|pod| {
            let (pods, free) = (&pods, &free);
            async move {
                let params = PatchParams::default();
                pods.patch_metadata(&pod.name_any(), &params, free).await
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    Api::<Job>::namespaced(cluster.client.clone(), LOAD)
        .delete_collection(&away, &all)
        .await?;
    clear(cluster, LOAD).await
}

/// How long after its pod was seen bound each group was seen; zero for those that were there
/// before.
async fn after_binding(
    cluster: &Cluster,
    bound: &BTreeMap<String, Instant>,
    made: &BTreeMap<String, Instant>,
) -> Result<Vec<Duration>> {
    let api = cluster.pods(LOAD);
    let pods = api.list_metadata(&ListParams::default()).await?;
    let late = |pod: &PartialObjectMeta<Pod>| {
        let name = pod.name_any();
        let group = pod.annotations().get(kai::POD_GROUP);
        let group = group.with_context(|| format!("{name} is in no group"))?;
        let made = made.get(group);
        let made = made.with_context(|| format!("{group} is not there"))?;
        let bound = bound.get(&name);
        let bound = bound.with_context(|| format!("{name} was not seen bound"))?;
        Ok(made.saturating_duration_since(*bound))
    };
    pods.iter().map(late).collect()
}

/// A Job of one pod like this one.
pub(crate) fn job(pod: &Value) -> Value {
    json!({
        "metadata": { "namespace": LOAD, "name": pod["metadata"]["name"] },
        "spec": { "backoffLimit": 0, "template": {
            "metadata": { "annotations": pod["metadata"]["annotations"] },
            "spec": pod["spec"],
        } },
    })
}
