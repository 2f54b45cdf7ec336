//! A node's word: `AgentMessage`, through the scheduler's eyes and its core.

use super::world::{Cluster, NODE, state, told};
use crate::{Shape, Target};
use prost::Message as _;
use proto::telemetry::agent_message::Body;
use proto::telemetry::{AgentMessage, Heartbeat, Refusal, Share, Stranger};
use scheduler::telemetry::AgentEvent;
use scheduler::watch::{Fact, Seen};
use scheduler_core::Event;
use scheduler_core::units::Time;
use serde_json::json;

pub(super) const TARGET: Target = Target {
    name: "telemetry",
    shape: Shape::Wire,
    words: &[
        "n1",
        "n2",
        "GPU-0",
        "GPU-1",
        "exclusive",
        "mps",
        "mps-isolated",
        "time-slicing",
        "Healthy",
        "Running",
        "Prepared",
        "ServerLimit",
        "u1",
        "u2",
        "ns",
        "p",
        "main",
        "7-1",
        "whole",
        "shared",
    ],
    seeds,
    large: crate::target::none,
    // A card of two bytes is a struct of several hundred, and is held several times here.
    heap: 600,
    run,
};

fn run(input: &[u8]) {
    let Ok(message) = AgentMessage::decode(input) else {
        return;
    };
    let again = AgentMessage::decode(message.encode_to_vec().as_slice());
    assert_eq!(again.as_ref(), Ok(&message), "what is written is not read");
    let mut cluster = Cluster::new();
    let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"schedulerName": "kai-scheduler", "nodeName": NODE, "containers": [{"name": "main",
            "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}, "status": {"phase": "Running"}});
    let pod = serde_json::from_value(pod).expect("a pod");
    cluster.take(Fact::Pod(Seen::There(Box::new(pod))));
    let node = NODE.to_owned();
    let heard = match message.body {
        // A state of another node ends the stream.
        Some(Body::State(state)) if state.node == NODE => AgentEvent::State { node, state },
        Some(Body::Refusal(refusal)) => AgentEvent::Refusal { node, refusal },
        _ => return,
    };
    let events = cluster.world.hear(heard.clone());
    let isolation = cluster.world.owed_conditions(Time(0));
    assert_eq!(
        told(&events).err(),
        None,
        "what an agent says cannot be written down"
    );
    for event in &events {
        match event {
            Event::Cards(cards) => {
                assert_eq!(cards.node.as_str(), NODE);
                for card in &cards.cards {
                    let most = card.total.0.saturating_sub(card.reserved.0);
                    assert!(card.grantable.0 <= most, "{card:?}");
                }
            }
            Event::Refusal(refusal) => assert_eq!(refusal.node.as_str(), NODE),
            Event::EvictRequest(request) => assert_eq!(request.node.as_str(), NODE),
            _ => {}
        }
        cluster.core.apply(event.clone());
    }
    if let AgentEvent::State { state, .. } = &heard {
        let told = isolation.iter().map(|owed| &owed.condition);
        for told in told.filter(|told| told.holds) {
            let shares = state.shares.iter().filter(|share| {
                share.pod_uid == told.uid && share.phase == "Running" && share.mode != "exclusive"
            });
            for share in shares {
                let held = share.fence == "DriverLimit";
                assert!(
                    held && share.observed_limit_mib == share.memory_mib,
                    "verified, and not read back: {share:?}"
                );
            }
        }
    }
    cluster.decide();
    // The same word twice changes nothing.
    if matches!(heard, AgentEvent::State { .. }) {
        let again = cluster.world.hear(heard);
        let conditions = cluster.world.owed_conditions(Time(0));
        assert!(again.iter().all(|event| !matches!(event, Event::Cards(_))));
        assert!(conditions.is_empty(), "{conditions:?}");
    }
    cluster.hear(AgentEvent::Lost {
        node: NODE.to_owned(),
    });
    cluster.decide();
}

fn seeds() -> Vec<Vec<u8>> {
    let message = |body| AgentMessage {
        sequence: 1,
        body: Some(body),
        ..AgentMessage::default()
    };
    let share = |mode: &str| Share {
        pod_uid: "u1".into(),
        pod_namespace: "ns".into(),
        pod_name: "p".into(),
        container: "main".into(),
        gpu_uuids: vec!["GPU-1".into()],
        memory_mib: 2000,
        compute_percent: 100,
        mode: mode.into(),
        alloc_id: "0a".repeat(16),
        phase: "Running".into(),
        memory_used_mib: 1000,
        fence: "ServerLimit".into(),
        observed_limit_mib: 2000,
        decision_id: "7-1".into(),
        ..Share::default()
    };
    let mut busy = state();
    busy.shares = vec![share("mps"), share("exclusive")];
    busy.shares[1].evict = true;
    busy.strangers = vec![Stranger {
        gpu_uuid: "GPU-0".into(),
        pid: 4711,
        command: "python".into(),
        memory_mib: 300,
        pod_uid: "u1".into(),
        evict: true,
        ..Stranger::default()
    }];
    let mut silent = state();
    silent.not_offering = "the driver is gone".into();
    let refusal = Refusal {
        pod_uid: "u1".into(),
        pod_namespace: "ns".into(),
        pod_name: "p".into(),
        container: "main".into(),
        decision_id: "7-1".into(),
        reason: "no room".into(),
        r#final: true,
    };
    [
        message(Body::State(state())),
        message(Body::State(busy)),
        message(Body::State(silent)),
        message(Body::Refusal(refusal)),
        message(Body::Heartbeat(Heartbeat {})),
    ]
    .iter()
    .map(prost::Message::encode_to_vec)
    .collect()
}
