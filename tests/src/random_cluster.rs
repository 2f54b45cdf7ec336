//! A random cluster and the pods that come to it, with every rule between pods and nodes that
//! a manifest can have. Few names, so that rules meet.

use crate::random::SplitMix64;
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
    let random = &mut SplitMix64::new(seed);
    let namespaces: Vec<Value> = ["default", "team-a", "team-b"]
        .iter()
        .map(|name| {
            let mut labels = json!({ "kubernetes.io/metadata.name": name });
            if random.one_in(2) {
                labels["kind"] = json!(pick(random, &["batch", "web"]));
            }
            json!({ "metadata": { "name": name, "labels": labels } })
        })
        .collect();
    let count = 2 + random.below(5);
    let nodes: Vec<Value> = (0..count).map(|at| node(random, at)).collect();
    let pods = 2 + random.below(12);
    let placed: Vec<Value> = (0..pods).map(|at| placed(random, at, count)).collect();
    let incoming: Vec<Value> = (0..4)
        .map(|at| {
            let mut pod = pod(random, &format!("new-{at}"));
            pod["spec"]["schedulerName"] = json!("kai-scheduler");
            wishes(random, &mut pod);
            pod
        })
        .collect();
    let csi_nodes: Vec<Value> = (0..count).map(|at| csi_node(random, at)).collect();
    let (claims, volumes): (Vec<Value>, Vec<Value>) = ["default", "team-a", "team-b"]
        .iter()
        .flat_map(|namespace| CLAIMS.map(|claim| (namespace, claim)))
        .map(|(namespace, claim)| bound(random, namespace, claim))
        .unzip();
    json!({ "namespaces": namespaces, "nodes": nodes, "csinodes": csi_nodes, "volumes": volumes,
        "claims": claims, "pods": placed, "incoming": incoming })
}

fn pick<'a>(random: &mut SplitMix64, among: &[&'a str]) -> &'a str {
    among[random.below(among.len())]
}

