//! The API server as a real client sees it.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

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

#[tokio::test]
async fn an_object_lives_from_create_to_delete_with_the_servers_own_fields() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    let made = pods
        .create(&PostParams::default(), &pod("a"))
        .await
        .unwrap();
    assert_eq!(made.uid().unwrap().len(), 36);
    assert!(made.creation_timestamp().is_some());
    assert_eq!(
        made.status.as_ref().unwrap().phase.as_deref(),
        Some("Pending")
    );
    let spec = made.spec.as_ref().unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    let resources = spec.containers[0].resources.as_ref().unwrap();
    assert_eq!(resources.requests, resources.limits);

    assert_eq!(
        code(pods.create(&PostParams::default(), &pod("a")).await),
        409
    );
    let elsewhere: Api<Pod> = Api::namespaced(cluster.client.clone(), "nowhere");
    assert_eq!(
        code(elsewhere.create(&PostParams::default(), &pod("a")).await),
        404
    );
    assert_eq!(
        code(
            pods.create(&PostParams::default(), &pod("Not_A_Name"))
                .await
        ),
        422
    );

    let mut generated = pod("x");
    generated.metadata.name = None;
    generated.metadata.generate_name = Some("gen-".into());
    let generated = pods
        .create(&PostParams::default(), &generated)
        .await
        .unwrap();
    assert!(generated.name_any().starts_with("gen-") && generated.name_any().len() == 9);

    pods.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(pods.get("a").await), 404);
    cluster.end().await;
}

#[tokio::test]
async fn a_stale_write_is_a_conflict_and_the_main_path_leaves_status_alone() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    let first = pods
        .create(&PostParams::default(), &pod("a"))
        .await
        .unwrap();
    let merge = |body: Value| Patch::Merge(body);
    let patched = pods
        .patch(
            "a",
            &PatchParams::default(),
            &merge(json!({"metadata": {"annotations": {"k": "v"}}, "status": {"phase": "Failed"}})),
        )
        .await
        .unwrap();
    assert_eq!(patched.annotations()["k"], "v");
    assert_eq!(patched.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(
        code(pods.replace("a", &PostParams::default(), &first).await),
        409
    );

    let by_status = pods
        .patch_status(
            "a",
            &PatchParams::default(),
            &merge(json!({"status": {"phase": "Running"}, "spec": {"nodeName": "n"}})),
        )
        .await
        .unwrap();
    assert_eq!(by_status.status.unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(by_status.spec.unwrap().node_name, None);
    let spec_change = pods
        .patch(
            "a",
            &PatchParams::default(),
            &merge(json!({"spec": {"nodeName": "n"}})),
        )
        .await;
    assert_eq!(code(spec_change), 422);
    let other_uid = pods
        .patch(
            "a",
            &PatchParams::default(),
            &merge(json!({"metadata": {"uid": "another"}})),
        )
        .await;
    assert_eq!(code(other_uid), 409);
    cluster.end().await;
}

#[tokio::test]
async fn a_binding_writes_node_annotations_and_labels_at_once_and_only_once() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    let uid = pods
        .create(&PostParams::default(), &pod("a"))
        .await
        .unwrap()
        .uid()
        .unwrap();
    assert_eq!(code(cluster.bind("a", "some-other-uid", "n1").await), 409);
    assert_eq!(code(cluster.bind("missing", "", "n1").await), 404);

    cluster.bind("a", &uid, "n1").await.unwrap();
    let bound = pods.get("a").await.unwrap();
    assert_eq!(
        bound.spec.as_ref().unwrap().node_name.as_deref(),
        Some("n1")
    );
    assert_eq!(bound.annotations()["aliquot.dev/grant"], "g");
    assert_eq!(bound.labels()["runai-gpu-group"], "x");
    let conditions = bound.status.unwrap().conditions.unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one.type_ == "PodScheduled" && one.status == "True")
    );
    assert_eq!(code(cluster.bind("a", &uid, "n1").await), 409);

    // Bound and not over: a deletion waits for the kubelet, and its second step is final.
    let second = pods
        .create(&PostParams::default(), &pod("b"))
        .await
        .unwrap();
    cluster
        .bind("b", &second.uid().unwrap(), "n1")
        .await
        .unwrap();
    pods.delete("b", &DeleteParams::default()).await.unwrap();
    assert!(
        pods.get("b")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    pods.delete("b", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(code(pods.get("b").await), 404);
    cluster.end().await;
}

#[tokio::test]
async fn an_answer_that_is_lost_has_still_bound_the_pod() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    let uid = pods
        .create(&PostParams::default(), &pod("a"))
        .await
        .unwrap()
        .uid()
        .unwrap();
    cluster.handle.plan("POST", "/binding", Fault::LoseAnswer);
    let lost = cluster.bind("a", &uid, "n1").await.unwrap_err();
    assert!(!matches!(lost, kube::Error::Api(_)), "{lost:?}");
    assert_eq!(
        pods.get("a")
            .await
            .unwrap()
            .spec
            .unwrap()
            .node_name
            .as_deref(),
        Some("n1")
    );
    cluster
        .handle
        .plan("GET", "/pods/a", Fault::TooManyRequests);
    assert_eq!(code(pods.get("a").await), 429);
    assert!(pods.get("a").await.is_ok());
    cluster.end().await;
}

