//! Against the simulated API server, which loses answers and refuses as it is told.

mod claim;
mod evict;

use super::*;
use crate::config::LonePodGroups;
use crate::convert::volume::name::{BIND_COMPLETED, SELECTED_NODE};
use crate::trust;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use prometheus_client::registry::Registry;
use proto::names::grant as key;
use scheduler_core::ids::{ContainerName, GpuUuid, NodeName, NodeUid};
use scheduler_core::model::{ContainerGrant, Mode};
use scheduler_core::units::{Mib, Percent};
use scheduler_core::{Bind, ClaimBinding, Evict, EvictCause, ReasonKind, Received};
use serde_json::json;
use sim_cluster::api_server::{ApiServer, Config, Fault, Handle};
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::util::MapRequestLayer;

const NS: &str = "default";

fn eviction(decision: DecisionId, pod: &Pod, cause: EvictCause) -> Evict {
    Evict {
        decision,
        pod: PodUid::new(pod.metadata.uid.as_deref().unwrap()),
        namespace: NS.into(),
        name: pod.metadata.name.as_deref().unwrap().into(),
        group: None,
        cause,
        message: "room is needed".into(),
        in_favour_of: None,
    }
}

fn confirmed(outcome: &Outcome) -> bool {
    outcome.result == OutcomeResult::Confirmed
}

fn binding(decision: DecisionId, pod: &Pod, node: &str) -> Bind {
    let name = pod.metadata.name.clone().unwrap();
    Bind {
        decision,
        pod: PodUid::new(pod.metadata.uid.as_deref().unwrap()),
        namespace: NS.into(),
        name: name.as_str().into(),
        node: NodeName::new(node),
        node_uid: NodeUid::new("node-uid"),
        grants: vec![ContainerGrant {
            container: ContainerName::new("c"),
            cards: vec![GpuUuid::new("GPU-1")],
            memory: Mib(2000),
            burst: None,
            compute: Percent::FULL,
            mode: Mode::Mps,
            note: None,
            asked: None,
        }],
        claims: Vec::new(),
        devices: Vec::new(),
        received: Received::Fraction,
        front: scheduler_core::model::Front::Plugin,
        queue: Some("q".into()),
        group: Some("ns/g".into()),
    }
}

struct Site {
    client: Client,
    server: Handle,
    work: channel::Sender<Work>,
    outcomes: channel::Receiver<Outcome>,
    trust: Trust,
    grouping: crate::group::Shared,
    decisions: u64,
    /// The claims on volumes whose changes a test tells.
    awaited: AwaitedClaims,
    /// The number of PUT requests that were sent.
    puts: Arc<AtomicUsize>,
    /// The number of watches that were begun.
    watches: Arc<AtomicUsize>,
    stop: CancellationToken,
}

impl Site {
    async fn start() -> Self {
        Self::start_with(false, LonePodGroups::Write).await
    }

    async fn start_with(budgets: bool, lone_pods: LonePodGroups) -> Self {
        let server = ApiServer::bind(Config::default()).await.unwrap();
        let handle = server.handle();
        let mut config = handle.config();
        config.default_retry = false;
        let puts = Arc::new(AtomicUsize::new(0));
        let watches = Arc::new(AtomicUsize::new(0));
        let counted = (Arc::clone(&puts), Arc::clone(&watches));
        let count = MapRequestLayer::new(move |request: http::Request<kube::client::Body>| {
            let is_put = request.method() == http::Method::PUT;
            counted.0.fetch_add(usize::from(is_put), Ordering::Relaxed);
            let query = request.uri().query().unwrap_or_default();
            let is_watch = query.contains("watch=true");
            counted
                .1
                .fetch_add(usize::from(is_watch), Ordering::Relaxed);
            request
        });
        let awaited = AwaitedClaims::default();
        let client = kube::client::ClientBuilder::try_from(config).unwrap();
        let client = client.with_layer(&count).build();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        let names = ["localhost".to_owned()];
        let trust = trust::establish(&client, NS, &names).await.unwrap();
        let grouping = crate::group::Shared::new(client.clone(), lone_pods);
        let (work, todo) = channel::unbounded();
        let (said, outcomes) = channel::unbounded();
        tokio::spawn(run(
            Settings {
                scheduler_name: "kai-scheduler".into(),
                identity: "test".into(),
                at_once: 8,
                volume_timeout: Duration::from_secs(20),
                awaited: awaited.clone(),
                respect_budgets: budgets,
                pools: [(1, "pool-a".to_owned())].into(),
                busy: watch::Sender::new(false),
                asks_for_nodes: false,
                grouping: grouping.clone(),
                wall: crate::clock::Wall::machine(),
            },
            client.clone(),
            trust.clone(),
            Arc::new(Meters::registered(&mut Registry::default())),
            todo,
            said,
            stop.clone(),
        ));
        Self {
            client,
            server: handle,
            work,
            outcomes,
            trust,
            grouping,
            decisions: 0,
            awaited,
            puts,
            watches,
            stop,
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NS)
    }

