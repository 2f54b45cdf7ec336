//! A node in this process: the real agent, MPS supervisor and hook; a simulated kubelet,
//! runtime and API server; and whatever driver the machine has.
//!
//! Owns all of them. In: pods with grants, signed here as the scheduler signs them. Out: what
//! the containers wrote, and what the agent publishes.

use crate::machine::Machine;
use anyhow::{Context as _, bail};
use api::grant::{ContainerGrant, Grant, NodeIdentity, PodIdentity};
use api::{GpuNode, Mib, Mode, Signer};
use base64::Engine as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node as NodeObject, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, CustomResourceExt as _, ResourceExt as _};
use proto::names::{NAMESPACE, object, resource};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config as ApiConfig};
use sim_cluster::runtime::{ContainerId, Runtime};
use sim_cluster::{kubelet, runtime};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const NAME: &str = "gpu-node";
const CLUSTER: &str = "gpu-test";
/// A card switches its mode and a server starts within this.
const PATIENCE: Duration = Duration::from_mins(1);
const AGAIN: Duration = Duration::from_millis(20);

/// Everything of one node.
pub(crate) struct Node {
    client: Client,
    signer: Signer,
    uid: String,
    runtime: Runtime,
    tasks: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
}

impl Node {
    /// Starts it; answers when shares are offered.
    pub(crate) async fn start(machine: &Machine) -> anyhow::Result<Self> {
        let path = |part: &str| machine.work.join(part);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let server = ApiServer::bind(ApiConfig::default()).await?;
        let client = Client::try_from(server.handle().config())?;
        let serving = server.serve(stop.clone());
        tasks.spawn(async move { serving.await.context("API server") });
        let signer = Signer::from_pkcs8(&Signer::generate()?)?;
        furnish(&client, &signer).await?;

        let program = std::env::current_exe()?.display().to_string();
        // The real libraries know nothing of a container that is a folder.
        let verb = if machine.simulated { "cuda" } else { "enter" };
        let mut workload = vec![program, verb.to_owned(), "--library".to_owned()];
        workload.push(machine.cuda()?.display().to_string());
        if let Ok(egl) = machine.egl() {
            workload.extend(["--egl".to_owned(), egl.display().to_string()]);
        }
        let runtime = Runtime::new(runtime::Config {
            root: path("c"),
            cdi_dirs: vec![path("cdi")],
            proc_dir: path("proc"),
            init: ["/bin/sh", "-c", "read -r _ && exec \"$0\" \"$@\""]
                .map(str::to_owned)
                .to_vec(),
            workload,
        })?;
        let config = kubelet::Config {
            status_every: Duration::from_millis(100),
            retry: Duration::from_secs(1),
            ..kubelet::Config::new(NAME, path("k"))
        };
        let kubelet = kubelet::run(config, client.clone(), runtime.clone(), stop.clone());
        tasks.spawn(async move { kubelet.await.context("kubelet") });

        let hook = path("bin/aliquot-hook");
        std::fs::create_dir_all(path("bin"))?;
        std::fs::create_dir_all(path("cdi"))?;
        std::os::unix::fs::symlink(std::env::current_exe()?, &hook)?;
        let supervisor = agent::Config {
            kubelet_dir: path("k"),
            cdi_dir: path("cdi"),
            nvidia_cdi_dirs: vec![path("no-cdi")],
            run_dir: path("r"),
            driver_root: machine.root.clone(),
            nvml: machine.root.join("usr/lib64/libnvidia-ml.so.1"),
            mps_env: machine
                .env()
                .iter()
                .map(|(k, v)| format!("{k}={v}"))
                .collect(),
            mps_mounts: agent::mps::may_mount(),
            hook_path: hook,
            serve_whole: false,
            cdi_settle_ms: 1,
            reconcile_interval_ms: 500,
            ..agent::Config::for_node(NAME)
        };
        let agent = agent::Config {
            // The runtime writes down the cgroup that each process would have.
            proc_root: path("proc"),
            ..supervisor.clone()
        };
        let serving = agent::mps::serve(supervisor, stop.clone());
        tasks.spawn(async move { serving.await.context("MPS supervisor") });
        let running = agent::run(agent, client.clone(), stop.clone());
        tasks.spawn(async move { running.await.context("agent") });

        let mut node = Self {
            client,
            signer,
            uid: String::new(),
            runtime,
            tasks,
            stop,
        };
        let nodes: Api<NodeObject> = Api::all(node.client.clone());
        let uid = node
            .until("the node offers shares", async || {
                let node = nodes.get_opt(NAME).await.ok()??;
                let status = node.status?;
                let offered = status
                    .allocatable?
                    .get(resource::SHARE)?
                    .0
                    .parse::<u32>()
                    .ok()?;
                (offered > 0).then_some(node.metadata.uid?)
            })
            .await?;
        node.uid = uid;
        Ok(node)
    }

