//! An hour of a cluster, on a clock that the test sets: what is remembered, drawn and reported.

use crate::browser::Browser;
use crate::picture;
use crate::site::{Site, Sized, node_name, status};
use api::GpuNode;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use kube::api::{Api, Patch, PatchParams, PostParams};
use proto::names::{NAMESPACE, object, telemetry};
use proto::telemetry::agent_message::Body;
use proto::telemetry::telemetry_client::TelemetryClient;
use proto::telemetry::{AgentMessage, NodeState};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// 2026-01-05T09:00:00Z.
const BEGIN: i64 = 1_767_603_600;
const NODES: u32 = 4;
/// Of 30 s.
const STEPS: u32 = 125;

/// An agent's stream to the scheduler.
struct Agent {
    out: mpsc::Sender<AgentMessage>,
    answers: tonic::Streaming<proto::telemetry::SchedulerMessage>,
    sequence: u64,
}

impl Agent {
    async fn open(client: &kube::Client, address: SocketAddr, node: &str) -> Self {
        let nodes: Api<Node> = Api::all(client.clone());
        let has = json!({"cpu": "64", "memory": "512Gi", "pods": "110", "aliquot.dev/gpu-share": "384",
            "aliquot.dev/gpu-memory-mib": "647552", "aliquot.dev/gpu-milli": "8000"});
        let object = json!({"metadata": {"name": node, "labels": {"topology.kubernetes.io/rack": format!("rack-{}", &node[4..])}},
            "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}});
        let object = serde_json::from_value(object).unwrap();
        nodes.create(&PostParams::default(), &object).await.unwrap();
        let request: TokenRequest = serde_json::from_value(json!({"metadata": {}, "spec": {
            "audiences": [telemetry::AUDIENCE], "expirationSeconds": 7 * 24 * 3600,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}}}))
        .unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
        let minted = accounts
            .create_token_request(object::AGENT_ACCOUNT, &PostParams::default(), &request)
            .await
            .unwrap();
        let token = minted.status.unwrap().token.unwrap();
        let trust: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let authority = loop {
            let found = trust.get_opt(object::TRUST_CONFIG_MAP).await.unwrap();
            let data = found.and_then(|map| map.data).unwrap_or_default();
            if let Some(authority) = data.get(object::TRUST_CA) {
                break authority.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority))
            .domain_name("127.0.0.1");
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
        let (out, messages) = mpsc::channel(4);
        let first = out.clone();
        let mut agent = Request::new(ReceiverStream::new(messages));
        let bearer = format!("Bearer {token}").parse().unwrap();
        agent.metadata_mut().insert("authorization", bearer);
        // The server sends its first message once it has received one.
        first.send(message(1, empty(node))).await.unwrap();
        let answers = TelemetryClient::new(channel).report(agent).await.unwrap();
        let mut agent = Self {
            out,
            answers: answers.into_inner(),
            sequence: 1,
        };
        agent.answers.message().await.unwrap();
        agent
    }

    async fn say(&mut self, state: NodeState) {
        self.sequence += 1;
        self.out.send(message(self.sequence, state)).await.unwrap();
        self.answers.message().await.unwrap();
    }
}

fn message(sequence: u64, state: NodeState) -> AgentMessage {
    AgentMessage {
        sequence,
        agent_instance: "a".into(),
        release: proto::names::RELEASE.to_owned(),
        body: Some(Body::State(state)),
    }
}

fn empty(node: &str) -> NodeState {
    NodeState {
        node: node.into(),
        ..NodeState::default()
    }
}

/// A node at one step: its shares use more and less, one card fails for a while, and one share
/// runs into its limit.
fn state(number: u32, object: &GpuNode, step: u32) -> NodeState {
    let mut state = scheduler::observe::said(object);
    for (at, share) in (0_u32..).zip(&mut state.shares) {
        let wave = (step + at / 4 + 2 * number) % 60;
        share.memory_used_mib = u64::from(2000 + 400 * wave.min(60 - wave));
        share.fence = "ServerLimit".into();
        share.sm_percent = Some(wave.min(60 - wave));
        if number == 2 && at == 3 && step >= 80 {
            share.complaint = "held 16100 of 16000 MiB: its processes were killed".into();
        }
    }
    for gpu in &mut state.gpus {
        let on = state
            .shares
            .iter()
            .filter(|share| share.gpu_uuids.contains(&gpu.uuid));
        gpu.memory_used_mib = on.map(|share| share.memory_used_mib).sum();
        if number == 1 && gpu.index == 2 && (40..60).contains(&step) {
            gpu.health = "Unhealthy".into();
            gpu.health_reason = "XID 79: the card has fallen off the bus".into();
        }
    }
    state
}

/// A pod that holds a share, of a job.
fn holder(number: u32, name: &str, queue: &str) -> Value {
    let job = format!("train-{}", number % 3);
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "lab", "labels": {"kai.scheduler/queue": queue},
            "annotations": {"gpu-memory": "16000"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": "j", "controller": true}]},
        "spec": {"schedulerName": "kai-scheduler", "nodeName": node_name(number), "containers": [{"name": "main", "image": "i"}]}})
}