    async fn pod(&self, name: &str, owned: bool) -> Pod {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": "o", "controller": true}]);
        let pod = json!({
            "metadata": {"name": name, "ownerReferences": if owned { owner } else { json!([]) }},
            "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "c", "image": "i"}]},
        });
        let pod = serde_json::from_value(pod).unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    fn decision(&mut self) -> DecisionId {
        self.decisions += 1;
        DecisionId {
            epoch: 1,
            sequence: self.decisions,
        }
    }

    fn bind(&mut self, pod: &Pod, node: &str) -> DecisionId {
        let decision = self.decision();
        let bind = binding(decision, pod, node);
        self.work
            .send(Work::Bind(Box::new(bind), Vec::new()))
            .unwrap();
        decision
    }

    fn evict(&mut self, pod: &Pod, cause: EvictCause) -> DecisionId {
        let decision = self.decision();
        let work = Work::Evictions(vec![eviction(decision, pod, cause)]);
        self.work.send(work).unwrap();
        decision
    }

    async fn outcome(&mut self) -> Outcome {
        let outcome = tokio::time::timeout(Duration::from_secs(20), self.outcomes.recv()).await;
        outcome.expect("in time").expect("it runs")
    }

    /// Everything that is under way has ended and said nothing more.
    async fn nothing_more(mut self) {
        self.stop.cancel();
        assert_eq!(self.outcomes.recv().await, None, "an outcome too many");
    }
}

#[tokio::test]
async fn a_binding_carries_node_and_a_grant_signed_for_this_pod() {
    let mut site = Site::start().await;
    let pod = site.pod("p", false).await;
    let decision = site.bind(&pod, "n1");
    let expected = Outcome {
        decision,
        result: OutcomeResult::Confirmed,
    };
    assert_eq!(site.outcome().await, expected);
    let bound = site.pods().get("p").await.unwrap();
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n1"));
    let annotations = bound.metadata.annotations.unwrap();
    assert_eq!(annotations[key::RECEIVED_TYPE], "Fraction");
    let keys = [(
        site.trust.signer().key_id().to_owned(),
        site.trust.signer().public_key(),
    )];
    let verifier = api::Verifier::new(site.trust.cluster_id(), keys.into());
    let identity = api::grant::PodIdentity {
        namespace: NS.into(),
        name: "p".into(),
        uid: pod.metadata.uid.unwrap(),
    };
    let node = api::grant::NodeIdentity {
        name: "n1".into(),
        uid: "node-uid".into(),
    };
    let grant = verifier
        .verify(&annotations[key::GRANT], &identity, &node)
        .unwrap();
    assert_eq!(grant.containers[0].memory_mib.0, 2000);
    site.nothing_more().await;
}

#[tokio::test]
async fn whatever_becomes_of_the_answer_a_pod_is_bound_once_and_that_is_said_once() {
    for faults in [
        vec![Fault::LoseAnswer],
        vec![Fault::TooManyRequests],
        vec![Fault::InternalError],
        vec![Fault::TooManyRequests, Fault::LoseAnswer],
        vec![
            Fault::InternalError,
            Fault::TooManyRequests,
            Fault::LoseAnswer,
        ],
    ] {
        let mut site = Site::start().await;
        let pod = site.pod("p", false).await;
        for fault in &faults {
            site.server.plan("POST", "/p/binding", *fault);
        }
        let decision = site.bind(&pod, "n1");
        let expected = Outcome {
            decision,
            result: OutcomeResult::Confirmed,
        };
        assert_eq!(site.outcome().await, expected, "{faults:?}");
        let bound = site.pods().get("p").await.unwrap();
        assert_eq!(
            bound.spec.unwrap().node_name.as_deref(),
            Some("n1"),
            "{faults:?}"
        );
        site.nothing_more().await;
    }
}

/// It is unknown whether the binding was carried out, and no server answers: that is no outcome.
#[tokio::test]
async fn a_binding_whose_answer_and_whose_reads_are_lost_ends_when_there_is_a_word() {
    for (post, reads) in [
        (Fault::LoseAnswer, 2),
        (Fault::InternalError, 1),
        (Fault::InternalError, 3),
    ] {
        let mut site = Site::start().await;
        let pod = site.pod("p", false).await;
        site.server.plan("POST", "/p/binding", post);
        for _ in 0..reads {
            site.server.plan("GET", "/pods/p", Fault::InternalError);
        }
        let decision = site.bind(&pod, "n1");
        let expected = Outcome {
            decision,
            result: OutcomeResult::Confirmed,
        };
        assert_eq!(site.outcome().await, expected, "{post:?}, {reads} reads");
        site.nothing_more().await;
    }
}

#[tokio::test]
async fn an_api_server_that_stays_busy_ends_in_a_refusal_that_may_be_tried_again() {
    let mut site = Site::start().await;
    let pod = site.pod("p", false).await;
    for _ in 0..10 {
        site.server
            .plan("POST", "/p/binding", Fault::TooManyRequests);
    }
    site.bind(&pod, "n1");
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
    let pod = site.pods().get("p").await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name, None);
    site.nothing_more().await;
}

