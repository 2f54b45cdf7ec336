//! Against the simulated API server.

use super::*;
use kube::CustomResourceExt as _;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use scheduler_core::model::{Grace, ProductQuota, ProductUnit};
use scheduler_core::units::Bound;
use scheduler_core::{GroupChange, GroupView, OverQueue, ProductView, QueueView, ReasonKind};
use serde_json::json;
use sim_cluster::api_server::{ApiServer, Config, Fault, Handle};

fn queue(name: &str, parent: Option<&str>, held: u128, wanted: u128) -> QueueView {
    QueueView {
        queue: name.into(),
        parent: parent.map(Into::into),
        display_name: None,
        priority: 100,
        quota: [
            Bound::Exactly(2_000_000_000),
            Bound::Unlimited,
            Bound::Unlimited,
        ],
        limit: [Bound::Unlimited; 3],
        fair: Some([1_500_000_000, 0, 0]),
        held: [held, 250, 0],
        held_non_preemptible: [0; 3],
        wanted: [wanted, 0, 0],
        usage: [0; 3],
        products: Vec::new(),
        bad_products: None,
        idle_after: None,
        bad_idle: None,
        holding: 1,
        waiting: 1,
    }
}

fn group(reason: Option<&str>) -> GroupView {
    GroupView {
        group: "default/g".into(),
        running: 1,
        pending: 2,
        held: [500_000_000, 0, 0],
        held_non_preemptible: [0; 3],
        requested: [1_500_000_000, 0, 0],
        core: Box::default(),
        reason: reason.map(|line| (ReasonKind::OverLimit, line.into())),
        over: reason.map(|_| OverQueue {
            queue: "team".into(),
            wanted: [1_000_000_000, 0, 0],
            wanted_non_preemptible: [0; 3],
        }),
    }
}

struct Site {
    client: kube::Client,
    server: Handle,
    registry: Registry,
    views: watch::Sender<Views>,
    groups: mpsc::Sender<GroupReport>,
    _stop: tokio_util::sync::DropGuard,
}

impl Site {
    async fn start() -> Self {
        Self::start_with(true).await
    }

    /// `with_phase`: the definition of pod groups is of KAI 0.15 or older.
    async fn start_with(with_phase: bool) -> Self {
        let server = ApiServer::bind(Config::default()).await.unwrap();
        let handle = server.handle();
        let client = kube::Client::try_from(handle.config()).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        let parameters = kube::api::PostParams::default();
        let kinds = Api::all(client.clone());
        for kind in [api::Queue::crd(), api::PodGroup::crd()] {
            kinds.create(&parameters, &kind).await.unwrap();
        }
        let queues: Api<api::Queue> = Api::all(client.clone());
        for name in ["team", "parent"] {
            let queue = serde_json::from_value(json!({
                "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": {},
            }));
            queues.create(&parameters, &queue.unwrap()).await.unwrap();
        }
        let groups: Api<api::PodGroup> = Api::namespaced(client.clone(), "default");
        let group = serde_json::from_value(json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
            "spec": {"minMember": 1, "queue": "team"},
        }));
        let made = groups.create(&parameters, &group.unwrap()).await.unwrap();
        let known = crate::group::KnownGroups::default();
        for name in ["g".to_owned()]
            .into_iter()
            .chain((0..40).map(|at| format!("g{at}")))
        {
            known.there(&("default".to_owned(), name), &made);
        }
        let events = GroupEvents::new(client.clone(), known, "us".to_owned(), "one".to_owned());
        let (views, reported) = watch::channel(Views::default());
        let (groups, changed) = mpsc::channel(64);
        let inputs = ReportInputs {
            views: reported,
            groups: changed,
            with_phase,
        };
        let mut registry = Registry::default();
        let meters = Arc::new(QueueMeters::registered(&mut registry));
        tokio::spawn(run(
            client.clone(),
            meters,
            Some(events),
            inputs,
            Wall::reads(|| Timestamp::from_second(60).unwrap()),
            stop.clone(),
        ));
        Self {
            client,
            server: handle,
            registry,
            views,
            groups,
            _stop: stop.drop_guard(),
        }
    }

    fn say(&self, queues: Vec<QueueView>, groups: Vec<GroupView>, leading: bool) {
        self.views.send_replace(Views {
            queues,
            capacity: [8_000_000_000, 64_500, 1 << 30],
            shown: BTreeMap::new(),
            leading,
        });
        for view in groups {
            let change = GroupChange::Changed(Box::new(view));
            let report = GroupReport::Change("default".into(), change);
            self.groups.try_send(report).unwrap();
        }
    }

    async fn status(&self, path: &str) -> Value {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let object: Value = self.client.request(request).await.unwrap();
        object["status"].clone()
    }

    async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = async {
            loop {
                last = self.status(path).await;
                if wanted(&last) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(10), found).await;
        assert!(in_time.is_ok(), "{path} is {last}");
        last
    }
}

