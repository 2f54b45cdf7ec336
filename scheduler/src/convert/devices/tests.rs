//! Claims about what is told of devices and claims.

use super::super::tests::{gone, pod as any_pod, settled, there, world};
use crate::convert::World;
use crate::watch::{Fact, Seen};
use scheduler_core::Event;
use scheduler_core::model::{Allocation, Count, DevicePool, Front, Phase, Pod, PoolFault};
use scheduler_core::text;
use scheduler_core::units::Time;
use serde_json::{Value, json};

const CLASS: &str = "gpu.example.com";

fn slice(name: &str, more: Value) -> Fact {
    let mut slice = json!({"metadata": {"name": name}, "spec": {
    "driver": "gpu.example.com", "nodeName": "n1",
    "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    "devices": [
        {"name": "gpu-0", "attributes": {"model": {"string": "L4"}, "gpu.example.com/cores": {"int": 8}}},
        {"name": "gpu-1", "attributes": {"model": {"string": "A100"}}},
    ]}});
    json_patch::merge(&mut slice, &more);
    Fact::DeviceSlice(there(slice))
}

fn class(name: &str, cel: &str) -> Fact {
    Fact::DeviceClass(there(json!({"metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": cel}}]}})))
}

fn claim_object(name: &str, requests: Value, more: Value) -> Value {
    let mut claim = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"),
        "labels": {"kai.scheduler/queue": "default-queue"}},
        "spec": {"devices": {"requests": requests}}});
    json_patch::merge(&mut claim, &more);
    claim
}

fn claim(name: &str, requests: Value, more: Value) -> Fact {
    Fact::DeviceClaim(there(claim_object(name, requests, more)))
}

fn one() -> Value {
    json!([{"name": "r", "exactly": {"deviceClassName": CLASS}}])
}

fn pod(uid: &str, node: Option<&str>, claim: &str) -> Value {
    let mut pod = any_pod(uid, node, 0);
    pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": claim}]);
    pod
}

/// The pod of the last event that is about one.
fn told(events: &[Event]) -> &Pod {
    let pod = events.iter().rev().find_map(|event| match event {
        Event::Pod(pod) => Some(&**pod),
        _ => None,
    });
    pod.expect("a pod")
}

fn pool(events: &[Event]) -> &DevicePool {
    let pool = events.iter().rev().find_map(|event| match event {
        Event::Devices(pool) => Some(pool),
        _ => None,
    });
    pool.expect("a pool")
}

fn allocation(events: &[Event]) -> &Allocation {
    let claim = events.iter().find_map(|event| match event {
        Event::Allocated(claim) => Some(claim),
        _ => None,
    });
    claim.expect("a claim with devices")
}

/// Why it waits, each as one line.
fn waits(pod: &Pod) -> Vec<String> {
    let all = pod.lacks.iter().chain(&pod.unsupported);
    all.map(|line| line.replace("DynamicResources: ", ""))
        .collect()
}

fn with_devices() -> World {
    let mut world = world().with_storage_listed();
    settled(
        &mut world,
        class(CLASS, "device.driver == 'gpu.example.com'"),
    );
    settled(&mut world, slice("s", json!({})));
    world
}

