//! Many pods at once: made, bound, judged, deleted.
//!
//! In: a namespace and manifests. Out: when each pod was bound, as a client sees it, and whether
//! what was granted holds. Must never read whole pods while time is measured: a watch of their
//! metadata is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::PodGroup;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use proto::names::{kai, resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;
use crate::gang::bound;
use crate::share::grant_of;
use crate::simulated_agents::GRANTABLE_MIB;
use crate::wait::{Seen, until};

/// Requests under way at once.
const AT_ONCE: usize = 32;
/// Tries of a creation while the webhook has no server, and the pause between two.
const TRIES: usize = 300;
const AGAIN: Duration = Duration::from_millis(100);

/// The claim that [`as_users_have`] names.
pub const DATA: &str = "data";

/// A pod that requests this many whole cards. It does not run.
pub fn whole(namespace: &str, name: &str, cards: u32) -> Value {
    let mut pod = plain(namespace, name);
    pod["spec"]["containers"][0]["resources"] =
        json!({ "limits": { resource::GPU: cards.to_string() } });
    pod
}

/// A pod that requests a part of a card. It does not run.
pub fn fraction(namespace: &str, name: &str, part: &str) -> Value {
    let mut pod = plain(namespace, name);
    pod["metadata"]["annotations"] = json!({ "gpu-fraction": part });
    pod
}

/// A pod without a request. It does not run.
pub fn plain(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name, "labels": {} },
        "spec": {
            "schedulerName": kai::SCHEDULER_NAME,
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": "none" }],
        },
    })
}

/// The same pod as users have them: the token that admission mounts, a scratch folder, an environment,
/// three tolerations, and a claim for every second one by `at`.
pub fn as_users_have(mut pod: Value, at: usize) -> Value {
    pod["metadata"]["labels"]["app.kubernetes.io/name"] = json!("trainer");
    let spec = &mut pod["spec"];
    spec["automountServiceAccountToken"] = json!(true);
    let mut volumes = vec![json!({ "name": "scratch", "emptyDir": {} })];
    let mut mounts = vec![json!({ "name": "scratch", "mountPath": "/scratch" })];
    if at.is_multiple_of(2) {
        let claim = json!({ "claimName": DATA });
        volumes.push(json!({ "name": "data", "persistentVolumeClaim": claim }));
        mounts.push(json!({ "name": "data", "mountPath": "/data" }));
    }
    spec["volumes"] = json!(volumes);
    spec["tolerations"] = json!([
        { "key": resource::GPU, "operator": "Exists", "effect": "NoSchedule" },
        { "key": "team", "operator": "Equal", "value": "research", "effect": "NoSchedule" },
        { "key": "spot", "operator": "Exists" },
    ]);
    let main = &mut spec["containers"][0];
    main["volumeMounts"] = json!(mounts);
    main["command"] = json!(["python3", "-m", "trainer", "--steps", "100000"]);
    main["env"] = json!([
        { "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
        { "name": "WORLD_SIZE", "value": "1" },
        { "name": "DATA", "value": "/data/train" },
    ]);
    pod
}

/// The status that a kubelet writes of a pod with one container, `main`, that runs.
pub fn running() -> Value {
    let since = "2026-01-01T00:00:00Z";
    let condition =
        |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": since });
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ]
    .map(condition);
    let digest = format!("sha256:{}", "4f53".repeat(16));
    json!({
        "phase": "Running",
        "conditions": conditions,
        "hostIP": "192.0.2.17", "hostIPs": [{ "ip": "192.0.2.17" }],
        "podIP": "198.51.100.23", "podIPs": [{ "ip": "198.51.100.23" }],
        "qosClass": "Burstable", "startTime": since,
        "containerStatuses": [{
            "name": "main", "image": "registry.example/trainer:1.4",
            "imageID": format!("registry.example/trainer@{digest}"),
            "containerID": format!("containerd://{}", "9c1e".repeat(16)),
            "ready": true, "started": true, "restartCount": 0,
            "state": { "running": { "startedAt": since } },
        }],
    })
}

/// Makes them, in this order but many at once; tries again what a dead webhook refused.
pub async fn make(client: &Client, manifests: impl IntoIterator<Item = Value>) -> Result<()> {
    stream::iter(manifests)
        .map(|manifest| make_one(client, manifest))
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
}

/// Makes one, and says when it was taken.
pub async fn make_one(client: &Client, manifest: Value) -> Result<()> {
    let namespace = manifest["metadata"]["namespace"].as_str();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace.context("a namespace")?);
    let pod: Pod = serde_json::from_value(manifest)?;
    let mut last = None;
    for _ in 0..TRIES {
        match pods.create(&PostParams::default(), &pod).await {
            Ok(_) => return Ok(()),
            // Stored before, by a server that was killed before it answered.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => return Ok(()),
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(AGAIN).await;
    }
    bail!("{} is not made: {last:?}", pod.name_any())
}