/// What it was granted.
fn granted(number: u32, card: &str, pod: &Pod, queue: &str) -> Value {
    let node = node_name(number);
    let (uid, name) = (&pod.metadata.uid, &pod.metadata.name);
    let containers = json!([{"name": "main", "gpus": [card], "memoryMib": 16_000, "computePercent": 100, "mode": "mps"}]);
    let grant = json!({"v": 1, "key": "", "cluster": "", "decision": "1-1", "queue": queue, "containers": containers,
        "pod": {"uid": uid, "namespace": "lab", "name": name}, "node": {"name": node, "uid": ""}});
    json!({"metadata": {"annotations": {"aliquot.dev/grant": format!("c2ln.{grant}")}}})
}

async fn fill(client: &kube::Client) {
    let create = PostParams::default();
    let queues: Api<api::Queue> = Api::all(client.clone());
    for (name, parent) in [
        ("company", None),
        ("research", Some("company")),
        ("product", Some("company")),
    ] {
        let resource = json!({"quota": 8, "limit": -1, "overQuotaWeight": 1});
        let mut queue = json!({"metadata": {"name": name}, "spec": {"resources": {"gpu": resource, "cpu": resource, "memory": resource}}});
        if let Some(parent) = parent {
            queue["spec"]["parentQueue"] = json!(parent);
        }
        queues
            .create(&create, &serde_json::from_value(queue).unwrap())
            .await
            .unwrap();
    }
}

async fn run(site: &Site, clock: &AtomicI64) {
    let client = &site.client;
    fill(client).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "lab");
    let nodes: Api<GpuNode> = Api::all(client.clone());
    let mut agents = Vec::new();
    for number in 1..=NODES {
        let node = node_name(number);
        let mut object = GpuNode::new(&node, api::GpuNodeSpec::default());
        let mut status = status(number, 8);
        let gpus = status.gpus.iter_mut();
        for (card, grant) in gpus.flat_map(|gpu| gpu.grants.iter_mut().map(|one| (&gpu.uuid, one)))
        {
            let name = grant.pod.split_once('/').unwrap().1;
            let queue = if number % 2 == 0 {
                "research"
            } else {
                "product"
            };
            let pod = serde_json::from_value(holder(number, name, queue)).unwrap();
            let made: Pod = pods.create(&PostParams::default(), &pod).await.unwrap();
            let patch = Patch::Merge(granted(number, card, &made, queue));
            pods.patch(name, &PatchParams::default(), &patch)
                .await
                .unwrap();
            grant.pod_uid = made.metadata.uid.unwrap();
        }
        let patch = Patch::Merge(json!({"status": status}));
        nodes
            .patch_status(&node, &PatchParams::default(), &patch)
            .await
            .unwrap();
        object.status = Some(status);
        agents.push((object, Agent::open(client, site.telemetry, &node).await));
    }
    for step in 0..STEPS {
        clock.store(BEGIN + i64::from(step) * 30 + 5, Ordering::Relaxed);
        for (number, (object, agent)) in (1..).zip(&mut agents) {
            agent.say(state(number, object, step)).await;
        }
        if step % 15 == 5 {
            // It waits: no node has room.
            let pod = json!({"metadata": {"name": format!("later-{step}"), "labels": {"kai.scheduler/queue": "research"}},
                "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main", "image": "i",
                    "resources": {"limits": {"nvidia.com/gpu": "9"}}}]}});
            pods.create(
                &PostParams::default(),
                &serde_json::from_value(pod).unwrap(),
            )
            .await
            .unwrap();
        }
        if step == 100 {
            let name = "pod-2-0-0";
            let at = jiff::Timestamp::from_second(clock.load(Ordering::Relaxed)).unwrap();
            let told = json!({"status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": "Pod lab/pod-2-0-0 was preempted by higher priority workload lab/urgent", "lastTransitionTime": at.to_string()}]}});
            pods.patch_status(name, &PatchParams::default(), &Patch::Merge(told))
                .await
                .unwrap();
        }
        // The scheduler looks at its clock ten times a second.
        tokio::time::sleep(Duration::from_millis(220)).await;
    }
}