fn node(random: &mut SplitMix64, at: usize) -> Value {
    let name = format!("random-{at}");
    let mut labels = json!({ HOST: name });
    if !random.one_in(6) {
        labels[ZONE] = json!(pick(random, &["a", "b", "c"]));
    }
    if random.one_in(2) {
        labels["size"] = json!(pick(random, &["4", "8", "large"]));
    }
    let mut taints = Vec::new();
    if random.one_in(4) {
        taints.push(json!({
            "key": pick(random, &["gpu", "spot"]),
            "value": pick(random, &["", "yes", "5", "-3", "007"]),
            "effect": pick(random, &["NoSchedule", "NoExecute", "PreferNoSchedule"]),
        }));
    }
    let unschedulable = random.one_in(10);
    if unschedulable {
        // As the node controller adds it.
        taints.push(json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" }));
    }
    let pods = if random.one_in(5) { "3" } else { "110" };
    let amounts = json!({ "cpu": pick(random, &["2", "4", "64"]), "memory": "64Gi", "pods": pods });
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
fn csi_node(random: &mut SplitMix64, at: usize) -> Value {
    let mut drivers = Vec::new();
    for name in DRIVERS {
        let allocatable = match random.below(4) {
            0 => continue,
            1 => json!({}),
            _ => json!({ "count": random.below(4) }),
        };
        drivers.push(json!({ "name": name, "nodeID": "n", "allocatable": allocatable }));
    }
    json!({ "metadata": { "name": format!("random-{at}") }, "spec": { "drivers": drivers } })
}

/// A claim and its volume.
fn bound(random: &mut SplitMix64, namespace: &str, claim: &str) -> (Value, Value) {
    let volume = format!("{namespace}-{claim}");
    let modes = json!([pick(
        random,
        &["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
    )]);
    let source = if random.one_in(5) {
        json!({ "nfs": { "server": "s", "path": "/" } })
    } else {
        json!({ "csi": { "driver": pick(random, &DRIVERS), "volumeHandle": volume } })
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

fn pod(random: &mut SplitMix64, name: &str) -> Value {
    let mut labels = json!({});
    if !random.one_in(5) {
        labels["app"] = json!(pick(random, &["web", "cache", "train"]));
    }
    if random.one_in(3) {
        labels["tier"] = json!(pick(random, &["1", "2"]));
    }
    let mut container = json!({
        "name": "c", "image": "none",
        "resources": { "requests": { "cpu": pick(random, &["100m", "500m", "1500m"]) } },
    });
    if random.one_in(4) {
        let mut port = json!({
            "containerPort": 80, "hostPort": 8080,
            "protocol": pick(random, &["TCP", "UDP"]),
        });
        if random.one_in(2) {
            port["hostIP"] = json!(pick(random, &["10.0.0.1", "10.0.0.2", "0.0.0.0"]));
        }
        container["ports"] = json!([port]);
    }
    let mut pod = json!({
        "metadata": {
            "name": name, "uid": name,
            "namespace": pick(random, &["default", "default", "team-a", "team-b"]),
            "labels": labels,
        },
        "spec": { "containers": [container] },
    });
    if random.one_in(3) {
        let terms: Vec<Value> = (0..=random.below(2)).map(|_| term(random)).collect();
        pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED] = json!(terms);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        if random.one_in(4) {
            let terms: Vec<Value> = (0..=random.below(2)).map(|_| weighed(random)).collect();
            pod["spec"]["affinity"][kind][PREFERRED] = json!(terms);
        }
    }
    if random.one_in(3) {
        let volumes = (0..=random.below(2)).map(|at| {
            let claim = pick(random, &CLAIMS);
            json!({ "name": format!("v{at}"), "persistentVolumeClaim": { "claimName": claim } })
        });
        pod["spec"]["volumes"] = volumes.collect();
    }
    pod
}

fn placed(random: &mut SplitMix64, at: usize, nodes: usize) -> Value {
    let mut pod = pod(random, &format!("old-{at}"));
    pod["spec"]["nodeName"] = json!(format!("random-{}", random.below(nodes)));
    pod["spec"]["schedulerName"] = json!(pick(random, &["default-scheduler", "kai-scheduler"]));
    pod["status"] = json!({ "phase": "Running" });
    if random.one_in(6) {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-23T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        pod["metadata"]["finalizers"] = json!(["test.aliquot.dev/stays"]);
    }
    pod
}

/// Fields that matter only for a pod that is to be placed.
fn wishes(random: &mut SplitMix64, pod: &mut Value) {
    if random.one_in(3) {
        let terms: Vec<Value> = (0..=random.below(2)).map(|_| term(random)).collect();
        pod["spec"]["affinity"]["podAffinity"][REQUIRED] = json!(terms);
    }
    if random.one_in(2) {
        let all = (0..=random.below(2)).map(|_| spread(random));
        pod["spec"]["topologySpreadConstraints"] = all.collect();
    }
    if random.one_in(4) {
        pod["spec"]["nodeSelector"] = json!({ ZONE: pick(random, &["a", "b"]) });
    }
    if random.one_in(4) {
        let expression = match random.below(4) {
            0 => json!({ "key": "size", "operator": "Gt", "values": ["5"] }),
            1 => json!({ "key": "size", "operator": "NotIn", "values": ["large"] }),
            2 => json!({ "key": ZONE, "operator": "Exists" }),
            _ => json!({ "key": ZONE, "operator": "In", "values": ["a", "c"] }),
        };
        pod["spec"]["affinity"]["nodeAffinity"][REQUIRED] =
            json!({ "nodeSelectorTerms": [{ "matchExpressions": [expression] }] });
    }
    if random.one_in(3) {
        pod["spec"]["tolerations"] = json!([match random.below(6) {
            0 => json!({ "operator": "Exists", "effect": pick(random, &["", "PreferNoSchedule"]) }),
            4 => json!({ "key": pick(random, &["gpu", "spot"]), "operator": "Gt",
                "value": pick(random, &["4", "5", "-3", "x"]) }),
            5 => json!({ "key": pick(random, &["gpu", "spot"]), "operator": "Lt",
                "value": pick(random, &["6", "5", "0", "+8"]) }),
            1 => json!({ "key": "gpu", "operator": "Exists", "effect": "NoSchedule" }),
            2 => json!({ "key": "spot", "operator": "Equal", "value": "yes" }),
            _ => json!({ "key": "spot", "value": "" }),
        }]);
    }
}

fn selector(random: &mut SplitMix64) -> Value {
    match random.below(6) {
        0 => json!({}),
        1 => json!({ "matchExpressions": [
            { "key": "app", "operator": "NotIn", "values": ["web"] }] }),
        2 => json!({ "matchExpressions": [{ "key": "tier", "operator": "Exists" }],
            "matchLabels": { "app": "web" } }),
        3 => json!({ "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }] }),
        _ => json!({ "matchLabels": { "app": pick(random, &["web", "cache", "train"]) } }),
    }
}

fn term(random: &mut SplitMix64) -> Value {
    let mut term = json!({ "topologyKey": pick(random, &[ZONE, HOST]) });
    if !random.one_in(8) {
        term["labelSelector"] = selector(random);
    }
    match random.below(6) {
        0 => term["namespaces"] = json!(["team-a", "default"]),
        1 => term["namespaceSelector"] = json!({}),
        2 => term["namespaceSelector"] = json!({ "matchLabels": { "kind": "batch" } }),
        3 if random.one_in(2) => {
            term["namespaces"] = json!(["team-b"]);
            term["namespaceSelector"] = json!({ "matchLabels": { "kind": "web" } });
        }
        _ => {}
    }
    term
}

fn weighed(random: &mut SplitMix64) -> Value {
    let weight = [1, 10, 100][random.below(3)];
    json!({ "weight": weight, "podAffinityTerm": term(random) })
}

fn spread(random: &mut SplitMix64) -> Value {
    let mut spread = json!({
        "maxSkew": 1 + random.below(2),
        "topologyKey": pick(random, &[ZONE, ZONE, HOST]),
        "whenUnsatisfiable": pick(random, &["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
    });
    if !random.one_in(8) {
        spread["labelSelector"] = selector(random);
    }
    if random.one_in(4) && spread["whenUnsatisfiable"] == "DoNotSchedule" {
        spread["minDomains"] = json!(1 + random.below(4));
    }
    if random.one_in(4) {
        spread["nodeAffinityPolicy"] = json!(pick(random, &["Honor", "Ignore"]));
    }
    if random.one_in(4) {
        spread["nodeTaintsPolicy"] = json!(pick(random, &["Honor", "Ignore"]));
    }
    spread
}
