//! The kubelet as a device plugin and a pod see it.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod plugin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use plugin::{Call, Plugin, Script};
use proto::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use proto::deviceplugin::registration_client::RegistrationClient;
use proto::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest,
};
use proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use proto::podresources::{
    AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest,
};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config as ApiConfig};
use sim_cluster::kubelet::{self, KubeletError};
use sim_cluster::runtime::{Config as RuntimeConfig, Runtime};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

const SHARE: &str = "aliquot.dev/gpu-share";

struct Cluster {
    dir: tempfile::TempDir,
    client: Client,
    runtime: Runtime,
    script: Arc<Mutex<Script>>,
    devices: watch::Sender<Vec<Device>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    kubelet: Option<(CancellationToken, JoinHandle<Result<(), KubeletError>>)>,
}

fn device(id: &str, health: &str) -> Device {
    Device {
        id: id.into(),
        health: health.into(),
        topology: None,
    }
}

impl Cluster {
    /// One node whose every image says its environment and then waits to be told to stop.
    async fn start(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = ApiServer::bind(ApiConfig::default()).await.unwrap();
        let client = Client::try_from(server.handle().config()).unwrap();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let serving = server.serve(stop.clone());
        tasks.spawn(async move { serving.await.unwrap() });
        std::fs::create_dir(dir.path().join("cdi")).unwrap();
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        let runtime = Runtime::new(RuntimeConfig {
            root: dir.path().join("c"),
            cdi_dirs: vec![dir.path().join("cdi")],
            proc_dir: dir.path().join("proc"),
            init: words(&["/bin/sh", "-c", "read -r _ && exec \"$0\" \"$@\""]),
            workload: words(&["/bin/sh", "-c", script, "workload"]),
        })
        .unwrap();
        let (devices, _) = watch::channel(vec![
            device("a", "Healthy"),
            device("b", "Healthy"),
            device("c", "Unhealthy"),
        ]);
        let mut cluster = Self {
            dir,
            client,
            runtime,
            script: Arc::default(),
            devices,
            stop,
            tasks,
            kubelet: None,
        };
        cluster.boot();
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn boot(&mut self) {
        let stop = CancellationToken::new();
        let config = kubelet::Config {
            status_every: Duration::from_millis(20),
            retry: Duration::from_millis(200),
            ..kubelet::Config::new("n1", self.path("kubelet"))
        };
        let running = kubelet::run(
            config,
            self.client.clone(),
            self.runtime.clone(),
            stop.clone(),
        );
        self.kubelet = Some((stop, tokio::spawn(running)));
    }

    async fn halt_kubelet(&mut self) {
        let (stop, running) = self.kubelet.take().unwrap();
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), running)
            .await
            .expect("the kubelet stops")
            .unwrap()
            .unwrap();
    }

    /// Serves the plugin and registers it; the token ends it.
    async fn plug(&mut self) -> CancellationToken {
        let directory = self.path("kubelet/device-plugins");
        until("kubelet.sock", || async {
            directory.join("kubelet.sock").exists().then_some(())
        })
        .await;
        let socket = directory.join("share.sock");
        let _ = std::fs::remove_file(&socket);
        let end = CancellationToken::new();
        let listener = UnixListener::bind(&socket).unwrap();
        let plugin = Plugin {
            script: self.script.clone(),
            devices: self.devices.subscribe(),
            checkpoint: directory.join("kubelet_internal_checkpoint"),
            cdi: self.path("cdi"),
            end: end.clone(),
        };
        let stop = end.clone();
        self.tasks.spawn(async move {
            let server = Server::builder()
                .add_service(DevicePluginServer::new(plugin))
                .serve_with_incoming(UnixListenerStream::new(listener));
            tokio::select! {
                outcome = server => outcome.unwrap(),
                () = stop.cancelled() => {}
            }
        });
        self.register(SHARE, "v1beta1").await.unwrap();
        end
    }

    async fn register(&self, resource: &str, version: &str) -> Result<(), Status> {
        let url = format!(
            "unix://{}",
            self.path("kubelet/device-plugins/kubelet.sock").display()
        );
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        RegistrationClient::new(channel)
            .register(RegisterRequest {
                version: version.into(),
                endpoint: "share.sock".into(),
                resource_name: resource.into(),
                options: None,
            })
            .await
            .map(|_| ())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn allocatable(&self, resource: &str, expected: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (nodes, what) = (&nodes, format!("{resource} = {expected}"));
        until(&what, || async {
            let status = nodes.get_opt("n1").await.unwrap()?.status?;
            (status.allocatable?.get(resource)?.0 == expected).then_some(())
        })
        .await;
    }

    /// Creates a pod that is bound from the start.
    async fn run(&self, pod: Value) -> Pod {
        let mut pod = pod;
        pod["spec"]["nodeName"] = json!("n1");
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    async fn until_pod(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let pods = self.pods();
        let (pods, is) = (&pods, &is);
        until(&format!("{name} {what}"), || async {
            let pod = pods.get_opt(name).await.unwrap()?;
            let status = serde_json::to_value(pod.status.unwrap_or_default()).unwrap();
            is(&status).then_some(status)
        })
        .await
    }

    fn calls(&self) -> Vec<Call> {
        self.script.lock().unwrap().calls.clone()
    }

    fn log_of_the_only_container(&self) -> String {
        self.runtime.log(&self.runtime.running()[0].id).unwrap()
    }

    async fn end(mut self) {
        self.halt_kubelet().await;
        self.runtime.shut_down().await;
        self.stop.cancel();
        self.tasks.shutdown().await;
    }
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut probe: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "never saw: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn share_pod(name: &str, amount: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [
        {"name": "main", "image": "i", "env": [{"name": "FROM_PLUGIN", "value": "pod"}, {"name": "MINE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
         "resources": {"limits": {SHARE: amount.to_string()}}}]}})
}

