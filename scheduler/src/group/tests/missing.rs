//! When a missing group is created again, on a paused clock.

use super::site::NS;
use crate::clock::Wall;
use crate::config::LonePodGroups;
use crate::group::relay::{GrouperChannels, GrouperEvent};
use crate::group::{self, Settings, Shared};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// When the pod `p` was read, in milliseconds from now on. It is in a group that cannot be
/// made: its owner does not exist.
fn api(reads: &Arc<Mutex<Vec<u128>>>) -> Client {
    let (reads, begin) = (Arc::clone(reads), Instant::now());
    let service = tower::service_fn(move |request: Request<Body>| {
        let is_pod = request.uri().path().ends_with("/pods/p");
        if is_pod {
            reads.lock().unwrap().push(begin.elapsed().as_millis());
        }
        async move {
            let (code, body) = if is_pod {
                let owner =
                    json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"});
                let pod = json!({
                    "metadata": {"name": "p", "namespace": NS, "uid": "p", "ownerReferences": [owner],
                        "annotations": {"pod-group-name": "pg-p-u"}},
                    "spec": {"schedulerName": "kai-scheduler", "containers": []},
                });
                (200, pod)
            } else {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                    "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404});
                (404, status)
            };
            let body = Body::from(serde_json::to_vec(&body)?);
            Ok::<_, tower::BoxError>(Response::builder().status(code).body(body)?)
        }
    });
    Client::new(service, NS)
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_recreated_is_tried_again_less_and_less_often() {
    let reads = Arc::default();
    let client = api(&reads);
    let (news_out, news) = channel::unbounded();
    let (decided, _decisions) = channel::unbounded();
    let (_leading, leads) = watch::channel(true);
    let stop = CancellationToken::new();
    let settings = Settings {
        scheduler_name: "kai-scheduler".into(),
        identity: "test".into(),
        at_once: 8,
        busy: watch::channel(false).1,
        queue_label: proto::names::kai::QUEUE_LABEL.into(),
        types: None,
        alone_wait: false,
        deployment_gangs: true,
        lengths: channel::Lengths::default(),
        wall: Wall::machine(),
    };
    tokio::spawn(group::run(
        settings,
        client.clone(),
        Shared::new(client, LonePodGroups::Write),
        GrouperChannels { news, decided },
        leads,
        stop.clone(),
    ));
    let _stop = stop.drop_guard();
    let report = || {
        let pod = Some("p".to_owned());
        let (namespace, name) = (NS.to_owned(), "pg-p-u".to_owned());
        let news = GrouperEvent::NoGroup {
            namespace,
            name,
            pod,
        };
        news_out.send(news).unwrap();
    };
    // However often it is reported.
    for _ in 0..3 {
        report();
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    report();
    tokio::time::sleep(Duration::from_secs(220)).await;
    let pauses = [
        2_000, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000,
    ];
    let mut at = 0;
    let expected = pauses.map(|pause| {
        at += pause;
        at
    });
    assert_eq!(*reads.lock().unwrap(), expected);
}
