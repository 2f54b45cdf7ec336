//! One pod's worker: starts its containers, watches them, ends them, reports.
//!
//! In: the pod as it changes, the ends of its containers. Out: the pod's status, events.
//! Serial within the pod, as the real one: a slow `PreStart` holds back its own pod alone.

use super::admit::device_limits;
use super::shared::Node;
use super::slot::{ContainerState, Ended, Slots};
use super::table::is_sidecar;
use crate::runtime::{ContainerConfig, ContainerId, Exit, RuntimeError};
use k8s_openapi::api::core::v1::{Container, Event, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use proto::deviceplugin::ContainerAllocateResponse;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Until a status that could not be written is tried again.
const REPORT_AGAIN: Duration = Duration::from_secs(1);

/// A worker's view of its pod; `None` once the object is deleted.
pub(super) type Heard = watch::Receiver<Option<Arc<Pod>>>;

pub(super) struct Worker {
    node: Arc<Node>,
    pod: Arc<Pod>,
    slots: Slots,
    started: String,
    written: Value,
    exits: JoinSet<(usize, ContainerId, Option<Exit>)>,
}

/// Runs a pod to its end, or until the kubelet stops.
pub(super) async fn run(node: Arc<Node>, pod: Arc<Pod>, mut heard: Heard) {
    let mut worker = Worker {
        slots: Slots::of(&pod),
        pod,
        started: stamp(),
        written: Value::Null,
        exits: JoinSet::new(),
        node,
    };
    worker.adopt();
    loop {
        let latest = heard.borrow_and_update().clone();
        match latest {
            Some(pod) if pod.metadata.deletion_timestamp.is_none() => worker.pod = pod,
            Some(pod) => {
                worker.pod = pod;
                return worker.terminate(false).await;
            }
            None => return worker.terminate(true).await,
        }
        for index in worker.slots.due(Instant::now()) {
            worker.start(index).await;
            if heard.has_changed().unwrap_or(true) {
                break;
            }
        }
        let told = worker.report().await;
        if worker.slots.over() && worker.exits.is_empty() {
            // Only its deletion is left.
            worker.node.pods.over(&worker.uid());
        }
        let again = (!told).then(|| Instant::now() + REPORT_AGAIN);
        let next = worker.slots.next_due().into_iter().chain(again).min();
        let next = next.map(tokio::time::Instant::from_std);
        tokio::select! {
            changed = heard.changed() => if changed.is_err() { return },
            Some(ended) = worker.exits.join_next() => {
                if let Ok((index, id, Some(exit))) = ended {
                    worker.ended(index, &id, exit);
                }
            }
            () = async { match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            } } => {}
            () = worker.node.stop.cancelled() => return,
        }
    }
}

impl Worker {
    fn uid(&self) -> String {
        self.pod.uid().unwrap_or_default()
    }

    /// Containers that live since before the kubelet's start are kept.
    fn adopt(&mut self) {
        let uid = self.uid();
        for running in self.node.runtime.running() {
            let place = self
                .slots
                .list
                .iter()
                .position(|slot| slot.container.name == running.name);
            if running.pod_uid == uid
                && let Some(index) = place
            {
                self.slots.started(index, running.id.clone(), stamp());
                self.watch(index, running.id);
                // Its init containers are over, or it would not run.
                for earlier in &mut self.slots.list[..index] {
                    if earlier.init && matches!(earlier.doing, ContainerState::Waiting { .. }) {
                        earlier.doing = ContainerState::Terminated(ended("", Exit(0), ""));
                    }
                }
            }
        }
    }

    fn watch(&mut self, index: usize, id: ContainerId) {
        let runtime = self.node.runtime.clone();
        self.exits.spawn(async move {
            let exit = runtime.wait(&id).await;
            (index, id, exit)
        });
    }