const WAIT: &str = "echo \"$ALLOC $FROM_PLUGIN $MINE $NVIDIA_VISIBLE_DEVICES\"; exec sleep 1000";

fn phase(wanted: &'static str) -> impl Fn(&Value) -> bool {
    move |status| status["phase"] == wanted
}

#[tokio::test]
async fn a_pod_is_allocated_checkpointed_prepared_and_started_in_this_order() {
    let mut cluster = Cluster::start(WAIT).await;
    cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    cluster.run(share_pod("p", 1)).await;
    let status = cluster.until_pod("p", "runs", phase("Running")).await;
    let ids = vec!["b".to_owned()];
    assert_eq!(
        cluster.calls(),
        [
            Call::Preferred {
                available: vec!["a".into(), "b".into()],
                must: vec![],
                size: 1
            },
            Call::Allocate(ids.clone()),
            Call::PreStart(ids),
        ]
    );
    assert_eq!(cluster.script.lock().unwrap().checkpointed, [true]);
    assert_eq!(status["containerStatuses"][0]["ready"], true);
    assert_eq!(
        status["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0]["resourceID"],
        "b"
    );
    until("the log", || async {
        cluster
            .log_of_the_only_container()
            .contains('\n')
            .then_some(())
    })
    .await;
    assert_eq!(cluster.log_of_the_only_container(), "1 cdi p void\n");

    cluster
        .pods()
        .delete("p", &DeleteParams::default().grace_period(1))
        .await
        .unwrap();
    until("p is gone", || async {
        cluster
            .pods()
            .get_opt("p")
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    assert!(cluster.runtime.running().is_empty());
    cluster.end().await;
}

#[tokio::test]
async fn a_refused_pre_start_is_readable_and_tried_again_without_a_second_allocate() {
    let mut cluster = Cluster::start(WAIT).await;
    cluster.script.lock().unwrap().pre_start_errors = vec!["pod has no grant", "still none"];
    cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    cluster.run(share_pod("p", 1)).await;
    let waiting = |status: &Value| {
        status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    };
    let status = cluster.until_pod("p", "waits", waiting).await;
    assert_eq!(
        status["containerStatuses"][0]["state"]["waiting"]["message"],
        "device plugin PreStartContainer rpc failed with err: rpc error: code = FailedPrecondition desc = pod has no grant"
    );
    assert_eq!(status["phase"], "Pending");
    cluster.until_pod("p", "runs", phase("Running")).await;
    let calls = cluster.calls();
    assert_eq!(
        calls
            .iter()
            .filter(|call| matches!(call, Call::Allocate(_)))
            .count(),
        1
    );
    assert_eq!(
        calls
            .iter()
            .filter(|call| matches!(call, Call::PreStart(_)))
            .count(),
        3
    );
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let events = events
        .list(&ListParams::default().fields("involvedObject.name=p"))
        .await
        .unwrap();
    assert!(events.items.iter().any(|event| {
        event
            .message
            .as_deref()
            .unwrap()
            .contains("pod has no grant")
    }));
    cluster.end().await;
}

#[tokio::test]
async fn a_failed_allocate_and_a_lack_of_devices_are_final() {
    let mut cluster = Cluster::start(WAIT).await;
    cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    cluster.run(share_pod("many", 3)).await;
    let status = cluster.until_pod("many", "fails", phase("Failed")).await;
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    assert_eq!(
        status["message"],
        format!(
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for {SHARE}. Requested: 3, Available: 2, which is unexpected"
        )
    );
    cluster.script.lock().unwrap().allocate_error = Some("no room");
    cluster.run(share_pod("refused", 1)).await;
    let status = cluster.until_pod("refused", "fails", phase("Failed")).await;
    assert_eq!(
        status["message"],
        "Pod was rejected: Allocate failed due to rpc error: code = Internal desc = no room, which is unexpected"
    );
    // What a refused pod had reserved is free again.
    cluster.script.lock().unwrap().allocate_error = None;
    cluster.run(share_pod("both", 2)).await;
    cluster.until_pod("both", "runs", phase("Running")).await;
    cluster.end().await;
}

#[tokio::test]
async fn an_app_container_is_allocated_the_ids_of_its_init_container_again() {
    let mut cluster = Cluster::start("case $ALLOC in 1) exit 0;; esac; exec sleep 1000").await;
    cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    let mut pod = share_pod("p", 1);
    pod["spec"]["initContainers"] =
        json!([{"name": "init", "image": "i", "resources": {"limits": {SHARE: "1"}}}]);
    cluster.run(pod).await;
    cluster.until_pod("p", "runs", phase("Running")).await;
    let ids = vec!["b".to_owned()];
    let calls = cluster.calls();
    assert_eq!(
        calls[1..],
        [
            Call::Allocate(ids.clone()),
            Call::Allocate(ids.clone()),
            Call::PreStart(ids.clone()),
            Call::PreStart(ids)
        ]
    );
    // PodResources shows the app container alone.
    let url = format!(
        "unix://{}",
        cluster.path("kubelet/pod-resources/kubelet.sock").display()
    );
    let mut resources =
        PodResourcesListerClient::new(Endpoint::from_shared(url).unwrap().connect().await.unwrap());
    let list = resources
        .list(ListPodResourcesRequest {})
        .await
        .unwrap()
        .into_inner()
        .pod_resources;
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].containers.len(), 1);
    assert_eq!(list[0].containers[0].devices[0].device_ids, ["b"]);
    let asked = GetPodResourcesRequest {
        pod_name: "p".into(),
        pod_namespace: "default".into(),
    };
    let one = resources
        .get(asked)
        .await
        .unwrap()
        .into_inner()
        .pod_resources
        .unwrap();
    assert_eq!(one, list[0]);
    let healthy = resources
        .get_allocatable_resources(AllocatableResourcesRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(healthy.devices.len(), 2);
    assert!(
        resources
            .get(GetPodResourcesRequest {
                pod_name: "none".into(),
                pod_namespace: "default".into()
            })
            .await
            .is_err()
    );
    cluster.end().await;
}

#[tokio::test]
async fn a_plugin_that_goes_takes_allocatable_along_and_one_that_registers_brings_it_back() {
    let mut cluster = Cluster::start(WAIT).await;
    let first = cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    cluster.devices.send_replace(vec![device("a", "Healthy")]);
    cluster.allocatable(SHARE, "1").await;
    first.cancel();
    cluster.allocatable(SHARE, "0").await;
    let node: Node = Api::all(cluster.client.clone()).get("n1").await.unwrap();
    assert_eq!(
        node.status.unwrap().capacity.unwrap()[SHARE].0,
        "1",
        "capacity stays for a while"
    );
    cluster.plug().await;
    cluster.allocatable(SHARE, "1").await;
    assert!(
        cluster
            .register(SHARE, "v1alpha1")
            .await
            .unwrap_err()
            .message()
            .contains("not supported")
    );
    assert!(cluster.register("no-domain", "v1beta1").await.is_err());
    cluster.end().await;
}

#[tokio::test]
async fn a_restarted_kubelet_keeps_running_containers_and_what_they_hold() {
    let mut cluster = Cluster::start(WAIT).await;
    let first = cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    cluster.run(share_pod("p", 1)).await;
    cluster.until_pod("p", "runs", phase("Running")).await;
    let before = cluster.runtime.running();
    cluster.halt_kubelet().await;
    first.cancel();
    cluster.boot();
    until("the plugin's socket is swept away", || async {
        (!cluster.path("kubelet/device-plugins/share.sock").exists()).then_some(())
    })
    .await;
    cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    assert_eq!(cluster.runtime.running(), before);
    cluster.run(share_pod("q", 1)).await;
    cluster.until_pod("q", "runs", phase("Running")).await;
    let allocated: Vec<_> = cluster
        .calls()
        .into_iter()
        .filter(|call| matches!(call, Call::Allocate(_)))
        .collect();
    assert_eq!(
        allocated,
        [
            Call::Allocate(vec!["b".into()]),
            Call::Allocate(vec!["a".into()])
        ]
    );
    cluster
        .pods()
        .delete("p", &DeleteParams::default().grace_period(1))
        .await
        .unwrap();
    until("p is gone", || async {
        cluster
            .pods()
            .get_opt("p")
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    cluster.end().await;
}

#[tokio::test]
async fn an_opaque_amount_on_the_node_survives_and_is_what_admission_counts() {
    let mut cluster = Cluster::start(WAIT).await;
    cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let amount =
        Patch::Merge(json!({"status": {"capacity": {"aliquot.dev/gpu-memory-mib": "3000"}}}));
    nodes
        .patch_status("n1", &PatchParams::default(), &amount)
        .await
        .unwrap();
    cluster
        .allocatable("aliquot.dev/gpu-memory-mib", "3000")
        .await;
    let asking = |name: &str, mib: u32| {
        let mut pod = share_pod(name, 1);
        pod["spec"]["containers"][0]["resources"]["limits"]["aliquot.dev/gpu-memory-mib"] =
            json!(mib.to_string());
        pod
    };
    cluster.run(asking("fits", 2000)).await;
    cluster.until_pod("fits", "runs", phase("Running")).await;
    cluster.run(asking("over", 1001)).await;
    let status = cluster.until_pod("over", "fails", phase("Failed")).await;
    assert_eq!(status["reason"], "OutOfaliquot.dev/gpu-memory-mib");
    cluster.end().await;
}

#[tokio::test]
async fn a_pod_that_ends_says_how_and_what_it_held_is_free() {
    let mut cluster = Cluster::start("exit ${CODE:-0}").await;
    cluster.plug().await;
    cluster.allocatable(SHARE, "2").await;
    cluster.run(share_pod("good", 2)).await;
    let status = cluster.until_pod("good", "ends", phase("Succeeded")).await;
    assert_eq!(
        status["containerStatuses"][0]["state"]["terminated"]["reason"],
        "Completed"
    );
    let mut bad = share_pod("bad", 2);
    bad["spec"]["containers"][0]["env"] = json!([{"name": "CODE", "value": "3"}]);
    cluster.run(bad).await;
    let status = cluster.until_pod("bad", "ends", phase("Failed")).await;
    assert_eq!(
        status["containerStatuses"][0]["state"]["terminated"]["exitCode"],
        3
    );
    let gone = cluster
        .pods()
        .delete("bad", &DeleteParams::default())
        .await
        .unwrap();
    assert!(gone.left().is_some_and(|pod| pod.name_any() == "bad"));
    assert!(
        Path::new(&cluster.path("c"))
            .read_dir()
            .unwrap()
            .next()
            .is_none(),
        "nothing is left on disk"
    );
    cluster.end().await;
}
