use super::*;
use api::gpu_node::Reaction;
use api::units::Fence;
use api::{Mib, Mode};
use serde_json::{Value, json};

const UID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn claim_object() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": UID},
        "spec": {"devices": {}},
        "status": {
            "allocation": {"devices": {
                "config": [],
                "results": [
                {"request": "other", "driver": "nic.example.com", "pool": "n1", "device": "x"},
                {"request": "gpu/large", "driver": "aliquot.dev", "pool": "n1", "device": "gpu-0a",
                 "shareID": "s", "consumedCapacity": {"memory": "2000Mi", "slots": "1"}}]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "pu"}]}
    })
}

fn read(object: &Value) -> Result<Allocated, String> {
    let asked = dra::Claim {
        namespace: "ns".into(),
        name: "c".into(),
        uid: UID.into(),
    };
    let object = serde_json::from_value(object.clone()).unwrap();
    allocated(&object, &asked, "n1")
}

#[test]
fn an_allocation_is_read_as_far_as_it_is_ours() {
    let mut object = claim_object();
    let read = read(&object).unwrap();
    let device = Device {
        request: "gpu".into(),
        pool: "n1".into(),
        device: "gpu-0a".into(),
        share_id: Some("s".into()),
        memory: Some(Mib(2000)),
        observes: false,
        config: Config::default(),
    };
    assert_eq!(
        read,
        Allocated {
            uid: UID.into(),
            alloc: AllocId::parse("0f8fad5bd9cb469fa16570867728950e").unwrap(),
            namespace: "ns".into(),
            name: "c".into(),
            devices: vec![device],
            reserved: [("pu".to_owned(), "p".to_owned())].into(),
        }
    );
    let claim = |object: &Value| serde_json::from_value::<ResourceClaim>(object.clone()).unwrap();
    let pods = BTreeSet::from(["pu".to_owned()]);
    assert_eq!(reserved_for(&claim(&object), UID), Some(pods));
    assert_eq!(reserved_for(&claim(&object), "another"), None);
    object["status"]["allocation"] = Value::Null;
    assert_eq!(reserved_for(&claim(&object), UID), None);
}

#[test]
fn what_is_not_served_is_refused_with_a_sentence() {
    let results = "/status/allocation/devices/results";
    let ours = format!("{results}/1");
    let config = |parameters: Value| json!([{"source": "FromClaim", "opaque": {"driver": "aliquot.dev", "parameters": parameters}}]);
    let cases = [
        ("/metadata/uid", json!("another"), "created again"),
        ("/status/allocation", Value::Null, "not allocated"),
        ("/status", Value::Null, "not allocated"),
        (results, json!([]), "no device"),
        (&format!("{ours}/pool"), json!("n2"), "pool n2"),
        ("/status/reservedFor", json!([]), "reserved for no pod"),
        (
            "/status/reservedFor",
            json!([{"apiGroup": "g", "resource": "things", "name": "p", "uid": "1"}]),
            "not for a pod",
        ),
        (
            "/status/allocation/devices/config",
            config(json!({"apiVersion": "aliquot.dev/v2", "kind": "ShareConfig"})),
            "apiVersion is \"aliquot.dev/v2\"",
        ),
        (
            "/status/allocation/devices/config",
            config(
                json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "ShareConfig", "memory": 1}),
            ),
            "unknown field `memory`",
        ),
    ];
    for (path, value, words) in cases {
        let mut object = claim_object();
        match object.pointer_mut(path) {
            Some(place) => *place = value,
            None => panic!("{path}"),
        }
        let error = read(&object).expect_err(path);
        assert!(error.contains(words), "{path}: {error}");
        assert!(error.starts_with("claim ns/c"), "{error}");
    }
}

#[test]
fn a_claim_overrides_its_class_and_removes_no_fence() {
    let parameters = |more: Value| {
        let mut all = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "ShareConfig"});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"driver": "aliquot.dev", "parameters": all})
    };
    let mut object = claim_object();
    object["status"]["allocation"]["devices"]["config"] = json!([
        {"source": "FromClaim", "requests": ["gpu"],
         "opaque": parameters(json!({"mode": "mps", "minimumFence": "ClientLimit", "onViolation": "Kill"}))},
        {"source": "FromClass", "requests": ["gpu/large"],
         "opaque": parameters(json!({"mode": "exclusive", "minimumFence": "ServerLimit", "onViolation": "Report", "computePercent": 50}))},
        {"source": "FromClaim", "requests": ["other"], "opaque": parameters(json!({"computePercent": 1}))},
        {"source": "FromClaim", "opaque": {"driver": "nic.example.com", "parameters": {"x": 1}}},
    ]);
    let read = read(&object).unwrap();
    assert_eq!(
        read.devices[0].config,
        Config {
            mode: Some(Mode::Mps),
            minimum_fence: Some(Fence::ServerLimit),
            compute_percent: Some(50),
            on_violation: Some(Reaction::Report),
            at_least: Some(Reaction::Kill),
        }
    );
}

#[test]
fn an_allocation_of_a_cluster_without_amounts_and_one_of_an_observer_are_told_apart() {
    let mut object = claim_object();
    let device = object
        .pointer_mut("/status/allocation/devices/results/1")
        .unwrap();
    device["consumedCapacity"] = Value::Null;
    let bare = &read(&object).unwrap().devices[0];
    assert_eq!((bare.memory, bare.observes), (None, false));
    let device = object
        .pointer_mut("/status/allocation/devices/results/1")
        .unwrap();
    device["adminAccess"] = json!(true);
    assert!(read(&object).unwrap().devices[0].observes);
}

#[test]
fn a_uid_that_is_no_uuid_names_no_share() {
    let short = UID.replace('-', "");
    for uid in [
        "",
        "x",
        &short,
        &UID.to_uppercase(),
        &UID.replacen('-', "+", 1),
    ] {
        assert_eq!(AllocId::of_claim(uid), None, "{uid}");
    }
}