#[test]
fn a_pod_gets_what_its_claim_wants_and_selectors_say_of_which_devices() {
    let mut world = with_devices();
    let big = "device.attributes['gpu.example.com'].model == 'A100'";
    let requests = json!([{"name": "r", "exactly": {"deviceClassName": CLASS, "count": 2,
        "selectors": [{"cel": {"expression": big}}]}}]);
    settled(&mut world, claim("c", requests, json!({})));
    let events = settled(&mut world, Fact::Pod(there(pod("u1", None, "c"))));
    let pod = told(&events);
    assert_eq!(waits(pod), [""; 0]);
    let wants = &pod.devices[0].wants.requests[0].alternatives[0];
    let selected: Vec<bool> = pool(&events)
        .devices
        .iter()
        .map(|device| device.selected_by.contains(&wants.filter))
        .collect();
    assert_eq!(selected, [false, true]);
    assert_eq!((pod.devices[0].own, wants.nano), (false, 1_000_000_000));
    // A device that comes later is looked at, and one that stays as it is is not asked again.
    let devices = json!({"spec": {"devices": [
        {"name": "gpu-2", "attributes": {"model": {"string": "A100"}}},
        {"name": "gpu-1", "attributes": {"model": {"string": "A100"}},
            "taints": [{"key": "bad", "effect": "NoSchedule"}]}]}});
    let events = settled(&mut world, slice("s", devices));
    let devices = &pool(&events).devices;
    assert!(
        devices
            .iter()
            .all(|one| one.selected_by.contains(&wants.filter))
    );
    assert_eq!(devices[1].taints.len(), 1);
    // Once no pod waits with it, a filter is asked of nothing.
    settled(
        &mut world,
        Fact::Pod(gone(json!({"metadata": {"uid": "u1"}}))),
    );
    settled(&mut world, claim("other", one(), json!({})));
    settled(&mut world, Fact::Pod(there(self::pod("u2", None, "other"))));
    let events = settled(&mut world, slice("s", json!({})));
    let devices = &pool(&events).devices;
    assert!(
        devices
            .iter()
            .all(|one| !one.selected_by.contains(&wants.filter))
    );
    assert!(devices.iter().all(|one| one.selected_by.len() == 1));
}

#[test]
fn what_is_missing_is_said_and_looked_at_again_when_it_comes() {
    let mut world = world().with_storage_listed();
    let own = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": true}]}});
    let mut pod = any_pod("u1", None, 0);
    pod["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimTemplateName": "t"}]);
    let events = settled(&mut world, Fact::Pod(there(pod.clone())));
    assert_eq!(
        waits(told(&events)),
        ["resource claim c is not created yet"]
    );
    pod["status"]["resourceClaimStatuses"] = json!([{"name": "c", "resourceClaimName": "p-c-x"}]);
    let events = settled(&mut world, Fact::Pod(there(pod.clone())));
    assert_eq!(waits(told(&events)), ["resource claim ns/p-c-x: not found"]);
    let events = settled(&mut world, claim("p-c-x", one(), json!({})));
    assert_eq!(
        waits(told(&events)),
        ["resource claim ns/p-c-x: it was not created for the pod"]
    );
    let events = settled(&mut world, claim("p-c-x", one(), own.clone()));
    assert_eq!(
        waits(told(&events)),
        ["resource claim ns/p-c-x: request r: device class gpu.example.com does not exist"]
    );
    let events = settled(&mut world, class(CLASS, "true"));
    assert_eq!(waits(told(&events)), [""; 0]);
    assert!(told(&events).devices[0].own);
    // It is as it was.
    assert_eq!(settled(&mut world, claim("p-c-x", one(), own.clone())), []);
    let mut leaving = own;
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let events = settled(&mut world, claim("p-c-x", one(), leaving));
    assert_eq!(
        waits(told(&events)),
        ["resource claim ns/p-c-x: it is being deleted"]
    );
}

