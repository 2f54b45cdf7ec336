//! Claims about what is remembered between facts.

use super::whole::placement;
use super::*;
use crate::bursts::Bursts;
use crate::telemetry::AgentEvent;
use crate::watch::{Fact, Key, Seen};
use proto::telemetry::NodeState;
use proto::telemetry::{Gpu, Share as HeldShare, Stranger, UngrantedPod};
use scheduler_core::Event;
use scheduler_core::ids::GpuUuid;
use scheduler_core::ids::{NodeName, PodUid};
use scheduler_core::model::Phase;
use scheduler_core::units::Time;
use serde_json::{Value, json};

pub(crate) fn there<K: serde::de::DeserializeOwned>(object: Value) -> Seen<K> {
    Seen::There(serde_json::from_value(object).unwrap())
}

pub(super) fn gone<K: serde::de::DeserializeOwned + Key>(object: Value) -> Seen<K> {
    Seen::Gone(serde_json::from_value::<K>(object).unwrap().key())
}

/// What the next decision knows of it.
pub(super) fn settled(world: &mut World, fact: Fact) -> Vec<Event> {
    let mut events = world.take(fact);
    events.extend(world.elapse(Time(0)));
    events
}

pub(crate) fn pod(uid: &str, node: Option<&str>, gpus: u32) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns", "uid": uid},
        "spec": {"schedulerName": "kai-scheduler", "nodeName": node, "containers": [
            {"name": "main", "resources": {"limits": {proto::names::resource::GPU: gpus.to_string()}}}]}})
}

pub(super) fn world() -> World {
    World::new("kai-scheduler")
}

#[test]
fn a_pod_is_gone_once() {
    let mut world = world();
    world.take(Fact::Pod(there(pod("u2", None, 0))));
    assert_eq!(
        world.take(Fact::Pod(gone(pod("u2", None, 0)))),
        [Event::PodGone(PodUid::new("u2"))]
    );
    assert!(world.take(Fact::Pod(gone(pod("u2", None, 0)))).is_empty());
}

/// The end of each kind's listing; priority classes last.
pub(crate) fn listed() -> [Fact; 19] {
    [
        Fact::Pod(Seen::Listed),
        Fact::Node(Seen::Listed),
        Fact::GpuNode(Seen::Listed),
        Fact::Queue(Seen::Listed),
        Fact::Group(Seen::Listed),
        Fact::Topology(Seen::Listed),
        Fact::Shard(Seen::Listed),
        Fact::Namespace(Seen::Listed),
        Fact::ConfigMap(Seen::Listed),
        Fact::Claim(Seen::Listed),
        Fact::Volume(Seen::Listed),
        Fact::Storage(Seen::Listed),
        Fact::CsiNode(Seen::Listed),
        Fact::CsiDriver(Seen::Listed),
        Fact::CsiCapacity(Seen::Listed),
        Fact::DeviceSlice(Seen::Listed),
        Fact::DeviceClass(Seen::Listed),
        Fact::DeviceClaim(Seen::Listed),
        Fact::Class(Seen::Listed),
    ]
}

/// The watch may lag behind what the leader before bound: a listing that was under way
/// counts for nothing.
#[test]
fn a_new_leader_knows_enough_when_a_listing_that_began_afterwards_has_ended() {
    let mut world = world();
    for fact in listed() {
        assert!(!world.awaited().is_empty());
        world.take(fact);
    }
    assert!(world.awaited().is_empty());
    world.take(Fact::Pod(Seen::Listing));
    world.begins_to_lead();
    assert!(!world.awaited().is_empty());
    world.take(Fact::Pod(Seen::Listed));
    assert!(!world.awaited().is_empty(), "that one began before");
    world.take(Fact::Pod(Seen::Listing));
    assert!(!world.awaited().is_empty());
    world.take(Fact::Pod(Seen::Listed));
    assert!(
        !world.awaited().is_empty(),
        "claims on devices are listed, too"
    );
    world.take(Fact::DeviceClaim(Seen::Listing));
    world.take(Fact::DeviceClaim(Seen::Listed));
    assert!(world.awaited().is_empty());
}

