//! An `AdmissionReview` → its answer.

use super::amend::{self, Amended};
use super::{OverSubscription, QueueTree, lint, queues, validate};
use crate::bursts::Bursts;
use crate::limits::Limits;
use api::lint::Cluster;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::{Value, json};

/// Bytes of a refusal: as many as a note of an event may have.
const MAX_LINE: usize = 1024;
/// An API server passes on some 4 KiB of them.
const MAX_WARNINGS: usize = 16;

/// As the API server sends it.
pub type Review = AdmissionReview<DynamicObject>;

/// Pods are amended, or refused.
pub fn pods(review: Review, bursts: Bursts) -> Value {
    answer(review, |request| judge(request, bursts))
}

/// Queues, pod groups and topologies are taken, or refused.
pub fn objects(
    review: Review,
    limits: &Limits,
    queues: &QueueTree,
    over_subscription: OverSubscription,
) -> Value {
    answer(review, |request| {
        check(request, limits, queues, over_subscription)
    })
}

/// Manifests are allowed, with a warning for each mistake. `None` for a request that cannot be read.
pub fn manifests(review: Review, scheduler: &str) -> Option<Value> {
    let request: AdmissionRequest<DynamicObject> = review.try_into().ok()?;
    let mut response = AdmissionResponse::from(&request);
    let object = serde_json::to_value(&request.object).ok()?;
    let findings = lint::of(&object, &Cluster::of_scheduler(scheduler));
    let warnings: Vec<String> = findings
        .iter()
        .map(|finding| line(&finding.to_string()))
        .take(MAX_WARNINGS)
        .collect();
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    Some(written(response))
}

/// Everything that cannot be answered is refused in words.
fn answer(
    review: Review,
    judge: impl Fn(&AdmissionRequest<DynamicObject>) -> AdmissionResponse,
) -> Value {
    match review.try_into() {
        Ok(request) => written(judge(&request)),
        Err(error) => unreadable(&error),
    }
}

/// The answer to a request that was not read but for its uid.
pub(super) fn refused(uid: &str, why: &str) -> Value {
    let mut answer = unreadable(&why);
    answer["response"]["uid"] = Value::from(uid);
    answer
}

pub(super) fn unreadable(error: &impl std::fmt::Display) -> Value {
    written(AdmissionResponse::invalid(line(&error.to_string())))
}

pub(super) fn written(response: AdmissionResponse) -> Value {
    let patch = response.patch.as_ref().map(|patch| STANDARD.encode(patch));
    let mut answer = json!(response.into_review());
    // The library prints bytes as a list of numbers, which Go's decoder takes as well; the
    // API says base64.
    if let Some(patch) = patch {
        answer["response"]["patch"] = Value::String(patch);
    }
    answer
}

/// What a user reads, as one line that fits into an event: it may quote an object of any
/// length.
pub(super) fn line(text: &str) -> String {
    api::visible::line(text, MAX_LINE)
}

fn judge(request: &AdmissionRequest<DynamicObject>, bursts: Bursts) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some(object) = &request.object else {
        return response.deny("there is no pod in the request");
    };
    let pod = match serde_json::to_value(object) {
        Ok(pod) => pod,
        Err(error) => return response.deny(line(&format!("the pod cannot be read: {error}"))),
    };
    match amend::amended(&pod) {
        Ok(mut amended) => {
            let cut = bursts.warnings(&amended.request);
            amended.warnings.extend(cut);
            // Only pods of this scheduler are sent here, so that the pod has its name.
            let scheduler = pod["spec"]["schedulerName"].as_str().unwrap_or_default();
            let cluster = Cluster::of_scheduler(scheduler);
            let mistakes = api::lint::of_pod(&pod, &cluster);
            let mistakes = mistakes.iter().map(ToString::to_string);
            amended.warnings.extend(mistakes);
            allow(response, &pod, &amended)
        }
        Err(refusal) => {
            let namespace = request.namespace.as_deref().unwrap_or_default();
            tracing::info!(namespace, pod = request.name, "refused: {refusal}");
            response.deny(line(&refusal.to_string()))
        }
    }
}