#[tokio::test]
async fn writes_that_fail_again_and_again_keep_no_other_from_being_sent() {
    let mut site = Site::start().await;
    // One more than the permits.
    for at in 0..9 {
        let name = format!("fails-{at}");
        let pod = site.pod(&name, false).await;
        for _ in 0..40 {
            let path = format!("/{name}/binding");
            site.server.plan("POST", &path, Fault::InternalError);
        }
        site.bind(&pod, "n1");
    }
    let other = site.pod("other", false).await;
    let decision = site.bind(&other, "n1");
    let outcome = tokio::time::timeout(Duration::from_secs(5), site.outcomes.recv()).await;
    let outcome = outcome.expect("in time").expect("it runs");
    assert_eq!(outcome.decision, decision);
    assert_eq!(outcome.result, OutcomeResult::Confirmed);
    site.stop.cancel();
}

#[tokio::test]
async fn a_reason_whose_write_fails_once_is_written_again() {
    for fault in [Fault::TooManyRequests, Fault::InternalError] {
        let site = Site::start().await;
        let pod = site.pod("p", false).await;
        site.server.plan("PATCH", "/p/status", fault);
        let reason = PodReason {
            pod: PodUid::new(pod.metadata.uid.as_deref().unwrap()),
            namespace: NS.into(),
            name: "p".into(),
            mark: true,
            kind: ReasonKind::Unschedulable,
            line: "no nodes".into(),
        };
        site.work
            .send(Work::Reason(reason, Vec::new(), None))
            .unwrap();
        let written = async {
            loop {
                let pod = site.pods().get("p").await.unwrap();
                let conditions = pod.status.and_then(|status| status.conditions);
                if !conditions.unwrap_or_default().is_empty() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let written = tokio::time::timeout(Duration::from_secs(10), written).await;
        assert!(written.is_ok(), "{fault:?}");
        site.stop.cancel();
    }
}

#[tokio::test]
async fn a_pod_that_is_bound_elsewhere_gone_or_recreated_is_not_bound_by_us() {
    let mut site = Site::start().await;
    let elsewhere = site.pod("elsewhere", false).await;
    site.bind(&elsewhere, "n2");
    site.outcome().await;
    site.bind(&elsewhere, "n1");
    let outcome = site.outcome().await;
    assert!(
        matches!(outcome.result, OutcomeResult::Refused { .. }),
        "{outcome:?}"
    );

    let gone = site.pod("p", false).await;
    site.pods()
        .delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    site.bind(&gone, "n1");
    let outcome = site.outcome().await;
    assert!(
        matches!(
            outcome.result,
            OutcomeResult::Refused {
                retryable: false,
                ..
            }
        ),
        "{outcome:?}"
    );

    site.pod("p", false).await;
    site.bind(&gone, "n1");
    let outcome = site.outcome().await;
    assert!(
        matches!(outcome.result, OutcomeResult::Refused { .. }),
        "{outcome:?}"
    );
    let recreated = site.pods().get("p").await.unwrap();
    assert_eq!(
        recreated.spec.unwrap().node_name,
        None,
        "another pod of the same name"
    );
    site.nothing_more().await;
}

#[tokio::test]
async fn a_reason_becomes_a_condition_that_autoscalers_read() {
    let site = Site::start().await;
    let pod = site.pod("p", false).await;
    let reason = PodReason {
        pod: PodUid::new(pod.metadata.uid.as_deref().unwrap()),
        namespace: NS.into(),
        name: "p".into(),
        mark: true,
        kind: ReasonKind::Unschedulable,
        line: "no nodes: GPUs. node n1: GPU-1: full".into(),
    };
    let cards = vec!["node n1: GPU-1: full".to_owned()];
    site.work.send(Work::Reason(reason, cards, None)).unwrap();
    let written = async {
        loop {
            let pod = site.pods().get("p").await.unwrap();
            let conditions = pod.status.and_then(|status| status.conditions);
            if let Some(condition) = conditions.unwrap_or_default().into_iter().next() {
                return condition;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let condition = tokio::time::timeout(Duration::from_secs(5), written)
        .await
        .unwrap();
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("PodScheduled", "False")
    );
    assert_eq!(condition.reason.as_deref(), Some("Unschedulable"));
    assert_eq!(
        condition.message.as_deref(),
        Some("no nodes: GPUs.\nnode n1: GPU-1: full")
    );
    site.nothing_more().await;
}

#[tokio::test]
async fn a_volume_that_another_claim_took_first_is_left_to_it() {
    let mut site = Site::start().await;
    let pod = site.pod("p", false).await;
    let volumes: Api<k8s_openapi::api::core::v1::PersistentVolume> = Api::all(site.client.clone());
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"claimRef":
        {"namespace": NS, "name": "data", "uid": "of-an-older-claim"}}});
    let volume = serde_json::from_value(volume).unwrap();
    volumes
        .create(&PostParams::default(), &volume)
        .await
        .unwrap();
    let decision = site.decision();
    let mut bind = binding(decision, &pod, "n1");
    bind.claims = vec![ClaimBinding {
        uid: "of-this-claim".into(),
        name: format!("{NS}/data").into(),
        volume: Some("pv".into()),
    }];
    site.work
        .send(Work::Bind(Box::new(bind), Vec::new()))
        .unwrap();
    let outcome = site.outcome().await;
    let OutcomeResult::Refused { reason, retryable } = outcome.result else {
        panic!("{outcome:?}");
    };
    assert!(
        reason.contains("\"pv\" went to persistentvolumeclaim default/data") && retryable,
        "{reason}"
    );
    assert_eq!(
        site.pods().get("p").await.unwrap().spec.unwrap().node_name,
        None
    );
    site.nothing_more().await;
}

/// Bindings that wait for a volume hold no permit and have no watch of their own, and an API server that
/// does not answer for a while refuses none of them.
#[tokio::test]
async fn bindings_that_wait_for_volumes_cost_no_watch_and_outlast_an_api_server_that_fails() {
    const PODS: usize = 40;
    let mut site = Site::start().await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(site.client.clone(), NS);
    let names: Vec<String> = (0..PODS).map(|at| format!("data-{at:02}")).collect();
    for name in &names {
        let claim = json!({"metadata": {"name": name}, "spec": {}});
        let claim = serde_json::from_value(claim).unwrap();
        claims.create(&PostParams::default(), &claim).await.unwrap();
        let pod = site.pod(&format!("of-{name}"), false).await;
        let decision = site.decision();
        let mut bind = binding(decision, &pod, "n1");
        bind.claims = vec![ClaimBinding {
            uid: name.as_str().into(),
            name: format!("{NS}/{name}").into(),
            volume: None,
        }];
        let work = Work::Bind(Box::new(bind), Vec::new());
        site.work.send(work).unwrap();
    }
    // More wait than there are permits, and another binding passes them.
    let plain = site.pod("plain", false).await;
    site.bind(&plain, "n1");
    assert!(confirmed(&site.outcome().await));
    for name in &names {
        let selected = async || {
            let claim = claims.get(name).await.unwrap();
            claim.annotations().contains_key(SELECTED_NODE)
        };
        while !selected().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for fault in [Fault::InternalError, Fault::LoseAnswer] {
            site.server.plan("GET", name, fault);
        }
        let bound = json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}},
            "spec": {"volumeName": "pv"}});
        let (params, bound) = (PatchParams::default(), Patch::Merge(bound));
        claims.patch(name, &params, &bound).await.unwrap();
        site.awaited.tell(&format!("{NS}/{name}"));
    }
    for _ in 0..PODS {
        assert!(confirmed(&site.outcome().await));
    }
    assert_eq!(site.watches.load(Ordering::Relaxed), 0);
    site.nothing_more().await;
}