#[test]
fn nothing_is_complete_before_every_kind_was_listed() {
    let mut world = world();
    assert_eq!(world.missing().len(), 19);
    let [kinds @ .., classes] = listed();
    for fact in kinds {
        world.take(fact);
    }
    assert_eq!(world.missing(), ["priorityclasses"]);
    world.take(classes);
    assert!(world.missing().is_empty());
}

#[test]
fn a_node_is_managed_while_its_gpu_node_exists_and_heartbeats_are_no_news() {
    let mut world = world();
    let node = json!({"metadata": {"name": "n1", "uid": "x"}});
    let gpu_node = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}, "spec": {}});
    let managed = |events: Vec<Event>| match events.as_slice() {
        [Event::Node(node)] => node.managed,
        other => panic!("{other:?}"),
    };
    assert!(!managed(world.take(Fact::Node(there(node.clone())))));
    assert!(world.take(Fact::Node(there(node))).is_empty());
    assert!(managed(world.take(Fact::GpuNode(there(gpu_node.clone())))));
    assert!(
        world
            .take(Fact::GpuNode(there(gpu_node.clone())))
            .is_empty()
    );
    assert!(!managed(world.take(Fact::GpuNode(gone(gpu_node)))));
}

#[test]
fn a_node_aligns_as_its_gpu_node_says_before_its_agent_is_heard() {
    let mut world = world();
    let node = json!({"metadata": {"name": "n1", "uid": "x"}});
    let gpu_node = |spec: Value| {
        let object = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n1"}, "spec": spec});
        Fact::GpuNode(there(object))
    };
    let aligns = |events: Vec<Event>| match events.as_slice() {
        [Event::Node(node)] => node.aligns,
        other => panic!("{other:?}"),
    };
    let restricted = || gpu_node(json!({"topologyManager": {"policy": "restricted"}}));
    assert!(world.take(restricted()).is_empty());
    assert!(aligns(world.take(Fact::Node(there(node)))));
    let best = json!({"topologyManager": {"policy": "best-effort"}});
    assert!(!aligns(world.take(gpu_node(best))));
    assert!(aligns(world.take(restricted())));
    assert!(world.take(restricted()).is_empty());
}

#[test]
fn a_node_whose_agent_is_heard_or_listed_is_managed_before_its_gpu_node_is_seen() {
    let mut world = world();
    let node = |allocatable: Value| json!({"metadata": {"name": "n1", "uid": "x"}, "status": {"allocatable": allocatable}});
    let managed = |events: &[Event]| {
        let mut nodes = events.iter().filter_map(|event| match event {
            Event::Node(node) => Some(node.managed),
            _ => None,
        });
        nodes.next_back()
    };
    let events = world.take(Fact::Node(there(node(json!({"nvidia.com/gpu": "1"})))));
    assert_eq!(managed(&events), Some(false));
    assert_eq!(managed(&world.hear(heard(state(vec![])))), Some(true));
    let lost = AgentEvent::Lost { node: "n1".into() };
    assert_eq!(managed(&world.hear(lost)), Some(false));
    let listed = node(json!({"aliquot.dev/gpu-memory-mib": "0"}));
    assert_eq!(managed(&world.take(Fact::Node(there(listed)))), Some(true));
}

/// `kubectl delete node`: the kubelet creates it again, and the agent's stream lives on.
#[test]
fn a_node_that_is_recreated_under_its_agent_has_its_cards_again() {
    let mut world = world();
    let node = || json!({"metadata": {"name": "n1", "uid": "x"}});
    let cards = |events: Vec<Event>| {
        let cards = events.into_iter().filter_map(|event| match event {
            Event::Cards(cards) => Some(cards),
            _ => None,
        });
        cards.collect::<Vec<_>>()
    };
    world.take(Fact::Node(there(node())));
    let first = cards(world.hear(heard(state(vec![]))));
    assert_eq!(first.len(), 1);
    assert!(cards(world.take(Fact::Node(gone(node())))).is_empty());
    assert_eq!(cards(world.take(Fact::Node(there(node())))), first);
    assert!(cards(world.hear(heard(state(vec![])))).is_empty());
}

