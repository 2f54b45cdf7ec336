//! The pods of a workload: awaited together, and asked when each was bound.
//!
//! In: a namespace and a label selector. Out: the pods, once they are as wanted, and their
//! `PodGroup`. Must never decide what is right: claims do.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::kai::PodGroup;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cluster::Cluster;
use crate::pod::{describe, phase_of};
use crate::wait::{Seen, until};

/// How long the pods of a workload may take, their operator's part included.
const LIMIT: Duration = Duration::from_mins(1);

impl Cluster {
    /// The pods with these labels, by name.
    pub async fn pods_with(&self, namespace: &str, selector: &str) -> Result<Vec<Pod>> {
        let listed = self
            .pods(namespace)
            .list(&ListParams::default().labels(selector))
            .await?;
        let mut pods = listed.items;
        pods.sort_by_key(ResourceExt::name_any);
        Ok(pods)
    }

    /// Waits until there are `count` pods with these labels, and all are as `condition`
    /// wants them.
    pub async fn pods_until(
        &self,
        namespace: &str,
        selector: &str,
        count: usize,
        what: &str,
        condition: impl Fn(&Pod) -> bool,
    ) -> Result<Vec<Pod>> {
        let goal = format!("{count} pods {selector} in {namespace} {what}");
        until(&goal, LIMIT, || async {
            let pods = self.pods_with(namespace, selector).await?;
            if pods.len() == count && pods.iter().all(&condition) {
                return Ok(Seen::Done(pods));
            }
            let seen: Vec<String> = pods
                .iter()
                .map(|pod| format!("{}: {}", pod.name_any(), describe(pod)))
                .collect();
            Ok(Seen::NotYet(seen.join(" | ")))
        })
        .await
    }

    /// Waits until `count` pods with these labels run.
    pub async fn pods_running(
        &self,
        namespace: &str,
        selector: &str,
        count: usize,
    ) -> Result<Vec<Pod>> {
        self.pods_until(namespace, selector, count, "running", |pod| {
            phase_of(pod) == "Running"
        })
        .await
    }

    /// The `PodGroup` that a pod says it is in.
    pub async fn group_of(&self, pod: &Pod) -> Result<PodGroup> {
        let name = pod
            .annotations()
            .get(proto::names::kai::POD_GROUP)
            .with_context(|| format!("{} is in no PodGroup", pod.name_any()))?;
        let namespace = pod.namespace().unwrap_or_default();
        Api::<PodGroup>::namespaced(self.client.clone(), &namespace)
            .get(name)
            .await
            .with_context(|| format!("PodGroup {namespace}/{name}"))
    }
}

/// Whether a pod has a node.
pub fn bound(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some())
}

/// Fails unless all of these were bound in one go. The API server's timestamps have a resolution of
/// a second.
pub fn bound_together(pods: &[Pod]) -> Result<()> {
    let mut times = Vec::new();
    for pod in pods {
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let scheduled = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "True")
            .and_then(|condition| condition.last_transition_time.as_ref())
            .with_context(|| format!("{} is not bound", pod.name_any()))?;
        times.push(scheduled.0);
    }
    let (first, last) = (times.iter().min(), times.iter().max());
    let (first, last) = first.zip(last).context("no pods")?;
    let apart = last.as_second() - first.as_second();
    ensure!(
        apart <= 1,
        "{} pods were bound over {apart} s: {times:?}",
        pods.len()
    );
    Ok(())
}

/// Whether a pod is Ready.
pub fn ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