#[test]
fn what_is_not_served_is_refused_by_the_name_of_its_field() {
    let mut world = with_devices();
    settled(&mut world, class("broken", "device.driver =="));
    settled(
        &mut world,
        class("blind", "device.attributes['x.example.com'].y == 1"),
    );
    let exactly = |more: Value| {
        let mut request = json!({"name": "r", "exactly": {"deviceClassName": CLASS}});
        json_patch::merge(&mut request, &more);
        json!([request])
    };
    let constraint = json!({"spec": {"devices": {"constraints": [{"requests": ["r"]}]}}});
    for (requests, more, why) in [
        (
            json!([{"name": "r"}]),
            json!({}),
            "request r: neither exactly nor firstAvailable",
        ),
        (
            exactly(json!({"exactly": {"allocationMode": "Some"}})),
            json!({}),
            "request r: allocationMode Some",
        ),
        (
            exactly(
                json!({"exactly": {"derivedAttributes": [{"name": "a/b", "expression": "1"}]}}),
            ),
            json!({}),
            "request r: derivedAttributes",
        ),
        (
            exactly(json!({"exactly": {"selectors": [{}]}})),
            json!({}),
            "request r: selectors[0]: no selector by CEL",
        ),
        (
            one(),
            constraint,
            "constraints[0]: neither matchAttribute nor distinctAttribute",
        ),
    ] {
        settled(&mut world, claim("c", requests, more));
        let events = settled(&mut world, Fact::Pod(there(pod("u1", None, "c"))));
        assert_eq!(
            waits(told(&events)),
            [format!("resource claim ns/c: {why}")]
        );
    }
    let requests = |class: &str| exactly(json!({"exactly": {"deviceClassName": class}}));
    settled(&mut world, claim("c", requests("broken"), json!({})));
    let events = settled(&mut world, Fact::Pod(there(pod("u1", None, "c"))));
    let said = waits(told(&events));
    let begins = "device class broken: selectors[0]: CEL compile error";
    assert!(said.len() == 1 && said[0].starts_with(begins), "{said:?}");
    // Without an answer for one device, the others are not asked in vain.
    settled(&mut world, claim("c", requests("blind"), json!({})));
    let events = settled(&mut world, Fact::Pod(there(pod("u1", None, "c"))));
    assert_eq!(waits(told(&events)), [""; 0]);
    let devices = &pool(&events).devices;
    let why: Vec<&str> = devices
        .iter()
        .flat_map(|one| one.unanswered.values())
        .map(|why| &**why)
        .collect();
    let begins =
        "device class blind: selectors[0]: device gpu.example.com/n1/gpu-0: CEL runtime error";
    assert!(why.iter().any(|why| why.starts_with(begins)), "{why:?}");
}

#[test]
fn a_pool_is_its_newest_generation_and_says_what_is_wrong_with_it() {
    let mut world = with_devices();
    let fault = |events: &[Event]| pool(events).fault.clone();
    let more = |generation: u32, count: u32| json!({"spec": {"pool": {"generation": generation, "resourceSliceCount": count}}});
    let events = settled(&mut world, slice("s2", more(2, 2)));
    assert_eq!(fault(&events), Some(PoolFault::Incomplete));
    assert_eq!(pool(&events).devices.len(), 2);
    let events = settled(&mut world, slice("s3", more(2, 2)));
    let twice = PoolFault::Invalid("duplicate device name gpu-0".into());
    assert_eq!(fault(&events), Some(twice));
    let mut counters = more(2, 2);
    counters["spec"]["devices"] = json!([{"name": "gpu-2", "consumesCounters": [
        {"counterSet": "set", "counters": {"units": {"value": "1"}}}]}]);
    let events = settled(&mut world, slice("s3", counters.clone()));
    let lacks = PoolFault::Invalid("counter set set not found".into());
    assert_eq!(fault(&events), Some(lacks));
    let mut sets = more(2, 3);
    sets["spec"]["devices"] = Value::Null;
    sets["spec"]["sharedCounters"] =
        json!([{"name": "set", "counters": {"units": {"value": "4"}}}]);
    counters["spec"]["pool"]["resourceSliceCount"] = json!(3);
    settled(&mut world, slice("s2", more(2, 3)));
    settled(&mut world, slice("s3", counters));
    let events = settled(&mut world, slice("s4", sets));
    assert_eq!(fault(&events), None);
    assert_eq!(
        text::write(&events),
        "devices gpu.example.com/n1\n  counters set of.units=4\n  \
         device gpu-0 node=n1 gpu int.gpu.example.com/cores=8 text.gpu.example.com/model=L4\n  \
         device gpu-1 node=n1 gpu text.gpu.example.com/model=A100\n  \
         device gpu-2 node=n1 gpu\n    consumes set of.units=1\n"
    );
    let events = settled(
        &mut world,
        Fact::DeviceSlice(gone(json!({"metadata": {"name": "s4"},
            "spec": {"driver": "x", "pool": {"name": "y", "generation": 1, "resourceSliceCount": 1}}}))),
    );
    assert_eq!(fault(&events), Some(PoolFault::Incomplete));
}

