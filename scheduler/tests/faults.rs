//! A whole scheduler on the simulated API server, which loses answers, refuses, forgets
//! its watches; and schedulers that die in the middle of it.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, CustomResourceExt as _, ResourceExt as _};
use scheduler::{Config, Listeners};
use serde_json::json;
use sim_cluster::api_server::{ApiServer, Config as ServerConfig, Fault, Handle};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NODES: usize = 5;
const GPUS: usize = 8;
/// More than fit.
const PODS: usize = NODES * GPUS + 7;

struct Site {
    client: Client,
    server: Handle,
    stop: CancellationToken,
}

struct Replica {
    stop: CancellationToken,
    task: JoinHandle<Result<(), scheduler::RunError>>,
}

impl Replica {
    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

impl Site {
    async fn start() -> Self {
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

    async fn replica(&self) -> Replica {
        let local = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listeners = Listeners {
            webhook: local().await,
            telemetry: local().await,
            metrics: None,
            page: None,
        };
        let webhook = listeners.webhook.local_addr().unwrap();
        let config = Config {
            webhook_url: Some(format!("https://{webhook}")),
            leader_elect: true,
            identity: Some(webhook.to_string()),
            ..Config::default()
        };
        let stop = self.stop.child_token();
        let run = scheduler::run_on(listeners, config, self.client.clone(), stop.clone());
        Replica {
            task: tokio::spawn(run),
            stop,
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// One pod that asks for one GPU.
    async fn pod(&self, at: usize) {
        let one = json!({"nvidia.com/gpu": "1"});
        let pod = json!({
            "metadata": {"name": format!("p{at}")},
            "spec": {"schedulerName": "kai-scheduler", "containers": [
                {"name": "c", "image": "i", "resources": {"limits": one, "requests": one}}]},
        });
        let pod = serde_json::from_value(pod).unwrap();
        // Between two schedulers nobody answers the webhook.
        let create = PostParams::default();
        while self.pods().create(&create, &pod).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Pods by node.
    async fn placed(&self) -> BTreeMap<String, usize> {
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
    async fn until_placed(&self, wanted: usize) {
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

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_lost_writes_refused_and_watches_forgotten_place_every_pod_once() {
    let site = Site::start().await;
    let replica = site.replica().await;
    for at in 0..PODS {
        match at % 8 {
            0 => site.server.plan("POST", "/binding", Fault::LoseAnswer),
            2 => site.server.plan("POST", "/binding", Fault::TooManyRequests),
            4 => site.server.plan("POST", "/binding", Fault::InternalError),
            6 => site.server.expire_watches(),
            _ => {}
        }
        site.pod(at).await;
    }
    site.until_placed(NODES * GPUS).await;
    // The rest waits, and takes the first place that becomes free.
    let listed = site.pods().list(&ListParams::default()).await.unwrap();
    let placed = listed.iter().find(|pod| node_of(pod).is_some()).unwrap();
    let now = DeleteParams::default().grace_period(0);
    site.pods().delete(&placed.name_any(), &now).await.unwrap();
    site.until_placed(NODES * GPUS).await;
    replica.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_killed_in_the_middle_is_followed_by_the_next_and_nothing_is_placed_twice() {
    let site = Site::start().await;
    let mut running = site.replica().await;
    for at in 0..PODS {
        site.pod(at).await;
        if at == 10 {
            // Killed: it gives nothing back, and the next one waits for the lease's end.
            running.task.abort();
            running = site.replica().await;
        }
        if at == 25 {
            running.end().await;
            running = site.replica().await;
        }
    }
    site.until_placed(NODES * GPUS).await;
    running.end().await;
}