#[test]
fn a_pod_that_its_agent_wants_gone_is_asked_for_once_it_is_known_and_once_only() {
    let mut world = world();
    let mut unwanted = state(vec![HeldShare {
        pod_uid: "u1".into(),
        complaint: "its card is unhealthy: XID 79".into(),
        evict: true,
        ..HeldShare::default()
    }]);
    unwanted.strangers.push(Stranger {
        pod_uid: "u2".into(),
        pid: 7,
        command: "python".into(),
        gpu_uuid: "GPU-1".into(),
        evict: true,
        ..Stranger::default()
    });
    let asked = |events: Vec<Event>| {
        let requests = events.into_iter().filter_map(|event| match event {
            Event::EvictRequest(request) => Some(format!("{}: {}", request.pod, request.reason)),
            _ => None,
        });
        requests.collect::<Vec<_>>()
    };
    // Another node's agent that is first is not in the way.
    let first = AgentEvent::State {
        node: "n0".into(),
        state: NodeState {
            node: "n0".into(),
            gpus: Vec::new(),
            strangers: unwanted.strangers.clone(),
            ..NodeState::default()
        },
    };
    assert!(asked(world.hear(first)).is_empty());
    assert!(asked(world.hear(heard(unwanted.clone()))).is_empty());
    assert_eq!(
        asked(world.take(Fact::Pod(there(pod("u1", Some("n1"), 1))))),
        ["u1: its card is unhealthy: XID 79"]
    );
    assert_eq!(
        asked(world.take(Fact::Pod(there(pod("u2", Some("n1"), 1))))),
        ["u2: process 7 (python) uses card GPU-1 without a grant"; 2]
    );
    assert!(asked(world.hear(heard(unwanted.clone()))).is_empty());
    // Another node's word does not stand in for that of the pod's own node.
    let hog = |node: &str| NodeState {
        node: node.into(),
        ungranted: vec![UngrantedPod {
            pod_uid: "u4".into(),
            container: "main".into(),
            resource: "aliquot.dev/gpu-share".into(),
            devices: 48,
        }],
        ..NodeState::default()
    };
    world.take(Fact::Pod(there(pod("u4", Some("n1"), 1))));
    for node in ["n2", "n1"] {
        let said = AgentEvent::State {
            node: node.into(),
            state: hog(node),
        };
        assert_eq!(
            asked(world.hear(said)),
            ["u4: container main holds 48 of aliquot.dev/gpu-share and has no grant"]
        );
    }
    // What was not wanted any more before the pod was seen is forgotten.
    unwanted.shares[0].pod_uid = "u3".into();
    world.hear(heard(unwanted));
    world.hear(heard(state(vec![])));
    assert!(asked(world.take(Fact::Pod(there(pod("u3", Some("n1"), 1))))).is_empty());
}

#[test]
fn a_pod_that_was_to_be_gone_two_minutes_ago_is_not_counted_on() {
    // The containers of one of them were still being created when its node died.
    for running in ["Running", "Pending"] {
        gives_up(running);
    }
}