#[test]
fn who_has_ended_holds_its_claim_until_its_devices_are_taken_from_it() {
    let mut world = with_devices();
    let status = json!({"status": {
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u1"},
            {"resource": "pods", "name": "other", "uid": "u2"}],
        "allocation": {"devices": {"results": [
            {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}]}}}});
    let running = pod("u1", Some("n1"), "c");
    settled(&mut world, Fact::Pod(there(running.clone())));
    let events = settled(&mut world, claim("c", one(), status.clone()));
    let has = allocation(&events);
    assert_eq!((has.consumers, has.leaving), (2, false));
    assert_eq!(has.devices[0].device.as_str(), "gpu.example.com/n1/gpu-0");
    let mut over = running;
    over["status"]["phase"] = json!("Succeeded");
    let events = settled(&mut world, Fact::Pod(there(over)));
    let has = allocation(&events);
    assert_eq!((has.consumers, has.leaving), (1, false));
    let mut last = status;
    last["status"]["reservedFor"] = json!([{"resource": "pods", "name": "p", "uid": "u1"}]);
    let events = settled(&mut world, claim("c", one(), last));
    let has = allocation(&events);
    assert_eq!((has.consumers, has.leaving), (0, true));
    let events = settled(&mut world, claim("c", one(), json!({})));
    assert!(matches!(events.as_slice(), [Event::Freed(uid)] if uid.as_str() == "uid-c"));
}

#[test]
fn a_share_of_a_card_counts_by_its_memory_and_a_shared_claim_in_the_queue_it_names() {
    let mut world = world().with_storage_listed();
    settled(
        &mut world,
        class("share.aliquot.dev", "device.driver == 'aliquot.dev'"),
    );
    let card = |name: &str, uuid: &str, memory: &str| {
        json!({"name": name, "allowMultipleAllocations": true,
            "attributes": {"uuid": {"string": uuid}},
            "capacity": {"memory": {"value": memory, "requestPolicy":
                {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}}}}})
    };
    let cards = json!({"spec": {"driver": "aliquot.dev",
        "devices": [card("a", "GPU-1", "8Gi"), card("b", "GPU-2", "16Gi")]}});
    let events = settled(&mut world, slice("s", cards));
    assert!(
        pool(&events)
            .devices
            .iter()
            .all(|one| one.card.is_some() && !one.gpu)
    );
    let requests = json!([{"name": "r", "exactly": {"deviceClassName": "share.aliquot.dev",
        "capacity": {"requests": {"memory": "4Gi"}}}}]);
    let nano = |events: &[Event]| told(events).devices[0].wants.requests[0].alternatives[0].nano;
    settled(&mut world, claim("c", requests.clone(), json!({})));
    let events = settled(&mut world, Fact::Pod(there(pod("u1", None, "c"))));
    assert_eq!(nano(&events), 500_000_000, "of the smallest");
    let has = json!({"status": {"allocation": {"devices": {"results": [{"request": "r",
        "driver": "aliquot.dev", "pool": "n1", "device": "b", "shareID": "x",
        "consumedCapacity": {"memory": "4Gi"}}]}}}});
    let events = settled(&mut world, claim("c", requests.clone(), has));
    assert_eq!(nano(&events), 250_000_000, "of its own");
    let label = json!({"metadata": {"labels": {"kai.scheduler/queue": "another"}}});
    let events = settled(&mut world, claim("c", requests, label));
    assert_eq!(
        waits(told(&events)),
        [
            "resource claim ns/c: its label kai.scheduler/queue does not name the pod's queue default-queue"
        ]
    );
}

