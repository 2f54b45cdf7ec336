//! Pods that ask for GPU memory, and what they, the node and the cluster say of it.
//!
//! In: the annotations that a user would write, and a script for the simulated workload. Out:
//! manifests; afterwards the grant, the report from inside the container, the agent's ledger. Must
//! never decide what is right: claims do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};
use api::gpu_node::{GpuNode, GrantStatus};
use api::grant::Grant;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use proto::names::resource;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::image::{WORKLOAD, WORKLOAD_IMAGE};
use crate::machine::Machine;
use crate::node;
use crate::pod::{LIMIT, describe};
use crate::wait::{Seen, until};

/// `PATH`'s entry for a command run in a container of [`pod`].
pub const PROGRAM: &str = WORKLOAD;

/// A pod with one container `main` that runs `script`, left to Aliquot's scheduler.
pub fn pod(namespace: &str, name: &str, annotations: &[(&str, &str)], script: &str) -> Value {
    let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name, "annotations": annotations },
        "spec": {
            "schedulerName": proto::names::kai::SCHEDULER_NAME,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 2,
            "containers": [container("main", script)],
        },
    })
}

/// A container that runs `script`.
pub fn container(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": WORKLOAD_IMAGE, "env": [{ "name": "SIM_WORKLOAD", "value": script }] })
}

/// The JSON lines in a workload's log, one per verb.
pub fn lines(log: &str) -> Vec<Value> {
    log.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// The line of the first `verb`.
pub fn line(log: &str, verb: &str) -> Option<Value> {
    lines(log)
        .into_iter()
        .find(|line| line["do"] == verb || (verb == "report" && line.get("nodes").is_some()))
}

/// What the scheduler granted a pod, as its annotation says; not verified.
pub fn grant_of(pod: &Pod) -> Result<Grant> {
    let text = pod
        .annotations()
        .get(proto::names::grant::GRANT)
        .context("no grant on the pod")?;
    Ok(Grant::peek(text)?)
}

/// The message of a pod's `PodScheduled=False`, if it has one.
pub fn why_pending(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled")?;
    (condition.status == "False")
        .then(|| condition.message.clone())
        .flatten()
}

impl<N: Machine> Cluster<N> {
    /// Applies a share pod and waits until it runs.
    pub async fn run_share(&self, manifest: &Value) -> Result<Pod> {
        self.apply_one(manifest).await?;
        let (namespace, name) = identity(manifest);
        self.pod_phase(namespace, name, "Running").await
    }

    /// Waits until a workload has printed the line of `verb`, and answers it.
    pub async fn said(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        verb: &str,
    ) -> Result<Value> {
        until(
            &format!("{verb} in the log of {namespace}/{pod}"),
            Duration::from_secs(20),
            || async {
                let log = self.logs(namespace, pod, Some(container)).await?;
                Ok(Seen::from_option(line(&log, verb), log))
            },
        )
        .await
    }

    /// The agent's word on the node.
    pub async fn gpu_node(&self) -> Result<GpuNode> {
        Ok(Api::<GpuNode>::all(self.client.clone())
            .get(node::NAME)
            .await?)
    }

    /// Every grant that the agent reports, with the card's UUID.
    pub async fn ledger(&self) -> Result<Vec<(String, GrantStatus)>> {
        let status = self.gpu_node().await?.status.unwrap_or_default();
        let mut grants: Vec<(String, GrantStatus)> = status
            .gpus
            .into_iter()
            .flat_map(|gpu| {
                gpu.grants
                    .into_iter()
                    .map(move |grant| (gpu.uuid.clone(), grant))
            })
            .collect();
        grants.sort_by(|a, b| {
            (&a.0, &a.1.pod, &a.1.container).cmp(&(&b.0, &b.1.pod, &b.1.container))
        });
        Ok(grants)
    }

    /// Waits until the agent reports exactly these running: (pod, container, MiB).
    pub async fn ledger_is(
        &self,
        wanted: &[(&str, &str, u64)],
    ) -> Result<Vec<(String, GrantStatus)>> {
        let mut wanted: Vec<(String, String, u64)> = wanted
            .iter()
            .map(|(pod, container, mib)| ((*pod).to_owned(), (*container).to_owned(), *mib))
            .collect();
        wanted.sort();
        until("the ledger", Duration::from_secs(20), || async {
            let ledger = self.ledger().await?;
            let mut seen: Vec<(String, String, u64)> = ledger
                .iter()
                .map(|(_, grant)| {
                    (
                        grant.pod.clone(),
                        grant.container.clone(),
                        grant.memory_mib.0,
                    )
                })
                .collect();
            seen.sort();
            Ok(if seen == wanted {
                Seen::Done(ledger)
            } else {
                Seen::NotYet(format!("{seen:?} instead of {wanted:?}"))
            })
        })
        .await
    }

    /// Waits until the node's allocatable has shares and whole GPUs.
    pub async fn shares_are_offered(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        until("shares in allocatable", LIMIT, || async {
            let status = nodes.get(node::NAME).await?.status.unwrap_or_default();
            let all = status.allocatable.unwrap_or_default();
            let has = |name: &str| all.get(name).is_some_and(|amount| amount.0 != "0");
            Ok(Seen::when(
                has(resource::SHARE) && has(resource::MEMORY_MIB) && has(resource::GPU),
                format!("{all:?}"),
            ))
        })
        .await
    }

    /// Waits until a pod is Pending with a reason from the scheduler, and answers it.
    pub async fn reason(&self, namespace: &str, name: &str) -> Result<String> {
        let pods = self.pods(namespace);
        until(
            &format!("a reason on {namespace}/{name}"),
            Duration::from_secs(20),
            || async {
                let pod = pods.get(name).await?;
                Ok(Seen::from_option(why_pending(&pod), describe(&pod)))
            },
        )
        .await
    }

    /// Fails if on any card more is kept than can be granted.
    pub async fn limits_hold(&self) -> Result<()> {
        let status = self
            .gpu_node()
            .await?
            .status
            .context("a GpuNode without a status")?;
        for gpu in status.gpus {
            let kept = |grant: &GrantStatus| grant.request_mib.unwrap_or(grant.memory_mib).0;
            // What the containers of one claim have together counts once.
            let mut claims = BTreeSet::new();
            let mut first = |grant: &&GrantStatus| {
                let namespace = grant.pod.split('/').next().unwrap_or_default().to_owned();
                grant.claim.is_empty() || claims.insert((namespace, grant.claim.clone()))
            };
            let counted = gpu.grants.iter().filter(|grant| first(grant));
            let sum: u64 = counted.map(kept).sum();
            anyhow::ensure!(
                sum <= gpu.grantable_mib.0 && sum == gpu.granted_mib.0,
                "{}: {sum} MiB are kept, granted says {}, grantable {}",
                gpu.uuid,
                gpu.granted_mib.0,
                gpu.grantable_mib.0
            );
        }
        Ok(())
    }
}

/// Namespace and name of a manifest.
pub fn identity(manifest: &Value) -> (&str, &str) {
    let metadata = &manifest["metadata"];
    (
        metadata["namespace"].as_str().unwrap_or("default"),
        metadata["name"].as_str().unwrap_or_default(),
    )
}
