//! Jobs that are created while the scheduler runs, one pod and one card each: how soon all are
//! bound, what each costs, and how soon each pod's group exists.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aliquot_tests::burst::{Bound, clear, judge, whole};
use aliquot_tests::cluster::Cluster;
use anyhow::{Context, Result, ensure};
use api::PodGroup;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use proto::names::kai;
use serde_json::{Value, json};

use crate::meter::{self, Meter};
use crate::scale::{LIMIT, LOAD, Sizes, start, stop};

/// Requests under way at once.
const AT_ONCE: usize = 32;

/// Makes the Jobs, through the real Job controller, and waits for the last binding.
pub(crate) async fn jobs(cluster: &mut Cluster, sizes: &Sizes) -> Result<()> {
    let (bin, logs) = (cluster.programs.daemons.clone(), cluster.work.logs());
    let plane = &mut cluster.control_plane;
    plane.employ_job_controller(&bin, &logs)?;
    let mut scheduler = start(cluster, "scheduler").await?;
    scheduler.ready().await?;
    cluster.heard().await?;
    let before = Meter::read(cluster, Some(&scheduler)).await?;
    let mut bound = Bound::follow(cluster.client.clone(), LOAD);
    let groups = Api::<PodGroup>::namespaced(cluster.client.clone(), LOAD);
    let groups = Bound::first_seen(groups, "");
    let begin = Instant::now();
    let api: Api<Job> = Api::namespaced(cluster.client.clone(), LOAD);
    stream::iter(0..sizes.pods)
        .map(|at| {
            let api = api.clone();
            async move {
                let job: Job = serde_json::from_value(job(&format!("job-{at:05}")))?;
                api.create(&PostParams::default(), &job).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;
    let made = begin.elapsed();
    let reached = bound.reach(sizes.pods, LIMIT).await;
    scheduler.daemon.alive()?;
    let all = reached?.duration_since(begin);
    let at_last = Meter::read(cluster, Some(&scheduler)).await?;
    let settled = meter::settled(cluster, &scheduler).await?;
    println!(
        "\n{} Jobs of one pod and one card, made in {:.1} s while the scheduler runs; all bound after {:.1} s",
        sizes.pods,
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
    let mut late = after_binding(cluster, &bound.times(), &groups.times()).await?;
    meter::row("  bound to its group made", &mut late);
    cluster.control_plane.dismiss_controllers().await?;
    let judged = judge(cluster, LOAD).await?;
    ensure!(judged == sizes.pods, "{judged} are bound");
    drop((bound, groups));
    stop(cluster, scheduler).await?;
    // Their finalizers are their controller's to take away, which is gone.
    let away = DeleteParams::background().grace_period(0);
    let free = json!({ "metadata": { "finalizers": null } });
    for pod in cluster
        .pods(LOAD)
        .list_metadata(&ListParams::default())
        .await?
    {
        let free = Patch::Merge(&free);
        let params = PatchParams::default();
        cluster
            .pods(LOAD)
            .patch_metadata(&pod.name_any(), &params, &free)
            .await?;
    }
    api.delete_collection(&away, &ListParams::default()).await?;
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

fn job(name: &str) -> Value {
    let pod = whole(LOAD, name, 1);
    json!({
        "metadata": { "namespace": LOAD, "name": name },
        "spec": { "backoffLimit": 0, "template": { "spec": pod["spec"] } },
    })
}