/// When each pod of a namespace was seen with a node.
#[derive(Debug)]
pub struct Bound {
    times: Arc<Mutex<BTreeMap<String, Instant>>>,
    count: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Bound {
    /// Watches from now on. An interrupted watch restarts.
    pub fn follow(client: Client, namespace: &str) -> Self {
        Self::first_seen(Api::<Pod>::namespaced(client, namespace), "spec.nodeName!=")
    }

    /// When each object of another kind is first seen. `fields`: a selector; empty for all.
    pub fn first_seen<K>(api: Api<K>, fields: &'static str) -> Self
    where
        K: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let times = Arc::<Mutex<BTreeMap<String, Instant>>>::default();
        let (counted, count) = watch::channel(0);
        let seen = times.clone();
        let task = tokio::spawn(async move {
            loop {
                let params = WatchParams::default().fields(fields).timeout(290);
                if let Ok(events) = api.watch_metadata(&params, "0").await {
                    let mut events = std::pin::pin!(events);
                    while let Some(Ok(event)) = events.next().await {
                        let (WatchEvent::Added(one) | WatchEvent::Modified(one)) = event else {
                            continue;
                        };
                        note(&seen, &one.name_any(), &counted);
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Self { times, count, task }
    }

    /// Waits until this many are bound, and returns the time of the last one.
    pub async fn reach(&mut self, wanted: usize, limit: Duration) -> Result<Instant> {
        let all = self.count.wait_for(|count| *count >= wanted);
        if let Ok(all) = tokio::time::timeout(limit, all).await {
            all?;
            return Ok(Instant::now());
        }
        bail!(
            "{} of {wanted} bound within {limit:?}",
            *self.count.borrow()
        )
    }

    /// How many are.
    pub fn count(&self) -> usize {
        *self.count.borrow()
    }

    /// When each was.
    pub fn times(&self) -> BTreeMap<String, Instant> {
        self.times
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn note(times: &Mutex<BTreeMap<String, Instant>>, name: &str, counted: &watch::Sender<usize>) {
    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
    times.entry(name.to_owned()).or_insert_with(Instant::now);
    counted.send_replace(times.len());
}

/// What must hold whatever happens: no card is granted beyond its memory, none is whole for
/// two, each grant names the pod's own node and UID. Answers how many are bound.
pub async fn judge(cluster: &Cluster, namespace: &str) -> Result<usize> {
    let pods = cluster.pods(namespace).list(&ListParams::default()).await?;
    let mut cards: BTreeMap<String, (u64, usize, usize)> = BTreeMap::new();
    let mut count = 0;
    for pod in pods.iter().filter(|pod| bound(pod)) {
        count += 1;
        let grant = grant_of(pod).with_context(|| pod.name_any())?;
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        ensure!(
            Some(grant.node.name.as_str()) == node
                && Some(grant.pod.uid.as_str()) == pod.uid().as_deref(),
            "{}: the grant is of another node or pod",
            pod.name_any()
        );
        let held: BTreeSet<(&String, u64, bool)> = grant
            .containers
            .iter()
            .flat_map(|container| {
                let whole = container.mode == api::Mode::Exclusive;
                let memory = container.memory_mib.0;
                container.gpus.iter().map(move |gpu| (gpu, memory, whole))
            })
            .collect();
        for (gpu, memory, whole) in held {
            let card = cards.entry(gpu.clone()).or_default();
            card.0 += memory;
            card.1 += usize::from(whole);
            card.2 += 1;
        }
    }
    for (card, (memory, whole, holders)) in cards {
        ensure!(
            whole == 0 || holders == 1,
            "{card} is whole for one of {holders}"
        );
        ensure!(
            whole == 1 || memory <= GRANTABLE_MIB,
            "{card}: {memory} MiB granted of {GRANTABLE_MIB}"
        );
    }
    Ok(count)
}

/// Deletes all pods of a namespace, and their groups, which no controller collects.
pub async fn clear(cluster: &Cluster, namespace: &str) -> Result<()> {
    let pods = cluster.pods(namespace);
    let (now, all) = (
        DeleteParams::default().grace_period(0),
        ListParams::default(),
    );
    pods.delete_collection(&now, &all).await?;
    let some = ListParams::default().limit(1);
    until("the pods gone", Duration::from_mins(3), || async {
        let left = pods.list_metadata(&some).await?;
        Ok(Seen::when(left.items.is_empty(), "some are there"))
    })
    .await?;
    Api::<PodGroup>::namespaced(cluster.client.clone(), namespace)
        .delete_collection(&DeleteParams::default(), &all)
        .await?;
    Ok(())
}