fn gives_up(running: &str) {
    let mut leaving = pod("u1", Some("n1"), 1);
    leaving["status"] = json!({"phase": running});
    let before = leaving.clone();
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    leaving["metadata"]["deletionGracePeriodSeconds"] = json!(60);
    let phase = |events: Vec<Event>| match <[Event; 1]>::try_from(events) {
        Ok([Event::Pod(pod)]) => pod.phase,
        other => panic!("{other:?}"),
    };
    let begin = 1_767_225_600_000;
    let hour = 3_600_000;
    // The first two pods are seen before their deletion, by a clock that is an hour ahead or behind,
    // and by a replica that has decided nothing yet. The last is first seen while it is being deleted.
    for (seen_before, now) in [(true, begin + hour), (true, begin - hour), (false, begin)] {
        let mut world = world();
        let see = |world: &mut World, pod: &Value| {
            world.tell_time(Time(now));
            phase(world.take(Fact::Pod(there(pod.clone()))))
        };
        if seen_before {
            see(&mut world, &before);
        }
        assert!(matches!(
            see(&mut world, &leaving),
            Phase::Releasing(Some(_))
        ));
        let until = now + 180_000;
        assert_eq!(world.wake_at(), Some(Time(until)));
        assert!(world.elapse(Time(until - 1)).is_empty());
        assert!(matches!(phase(world.elapse(Time(until))), Phase::Stuck(_)));
        assert_eq!(world.wake_at(), None, "said once");
        assert!(
            matches!(see(&mut world, &leaving), Phase::Stuck(_)),
            "and it stays so"
        );
        world.take(Fact::Pod(gone(leaving.clone())));
        assert_eq!(world.wake_at(), None);
    }
}

#[test]
fn a_refusal_that_a_pod_shows_is_told_once_and_only_of_a_pod_that_stands() {
    let refused = |running: &str| {
        let mut pod = pod("u1", Some("n1"), 1);
        pod["status"] = json!({"phase": running, "conditions": [
            {"type": "aliquot.dev/IsolationVerified", "status": "False", "reason": "GrantRefused",
                "message": "the grant is for another node"}]});
        pod
    };
    let told = |world: &mut World, pod: Value| {
        let events = world.take(Fact::Pod(there(pod)));
        let reason = events.iter().find_map(|event| match event {
            Event::Refused(refusal) => Some(refusal.reason.to_string()),
            _ => None,
        });
        assert!(matches!(events[0], Event::Pod(_)), "the pod comes first");
        reason
    };
    let mut world = world();
    let reason = told(&mut world, refused("Running"));
    assert_eq!(reason.as_deref(), Some("the grant is for another node"));
    assert_eq!(told(&mut world, refused("Running")), None, "told again");
    let mut next = self::world();
    assert_eq!(told(&mut next, refused("Succeeded")), None);
}

fn state(shares: Vec<HeldShare>) -> NodeState {
    NodeState {
        node: "n1".into(),
        gpus: vec![Gpu {
            uuid: "GPU-1".into(),
            memory_total_mib: 1000,
            memory_grantable_mib: 1000,
            health: "Healthy".into(),
            ..Gpu::default()
        }],
        shares,
        ..NodeState::default()
    }
}

fn heard(state: NodeState) -> AgentEvent {
    AgentEvent::State {
        node: "n1".into(),
        state,
    }
}

#[test]
fn the_same_word_twice_is_no_event_and_silence_is_one() {
    let mut world = world();
    assert_eq!(world.hear(heard(state(vec![]))).len(), 1);
    let mut used = state(vec![]);
    used.gpus[0].memory_used_mib = 77;
    assert!(
        world.hear(heard(used)).is_empty(),
        "a sample entered the core"
    );
    let lost = || AgentEvent::Lost { node: "n1".into() };
    assert_eq!(world.hear(lost()), [Event::AgentLost(NodeName::new("n1"))]);
    assert!(world.hear(lost()).is_empty());
    assert_eq!(world.hear(heard(state(vec![]))).len(), 1);
}