fn check(
    request: &AdmissionRequest<DynamicObject>,
    limits: &Limits,
    queues: &QueueTree,
    over_subscription: OverSubscription,
) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let object = serde_json::to_value(&request.object).unwrap_or_default();
    let verdict = match request.kind.kind.as_str() {
        "Queue" => read(object).map(|queue| {
            let old = serde_json::to_value(&request.old_object).unwrap_or_default();
            let old = read(old).ok();
            validate::queue(&queue, old.as_ref(), limits, queues)?;
            queues::judge_quotas(&queue, queues, over_subscription)
        }),
        "PodGroup" => read(object).map(|group| {
            let old = serde_json::to_value(&request.old_object).unwrap_or_default();
            // An old group that cannot be read exists all the same.
            let old = (!old.is_null()).then(|| read(old).unwrap_or_default());
            validate::pod_group(&group, old.as_ref(), limits)
        }),
        "Topology" => {
            read(object).map(|topology| validate::topology(&topology).map(|()| Vec::new()))
        }
        // Not asked for: nothing to say.
        _ => return response,
    };
    match verdict {
        Ok(Ok(warnings)) if warnings.is_empty() => response,
        Ok(Ok(warnings)) => {
            let mut response = response;
            response.warnings = Some(warnings.iter().map(|word| line(word)).collect());
            response
        }
        Ok(Err(invalid)) => response.deny(line(&invalid.to_string())),
        Err(unreadable) => response.deny(line(&unreadable)),
    }
}

pub(super) fn read<K: serde::de::DeserializeOwned>(object: Value) -> Result<K, String> {
    serde_json::from_value(object).map_err(|error| format!("it cannot be read: {error}"))
}

