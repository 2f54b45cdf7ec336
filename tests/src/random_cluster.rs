//! A random cluster and the pods that come to it, with every rule between pods and nodes that
//! a manifest can have. Few names, so that rules meet.

use crate::chance::Chance;
use serde_json::{Value, json};

const ZONE: &str = "zone";
const HOST: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const DRIVERS: [&str; 2] = ["disk.example.com", "file.example.com"];
/// Of each namespace.
const CLAIMS: [&str; 3] = ["data", "logs", "model"];

/// Its objects: `namespaces`, `nodes`, `csinodes`, `volumes`, `claims`, `pods` with a place, and
/// `incoming`, which have none.
pub fn cluster(seed: u64) -> Value {
    let chance = &mut Chance::new(seed);
    let namespaces: Vec<Value> = ["default", "team-a", "team-b"]
        .iter()
        .map(|name| {
            let mut labels = json!({ "kubernetes.io/metadata.name": name });
            if chance.one_in(2) {
                labels["kind"] = json!(pick(chance, &["batch", "web"]));
            }
            json!({ "metadata": { "name": name, "labels": labels } })
        })
        .collect();
    let count = 2 + chance.below(5);
    let nodes: Vec<Value> = (0..count).map(|at| node(chance, at)).collect();
    let pods = 2 + chance.below(12);
    let placed: Vec<Value> = (0..pods).map(|at| placed(chance, at, count)).collect();
    let incoming: Vec<Value> = (0..4)
        .map(|at| {
            let mut pod = pod(chance, &format!("new-{at}"));
            pod["spec"]["schedulerName"] = json!("kai-scheduler");
            wishes(chance, &mut pod);
            pod
        })
        .collect();
    let csi_nodes: Vec<Value> = (0..count).map(|at| csi_node(chance, at)).collect();
    let (claims, volumes): (Vec<Value>, Vec<Value>) = ["default", "team-a", "team-b"]
        .iter()
        .flat_map(|namespace| CLAIMS.map(|claim| (namespace, claim)))
        .map(|(namespace, claim)| bound(chance, namespace, claim))
        .unzip();
    json!({ "namespaces": namespaces, "nodes": nodes, "csinodes": csi_nodes, "volumes": volumes,
        "claims": claims, "pods": placed, "incoming": incoming })
}

fn pick<'a>(chance: &mut Chance, among: &[&'a str]) -> &'a str {
    among[chance.below(among.len())]
}

