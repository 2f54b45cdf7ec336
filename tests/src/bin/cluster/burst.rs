//! A scheduler under a burst of pods, while everything around it goes wrong: nothing is
//! bound twice, nothing is lost, no card is granted beyond its memory.
//!
//! Nodes and agents are simulated; API server, admission and tokens are real.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aliquot_tests::burst::{Bound, clear, fraction, judge, make, whole};
use aliquot_tests::cluster::Cluster;
use aliquot_tests::proxy::{Fault, Proxy};
use aliquot_tests::scheduler::{Replica, Scheduler};
use aliquot_tests::wait::{Seen, until};
use aliquot_tests::{control_plane, gang};
use anyhow::{Context, Result, ensure};
use api::PodGroup;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use proto::names::{NAMESPACE, kai, object};
use serde_json::{Value, json};

const NODES: usize = 12;
const CARDS: u32 = 8;
/// As many whole cards as there are.
pub(crate) const PLACES: usize = NODES * CARDS as usize;
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// The longest time after the leader's death.
const IN_CHARGE: Duration = Duration::from_secs(15);

/// Two replicas, with all agents connected to both.
pub(crate) struct Pair {
    pub(crate) replicas: Vec<Scheduler>,
}

impl Pair {
    /// Both are ready and hear every agent afterwards.
    pub(crate) async fn start(cluster: &Cluster, wanted: [Replica; 2]) -> Result<Self> {
        let mut replicas = Vec::new();
        for replica in wanted {
            replicas.push(cluster.start_scheduler(replica).await?);
        }
        let addresses: Vec<SocketAddr> = replicas
            .iter()
            .map(|scheduler| scheduler.replica.telemetry())
            .collect();
        cluster.simulated_agents()?.speak_to(&addresses);
        for replica in &mut replicas {
            replica.ready().await?;
        }
        cluster.simulated_agents()?.heard().await?;
        Ok(Self { replicas })
    }

    /// Which of them holds the lease.
    pub(crate) async fn acting(&self, cluster: &Cluster) -> Result<usize> {
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), NAMESPACE);
        until("a replica that acts", Duration::from_secs(30), || async {
            let lease = leases.get(object::LEASE).await?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity);
            let holder = holder.unwrap_or_default();
            let found = self
                .replicas
                .iter()
                .position(|scheduler| scheduler.replica.name == holder);
            Ok(Seen::from_option(found, holder))
        })
        .await
    }

    /// Whichever has ended is started again, as the kubelet would; one that panicked is a defect.
    pub(crate) fn revive(&mut self) -> Result<()> {
        for scheduler in &mut self.replicas {
            if let Err(ended) = scheduler.daemon.alive() {
                let why = ended.to_string();
                ensure!(!why.contains("panicked at"), "{why}");
                scheduler.daemon.start_again()?;
            }
        }
        Ok(())
    }

    /// Ends both; no agent connects to them any more.
    pub(crate) async fn stop(mut self, cluster: &Cluster) -> Result<()> {
        if let Ok(agents) = cluster.simulated_agents() {
            agents.speak_to(&[]);
        }
        for scheduler in &mut self.replicas {
            scheduler.daemon.stop().await?;
        }
        Ok(())
    }
}

/// Where a burst takes place.
pub(crate) struct BurstSetup<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) pair: Pair,
    pub(crate) bound: Bound,
    pub(crate) ns: String,
}

impl BurstSetup<'_> {
    pub(crate) fn whole(&self, from: usize, count: usize) -> Vec<Value> {
        (from..from + count)
            .map(|at| whole(&self.ns, &format!("p{at:03}"), 1))
            .collect()
    }

    /// Waits until this many are bound, and checks all conditions. On a loaded machine a replica may
    /// lose its lease, and with it its process: it is started again, as the kubelet would.
    pub(crate) async fn all_bound(&mut self, wanted: usize) -> Result<()> {
        let Self { pair, bound, .. } = self;
        until("all are bound", LIMIT, || {
            let revived = pair.revive();
            let count = bound.count();
            async move {
                revived?;
                Ok(Seen::when(count >= wanted, format!("{count} of {wanted}")))
            }
        })
        .await?;
        let judged = judge(self.cluster, &self.ns).await?;
        ensure!(judged == wanted, "{judged} of {wanted} are bound");
        Ok(())
    }
}