const QUEUE: &str = "/apis/scheduling.run.ai/v2/queues/team";
const PARENT: &str = "/apis/scheduling.run.ai/v2/queues/parent";
const GROUP: &str = "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups/g";

#[tokio::test]
async fn queues_and_groups_show_what_they_have_in_kais_fields() {
    let site = Site::start().await;
    let queues = || {
        vec![
            queue("team", Some("parent"), 500_000_000, 1_000_000_000),
            queue("parent", None, 500_000_000, 1_000_000_000),
        ]
    };
    site.say(queues(), vec![group(Some("over its limit"))], true);
    let status = site.until(QUEUE, Value::is_object).await;
    assert_eq!(
        status["allocated"],
        json!({"nvidia.com/gpu": "500m", "cpu": "250m", "memory": "0"})
    );
    assert_eq!(status["requested"]["nvidia.com/gpu"], "1500m");
    let parent = site.until(PARENT, Value::is_object).await;
    assert_eq!(parent["childQueues"], json!(["team"]));
    let status = site.until(GROUP, Value::is_object).await;
    assert_eq!(
        (&status["running"], &status["pending"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(
        status["resourcesStatus"]["requested"]["nvidia.com/gpu"],
        "1500m"
    );
    let reason = &status["schedulingConditions"][0]["reasons"][0];
    let gpus = |amount: &str| json!({"nvidia.com/gpu": amount, "cpu": "0", "memory": "0"});
    assert_eq!(reason["reason"], "OverLimit");
    assert_eq!(
        reason["details"]["queueDetails"],
        json!({
            "name": "team",
            "queueRequestedResources": {"nvidia.com/gpu": "1500m", "cpu": "250m", "memory": "0"},
            "queueDeservedResources": {"nvidia.com/gpu": "2", "cpu": "-1", "memory": "-1"},
            "queueAllocatedResources": {"nvidia.com/gpu": "500m", "cpu": "250m", "memory": "0"},
            "queueAllocatedNonPreemptibleResources": gpus("0"),
            "queueResourceLimits": {"nvidia.com/gpu": "-1", "cpu": "-1", "memory": "-1"},
            "podGroupRequestedResources": gpus("1"),
            "podGroupRequestedNonPreemptibleResources": gpus("0"),
        })
    );
    let condition = &status["schedulingConditions"][0];
    assert_eq!(condition["type"], "UnschedulableOnNodePool");
    assert_eq!(condition["reasons"][0]["reason"], "OverLimit");
    // Nothing hinders it any more: the condition goes.
    site.say(queues(), vec![group(None)], true);
    site.until(GROUP, |status| status["schedulingConditions"] == json!([]))
        .await;
}

#[tokio::test]
async fn a_definition_without_a_phase_gets_none() {
    let site = Site::start_with(false).await;
    site.say(Vec::new(), vec![group(None)], true);
    let status = site.until(GROUP, Value::is_object).await;
    for field in ["phase", "running", "pending"] {
        assert_eq!(status[field], Value::Null, "{field}");
    }
}

#[tokio::test]
async fn a_condition_says_what_became_of_the_quotas_of_products() {
    let site = Site::start().await;
    let row = |product: &str, nodes| ProductView {
        row: ProductQuota {
            product: product.into(),
            unit: ProductUnit::Gpus,
            quota: Some(Bound::Exactly(500_000_000)),
            limit: Bound::Unlimited,
        },
        held: 250_000_000,
        held_non_preemptible: 0,
        nodes,
    };
    let say = |products: Vec<ProductView>, bad: Option<&str>| {
        let mut view = queue("team", None, 0, 0);
        view.products = products;
        view.bad_products = bad.map(Into::into);
        site.say(vec![view], vec![], true);
    };
    let said = |status: &Value| {
        let condition = &status["conditions"][0];
        ["type", "status", "reason", "message"].map(|key| condition[key].clone())
    };
    let name = "GpuQuotaByProduct";
    say(vec![row("L4", 2), row("H100", 0)], None);
    let unknown = "no node has GPUs of H100: compare with the node label nvidia.com/gpu.product";
    let status = site
        .until(QUEUE, |status| status["conditions"].is_array())
        .await;
    assert_eq!(said(&status), [name, "True", "UnknownProduct", unknown]);
    assert_eq!(
        status["conditions"][0]["lastTransitionTime"],
        "1970-01-01T00:01:00Z"
    );
    let mut text = String::new();
    encode(&mut text, &site.registry).unwrap();
    let of = "{queue_name=\"team\",product=\"L4\"}";
    for (series, value) in [("quota", "0.5"), ("limit", "-1.0"), ("allocated", "0.25")] {
        let line = format!("aliquot_scheduler_queue_product_{series}_gpus{of} {value}");
        assert!(text.contains(&line), "{line} of {text}");
    }
    say(vec![row("L4", 2)], None);
    site.until(QUEUE, |status| said(status)[2] == "InForce")
        .await;
    say(vec![row("L4", 2)], Some("it is wrong"));
    let status = site
        .until(QUEUE, |status| said(status)[2] == "Invalid")
        .await;
    assert_eq!(said(&status), [name, "False", "Invalid", "it is wrong"]);
    // A condition without a time could not be read back.
    let queues: Api<api::Queue> = Api::all(site.client.clone());
    assert_eq!(
        queues
            .get("team")
            .await
            .unwrap()
            .status
            .unwrap()
            .conditions
            .len(),
        1
    );
    // The annotation is gone, and so is the condition.
    say(Vec::new(), None);
    site.until(QUEUE, |status| status["conditions"].is_null())
        .await;
}

#[tokio::test]
async fn a_write_that_was_not_taken_is_made_again_without_news() {
    let site = Site::start().await;
    for fault in [Fault::InternalError, Fault::LoseAnswer] {
        site.server.plan("PATCH", "/queues/team/status", fault);
    }
    for fault in [Fault::InternalError, Fault::LoseAnswer] {
        site.server.plan("PATCH", "/podgroups/g/status", fault);
    }
    let queues = vec![queue("team", None, 1_000_000_000, 0)];
    site.say(queues, vec![group(None)], true);
    site.until(QUEUE, |status| status["allocated"]["nvidia.com/gpu"] == "1")
        .await;
    site.until(GROUP, |status| status["pending"] == 2).await;
}

#[tokio::test]
async fn what_has_not_changed_is_not_written_again() {
    let site = Site::start().await;
    let queues = || vec![queue("team", None, 1_000_000_000, 0)];
    site.say(queues(), vec![group(Some("over its limit"))], true);
    site.until(QUEUE, Value::is_object).await;
    site.until(GROUP, Value::is_object).await;
    // Would be written over.
    let mark = Patch::Merge(json!({"status": {"allocated": {"nvidia.com/gpu": "7"}}}));
    let queue: Api<api::Queue> = Api::all(site.client.clone());
    let parameters = PatchParams::default();
    queue
        .patch_status("team", &parameters, &mark)
        .await
        .unwrap();
    site.say(queues(), vec![group(None)], true);
    site.until(GROUP, |status| status["schedulingConditions"] == json!([]))
        .await;
    assert_eq!(
        site.status(QUEUE).await["allocated"]["nvidia.com/gpu"],
        json!("7")
    );
}

#[tokio::test]
async fn only_the_leader_writes_and_all_replicas_count() {
    let site = Site::start().await;
    site.say(vec![queue("team", None, 1_000_000_000, 0)], vec![], false);
    let page = || {
        let mut text = String::new();
        encode(&mut text, &site.registry).unwrap();
        text
    };
    let counted = async {
        while !page().contains(r#"kai_queue_allocated_gpus{queue_name="team",queue_metadata_name="team",queue_display_name=""} 1.0"#) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), counted)
        .await
        .expect("counted");
    for line in [
        r#"kai_queue_fair_share_gpu{queue_name="team",queue_metadata_name="team",queue_display_name=""} 1.5"#,
        r#"kai_queue_deserved_gpus{queue_name="team",queue_metadata_name="team",queue_display_name=""} 2.0"#,
        r#"kai_queue_quota_cpu_cores{queue_name="team",queue_metadata_name="team",queue_display_name=""} -1.0"#,
        r#"kai_queue_allocated_cpu_cores{queue_name="team",queue_metadata_name="team",queue_display_name=""} 0.25"#,
    ] {
        assert!(page().contains(line), "{line} is not in\n{}", page());
    }
    assert_eq!(site.status(QUEUE).await, Value::Null);
    // A queue that is gone is counted no more.
    site.say(vec![], vec![], false);
    let gone = async {
        while page().contains("team") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone)
        .await
        .expect("gone");
}

/// When the status of one queue is written in three times [`answer::LANDING`]; the first write
/// has no answer where that is `lost`.
async fn written(lost: bool) -> Vec<Duration> {
    let begin = Instant::now();
    let sent = Arc::new(std::sync::Mutex::new(Vec::new()));
    let times = Arc::clone(&sent);
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let first = {
            let mut times = times.lock().unwrap();
            times.push(begin.elapsed());
            lost && times.len() == 1
        };
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            let body = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
                "metadata": {"name": "team"}, "spec": {}});
            let body = kube::client::Body::from(serde_json::to_vec(&body)?);
            Ok::<_, tower::BoxError>(http::Response::new(body))
        }
    });
    let (views, reported) = watch::channel(Views::default());
    let (_groups, changed) = mpsc::channel(1);
    let inputs = ReportInputs {
        views: reported,
        groups: changed,
        with_phase: true,
    };
    let meters = Arc::new(QueueMeters::registered(&mut Registry::default()));
    let client = kube::Client::new(service, "default");
    let stop = CancellationToken::new();
    tokio::spawn(run(
        client,
        meters,
        None,
        inputs,
        Wall::machine(),
        stop.clone(),
    ));
    let _stop = stop.drop_guard();
    views.send_replace(Views {
        queues: vec![queue("team", None, 0, 0)],
        capacity: [0; 3],
        shown: BTreeMap::new(),
        leading: true,
    });
    tokio::time::sleep(answer::LANDING * 3).await;
    sent.lock().unwrap().clone()
}