#[test]
fn many_devices_are_looked_at_in_turn_and_their_pods_wait_so_long() {
    let mut world = world().with_storage_listed();
    settled(&mut world, class(CLASS, "true"));
    for node in 0..60 {
        let devices: Vec<Value> = (0..128)
            .map(|at| json!({"name": format!("gpu-{at}")}))
            .collect();
        let node = format!("n{node}");
        let more = json!({"spec": {"nodeName": node, "pool": {"name": node}, "devices": devices}});
        settled(&mut world, slice(&node, more));
    }
    settled(&mut world, claim("c", one(), json!({})));
    world.take(Fact::Pod(there(pod("u1", None, "c"))));
    assert!(world.is_due());
    let mut events = world.elapse(Time(0));
    assert!(world.is_due());
    assert!(!events.iter().any(|event| matches!(event, Event::Pod(_))));
    events = world.elapse(Time(0));
    assert!(!world.is_due());
    assert_eq!(waits(told(&events)), [""; 0]);
}

#[test]
fn a_server_without_the_api_has_no_devices_and_its_pods_are_as_before() {
    let mut world = world();
    let before = world.missing().len();
    for fact in [
        Fact::DeviceSlice(Seen::Listing),
        Fact::DeviceSlice(Seen::Listed),
        Fact::DeviceClass(Seen::Listing),
        Fact::DeviceClass(Seen::Listed),
        Fact::DeviceClaim(Seen::Listing),
        Fact::DeviceClaim(Seen::Listed),
    ] {
        assert_eq!(world.take(fact), []);
    }
    assert_eq!(world.missing().len(), before - 3);
    let events = settled(&mut world, Fact::Pod(there(any_pod("u1", None, 1))));
    assert_eq!(events.len(), 1);
    assert!(told(&events).devices.is_empty());
}

/// What was written before a pod was to be bound, by a process that ended then.
#[test]
fn a_claim_whose_pods_wait_loses_its_devices_once_no_binding_can_be_under_way() {
    let mut world = with_devices();
    let has = |pods: &[&str]| {
        let reserved = pods
            .iter()
            .map(|uid| json!({"resource": "pods", "name": uid, "uid": uid}));
        json!({"status": {
            "reservedFor": reserved.collect::<Vec<_>>(),
            "allocation": {"devices": {"results": [
                {"request": "r", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}]}}}})
    };
    let at = |world: &mut World, second: u64| {
        world.elapse(Time(second * 1000));
        world.stray_claims()
    };
    settled(&mut world, Fact::Pod(there(pod("u1", None, "c"))));
    at(&mut world, 1);
    settled(&mut world, claim("c", one(), has(&["u1"])));
    assert_eq!(world.wake_at(), Some(Time(71_000)));
    assert_eq!(at(&mut world, 70), []);
    let strays = at(&mut world, 71);
    let [stray] = strays.as_slice() else {
        panic!("{strays:?}");
    };
    assert_eq!(
        (stray.name.as_str(), stray.pods.as_slice()),
        ("c", &["u1".to_owned()][..])
    );
    // Again, should that have failed; not once the pod is bound, nor while another one has it.
    assert_eq!(at(&mut world, 140), []);
    assert_eq!(at(&mut world, 141).len(), 1);
    settled(&mut world, claim("c", one(), has(&["u1", "another"])));
    assert_eq!(at(&mut world, 500), []);
    settled(&mut world, claim("c", one(), has(&["u1"])));
    settled(&mut world, Fact::Pod(there(pod("u1", Some("n1"), "c"))));
    assert_eq!((at(&mut world, 1000), world.wake_at()), (vec![], None));
}