/// Simulated agents, two replicas, and a claim on them; everything is as before afterwards.
async fn with<F>(cluster: &mut Cluster, through: Option<&Proxy>, claim: F) -> Result<()>
where
    F: for<'a> FnOnce(&'a mut BurstSetup<'_>) -> LocalBoxFuture<'a, Result<()>>,
{
    let api = through.map_or_else(control_plane::url, Proxy::url);
    let replicas = [1, 2].map(|number| Replica::of_several(number, api.clone()));
    with_replicas(cluster, replicas, claim).await
}

/// The same with these two.
pub(crate) async fn with_replicas<F>(
    cluster: &mut Cluster,
    replicas: [Replica; 2],
    claim: F,
) -> Result<()>
where
    F: for<'a> FnOnce(&'a mut BurstSetup<'_>) -> LocalBoxFuture<'a, Result<()>>,
{
    let plain = cluster.scheduler.is_some();
    if let Some(scheduler) = &mut cluster.scheduler {
        scheduler.daemon.stop().await?;
    } else {
        cluster.install().await?;
    }
    cluster.admit().await?;
    let ns = cluster.namespace().await?;
    let account: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(cluster.client.clone(), &ns);
    until("the default account", LIMIT, || async {
        Ok(Seen::from_option(account.get_opt("default").await?, "none"))
    })
    .await?;
    cluster.gather(NODES, CARDS).await?;
    let pair = Pair::start(cluster, replicas).await?;
    let bound = Bound::follow(cluster.client.clone(), &ns);
    let mut scene = BurstSetup {
        cluster,
        pair,
        bound,
        ns,
    };
    let outcome = claim(&mut scene).await;
    let BurstSetup {
        cluster, pair, ns, ..
    } = scene;
    pair.stop(cluster).await?;
    cluster.control_plane.recall_controllers()?;
    let cleared = clear(cluster, &ns).await;
    if plain && let Some(scheduler) = &mut cluster.scheduler {
        scheduler.daemon.start_again()?;
    }
    outcome.and(cleared)
}

pub(crate) async fn an_api_server_restarted_in_mid_burst_loses_nothing(
    cluster: &mut Cluster,
) -> Result<()> {
    with(cluster, None, |scene| {
        async move {
            let client = scene.cluster.client.clone();
            let pods = scene.whole(0, PLACES);
            let making = tokio::spawn(async move { make(&client, pods).await });
            scene.bound.reach(PLACES / 4, LIMIT).await?;
            scene.cluster.control_plane.restart_api_server().await?;
            making.await??;
            scene.all_bound(PLACES).await
        }
        .boxed_local()
    })
    .await
}

