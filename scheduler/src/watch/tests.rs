use super::*;
use crate::stored_pod::StoredPod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use kube::api::PostParams;
use serde_json::{Value, json};
use sim_cluster::api_server::{ApiServer, Config};
use std::time::Duration;

async fn until(facts: &mut channel::Receiver<Fact>, is: impl Fn(&Fact) -> bool) -> Fact {
    let found = async {
        loop {
            let fact = facts.recv().await.expect("facts");
            if is(&fact) {
                return fact;
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(10), found).await;
    found.expect("within ten seconds")
}

async fn make<K>(api: Api<K>, object: Value)
where
    K: Clone + Debug + DeserializeOwned + serde::Serialize,
{
    let object = serde_json::from_value(object).expect("an object");
    let made = api.create(&PostParams::default(), &object).await;
    made.expect("made");
}

#[tokio::test]
async fn a_changed_class_has_groups_told_again_and_pods_come_without_what_they_run() {
    let server = ApiServer::bind(Config::default()).await.expect("a port");
    let client = Client::try_from(server.handle().config()).expect("a client");
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    tokio::spawn(server.serve(stop.clone()));
    make(
        Api::<CustomResourceDefinition>::all(client.clone()),
        json!(PodGroup::crd()),
    )
    .await;
    let groups: Api<PodGroup> = Api::namespaced(client.clone(), "default");
    let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "g"}, "spec": {"priorityClassName": "high"}});
    make(groups, group).await;
    let (facts, mut told) = channel::unbounded();
    let relist = watch::channel(0).1;
    tokio::spawn(run(client.clone(), facts, |_| {}, None, relist, stop));
    let is_group = |fact: &Fact| matches!(fact, Fact::Group(Seen::There(_)));
    until(&mut told, is_group).await;
    let class = json!({"metadata": {"name": "high"}, "value": 125});
    make(Api::<PriorityClass>::all(client.clone()), class).await;
    until(&mut told, |fact| {
        matches!(fact, Fact::Class(Seen::There(_)))
    })
    .await;
    until(&mut told, is_group).await;

    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let container = json!({"name": "main", "image": "none", "env": [{"name": "SECRET", "value": "1"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [container]}});
    make(pods, pod).await;
    let seen = until(&mut told, |fact| matches!(fact, Fact::Pod(Seen::There(_)))).await;
    let Fact::Pod(Seen::There(pod)) = seen else {
        unreachable!("it was asked for");
    };
    assert_eq!(
        json!(pod.spec.expect("a spec").containers),
        json!([{"name": "main", "resources": {
            "limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}])
    );
}

#[tokio::test]
async fn pods_are_told_again_once_their_gpus_have_a_class() {
    let server = ApiServer::bind(Config::default()).await.expect("a port");
    let client = Client::try_from(server.handle().config()).expect("a client");
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    tokio::spawn(server.serve(stop.clone()));
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}});
    make(pods, pod).await;
    let (facts, mut told) = channel::unbounded();
    let relist = watch::channel(0).1;
    tokio::spawn(run(client.clone(), facts, |_| {}, None, relist, stop));
    let is_pod = |fact: &Fact| matches!(fact, Fact::Pod(Seen::There(_)));
    until(&mut told, is_pod).await;
    let classes: Api<DeviceClass> = Api::all(client);
    let class = |name: &str, of: &str| json!({"metadata": {"name": name}, "spec": {"extendedResourceName": of}});
    // The last one is not the first of its resource.
    let all = [
        ("other", "example.com/gpu", false),
        ("gpu", "nvidia.com/gpu", true),
        ("again", "nvidia.com/gpu", false),
    ];
    for (name, of, news) in all {
        make(classes.clone(), class(name, of)).await;
        until(&mut told, |fact| {
            matches!(fact, Fact::DeviceClass(Seen::There(class)) if class.name_any() == name)
        })
        .await;
        if news {
            until(&mut told, is_pod).await;
            continue;
        }
        let listed = until(&mut told, is_pod);
        let listed = tokio::time::timeout(Duration::from_secs(1), listed).await;
        assert!(listed.is_err(), "{name}");
    }
}

/// The pod ends between two watches, and the second list is broken off before it is complete.
#[tokio::test]
async fn what_went_while_there_was_no_watch_is_told_after_the_next_whole_list() {
    let pod = |uid: &str| {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        pod
    };
    let runs = std::sync::Mutex::new(vec![
        vec![Event::Init, Event::InitApply(pod("b")), Event::InitDone],
        vec![Event::Init],
        vec![
            Event::Init,
            Event::InitApply(pod("a")),
            Event::InitApply(pod("b")),
            Event::InitDone,
        ],
    ]);
    let events = || {
        let run = runs.lock().unwrap().pop().unwrap();
        let run = run.into_iter().map(Some).collect::<Vec<_>>();
        let endless = futures::stream::iter(run).chain(futures::stream::pending());
        endless.boxed()
    };
    let (facts, mut told) = channel::unbounded();
    let (again, relist) = watch::channel(0);
    let shown = |fact| match fact {
        Fact::Pod(Seen::Listing) => "listing".to_owned(),
        Fact::Pod(Seen::There(pod)) => format!("{} is there", pod.key()),
        Fact::Pod(Seen::Gone(uid)) => format!("{uid} is gone"),
        Fact::Pod(Seen::Listed) => "listed".to_owned(),
        other => panic!("{other:?}"),
    };
    let reading = async {
        let mut seen = Vec::new();
        for (facts, relist) in [(4, true), (1, true), (4, false)] {
            for _ in 0..facts {
                seen.push(shown(told.recv().await.unwrap()));
            }
            if relist {
                again.send_modify(|count| *count += 1);
            }
        }
        seen
    };
    let seen = tokio::select! {
        seen = reading => seen,
        () = follow_again(events, &facts, Fact::Pod, [], relist) => panic!("it ended"),
        () = tokio::time::sleep(Duration::from_secs(10)) => panic!("not told within ten seconds"),
    };
    assert_eq!(
        seen[4..],
        ["listing", "listing", "b is there", "a is gone", "listed"]
    );
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_not_there_and_hides_no_other() {
    let server = ApiServer::bind(Config::default()).await.expect("a port");
    let client = Client::try_from(server.handle().config()).expect("a client");
    let stop = CancellationToken::new();
    let _end = stop.clone().drop_guard();
    tokio::spawn(server.serve(stop.clone()));
    let kind = PodGroup::crd();
    make(
        Api::<CustomResourceDefinition>::all(client.clone()),
        json!(kind),
    )
    .await;
    let kind = kube::core::ApiResource::erase::<PodGroup>(&());
    let groups: Api<kube::core::DynamicObject> =
        Api::namespaced_with(client.clone(), "default", &kind);
    let group = |name: &str, spec: Value| {
        json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": name}, "spec": spec})
    };
    make(groups.clone(), group("absurd", Value::Null)).await;
    make(groups.clone(), group("fine", json!({}))).await;
    let (facts, mut told) = channel::unbounded();
    let (complaints, mut unreadable) = mpsc::channel(8);
    let relist = watch::channel(0).1;
    let complaints = Some(complaints);
    tokio::spawn(run(client.clone(), facts, |_| {}, complaints, relist, stop));
    let of_group = |fact: &Fact| matches!(fact, Fact::Group(_));
    let mut seen = Vec::new();
    while !matches!(seen.last(), Some(Fact::Group(Seen::Listed))) {
        seen.push(until(&mut told, of_group).await);
        // A failed listing is repeated without end.
        assert!(seen.len() < 4, "{seen:?}");
    }
    let named = |fact: &Fact| match fact {
        Fact::Group(Seen::There(group)) => Some(group.key()),
        _ => None,
    };
    assert_eq!(
        seen.iter().filter_map(named).collect::<Vec<_>>(),
        ["default/fine"]
    );
    let first = unreadable.recv().await.expect("the absurd one");
    assert_eq!(first.about.kind.as_deref(), Some("PodGroup"));
    assert_eq!(first.about.name.as_deref(), Some("absurd"));
    assert!(
        first.about.uid.is_some() && !first.why.is_empty(),
        "{first:?}"
    );
    // An object that can no longer be read counts as deleted.
    let patch = kube::api::Patch::Merge(json!({ "spec": null }));
    let params = kube::api::PatchParams::default();
    let patched = groups.patch("fine", &params, &patch).await;
    patched.expect("patched");
    let is_gone =
        |fact: &Fact| matches!(fact, Fact::Group(Seen::Gone(key)) if key == "default/fine");
    until(&mut told, is_gone).await;
    let second = unreadable.recv().await.expect("what was fine");
    assert_eq!(second.about.name.as_deref(), Some("fine"));
}
/// A pod with what API server, controllers and kubelet add to it.
fn as_users_have_it(phase: &str) -> Pod {
    let container = |name: &str| {
        json!({
            "name": name, "image": "registry.example/train:1", "command": ["train"],
            "args": ["--epochs=10"], "imagePullPolicy": "IfNotPresent",
            "env": [
                {"name": "TOKEN", "value": "x".repeat(200)},
                {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "modes", "key": "mode"}}}
            ],
            "envFrom": [{"configMapRef": {"name": "settings", "optional": false}}],
            "ports": [{"containerPort": 8080, "hostPort": 8080, "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
            "securityContext": {"runAsUser": 1000},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "token", "mountPath": "/var/run"}],
            "livenessProbe": {"httpGet": {"path": "/", "port": 8080}}
        })
    };
    let status = |name: &str| {
        json!({
            "name": name, "image": "registry.example/train:1", "imageID": "sha256:1",
            "containerID": "containerd://1", "ready": false, "restartCount": 3, "started": false,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            "allocatedResources": {"cpu": "3", "memory": "4Gi"},
            "resources": {"requests": {"cpu": "3", "memory": "4Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]
        })
    };
    let metadata = json!({
        "name": "train-0", "namespace": "team-a", "uid": "u1",
        "labels": {"kai.scheduler/queue": "team-a", "app": "train"},
        "annotations": {"gpu-memory": "2000", "pod-group-name": "train", "aliquot.dev/expected-run-time": "2h"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "o1", "controller": true}]
    });
    let volumes = json!([
        {"name": "token", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}
        ]}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
        {"name": "config", "configMap": {"name": "config", "items": [{"key": "a", "path": "a"}]}}
    ]);
    let spec = json!({
        "schedulerName": "kai-scheduler", "nodeName": (phase == "Running").then_some("node-a"),
        "serviceAccountName": "default", "serviceAccount": "default", "dnsPolicy": "ClusterFirst",
        "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 30, "activeDeadlineSeconds": 3600,
        "securityContext": {"fsGroup": 1000}, "imagePullSecrets": [{"name": "registry"}],
        "priority": 50, "priorityClassName": "train", "preemptionPolicy": "PreemptLowerPriority",
        "enableServiceLinks": true, "hostname": "train-0", "subdomain": "train",
        "nodeSelector": {"zone": "a"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        ],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "other"}}}
        ]}},
        "initContainers": [container("prepare")],
        "containers": [container("main"), container("side")],
        "volumes": volumes
    });
    let status = json!({
        "phase": phase, "qosClass": "Guaranteed", "hostIP": "10.0.0.1", "podIP": "10.1.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}], "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": "2026-01-01T00:00:01Z",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room",
             "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "later"}
        ],
        "initContainerStatuses": [status("prepare")],
        "containerStatuses": [status("main"), status("side")]
    });
    let pod = json!({"metadata": metadata, "spec": spec, "status": status});
    serde_json::from_value(pod).unwrap()
}

