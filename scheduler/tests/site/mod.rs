//! A simulated API server with nodes and a queue, and schedulers on it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, CustomResourceExt as _};
use scheduler::{Config, Listeners};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config as ServerConfig, Handle};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const NODES: usize = 5;
pub(crate) const GPUS: usize = 8;

/// The cluster.
pub(crate) struct Site {
    pub(crate) client: Client,
    pub(crate) server: Handle,
    stop: CancellationToken,
}

/// One scheduler on it.
pub(crate) struct Replica {
    stop: CancellationToken,
    /// Where it shows its pages.
    pub(crate) pages: SocketAddr,
    /// Where its webhook is.
    pub(crate) webhook: SocketAddr,
    pub(crate) task: JoinHandle<Result<(), scheduler::RunError>>,
}

impl Replica {
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

impl Site {
    pub(crate) async fn start() -> Self {
        let server = ApiServer::bind(ServerConfig::default()).await.unwrap();
        let handle = server.handle();
        let mut config = handle.config();
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        let site = Self {
            client,
            server: handle,
            stop,
        };
        site.fill().await;
        site
    }

    async fn fill(&self) {
        let create = PostParams::default();
        let kinds = Api::all(self.client.clone());
        for kind in [
            api::Queue::crd(),
            api::PodGroup::crd(),
            api::Topology::crd(),
            api::kai::ShardDefinition::crd(),
            api::kai::ConfigDefinition::crd(),
            api::GpuNode::crd(),
        ] {
            kinds.create(&create, &kind).await.unwrap();
        }
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let ours = json!({"metadata": {"name": proto::names::NAMESPACE}});
        let ours = serde_json::from_value(ours).unwrap();
        namespaces.create(&create, &ours).await.unwrap();
        let queues: Api<api::Queue> = Api::all(self.client.clone());
        let all = json!({"quota": -1, "limit": -1});
        let queue = json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "default-queue"},
            "spec": {"resources": {"gpu": all, "cpu": all, "memory": all}},
        });
        let queue = serde_json::from_value(queue).unwrap();
        queues.create(&create, &queue).await.unwrap();
        let nodes: Api<Node> = Api::all(self.client.clone());
        for at in 0..NODES {
            let has = json!({"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": GPUS.to_string()});
            let node = json!({
                "metadata": {"name": format!("n{at}")},
                "status": {"allocatable": has, "capacity": has, "conditions": [{"type": "Ready", "status": "True"}]},
            });
            let node = serde_json::from_value(node).unwrap();
            nodes.create(&create, &node).await.unwrap();
        }
    }

    pub(crate) async fn replica(&self) -> Replica {
        self.replica_with(Config {
            leader_elect: true,
            ..Config::default()
        })
        .await
    }

    pub(crate) async fn replica_with(&self, config: Config) -> Replica {
        let local = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let metrics = local().await;
        let pages = metrics.local_addr().unwrap();
        let listeners = Listeners {
            webhook: local().await,
            telemetry: local().await,
            metrics: Some(metrics),
            page: None,
        };
        let webhook = listeners.webhook.local_addr().unwrap();
        let config = Config {
            webhook_url: Some(format!("https://{webhook}")),
            identity: Some(webhook.to_string()),
            verify: true,
            ..config
        };
        let stop = self.stop.child_token();
        let run = scheduler::run_on(listeners, config, self.client.clone().into(), stop.clone());
        Replica {
            task: tokio::spawn(run),
            pages,
            webhook,
            stop,
        }
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// One pod that asks for one GPU.
    pub(crate) async fn pod(&self, at: usize) {
        self.pod_with(&format!("p{at}"), json!({})).await;
    }

    /// Such a pod with more to it.
    pub(crate) async fn pod_with(&self, name: &str, more: Value) {
        let one = json!({"nvidia.com/gpu": "1"});
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"schedulerName": "kai-scheduler", "containers": [
                {"name": "c", "image": "i", "resources": {"limits": one, "requests": one}}]},
        });
        json_patch::merge(&mut pod, &more);
        let pod = serde_json::from_value(pod).unwrap();
        // Between two schedulers the webhook has no server.
        let create = PostParams::default();
        while self.pods().create(&create, &pod).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Pods by node.
    pub(crate) async fn placed(&self) -> BTreeMap<String, usize> {
        let pods = loop {
            match self.pods().list(&ListParams::default()).await {
                Ok(pods) => break pods,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        let mut placed = BTreeMap::new();
        for node in pods.iter().filter_map(node_of) {
            *placed.entry(node.to_owned()).or_default() += 1;
        }
        placed
    }

    /// Waits until so many are placed, and sees on the way that no node has too many.
    pub(crate) async fn until_placed(&self, wanted: usize) {
        let mut last = BTreeMap::new();
        let all = async {
            loop {
                last = self.placed().await;
                assert!(last.values().all(|count| *count <= GPUS), "{last:?}");
                if last.values().sum::<usize>() >= wanted {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(90), all).await;
        assert!(in_time.is_ok(), "{wanted} wanted, placed are {last:?}");
    }
}

/// A pod's node.
pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// A page of a scheduler: status and text.
pub(crate) async fn page(at: SocketAddr, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.unwrap() + 4);
    let head = String::from_utf8_lossy(head);
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    let body = if head.contains("application/zip") {
        only_file(body)
    } else {
        String::from_utf8_lossy(body).into_owned()
    };
    (status, body)
}

/// Of an archive.
fn only_file(archive: &[u8]) -> String {
    use std::io::Read as _;
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    assert_eq!(archive.len(), 1);
    let mut text = String::new();
    let mut file = archive.by_index(0).unwrap();
    assert_eq!(file.name().unwrap(), "snapshot.json");
    file.read_to_string(&mut text).unwrap();
    text
}
