//! Through the simulated API server, which really calls the webhook over TLS.

use super::*;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config};
use std::time::Duration;

struct Site {
    client: kube::Client,
    _stop: tokio_util::sync::DropGuard,
}

impl Site {
    async fn start() -> Self {
        let server = ApiServer::bind(Config::default()).await.unwrap();
        let client = kube::Client::try_from(server.handle().config()).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        Self::on(client, stop).await
    }

    async fn on(client: kube::Client, stop: CancellationToken) -> Self {
        let reached = ["127.0.0.1".to_owned()];
        let trust = crate::trust::establish(&client, "default", &reached)
            .await
            .unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let settings = Settings {
            reach: Reach::Url(url),
            namespace: "aliquot-system".into(),
            scheduler_name: "kai-scheduler".into(),
            exempt_namespaces: vec!["kube-public".into()],
        };
        tokio::spawn(run(
            crate::serve::Endpoint::Port(listener),
            settings,
            Rules {
                limits: Limits::default(),
                queues: watch::channel(QueueTree::default()).1,
                over_subscription: OverSubscription::None,
                bursts: Bursts::ANY,
                core: Core {
                    own: None,
                    leases: Api::default_namespaced(client.clone()),
                    lease: "none".to_owned(),
                    server_name: "127.0.0.1".to_owned(),
                },
            },
            trust.certificates().clone(),
            client.clone(),
            watch::Sender::new(false),
            stop.clone(),
        ));
        let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let configured = async {
            while api.get_opt("aliquot").await.unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), configured)
            .await
            .expect("configured");
        Self {
            client,
            _stop: stop.drop_guard(),
        }
    }

    async fn create(
        &self,
        namespace: &str,
        scheduler: &str,
        annotations: Value,
    ) -> kube::Result<Value> {
        let pod = json!({
            "metadata": {"generateName": "p-", "annotations": annotations},
            "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "i"}]},
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = serde_json::from_value(pod).unwrap();
        let made = api.create(&PostParams::default(), &pod).await?;
        let spec = serde_json::to_value(made.spec).unwrap();
        Ok(spec["containers"][0]["resources"]["limits"].clone())
    }
}

#[tokio::test]
async fn a_share_of_ours_is_amended_and_pods_of_others_are_not_seen() {
    let site = Site::start().await;
    let share = || json!({"gpu-memory": "2000"});
    let ours = site
        .create("default", "kai-scheduler", share())
        .await
        .unwrap();
    assert_eq!(
        ours,
        json!({"aliquot.dev/gpu-share": "1", "aliquot.dev/gpu-memory-mib": "2000"})
    );
    for (namespace, scheduler) in [
        ("default", "default-scheduler"),
        ("kube-system", "kai-scheduler"),
        ("kube-public", "kai-scheduler"),
    ] {
        let others = site.create(namespace, scheduler, share()).await.unwrap();
        assert_eq!(others, Value::Null, "{namespace} {scheduler}");
    }
}

#[tokio::test]
async fn a_contradiction_is_refused_with_its_sentence() {
    let site = Site::start().await;
    let both = json!({"gpu-memory": "2000", "gpu-fraction": "0.5"});
    let refused = site
        .create("default", "kai-scheduler", both)
        .await
        .unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("cannot request both GPU and GPU memory"),
        "{refused}"
    );
}

/// The main runtime has one thread here, and a decision that does not end keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_takes_long_holds_up_no_pod() {
    let server = ApiServer::bind(Config::default()).await.unwrap();
    let config = server.handle().config();
    let client = kube::Client::try_from(config.clone()).unwrap();
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    tokio::spawn(server.serve(stop.clone()));
    let (up, configured) = tokio::sync::oneshot::channel();
    let (over, decided) = std::sync::mpsc::channel::<()>();
    let scheduler = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = kube::Client::try_from(config).unwrap();
            let site = Site::on(client, stop.child_token()).await;
            up.send(()).unwrap();
            // The decision.
            decided.recv().unwrap();
            drop(site);
        });
    });
    configured.await.unwrap();
    let site = Site {
        client,
        _stop: CancellationToken::new().drop_guard(),
    };
    let share = json!({"gpu-memory": "2000"});
    let made = site.create("default", "kai-scheduler", share).await;
    over.send(()).unwrap();
    assert_eq!(made.unwrap()["aliquot.dev/gpu-share"], "1");
    scheduler.join().unwrap();
}