/// Estimates take pods that run the same for runs of one template, by what the watch keeps of them.
#[test]
fn past_runs_are_told_from_those_of_other_programs_by_what_is_kept_of_their_pods() {
    let kept = |uid: &str, image: &str, args: &str, ended: bool| {
        let mut pod = as_users_have_it("Running");
        pod.metadata.uid = Some(uid.to_owned());
        pod.metadata.name = Some(uid.to_owned());
        // Each is a run by itself, and declares no time.
        pod.metadata.owner_references = None;
        let annotations = pod.metadata.annotations.as_mut().unwrap();
        annotations.retain(|key, _| key == "gpu-memory");
        let spec = pod.spec.as_mut().unwrap();
        spec.active_deadline_seconds = None;
        spec.containers[0].image = Some(image.to_owned());
        spec.containers[0].args = Some(vec![args.to_owned()]);
        if ended {
            let status = pod.status.as_mut().unwrap();
            status.phase = Some("Succeeded".to_owned());
            let state =
                json!({"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T01:00:01Z"}});
            for container in status.container_statuses.iter_mut().flatten() {
                container.state = Some(serde_json::from_value(state.clone()).unwrap());
            }
        }
        kept::trim(&mut pod);
        Fact::Pod(Seen::There(Box::new(pod)))
    };
    let mut world = crate::convert::World::new("kai-scheduler");
    for uid in ["1", "2", "3"] {
        world.take(kept(uid, "train", "--epochs=9", true));
    }
    for (uid, image, args) in [
        ("same", "train", "--epochs=9"),
        ("args", "train", "--epochs=1"),
        ("image", "serve", "--epochs=9"),
    ] {
        world.take(kept(uid, image, args, false));
    }
    let start = scheduler_core::units::Time(1_767_225_601_000);
    let known = world.run_times(start);
    let of = |uid: &str| {
        known
            .get(&scheduler_core::ids::PodUid::new(uid))
            .map(|run| run.length.0)
    };
    assert_eq!(
        (of("same"), of("args"), of("image")),
        (Some(3_600_000), None, None)
    );
    world.take(Fact::Namespace(Seen::Gone("team-a".into())));
    assert!(
        world.run_times(start).is_empty(),
        "runs go with their namespace"
    );
}