/// A write without an answer may come after the one that followed it.
#[tokio::test(start_paused = true)]
async fn a_status_whose_write_had_no_answer_is_written_once_more_when_that_one_cannot_come() {
    let sent = written(true).await;
    assert!(sent[1] < Duration::from_secs(15), "{sent:?}");
    let since = sent.last().unwrap().saturating_sub(sent[0]);
    assert!(since >= answer::LANDING, "{sent:?}");
    assert!(since < answer::LANDING + PAUSE * 2, "{sent:?}");
}

/// A write of the leader before may come after the first of this one.
#[tokio::test(start_paused = true)]
async fn a_new_leader_writes_every_status_once_more_when_no_write_of_the_last_one_can_come() {
    let sent = written(false).await;
    let [first, second] = sent.as_slice() else {
        panic!("{sent:?}");
    };
    let since = second.saturating_sub(*first);
    assert!(since >= answer::LANDING, "{sent:?}");
    assert!(since < answer::LANDING + PAUSE * 2, "{sent:?}");
}

#[tokio::test]
async fn a_group_that_waits_says_so_once_for_each_reason_and_one_that_is_not_ready_has_no_condition()
 {
    let site = Site::start().await;
    let events: Api<k8s_openapi::api::events::v1::Event> =
        Api::namespaced(site.client.clone(), "default");
    let waits = |kind: ReasonKind, line: &str, pending: u32| GroupView {
        reason: Some((kind, line.into())),
        pending,
        ..group(None)
    };
    for (view, condition) in [
        (waits(ReasonKind::NotReady, "Waiting for 3 pods", 1), false),
        (waits(ReasonKind::NotReady, "Waiting for 2 pods", 2), false),
        (waits(ReasonKind::OverLimit, "over its limit", 3), true),
        (waits(ReasonKind::Promised, "has a place", 4), false),
    ] {
        let pending = view.pending;
        site.say(Vec::new(), vec![view], true);
        let status = site
            .until(GROUP, |status| status["pending"] == pending)
            .await;
        let there = status["schedulingConditions"].as_array().unwrap();
        assert_eq!(!there.is_empty(), condition, "{status}");
    }
    let mut said = Vec::new();
    let told = async {
        while said.len() < 2 {
            let list = events
                .list(&kube::api::ListParams::default())
                .await
                .unwrap();
            said = list.items;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), told)
        .await
        .unwrap();
    let mut said: Vec<_> = said
        .iter()
        .map(|event| {
            let about = event.regarding.as_ref().unwrap();
            assert_eq!(about.kind.as_deref(), Some("PodGroup"));
            assert!(about.uid.as_deref().is_some_and(|uid| !uid.is_empty()));
            (
                event.reason.as_deref().unwrap(),
                event.note.as_deref().unwrap(),
            )
        })
        .collect();
    said.sort_unstable();
    assert_eq!(
        said,
        [
            ("NotReady", "Waiting for 3 pods"),
            ("Unschedulable", "over its limit")
        ]
    );
}