/// The next event that is no bookmark.
async fn next<T: std::fmt::Debug>(
    stream: &mut (impl futures::Stream<Item = kube::Result<WatchEvent<T>>> + Unpin),
) -> WatchEvent<T> {
    tokio::time::timeout(Duration::from_secs(5), async {
        loop {
            match stream.next().await.expect("the watch goes on").unwrap() {
                WatchEvent::Bookmark(_) => {}
                event => return event,
            }
        }
    })
    .await
    .expect("an event in time")
}

#[tokio::test]
async fn a_watch_tells_what_enters_and_leaves_its_selector() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    let start = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    let params = WatchParams::default().fields("spec.nodeName=n1");
    let mut bound = Box::pin(pods.watch(&params, &start).await.unwrap());
    let mut pending = Box::pin(
        pods.watch(&WatchParams::default().fields("spec.nodeName="), &start)
            .await
            .unwrap(),
    );

    let uid = pods
        .create(&PostParams::default(), &pod("a"))
        .await
        .unwrap()
        .uid()
        .unwrap();
    assert!(matches!(next(&mut pending).await, WatchEvent::Added(_)));
    cluster.bind("a", &uid, "n1").await.unwrap();
    assert!(matches!(next(&mut pending).await, WatchEvent::Deleted(_)));
    assert!(matches!(next(&mut bound).await, WatchEvent::Added(_)));
    pods.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(matches!(next(&mut bound).await, WatchEvent::Modified(_)));
    pods.delete("a", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(matches!(next(&mut bound).await, WatchEvent::Deleted(_)));

    // A resource version from before the compaction is 410, on old watches and new ones.
    cluster.handle.expire_watches();
    match next(&mut bound).await {
        WatchEvent::Error(status) => assert_eq!(status.code, 410),
        other => panic!("{other:?}"),
    }
    let mut stale = Box::pin(pods.watch(&params, &start).await.unwrap());
    assert!(matches!(next(&mut stale).await, WatchEvent::Error(status) if status.code == 410));
    drop((bound, pending, stale));
    cluster.end().await;
}

#[tokio::test]
async fn kubes_own_watcher_survives_an_expired_watch_in_both_list_strategies() {
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
    ] {
        let cluster = Cluster::start().await;
        let pods = cluster.pods();
        pods.create(&PostParams::default(), &pod("a"))
            .await
            .unwrap();
        let mut events = Box::pin(watcher(pods.clone(), config));
        let mut inits = 0;
        let mut expired = false;
        tokio::time::timeout(Duration::from_secs(20), async {
            while inits < 2 {
                match events.next().await.unwrap() {
                    Ok(watcher::Event::InitDone) => {
                        inits += 1;
                        if !expired {
                            expired = true;
                            cluster.handle.expire_watches();
                        }
                    }
                    Ok(watcher::Event::InitApply(found) | watcher::Event::Apply(found)) => {
                        assert_eq!(found.name_any(), "a");
                    }
                    Ok(_) => {}
                    Err(watcher::Error::WatchError(status)) => assert_eq!(status.code, 410),
                    Err(other) => panic!("{other:?}"),
                }
            }
        })
        .await
        .unwrap();
        drop(events);
        cluster.end().await;
    }
}