#[test]
fn what_is_kept_of_a_pod_decides_as_the_whole_pod_does() {
    for phase in ["Pending", "Running"] {
        let whole = as_users_have_it(phase);
        let mut kept = whole.clone();
        kept::trim(&mut kept);
        let events = |pod: &Pod| {
            let mut world = crate::convert::World::new("kai-scheduler");
            let mut events = world.take(Fact::Pod(Seen::Listing));
            events.extend(world.take(Fact::Pod(Seen::There(Box::new(pod.clone())))));
            events.extend(world.take(Fact::Pod(Seen::Listed)));
            events.extend(world.take(Fact::ConfigMap(Seen::Listing)));
            events.extend(world.take(Fact::ConfigMap(Seen::Listed)));
            events.extend(world.elapse(scheduler_core::units::Time(0)));
            format!(
                "{events:#?} {:?}",
                world.run_times(scheduler_core::units::Time(0))
            )
        };
        let (of_whole, of_kept) = (events(&whole), events(&kept));
        assert_eq!(of_whole, of_kept);
        assert!(of_kept.contains("train-0"), "{of_kept}");
        if phase == "Pending" {
            for name in ["modes", "settings", "kube-root-ca.crt", "config"] {
                assert!(of_kept.contains(name), "{name} is missing: {of_kept}");
            }
        }
        assert!(
            of_kept.contains("started: Some(Time(1767225601000))"),
            "{of_kept}"
        );
        assert_eq!(crate::crash::of(&whole), crate::crash::of(&kept));
        // The page and the grouper read these.
        let status = |pod: &Pod| pod.status.clone().unwrap();
        assert_eq!(status(&whole).conditions, status(&kept).conditions);
        assert_eq!(whole.metadata, kept.metadata);
        // A token for the API server, a program's arguments and a probe place no pod.
        let text = serde_json::to_string(&kept).unwrap();
        for unread in [
            "serviceAccountToken",
            "--epochs",
            "livenessProbe",
            "emptyDir",
        ] {
            assert!(!text.contains(unread), "{unread} is kept: {text}");
        }
    }
}

#[test]
fn a_stored_pod_is_the_pod_in_a_tenth_of_its_memory() {
    for phase in ["Pending", "Running"] {
        let mut pod = as_users_have_it(phase);
        kept::trim(&mut pod);
        let stored = StoredPod::of(&pod);
        assert_eq!(stored.load(), pod);
        // Three containers and four volumes: their types alone take 20 KB.
        assert!(stored.size() < 4096, "{}", stored.size());
    }
}
