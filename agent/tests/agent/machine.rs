//! One node: driver, API server, kubelet, supervisor, agent.

use crate::kubelet::{Entry, Kubelet, Want};
use crate::mps::Supervisor;
use agent::Config;
use api::grant::{ContainerGrant, Grant, NodeIdentity, PodIdentity};
use api::{GpuNode, Mib, Mode, Signer};
use base64::Engine as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt as _};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config as ApiConfig};
use sim_gpu::client::process::{CudaProcess, Route};
use sim_gpu::driver::{Driver, Options};
use sim_gpu::hardware::{Hardware, Preset};
use sim_gpu::paths::Root;
use sim_gpu::wire::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const SHARE: &str = "aliquot.dev/gpu-share";
pub const WHOLE: &str = "nvidia.com/gpu";

pub struct Machine {
    pub kubelet: Kubelet,
    pub mps: Supervisor,
    pub client: Client,
    pub config: Config,
    pub signer: Signer,
    pub cards: Vec<String>,
    node_uid: String,
    agent: Option<(CancellationToken, JoinHandle<Result<(), agent::RunError>>)>,
    stop: CancellationToken,
    driver: Option<Driver>,
    root: Root,
    _folder: tempfile::TempDir,
}

/// Polls until there is an answer.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Machine {
    /// Everything but the agent runs.
    pub async fn bare(count: u32) -> Self {
        Self::on(Hardware::of(Preset::T4, count)).await
    }

    /// The same on this hardware.
    pub async fn on(hardware: Hardware) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("a")
            .tempdir_in("/tmp")
            .unwrap();
        let path = |name: &str| folder.path().join(name);
        let root = Root::new(path("d"));
        let library = std::env::current_exe().unwrap();
        let library = library.parent().unwrap().join("libnvidia_ml.so");
        let driver = sim_gpu::driver::serve(Options {
            root: root.path().to_owned(),
            hardware,
            nvml_library: Some(library),
            plain_nodes: true,
            binary: None,
        })
        .unwrap();
        let cards = driver
            .cards()
            .iter()
            .map(|card| card.uuid.clone())
            .collect();
        let stop = CancellationToken::new();
        let server = ApiServer::bind(ApiConfig::default()).await.unwrap();
        let client = Client::try_from(server.handle().config()).unwrap();
        tokio::spawn(server.serve(stop.clone()));
        let signer = Signer::from_pkcs8(&Signer::generate().unwrap()).unwrap();
        let node_uid = furnish(&client, &signer).await;
        let mut kubelet = Kubelet::new(&path("k"));
        kubelet.start();
        std::fs::create_dir_all(path("r")).unwrap();
        let mps = Supervisor::serve(&path("r/mps.sock"), stop.clone());
        std::fs::create_dir(path("proc")).unwrap();
        let config = Config {
            kubelet_dir: path("k"),
            cdi_dir: path("cdi"),
            nvidia_cdi_dirs: vec![path("etc-cdi")],
            run_dir: path("r"),
            proc_root: path("proc"),
            driver_root: root.path().to_owned(),
            nvml: root.nvml(),
            nvml_interval_ms: 20,
            reconcile_interval_ms: 100,
            prestart_wait_ms: 1500,
            cdi_settle_ms: 1,
            hook_path: path("hook"),
            ..Config::for_node("n1")
        };
        Self {
            kubelet,
            mps,
            client,
            config,
            signer,
            cards,
            node_uid,
            agent: None,
            stop,
            driver: Some(driver),
            root,
            _folder: folder,
        }
    }

    /// With an agent that is registered and knows its cluster.
    pub async fn new(count: u32) -> Self {
        let mut machine = Self::bare(count).await;
        machine.start_agent();
        machine.registered().await;
        machine
    }

    pub fn start_agent(&mut self) {
        let stop = CancellationToken::new();
        let running = agent::run(self.config.clone(), self.client.clone(), stop.clone());
        self.agent = Some((stop, tokio::spawn(running)));
    }

    /// Like SIGKILL: no message, no orderly close.
    pub async fn kill_agent(&mut self) {
        let (_, running) = self.agent.take().unwrap();
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        until("the kubelet has noticed", || async {
            let gone = |resource| self.kubelet.healthy(resource).is_none();
            (gone(SHARE) && gone(WHOLE)).then_some(())
        })
        .await;
    }

    pub async fn stop_agent(&mut self) -> Result<(), agent::RunError> {
        let (stop, running) = self.agent.take().unwrap();
        stop.cancel();
        running.await.unwrap()
    }

    pub async fn registered(&self) {
        until(
            "both resources are registered with healthy devices",
            || async {
                let some = |resource| {
                    self.kubelet
                        .healthy(resource)
                        .is_some_and(|ids| !ids.is_empty())
                };
                (some(SHARE) && (!self.config.serve_whole || some(WHOLE))).then_some(())
            },
        )
        .await;
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    /// A pod that no scheduler placed; its UID. `containers`: name, init, resource, amount.
    pub async fn create(&self, name: &str, containers: &[(&str, bool, &str, u32)]) -> String {
        let list = |init: bool| -> Vec<Value> {
            containers
                .iter()
                .filter(|container| container.1 == init)
                .map(|(name, _, resource, amount)| {
                    let amount = amount.to_string();
                    json!({"name": name, "image": "x", "resources": {
                        "limits": {*resource: amount}, "requests": {*resource: amount}}})
                })
                .collect()
        };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"schedulerName": "kai-scheduler", "initContainers": list(true), "containers": list(false)}
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let made = self
            .pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap();
        made.metadata.uid.unwrap()
    }

    /// The scheduler's one write.
    pub async fn bind(&self, name: &str, uid: &str, grant: Option<&str>) {
        let annotations = grant.map(|grant| json!({"aliquot.dev/grant": grant}));
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": name, "uid": uid, "annotations": annotations.unwrap_or(json!({}))},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}
        });
        let request =
            http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"))
                .header("content-type", "application/json")
                .body(serde_json::to_vec(&binding).unwrap())
                .unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    pub fn grant(
        &self,
        name: &str,
        uid: &str,
        containers: &[(&str, Mode, &[usize], u64)],
    ) -> String {
        self.signer.sign(Grant {
            v: 0,
            key: String::new(),
            cluster: "cluster-1".into(),
            pod: PodIdentity {
                uid: uid.into(),
                namespace: "default".into(),
                name: name.into(),
            },
            node: NodeIdentity {
                name: "n1".into(),
                uid: self.node_uid.clone(),
            },
            containers: containers
                .iter()
                .map(|(name, mode, gpus, mib)| ContainerGrant {
                    name: (*name).into(),
                    gpus: gpus
                        .iter()
                        .map(|index| self.cards[*index].clone())
                        .collect(),
                    memory_mib: Mib(*mib),
                    request_mib: None,
                    compute_percent: 100,
                    mode: *mode,
                    note: None,
                    asked: None,
                })
                .collect(),
            decision: format!("d-{name}"),
            queue: None,
            group: None,
        })
    }

    /// A pod with one share, bound; its UID.
    pub async fn share_pod(&self, name: &str, card: usize, mib: u64) -> String {
        let uid = self.create(name, &[("main", false, SHARE, 1)]).await;
        let grant = self.grant(name, &uid, &[("main", Mode::Mps, &[card], mib)]);
        self.bind(name, &uid, Some(&grant)).await;
        uid
    }

    /// The kubelet admits the only container of a share pod.
    pub async fn admit(&self, name: &str, uid: &str) -> Entry {
        self.kubelet
            .allocate(Want {
                pod_uid: uid,
                pod: name,
                container: "main",
                init: false,
                resource: SHARE,
                count: 1,
                ids: None,
            })
            .await
            .unwrap()
    }

    /// The CDI file of an allocation.
    pub fn cdi(&self, entry: &Entry) -> Option<Value> {
        let file = format!("aliquot.dev-grant_{}.json", entry.alloc());
        let text = std::fs::read_to_string(self.config.cdi_dir.join(file)).ok()?;
        Some(serde_json::from_str(&text).unwrap())
    }

    pub fn env(&self, entry: &Entry, name: &str) -> Option<String> {
        let spec = self.cdi(entry)?;
        let env = spec["devices"][0]["containerEdits"]["env"]
            .as_array()
            .unwrap()
            .clone();
        env.iter()
            .filter_map(|pair| pair.as_str().unwrap().split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
    }

    /// What the hook would leave.
    pub fn prove(&self, entry: &Entry) {
        self.prove_as(entry, &format!("c-{}", entry.pod));
    }

    /// With the runtime's name of the container.
    pub fn prove_as(&self, entry: &Entry, container: &str) {
        let proof = json!({"version": 1, "allocId": entry.alloc(), "podUid": entry.pod_uid,
            "container": entry.container, "containerId": container, "pid": 1, "unixMillis": 1});
        std::fs::write(
            self.config.proof_dir().join(entry.alloc()),
            proof.to_string(),
        )
        .unwrap();
    }

    /// The kubelet's status of a pod.
    pub async fn set_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.pods()
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// The pod leaves, its containers with it.
    pub async fn delete(&self, name: &str) {
        let now = DeleteParams::default().grace_period(0);
        self.pods().delete(name, &now).await.unwrap();
    }

    pub fn healthy(&self, resource: &str) -> BTreeSet<String> {
        self.kubelet.healthy(resource).unwrap_or_default()
    }

    /// A request of the administrator's to the driver.
    pub fn ctl(&self, request: &Message) -> Message {
        sim_gpu::client::Driver::connect(&self.root)
            .unwrap()
            .call(request)
            .unwrap()
    }

    /// This test plays a process of a container: it has a context on the first card.
    pub fn join(&self, pod_uid: &str, container: &str) -> CudaProcess {
        let process = self.config.proc_root.join(std::process::id().to_string());
        std::fs::create_dir(&process).unwrap();
        let line = format!("0::/kubepods/burstable/pod{pod_uid}/{container}\n");
        std::fs::write(process.join("cgroup"), line).unwrap();
        let mut cuda = CudaProcess::init(&self.root, &BTreeMap::new(), Route::Direct).unwrap();
        cuda.context(0).unwrap();
        cuda
    }

    pub fn stop_driver(&mut self) {
        self.driver = None;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some((stop, running)) = self.agent.take() {
            stop.cancel();
            running.abort();
        }
        self.stop.cancel();
    }
}

/// What a cluster has before an agent comes; the node's UID.
async fn furnish(client: &Client, signer: &Signer) -> String {
    let create = PostParams::default();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&create, &GpuNode::crd()).await.unwrap();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "aliquot-system"}});
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces
        .create(&create, &serde_json::from_value(namespace).unwrap())
        .await
        .unwrap();
    let key = base64::engine::general_purpose::STANDARD.encode(signer.public_key());
    let keys = json!({signer.key_id(): key}).to_string();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "aliquot-trust"},
        "data": {"cluster-id": "cluster-1", "grant-keys.json": keys, "ca.crt": "PEM"}});
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "aliquot-system");
    maps.create(&create, &serde_json::from_value(map).unwrap())
        .await
        .unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes
        .create(&create, &serde_json::from_value(node).unwrap())
        .await
        .unwrap();
    node.metadata.uid.unwrap()
}