fn node(chance: &mut Chance, at: usize) -> Value {
    let name = format!("random-{at}");
    let mut labels = json!({ HOST: name });
    if !chance.one_in(6) {
        labels[ZONE] = json!(pick(chance, &["a", "b", "c"]));
    }
    if chance.one_in(2) {
        labels["size"] = json!(pick(chance, &["4", "8", "large"]));
    }
    let mut taints = Vec::new();
    if chance.one_in(4) {
        taints.push(json!({
            "key": pick(chance, &["gpu", "spot"]),
            "value": pick(chance, &["", "yes", "5", "-3", "007"]),
            "effect": pick(chance, &["NoSchedule", "NoExecute", "PreferNoSchedule"]),
        }));
    }
    let unschedulable = chance.one_in(10);
    if unschedulable {
        // As the node controller adds it.
        taints.push(json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }));
    }
    let pods = if chance.one_in(5) { "3" } else { "110" };
    let amounts = json!({ "cpu": pick(chance, &["2", "4", "64"]), "memory": "64Gi", "pods": pods });
    json!({
        "metadata": { "name": name, "uid": name, "labels": labels },
        "spec": { "taints": taints, "unschedulable": unschedulable },
        "status": {
            "allocatable": amounts,
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

/// How many volumes its drivers attach to the node.
fn csi_node(chance: &mut Chance, at: usize) -> Value {
    let mut drivers = Vec::new();
    for name in DRIVERS {
        let allocatable = match chance.below(4) {
            0 => continue,
            1 => json!({}),
            _ => json!({ "count": chance.below(4) }),
        };
        drivers.push(json!({ "name": name, "nodeID": "n", "allocatable": allocatable }));
    }
    json!({ "metadata": { "name": format!("random-{at}") }, "spec": { "drivers": drivers } })
}

/// A claim and its volume.
fn bound(chance: &mut Chance, namespace: &str, claim: &str) -> (Value, Value) {
    let volume = format!("{namespace}-{claim}");
    let modes = json!([pick(
        chance,
        &["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
    )]);
    let source = if chance.one_in(5) {
        json!({ "nfs": { "server": "s", "path": "/" } })
    } else {
        json!({ "csi": { "driver": pick(chance, &DRIVERS), "volumeHandle": volume } })
    };
    let claim = json!({
        "metadata": { "name": claim, "namespace": namespace, "uid": volume,
            "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
        "spec": { "accessModes": modes, "volumeName": volume, "storageClassName": "" },
        "status": { "phase": "Bound" },
    });
    let mut volume = json!({ "metadata": { "name": volume }, "spec": { "accessModes": modes } });
    volume["spec"].as_object_mut().into_iter().for_each(|spec| {
        spec.extend(source.as_object().cloned().unwrap_or_default());
    });
    (claim, volume)
}

fn pod(chance: &mut Chance, name: &str) -> Value {
    let mut labels = json!({});
    if !chance.one_in(5) {
        labels["app"] = json!(pick(chance, &["web", "cache", "train"]));
    }
    if chance.one_in(3) {
        labels["tier"] = json!(pick(chance, &["1", "2"]));
    }
    let mut container = json!({
        "name": "c", "image": "none",
        "resources": { "requests": { "cpu": pick(chance, &["100m", "500m", "1500m"]) } },
    });
    if chance.one_in(4) {
        let mut port = json!({
            "containerPort": 80, "hostPort": 8080,
            "protocol": pick(chance, &["TCP", "UDP"]),
        });
        if chance.one_in(2) {
            port["hostIP"] = json!(pick(chance, &["10.0.0.1", "10.0.0.2", "0.0.0.0"]));
        }
        container["ports"] = json!([port]);
    }
    let mut pod = json!({
        "metadata": {
            "name": name, "uid": name,
            "namespace": pick(chance, &["default", "default", "team-a", "team-b"]),
            "labels": labels,
        },
        "spec": { "containers": [container] },
    });
    if chance.one_in(3) {
        let terms: Vec<Value> = (0..=chance.below(2)).map(|_| term(chance)).collect();
        pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED] = json!(terms);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        if chance.one_in(4) {
            let terms: Vec<Value> = (0..=chance.below(2)).map(|_| weighed(chance)).collect();
            pod["spec"]["affinity"][kind][PREFERRED] = json!(terms);
        }
    }
    if chance.one_in(3) {
        let volumes = (0..=chance.below(2)).map(|at| {
            let claim = pick(chance, &CLAIMS);
            json!({ "name": format!("v{at}"), "persistentVolumeClaim": { "claimName": claim } })
        });
        pod["spec"]["volumes"] = volumes.collect();
    }
    pod
}

fn placed(chance: &mut Chance, at: usize, nodes: usize) -> Value {
    let mut pod = pod(chance, &format!("old-{at}"));
    pod["spec"]["nodeName"] = json!(format!("random-{}", chance.below(nodes)));
    pod["spec"]["schedulerName"] = json!(pick(chance, &["default-scheduler", "kai-scheduler"]));
    pod["status"] = json!({ "phase": "Running" });
    if chance.one_in(6) {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-23T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        pod["metadata"]["finalizers"] = json!(["test.aliquot.dev/stays"]);
    }
    pod
}

/// What only a pod that is to be placed is asked about.
fn wishes(chance: &mut Chance, pod: &mut Value) {
    if chance.one_in(3) {
        let terms: Vec<Value> = (0..=chance.below(2)).map(|_| term(chance)).collect();
        pod["spec"]["affinity"]["podAffinity"][REQUIRED] = json!(terms);
    }
    if chance.one_in(2) {
        let all = (0..=chance.below(2)).map(|_| spread(chance));
        pod["spec"]["topologySpreadConstraints"] = all.collect();
    }
    if chance.one_in(4) {
        pod["spec"]["nodeSelector"] = json!({ ZONE: pick(chance, &["a", "b"]) });
    }
    if chance.one_in(4) {
        let expression = match chance.below(4) {
            0 => json!({ "key": "size", "operator": "Gt", "values": ["5"] }),
            1 => json!({ "key": "size", "operator": "NotIn", "values": ["large"] }),
            2 => json!({ "key": ZONE, "operator": "Exists" }),
            _ => json!({ "key": ZONE, "operator": "In", "values": ["a", "c"] }),
        };
        pod["spec"]["affinity"]["nodeAffinity"][REQUIRED] =
            json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
    }
    if chance.one_in(3) {
        pod["spec"]["tolerations"] = json!([match chance.below(6) {
            0 => json!({ "operator": "Exists", "effect": pick(chance, &["", "PreferNoSchedule"]) }),
            4 => json!({ "key": pick(chance, &["gpu", "spot"]), "operator": "Gt",
                "value": pick(chance, &["4", "5", "-3", "x"]) }),
            5 => json!({ "key": pick(chance, &["gpu", "spot"]), "operator": "Lt",
                "value": pick(chance, &["6", "5", "0", "+8"]) }),
            1 => json!({ "key": "gpu", "operator": "Exists", "effect": "NoSchedule" }),
            2 => json!({ "key": "spot", "operator": "Equal", "value": "yes" }),
            _ => json!({ "key": "spot", "value": "" }),
        }]);
    }
}

fn selector(chance: &mut Chance) -> Value {
    match chance.below(6) {
        0 => json!({}),
        1 => json!({ "matchExpressions": [
            { "key": "app", "operator": "NotIn", "values": ["web"] }] }),
        2 => json!({ "matchExpressions": [{ "key": "tier", "operator": "Exists" }],
            "matchLabels": { "app": "web" } }),
        3 => json!({ "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] }),
        _ => json!({ "matchLabels": { "app": pick(chance, &["web", "cache", "train"]) } }),
    }
}

fn term(chance: &mut Chance) -> Value {
    let mut term = json!({ "topologyKey": pick(chance, &[ZONE, HOST]) });
    if !chance.one_in(8) {
        term["labelSelector"] = selector(chance);
    }
    match chance.below(6) {
        0 => term["namespaces"] = json!(["team-a", "default"]),
        1 => term["namespaceSelector"] = json!({}),
        2 => term["namespaceSelector"] = json!({ "matchLabels": { "kind": "batch" } }),
        3 if chance.one_in(2) => {
            term["namespaces"] = json!(["team-b"]);
            term["namespaceSelector"] = json!({ "matchLabels": { "kind": "web" } });
        }
        _ => {}
    }
    term
}

fn weighed(chance: &mut Chance) -> Value {
    let weight = [1, 10, 100][chance.below(3)];
    json!({ "weight": weight, "podAffinityTerm": term(chance) })
}

fn spread(chance: &mut Chance) -> Value {
    let mut spread = json!({
        "maxSkew": 1 + chance.below(2),
        "topologyKey": pick(chance, &[ZONE, ZONE, HOST]),
        "whenUnsatisfiable": pick(chance, &["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
    });
    if !chance.one_in(8) {
        spread["labelSelector"] = selector(chance);
    }
    if chance.one_in(4) && spread["whenUnsatisfiable"] == "DoNotSchedule" {
        spread["minDomains"] = json!(1 + chance.below(4));
    }
    if chance.one_in(4) {
        spread["nodeAffinityPolicy"] = json!(pick(chance, &["Honor", "Ignore"]));
    }
    if chance.one_in(4) {
        spread["nodeTaintsPolicy"] = json!(pick(chance, &["Honor", "Ignore"]));
    }
    spread
}
