//! Between a decision and the API server on a bad day: answers that never come, a suspended
//! process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_tests::burst::make;
use aliquot_tests::cluster::Cluster;
use aliquot_tests::proxy::{Fault, Proxy};
use aliquot_tests::scheduler::Replica;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use futures::FutureExt;
use http::Method;
use nix::sys::signal::Signal;

use crate::burst::{LIMIT, PLACES, with_replicas};

/// What only the holder of the lease writes.
const LEADERS: [&str; 5] = [
    "/pods/",
    "/podgroups",
    "/queues",
    "/events",
    "/persistentvolume",
];

fn leaders_writes(proxy: &Proxy) -> Vec<String> {
    let mut writes = proxy.writes();
    writes.retain(|write| LEADERS.iter().any(|part| write.contains(part)));
    writes
}

/// The holder is frozen in the middle of a burst until another one has the lease and has
/// bound the rest; it wakes with decisions that it had taken, and sends none of them.
pub(crate) async fn a_replica_that_stood_still_longer_than_its_lease_sends_nothing_afterwards(
    cluster: &mut Cluster,
) -> Result<()> {
    let proxies = [
        Proxy::start(&cluster.control_plane).await?,
        Proxy::start(&cluster.control_plane).await?,
    ];
    let replicas = [1, 2].map(|number| {
        let proxy = &proxies[usize::from(number) - 1];
        Replica::of_several(number, proxy.url())
    });
    let proxies = Arc::new(proxies);
    with_replicas(cluster, replicas, move |scene| {
        async move {
            let acting = scene.pair.acting(scene.cluster).await?;
            let client = scene.cluster.client.clone();
            let pods = scene.whole(0, PLACES);
            let making = tokio::spawn(async move { make(&client, pods).await });
            scene.bound.reach(PLACES / 4, LIMIT).await?;
            scene.pair.replicas[acting].daemon.signal(Signal::SIGSTOP)?;
            making.await??;
            until("the other in charge", LIMIT, || async {
                let at = scene.pair.acting(scene.cluster).await?;
                Ok(Seen::when(at != acting, format!("replica {at}")))
            })
            .await?;
            scene.bound.reach(PLACES, LIMIT).await?;
            let before = leaders_writes(&proxies[acting]).len();
            let woken = &mut scene.pair.replicas[acting].daemon;
            woken.signal(Signal::SIGCONT)?;
            // It finds its lease lost, and ends.
            let limit = Instant::now() + Duration::from_secs(10);
            while woken.alive().is_ok() {
                ensure!(Instant::now() < limit, "it still runs without the lease");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let after = leaders_writes(&proxies[acting]);
            ensure!(after.len() == before, "it wrote {:?}", &after[before..]);
            scene.all_bound(PLACES).await
        }
        .boxed_local()
    })
    .await
}

/// The write was not applied, its answer is lost, and reads are lost as well: the pod does not
/// change, so that no watch shows anything. Watches work all the time.
pub(crate) async fn a_binding_of_which_nobody_knows_anything_is_asked_for_until_there_is_a_word(
    cluster: &mut Cluster,
) -> Result<()> {
    let proxy = Arc::new(Proxy::start(&cluster.control_plane).await?);
    for pod in ["/p003", "/p007"] {
        let binding: &'static str = if pod == "/p003" {
            "/p003/binding"
        } else {
            "/p007/binding"
        };
        let faults = [Fault::Unavailable, Fault::Nothing];
        proxy.harm(Method::POST, binding, 1, &faults);
        let faults = [Fault::LoseAnswer, Fault::LoseAnswer, Fault::Nothing];
        proxy.harm(Method::GET, pod, 1, &faults);
    }
    let replicas = [1, 2].map(|number| Replica::of_several(number, proxy.url()));
    let harm = Arc::clone(&proxy);
    with_replicas(cluster, replicas, move |scene| {
        async move {
            let client = scene.cluster.client.clone();
            make(&client, scene.whole(0, 12)).await?;
            scene.all_bound(12).await?;
            let (met, _) = harm.harmed();
            ensure!(met >= 4, "only {met} requests met a fault");
            Ok(())
        }
        .boxed_local()
    })
    .await
}