pub(crate) async fn answers_lost_writes_refused_and_watches_expired_bind_every_pod_once(
    cluster: &mut Cluster,
) -> Result<()> {
    let proxy = Arc::new(Proxy::start(&cluster.control_plane).await?);
    let faults = [
        Fault::LoseAnswer,
        Fault::Busy,
        Fault::Conflict,
        Fault::Broken,
    ];
    proxy.harm(Method::POST, "/binding", 3, &faults);
    proxy.harm(Method::POST, "/podgroups", 5, &faults);
    // Writes of a pod's group on it, by any pod whose name ends so.
    let refusals = [Fault::Conflict, Fault::Nothing];
    proxy.harm(Method::PATCH, "5", 1, &refusals);
    let harm = Arc::clone(&proxy);
    with(cluster, Some(&proxy), move |scene| {
        async move {
            let client = scene.cluster.client.clone();
            // More than there is room for: what does not fit waits, and says so.
            for from in (0..PLACES + 8).step_by(13) {
                make(&client, scene.whole(from, 13.min(PLACES + 8 - from))).await?;
                harm.expire_watches();
            }
            scene.all_bound(PLACES).await?;
            let (met, cut) = harm.harmed();
            ensure!(met >= PLACES / 3, "only {met} requests met a fault");
            ensure!(cut >= 10, "only {cut} watches were ended");
            grouped(scene.cluster, &scene.ns).await?;
            // A pending pod takes a place that becomes free.
            let pods = scene.cluster.pods(&scene.ns);
            let listed = pods.list(&ListParams::default()).await?;
            let seated = listed.iter().find(|pod| gang::bound(pod));
            let name = seated.context("none is bound")?.name_any();
            let now = DeleteParams::default().grace_period(0);
            pods.delete(&name, &now).await?;
            scene.bound.reach(PLACES + 1, LIMIT).await?;
            let judged = judge(scene.cluster, &scene.ns).await?;
            ensure!(judged == PLACES, "{judged} are bound");
            Ok(())
        }
        .boxed_local()
    })
    .await
}

/// Waits until every pod is in a group that is there.
async fn grouped(cluster: &Cluster, ns: &str) -> Result<()> {
    let pods = cluster.pods(ns);
    let groups: Api<PodGroup> = Api::namespaced(cluster.client.clone(), ns);
    until("every pod in its group", LIMIT, || async {
        let listed = pods.list(&ListParams::default()).await?;
        let there = groups.list_metadata(&ListParams::default()).await?;
        let there: BTreeSet<String> = there.iter().map(ResourceExt::name_any).collect();
        let alone = |pod: &&Pod| {
            let group = pod.annotations().get(kai::POD_GROUP);
            group.is_none_or(|group| !there.contains(group))
        };
        let alone: Vec<String> = listed.iter().filter(alone).map(Pod::name_any).collect();
        Ok(Seen::when(alone.is_empty(), format!("in none: {alone:?}")))
    })
    .await
}

pub(crate) async fn of_two_replicas_the_second_is_in_charge_15_s_after_the_first_was_killed(
    cluster: &mut Cluster,
) -> Result<()> {
    with(cluster, None, |scene| {
        async move {
            let acting = scene.pair.acting(scene.cluster).await?;
            let client = scene.cluster.client.clone();
            let pods = scene.whole(0, PLACES);
            let making = tokio::spawn(async move { make(&client, pods).await });
            scene.bound.reach(PLACES / 4, LIMIT).await?;
            let killed = Instant::now();
            scene.pair.replicas[acting].daemon.kill().await?;
            making.await??;
            let other = scene.pair.replicas[1 - acting].replica.name.clone();
            until("the other in charge", LIMIT, || async {
                let at = scene.pair.acting(scene.cluster).await?;
                let name = scene.pair.replicas[at].replica.name.clone();
                Ok(Seen::when(name == other, name))
            })
            .await?;
            let taken = killed.elapsed();
            ensure!(taken <= IN_CHARGE, "in charge only after {taken:?}");
            scene.all_bound(PLACES).await
        }
        .boxed_local()
    })
    .await
}

pub(crate) async fn pods_deleted_while_they_are_bound_free_what_they_were_given(
    cluster: &mut Cluster,
) -> Result<()> {
    with(cluster, None, |scene| {
        async move {
            let client = scene.cluster.client.clone();
            let pods = scene.cluster.pods(&scene.ns);
            let now = DeleteParams::default().grace_period(0);
            // Fractions, of which each card takes three: what is left behind would show.
            let shares: Vec<Value> = (0..PLACES * 3)
                .map(|at| fraction(&scene.ns, &format!("s{at:03}"), "0.33"))
                .collect();
            make(&client, shares).await?;
            for at in 0..PLACES * 3 {
                // Some are bound by now, some are not, some are on their way.
                pods.delete(&format!("s{at:03}"), &now).await?;
            }
            let before = scene.bound.count();
            make(&client, scene.whole(0, PLACES)).await?;
            scene.bound.reach(before + PLACES, LIMIT).await?;
            let judged = judge(scene.cluster, &scene.ns).await?;
            ensure!(judged == PLACES, "{judged} of {PLACES} are bound");
            Ok(())
        }
        .boxed_local()
    })
    .await
}

