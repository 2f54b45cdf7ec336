//! The cluster as one value, and what a test does with it.
//!
//! Comes in: the folders of the daemons and of this workspace's programs. Goes out: a
//! Ready node and an admin's client; manifests applied, pods awaited, logs read.
//! Must never hide a failure: every wait says what it last saw.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Namespace, Node as NodeObject, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt, discovery};
use serde_json::Value;

use crate::control_plane::ControlPlane;
use crate::image::Recipe;
use crate::kubectl::Kubectl;
use crate::namespace::Work;
use crate::node::{self, Node, Place};
use crate::registry::Registry;
use crate::wait::{Seen, until};
use crate::{machine, token};

/// Who applies manifests, for server-side apply.
const FIELD_MANAGER: &str = "aliquot-tests";
/// How long a pod may take to run; one takes about a second.
pub const POD_LIMIT: Duration = Duration::from_secs(30);

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The daemons that `tests/cluster/tools/build` made.
    pub daemons: PathBuf,
    /// This workspace's programs.
    pub ours: PathBuf,
    /// This workspace's programs that are linked statically.
    pub ours_static: PathBuf,
    /// The root of the source tree.
    pub tree: PathBuf,
}

/// A running cluster.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct Cluster {
    pub programs: Programs,
    pub work: Work,
    pub client: Client,
    pub kubectl: Kubectl,
    pub control_plane: ControlPlane,
    pub node: Node,
    pub registry: Registry,
    /// How many namespaces claims have been given.
    namespaces: u32,
    /// How long it took until the API server answered, and until the node was Ready.
    pub started: (Duration, Duration),
}

impl Cluster {
    /// Makes the machine and starts everything on it.
    pub async fn start(programs: Programs, work: Work) -> Result<Self> {
        let begin = Instant::now();
        machine::prepare(&work)?;
        let (bin, state, logs) = (programs.daemons.clone(), work.state(), work.logs());
        let mut control_plane = ControlPlane::start(&bin, &state, &logs)?;
        let registry = Registry::start(&bin, &state, &logs)?;
        let node = Node::start(&Place {
            bin: &bin,
            state: &state,
            logs: &logs,
            kubeconfig: control_plane.kubeconfig("kubelet"),
            cgroup: work.cgroup(),
        })?;
        registry.ready().await?;
        let images = state.join("images");
        let pause = Recipe::busybox()
            .entrypoint(["/bin/sleep", "2147483647"])
            .build(&images, "pause")?;
        let busybox = Recipe::busybox().build(&images, "busybox")?;
        registry.push(&pause, node::PAUSE).await?;
        registry.push(&busybox, "busybox").await?;

        let client = control_plane.ready(&bin, &logs).await?;
        let api_ready = begin.elapsed();
        let kubectl = Kubectl {
            program: bin.join("kubectl"),
            kubeconfig: control_plane.kubeconfig("admin"),
        };
        let mut cluster = Self {
            programs,
            work,
            client,
            kubectl,
            control_plane,
            node,
            registry,
            namespaces: 0,
            started: (api_ready, api_ready),
        };
        cluster.node_ready().await?;
        cluster.started.1 = begin.elapsed();
        Ok(cluster)
    }

