//! The API server as a real client sees it.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod objects;
mod token;
mod watch;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::core::v1::{Binding, Event, Namespace, Node, Pod, Secret, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
    WatchEvent, WatchParams,
};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config, Fault, Handle};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Cluster {
    client: Client,
    handle: Handle,
    stop: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::bind(Config {
            bookmark_every: Duration::from_millis(50),
            ..Config::default()
        })
        .await
        .unwrap();
        let handle = server.handle();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve(stop.clone()));
        let mut config = handle.config();
        config.default_retry = false;
        Self {
            client: Client::try_from(config).unwrap(),
            handle,
            stop,
            serving,
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn end(self) {
        drop(self.client);
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(5), self.serving)
            .await
            .expect("the server stops when told")
            .unwrap()
            .unwrap();
    }

    /// `POST <path>` as it is.
    async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> kube::Result<T> {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(body.to_string().into_bytes())
            .unwrap();
        self.client.request(request).await
    }

    async fn bind(&self, pod: &str, uid: &str, node: &str) -> kube::Result<Value> {
        let binding = json!({
            "metadata": {"name": pod, "uid": uid, "annotations": {"aliquot.dev/grant": "g"}, "labels": {"runai-gpu-group": "x"}},
            "target": {"kind": "Node", "name": node},
        });
        self.post(
            &format!("/api/v1/namespaces/default/pods/{pod}/binding"),
            &binding,
        )
        .await
    }
}

fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(name: &str) -> Pod {
    from(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"schedulerName": "kai-scheduler", "containers": [
            {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }))
}

fn code(result: kube::Result<impl std::fmt::Debug>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("expected a refusal, found {other:?}"),
    }
}