pub(crate) async fn nodes_removed_under_pods_take_nobody_elses_place(
    cluster: &mut Cluster,
) -> Result<()> {
    with(cluster, None, |scene| {
        async move {
            let client = scene.cluster.client.clone();
            let (gone, stay) = (4, NODES - 4);
            let nodes: Api<Node> = Api::all(client.clone());
            let names = scene.cluster.simulated_agents()?.nodes[..gone].to_vec();
            let pods = scene.whole(0, PLACES);
            let making = {
                let client = client.clone();
                tokio::spawn(async move { make(&client, pods).await })
            };
            scene.bound.reach(PLACES / 4, LIMIT).await?;
            for name in &names {
                nodes.delete(name, &DeleteParams::default()).await?;
            }
            making.await??;
            // Remaining nodes are filled; pods on removed nodes stay there.
            let room = stay * CARDS as usize;
            until("the nodes that stay full", LIMIT, || async {
                let on = seats(scene, &names).await?;
                Ok(Seen::when(on == room, format!("{on} of {room}")))
            })
            .await?;
            judge(scene.cluster, &scene.ns).await?;
            Ok(())
        }
        .boxed_local()
    })
    .await
}

/// How many pods are bound to nodes other than these.
async fn seats(scene: &BurstSetup<'_>, but: &[String]) -> Result<usize> {
    let pods = scene.cluster.pods(&scene.ns);
    let listed = pods.list(&ListParams::default()).await?;
    let on = listed
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.as_ref());
    Ok(on.filter(|node| !but.contains(node)).count())
}

pub(crate) async fn a_queue_deleted_with_pods_in_it_lets_them_wait_with_a_reason(
    cluster: &mut Cluster,
) -> Result<()> {
    with(cluster, None, |scene| {
        async move {
            let client = scene.cluster.client.clone();
            let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
            let queue = json!({
                "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
                "metadata": { "name": "short-lived" },
                "spec": { "parentQueue": "default-parent-queue",
                    "resources": { "cpu": all, "memory": all, "gpu": all } },
            });
            scene.cluster.apply_one(&queue).await?;
            let mut pods = scene.whole(0, PLACES / 2);
            for pod in &mut pods {
                pod["metadata"]["labels"] = json!({ "kai.scheduler/queue": "short-lived" });
            }
            let (early, late) = pods.split_at(PLACES / 4);
            make(&client, early.to_vec()).await?;
            scene.bound.reach(PLACES / 8, LIMIT).await?;
            let queues: Api<api::Queue> = Api::all(client.clone());
            queues
                .delete("short-lived", &DeleteParams::default())
                .await?;
            make(&client, late.to_vec()).await?;
            let last = late.last().context("pods")?["metadata"]["name"].clone();
            let last = last.as_str().context("a name")?.to_owned();
            let reason = scene.cluster.reason(&scene.ns, &last).await?;
            ensure!(reason.contains("short-lived"), "{reason}");
            // Others do not notice.
            let others = scene.whole(PLACES, PLACES / 4);
            let before = scene.bound.count();
            make(&client, others).await?;
            scene.bound.reach(before + PLACES / 4, LIMIT).await?;
            judge(scene.cluster, &scene.ns).await?;
            // It comes back, and they continue with it.
            scene.cluster.apply_one(&queue).await?;
            scene.all_bound(PLACES * 3 / 4).await
        }
        .boxed_local()
    })
    .await
}