/// A kubelet without the plugin permanently rejects pods that are bound to its node.
#[test]
fn nothing_is_placed_on_the_cards_of_an_agent_without_a_stream() {
    let mut world = world();
    let mut of = |heard: AgentEvent| match world.hear(heard).as_slice() {
        [Event::Cards(cards)] => Some(cards.clone()),
        [] => None,
        other => panic!("{other:?}"),
    };
    let ended = || AgentEvent::Disconnected { node: "n1".into() };
    assert_eq!(of(ended()), None, "not known yet");
    let first = of(heard(state(vec![]))).unwrap();
    assert_eq!(first.not_offering, None);
    let closed = of(ended()).unwrap();
    assert_eq!(
        closed.not_offering.as_deref(),
        Some("its agent is not connected")
    );
    assert!(
        closed
            .cards
            .iter()
            .all(|card| card.pool == scheduler_core::model::Pool::None)
    );
    assert_eq!(closed.cards.len(), first.cards.len());
    assert_eq!(of(ended()), None, "said once");
    assert_eq!(of(heard(state(vec![]))), Some(first));
}

/// Its claim's devices are what it has: its agent's rows of them are no grant.
#[test]
fn a_whole_card_by_the_claim_that_stands_in_for_it_is_no_grant() {
    let mut world = world();
    let mut by_claim = pod("u1", Some("n1"), 1);
    by_claim["status"] = json!({"extendedResourceClaimStatus": {"resourceClaimName": "c",
        "requestMappings": [{"containerName": "main", "resourceName": "nvidia.com/gpu",
            "requestName": "container-0-request-0"}]}});
    let events = world.take(Fact::Pod(there(by_claim)));
    let Some(Event::Pod(pod)) = events.first() else {
        panic!("{events:?}");
    };
    assert_eq!(
        placement(pod).map(|place| (place.front, place.grants.len())),
        Some((scheduler_core::model::Front::Claim, 0))
    );
    let share = HeldShare {
        pod_uid: "u1".into(),
        container: "main".into(),
        gpu_uuids: vec!["GPU-2".into()],
        memory_mib: 1000,
        mode: "exclusive".into(),
        ..HeldShare::default()
    };
    let events = world.hear(heard(state(vec![share])));
    let is_pod = |event: &Event| matches!(event, Event::Pod(_));
    assert!(!events.iter().any(is_pod), "{events:?}");
}

#[test]
fn a_whole_card_that_the_kubelet_picked_itself_is_taken_in() {
    let mut world = world();
    world.take(Fact::Pod(there(pod("u1", Some("n1"), 1))));
    let share = HeldShare {
        pod_uid: "u1".into(),
        container: "main".into(),
        gpu_uuids: vec!["GPU-2".into()],
        memory_mib: 1000,
        mode: "exclusive".into(),
        ..HeldShare::default()
    };
    let elsewhere = AgentEvent::State {
        node: "n2".into(),
        state: NodeState {
            node: "n2".into(),
            ..state(vec![share.clone()])
        },
    };
    let events = world.hear(elsewhere);
    assert!(
        !events.iter().any(|event| matches!(event, Event::Pod(_))),
        "a pod of another node was taken in"
    );
    let events = world.hear(heard(state(vec![share.clone()])));
    let adopted = events.iter().find_map(|event| match event {
        Event::Pod(pod) => placement(pod).map(|placement| placement.grants.clone()),
        _ => None,
    });
    assert_eq!(adopted.unwrap()[0].cards, [GpuUuid::new("GPU-2")]);
    // Said once; and the pod's next change keeps it.
    assert!(world.hear(heard(state(vec![share]))).is_empty());
    let events = world.take(Fact::Pod(there(pod("u1", Some("n1"), 1))));
    let Event::Pod(pod) = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!(placement(pod).unwrap().grants.len(), 1);
}

/// Its figures change with each look; it is told once, and that it is over.
#[test]
fn what_befell_a_share_is_told_once() {
    let mut world = world();
    world.take(Fact::Pod(there(pod("u1", Some("n1"), 1))));
    let mut told = |complaint: &str| -> Option<Option<String>> {
        let share = HeldShare {
            pod_uid: "u1".into(),
            pod_namespace: "ns".into(),
            pod_name: "p".into(),
            container: "main".into(),
            memory_mib: 2000,
            mode: "mps".into(),
            phase: "Running".into(),
            fence: "ServerLimit".into(),
            observed_limit_mib: 2000,
            reach_mib: 2000,
            complaint: complaint.into(),
            ..HeldShare::default()
        };
        world.hear(heard(state(vec![share])));
        Some(world.owed_conditions(Time(0)).pop()?.condition.event)
    };
    assert_eq!(told(""), Some(None));
    let first = Some(Some("container main holds 900 MiB".to_owned()));
    assert_eq!(told("holds 900 MiB"), first);
    assert_eq!(told("holds 901 MiB"), None);
    assert_eq!(told(""), Some(None));
}