    async fn start(&mut self, index: usize) {
        let container = self.slots.list[index].container.clone();
        let retry = self.node.config.retry;
        let limits = device_limits(&container);
        let prepared = self
            .node
            .plugins
            .prepare(&self.uid(), &container.name, &limits)
            .await
            .and_then(|answers| self.layout(&container, self.slots.list[index].init, &answers));
        let layout = match prepared {
            Ok(layout) => layout,
            Err(why) => {
                return self
                    .refused(index, "CreateContainerConfigError", why, retry)
                    .await;
            }
        };
        let id = match self.node.runtime.create(layout) {
            Ok(id) => id,
            Err(error) => {
                let why = error.to_string();
                return self
                    .refused(index, "CreateContainerError", why, retry)
                    .await;
            }
        };
        match self.node.runtime.start(&id).await {
            Ok(()) => {
                self.slots.started(index, id.clone(), stamp());
                self.watch(index, id);
            }
            Err(error @ (RuntimeError::Create(_) | RuntimeError::Io(_))) => {
                // The runtime keeps a container that never ran: exit code 128, StartError.
                let why = error.to_string();
                self.node.runtime.remove(&id);
                self.event("Failed", &format!("Error: {why}")).await;
                let mut end = ended(&id.0, Exit(128), "StartError");
                end.message = why;
                self.slots.ended(index, end, Instant::now(), retry);
            }
            Err(error) => {
                let why = error.to_string();
                self.refused(index, "RunContainerError", why, retry).await;
            }
        }
    }

    async fn refused(&mut self, index: usize, reason: &str, why: String, retry: Duration) {
        tracing::info!(
            pod = self.pod.name_any(),
            reason,
            why,
            "container not started"
        );
        self.event("Failed", &format!("Error: {why}")).await;
        self.slots
            .refused(index, reason, why, Instant::now() + retry);
    }

    /// Plugins' environment first, then the pod's.
    fn layout(
        &self,
        container: &Container,
        init: bool,
        answers: &[ContainerAllocateResponse],
    ) -> Result<ContainerConfig, String> {
        let mut config = ContainerConfig {
            pod_uid: self.uid(),
            pod_namespace: self.pod.namespace().unwrap_or_default(),
            pod_name: self.pod.name_any(),
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            ..ContainerConfig::default()
        };
        for answer in answers {
            let mut env: Vec<_> = answer.envs.clone().into_iter().collect();
            env.sort();
            config.env.extend(env);
            config.devices.extend(answer.devices.iter().map(|one| {
                (
                    PathBuf::from(&one.host_path),
                    PathBuf::from(&one.container_path),
                )
            }));
            config.mounts.extend(answer.mounts.iter().map(|one| {
                (
                    PathBuf::from(&one.host_path),
                    PathBuf::from(&one.container_path),
                )
            }));
            config
                .cdi_devices
                .extend(answer.cdi_devices.iter().map(|one| one.name.clone()));
        }
        if init && !is_sidecar(container) {
            config.env.extend(self.node.config.init_env.iter().cloned());
        }
        for variable in container.env.iter().flatten() {
            let value = match &variable.value_from {
                None => variable.value.clone().unwrap_or_default(),
                Some(source) => match source.field_ref.as_ref() {
                    Some(field) => self.field(&field.field_path)?,
                    None => {
                        return Err(format!(
                            "the simulated kubelet knows no source but fieldRef for variable {}",
                            variable.name
                        ));
                    }
                },
            };
            config.env.push((variable.name.clone(), value));
        }
        config
            .arguments
            .extend(container.command.iter().flatten().cloned());
        config
            .arguments
            .extend(container.args.iter().flatten().cloned());
        Ok(config)
    }

    fn field(&self, path: &str) -> Result<String, String> {
        let pod = serde_json::to_value(&*self.pod).map_err(|error| error.to_string())?;
        let quoted = path
            .strip_suffix("']")
            .and_then(|rest| rest.split_once("['"));
        let value = match quoted {
            Some((map, key)) => pod
                .pointer(&format!("/{}", map.replace('.', "/")))
                .and_then(|map| map.get(key)),
            None => pod.pointer(&format!("/{}", path.replace('.', "/"))),
        };
        Ok(value.and_then(Value::as_str).unwrap_or_default().to_owned())
    }

    fn ended(&mut self, index: usize, id: &ContainerId, exit: Exit) {
        let reason = if exit.0 == 0 { "Completed" } else { "Error" };
        let mut end = ended(&id.0, exit, reason);
        if let ContainerState::Running { since, .. } = &self.slots.list[index].doing {
            end.started.clone_from(since);
        }
        self.node.runtime.remove(id);
        self.slots
            .ended(index, end, Instant::now(), self.node.config.retry);
    }

