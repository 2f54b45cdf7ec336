//! Admission webhooks are really called, over HTTPS.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use axum::Json;
use axum::routing::post;
use axum_server::tls_rustls::RustlsConfig;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A webhook that marks pods, and refuses those that are marked as bad.
async fn review(Json(review): Json<Value>) -> Json<Value> {
    let request = &review["request"];
    assert_eq!(request["operation"], "CREATE");
    let uid = &request["uid"];
    let bad = request["object"]["metadata"]["annotations"]["bad"].is_string();
    let response = if bad {
        json!({"uid": uid, "allowed": false, "status": {"message": "this is bad"}})
    } else {
        let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"by": request["userInfo"]["username"]}},
            {"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"aliquot.dev/gpu-share": "1"}}]);
        json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())})
    };
    Json(
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}),
    )
}

struct Cluster {
    client: Client,
    address: SocketAddr,
    ca: String,
    tasks: JoinSet<()>,
}

impl Cluster {
    async fn start() -> Self {
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let ca = key.cert.pem();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![key.cert.der().clone()],
                rustls::pki_types::PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into()),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let app = axum::Router::new().route("/mutate", post(review));
        let serving =
            axum_server::from_tcp_rustls(listener, RustlsConfig::from_config(Arc::new(tls)))
                .unwrap()
                .serve(app.into_make_service());
        tasks.spawn(async move { serving.await.unwrap() });
        let server = ApiServer::bind(Config::default()).await.unwrap();
        let client = Client::try_from(server.handle().config()).unwrap();
        let serving = server.serve(CancellationToken::new());
        tasks.spawn(async move { serving.await.unwrap() });
        Self {
            client,
            address,
            ca,
            tasks,
        }
    }

    async fn configure(&self, ca: &str, failure_policy: &str) {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let configuration = json!({
            "metadata": {"name": "aliquot"},
            "webhooks": [{
                "name": "pods.aliquot.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": failure_policy, "timeoutSeconds": 5,
                "clientConfig": {"url": format!("https://{}/mutate", self.address), "caBundle": STANDARD.encode(ca)},
                "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
                "namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]},
                "matchConditions": [{"name": "ours", "expression": "object.spec.schedulerName == 'kai-scheduler'"}],
            }],
        });
        let _ = api.delete("aliquot", &DeleteParams::default()).await;
        let configuration = serde_json::from_value(configuration).unwrap();
        api.create(&PostParams::default(), &configuration)
            .await
            .unwrap();
    }

    async fn create(
        &self,
        namespace: &str,
        name: &str,
        scheduler: &str,
        annotations: Value,
    ) -> kube::Result<Pod> {
        let pod = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "i"}]}});
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        api.create(
            &PostParams::default(),
            &serde_json::from_value(pod).unwrap(),
        )
        .await
    }
}

#[tokio::test]
async fn a_pod_of_ours_is_changed_and_one_of_others_is_not_sent() {
    let cluster = Cluster::start().await;
    cluster.configure(&cluster.ca, "Fail").await;
    let pod = cluster
        .create("default", "a", "kai-scheduler", json!({}))
        .await
        .unwrap();
    assert_eq!(pod.annotations()["by"], "kubernetes-admin");
    let resources = pod.spec.unwrap().containers.remove(0).resources.unwrap();
    assert_eq!(
        resources.requests, resources.limits,
        "requests follow what the webhook added"
    );
    for (namespace, name, scheduler) in [
        ("default", "b", "default-scheduler"),
        ("kube-system", "c", "kai-scheduler"),
    ] {
        let pod = cluster
            .create(namespace, name, scheduler, json!({}))
            .await
            .unwrap();
        assert!(!pod.annotations().contains_key("by"), "{name}");
    }
    drop(cluster.tasks);
}

#[tokio::test]
async fn a_refusal_is_the_users_to_read() {
    let cluster = Cluster::start().await;
    cluster.configure(&cluster.ca, "Fail").await;
    let error = cluster
        .create("default", "a", "kai-scheduler", json!({"bad": "yes"}))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error:?}")
    };
    assert_eq!(status.code, 403);
    assert_eq!(
        status.message,
        "admission webhook \"pods.aliquot.dev\" denied the request: this is bad"
    );
    drop(cluster.tasks);
}

#[tokio::test]
async fn a_webhook_that_cannot_be_trusted_fails_or_is_ignored_as_configured() {
    let cluster = Cluster::start().await;
    let stranger = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])
        .unwrap()
        .cert
        .pem();
    cluster.configure(&stranger, "Fail").await;
    let error = cluster
        .create("default", "a", "kai-scheduler", json!({}))
        .await
        .unwrap_err();
    let kube::Error::Api(status) = error else {
        panic!("{error:?}")
    };
    assert!(
        status
            .message
            .starts_with("Internal error occurred: failed calling webhook \"pods.aliquot.dev\""),
        "{}",
        status.message
    );
    cluster.configure(&stranger, "Ignore").await;
    let pod = cluster
        .create("default", "a", "kai-scheduler", json!({}))
        .await
        .unwrap();
    assert!(!pod.annotations().contains_key("by"));
    drop(cluster.tasks);
}
