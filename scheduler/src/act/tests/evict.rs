//! Evictions: answers that are lost, bare pods, budgets.

use super::*;

#[tokio::test]
async fn an_eviction_whose_answer_is_lost_ends_when_there_is_a_word() {
    for fault in [Fault::LoseAnswer, Fault::InternalError] {
        let mut site = Site::start().await;
        let pod = site.pod("p", true).await;
        site.server.plan("DELETE", "/pods/p", fault);
        site.server.plan("GET", "/pods/p", Fault::InternalError);
        let decision = site.evict(&pod, EvictCause::Preempt);
        let expected = Outcome {
            decision,
            result: OutcomeResult::Confirmed,
        };
        assert_eq!(site.outcome().await, expected, "{fault:?}");
        let found = site.pods().get_opt("p").await.unwrap();
        assert!(
            found.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()),
            "{fault:?}"
        );
        site.nothing_more().await;
    }
}

#[tokio::test]
async fn an_eviction_deletes_that_pod_and_never_its_successor() {
    let mut site = Site::start().await;
    let old = site.pod("p", true).await;
    site.bind(&old, "n1");
    site.outcome().await;
    site.evict(&old, EvictCause::Preempt);
    assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
    // The pod is there until its kubelet has ended it, and its status tells its user why.
    let deleting = site.pods().get("p").await.unwrap();
    assert!(deleting.metadata.deletion_timestamp.is_some());
    let conditions = deleting.status.unwrap().conditions.unwrap();
    let told = conditions
        .iter()
        .find(|one| one.type_ == "DisruptionTarget");
    assert_eq!(told.unwrap().message.as_deref(), Some("room is needed"));
    site.pods()
        .delete("p", &DeleteParams::default().grace_period(0))
        .await
        .ok();

    site.pod("p", true).await;
    site.evict(&old, EvictCause::Preempt);
    assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
    let successor = site.pods().get("p").await.unwrap();
    assert_eq!(successor.metadata.deletion_timestamp, None);
    site.nothing_more().await;
}

#[tokio::test]
async fn a_bare_pod_whose_grant_is_refused_is_told_and_not_lost() {
    let mut site = Site::start().await;
    let (bare, owned) = (site.pod("bare", false).await, site.pod("owned", true).await);
    // No controller creates the former again, and the core must not count on its end.
    for (pod, result) in [
        (&bare, OutcomeResult::Stays),
        (&owned, OutcomeResult::Confirmed),
    ] {
        site.evict(pod, EvictCause::GrantRefused);
        assert_eq!(site.outcome().await.result, result);
    }
    let told = site.pods().get("bare").await.unwrap();
    assert_eq!(told.metadata.deletion_timestamp, None);
    let owned = site.pods().get_opt("owned").await.unwrap();
    assert!(owned.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()));
    site.nothing_more().await;
}

#[tokio::test]
async fn a_pod_that_its_agent_wants_gone_goes_with_or_without_a_controller() {
    let mut site = Site::start().await;
    for (name, owned) in [("bare", false), ("owned", true)] {
        let pod = site.pod(name, owned).await;
        site.bind(&pod, "n1");
        site.outcome().await;
        site.evict(&pod, EvictCause::AgentRequest);
        assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
        let gone = site.pods().get_opt(name).await.unwrap();
        assert!(gone.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()));
    }
    site.nothing_more().await;
}

#[tokio::test]
async fn who_makes_room_is_asked_for_by_leave_of_its_budget_where_that_is_wanted() {
    let mut site = Site::start_with(true, LonePodGroups::Write).await;
    let pod = site.pod("p", true).await;
    site.bind(&pod, "n1");
    site.outcome().await;
    // As a budget refuses.
    site.server
        .plan("POST", "/p/eviction", Fault::TooManyRequests);
    site.evict(&pod, EvictCause::Reclaim);
    let outcome = site.outcome().await;
    assert!(
        matches!(
            outcome.result,
            OutcomeResult::Refused {
                retryable: true,
                ..
            }
        ),
        "{outcome:?}"
    );
    let kept = site.pods().get("p").await.unwrap();
    assert_eq!(kept.metadata.deletion_timestamp, None);
    let conditions = kept.status.and_then(|status| status.conditions);
    assert!(
        conditions
            .unwrap_or_default()
            .iter()
            .all(|one| one.type_ != "DisruptionTarget"),
        "the status announces an eviction that does not come"
    );
    // What must go goes, whatever the budget says.
    site.server
        .plan("POST", "/p/eviction", Fault::TooManyRequests);
    site.evict(&pod, EvictCause::AgentRequest);
    assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
    site.nothing_more().await;
}