#[tokio::test]
async fn patches_of_nodes_keep_what_others_wrote() {
    let cluster = Cluster::start().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node: Node = from(json!({"metadata": {"name": "n1"}, "status": {
        "capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}}));
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let escaped =
        json!([{"op": "add", "path": "/status/capacity/aliquot.dev~1gpu-milli", "value": "2000"}]);
    let operations: Patch<()> = Patch::Json(from(escaped));
    nodes
        .patch_status("n1", &PatchParams::default(), &operations)
        .await
        .unwrap();
    let strategic = Patch::Strategic(
        json!({"status": {"capacity": {"cpu": "8"}, "conditions": [{"type": "Other", "status": "False"}]}}),
    );
    let node = nodes
        .patch_status("n1", &PatchParams::default(), &strategic)
        .await
        .unwrap();
    let status = node.status.unwrap();
    let capacity = status.capacity.unwrap();
    assert_eq!(capacity["aliquot.dev/gpu-milli"].0, "2000");
    assert_eq!(capacity["cpu"].0, "8");
    assert_eq!(status.conditions.unwrap().len(), 2);
    cluster.end().await;
}

#[tokio::test]
async fn a_definition_brings_its_resource_and_apply_creates_and_takes_back() {
    let cluster = Cluster::start().await;
    let kind = GroupVersionKind::gvk("example.dev", "v1", "Thing");
    let things: Api<DynamicObject> =
        Api::all_with(cluster.client.clone(), &ApiResource::from_gvk(&kind));
    assert_eq!(code(things.list(&ListParams::default()).await), 404);
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let definition: CustomResourceDefinition = from(json!({
        "metadata": {"name": "things.example.dev"},
        "spec": {"group": "example.dev", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}}]},
    }));
    let apply = PatchParams::apply("me");
    let made = definitions
        .patch("things.example.dev", &apply, &Patch::Apply(&definition))
        .await
        .unwrap();
    assert!(
        made.status
            .unwrap()
            .conditions
            .unwrap()
            .iter()
            .any(|one| one.type_ == "Established")
    );

    let thing = |spec: Value| {
        Patch::Apply(
            json!({"apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": spec}),
        )
    };
    things
        .patch("t", &apply, &thing(json!({"a": 1, "b": [1]})))
        .await
        .unwrap();
    let changed = things
        .patch("t", &apply, &thing(json!({"b": [2]})))
        .await
        .unwrap();
    assert_eq!(changed.data["spec"], json!({"b": [2]}));
    assert_eq!(changed.metadata.generation, Some(2));
    let status = Patch::Merge(
        json!({"metadata": {"labels": {"no": "no"}}, "spec": {"b": []}, "status": {"ok": true}}),
    );
    let told = things
        .patch_status("t", &PatchParams::default(), &status)
        .await
        .unwrap();
    assert_eq!(told.data["status"], json!({"ok": true}));
    assert_eq!(told.data["spec"], json!({"b": [2]}));
    assert!(told.metadata.labels.is_none());
    let discovery = kube::discovery::group(&cluster.client, "example.dev")
        .await
        .unwrap();
    assert_eq!(
        discovery.recommended_kind("Thing").unwrap().0.plural,
        "things"
    );
    cluster.end().await;
}

#[tokio::test]
async fn a_token_is_good_for_its_audience_and_names_its_node() {
    let cluster = Cluster::start().await;
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "default");
    let request: TokenRequest = from(json!({"metadata": {}, "spec": {"audiences": ["ours"],
        "boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": "n1"}}}));
    assert_eq!(
        code(
            accounts
                .create_token_request("agent", &PostParams::default(), &request)
                .await
        ),
        404
    );
    let account: ServiceAccount = from(json!({"metadata": {"name": "agent"}}));
    accounts
        .create(&PostParams::default(), &account)
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes
        .create(
            &PostParams::default(),
            &from(json!({"metadata": {"name": "n1"}})),
        )
        .await
        .unwrap();
    let token = accounts
        .create_token_request("agent", &PostParams::default(), &request)
        .await
        .unwrap();
    let token = token.status.unwrap().token.unwrap();

    let reviews: Api<TokenReview> = Api::all(cluster.client.clone());
    let review = |token: &str, audience: &str| -> TokenReview {
        from(json!({"metadata": {}, "spec": {"token": token, "audiences": [audience]}}))
    };
    let good = reviews
        .create(&PostParams::default(), &review(&token, "ours"))
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(good.authenticated, Some(true));
    assert_eq!(good.audiences.unwrap(), ["ours"]);
    let user = good.user.unwrap();
    assert_eq!(
        user.username.as_deref(),
        Some("system:serviceaccount:default:agent")
    );
    assert_eq!(
        user.extra.unwrap()["authentication.kubernetes.io/node-name"],
        ["n1"]
    );
    for (token, audience) in [(token.as_str(), "theirs"), ("made-up", "ours")] {
        let bad = reviews
            .create(&PostParams::default(), &review(token, audience))
            .await
            .unwrap();
        assert_ne!(
            bad.status.unwrap().authenticated,
            Some(true),
            "{token} {audience}"
        );
    }
    cluster.end().await;
}

