//! A burst of pods while the scheduler's wall clock steps by hours; all other clocks keep their
//! time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aliquot_tests::burst::{judge, make};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::scheduler::Replica;
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::wall_clock::WallClock;
use aliquot_tests::{control_plane, gang};
use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use proto::names::{NAMESPACE, object};

use crate::burst::{BurstSetup, LIMIT, PLACES, with_replicas};

const HOUR: i64 = 3600;
/// Between two steps.
const STEP: Duration = Duration::from_millis(700);
/// How long it is observed with nothing to do.
const SPAN: Duration = Duration::from_secs(10);
/// Of one core, with nothing to do but the lease and the agents of the nodes, unoptimised.
const IDLE: f64 = 0.25;
/// Clock ticks of `/proc` in a second.
const TICKS: f64 = 100.0;

/// How often the lease went to another replica.
async fn transitions(scene: &BurstSetup<'_>) -> Result<i32> {
    let leases: Api<Lease> = Api::namespaced(scene.cluster.client.clone(), NAMESPACE);
    let spec = leases.get(object::LEASE).await?.spec;
    Ok(spec
        .and_then(|spec| spec.lease_transitions)
        .unwrap_or_default())
}

/// How many seconds the clock of the lease's holder is ahead, by its timestamps.
async fn ahead(scene: &BurstSetup<'_>) -> Result<i64> {
    let leases: Api<Lease> = Api::namespaced(scene.cluster.client.clone(), NAMESPACE);
    let spec = leases.get(object::LEASE).await?.spec;
    let renewed = spec.and_then(|spec| spec.renew_time).context("a lease")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(renewed.0.as_second() - i64::try_from(now.as_secs())?)
}

/// Of one core, over [`SPAN`].
async fn load(pid: u32) -> Result<f64> {
    let ticks = || -> Result<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, rest) = stat.rsplit_once(')').context("a stat line")?;
        let mut fields = rest.split_whitespace().skip(11);
        let mut next = || fields.next().and_then(|field| field.parse::<u32>().ok());
        Ok(next().context("utime")? + next().context("stime")?)
    };
    let before = ticks()?;
    tokio::time::sleep(SPAN).await;
    Ok(f64::from(ticks()? - before) / TICKS / SPAN.as_secs_f64())
}

pub(crate) async fn a_wall_clock_that_steps_by_an_hour_in_mid_burst_changes_nothing(
    cluster: &mut Cluster,
) -> Result<()> {
    let wall = WallClock::at(cluster.work.state().join("wall-clock"))?;
    // It starts an hour behind: to it every pod was made in the future.
    wall.step_to(-HOUR)?;
    let replicas = [1, 2].map(|number| Replica {
        wall: Some(wall.clone()),
        ..Replica::of_several(number, control_plane::url())
    });
    let wall = &wall.clone();
    with_replicas(cluster, replicas, move |scene| {
        let wall = wall.clone();
        async move {
            let acting = scene.pair.acting(scene.cluster).await?;
            let before = transitions(scene).await?;
            let behind = -ahead(scene).await?;
            ensure!(
                (HOUR - 60..HOUR + 60).contains(&behind),
                "{behind} s behind"
            );
            let client = scene.cluster.client.clone();
            // More than there is room for: what does not fit waits, and says so.
            let pods = scene.whole(0, PLACES + 8);
            let stepping = wall.clone();
            let making = tokio::spawn(async move {
                let mut steps = [HOUR, -HOUR, 0].into_iter().cycle();
                for some in pods.chunks(13) {
                    stepping.step_to(steps.next().unwrap_or_default())?;
                    make(&client, some.to_vec()).await?;
                    tokio::time::sleep(STEP).await;
                }
                anyhow::Ok(())
            });
            making.await??;
            scene.all_bound(PLACES).await?;
            // A pending pod has its reason, and takes a place that becomes free, an hour later and
            // an hour before as well.
            for (at, ahead) in [HOUR, -HOUR].into_iter().enumerate() {
                wall.step_to(ahead)?;
                free_one(scene).await?;
                scene.bound.reach(PLACES + at + 1, LIMIT).await?;
                let judged = judge(scene.cluster, &scene.ns).await?;
                ensure!(judged == PLACES, "{judged} are bound");
            }
            until("a reason for each of the others", LIMIT, || async {
                let pods = scene.cluster.pods(&scene.ns);
                let listed = pods.list(&ListParams::default()).await?;
                let why = aliquot_tests::share::why_pending;
                let told = listed.iter().filter(|pod| why(pod).is_some()).count();
                Ok(Seen::when(told == 6, format!("{told} of 6")))
            })
            .await?;
            // No replica is busy with a time that has passed, or that does not come.
            let pid = scene.pair.replicas[acting].daemon.pid();
            let used = load(pid.context("it runs")?).await?;
            ensure!(used < IDLE, "{used:.2} of a core with nothing to do");
            // And the leader is the same.
            let after = transitions(scene).await?;
            ensure!(
                after == before,
                "the lease changed hands {} times",
                after - before
            );
            // When it is stopped, it releases the lease, and the other continues.
            wall.step_to(HOUR)?;
            scene.pair.replicas[acting].daemon.stop().await?;
            let begin = Instant::now();
            free_one(scene).await?;
            scene.bound.reach(PLACES + 3, LIMIT).await?;
            ensure!(
                begin.elapsed() < Duration::from_secs(15),
                "{:?}",
                begin.elapsed()
            );
            let judged = judge(scene.cluster, &scene.ns).await?;
            ensure!(judged == PLACES, "{judged} are bound");
            Ok(())
        }
        .boxed_local()
    })
    .await
}

/// Deletes a pod that is bound.
async fn free_one(scene: &BurstSetup<'_>) -> Result<()> {
    let pods = scene.cluster.pods(&scene.ns);
    let listed = pods.list(&ListParams::default()).await?;
    let seated = listed.iter().find(|pod| gang::bound(pod));
    let name = seated.context("none is bound")?.name_any();
    let now = DeleteParams::default().grace_period(0);
    pods.delete(&name, &now).await?;
    Ok(())
}