    /// Polls until there is an answer, or a part of the node ends.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        mut ask: impl AsyncFnMut() -> Option<T>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(answer) = ask().await {
                return Ok(answer);
            }
            if let Some(ended) = self.tasks.try_join_next() {
                ended??;
                bail!("a part of the node ended");
            }
            if begin.elapsed() > PATIENCE {
                bail!("not within {PATIENCE:?}: {what}");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// A pod with one share, its program's words as arguments, bound to this node.
    pub(crate) async fn share(
        &self,
        name: &str,
        gpu: &str,
        mode: Mode,
        mib: u64,
        words: &str,
    ) -> anyhow::Result<()> {
        let one = json!({resource::SHARE: "1"});
        let words: Vec<&str> = words.split_whitespace().collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"schedulerName": "kai-scheduler", "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "cuda", "args": words,
                    "resources": {"limits": one, "requests": one}}]},
        });
        let pod = serde_json::from_value(pod)?;
        let pod = self.pods().create(&PostParams::default(), &pod).await?;
        let uid = pod.metadata.uid.context("a pod without a UID")?;
        let grant = self.signer.sign(Grant {
            v: 0,
            key: String::new(),
            cluster: CLUSTER.into(),
            pod: PodIdentity {
                uid: uid.clone(),
                namespace: "default".into(),
                name: name.into(),
            },
            node: NodeIdentity {
                name: NAME.into(),
                uid: self.uid.clone(),
            },
            containers: vec![ContainerGrant {
                name: "main".into(),
                gpus: vec![gpu.to_owned()],
                memory_mib: Mib(mib),
                request_mib: None,
                compute_percent: 100,
                mode,
                note: None,
                asked: None,
            }],
            decision: format!("d-{name}"),
            queue: None,
            group: None,
        });
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "uid": uid, "annotations": {proto::names::grant::GRANT: grant}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NAME},
        });
        let request =
            http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"))
                .header("content-type", "application/json")
                .body(serde_json::to_vec(&binding)?)?;
        self.client.request::<Value>(request).await?;
        Ok(())
    }

    /// The line that a pod's program wrote for a word.
    pub(crate) async fn line(
        &mut self,
        machine: &Machine,
        pod: &str,
        word: &str,
    ) -> anyhow::Result<Value> {
        let (pods, runtime) = (self.pods(), self.runtime.clone());
        let what = format!("{pod} says {word}");
        let wait = self.until(&what, async || {
            let log = log(&pods, &runtime, pod).await?;
            let lines = log
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.into_iter().find(|line| line["do"] == word)
        });
        match wait.await {
            Ok(line) => {
                machine.transcript.note(format!("{pod}: {line}"));
                Ok(line)
            }
            Err(error) => {
                let said = log(&pods, &runtime, pod).await.unwrap_or_default();
                let status = pods.get_opt(pod).await?.and_then(|pod| pod.status);
                let status = serde_json::to_string(&status)?;
                bail!(
                    "{error:#}; it wrote {said:?}; its status is {status}; {}",
                    self.events().await
                )
            }
        }
    }

    /// Reads the line of a word of a running pod's program, again and again.
    pub(crate) async fn reader(
        &self,
        pod: &str,
        word: &'static str,
    ) -> anyhow::Result<impl Fn() -> Option<Value> + Send + 'static> {
        let id = container(&self.pods(), pod).await.context("no container")?;
        let runtime = self.runtime.clone();
        Ok(move || {
            let log = runtime.log(&id)?;
            let lines = log
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.into_iter().find(|line| line["do"] == word)
        })
    }

    /// Warnings, for a pod that does not start.
    async fn events(&self) -> String {
        let api: Api<k8s_openapi::api::core::v1::Event> = Api::all(self.client.clone());
        let list = api.list(&ListParams::default()).await;
        let told = list
            .into_iter()
            .flat_map(|list| list.items)
            .filter_map(|event| event.message);
        told.collect::<Vec<_>>().join("; ")
    }

    /// A pod's container's exit code, once it has ended.
    pub(crate) async fn exit(&mut self, pod: &str) -> anyhow::Result<i32> {
        let pods = self.pods();
        self.until(&format!("{pod} ends"), async || {
            let status = pods.get_opt(pod).await.ok()??.status?;
            let first = status.container_statuses?.into_iter().next()?;
            Some(first.state?.terminated?.exit_code)
        })
        .await
    }

    /// What the agent publishes of a pod's grant, once there is a fence.
    pub(crate) async fn fence(&mut self, pod: &str) -> anyhow::Result<String> {
        let nodes: Api<GpuNode> = Api::all(self.client.clone());
        let key = format!("default/{pod}");
        self.until(&format!("{pod}'s fence is published"), async || {
            let status = nodes.get_opt(NAME).await.ok()??.status?;
            let grants = status.gpus.into_iter().flat_map(|gpu| gpu.grants);
            let fence = grants
                .filter(|grant| grant.pod == key)
                .find_map(|grant| grant.fence)?;
            Some(fence.to_string())
        })
        .await
    }

    /// Takes all pods away and waits until nothing is granted.
    pub(crate) async fn clear(&mut self) -> anyhow::Result<()> {
        let now = DeleteParams::default().grace_period(0);
        for pod in self.pods().list(&ListParams::default()).await? {
            self.pods().delete(&pod.name_any(), &now).await?;
        }
        let nodes: Api<GpuNode> = Api::all(self.client.clone());
        self.until("nothing is granted", async || {
            let status = nodes.get_opt(NAME).await.ok()??.status?;
            status
                .gpus
                .iter()
                .all(|gpu| gpu.grants.is_empty())
                .then_some(())
        })
        .await
    }

    /// Ends everything, containers first.
    pub(crate) async fn end(mut self) {
        self.runtime.shut_down().await;
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(20), all).await;
    }
}

