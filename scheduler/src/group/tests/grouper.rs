//! Against the simulated API server: from the watch to the annotation on the pod.

use super::site::{NS, Site, until};
use crate::config::LonePodGroups;
use crate::watch::{Fact, Seen};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use sim_cluster::api_server::Fault;
use std::time::Duration;

/// A Deployment, and its replica set as the owner of pods.
async fn deployment(site: &Site, name: &str) -> (serde_json::Value, serde_json::Value) {
    let deployment = json!({"metadata": {"name": name, "labels": {"kai.scheduler/queue": "team"}}});
    let deployment = site
        .make("apps/v1", "Deployment", "deployments", deployment)
        .await;
    let set = json!({"metadata": {"name": format!("{name}-1"), "ownerReferences": [deployment]}});
    let set = site.make("apps/v1", "ReplicaSet", "replicasets", set).await;
    (deployment, set)
}

#[tokio::test]
async fn pods_of_a_deployment_share_a_group_with_its_queue() {
    let site = Site::start(true).await;
    let (deployment, set) = deployment(&site, "web").await;
    let uid = deployment["uid"].as_str().unwrap();
    for name in ["a", "b"] {
        site.pod(name, Some(&set), json!({})).await;
        let group = site.grouped(name).await;
        assert_eq!(group.name_any(), format!("pg-web-{uid}"));
        assert_eq!(group.spec.queue.as_deref(), Some("team"));
        assert_eq!(group.spec.priority_class_name.as_deref(), Some("inference"));
        assert_eq!(group.owner_references()[0].uid, uid);
    }
}

#[tokio::test]
async fn a_deployment_whose_pods_run_in_groups_of_their_own_keeps_to_that() {
    let site = Site::start(true).await;
    let (deployment, set) = deployment(&site, "web").await;
    let uid = deployment["uid"].as_str().unwrap();
    let before = json!({"apiVersion": "v1", "kind": "Pod", "name": "before", "uid": "up"});
    // As KAI's pod grouper writes it.
    let top = format!("name: web\nuid: {uid}\ngroup: apps\nversion: v1\nkind: Deployment\n");
    let made = json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "pg-before-up", "ownerReferences": [before],
            "annotations": {"kai.scheduler/top-owner-metadata": top}},
        "spec": {"minMember": 1}});
    let made = serde_json::from_value(made).unwrap();
    let create = kube::api::PostParams::default();
    site.groups().create(&create, &made).await.unwrap();
    // Until the watch has told of it.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let pod = site.pod("after", Some(&set), json!({})).await;
    let alone = format!("pg-after-{}", pod.uid().unwrap());
    assert_eq!(site.grouped("after").await.name_any(), alone);
    for group in ["pg-before-up", &alone] {
        let delete = DeleteParams::default();
        site.groups().delete(group, &delete).await.unwrap();
    }
    // Its pod still runs, and says which group it is in.
    until(|| async { site.groups().get_opt(&alone).await.unwrap() }).await;
}

#[tokio::test]
async fn pods_of_a_job_that_says_so_share_one_group() {
    let site = Site::start(true).await;
    let job = json!({"metadata": {"name": "train", "annotations": {"kai.scheduler/batch-min-member": "3"}}});
    let job = site.make("batch/v1", "Job", "jobs", job).await;
    for at in 0..12 {
        site.pod(&format!("p{at}"), Some(&job), json!({})).await;
    }
    let name = format!("pg-train-{}", job["uid"].as_str().unwrap());
    for at in 0..12 {
        assert_eq!(site.grouped(&format!("p{at}")).await.name_any(), name);
    }
    assert_eq!(
        site.groups().get(&name).await.unwrap().spec.min_member,
        Some(3)
    );
}

