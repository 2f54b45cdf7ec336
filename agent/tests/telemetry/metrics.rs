//! Metrics and health pages.

use crate::sample;
use agent::gpu::{ComputeMode, GpuUuid};
use agent::node::{Note, RefusedGrant, State, Ungranted};
use agent::telemetry::http::{Pages, router};
use agent::telemetry::metrics::{Meters, NodeCollector};
use api::grant::PodIdentity;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tower::ServiceExt as _;

struct Fixture {
    meters: Meters,
    pages: Pages,
    state: watch::Sender<Arc<State>>,
}

fn scene() -> Fixture {
    scene_of(sample::state())
}

fn scene_of(state: State) -> Fixture {
    let mut registry = Registry::default();
    let meters = Meters::new(&mut registry, &channel::Lengths::default());
    let (state, receiver) = watch::channel(Arc::new(state));
    registry.register_collector(Box::new(NodeCollector {
        state: receiver.clone(),
    }));
    let pages = Pages {
        registry: Arc::new(registry),
        state: receiver,
    };
    Fixture {
        meters,
        pages,
        state,
    }
}

impl Fixture {
    async fn get(&self, path: &str) -> (StatusCode, String, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router(self.pages.clone()).oneshot(request).await.unwrap();
        let status = answer.status();
        let kind = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, kind, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn value(&self, series: &str) -> Option<String> {
        let (_, _, text) = self.get("/metrics").await;
        text.lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
            .map(str::to_owned)
    }
}

#[tokio::test]
async fn gauges_are_those_of_the_state_at_the_scrape_with_dcgm_exporters_labels() {
    let scene = scene();
    let (status, kind, text) = scene.get("/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        kind,
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    assert!(text.ends_with("# EOF\n"), "{text}");
    let card = r#"gpu="0",UUID="GPU-0",device="nvidia4",modelName="NVIDIA RTX 6000 Ada Generation",Hostname="n1""#;
    let whole = format!(r#"{{{card},namespace="",pod="",container=""}}"#);
    let held = format!(r#"{{{card},namespace="ns",pod="p",container="main"}}"#);
    for (series, value) in [
        (
            format!("aliquot_gpu_memory_granted_bytes{whole}"),
            2000_u64 << 20,
        ),
        (
            format!("aliquot_gpu_memory_strangers_bytes{whole}"),
            200 << 20,
        ),
        (format!("aliquot_gpu_ready{whole}"), 1),
        (format!("aliquot_gpu_mps_clients{whole}"), 2),
        (format!("aliquot_gpu_mps_restarts{whole}"), 3),
        (
            format!("aliquot_share_memory_limit_bytes{held}"),
            2000 << 20,
        ),
        (format!("aliquot_share_memory_used_bytes{held}"), 1200 << 20),
        (format!("aliquot_share_sm_percent{held}"), 40),
        (format!("aliquot_share_idle_minutes{held}"), 3),
        (format!("aliquot_share_running{held}"), 1),
        (r#"aliquot_node_unreadable{part="proofs"}"#.to_owned(), 0),
        ("aliquot_node_stale_samples".to_owned(), 7),
    ] {
        assert_eq!(
            scene.value(&series).await,
            Some(value.to_string()),
            "{series}\n{text}"
        );
    }
    scene.state.send_replace(Arc::new(State::default()));
    let gone = format!("aliquot_share_memory_limit_bytes{held}");
    assert_eq!(scene.value(&gone).await, None);
}

#[tokio::test]
async fn every_note_moves_its_metric() {
    let scene = scene();
    let took = Duration::from_millis(2);
    let resource = "aliquot.dev/gpu-share";
    let pod = PodIdentity {
        uid: "u".into(),
        namespace: "ns".into(),
        name: "p".into(),
    };
    let since = |seconds| Note::Registered {
        resource: resource.to_owned(),
        since_start: Duration::from_secs(seconds),
    };
    let refusal = RefusedGrant {
        pod: pod.clone(),
        container: "main".into(),
        decision: "d".into(),
        reason: "taken".into(),
        is_final: true,
    };
    let before = scene.get("/metrics").await.2;
    for note in [
        Note::Refused(refusal),
        Note::Allocated { took },
        Note::PreStarted {
            took,
            granted: true,
        },
        Note::Claimed {
            took,
            waited: Duration::from_micros(1500),
            granted: true,
        },
        Note::PreStarted {
            took,
            granted: false,
        },
        since(1),
        since(100),
        Note::Xid {
            gpu: GpuUuid::from("GPU-0"),
            xid: 79,
        },
        Note::Freed { pod: "ns/p".into() },
        Note::LimitsLost {
            gpu: GpuUuid::from("GPU-0"),
            missing: "no dmem".into(),
        },
        Note::ComputeMode {
            gpu: GpuUuid::from("GPU-0"),
            is: ComputeMode::Default,
            needed: ComputeMode::ExclusiveProcess,
        },
        Note::Ungranted(Ungranted {
            pod: PodIdentity {
                uid: "u".into(),
                namespace: "ns".into(),
                name: "p".into(),
            },
            container: "c".into(),
            resource: "aliquot.dev/gpu-share".into(),
            devices: 48,
        }),
        Note::Unproven {
            pod: pod.clone(),
            container: "main".into(),
        },
        Note::Violation {
            pod,
            container: "main".into(),
            wrong: "memory",
            action: "killed",
            text: "holds too much".into(),
        },
        Note::Stranger {
            gpu: GpuUuid::from("GPU-0"),
            pod_uid: "u".into(),
            action: "reported",
        },
        Note::ServerBroke {
            server: "GPU-0".into(),
            state: "ServerFault",
            blamed: "unknown".into(),
            reason: "it faulted".into(),
        },
        Note::ServerMended {
            server: "GPU-0".into(),
            after: took,
        },
    ] {
        scene.meters.note(&note);
    }
    scene.meters.connected();
    scene.meters.connected();
    scene.meters.disconnected();
    scene.meters.status_written(true);
    scene.meters.status_written(false);
    let after = scene.get("/metrics").await.2;
    for (series, value) in [
        (r#"aliquot_refusals_total{final="true"}"#, "1"),
        (r#"aliquot_refusals_total{final="false"}"#, "0"),
        ("aliquot_allocate_seconds_count", "1"),
        (r#"aliquot_allocate_seconds_bucket{le="0.0025"}"#, "1"),
        (r#"aliquot_allocate_seconds_bucket{le="0.001"}"#, "0"),
        ("aliquot_prestart_seconds_count", "2"),
        (r#"aliquot_claim_prepare_seconds_count{outcome="ok"}"#, "1"),
        // Two milliseconds, of which one and a half were waits.
        (
            r#"aliquot_claim_prepare_work_seconds_bucket{le="0.001",outcome="ok"}"#,
            "1",
        ),
        (r#"aliquot_containers_prepared_total{outcome="ok"}"#, "1"),
        (r#"aliquot_containers_prepared_total{outcome="error"}"#, "1"),
        (
            r#"aliquot_registrations_total{resource="aliquot.dev/gpu-share"}"#,
            "2",
        ),
        (
            r#"aliquot_start_to_registered_seconds{resource="aliquot.dev/gpu-share"}"#,
            "1.0",
        ),
        (r#"aliquot_xid_errors_total{UUID="GPU-0",xid="79"}"#, "1"),
        ("aliquot_driver_limits_lost_total", "1"),
        ("aliquot_shares_freed_total", "1"),
        ("aliquot_unproven_containers_total", "1"),
        ("aliquot_ungranted_containers_total", "1"),
        (
            r#"aliquot_violations_total{wrong="memory",action="killed"}"#,
            "1",
        ),
        (
            r#"aliquot_violations_total{wrong="no-grant",action="reported"}"#,
            "1",
        ),
        (
            r#"aliquot_mps_servers_broke_total{state="ServerFault"}"#,
            "1",
        ),
        ("aliquot_mps_mended_seconds_count", "1"),
        ("aliquot_telemetry_streams", "1"),
        ("aliquot_telemetry_connects_total", "2"),
        (r#"aliquot_status_writes_total{outcome="ok"}"#, "1"),
        (r#"aliquot_status_writes_total{outcome="error"}"#, "1"),
    ] {
        let line = format!("{series} {value}\n");
        assert!(after.contains(&line), "{line}{after}");
    }
    // Nothing is registered that nothing moves: every family that is ours and no gauge of
    // the state's has another text now.
    for family in before
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
    {
        let name = family.split(' ').next().unwrap();
        let gauges = ["aliquot_gpu_", "aliquot_share_", "aliquot_node_"];
        if gauges.iter().any(|gauge| name.starts_with(gauge)) {
            continue;
        }
        let of = |text: &str| {
            let lines = text.lines().filter(|line| line.starts_with(name));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_ne!(of(&before), of(&after), "{name} is never moved");
    }
}

#[tokio::test]
async fn health_says_what_is_missing() {
    let scene = scene();
    assert_eq!(scene.get("/healthz").await.0, StatusCode::OK);
    assert_eq!(scene.get("/readyz").await.0, StatusCode::OK);
    let mut state = sample::state();
    state.ready.registered = false;
    scene.state.send_replace(Arc::new(state));
    let (status, _, text) = scene.get("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(text, "waits for the kubelet to take our registration\n");
    let Fixture {
        pages,
        state,
        meters,
    } = scene;
    drop(state);
    let (unused, _) = watch::channel(Arc::new(State::default()));
    let orphan = Fixture {
        meters,
        pages,
        state: unused,
    };
    assert_eq!(
        orphan.get("/healthz").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
}

#[tokio::test]
async fn a_slice_has_its_cards_labels_and_two_of_its_own() {
    let scene = scene_of(sample::sliced(Some("1g.10gb")));
    let labels = r#"gpu="0",UUID="MIG-0",device="nvidia4",modelName="NVIDIA RTX 6000 Ada Generation",Hostname="n1",namespace="",pod="",container="",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7""#;
    let series = format!("aliquot_gpu_healthy{{{labels}}}");
    assert_eq!(scene.value(&series).await.as_deref(), Some("1"));
}