    /// Stops everything, says so, and takes the pod out of the API server.
    async fn terminate(mut self, gone: bool) {
        let grace = self
            .pod
            .metadata
            .deletion_grace_period_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|_| !gone)
            .map_or(Duration::ZERO, Duration::from_secs);
        let ids: Vec<ContainerId> = self
            .slots
            .list
            .iter()
            .filter_map(|slot| match &slot.doing {
                ContainerState::Running { id, .. } => Some(id.clone()),
                _ => None,
            })
            .collect();
        futures::future::join_all(ids.iter().map(|id| self.node.runtime.stop(id, grace))).await;
        while let Some(ended) = self.exits.join_next().await {
            if let Ok((index, id, Some(exit))) = ended {
                self.ended(index, &id, exit);
            }
        }
        let uid = self.uid();
        self.node.pods.over(&uid);
        if !gone {
            self.report().await;
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            if let Err(error) = self.api().delete(&self.pod.name_any(), &params).await
                && !matches!(&error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
            {
                tracing::warn!(pod = self.pod.name_any(), %error, "pod cannot be deleted");
            }
        }
        self.node.pods.remove(&uid);
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(
            self.node.client.clone(),
            &self.pod.namespace().unwrap_or_default(),
        )
    }

    /// Writes the status where it changed; false where that failed.
    async fn report(&mut self) -> bool {
        let mut status = self.slots.status(&self.pod, &self.started, &stamp());
        self.add_device_health(&mut status);
        let seen = without_times(&status);
        if seen == self.written {
            return true;
        }
        match write_status(&self.node, &self.pod, &status).await {
            Ok(()) => {
                self.written = seen;
                true
            }
            Err(error) => {
                tracing::warn!(pod = self.pod.name_any(), %error, "pod status cannot be written");
                false
            }
        }
    }

    /// `allocatedResourcesStatus` of each app container that holds devices.
    fn add_device_health(&self, status: &mut Value) {
        let uid = self.uid();
        let containers = status["containerStatuses"].as_array_mut();
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            let held = self.node.plugins.held_by(&uid, &name);
            if held.is_empty() {
                continue;
            }
            let list: Vec<Value> = held
                .into_iter()
                .map(|(resource, ids)| {
                    let ids: Vec<Value> = ids
                        .into_iter()
                        .map(|id| {
                            let well = self.node.plugins.is_healthy(&resource, &id);
                            json!({"resourceID": id, "health": if well { "Healthy" } else { "Unhealthy" }})
                        })
                        .collect();
                    json!({"name": resource, "resources": ids})
                })
                .collect();
            container["allocatedResourcesStatus"] = json!(list);
        }
    }

    async fn event(&self, reason: &str, message: &str) {
        warn(&self.node, &self.pod, reason, message).await;
    }
}

/// A Warning on the pod.
pub(super) async fn warn(node: &Node, pod: &Pod, reason: &str, message: &str) {
    let now = stamp();
    let event = json!({
        "metadata": {"generateName": format!("{}.", pod.name_any())},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(),
            "namespace": pod.namespace(), "uid": pod.uid()},
        "reason": reason, "message": message, "type": "Warning", "count": 1,
        "firstTimestamp": now, "lastTimestamp": now, "eventTime": null,
        "source": {"component": "kubelet", "host": node.config.node_name},
        "reportingComponent": "kubelet", "reportingInstance": node.config.node_name,
    });
    let Ok(event) = serde_json::from_value::<Event>(event) else {
        return;
    };
    let events: Api<Event> =
        Api::namespaced(node.client.clone(), &pod.namespace().unwrap_or_default());
    if let Err(error) = events.create(&PostParams::default(), &event).await {
        tracing::debug!(%error, "event not written");
    }
}

/// Patches a pod's status.
pub(super) async fn write_status(node: &Node, pod: &Pod, status: &Value) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(node.client.clone(), &pod.namespace().unwrap_or_default());
    let patch = json!({"metadata": {"uid": pod.uid()}, "status": status});
    pods.patch_status(
        &pod.name_any(),
        &PatchParams::default(),
        &Patch::Strategic(patch),
    )
    .await
    .map(|_| ())
    .or_else(|error| match error {
        // The pod was deleted, or another has its name: there is nothing to report.
        kube::Error::Api(status) if status.code == 404 || status.code == 409 => Ok(()),
        other => Err(other),
    })
}

fn ended(id: &str, exit: Exit, reason: &str) -> Ended {
    let now = stamp();
    Ended {
        id: id.to_owned(),
        exit,
        reason: reason.to_owned(),
        message: String::new(),
        started: now.clone(),
        finished: now,
    }
}

/// A status less what changes with the clock alone.
fn without_times(status: &Value) -> Value {
    let mut status = status.clone();
    let conditions = status["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        condition["lastTransitionTime"] = Value::Null;
    }
    status
}

/// Now, RFC 3339 in UTC.
pub(super) fn stamp() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}
