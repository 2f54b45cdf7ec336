//! Pods: awaited, read, deleted.
//!
//! In: a namespace and a name. Out: a pod that is as wanted, or an error with its state and its
//! events. Must never wait longer than [`LIMIT`].

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams};

use crate::cluster::Cluster;
use crate::machine::Machine;
use crate::wait::{Seen, until};

/// How long a pod may take to run. One takes about a second; beside another busy cluster on two
/// cores, half a minute was seen.
pub const LIMIT: Duration = Duration::from_mins(1);

impl<N: Machine> Cluster<N> {
    pub fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Waits until a pod is as `condition` wants it.
    pub async fn pod_until(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        condition: impl Fn(&Pod) -> bool,
    ) -> Result<Pod> {
        let pods = self.pods(namespace);
        until(&format!("pod {namespace}/{name} {what}"), LIMIT, || async {
            let pod = pods.get(name).await?;
            if condition(&pod) {
                return Ok(Seen::Done(pod));
            }
            let events = self.events_of(namespace, name).await.unwrap_or_default();
            Ok(Seen::NotYet(format!(
                "{}; events: {}",
                describe(&pod),
                events.join(" | ")
            )))
        })
        .await
    }

    /// Waits until a pod is in a phase.
    pub async fn pod_phase(&self, namespace: &str, name: &str, phase: &str) -> Result<Pod> {
        self.pod_until(namespace, name, phase, |pod| phase_of(pod) == phase)
            .await
    }

    /// What a container wrote.
    pub async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
    ) -> Result<String> {
        let parameters = LogParams {
            container: container.map(str::to_owned),
            ..LogParams::default()
        };
        Ok(self.pods(namespace).logs(pod, &parameters).await?)
    }

    /// The messages of the events about a pod, oldest first.
    pub async fn events_of(&self, namespace: &str, pod: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let parameters = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        Ok(events
            .list(&parameters)
            .await?
            .items
            .into_iter()
            .map(|event| {
                format!(
                    "{}: {}",
                    event.reason.unwrap_or_default(),
                    event.message.unwrap_or_default()
                )
            })
            .collect())
    }

    /// Deletes a pod and waits until it is gone.
    pub async fn delete_pod(&self, namespace: &str, name: &str) -> Result<()> {
        let pods = self.pods(namespace);
        pods.delete(name, &DeleteParams::default().grace_period(1))
            .await?;
        until(&format!("pod {namespace}/{name} gone"), LIMIT, || async {
            Ok(match pods.get_opt(name).await? {
                None => Seen::Done(()),
                Some(pod) => Seen::NotYet(describe(&pod)),
            })
        })
        .await
    }

    /// Deletes pods at once and waits until all are gone: a kubelet takes a second or two for each.
    pub async fn delete_pods(
        &self,
        namespace: &str,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<()> {
        let delete = |name| async move { self.delete_pod(namespace, AsRef::as_ref(&name)).await };
        futures::future::try_join_all(names.into_iter().map(delete)).await?;
        Ok(())
    }
}

/// A pod's phase, or nothing.
pub fn phase_of(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// A pod's state in one line, for messages.
pub fn describe(pod: &Pod) -> String {
    let mut parts = vec![phase_of(pod).to_owned()];
    if let Some(status) = &pod.status {
        parts.extend(status.reason.clone());
        parts.extend(status.message.clone());
        let containers = status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .flatten();
        for container in containers {
            let Some(state) = &container.state else {
                continue;
            };
            if let Some(waiting) = &state.waiting {
                parts.push(format!(
                    "{} waits: {} {}",
                    container.name,
                    waiting.reason.as_deref().unwrap_or_default(),
                    waiting.message.as_deref().unwrap_or_default()
                ));
            }
            if let Some(ended) = &state.terminated {
                parts.push(format!(
                    "{} ended with {}: {} {}",
                    container.name,
                    ended.exit_code,
                    ended.reason.as_deref().unwrap_or_default(),
                    ended.message.as_deref().unwrap_or_default()
                ));
            }
        }
    }
    parts.join("; ")
}
