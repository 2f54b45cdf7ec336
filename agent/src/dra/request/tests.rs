use super::*;
use serde_json::{Value, json};

const UID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn claim_object() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": UID},
        "spec": {"devices": {}},
        "status": {
            "allocation": {"devices": {"results": [
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
    let read = read(&claim_object()).unwrap();
    assert_eq!(
        read,
        Allocated {
            claim: "ns/c".into(),
            name: "c".into(),
            alloc: AllocId::parse("0f8fad5bd9cb469fa16570867728950e").unwrap(),
            request: "gpu".into(),
            pool: "n1".into(),
            device: "gpu-0a".into(),
            share_id: Some("s".into()),
            memory: Mib(2000),
            namespace: "ns".into(),
            pod: ("p".into(), "pu".into()),
        }
    );
}

#[test]
fn what_is_not_served_is_refused_with_a_sentence() {
    let results = "/status/allocation/devices/results";
    let ours = format!("{results}/1");
    let second = claim_object().pointer(&ours).unwrap().clone();
    let cases = [
        ("/metadata/uid", json!("another"), "created again"),
        ("/status/allocation", Value::Null, "not allocated"),
        ("/status", Value::Null, "not allocated"),
        (results, json!([]), "or none"),
        (results, json!([second.clone(), second]), "several devices"),
        (&format!("{ours}/pool"), json!("n2"), "pool n2"),
        (&format!("{ours}/adminAccess"), json!(true), "adminAccess"),
        (
            &format!("{ours}/consumedCapacity"),
            json!({}),
            "consumes no memory",
        ),
        (
            &format!("{ours}/consumedCapacity"),
            json!({"memory": "0"}),
            "consumes no memory",
        ),
        (
            &format!("{ours}/consumedCapacity"),
            Value::Null,
            "DRAConsumableCapacity",
        ),
        ("/status/reservedFor", json!([]), "0 consumers"),
        (
            "/status/reservedFor",
            json!([{"resource": "pods", "name": "p", "uid": "1"}, {"resource": "pods", "name": "q", "uid": "2"}]),
            "2 consumers",
        ),
        (
            "/status/reservedFor",
            json!([{"apiGroup": "g", "resource": "things", "name": "p", "uid": "1"}]),
            "not for a pod",
        ),
        (
            "/status/allocation/devices/config",
            json!([{"source": "FromClaim", "opaque": {"driver": "aliquot.dev", "parameters": {}}}]),
            "spec.devices.config",
        ),
    ];
    for (path, value, words) in cases {
        let mut object = claim_object();
        match object.pointer_mut(path) {
            Some(place) => *place = value,
            None => {
                let (parent, key) = path.rsplit_once('/').unwrap();
                object.pointer_mut(parent).unwrap()[key] = value;
            }
        }
        let error = read(&object).expect_err(path);
        assert!(error.contains(words), "{path}: {error}");
        assert!(
            error.starts_with("claim ns/c") || error.contains("of claim ns/c"),
            "{error}"
        );
    }
}

fn pod_object() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "p", "uid": "pu"},
        "spec": {
            "nodeName": "n1",
            "resourceClaims": [
                {"name": "nic", "resourceClaimName": "of-others"},
                {"name": "gpu", "resourceClaimTemplateName": "t"}],
            "initContainers": [{"name": "i"}],
            "containers": [
                {"name": "side", "resources": {"claims": [{"name": "nic"}]}},
                {"name": "main", "resources": {"claims": [{"name": "gpu", "request": "gpu"}]}}]},
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]}
    })
}

fn held(object: &Value) -> Result<(PodIdentity, String), String> {
    let allocated = read(&claim_object()).unwrap();
    holder(
        &serde_json::from_value(object.clone()).unwrap(),
        &allocated,
        "n1",
    )
}

#[test]
fn the_one_container_that_names_the_claim_holds_it() {
    let (identity, container) = held(&pod_object()).unwrap();
    assert_eq!(
        (identity.to_string().as_str(), container.as_str()),
        ("ns/p", "main")
    );
    // By the object's own name.
    let mut by_name = pod_object();
    by_name["status"] = Value::Null;
    by_name["spec"]["resourceClaims"][1] = json!({"name": "gpu", "resourceClaimName": "c"});
    assert_eq!(held(&by_name).unwrap().1, "main");
}

#[test]
fn a_pod_that_must_not_have_it_is_refused_with_a_sentence() {
    let claims = json!({"claims": [{"name": "gpu"}]});
    for (path, value, words) in [
        ("/metadata/uid", json!("other"), "that pod's is other"),
        ("/spec/nodeName", json!("n2"), "not on node n1"),
        (
            "/spec/containers/0/resources",
            claims.clone(),
            "several containers",
        ),
        (
            "/spec/initContainers/0/resources",
            claims,
            "several containers",
        ),
        ("/spec/containers/1/resources", json!({}), "by none"),
        ("/status", Value::Null, "by none"),
        ("/spec/hostPID", json!(true), "hostPID"),
    ] {
        let mut object = pod_object();
        let (parent, key) = path.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[key] = value;
        let error = held(&object).expect_err(path);
        assert!(error.contains(words), "{path}: {error}");
    }
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
