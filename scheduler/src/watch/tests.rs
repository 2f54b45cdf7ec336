use super::*;
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
        Fact::Group(Seen::There(group) | Seen::Gone(group)) => Some(group.name_any()),
        _ => None,
    };
    assert_eq!(seen.iter().filter_map(named).collect::<Vec<_>>(), ["fine"]);
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
    let fact = until(&mut told, |fact| named(fact).is_some()).await;
    assert!(matches!(fact, Fact::Group(Seen::Gone(_))), "{fact:?}");
    let second = unreadable.recv().await.expect("what was fine");
    assert_eq!(second.about.name.as_deref(), Some("fine"));
}