/// A pod with GPUs in its resources, of a scheduler.
fn asks(uid: &str, node: Option<&str>, more: Value) -> Fact {
    let gpu = json!({"nvidia.com/gpu": "2"});
    let mut pod = any_pod(uid, node, 0);
    pod["spec"]["containers"] = json!([{"name": "main", "resources":
        {"limits": gpu, "requests": gpu}}]);
    json_patch::merge(&mut pod, &more);
    Fact::Pod(there(pod))
}

fn class_of_gpus() -> Fact {
    Fact::DeviceClass(there(json!({"metadata": {"name": CLASS}, "spec": {
        "extendedResourceName": "nvidia.com/gpu",
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}})))
}

#[test]
fn a_claim_stands_in_for_gpus_where_a_class_is_of_them() {
    let mut world = with_devices();
    let events = settled(&mut world, asks("u1", None, json!({})));
    assert!(told(&events).devices.is_empty());
    settled(&mut world, class_of_gpus());
    let events = settled(
        &mut world,
        asks("u1", None, json!({"metadata": {"labels": {"a": "b"}}})),
    );
    let pod = told(&events).clone();
    assert_eq!(waits(&pod), [""; 0]);
    let [claim] = pod.devices.as_slice() else {
        panic!("{pod:?}");
    };
    assert!(claim.stands_in && claim.own);
    let name = claim.name.split_once('/').unwrap().1;
    assert_eq!(claim.uid.as_str(), &*claim.name);
    assert_eq!(
        claim.wants.requests[0].alternatives[0].count,
        Count::Exactly(2)
    );
    assert_eq!(pod.gpus.len(), 1);
    // Bound so, or by the plugin, it is the same but for its place.
    let named = json!({"status": {"phase": "Running", "extendedResourceClaimStatus": {
        "resourceClaimName": name, "requestMappings": [{"containerName": "main",
            "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}]}}});
    for (more, front) in [(named, Front::Claim), (json!({}), Front::Plugin)] {
        let events = settled(&mut world, asks("u1", Some("n1"), more));
        let placed = told(&events);
        let (Phase::Running(place) | Phase::Bound(place)) = &placed.phase else {
            panic!("{placed:?}");
        };
        assert_eq!((place.front, &placed.devices), (front, &pod.devices));
    }
}

#[test]
fn a_claim_that_stands_in_is_known_by_its_pod_from_before_it_is_there() {
    let mut world = with_devices();
    settled(&mut world, class_of_gpus());
    let events = settled(&mut world, asks("u1", None, json!({})));
    let claim = told(&events).devices[0].clone();
    let name = claim.name.split_once('/').unwrap().1;
    let object = |more: Value| {
        let mut object = claim_object(
            name,
            json!([]),
            json!({"metadata": {
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1",
                "controller": true}]}}),
        );
        json_patch::merge(&mut object, &more);
        Fact::DeviceClaim(there(object))
    };
    settled(&mut world, object(json!({})));
    let events = settled(
        &mut world,
        object(json!({"status": {
        "allocation": {"devices": {"results": [{"request": "r", "driver": "gpu.example.com",
            "pool": "n1", "device": "gpu-0"}]}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u1"}]}})),
    );
    assert_eq!(allocation(&events).claim, claim.uid);
    // Whose pod waits with devices goes on with them; one of an earlier process loses them.
    assert!(!told(&events).devices[0].own);
    world.elapse(Time(1_000_000_000));
    let strays = world.stray_claims();
    assert_eq!(strays.len(), 1);
    assert_eq!((&strays[0].uid, &*strays[0].name), (&claim.uid, name));
    // One that is on its way out is waited for.
    let events = settled(
        &mut world,
        object(json!({"metadata": {
        "deletionTimestamp": "2026-01-01T00:00:00Z"}})),
    );
    let line = format!("resource claim {}: it is being deleted", claim.name);
    assert_eq!(waits(told(&events)), [line]);
}
