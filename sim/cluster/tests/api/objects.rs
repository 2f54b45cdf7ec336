//! Claims about single objects: their life cycle, their fields, and which clients may write what.

use super::*;

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
