//! A queue takes back what is its own from another, with pods that their controllers recreate.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use aliquot_tests::cluster::Cluster;
use aliquot_tests::gpu::Hardware;
use aliquot_tests::pod::phase_of;
use aliquot_tests::share::pod;
use aliquot_tests::wait::{Seen, until};
use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::ResourceExt as _;
use kube::api::ListParams;
use proto::names::kai;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_mins(1);
/// In which a pod that comes back would have taken its place again: several decisions, and more
/// than a pod takes to start.
const REST: Duration = Duration::from_secs(15);

/// Two GPUs. One team uses both with a quota of half a GPU, another deserves one and a half: it gets
/// one of them, for which one pod leaves, and then everything stays as it is.
pub(crate) async fn a_queue_takes_back_its_quota_with_one_eviction_and_then_all_is_at_rest(
    cluster: &mut Cluster,
) -> Result<()> {
    cluster.aliquot(&Hardware::preset("T4", 2)).await?;
    let ns = cluster.namespace().await?;
    cluster.apply_one(&queue("borrows", 0.5)).await?;
    cluster.apply_one(&queue("deserves", 1.5)).await?;
    cluster.apply_one(&deployment(&ns, "borrows", 2)).await?;
    running(cluster, &ns, "borrows", 2).await?;
    let first = uids(cluster, &ns, "borrows").await?;
    cluster.apply_one(&deployment(&ns, "deserves", 3)).await?;
    running(cluster, &ns, "deserves", 1).await?;

    let mut seen = first.clone();
    let begin = Instant::now();
    while begin.elapsed() < REST {
        seen.extend(uids(cluster, &ns, "borrows").await?);
        let others = uids(cluster, &ns, "deserves").await?;
        ensure!(others.len() == 3, "a pod was replaced: {others:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(
        seen.len() == first.len() + 1,
        "one pod was to leave, and its replacement to wait: {seen:?}"
    );
    running(cluster, &ns, "borrows", 1).await?;
    running(cluster, &ns, "deserves", 1).await?;
    // The victim's group says who needed the GPU and what both queues had.
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), &ns);
    let evicted = ListParams::default().fields("involvedObject.kind=PodGroup,reason=Evict");
    until("one event about the eviction", LIMIT, || async {
        let found = events.list(&evicted).await?;
        let words = [
            "borrows uses 2 GPUs with a quota of 0.5, fair-share of ",
            "deserves uses 0 GPUs with a quota of 1.5, fair-share of ",
        ];
        let says = |event: &Event| {
            let message = event.message.as_deref().unwrap_or_default();
            words.iter().all(|words| message.contains(words))
        };
        let holds = matches!(found.items.as_slice(), [one] if says(one));
        Ok(Seen::when(holds, format!("{:?}", found.items)))
    })
    .await
    .map(drop)
}

async fn pods(cluster: &Cluster, ns: &str, app: &str) -> Result<Vec<Pod>> {
    let of = ListParams::default().labels(&format!("app={app}"));
    Ok(cluster.pods(ns).list(&of).await?.items)
}

async fn uids(cluster: &Cluster, ns: &str, app: &str) -> Result<BTreeSet<String>> {
    let pods = pods(cluster, ns, app).await?;
    Ok(pods.iter().filter_map(Pod::uid).collect())
}

/// So many of its pods run, and stay.
async fn running(cluster: &Cluster, ns: &str, app: &str, wanted: usize) -> Result<()> {
    until("running pods", LIMIT, || async {
        let pods = pods(cluster, ns, app).await?;
        let runs =
            |pod: &&Pod| phase_of(pod) == "Running" && pod.metadata.deletion_timestamp.is_none();
        let running = pods.iter().filter(runs).count();
        Ok(Seen::when(running == wanted, format!("{running} of {app}")))
    })
    .await
    .map(drop)
}

fn queue(name: &str, quota: f64) -> Value {
    let all = json!({ "quota": -1, "limit": -1, "overQuotaWeight": 1 });
    let gpu = json!({ "quota": quota, "limit": -1, "overQuotaWeight": 1 });
    json!({
        "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": { "name": name },
        "spec": { "resources": { "cpu": all, "gpu": gpu, "memory": all } },
    })
}

/// Preemptible pods with a GPU each, in the queue of that name.
fn deployment(ns: &str, name: &str, replicas: u32) -> Value {
    let mut template = pod(ns, "", &[], "report hold");
    template["metadata"]["labels"] = json!({
        "app": name, kai::QUEUE_LABEL: name, kai::PRIORITY_CLASS_LABEL: "train",
    });
    template["spec"]["restartPolicy"] = json!("Always");
    template["spec"]["containers"][0]["resources"] = json!({ "limits": { "nvidia.com/gpu": 1 } });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "namespace": ns, "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": template["metadata"]["labels"] },
                "spec": template["spec"],
            },
        },
    })
}