    /// Waits until the node is Ready and takes pods.
    pub async fn node_ready(&mut self) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let waited = until("node Ready", Duration::from_secs(60), || async {
            let node = nodes.get(node::NAME).await?;
            let tainted = node
                .spec
                .and_then(|spec| spec.taints)
                .is_some_and(|taints| !taints.is_empty());
            let condition = node
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default()
                .into_iter()
                .find(|condition| condition.type_ == "Ready");
            let ready = condition
                .as_ref()
                .is_some_and(|condition| condition.status == "True");
            Ok(Seen::when(
                ready && !tainted,
                condition
                    .and_then(|condition| condition.message)
                    .unwrap_or_default(),
            ))
        })
        .await;
        self.alive()?;
        waited
    }

    /// Fails if a daemon of the cluster has ended.
    pub fn alive(&mut self) -> Result<()> {
        self.control_plane.alive()?;
        self.registry.alive()?;
        self.node.alive()
    }

    /// An image of this workspace's making, served under `reference`.
    pub async fn serve_image(&self, recipe: &Recipe, reference: &str) -> Result<()> {
        let name: String = reference
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '-' })
            .collect();
        let folder = self.work.state().join("images");
        let layout = folder.join(&name);
        if layout.exists() {
            fs::remove_dir_all(&layout)?;
        }
        let image = recipe.build(&folder, &name)?;
        self.registry.push(&image, reference).await
    }

    /// Applies every document of a YAML text, in order, on the server's side.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<DynamicObject>> {
        let mut applied = Vec::new();
        for document in documents(yaml)? {
            applied.push(self.apply_one(&document).await?);
        }
        Ok(applied)
    }

    /// Applies a file of the source tree.
    pub async fn apply_file(&self, path: &str) -> Result<Vec<DynamicObject>> {
        let path = self.programs.tree.join(path);
        let yaml = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        self.apply(&yaml).await
    }

    /// Applies one object.
    pub async fn apply_one(&self, document: &Value) -> Result<DynamicObject> {
        let object: DynamicObject = serde_json::from_value(document.clone())?;
        let name = object.name_any();
        let api = self.api_of(&object).await?;
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let kind = object
            .types
            .as_ref()
            .map(|types| types.kind.clone())
            .unwrap_or_default();
        // A fresh namespace has no default service account for a moment, and a fresh CRD
        // no endpoint: both are refused in words that say so.
        let begin = Instant::now();
        loop {
            match api.patch(&name, &parameters, &Patch::Apply(&object)).await {
                Ok(applied) => return Ok(applied),
                Err(kube::Error::Api(status))
                    if begin.elapsed() < Duration::from_secs(10)
                        && (status
                            .message
                            .contains("serviceaccount \"default\" not found")
                            || status.message.contains("error looking up service account")) =>
                {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                }
                // What the API server says is what a user reads: passed on as it is.
                Err(kube::Error::Api(status)) => bail!("{kind}/{name}: {}", status.message),
                Err(error) => return Err(error).with_context(|| format!("{kind}/{name}")),
            }
        }
    }

    async fn api_of(&self, object: &DynamicObject) -> Result<Api<DynamicObject>> {
        let types = object
            .types
            .as_ref()
            .context("a document without apiVersion and kind")?;
        let kind = GroupVersionKind::try_from(types)?;
        let (resource, capabilities) = until(
            &format!("the API of {kind:?}"),
            Duration::from_secs(15),
            || async {
                Ok(Seen::Done(
                    discovery::pinned_kind(&self.client, &kind).await?,
                ))
            },
        )
        .await?;
        Ok(match (capabilities.scope, object.namespace()) {
            (discovery::Scope::Cluster, _) => Api::all_with(self.client.clone(), &resource),
            (discovery::Scope::Namespaced, Some(namespace)) => {
                Api::namespaced_with(self.client.clone(), &namespace, &resource)
            }
            (discovery::Scope::Namespaced, None) => {
                Api::default_namespaced_with(self.client.clone(), &resource)
            }
        })
    }

    /// Makes a namespace that no claim has used before, and answers its name.
    pub async fn namespace(&mut self) -> Result<String> {
        self.namespaces += 1;
        let name = format!("claim-{}", self.namespaces);
        self.make_namespace(&name).await?;
        Ok(name)
    }

    /// Makes a namespace of this name, after an older one of this name is gone.
    pub async fn make_namespace(&self, name: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        until(
            &format!("the old namespace {name} gone"),
            Duration::from_secs(30),
            || async {
                let old = namespaces.get_opt(name).await?;
                let ending = old.is_some_and(|old| old.metadata.deletion_timestamp.is_some());
                Ok(Seen::when(!ending, "still ending"))
            },
        )
        .await?;
        let document = serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        self.apply_one(&document).await?;
        Ok(())
    }

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
        until(
            &format!("pod {namespace}/{name} {what}"),
            POD_LIMIT,
            || async {
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
            },
        )
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
        until(
            &format!("pod {namespace}/{name} gone"),
            POD_LIMIT,
            || async {
                Ok(match pods.get_opt(name).await? {
                    None => Seen::Done(()),
                    Some(pod) => Seen::NotYet(describe(&pod)),
                })
            },
        )
        .await
    }

    /// Removes what a claim has made: pods until they are gone, from the node too, and
    /// then their namespaces, which go in their own time.
    pub async fn clean(&self) -> Result<()> {
        let everywhere: Api<Pod> = Api::all(self.client.clone());
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let ours: Vec<String> = namespaces
            .list(&ListParams::default())
            .await?
            .into_iter()
            .map(|namespace| namespace.name_any())
            .filter(|name| !name.starts_with("kube-") && name != proto::names::NAMESPACE)
            .collect();
        for name in &ours {
            self.delete_controllers(name).await?;
            self.pods(name)
                .delete_collection(
                    &DeleteParams::default().grace_period(1),
                    &ListParams::default(),
                )
                .await?;
        }
        until("the claim's pods gone", Duration::from_secs(60), || async {
            let left: Vec<String> = everywhere
                .list(&ListParams::default())
                .await?
                .into_iter()
                .filter(|pod| {
                    pod.namespace()
                        .is_some_and(|namespace| ours.contains(&namespace))
                })
                .map(|pod| format!("{}: {}", pod.name_any(), describe(&pod)))
                .collect();
            Ok(Seen::when(left.is_empty(), left.join(", ")))
        })
        .await?;
        for name in ours.iter().filter(|name| *name != "default") {
            match namespaces.delete(name, &DeleteParams::default()).await {
                // One of an earlier claim, gone since the list was made.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                outcome => {
                    outcome?;
                }
            }
        }
        Ok(())
    }

    /// Deletes what would make pods anew.
    async fn delete_controllers(&self, namespace: &str) -> Result<()> {
        let (all, now) = (ListParams::default(), DeleteParams::background());
        Api::<Deployment>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Api::<ReplicaSet>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Api::<Job>::namespaced(self.client.clone(), namespace)
            .delete_collection(&now, &all)
            .await?;
        Ok(())
    }

    /// A client with the credentials of a kubeconfig file.
    pub async fn client_of(&self, kubeconfig: &Path) -> Result<Client> {
        token::client(kubeconfig).await
    }
}

/// The documents of a YAML text, empty ones left out.
pub fn documents(yaml: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
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