/// The claim goes, and the binding reads it again.
#[tokio::test]
async fn a_claim_that_is_gone_refuses_the_binding() {
    let mut site = Site::start().await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(site.client.clone(), NS);
    let claim = json!({"metadata": {"name": "data"}, "spec": {}});
    let claim = serde_json::from_value(claim).unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    let pod = site.pod("p", false).await;
    let mut bind = binding(site.decision(), &pod, "n1");
    bind.claims = vec![ClaimBinding {
        uid: "data".into(),
        name: format!("{NS}/data").into(),
        volume: None,
    }];
    let work = Work::Bind(Box::new(bind), Vec::new());
    site.work.send(work).unwrap();
    assert_eq!(events(&site, 1).await[0][2], "WaitingForVolume");
    // The binding has read the claim by then. One that has not finds it gone in any case.
    tokio::time::sleep(Duration::from_millis(500)).await;
    claims
        .delete("data", &DeleteParams::default())
        .await
        .unwrap();
    site.awaited.tell(&format!("{NS}/data"));
    let outcome = site.outcome().await;
    let OutcomeResult::Refused { reason, .. } = outcome.result else {
        panic!("{outcome:?}");
    };
    assert_eq!(&*reason, "persistentvolumeclaim \"data\" is gone");
}

/// Kind of the object, type, reason and note.
async fn events(site: &Site, count: usize) -> Vec<[String; 4]> {
    let api: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(site.client.clone(), NS);
    let mut found = Vec::new();
    let there = async {
        while found.len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let list = api.list(&kube::api::ListParams::default()).await.unwrap();
            let of = |event: k8s_openapi::api::events::v1::Event| {
                let kind = event.regarding.and_then(|about| about.kind);
                [kind, event.type_, event.reason, event.note].map(Option::unwrap_or_default)
            };
            found = list.items.into_iter().map(of).collect();
        }
    };
    tokio::time::timeout(Duration::from_secs(10), there)
        .await
        .expect("events");
    found.sort_unstable();
    found
}