#[test]
fn an_hour_is_drawn_read_out_and_reported_without_prometheus() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let clock = Arc::new(AtomicI64::new(BEGIN));
    let site = Site::start(Sized {
        nodes: NODES,
        clock: clock.clone(),
        ..Sized::default()
    });
    site.runtime.block_on(run(&site, &clock));

    browser.open(&site.page);
    browser.heading("Now");
    // What the agents say of SM time, over all cards.
    browser.until(
        "/SM busy[^0-9]*[1-9][0-9]* %/.test(document.querySelector('.panels')?.innerText ?? '')",
    );
    browser.until("document.querySelectorAll('.card').length === 32");
    browser.evaluate("location.hash = '#/time'");
    browser.heading("Time");
    browser.says("This scheduler's history begins at");
    for mark in ["fault", "recovered", "limit", "evicted"] {
        browser.until(&format!(
            "!!document.querySelector('#chart-fleet .mark.{mark}')"
        ));
    }
    browser.says("XID 79: the card has fallen off the bus");
    browser.says("was preempted by higher priority workload lab/urgent");
    picture(&mut browser, "page-time.png");
    // On a phone the chart is narrow, and its text keeps its size.
    browser.size(390, 844);
    let scale = "(() => { const chart = document.getElementById('chart-fleet'); return chart.getBoundingClientRect().width / chart.viewBox.baseVal.width; })()";
    browser.until(&format!("{scale} > 0.9"));
    browser.size(1280, 800);
    browser.until(&format!(
        "{scale} > 0.9 && document.getElementById('chart-fleet').viewBox.baseVal.width > 1000"
    ));
    // The keyboard reads single moments out.
    let read = "document.getElementById('read-fleet').textContent";
    let now = browser.evaluate(read);
    browser.evaluate("document.getElementById('chart-fleet').focus()");
    browser.press("ArrowLeft");
    browser.until(&format!("{read} !== {now}"));
    browser.press("Home");
    browser.until(&format!("{read}.includes('granted')"));
    browser.press("End");
    browser.until(&format!("{read} === {now}"));
    let spoken = browser.spoken();
    let charts = spoken
        .iter()
        .filter(|(role, name)| role == "image" && name.contains("Memory of all cards: grantable"));
    assert_eq!(charts.count(), 1, "{spoken:#?}");
    let known = "document.querySelectorAll('#figure-waiting tbody tr').length > 10";
    browser.until(known);
    browser.click("#span-day");
    browser.until("document.getElementById('span-day').ariaPressed === 'true'");
    browser.until("document.querySelector('#chart-fleet')?.dataset.count === '288'");

    browser.evaluate("location.hash = '#/card/n0002/1'");
    browser.heading("Card 1 of n0002");
    browser.until("document.querySelector('#chart-card')?.dataset.count === '120'");

    browser.evaluate("location.hash = '#/queues'");
    browser.heading("Queues");
    browser.click("#queue-research");
    browser.heading("Queue research");
    browser.until("document.querySelector('#chart-held')?.dataset.count === '60'");
    browser.until("document.querySelectorAll('#chart-held .mark.evicted').length === 1");
    let held = "fetch('api/time?of=queue&name=research').then((r) => r.json()).then((j) => j.series.held.at(-1) > 1000)";
    browser.until(held);
    picture(&mut browser, "page-queue.png");
    browser.click("#span-fortnight");
    browser.until("document.querySelector('#chart-held')?.dataset.count === '336'");

    browser.click("nav a[href='#/report']");
    browser.heading("Report");
    browser.says("research");
    browser.until("document.querySelectorAll('tbody tr').length >= 2");
    browser.evaluate("location.hash = '#/report?by=owner&hours=24&price=2.5'");
    browser.says("Job/train-1");
    browser.says("Cost");
    // Fields say what the address says.
    browser.until("document.getElementById('by').value === 'owner'");
    picture(&mut browser, "page-report.png");
    let sums = browser.evaluate(
        "fetch('api/report?by=queue').then((r) => r.json()).then((j) => [j.rows.reduce((s, r) => s + r.gpuHours, 0), j.cards.gpuHours - j.cards.freeGpuHours, j.seconds])",
    );
    let of = |at: usize| sums[at].as_i64().unwrap();
    assert!(
        (of(0) - of(1)).abs() <= of(1) / 100 + 10,
        "what queues held is what was granted: {sums}"
    );
    assert!(of(2) >= 3600, "{sums}");

    // By the rack of its node, as the node's label says.
    browser.evaluate("location.hash = '#/fleet?group=topology.kubernetes.io/rack&colour=queue'");
    browser.until("document.querySelectorAll('#as-table tbody tr').length === 4");
    browser.until("document.querySelector('#legend').innerText.includes('research')");
    let none: Vec<String> = Vec::new();
    assert_eq!(browser.complaints(), none);
}
