//! Kueue in front of claims: it admits as many shares as its queue has quota for, whichever
//! scheduler places their pods.

use std::time::Duration;

use aliquot_tests::cluster::Cluster;
use aliquot_tests::operator::KUEUE;
use aliquot_tests::wait::{Seen, stays, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::setup::{ledger_is, manifest, template, with_driver};

/// Kueue's pauses between two tries of what its webhook's certificate holds up.
const LIMIT: Duration = Duration::from_mins(2);

/// Two shares at a time, by the number of devices of the class.
fn queues(ns: &str) -> Vec<Value> {
    let quota = json!([{ "name": "aliquot.dev/shares", "nominalQuota": 2 }]);
    let version = "kueue.x-k8s.io/v1beta2";
    vec![
        json!({ "apiVersion": version, "kind": "ResourceFlavor", "metadata": { "name": "any" } }),
        json!({ "apiVersion": version, "kind": "ClusterQueue", "metadata": { "name": "two-shares" },
            "spec": { "namespaceSelector": {}, "resourceGroups": [{
                "coveredResources": ["aliquot.dev/shares"],
                "flavors": [{ "name": "any", "resources": quota }] }] } }),
        json!({ "apiVersion": version, "kind": "LocalQueue",
            "metadata": { "namespace": ns, "name": "shares" },
            "spec": { "clusterQueue": "two-shares" } }),
    ]
}

/// A Job of one pod with a share of its own, under that scheduler.
fn job(ns: &str, name: &str, scheduler: &str) -> Value {
    let mut pod = manifest(ns, name, "share", "report grow 10 hold");
    pod["spec"]["schedulerName"] = json!(scheduler);
    pod["spec"]["restartPolicy"] = json!("Never");
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "namespace": ns, "name": name,
            "labels": { "kueue.x-k8s.io/queue-name": "shares" } },
        "spec": { "suspend": true, "template": { "spec": pod["spec"] } },
    })
}

pub(crate) async fn kueue_lets_in_as_many_claims_as_its_quota_has(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.operator(&KUEUE).await?;
    with_driver(cluster, 1, async |cluster, ns| {
        for document in queues(ns) {
            // Its webhook answers a moment after its controller is there.
            until("Kueue takes its queues", LIMIT, || async {
                let answer = cluster.apply_one(&document).await;
                Ok(Seen::when(answer.is_ok(), format!("{:?}", answer.err())))
            })
            .await?;
        }
        template(cluster, ns, "share", "2000Mi", &json!({})).await?;
        for (name, scheduler) in [
            ("theirs", "default-scheduler"),
            ("ours", "kai-scheduler"),
            ("third", "kai-scheduler"),
        ] {
            cluster.apply_one(&job(ns, name, scheduler)).await?;
            if name == "third" {
                break;
            }
            let pods = cluster
                .pods_running(ns, &format!("batch.kubernetes.io/job-name={name}"), 1)
                .await?;
            let pod = pods[0].metadata.name.clone().unwrap_or_default();
            let grown = cluster.said(ns, &pod, "main", "grow").await?;
            let held = grown["held_mib"].as_u64().unwrap_or_default();
            ensure!(
                grown["ok"] == true && (1900..=2000).contains(&held),
                "{name}: {grown}"
            );
        }
        let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), ns);
        stays(
            "the third is not let in",
            Duration::from_secs(5),
            || async {
                let spec = jobs.get("third").await?.spec.unwrap_or_default();
                Ok(Seen::when(spec.suspend == Some(true), "not suspended"))
            },
        )
        .await?;
        cluster
            .kubectl
            .run(&["delete", "job", "theirs", "--namespace", ns])
            .await?;
        cluster
            .pods_running(ns, "batch.kubernetes.io/job-name=third", 1)
            .await?;
        let running = cluster.pods(ns).list(&ListParams::default()).await?.items;
        let names: Vec<String> = running
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .filter_map(|pod| pod.metadata.name)
            .collect();
        let shares: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 2000)).collect();
        ledger_is(cluster, ns, &shares).await?;
        for document in queues(ns) {
            let kind = document["kind"].as_str().unwrap_or_default();
            let name = document["metadata"]["name"].as_str().unwrap_or_default();
            cluster
                .kubectl
                .run(&["delete", kind, name, "--namespace", ns, "--wait=false"])
                .await?;
        }
        cluster
            .kubectl
            .run(&["delete", "jobs", "--all", "--namespace", ns])
            .await
            .map(drop)
    })
    .await
}