#[test]
fn isolation_is_verified_only_by_a_limit_that_was_read_back_and_cannot_be_lifted() {
    let mut world = world();
    let share = |fence: &str, observed, reach| HeldShare {
        pod_uid: "u1".into(),
        pod_namespace: "ns".into(),
        pod_name: "p".into(),
        container: "main".into(),
        memory_mib: 2000,
        mode: "mps".into(),
        phase: "Running".into(),
        fence: fence.into(),
        observed_limit_mib: observed,
        reach_mib: reach,
        ..HeldShare::default()
    };
    // Until the pod's node is known nothing is told; then that node's agent alone counts.
    let unknown = state(vec![share("", 0, 0)]);
    world.take(Fact::Pod(there(pod("u1", Some("n1"), 1))));
    world.hear(heard(unknown));
    assert_eq!(world.owed_conditions(Time(0)), [], "nothing is known yet");
    world.take(Fact::Pod(gone(pod("u1", Some("n1"), 1))));
    let first = share("ServerLimit", 0, 0);
    world.hear(heard(state(vec![first.clone()])));
    assert!(world.read_shares_again().is_empty());
    assert_eq!(world.owed_conditions(Time(0)), []);
    world.take(Fact::Pod(there(pod("u1", Some("n1"), 1))));
    assert!(world.read_shares_again().is_empty());
    let told = world.owed_conditions(Time(0));
    assert!(told.len() == 1 && told[0].condition.because == "NotReadBack");
    assert_eq!(world.owed_conditions(Time(0)), []);
    let other = AgentEvent::State {
        node: "n2".into(),
        state: NodeState {
            node: "n2".into(),
            ..state(vec![share("ServerLimit", 2000, 2000)])
        },
    };
    world.hear(other);
    assert_eq!(world.owed_conditions(Time(0)), [], "another node's agent");
    let mut said = |fence, observed, reach| {
        let heard = heard(state(vec![share(fence, observed, reach)]));
        world.hear(heard);
        let one = world.owed_conditions(Time(0)).pop()?.condition;
        Some((one.because, one.message))
    };
    for (fence, observed, reach, because, message) in [
        (
            "ClientLimit",
            8000,
            8000,
            "Guarded",
            "Guarded by ClientLimit, 2000 MiB granted, 8000 MiB read back, reach 8000 MiB until the watchdog acts",
        ),
        (
            "ServerLimit",
            2000,
            2000,
            "Guarded",
            "Guarded by ServerLimit, 2000 MiB granted, 2000 MiB read back, reach 2000 MiB",
        ),
        (
            "ServerLimit",
            1024,
            49140,
            "NotReadBack",
            "ServerLimit, 2000 MiB granted, 1024 MiB read back, reach 49140 MiB until the watchdog acts",
        ),
        (
            "WatchdogOnly",
            0,
            49140,
            "Watched",
            "Watched by WatchdogOnly, 2000 MiB granted, no limit read back, reach 49140 MiB until the watchdog acts",
        ),
        (
            "",
            0,
            0,
            "NotReadBack",
            "no fence, 2000 MiB granted, no limit read back, reach not known",
        ),
    ] {
        let expected = (because, format!("container main: {message}"));
        assert_eq!(said(fence, observed, reach), Some(expected));
        assert_eq!(said(fence, observed, reach), None, "said twice");
    }
}

