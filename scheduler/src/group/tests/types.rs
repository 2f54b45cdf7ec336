//! Defaults of types of workloads.

use super::site::{Site, until};
use super::{Draft, between, classes, owner, pod};
use crate::config::LonePodGroups;
use crate::group::object::Object;
use crate::group::rule::RuleContext;
use crate::group::rules;
use crate::group::types::Types;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::sync::Arc;

fn drafted(types: &Value, pod: &Object, chain: &[Object]) -> Draft {
    let mut classes = classes();
    classes.types = Arc::new(Types::of(&types.to_string()).unwrap());
    let context = RuleContext {
        pod,
        chain,
        extra: None,
        classes: &classes,
        deployment_gangs: true,
    };
    rules::draft(context).unwrap()
}

#[test]
fn a_type_is_named_by_kind_and_group_before_kind_and_its_workload_goes_first() {
    let chain = |labels: Value| {
        [
            between("apps/v1", "ReplicaSet"),
            owner(
                "apps/v1",
                "Deployment",
                &json!({"metadata": {"labels": labels}}),
            ),
        ]
    };
    let plain = pod(&json!({}));
    let of = |types: Value, labels: Value| {
        let draft = drafted(&types, &plain, &chain(labels));
        (draft.class, draft.preemptibility)
    };
    let one = |name: &str, group: &str, class: &str, word: &str| json!({"typeName": name, "group": group, "priorityName": class, "preemptibility": word});
    let none = || json!({});
    let is = |class: &str, word: Option<&str>| (class.to_owned(), word.map(str::to_owned));
    assert_eq!(of(json!([]), none()), is("inference", None));
    let both = json!([
        one("Deployment", "", "build", ""),
        one("Deployment", "apps", "own", "Non-Preemptible"),
    ]);
    assert_eq!(of(both.clone(), none()), is("own", Some("non-preemptible")));
    // As KAI's own documents have it: the group in the name.
    let named = json!([{"typeName": "Deployment.apps", "priorityName": "own"}]);
    assert_eq!(of(named, none()), is("own", None));
    let other = json!([one("Deployment", "example.com", "own", "preemptible")]);
    assert_eq!(of(other, none()), is("inference", None));
    let by_kind = json!([one("Deployment", "", "build", "preemptible")]);
    assert_eq!(of(by_kind, none()), is("build", Some("preemptible")));
    // A class that does not exist and an unknown preemptibility have no effect.
    let unknown = json!([one("Deployment", "apps", "missing", "never")]);
    assert_eq!(of(unknown, none()), is("inference", None));
    let labels =
        json!({"priorityClassName": "train", "kai.scheduler/preemptibility": "preemptible"});
    assert_eq!(of(both, labels), is("train", Some("preemptible")));

    let alone = json!([one("Pod", "", "build", "")]);
    assert_eq!(drafted(&alone, &plain, &[]).class, "build");
    let says = pod(&json!({"spec": {"priorityClassName": "own"}}));
    assert_eq!(drafted(&alone, &says, &[]).class, "own");
}

#[test]
fn what_is_no_list_of_types_is_said() {
    assert_eq!(Types::of("[]"), Ok(Types::default()));
    for text in ["", "{}", "[1]", r#"[{"typeName": 1}]"#] {
        assert!(Types::of(text).is_err(), "{text}");
    }
}

#[tokio::test]
async fn they_are_read_while_the_scheduler_runs_and_waited_for_before_it_decides() {
    let site = Site::start_of(true, LonePodGroups::Write, Some("defaults")).await;
    let api: Api<ConfigMap> = Api::namespaced(site.client.clone(), super::site::NS);
    for name in ["own", "low"] {
        let class = json!({"metadata": {"name": name}, "value": 7});
        let classes: Api<k8s_openapi::api::scheduling::v1::PriorityClass> =
            Api::all(site.client.clone());
        let class = serde_json::from_value(class).unwrap();
        classes
            .create(&PostParams::default(), &class)
            .await
            .unwrap();
    }
    // None is there: nothing waits for it.
    site.pod("early", None, json!({})).await;
    assert_eq!(class_of(&site, "early").await, "train");
    let list = |class: &str| json!([{"typeName": "Pod", "priorityName": class}]).to_string();
    let map = json!({"metadata": {"name": "defaults"}, "data": {"types": list("own")}});
    let map = serde_json::from_value(map).unwrap();
    api.create(&PostParams::default(), &map).await.unwrap();
    follows(&site, "own").await;
    let change = Patch::Merge(json!({"data": {"types": list("low")}}));
    api.patch("defaults", &PatchParams::default(), &change)
        .await
        .unwrap();
    follows(&site, "low").await;
    api.delete("defaults", &DeleteParams::default())
        .await
        .unwrap();
    follows(&site, "train").await;
}

async fn class_of(site: &Site, pod: &str) -> String {
    site.grouped(pod).await.spec.priority_class_name.unwrap()
}

/// Pods that come get this class, soon.
async fn follows(site: &Site, class: &str) {
    let count = std::sync::atomic::AtomicU32::new(0);
    until(|| async {
        let at = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("{class}-{at}");
        site.pod(&name, None, json!({})).await;
        (class_of(site, &name).await == class).then_some(())
    })
    .await;
}