#[tokio::test]
async fn an_event_of_the_new_kind_is_seen_as_a_core_event() {
    let cluster = Cluster::start().await;
    let events: Api<k8s_openapi::api::events::v1::Event> =
        Api::namespaced(cluster.client.clone(), "default");
    let event = from(
        json!({"metadata": {"generateName": "e-"}, "note": "hello", "reason": "r", "action": "a", "type": "Normal",
        "eventTime": "2030-01-01T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}}),
    );
    let made = events.create(&PostParams::default(), &event).await.unwrap();
    assert_eq!(made.note.as_deref(), Some("hello"));
    let core: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let list = core
        .list(&ListParams::default().fields("involvedObject.name=p"))
        .await
        .unwrap();
    assert_eq!(list.items[0].message.as_deref(), Some("hello"));
    cluster.end().await;
}

#[tokio::test]
async fn finalizers_and_preconditions_hold_a_deletion_back() {
    let cluster = Cluster::start().await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    let mut secret = Secret {
        metadata: ObjectMeta {
            name: Some("s".into()),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    };
    secret.metadata.finalizers = Some(vec!["ours/x".into()]);
    secrets
        .create(&PostParams::default(), &secret)
        .await
        .unwrap();
    let wrong = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: Some("x".into()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    assert_eq!(code(secrets.delete("s", &wrong).await), 409);
    secrets.delete("s", &DeleteParams::default()).await.unwrap();
    assert!(
        secrets
            .get("s")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    secrets
        .patch(
            "s",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"finalizers": null}})),
        )
        .await
        .unwrap();
    assert_eq!(code(secrets.get("s").await), 404);
    cluster.end().await;
}

#[tokio::test]
async fn a_namespace_takes_its_content_along_and_waits_for_running_pods() {
    let cluster = Cluster::start().await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces
        .create(
            &PostParams::default(),
            &from(json!({"metadata": {"name": "team"}})),
        )
        .await
        .unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "team");
    pods.create(&PostParams::default(), &pod("waiting"))
        .await
        .unwrap();
    pods.create(&PostParams::default(), &pod("running"))
        .await
        .unwrap();
    let binding: Binding = from(json!({"metadata": {"name": "running"}, "target": {"name": "n"}}));
    let _: Value = cluster
        .post(
            "/api/v1/namespaces/team/pods/running/binding",
            &serde_json::to_value(&binding).unwrap(),
        )
        .await
        .unwrap();
    namespaces
        .delete("team", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(code(pods.get("waiting").await), 404);
    assert_eq!(
        code(pods.create(&PostParams::default(), &pod("late")).await),
        403
    );
    pods.delete("running", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(code(namespaces.get("team").await), 404);
    cluster.end().await;
}

#[tokio::test]
async fn a_metadata_watch_sends_metadata_alone() {
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    pods.create(&PostParams::default(), &pod("a"))
        .await
        .unwrap();
    let found = pods
        .list_metadata(&ListParams::default().labels("app=a"))
        .await
        .unwrap();
    assert_eq!(found.items.len(), 1);
    let events = watcher(
        Api::<kube::core::PartialObjectMeta<Pod>>::namespaced(cluster.client.clone(), "default"),
        watcher::Config::default(),
    );
    let first = tokio::time::timeout(Duration::from_secs(5), async {
        let mut events = Box::pin(events);
        while let Some(event) = events.try_next().await.unwrap() {
            if let watcher::Event::InitApply(meta) = event {
                return meta.name_any();
            }
        }
        String::new()
    })
    .await
    .unwrap();
    assert_eq!(first, "a");
    cluster.end().await;
}
