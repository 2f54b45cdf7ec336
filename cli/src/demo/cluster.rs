//! The embedded cluster: API server, scheduler, and per node a driver, a runtime, a kubelet,
//! an agent and an MPS supervisor. The same code as on a real cluster, wired to directories.
//!
//! Every part is a task of one set; the end of any before its time is the end of the demo.

use super::driver::{Cards, Driver};
use super::group::Group;
use super::paths::Paths;
use super::place::Place;
use super::{embed, walkthrough};
use crate::manifest::{apply, ensure_namespace};
use crate::view::ClusterView;
use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::{Client, CustomResourceExt as _};
use proto::names::{NAMESPACE, object, telemetry};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config as ApiConfig, Handle};
use sim_cluster::runtime::{ContainerId, Runtime};
use sim_cluster::{kubelet, runtime};
use sim_gpu::workload::SCRIPT_ENV;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const NVML: &[u8] = include_bytes!(env!("NVML_STAND_IN"));
/// Time between two checks of a kubelet on its node; 10 s for the real one.
const STATUS_EVERY: Duration = Duration::from_millis(100);
/// Until a refused container start is tried again; the real one takes 10 to 15 s.
const RETRY: Duration = Duration::from_secs(1);
/// The longest time that an orderly end may take; usually it takes well under a second.
const LONGEST_END: Duration = Duration::from_secs(8);
const NODE_WAIT: Duration = Duration::from_secs(10);

/// A cluster that runs.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) api: Handle,
    /// Address of the status page.
    pub(super) page: String,
    /// Where metrics are served: the scheduler's, then each agent's.
    pub(super) metrics: Vec<String>,
    /// Ours: scheduler, agents, MPS supervisors.
    ours: Group,
    /// What they depend on: API server, kubelets.
    ground: Group,
    runtimes: Vec<Runtime>,
    drivers: Vec<Driver>,
}

impl Cluster {
    /// Starts everything; answers when all parts run, not when they are done with starting.
    /// `measured`: agents serve their metrics too.
    pub(super) async fn start(
        place: &Place,
        nodes: u32,
        cards: &Cards,
        measured: bool,
    ) -> anyhow::Result<Self> {
        let (mut ours, mut ground) = (Group::default(), Group::default());
        let server = ApiServer::bind(ApiConfig::default())
            .await
            .context("the API server cannot listen on 127.0.0.1")?;
        let api = server.handle();
        let serving = server.serve(ground.stop.clone());
        ground
            .tasks
            .spawn(async move { serving.await.context("API server") });
        let client = Client::try_from(api.config()).context("a client for the API server")?;
        bootstrap(&client).await?;

        let library = place.path().join("nvml.so");
        std::fs::write(&library, NVML)?;
        let addresses = embed::scheduler(&mut ours, &client).await?;
        let mut cluster = Self {
            client,
            api,
            page: addresses.page,
            metrics: vec![addresses.metrics],
            ours,
            ground,
            runtimes: Vec::new(),
            drivers: Vec::new(),
        };
        let names: Vec<String> = (1..=nodes).map(node_name).collect();
        let drivers = names.iter().map(|name| {
            let (root, library) = (Paths::of(place, name).driver, library.clone());
            async move { Driver::start(&root, name, cards, &library, &place.log()).await }
        });
        for driver in futures::future::join_all(drivers).await {
            cluster.drivers.push(driver?);
        }
        for name in &names {
            cluster.start_node(&Paths::of(place, name), name)?;
        }
        let agents = names.iter().map(|name| {
            let (paths, client) = (Paths::of(place, name), cluster.client.clone());
            async move {
                let token = token(&client, name).await?;
                std::fs::write(&paths.token, token)?;
                anyhow::Ok((name, paths))
            }
        });
        for ready in futures::future::join_all(agents).await {
            let (name, paths) = ready?;
            let metrics = if measured {
                Some(free_port().context("no free port for an agent's metrics")?)
            } else {
                None
            };
            cluster.metrics.extend(metrics.map(|at| at.to_string()));
            let telemetry = &addresses.telemetry;
            embed::agent(
                &mut cluster.ours,
                name,
                &paths,
                telemetry,
                metrics,
                &cluster.client,
            )?;
        }
        admission(&cluster.client).await?;
        Ok(cluster)
    }