/// Without the setting, too.
#[tokio::test]
async fn a_node_is_emptied_by_leave_of_budgets_alone() {
    let mut site = Site::start_with(false, LonePodGroups::Write).await;
    let pod = site.pod("p", true).await;
    site.bind(&pod, "n1");
    site.outcome().await;
    site.server
        .plan("POST", "/p/eviction", Fault::TooManyRequests);
    site.evict(&pod, EvictCause::ScaleDown);
    let refused = site.outcome().await.result;
    assert!(
        matches!(refused, OutcomeResult::Refused { .. }),
        "{refused:?}"
    );
    let kept = site.pods().get("p").await.unwrap();
    assert_eq!(kept.metadata.deletion_timestamp, None);
    site.evict(&pod, EvictCause::ScaleDown);
    assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
    site.nothing_more().await;
}

/// Pods that make room for one workload are of use together only.
#[tokio::test]
async fn where_a_budget_protects_one_pod_of_a_set_none_of_it_goes() {
    let mut site = Site::start_with(true, LonePodGroups::Write).await;
    let mut evictions = Vec::new();
    for name in ["a", "b", "c"] {
        let pod = site.pod(name, true).await;
        let decision = site.decision();
        let mut evict = eviction(decision, &pod, EvictCause::Reclaim);
        evict.in_favour_of = Some("default/gang".into());
        evictions.push(evict);
    }
    let send = |site: &Site| {
        let work = Work::Evictions(evictions.clone());
        site.work.send(work).unwrap();
    };
    let all_stay = async |site: &Site| {
        for name in ["a", "b", "c"] {
            let pod = site.pods().get(name).await.unwrap();
            assert_eq!(pod.metadata.deletion_timestamp, None, "{name}");
        }
    };
    // As a budget refuses one of them; the question has an answer at its second try.
    site.server
        .plan("POST", "/a/eviction", Fault::InternalError);
    site.server
        .plan("POST", "/b/eviction", Fault::TooManyRequests);
    send(&site);
    for _ in 0..3 {
        let outcome = site.outcome().await;
        let OutcomeResult::Refused { reason, retryable } = outcome.result else {
            panic!("{outcome:?}");
        };
        assert!(
            retryable && reason.contains("/b may not be evicted"),
            "{reason}"
        );
    }
    all_stay(&site).await;
    // Each of two may go, but not both.
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
        Api::namespaced(site.client.clone(), NS);
    let budget = json!({"metadata": {"name": "pdb"}, "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 2, "currentHealthy": 3, "desiredHealthy": 1, "expectedPods": 3}});
    let budget = serde_json::from_value(budget).unwrap();
    let params = PostParams::default();
    let made = budgets.create(&params, &budget).await.unwrap();
    let status = json!({"status": {"disruptionsAllowed": 2, "currentHealthy": 3, "desiredHealthy": 1, "expectedPods": 3}});
    let patch = kube::api::Patch::Merge(status);
    let name = made.metadata.name.as_deref().unwrap();
    budgets
        .patch_status(name, &kube::api::PatchParams::default(), &patch)
        .await
        .unwrap();
    send(&site);
    for _ in 0..3 {
        let outcome = site.outcome().await;
        let OutcomeResult::Refused { reason, .. } = outcome.result else {
            panic!("{outcome:?}");
        };
        assert!(reason.contains("pdb allows 2 of 3"), "{reason}");
    }
    all_stay(&site).await;
    budgets
        .delete("pdb", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    send(&site);
    for _ in 0..3 {
        assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
    }
    site.nothing_more().await;
}

#[tokio::test]
async fn each_group_that_loses_pods_gets_one_event_with_kais_annotations() {
    let mut site = Site::start().await;
    for name in ["g", "h"] {
        let mut group = api::PodGroup::new(name, api::kai::PodGroupSpec::default());
        group.metadata.uid = Some(format!("u{name}"));
        let key = (NS.to_owned(), name.to_owned());
        site.grouping.known.there(&key, &group);
    }
    let mut evictions = Vec::new();
    for (name, group) in [("a", "g"), ("b", "g"), ("c", "h"), ("d", "unknown")] {
        let pod = site.pod(name, true).await;
        let mut evict = eviction(site.decision(), &pod, EvictCause::Reclaim);
        evict.message = format!("Pod {name} was preempted").into();
        evict.group = Some(format!("{NS}/{group}").as_str().into());
        evict.in_favour_of = Some("team/gang".into());
        evictions.push(evict);
    }
    let count = evictions.len();
    site.work.send(Work::Evictions(evictions)).unwrap();
    // The same group loses one more pod, which makes room for no workload.
    let pod = site.pod("e", true).await;
    let mut evict = eviction(site.decision(), &pod, EvictCause::StaleGang);
    evict.group = Some(format!("{NS}/g").as_str().into());
    site.work.send(Work::Evictions(vec![evict])).unwrap();
    for _ in 0..=count {
        assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
    }
    // One for each of five pods, and three of groups.
    events(&site, 8).await;
    let api: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(site.client.clone(), NS);
    let found = api.list(&kube::api::ListParams::default()).await.unwrap();
    assert_eq!(found.items.len(), 8, "an event too many");
    let of_group = |event: k8s_openapi::api::events::v1::Event| {
        let about = event.regarding?;
        (about.kind.as_deref() == Some("PodGroup")).then(|| {
            let annotations = event.metadata.annotations.unwrap();
            let word = |key: &str| annotations.get(key).cloned().unwrap_or_default();
            [
                about.name.unwrap(),
                word("evictor-action-type"),
                word("num-evicted-pods"),
                word("evictor-pod-group-namespace"),
                word("evictor-pod-group-name"),
                event.note.unwrap(),
            ]
        })
    };
    let mut found: Vec<_> = found.items.into_iter().filter_map(of_group).collect();
    found.sort_unstable();
    // Which of a group's pods is named is which goes first.
    found[0][5] = found[0][5].replace("Pod b", "Pod a");
    assert_eq!(
        found,
        [
            [
                "g",
                "reclaim",
                "4",
                "team",
                "gang",
                "Pod a was preempted (and one more pod of this group)"
            ],
            ["g", "stalegangeviction", "1", "", "", "room is needed"],
            ["h", "reclaim", "4", "team", "gang", "Pod c was preempted"],
        ]
    );
    site.nothing_more().await;
}

#[tokio::test]
async fn where_pods_alone_get_no_groups_no_event_names_one() {
    let mut site = Site::start_with(false, LonePodGroups::Skip).await;
    for name in ["g", "gang"] {
        let mut group = api::PodGroup::new(name, api::kai::PodGroupSpec::default());
        group.metadata.uid = Some(format!("u{name}"));
        let key = (NS.to_owned(), name.to_owned());
        site.grouping.known.there(&key, &group);
    }
    for (name, winner) in [("a", "pg-alone-u"), ("b", "gang")] {
        let pod = site.pod(name, true).await;
        let mut evict = eviction(site.decision(), &pod, EvictCause::Preempt);
        evict.group = Some(format!("{NS}/g").as_str().into());
        evict.in_favour_of = Some(format!("{NS}/{winner}").as_str().into());
        site.work.send(Work::Evictions(vec![evict])).unwrap();
        assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
    }
    // One for each pod, and two of the group.
    events(&site, 4).await;
    let api: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(site.client.clone(), NS);
    let found = api.list(&kube::api::ListParams::default()).await.unwrap();
    let winner = |event: k8s_openapi::api::events::v1::Event| {
        let annotations = event.metadata.annotations?;
        annotations.contains_key("evictor-action-type").then(|| {
            let winner = annotations.get("evictor-pod-group-name");
            winner.cloned().unwrap_or_default()
        })
    };
    let mut winners: Vec<_> = found.items.into_iter().filter_map(winner).collect();
    winners.sort_unstable();
    assert_eq!(winners, ["", "gang"]);
}
