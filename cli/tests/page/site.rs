//! What is looked at: the demo as a process, or a scheduler on the simulated API server.

use api::gpu_node::{GpuNodeStatus, GpuStatus, GrantStatus};
use api::units::Fence;
use api::{GpuNode, GpuNodeSpec, Mib, Mode};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, CustomResourceExt as _};
use proto::names::object;
use scheduler::clock::Wall;
use serde_json::json;
use sim_cluster::api_server::{ApiServer, Config as ApiConfig};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_mins(1);

/// The admin's template of a link on each pod's page.
const LINK: &str = "Logs=https://logs.example/?ns={namespace}&pod={name}";

/// `aliquot demo`.
pub(crate) struct Demo {
    child: Child,
    place: tempfile::TempDir,
    pub(crate) page: String,
}

impl Demo {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// With more flags.
    pub(crate) fn with(flags: &[&str]) -> Self {
        let place = tempfile::Builder::new()
            .prefix("d")
            .tempdir_in("/tmp")
            .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_aliquot"))
            .arg("demo")
            .arg("--kubeconfig-out")
            .arg(place.path().join("kubeconfig"))
            .args(flags)
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

/// What a site has.
#[derive(Clone, Debug)]
pub(crate) struct Sized {
    /// No token is asked for.
    pub(crate) open: bool,
    pub(crate) nodes: u32,
    /// Of each node.
    pub(crate) cards: u32,
    /// What the scheduler's clock shows, in seconds since 1970; 0: the machine's clock.
    pub(crate) clock: Arc<AtomicI64>,
}

impl Default for Sized {
    fn default() -> Self {
        Self {
            open: true,
            nodes: 1,
            cards: 8,
            clock: Arc::default(),
        }
    }
}

/// A scheduler on the simulated API server, with nodes without kubelets.
pub(crate) struct Site {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) client: Client,
    stop: CancellationToken,
    pub(crate) page: String,
    /// Listen address of the telemetry service, to which agents connect.
    pub(crate) telemetry: SocketAddr,
}

impl Site {
    pub(crate) fn start(size: Sized) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let (client, page, telemetry) = runtime.block_on(Self::fill(size, stop.clone()));
        Self {
            runtime,
            client,
            stop,
            page,
            telemetry,
        }
    }

    async fn fill(size: Sized, stop: CancellationToken) -> (Client, String, SocketAddr) {
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
        for name in [proto::names::NAMESPACE, "lab"] {
            let namespace = json!({"metadata": {"name": name}});
            let namespace = serde_json::from_value(namespace).unwrap();
            namespaces.create(&create, &namespace).await.unwrap();
        }
        for (namespace, name) in [
            ("default", "reader"),
            (proto::names::NAMESPACE, object::AGENT_ACCOUNT),
        ] {
            let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
            let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            accounts.create(&create, &account).await.unwrap();
        }
        let all: Api<GpuNode> = Api::all(client.clone());
        futures::stream::iter(1..=size.nodes)
            .map(|number| {
                let all = all.clone();
                async move {
                    let name = node_name(number);
                    let node = GpuNode::new(&name, GpuNodeSpec::default());
                    all.create(&PostParams::default(), &node).await.unwrap();
                    let status = json!({"status": status(number, size.cards)});
                    let status = Patch::Merge(status);
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
            page_is_open: size.open,
            page_link: vec![LINK.parse().unwrap()],
            ..scheduler::Config::default()
        };
        let listeners = scheduler::Listeners::bind(&config).await.unwrap();
        let webhook = listeners.webhook.local_addr().unwrap();
        config.webhook_url = Some(format!("https://{webhook}"));
        let page = listeners.page.as_ref().unwrap().local_addr().unwrap();
        let telemetry = listeners.telemetry.local_addr().unwrap();
        let scheme = if size.open { "http" } else { "https" };
        let clock = size.clock;
        let wall = Wall::reads(move || match clock.load(Ordering::Relaxed) {
            0 => Timestamp::now(),
            second => Timestamp::from_second(second).unwrap(),
        });
        tokio::spawn(scheduler::run_in(
            listeners.into(),
            wall,
            config,
            client.clone().into(),
            stop,
        ));
        (client, format!("{scheme}://{page}/"), telemetry)
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

pub(crate) fn node_name(number: u32) -> String {
    format!("n{number:04}")
}

/// Up to four shares on each card, behind different fences.
pub(crate) fn status(node: u32, cards: u32) -> GpuNodeStatus {
    let fences = [
        Fence::WatchdogOnly,
        Fence::ClientLimit,
        Fence::ServerLimit,
        Fence::DriverLimit,
    ];
    let card = |index: u32| {
        // As good as by chance.
        let count = (node * 8 + index).wrapping_mul(2_654_435_761) >> 16 & 0xff;
        let count = count % 5;
        let grants = (0..count).map(|at| GrantStatus {
            pod: format!("lab/pod-{node}-{index}-{at}"),
            pod_uid: format!("00000000-0000-0000-{node:04x}-{index:06x}{at:06x}"),
            container: "main".into(),
            memory_mib: Mib(16_000),
            phase: "Running".into(),
            fence: Some(fences[((node / 40 + at) % 4) as usize]),
            ..GrantStatus::default()
        });
        GpuStatus {
            uuid: format!("GPU-{node:04}-{index}"),
            index,
            product: "NVIDIA H100 80GB HBM3".into(),
            total_mib: Mib(81_559),
            grantable_mib: Mib(80_944),
            granted_mib: Mib(u64::from(count) * 16_000),
            used_mib: Mib(u64::from((node * 7 + index) % 80) * 1000),
            mode: (count > 0).then_some(Mode::Mps),
            ready: true,
            health: if node.is_multiple_of(97) && index == 0 {
                "Unhealthy".into()
            } else {
                "Healthy".into()
            },
            grants: grants.collect(),
            ..GpuStatus::default()
        }
    };
    GpuNodeStatus {
        gpu_count: cards,
        gpus: (0..cards).map(card).collect(),
        ..GpuNodeStatus::default()
    }
}
