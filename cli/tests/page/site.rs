//! What is looked at: the demo as a process, or a scheduler on the simulated API server.

use api::gpu_node::{GpuNodeStatus, GpuStatus};
use api::{GpuNode, GpuNodeSpec, Mib, Mode};
use futures::StreamExt as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt as _};
use serde_json::json;
use sim_cluster::api_server::{ApiServer, Config as ApiConfig};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_mins(1);

/// `aliquot demo`.
pub(crate) struct Demo {
    child: Child,
    place: tempfile::TempDir,
    pub(crate) page: String,
}

impl Demo {
    pub(crate) fn start() -> Self {
        let place = tempfile::Builder::new()
            .prefix("d")
            .tempdir_in("/tmp")
            .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_aliquot"))
            .arg("demo")
            .arg("--kubeconfig-out")
            .arg(place.path().join("kubeconfig"))
            .env("TMPDIR", place.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, page) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        // Reads to the end: a demo that cannot write waits.
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if let Some((_, page)) = line.split_once("status page: ") {
                    let _ = told.send(page.trim().to_owned());
                }
            }
        });
        let page = page
            .recv_timeout(PATIENCE)
            .expect("the demo names its page");
        Self { child, place, page }
    }

    /// Another verb on it.
    pub(crate) fn aliquot(&self, args: &[&str]) {
        let status = Command::new(env!("CARGO_BIN_EXE_aliquot"))
            .args(args)
            .env("KUBECONFIG", self.place.path().join("kubeconfig"))
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{args:?}");
    }

    pub(crate) fn end(&mut self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.end();
    }
}

/// A scheduler on the simulated API server, with nodes of 8 cards that nobody runs.
pub(crate) struct Site {
    runtime: tokio::runtime::Runtime,
    client: Client,
    stop: CancellationToken,
    pub(crate) page: String,
}

impl Site {
    /// `open`: no token is asked for.
    pub(crate) fn start(open: bool, nodes: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let (client, page) = runtime.block_on(Self::fill(open, nodes, stop.clone()));
        Self {
            runtime,
            client,
            stop,
            page,
        }
    }

    async fn fill(open: bool, nodes: u32, stop: CancellationToken) -> (Client, String) {
        let server = ApiServer::bind(ApiConfig::default()).await.unwrap();
        let client = Client::try_from(server.handle().config()).unwrap();
        tokio::spawn(server.serve(stop.clone()));
        let create = PostParams::default();
        let kinds = Api::all(client.clone());
        for kind in [
            api::Queue::crd(),
            api::PodGroup::crd(),
            api::Topology::crd(),
            GpuNode::crd(),
        ] {
            kinds.create(&create, &kind).await.unwrap();
        }
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let ours = json!({"metadata": {"name": proto::names::NAMESPACE}});
        let ours = serde_json::from_value(ours).unwrap();
        namespaces.create(&create, &ours).await.unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
        let reader = serde_json::from_value(json!({"metadata": {"name": "reader"}})).unwrap();
        accounts.create(&create, &reader).await.unwrap();
        let all: Api<GpuNode> = Api::all(client.clone());
        futures::stream::iter(1..=nodes)
            .map(|number| {
                let all = all.clone();
                async move {
                    let name = format!("n{number:04}");
                    let node = GpuNode::new(&name, GpuNodeSpec::default());
                    all.create(&PostParams::default(), &node).await.unwrap();
                    let status = Patch::Merge(json!({"status": status(number)}));
                    let parameters = PatchParams::default();
                    all.patch_status(&name, &parameters, &status).await.unwrap();
                }
            })
            .buffer_unordered(32)
            .collect::<Vec<()>>()
            .await;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = scheduler::Config {
            webhook: any,
            telemetry: any,
            page: Some(any),
            page_is_open: open,
            ..scheduler::Config::default()
        };
        let listeners = scheduler::Listeners::bind(&config).await.unwrap();
        let webhook = listeners.webhook.local_addr().unwrap();
        config.webhook_url = Some(format!("https://{webhook}"));
        let page = listeners.page.as_ref().unwrap().local_addr().unwrap();
        let scheme = if open { "http" } else { "https" };
        tokio::spawn(scheduler::run_on(
            listeners,
            config,
            client.clone().into(),
            stop,
        ));
        (client, format!("{scheme}://{page}/"))
    }

    /// A token of an account, as `kubectl create token` makes one.
    pub(crate) fn token(&self) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        let request: TokenRequest =
            serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": []}})).unwrap();
        let parameters = PostParams::default();
        let made = accounts.create_token_request("reader", &parameters, &request);
        let made = self.runtime.block_on(made).unwrap();
        made.status.and_then(|status| status.token).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn status(node: u32) -> GpuNodeStatus {
    let card = |index: u32| GpuStatus {
        uuid: format!("GPU-{node:04}-{index}"),
        index,
        product: "NVIDIA H100 80GB HBM3".into(),
        total_mib: Mib(81_559),
        grantable_mib: Mib(80_944),
        granted_mib: Mib(u64::from((node + index) % 5) * 16_000),
        used_mib: Mib(u64::from((node * 7 + index) % 80) * 1000),
        mode: (!(node + index).is_multiple_of(5)).then_some(Mode::Mps),
        ready: true,
        health: "Healthy".into(),
        ..GpuStatus::default()
    };
    GpuNodeStatus {
        gpu_count: 8,
        gpus: (0..8).map(card).collect(),
        ..GpuNodeStatus::default()
    }
}