#[tokio::test]
async fn a_refused_binding_a_promise_and_a_stale_group_are_told_as_kai_tells_them() {
    let mut site = Site::start().await;
    let pod = site.pod("p", false).await;
    for _ in 0..4 {
        site.server
            .plan("POST", "/p/binding", Fault::TooManyRequests);
    }
    site.bind(&pod, "n1");
    site.outcome().await;
    let waits = site.pod("q", false).await;
    let reason = scheduler_core::PodReason {
        pod: waits.metadata.uid.unwrap().as_str().into(),
        namespace: NS.into(),
        name: "q".into(),
        mark: true,
        kind: scheduler_core::ReasonKind::Promised,
        line: "Waits for resources".into(),
    };
    site.work
        .send(Work::Reason(reason, Vec::new(), None))
        .unwrap();
    let mut group = api::PodGroup::new("g", api::kai::PodGroupSpec::default());
    group.metadata.uid = Some("ug".into());
    let key = (NS.to_owned(), "g".to_owned());
    site.grouping.known.there(&key, &group);
    let name = format!("{NS}/g");
    for since in [Some(scheduler_core::units::Time(0)), None] {
        let work = Work::Stamp(name.as_str().into(), GroupStamp::Stale(since));
        site.work.send(work).unwrap();
    }
    let said = events(&site, 3).await;
    let heads: Vec<[&str; 3]> = said
        .iter()
        .map(|[kind, of, reason, _]| [kind.as_str(), of, reason])
        .collect();
    assert_eq!(
        heads,
        [
            ["Pod", "Normal", "Pipelined"],
            ["Pod", "Warning", "FailedBinding"],
            ["PodGroup", "Normal", "StaleJob"]
        ]
    );
    assert!(said[1][3].starts_with(&format!("Failed to bind pod {NS}/p to node n1. ")));
    assert!(said[2][3].contains("stale since 1970-01-01T00:00:00Z"));
    site.bind(&pod, "n1");
    assert_eq!(site.outcome().await.result, OutcomeResult::Confirmed);
}