#[tokio::test]
async fn of_many_groups_that_begin_to_wait_at_once_each_is_told_though_nothing_else_happens() {
    let site = Site::start().await;
    let events: Api<k8s_openapi::api::events::v1::Event> =
        Api::namespaced(site.client.clone(), "default");
    let groups = (0..40).map(|at| GroupView {
        group: format!("default/g{at}").as_str().into(),
        ..group(Some("over its limit"))
    });
    site.say(Vec::new(), groups.collect(), true);
    let all = async {
        let list = kube::api::ListParams::default();
        while events.list(&list).await.unwrap().items.len() < 40 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all)
        .await
        .expect("40 events");
}

#[test]
fn a_queue_says_what_became_of_its_rule_about_idle_pods() {
    let said = |after: Option<Grace>, bad: Option<&str>| {
        let mut view = queue("team", None, 0, 0);
        (view.idle_after, view.bad_idle) = (after, bad.map(Into::into));
        let status = patch::queue(&view, &patch::Children::new());
        let condition = status["conditions"][0].clone();
        ["type", "status", "reason", "message"].map(|key| condition[key].clone())
    };
    let minutes = Grace::For(scheduler_core::units::Duration::seconds(1800));
    let message = "pods give way to pods that wait after 1800 s without work";
    assert_eq!(
        said(Some(minutes), None),
        ["IdleRule", "True", "InForce", message]
    );
    assert_eq!(
        said(Some(Grace::Never), Some("wrong")),
        ["IdleRule", "False", "Invalid", "wrong"]
    );
    assert_eq!(said(None, None)[0], Value::Null);
}