fn allow(mut response: AdmissionResponse, pod: &Value, amended: &Amended) -> AdmissionResponse {
    let warnings = amended.warnings.iter().map(|warning| line(warning));
    let warnings: Vec<String> = warnings.take(MAX_WARNINGS).collect();
    response.warnings = (!warnings.is_empty()).then_some(warnings);
    let patch = json_patch::diff(pod, &amended.pod);
    if patch.0.is_empty() {
        return response;
    }
    match response.with_patch(patch) {
        Ok(response) => response,
        Err(error) => AdmissionResponse::invalid(line(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respond(pod: Value) -> Value {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "CREATE", "name": "p", "namespace": "ns", "userInfo": {},
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "object": pod, "oldObject": null, "dryRun": false, "options": {},
            },
        });
        let review = serde_json::from_value(review).expect("a review");
        let mut answer = pods(review, Bursts::parse("2").unwrap());
        answer["response"].take()
    }

    #[test]
    fn the_patch_of_the_answer_makes_the_amended_pod() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "annotations": {"gpu-memory": "5"}},
            "spec": {"containers": [{"name": "c", "later": {"unknown": [1]}}]},
        });
        let response = respond(pod.clone());
        assert_eq!(
            (&response["uid"], &response["allowed"]),
            (&json!("u"), &json!(true))
        );
        let patch = response["patch"].as_str().expect("a patch");
        let patch = STANDARD.decode(patch).expect("base64");
        let patch: json_patch::Patch = serde_json::from_slice(&patch).expect("RFC 6902");
        let amended = amend::amended(&pod).expect("allowed").pod;
        json_patch::patch(&mut pod, &patch).expect("it applies");
        assert_eq!(pod, amended);
    }

    fn of_owner(kind: &str, object: Value) -> Option<Value> {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "CREATE", "name": "o", "namespace": "ns", "userInfo": {},
                "kind": {"group": "apps", "version": "v1", "kind": kind},
                "resource": {"group": "apps", "version": "v1", "resource": "r"},
                "object": object, "oldObject": null, "dryRun": false, "options": {},
            },
        });
        manifests(serde_json::from_value(review).unwrap(), "kai-scheduler")
    }

    #[test]
    fn a_mistake_of_a_pod_is_a_warning_and_no_refusal() {
        let pod = |annotations: Value, name: &str| {
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "p", "annotations": annotations, "labels": {"gpu-fraction": "1"}},
                "spec": {"schedulerName": name, "containers": [{"name": "c"}]},
            })
        };
        let response = respond(pod(json!({"gpu-memroy": "5000"}), "kai-scheduler"));
        assert_eq!(response["allowed"], true);
        let said = response["warnings"].as_array().expect("warnings");
        assert_eq!(said.len(), 2, "{said:?}");
        let said: Vec<&str> = said.iter().filter_map(Value::as_str).collect();
        assert!(
            said[0].starts_with("metadata.annotations[gpu-memroy] is no annotation"),
            "{said:?}"
        );
        assert!(
            said[0].ends_with("write gpu-memory") && said[1].contains("gpu-fraction"),
            "{said:?}"
        );
        // Whatever its name is: only its pods come here.
        let other = respond(pod(json!({"gpu-memory": "5000"}), "another"));
        assert_eq!(
            other["warnings"].as_array().map(Vec::len),
            Some(1),
            "{other}"
        );
    }

    #[test]
    fn manifests_are_warned_of_and_never_refused() {
        let template = json!({"metadata": {"annotations": {"gpu-memory": "2GB"}}, "spec": {"containers": [{"name": "c"}]}});
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": template}});
        let answer = of_owner("Deployment", object).expect("an answer");
        let response = &answer["response"];
        assert_eq!(
            (&response["uid"], &response["allowed"]),
            (&json!("u"), &json!(true))
        );
        let said = response["warnings"].to_string();
        assert!(
            said.contains("schedulerName") && said.contains("would be rejected"),
            "{said}"
        );
        for object in [
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": 7}),
            Value::Null,
        ] {
            let answer = of_owner("Deployment", object).expect("an answer");
            assert_eq!(answer["response"]["allowed"], true, "{answer}");
            assert_eq!(answer["response"]["warnings"], Value::Null, "{answer}");
        }
        // No request: the API server ignores the error.
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
        assert_eq!(
            manifests(serde_json::from_value(review).unwrap(), "x"),
            None
        );
    }

    #[test]
    fn a_queue_without_resources_is_refused_and_other_kinds_are_let_through() {
        for (kind, allowed) in [("Queue", false), ("Topology", false), ("ConfigMap", true)] {
            let review = json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": {
                    "uid": "u", "operation": "UPDATE", "name": "o", "userInfo": {}, "options": {}, "dryRun": false,
                    "kind": {"group": "g", "version": "v", "kind": kind},
                    "resource": {"group": "g", "version": "v", "resource": "r"},
                    "object": {"apiVersion": "g/v", "kind": kind, "metadata": {"name": "o"}, "spec": {}}, "oldObject": null,
                },
            });
            let review = serde_json::from_value(review).unwrap();
            let answer = objects(
                review,
                &Limits::default(),
                &QueueTree::default(),
                OverSubscription::None,
            );
            assert_eq!(answer["response"]["allowed"], allowed, "{kind}: {answer}");
        }
    }

    #[test]
    fn what_is_admitted_with_a_warning_warns_its_writer() {
        let group = json!({"apiVersion": "g/v", "kind": "PodGroup", "metadata": {"name": "o"},
            "spec": {"minSubGroup": 2, "subGroups": [{"name": "a", "minMember": 1}]}});
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "CREATE", "name": "o", "userInfo": {}, "options": {}, "dryRun": false,
                "kind": {"group": "g", "version": "v", "kind": "PodGroup"},
                "resource": {"group": "g", "version": "v", "resource": "r"}, "object": group, "oldObject": null,
            },
        });
        let review = serde_json::from_value(review).unwrap();
        let answer = objects(
            review,
            &Limits::default(),
            &QueueTree::default(),
            OverSubscription::None,
        );
        assert_eq!(answer["response"]["allowed"], true);
        let word = "minSubGroup (2) exceeds the number of direct child SubGroups (1)";
        assert_eq!(answer["response"]["warnings"], json!([word]));
    }

    fn checked(object: &Value, said: OverSubscription) -> Value {
        judged(object, &Value::Null, said)
    }

    fn changed(object: &Value, old: &Value) -> Value {
        judged(object, old, OverSubscription::None)
    }

    /// `old`: null where the object is created.
    fn judged(object: &Value, old: &Value, said: OverSubscription) -> Value {
        let operation = if old.is_null() { "CREATE" } else { "UPDATE" };
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": operation, "name": "o", "userInfo": {}, "options": {}, "dryRun": false,
                "kind": {"group": "g", "version": "v", "kind": object["kind"]},
                "resource": {"group": "g", "version": "v", "resource": "r"}, "object": object, "oldObject": old,
            },
        });
        let mut tree = QueueTree::default();
        let parent = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "top"}, "spec": {"resources": {"gpu": {"quota": 1}}}});
        let parent = serde_json::from_value(parent).unwrap();
        tree.note(&crate::watch::Seen::There(parent));
        let review = serde_json::from_value(review).unwrap();
        objects(review, &Limits::default(), &tree, said)["response"].take()
    }

    #[test]
    fn a_quota_beyond_the_parents_is_let_pass_said_or_refused_as_the_admin_has_it() {
        let queue = json!({"apiVersion": "g/v", "kind": "Queue", "metadata": {"name": "o"},
            "spec": {"parentQueue": "top", "resources": {"gpu": {"quota": 2}}}});
        let word = "child queue GPU quota (2) exceeds parent queue top GPU quota (1)";
        let silent = checked(&queue, OverSubscription::None);
        assert_eq!(
            (&silent["allowed"], &silent["warnings"]),
            (&json!(true), &Value::Null)
        );
        let said = checked(&queue, OverSubscription::Warning);
        assert_eq!(
            (&said["allowed"], &said["warnings"][0]),
            (&json!(true), &json!(word))
        );
        let refused = checked(&queue, OverSubscription::Block);
        assert_eq!(refused["allowed"], false);
        let why = refused["status"]["message"].as_str().unwrap();
        assert!(
            why.starts_with("queue quota over-subscription: ") && why.contains(word),
            "{why}"
        );
    }

    #[test]
    fn what_no_release_of_kai_has_a_rule_for_is_refused_by_its_name() {
        let queue = |spec: Value| json!({"apiVersion": "g/v", "kind": "Queue", "metadata": {"name": "o"}, "spec": spec});
        let group = |spec: Value| json!({"apiVersion": "g/v", "kind": "PodGroup", "metadata": {"name": "o"}, "spec": spec});
        for (object, field) in [
            (
                queue(json!({"resources": {"cpu": {"lendingLimit": 0}}})),
                "spec.resources.cpu.lendingLimit: ",
            ),
            (
                group(json!({"minMember": 1, "minNonPreemptible": 1})),
                "spec.minNonPreemptible: ",
            ),
        ] {
            let refused = checked(&object, OverSubscription::None);
            assert_eq!(refused["allowed"], false, "{object}");
            let why = refused["status"]["message"].as_str().unwrap();
            assert!(
                why.starts_with(field) && why.contains("no KAI release"),
                "{why}"
            );
        }
        let of = |metadata: Value| {
            respond(json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}}))
        };
        let refused = of(json!({"annotations": {"kai.scheduler/safe-to-consolidate": "false"}}));
        assert_eq!(refused["allowed"], false);
        let why = refused["status"]["message"].as_str().unwrap();
        let key = "annotation kai.scheduler/safe-to-consolidate: ";
        assert!(
            why.starts_with(key) && why.contains("no KAI release"),
            "{why}"
        );
    }

    #[test]
    fn a_semi_preemptible_workload_is_let_in_and_its_minimum_is_not_raised() {
        let semi = json!({"labels": {"kai.scheduler/preemptibility": "semi-preemptible"}});
        let pod = respond(json!({"metadata": semi, "spec": {"containers": [{"name": "c"}]}}));
        assert_eq!(pod["allowed"], true, "{pod}");
        let group = |min: i32, word: &str| {
            json!({"apiVersion": "g/v", "kind": "PodGroup", "metadata": {"name": "o"},
            "spec": {"minMember": min, "preemptibility": word}})
        };
        let said = changed(&group(2, "semi-preemptible"), &Value::Null);
        assert_eq!(said["allowed"], true, "{said}");
        let said = changed(&group(3, "semi-preemptible"), &group(2, "semi-preemptible"));
        assert_eq!(said["allowed"], false);
        assert_eq!(
            said["status"]["message"],
            "cannot increase minMember (2 -> 3) on a semi-preemptible PodGroup: it would reclassify running elastic pods or subgroups as core"
        );
        for (new, old) in [
            (group(1, "semi-preemptible"), group(2, "semi-preemptible")),
            (group(3, "preemptible"), group(2, "preemptible")),
            (group(3, "semi-preemptible"), group(2, "preemptible")),
        ] {
            assert_eq!(changed(&new, &old)["allowed"], true, "{new} {old}");
        }
        // Nor by leaving the word out in the same change.
        let said = changed(&group(3, "preemptible"), &group(2, "semi-preemptible"));
        assert_eq!(said["allowed"], false);
    }

    #[test]
    fn a_refusal_is_one_line_that_fits_into_an_event() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": "c\n".repeat(5000)}});
        let response = respond(pod);
        let message = response["status"]["message"].as_str().expect("a message");
        assert!(
            message.len() <= 1024 && !message.contains('\n'),
            "{message}"
        );
    }

    #[test]
    fn what_is_not_followed_is_warned_of_by_name() {
        let key = "nvidia.com/container.other.gpu-compute.mode";
        let pod = json!({"metadata": {"annotations": {"gpu-memory": "500", key: "sm-sharing"}},
            "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c"}, {"name": "other"}]}});
        let response = respond(pod);
        assert_eq!(response["allowed"], true);
        let warnings = response["warnings"].as_array().expect("warnings");
        let of_key = warnings.iter().filter(|one| one.to_string().contains(key));
        assert_eq!(of_key.count(), 1, "{warnings:?}");
        let pod = json!({"metadata": {"annotations": {"gpu-memory": "500"}},
            "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c"}]}});
        assert_eq!(respond(pod)["warnings"], Value::Null);
    }

    #[test]
    fn a_limit_that_the_admin_cuts_is_warned_of() {
        let warnings = |limit: &str| {
            let annotations = json!({"gpu-memory": "1000", "gpu-memory.limit": limit});
            let pod = json!({"metadata": {"annotations": annotations},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c"}]}});
            let response = respond(pod);
            assert_eq!(response["allowed"], true);
            response["warnings"].clone()
        };
        assert_eq!(warnings("2000Mi"), Value::Null);
        assert_eq!(
            warnings("2001Mi"),
            json!([
                "container c: its limit of GPU memory is not followed: the admin holds shares to 2 times their requests"
            ])
        );
    }

    #[test]
    fn a_refusal_says_why_and_nothing_changes() {
        let pod = json!({"metadata": {"annotations": {"gpu-memory": "0"}}, "spec": {"containers": [{"name": "c"}]}});
        let response = respond(pod);
        assert_eq!(response["allowed"], false);
        let message = response["status"]["message"].as_str().expect("a message");
        assert!(
            message.starts_with("gpu-memory annotation value must be"),
            "{message}"
        );
        assert_eq!(response["patch"], Value::Null);
    }
}