    fn start_node(&mut self, paths: &Paths, name: &str) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut workload = vec![program.display().to_string()];
        workload.extend(words(&["sim-gpu", "workload"]));
        let runtime = Runtime::new(runtime::Config {
            root: paths.containers.clone(),
            cdi_dirs: vec![paths.cdi.clone()],
            proc_dir: paths.proc.clone(),
            init: words(&["/bin/sh", "-c", "read -r _ && exec \"$0\" \"$@\""]),
            workload,
        })
        .with_context(|| format!("the runtime of {name}"))?;
        self.runtimes.push(runtime.clone());
        let config = kubelet::Config {
            status_every: STATUS_EVERY,
            retry: RETRY,
            init_env: vec![(SCRIPT_ENV.to_owned(), "report".to_owned())],
            ..kubelet::Config::new(name, &paths.kubelet)
        };
        let stop = self.ground.stop.clone();
        let running = kubelet::run(config, self.client.clone(), runtime, stop);
        self.ground
            .tasks
            .spawn(async move { running.await.map_err(Into::into) });
        Ok(())
    }

    /// What a walkthrough needs beside the API server.
    pub(super) fn hardware(&self, place: &Place) -> HardwareControl {
        HardwareControl {
            place: place.path().to_owned(),
            runtimes: self.runtimes.clone(),
        }
    }

    /// Why a part ended before its time. Waits until one does.
    pub(super) async fn broken(&mut self) -> anyhow::Error {
        tokio::select! {
            why = self.ours.broken() => why,
            why = self.ground.broken() => why,
        }
    }

    /// Ends all parts, each before those that it depends on. The clean-up process kills parts that
    /// have not ended in time: it knows them by the demo's directory.
    pub(super) async fn shut_down(self) {
        if tokio::time::timeout(LONGEST_END, self.end()).await.is_err() {
            tracing::warn!("some parts did not end in time: they are killed");
        }
    }

    async fn end(self) {
        for runtime in &self.runtimes {
            runtime.shut_down().await;
        }
        self.ours.end().await;
        self.ground.end().await;
        for driver in self.drivers {
            driver.stop().await;
        }
    }
}

/// What a person can do beside the API server: pull a card, read what a container wrote.
#[derive(Debug)]
pub(super) struct HardwareControl {
    place: PathBuf,
    runtimes: Vec<Runtime>,
}

impl HardwareControl {
    /// `sim-gpu ctl VERB INDEX` on a node's driver.
    pub(super) async fn card(&self, node: &str, index: u32, verb: &str) -> anyhow::Result<()> {
        let root = Paths::below(&self.place, node).driver;
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let output = tokio::process::Command::new(program)
            .args(["sim-gpu", "ctl", verb, &index.to_string(), "--root"])
            .arg(root)
            .output()
            .await?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(anyhow!("GPU {index} of {node}: {verb}: {why}"))
    }

    /// What the first container of a walkthrough's pod has written.
    pub(super) fn log(&self, view: &ClusterView, pod: &str) -> Option<String> {
        let status = view.pod(walkthrough::NAMESPACE, pod)?.status.as_ref()?;
        let container = status.container_statuses.as_ref()?.first()?;
        let id = container.container_id.as_deref()?;
        let id = ContainerId(id.rsplit("//").next()?.to_owned());
        self.runtimes.iter().find_map(|runtime| runtime.log(&id))
    }
}

/// What an admin applies before the first agent comes.
async fn bootstrap(client: &Client) -> anyhow::Result<()> {
    let definitions = [
        api::GpuNode::crd(),
        api::Queue::crd(),
        api::PodGroup::crd(),
        api::Topology::crd(),
    ];
    for definition in definitions {
        let mut document = serde_json::to_value(&definition)?;
        document["apiVersion"] = json!("apiextensions.k8s.io/v1");
        document["kind"] = json!("CustomResourceDefinition");
        apply(client, &document).await?;
    }
    ensure_namespace(client, NAMESPACE).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    for name in [
        object::AGENT_ACCOUNT,
        object::SCHEDULER_ACCOUNT,
        "aliquot-mps",
    ] {
        let account = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        accounts.create(&PostParams::default(), &account).await?;
    }
    for object in walkthrough::installed()? {
        apply(client, &object).await?;
    }
    Ok(())
}

/// A token of the agent's account, bound to its node, as a projected volume would hold it.
async fn token(client: &Client, node: &str) -> anyhow::Result<String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let there = async {
        while nodes.get_opt(node).await?.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<(), kube::Error>(())
    };
    tokio::time::timeout(NODE_WAIT, there)
        .await
        .with_context(|| format!("{node} did not register in time"))??;
    let request: TokenRequest = serde_json::from_value::<TokenRequest>(request(node))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let answer = accounts
        .create_token_request(object::AGENT_ACCOUNT, &PostParams::default(), &request)
        .await?;
    answer
        .status
        .and_then(|status| status.token)
        .ok_or_else(|| anyhow!("the token of {node} is empty"))
}

fn request(node: &str) -> Value {
    json!({"metadata": {}, "spec": {
        "audiences": [telemetry::AUDIENCE], "expirationSeconds": 7 * 24 * 3600,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node},
    }})
}

/// An address on loopback that nothing listens at now.
fn free_port() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Waits until pods pass our webhook: a pod that is created before never gets its token.
async fn admission(client: &Client) -> anyhow::Result<()> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let begin = Instant::now();
    while api.get_opt(object::WEBHOOK_CONFIGURATION).await?.is_none() {
        if begin.elapsed() > Duration::from_secs(30) {
            bail!("the scheduler's webhook is not ready after 30 s");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Nodes are counted from 1.
pub(super) fn node_name(number: u32) -> String {
    format!("node-{number}")
}