#[tokio::test]
async fn a_pod_that_another_grouper_groups_is_left_alone_whichever_of_its_owners_says_so() {
    let site = Site::start(true).await;
    let skip = |value: &str| json!({"kai.scheduler/skip-podgrouper": value});
    let job = json!({"metadata": {"name": "theirs", "annotations": skip("true")}});
    let job = site.make("batch/v1", "Job", "jobs", job).await;
    site.pod("owned", Some(&job), json!({})).await;
    let said = until(|| async {
        let pod = site.pods().get("owned").await.unwrap();
        pod.status?.conditions?.pop()?.message
    })
    .await;
    assert!(
        said.contains("Job theirs has the annotation kai.scheduler/skip-podgrouper"),
        "{said}"
    );
    // Any other value is no word.
    let ours = json!({"metadata": {"name": "ours", "annotations": skip("yes")}});
    let ours = site.make("batch/v1", "Job", "jobs", ours).await;
    site.pod("ours", Some(&ours), json!({})).await;
    site.grouped("ours").await;
    let all = site.groups().list(&ListParams::default()).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

#[tokio::test]
async fn a_job_set_keeps_to_the_rule_by_which_its_first_group_was_made() {
    let site = Site::start(true).await;
    site.define("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
        .await;
    let jobs = json!([{"name": "w", "template": {"spec": {"parallelism": 2}}}]);
    let labels = json!({"jobset.sigs.k8s.io/replicatedjob-name": "w",
        "jobset.sigs.k8s.io/job-index": "0"});
    for (name, old) in [("before", true), ("after", false)] {
        let set = json!({"metadata": {"name": name}, "spec": {
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"}, "replicatedJobs": jobs}});
        let set = site
            .make("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets", set)
            .await;
        let group = format!("pg-{name}-{}", set["uid"].as_str().unwrap());
        if old {
            let made = json!({
                "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
                "metadata": {"name": group, "ownerReferences": [set]}, "spec": {"minMember": 2}});
            let made = serde_json::from_value(made).unwrap();
            let create = kube::api::PostParams::default();
            site.groups().create(&create, &made).await.unwrap();
            // Until the watch has told of it.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        site.pod(name, Some(&set), labels.clone()).await;
        let found = site.grouped(name).await;
        assert_eq!(found.name_any(), group);
        let tree = found.spec.sub_groups.iter().map(|part| part.name.as_str());
        let wanted: &[&str] = if old { &[] } else { &["w", "w-replica-0"] };
        assert_eq!(tree.collect::<Vec<_>>(), wanted);
        let least = (found.spec.min_member, found.spec.min_sub_group);
        assert_eq!(
            least,
            if old {
                (Some(2), None)
            } else {
                (None, Some(1))
            }
        );
    }
}

#[tokio::test]
async fn one_pods_missing_owner_holds_up_nobody_and_is_said() {
    let site = Site::start(true).await;
    let gone = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "nobody"});
    for at in 0..20 {
        site.pod(&format!("lost{at}"), Some(&gone), json!({})).await;
    }
    site.pod("alone", None, json!({"kai.scheduler/queue": "q"}))
        .await;
    let group = site.grouped("alone").await;
    assert_eq!(group.spec.queue.as_deref(), Some("q"));
    let said = until(|| async {
        let pod = site.pods().get("lost0").await.unwrap();
        let condition = pod.status?.conditions?.pop()?;
        (condition.type_ == "PodScheduled").then_some(condition.message?)
    })
    .await;
    assert!(said.contains("Job gone"), "{said}");
    // Another pod's owner that is there is found all the same.
    let job = site
        .make(
            "batch/v1",
            "Job",
            "jobs",
            json!({"metadata": {"name": "late"}}),
        )
        .await;
    site.pod("found", Some(&job), json!({})).await;
    site.grouped("found").await;
}

#[tokio::test]
async fn a_lost_answer_and_a_refusal_make_no_second_group() {
    let site = Site::start(true).await;
    site.server.plan("POST", "/podgroups", Fault::LoseAnswer);
    site.server.plan("PATCH", "/pods/p", Fault::TooManyRequests);
    site.server.plan("PATCH", "/pods/p", Fault::LoseAnswer);
    site.pod("p", None, json!({})).await;
    site.grouped("p").await;
    let all = site.groups().list(&ListParams::default()).await.unwrap();
    assert_eq!(all.items.len(), 1);
}

#[tokio::test]
async fn only_the_leader_writes() {
    let site = Site::start(false).await;
    site.pod("p", None, json!({})).await;
    let other = Site::start(true).await;
    other.pod("q", None, json!({})).await;
    // The other one is through with the same, so this one would be, too.
    other.grouped("q").await;
    assert!(
        site.groups()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    site.leading.send(true).unwrap();
    site.grouped("p").await;
}

#[tokio::test]
async fn what_a_person_edited_stays_when_more_pods_come_and_a_deleted_group_is_recreated() {
    let site = Site::start(true).await;
    let set = json!({"metadata": {"name": "s", "labels": {"kai.scheduler/queue": "a"}}});
    let set = site
        .make("apps/v1", "StatefulSet", "statefulsets", set)
        .await;
    site.pod("s-0", Some(&set), json!({})).await;
    let name = site.grouped("s-0").await.name_any();
    let edit = json!({"spec": {"queue": "b", "markUnschedulable": false}});
    site.groups()
        .patch(&name, &PatchParams::default(), &Patch::Merge(edit))
        .await
        .unwrap();
    site.pod("s-1", Some(&set), json!({})).await;
    let group = site.grouped("s-1").await;
    assert_eq!(
        (group.name_any(), group.spec.queue.as_deref()),
        (name.clone(), Some("b"))
    );
    assert_eq!(group.spec.mark_unschedulable, Some(false));

    site.groups()
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    let again = until(|| async { site.groups().get_opt(&name).await.unwrap() }).await;
    assert_eq!(again.spec.queue.as_deref(), Some("a"));
}

#[tokio::test]
async fn the_group_of_a_pod_without_an_owner_is_recreated_too() {
    let site = Site::start(true).await;
    site.pod("p", None, json!({})).await;
    let name = site.grouped("p").await.name_any();
    let now = DeleteParams::default();
    site.groups().delete(&name, &now).await.unwrap();
    until(|| async { site.groups().get_opt(&name).await.unwrap() }).await;
}

/// The previous leader saw it and could not finish it.
#[tokio::test]
async fn a_group_that_was_deleted_while_no_replica_led_is_recreated_by_the_next_one() {
    let site = Site::start(true).await;
    site.pod("p", None, json!({})).await;
    let name = site.grouped("p").await.name_any();
    site.leading.send(false).unwrap();
    let now = DeleteParams::default();
    site.groups().delete(&name, &now).await.unwrap();
    // Long enough for the watch to tell, and for the group to be made if it were.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(site.groups().get_opt(&name).await.unwrap().is_none());
    site.leading.send(true).unwrap();
    site.relist.send_modify(|count| *count += 1);
    until(|| async { site.groups().get_opt(&name).await.unwrap() }).await;
}

fn group_there(fact: &Fact) -> Option<String> {
    match fact {
        Fact::Group(Seen::There(group)) => Some(group.name_any()),
        _ => None,
    }
}

/// The first group of its like is there.
async fn one_is_taken(site: &mut Site) {
    let job = json!({"metadata": {"name": "before"}});
    let job = site.make("batch/v1", "Job", "jobs", job).await;
    site.pod("before", Some(&job), json!({})).await;
    site.member("before").await;
}

/// No write of a group succeeds any more, after one was taken.
async fn groups_fail(site: &mut Site, fault: Fault) {
    one_is_taken(site).await;
    for _ in 0..64 {
        site.server.plan("POST", "/podgroups", fault);
    }
}

#[tokio::test]
async fn a_pod_is_a_member_of_its_group_before_anything_is_written() {
    let mut site = Site::start(true).await;
    groups_fail(&mut site, Fault::InternalError).await;
    let job = json!({"metadata": {"name": "train", "annotations": {"kai.scheduler/batch-min-member": "2"}}});
    let job = site.make("batch/v1", "Job", "jobs", job).await;
    site.pod("w-0", Some(&job), json!({})).await;
    let is_its = |group: &String| group.starts_with("pg-train");
    let its = |fact: &Fact| group_there(fact).filter(is_its);
    let group = site.passed(its).await;
    assert_eq!(group, format!("pg-train-{}", job["uid"].as_str().unwrap()));
    let told = (group.clone(), None);
    assert_eq!(site.member("w-0").await, told);
    site.pod("w-1", Some(&job), json!({})).await;
    assert_eq!(site.member("w-1").await, told);
    // Another version of it, which still does not say so itself.
    let status = json!({"status": {"message": "waits"}});
    site.pods()
        .patch_status("w-0", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    assert_eq!(site.member("w-0").await, told);
    // A new listing, which does not name the group: it is no reason to think it gone.
    site.relist.send_modify(|count| *count += 1);
    site.passed(|fact| matches!(fact, Fact::Group(Seen::Listing)).then_some(()))
        .await;
    let gone = site
        .passed(|fact| match fact {
            Fact::Group(Seen::Listed) => Some(None),
            Fact::Group(Seen::Gone(name)) => Some(Some(name.clone())),
            _ => None,
        })
        .await;
    assert_eq!(gone, None);
    assert!(site.groups().get_opt(&told.0).await.unwrap().is_none());
}

/// A policy may reject a group, because of its queue for instance: then its pod is not placed. An
/// accepted group covers those like it, until one of them is rejected.
#[tokio::test]
async fn the_first_group_of_its_like_is_awaited() {
    let mut site = Site::start(true).await;
    groups_fail(&mut site, Fault::Forbidden).await;
    let queue = json!({"kai.scheduler/queue": "other"});
    let job = json!({"metadata": {"name": "j", "labels": queue}});
    let job = site.make("batch/v1", "Job", "jobs", job).await;
    site.pod("p", Some(&job), json!({})).await;
    let said = until(|| async {
        let pod = site.pods().get("p").await.unwrap();
        let condition = pod.status?.conditions?.pop()?;
        (condition.type_ == "PodScheduled").then_some(condition.message?)
    })
    .await;
    assert!(said.contains("a planned fault"), "{said}");
    let told = site.try_member("p");
    assert_eq!(told, None);
    // Alike to the one that was taken: told, and refused.
    let alike = site.make(
        "batch/v1",
        "Job",
        "jobs",
        json!({"metadata": {"name": "k"}}),
    );
    let alike = alike.await;
    site.pod("q", Some(&alike), json!({})).await;
    site.member("q").await;
    // Then it is held.
    site.passed(|fact| match fact {
        Fact::Pod(Seen::There(pod)) if pod.name_any() == "q" => {
            pod.spec.as_ref()?.scheduling_gates.clone()
        }
        _ => None,
    })
    .await;
    site.pod("r", Some(&alike), json!({})).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(site.try_member("r"), None);
}

#[tokio::test]
async fn the_name_rides_on_the_binding_and_the_stamp_on_the_group() {
    let mut site = Site::start(true).await;
    one_is_taken(&mut site).await;
    let job = json!({"metadata": {"name": "one"}});
    let job = site.make("batch/v1", "Job", "jobs", job).await;
    let pod = site.pod("p", Some(&job), json!({})).await;
    let (group, _) = site.member("p").await;
    let uid = pod.uid().unwrap();
    assert_eq!(site.shared.memberships.of(&uid).unwrap().group, group);
    site.bind(&pod, &group).await;
    let bound = site.pods().get("p").await.unwrap();
    assert!(!site.groups_stamp(&group, "a-time").await, "not yet");
    let made = until(|| async { site.groups().get_opt(&group).await.unwrap() }).await;
    let stamp = made.annotations().get("kai.scheduler/last-start-timestamp");
    assert_eq!(stamp.map(String::as_str), Some("a-time"), "in one write");
    let memberships = &site.shared.memberships;
    until(|| async { memberships.of(&uid).is_none().then_some(()) }).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let now = site.pods().get("p").await.unwrap();
    assert_eq!(now.resource_version(), bound.resource_version(), "no more");
    // A group that is there is stamped at once.
    assert!(site.groups_stamp(&group, "later").await);
    let made = site.groups().get(&group).await.unwrap();
    let stamp = made.annotations().get("kai.scheduler/last-start-timestamp");
    assert_eq!(stamp.map(String::as_str), Some("later"));
}

#[tokio::test]
async fn pods_alone_become_no_groups_where_they_are_skipped() {
    let mut site = Site::start_with(true, LonePodGroups::Skip).await;
    site.pod("alone", None, json!({})).await;
    let wish = json!({"metadata": {"annotations": {"kai.scheduler/preemption-delay": "5m"}}});
    let asks = site.pod("asks", None, json!({})).await;
    site.pods()
        .patch("asks", &PatchParams::default(), &Patch::Merge(wish))
        .await
        .unwrap();
    let (group, _) = site.member("asks").await;
    assert_eq!(group, format!("pg-asks-{}", asks.uid().unwrap()));
    // The other one came before.
    site.grouped("asks").await;
    let all = site.groups().list(&ListParams::default()).await.unwrap();
    let names: Vec<String> = all.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, [group]);
}

/// The replica that bound it died before it created the group.
#[tokio::test]
async fn the_group_of_a_bound_pod_that_was_never_made_is_made_by_the_next_leader() {
    let site = Site::start(false).await;
    let owned = json!({"metadata": {"name": "one"}});
    let job = site.make("batch/v1", "Job", "jobs", owned).await;
    let pod = site.pod("p", Some(&job), json!({})).await;
    let group = format!("pg-p-{}", job["uid"].as_str().unwrap());
    site.bind(&pod, &group).await;
    site.leading.send(true).unwrap();
    site.relist.send_modify(|count| *count += 1);
    until(|| async { site.groups().get_opt(&group).await.unwrap() }).await;
}

/// With the last of its pods goes what was decided.
#[tokio::test]
async fn a_group_that_was_never_made_goes_with_its_pods() {
    let mut site = Site::start(true).await;
    groups_fail(&mut site, Fault::InternalError).await;
    let job = site
        .make(
            "batch/v1",
            "Job",
            "jobs",
            json!({"metadata": {"name": "one"}}),
        )
        .await;
    site.pod("p", Some(&job), json!({})).await;
    let (group, _) = site.member("p").await;
    let now = DeleteParams::default().grace_period(0);
    site.pods().delete("p", &now).await.unwrap();
    let gone = site
        .passed(|fact| match fact {
            Fact::Group(Seen::Gone(name)) => Some(name.clone()),
            _ => None,
        })
        .await;
    assert_eq!(gone, format!("{NS}/{group}"));
}
