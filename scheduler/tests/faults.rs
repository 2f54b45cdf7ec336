//! A whole scheduler on the simulated API server, which loses answers, refuses, forgets
//! its watches; and schedulers that die in the middle of it.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod site;

use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use scheduler::Config;
use sim_cluster::api_server::Fault;
use site::{GPUS, NODES, Site, node_of, page};

/// More than fit.
const PODS: usize = NODES * GPUS + 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_lost_writes_refused_and_watches_forgotten_place_every_pod_once() {
    let site = Site::start().await;
    let replica = site.replica().await;
    for at in 0..PODS {
        match at % 8 {
            0 => site.server.plan("POST", "/binding", Fault::LoseAnswer),
            2 => site.server.plan("POST", "/binding", Fault::TooManyRequests),
            4 => site.server.plan("POST", "/binding", Fault::InternalError),
            6 => site.server.expire_watches(),
            _ => {}
        }
        site.pod(at).await;
    }
    site.until_placed(NODES * GPUS).await;
    // The rest waits, and takes the first place that becomes free.
    let listed = site.pods().list(&ListParams::default()).await.unwrap();
    let placed = listed.iter().find(|pod| node_of(pod).is_some()).unwrap();
    let now = DeleteParams::default().grace_period(0);
    site.pods().delete(&placed.name_any(), &now).await.unwrap();
    site.until_placed(NODES * GPUS).await;
    replica.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_killed_in_the_middle_is_followed_by_the_next_and_nothing_is_placed_twice() {
    let site = Site::start().await;
    let mut running = site.replica().await;
    for at in 0..PODS {
        site.pod(at).await;
        if at == 10 {
            // Killed: it gives nothing back, and the next one waits for the lease's end.
            running.task.abort();
            running = site.replica().await;
        }
        if at == 25 {
            running.end().await;
            running = site.replica().await;
        }
    }
    site.until_placed(NODES * GPUS).await;
    running.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_kai_for_the_same_pods_it_refuses_to_start_and_says_why() {
    let site = Site::start().await;
    let kai = serde_json::json!({
        "metadata": {"name": "kai-0"},
        "spec": {"schedulerName": "default-scheduler", "containers": [
            {"name": "c", "image": "ghcr.io/nvidia/kai-scheduler/scheduler:v0.13.0"}]},
    });
    let kai = serde_json::from_value(kai).unwrap();
    let (create, patch) = (PostParams::default(), PatchParams::default());
    site.pods().create(&create, &kai).await.unwrap();
    let running = Patch::Merge(serde_json::json!({"status": {"phase": "Running"}}));
    site.pods()
        .patch_status("kai-0", &patch, &running)
        .await
        .unwrap();
    let refused = site.replica().await.task.await.unwrap().unwrap_err();
    let why = refused.to_string();
    assert!(
        why.contains("the KAI Scheduler runs (default/kai-0)") && why.contains("--observe"),
        "{why}"
    );
    // For pods of another name there is room.
    let other = Config {
        scheduler_name: "aliquot".into(),
        ..Config::default()
    };
    let beside = site.replica_with(other).await;
    let ready = async { while page(beside.pages, "/readyz").await.0 != 200 {} };
    tokio::time::timeout(std::time::Duration::from_secs(20), ready)
        .await
        .expect("it runs");
    beside.end().await;
}

/// A pod that asks for a share, and whose token it then has.
async fn share(site: &Site, name: &str) -> kube::Result<bool> {
    let pod = serde_json::json!({
        "metadata": {"name": name, "annotations": {"gpu-memory": "2000"}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c", "image": "i"}]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    let made = site.pods().create(&PostParams::default(), &pod).await?;
    let made = serde_json::to_value(made.spec).unwrap();
    let limits = &made["containers"][0]["resources"]["limits"];
    Ok(limits["aliquot.dev/gpu-share"] == "1")
}

/// Waits until the webhook's configuration is there, too.
async fn admits(site: &Site, replica: &site::Replica) {
    let ready = async {
        while page(replica.pages, "/readyz").await.0 != 200
            || !share(site, "first").await.unwrap_or(false)
        {
            let now = DeleteParams::default().grace_period(0);
            let _ = site.pods().delete("first", &now).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), ready)
        .await
        .expect("it admits pods");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_replica_admits_pods_while_the_cluster_is_not_listed_and_another_one_leads() {
    let site = Site::start().await;
    for _ in 0..10_000 {
        site.server
            .plan("GET", "/v1alpha1/topologies", Fault::InternalError);
    }
    let leader = site.replica().await;
    admits(&site, &leader).await;
    let (status, why) = page(leader.pages, "/readyz/scheduling").await;
    assert!(status == 503 && why.contains("topolog"), "{status} {why}");
    // The next one is called instead, and does not lead.
    let next = site.replica().await;
    let now = DeleteParams::default().grace_period(0);
    site.pods().delete("first", &now).await.unwrap();
    admits(&site, &next).await;
    for replica in [leader, next] {
        replica.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_replica_is_up_a_share_is_refused_and_every_other_pod_is_made_and_placed_later() {
    let site = Site::start().await;
    let replica = site.replica().await;
    admits(&site, &replica).await;
    replica.end().await;
    let refused = share(&site, "share").await.unwrap_err().to_string();
    assert!(
        refused.contains("failed calling webhook \"pods.aliquot.dev\""),
        "{refused}"
    );
    let one = serde_json::json!({"nvidia.com/gpu": "1"});
    let pod = serde_json::json!({
        "metadata": {"name": "whole"},
        "spec": {"schedulerName": "kai-scheduler", "containers": [
            {"name": "c", "image": "i", "resources": {"limits": one, "requests": one}}]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    let create = PostParams::default();
    site.pods().create(&create, &pod).await.unwrap();
    let replica = site.replica().await;
    site.until_placed(1).await;
    replica.end().await;
}
