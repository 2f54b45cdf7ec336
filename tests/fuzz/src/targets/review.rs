//! An `AdmissionReview`: `scheduler::admission`.

use super::request::{self, KUBERNETES};
use crate::{Shape, Target};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use scheduler::admission::{OverSubscription, QueueTree, amended, review};
use scheduler::limits::Limits;
use serde_json::{Value, json};

pub(super) const TARGET: Target = Target {
    name: "review",
    shape: Shape::Json,
    words: KUBERNETES,
    seeds,
    large,
    heap: 512,
    run,
};

fn run(input: &[u8]) {
    let Ok(read) = serde_json::from_slice::<review::Review>(input) else {
        return;
    };
    let pod = read.request.as_ref().and_then(|request| {
        let object = request.object.as_ref()?;
        Some(serde_json::to_value(object).expect("it prints"))
    });
    let uid = read.request.as_ref().map(|request| request.uid.clone());
    let objects = review::objects(
        read.clone(),
        &Limits::default(),
        &QueueTree::default(),
        OverSubscription::Block,
    );
    answered(&objects, uid.as_deref());
    if let Some(answer) = review::manifests(read.clone(), "kai-scheduler") {
        assert!(answered(&answer, uid.as_deref()), "a manifest is refused");
        let warnings = answer["response"]["warnings"].as_array();
        for warning in warnings.into_iter().flatten() {
            request::sentence(warning.as_str().unwrap_or_default());
        }
    }
    let answer = review::pods(read, scheduler::bursts::Bursts::ANY);
    let allowed = answered(&answer, uid.as_deref());
    let Some(pod) = pod.filter(|_| allowed) else {
        return;
    };
    let mut patched = pod.clone();
    if let Some(patch) = answer["response"]["patch"].as_str() {
        let patch = STANDARD.decode(patch).expect("base64");
        let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("RFC 6902");
        json_patch::patch(&mut patched, &patch).expect("the patch applies");
    }
    assert_eq!(
        amended(&pod).map(|amended| amended.pod).as_ref(),
        Ok(&patched),
        "the patch makes another pod"
    );
    assert_eq!(
        amended(&patched).map(|amended| amended.pod).as_ref(),
        Ok(&patched),
        "the second look changes it"
    );
    tokens(&pod, &patched);
}

/// An answer to this review, in words where it is no.
fn answered(answer: &Value, uid: Option<&str>) -> bool {
    let response = &answer["response"];
    let allowed = response["allowed"].as_bool().expect("yes or no");
    if let Some(uid) = uid {
        assert_eq!(response["uid"], uid, "the answer to another review");
    }
    if !allowed {
        let message = response["status"]["message"].as_str().unwrap_or_default();
        request::sentence(message);
    }
    allowed
}

/// One token for every share, none anywhere else. A pod with two containers of one name is not
/// checked: the API server refuses it after the webhook.
fn tokens(before: &Value, after: &Value) {
    const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];
    let all = LISTS.map(|list| after["spec"][list].as_array());
    let names: Vec<&Value> = all
        .into_iter()
        .flatten()
        .flatten()
        .map(|container| &container["name"])
        .collect();
    let known = |at: usize| names[..at].contains(&names[at]);
    if (0..names.len()).any(known) {
        return;
    }
    let typed = serde_json::from_value(before.clone()).expect("a pod was amended");
    let asked = api::request::of(&typed).expect("a pod was amended");
    request::holds(&typed, &asked);
    let shares = asked
        .containers
        .iter()
        .filter(|container| matches!(container.gpus, api::request::GpuRequest::Share(_)))
        .count();
    let mut tokens = 0;
    for list in LISTS {
        for container in after["spec"][list].as_array().into_iter().flatten() {
            for kind in ["limits", "requests"] {
                match &container["resources"][kind]["aliquot.dev/gpu-share"] {
                    Value::Null => {}
                    Value::String(one) if one == "1" => tokens += 1,
                    other => panic!("a token is {other}"),
                }
            }
        }
    }
    assert_eq!(tokens, 2 * shares, "tokens and shares");
}

fn seeds() -> Vec<Vec<u8>> {
    let review = |kind: &str, object: Value| {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "CREATE", "name": "p", "namespace": "ns", "userInfo": {"username": "a"},
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": object, "oldObject": null, "dryRun": false, "options": {}}});
        serde_json::to_vec(&review).expect("it prints")
    };
    let pods = request::pods().into_iter().map(|pod| review("Pod", pod));
    let objects = super::objects::seeds().into_iter().map(|object| {
        let object: Value = serde_json::from_slice(&object).expect("a seed");
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        review(&kind, object)
    });
    pods.chain(objects).collect()
}

fn large(size: usize) -> Vec<Vec<u8>> {
    let objects = request::large(size)
        .into_iter()
        .chain(super::objects::large(size));
    objects
        .map(|object| {
            let object: Value = serde_json::from_slice(&object).expect("it was printed");
            let kind = object["kind"].as_str().unwrap_or("Pod").to_owned();
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
                "uid": "u", "operation": "CREATE", "name": "p", "userInfo": {},
                "kind": {"group": "", "version": "v1", "kind": kind},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "object": object, "oldObject": null, "dryRun": false}});
            serde_json::to_vec(&review).expect("it prints")
        })
        .collect()
}