async fn log(pods: &Api<Pod>, runtime: &Runtime, pod: &str) -> Option<String> {
    runtime.log(&container(pods, pod).await?)
}

async fn container(pods: &Api<Pod>, pod: &str) -> Option<ContainerId> {
    let status = pods.get_opt(pod).await.ok()??.status?;
    let first = status.container_statuses?.into_iter().next()?;
    let id = first.container_id?;
    Some(ContainerId(id.rsplit("//").next()?.to_owned()))
}

/// What a cluster has before an agent comes.
async fn furnish(client: &Client, signer: &Signer) -> anyhow::Result<()> {
    let create = PostParams::default();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&create, &GpuNode::crd()).await?;
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&create, &serde_json::from_value(namespace)?)
        .await?;
    let key = base64::engine::general_purpose::STANDARD.encode(signer.public_key());
    let keys = json!({signer.key_id(): key}).to_string();
    let map = json!({"metadata": {"name": object::TRUST_CONFIG_MAP},
        "data": {object::TRUST_CLUSTER_ID: CLUSTER, object::TRUST_KEYS: keys, object::TRUST_CA: "PEM"}});
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    maps.create(&create, &serde_json::from_value(map)?).await?;
    Ok(())
}

/// Where the node's MPS supervisor keeps its daemons.
pub(crate) fn servers(machine: &Machine) -> PathBuf {
    machine.work.join("r/mps")
}