#[test]
fn a_groups_priority_follows_its_class() {
    let mut world = world();
    let group = json!({"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "ns"}, "spec": {"priorityClassName": "high"}});
    let priority = |events: Vec<Event>| match events.as_slice() {
        [Event::Group(group)] => group.priority,
        other => panic!("{other:?}"),
    };
    // The watch tells of groups again when a class has changed.
    assert_eq!(priority(world.take(Fact::Group(there(group.clone())))), 50);
    let class = json!({"metadata": {"name": "high"}, "value": 125});
    world.take(Fact::Class(there(class.clone())));
    assert_eq!(priority(world.take(Fact::Group(there(group.clone())))), 125);
    world.take(Fact::Class(gone(class)));
    assert_eq!(priority(world.take(Fact::Group(there(group)))), 50);
}

#[test]
fn a_share_that_waits_is_held_no_further_above_its_request_than_the_admin_lets_it() {
    let mut pod = pod("u1", None, 0);
    pod["metadata"]["annotations"] = json!({
        "nvidia.com/container.main.gpu-memory.request": "1000Mi",
        "nvidia.com/container.main.gpu-memory.limit": "3000Mi",
    });
    let burst = |world: World| {
        let events = { world }.take(Fact::Pod(there(pod.clone())));
        let [Event::Pod(pod)] = events.as_slice() else {
            panic!("{events:?}");
        };
        let scheduler_core::model::Ask::Share(share) = &pod.gpus[0].ask else {
            panic!("{pod:?}");
        };
        (share.amount, share.burst)
    };
    let memory = |mib| scheduler_core::model::Amount::Memory(scheduler_core::units::Mib(mib));
    assert_eq!(burst(world()), (memory(1000), Some(memory(3000))));
    let held = |bursts| burst(world().with_bursts(bursts));
    assert_eq!(held(Bursts::NONE), (memory(1000), None));
    let ratio = Bursts::parse("1.5").unwrap();
    assert_eq!(held(ratio), (memory(1000), Some(memory(1500))));
    // Who has a place has what was granted.
    let bound = {
        let mut pod = pod.clone();
        pod["spec"]["nodeName"] = json!("n1");
        pod
    };
    let events = world().with_bursts(ratio).take(Fact::Pod(there(bound)));
    let [Event::Pod(pod)] = events.as_slice() else {
        panic!("{events:?}");
    };
    let scheduler_core::model::Ask::Share(share) = &pod.gpus[0].ask else {
        panic!("{pod:?}");
    };
    assert_eq!(share.burst, Some(memory(3000)));
}

#[test]
fn an_idle_pod_is_told_to_the_core_once_it_is_seen_and_counts_as_working_while_its_agent_is_silent()
{
    let mut world = world();
    let minute = 60_000;
    world.tell_time(Time(10 * minute));
    let share = HeldShare {
        pod_uid: "u1".into(),
        pod_namespace: "ns".into(),
        pod_name: "p".into(),
        container: "main".into(),
        mode: "mps".into(),
        phase: "Running".into(),
        idle_minutes: Some(3),
        ..HeldShare::default()
    };
    let since = |events: Vec<Event>| -> Vec<Option<Time>> {
        let activity = |event| match event {
            Event::Activity(said) => Some(said.idle_since),
            _ => None,
        };
        events.into_iter().filter_map(activity).collect()
    };
    let idle = heard(state(vec![share]));
    // A restarted scheduler may hear the agent before it has listed the pod.
    assert_eq!(since(world.hear(idle.clone())), []);
    world.take(Fact::Pod(there(pod("u1", Some("n1"), 1))));
    let known = since(world.read_shares_again());
    assert_eq!(known, [Some(Time(7 * minute))]);
    assert_eq!(since(world.hear(idle.clone())), []);
    let silent = AgentEvent::Disconnected { node: "n1".into() };
    assert_eq!(since(world.hear(silent)), [None]);
    assert_eq!(since(world.hear(idle)), known);
    let lost = AgentEvent::Lost { node: "n1".into() };
    assert_eq!(since(world.hear(lost)), [None]);
}
