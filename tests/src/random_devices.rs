//! A random cluster with devices (DRA), and the claims of a pod that comes to it: slices, classes
//! and claims with every rule between devices and requests that Kubernetes 1.36 serves by
//! default. Few names, so that rules meet; all of it as an API server would let it be written.

use crate::random::SplitMix64;
use serde_json::{Map, Value, json};

const DRIVERS: [&str; 2] = ["a.example.com", "b.example.com"];
const MODELS: [&str; 3] = ["L4", "A100", "H100"];
const CLASSES: [&str; 5] = ["any", "a", "b", "fast", "roomy"];
const SIZES: [&str; 4] = ["4Gi", "8Gi", "10Gi", "16Gi"];
const TAINTS: [&str; 2] = ["broken", "reserved"];

/// Its objects: `nodes`, `slices`, `classes`, `claims`; and `wanted`, the names of the claims of
/// the pod that comes.
pub fn cluster(seed: u64) -> Value {
    let random = &mut SplitMix64::new(seed);
    let count = 2 + random.below(3);
    let nodes: Vec<Value> = (0..count).map(|at| node(random, at)).collect();
    let pools = 3 + random.below(4);
    let slices: Vec<Value> = (0..pools).flat_map(|at| pool(random, at, count)).collect();
    let mut claims = held(random, &slices);
    let wanted: Vec<Value> = (0..=random.below(3).min(random.below(3)))
        .map(|at| claim(random, &format!("wanted-{at}")))
        .collect();
    let mut names: Vec<String> = (0..wanted.len()).map(|at| format!("wanted-{at}")).collect();
    if random.one_in(6) && !claims.is_empty() {
        names.insert(0, "held-0".to_owned());
    }
    claims.extend(wanted);
    json!({ "nodes": nodes, "slices": slices, "classes": classes(), "claims": claims,
        "wanted": names })
}

fn pick<'a>(random: &mut SplitMix64, among: &[&'a str]) -> &'a str {
    among[random.below(among.len())]
}

fn node(random: &mut SplitMix64, at: usize) -> Value {
    let name = format!("node-{at}");
    json!({
        "metadata": { "name": name, "uid": name, "labels": {
            "kubernetes.io/hostname": name, "zone": pick(random, &["a", "b"]) } },
        "status": {
            "allocatable": { "cpu": "64", "memory": "64Gi", "pods": "110" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn cel(expression: &str) -> Value {
    json!({ "cel": { "expression": expression } })
}

fn classes() -> Value {
    let of = |name: &str, selectors: Value| json!({ "metadata": { "name": name }, "spec": { "selectors": selectors } });
    json!([
        of(CLASSES[0], json!([])),
        of(CLASSES[1], json!([cel("device.driver == 'a.example.com'")])),
        of(CLASSES[2], json!([cel("device.driver == 'b.example.com'")])),
        of(
            CLASSES[3],
            json!([cel(
                "device.attributes[device.driver].?model.orValue('') in ['A100', 'H100']"
            )])
        ),
        of(
            CLASSES[4],
            json!([
                cel("'memory' in device.capacity[device.driver]"),
                cel(
                    "device.capacity[device.driver].memory.compareTo(quantity('8Gi')) >= 0 || device.allowMultipleAllocations"
                ),
            ])
        ),
    ])
}

/// Where something can be used: fields of a slice or of a device.
fn place(random: &mut SplitMix64, nodes: usize) -> Value {
    match random.below(6) {
        0 | 1 => json!({ "allNodes": true }),
        2 => json!({ "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "zone", "operator": "In", "values": [pick(random, &["a", "b"])] }] }] } }),
        _ => json!({ "nodeName": format!("node-{}", random.below(nodes)) }),
    }
}

fn merge(into: &mut Value, more: &Value) {
    if let (Some(into), Some(more)) = (into.as_object_mut(), more.as_object()) {
        into.extend(more.clone());
    }
}

/// The slices of a pool: of its newest generation, and perhaps of one before.
fn pool(random: &mut SplitMix64, at: usize, nodes: usize) -> Vec<Value> {
    let driver = pick(random, &DRIVERS);
    let name = format!("pool-{at}");
    let own = random.one_in(4);
    let everywhere = place(random, nodes);
    let parts = 1 + random.below(2);
    let counters = random.one_in(3);
    let wrong = random.one_in(20);
    let mut count = parts + usize::from(counters);
    if random.one_in(10) {
        count += 1;
    }
    let spec = |generation: u64, count: usize| {
        json!({ "driver": driver,
            "pool": { "name": name, "generation": generation, "resourceSliceCount": count } })
    };
    let mut slices = Vec::new();
    if random.one_in(6) {
        let mut old = spec(1, 1);
        merge(&mut old, &everywhere);
        if own {
            merge(&mut old, &json!({ "allNodes": true }));
            old.as_object_mut().map(|old| old.remove("nodeName"));
            old.as_object_mut().map(|old| old.remove("nodeSelector"));
        }
        old["devices"] = json!([device(random, driver, "old", false)]);
        slices.push(json!({ "metadata": { "name": format!("{name}-0-old") }, "spec": old }));
    }
    for part in 0..parts {
        let mut one = spec(2, count);
        let devices = 1 + random.below(3);
        let mut all = Vec::new();
        for number in 0..devices {
            let named = if wrong && !counters {
                format!("dev-{number}")
            } else {
                format!("dev-{part}-{number}")
            };
            let mut device = device(random, driver, &named, counters);
            if own {
                let place = place(random, nodes);
                merge(&mut device, &place);
            }
            if wrong && counters && part == 0 {
                device["consumesCounters"] =
                    json!([{ "counterSet": "none", "counters": { "slots": { "value": "1" } } }]);
            }
            all.push(device);
        }
        one["devices"] = json!(all);
        if own {
            one["perDeviceNodeSelection"] = json!(true);
        } else {
            merge(&mut one, &everywhere);
        }
        slices.push(json!({ "metadata": { "name": format!("{name}-{part}") }, "spec": one }));
    }
    if counters {
        let mut one = spec(2, count);
        one["sharedCounters"] = json!([
            { "name": "set", "counters": {
                "memory": { "value": pick(random, &["8Gi", "16Gi", "32Gi"]) },
                "slots": { "value": pick(random, &["2", "3", "8"]) } } },
            { "name": "other", "counters": { "slots": { "value": "2" } } },
        ]);
        // Devices of a pool of several nodes are available to all of them.
        if own {
            merge(&mut one, &json!({ "perDeviceNodeSelection": true }));
        } else {
            merge(&mut one, &everywhere);
        }
        slices.push(json!({ "metadata": { "name": format!("{name}-counters") }, "spec": one }));
    }
    slices
}

fn device(random: &mut SplitMix64, driver: &str, name: &str, counters: bool) -> Value {
    let mut attributes = Map::new();
    let mut set = |name: &str, value: Value| attributes.insert(name.to_owned(), value);
    if !random.one_in(6) {
        set("model", json!({ "string": pick(random, &MODELS) }));
    }
    if !random.one_in(4) {
        set("index", json!({ "int": random.below(3) }));
    }
    if !random.one_in(4) {
        set("exclusive", json!({ "bool": random.one_in(2) }));
    }
    if !random.one_in(4) {
        let version = pick(random, &["1.2.3", "1.10.0", "2.0.0-rc.1"]);
        let name = format!("{driver}/version");
        set(
            pick(random, &["version", &name]),
            json!({ "version": version }),
        );
    }
    if !random.one_in(3) {
        set(
            "topology.example.com/rack",
            json!({ "string": pick(random, &["r1", "r2"]) }),
        );
    }
    let shared = random.one_in(3);
    let mut capacity = Map::new();
    if shared || !random.one_in(4) {
        capacity.insert("memory".to_owned(), amount(random, shared));
    }
    if random.one_in(3) {
        let mut slots = json!({ "value": "4" });
        if shared {
            slots["requestPolicy"] = json!({ "default": "1", "validValues": ["1", "2", "4"] });
        }
        capacity.insert("slots".to_owned(), slots);
    }
    let mut device = json!({ "name": name, "attributes": attributes, "capacity": capacity });
    if shared {
        device["allowMultipleAllocations"] = json!(true);
    }
    if random.one_in(5) {
        device["taints"] = json!([{ "key": pick(random, &TAINTS), "value": pick(random, &["", "yes"]),
            "effect": pick(random, &["NoSchedule", "NoExecute", "None"]) }]);
    }
    if random.one_in(15) {
        device["bindingConditions"] = json!(["ready"]);
        device["bindingFailureConditions"] = json!(["failed"]);
        device["bindsToNode"] = json!(random.one_in(2));
    }
    if counters && !random.one_in(4) {
        let mut all = vec![json!({ "counterSet": "set", "counters": {
            "memory": { "value": pick(random, &["4Gi", "8Gi"]) },
            "slots": { "value": pick(random, &["1", "2"]) } } })];
        if random.one_in(3) {
            all.push(json!({ "counterSet": "other", "counters": { "slots": { "value": "1" } } }));
        }
        device["consumesCounters"] = json!(all);
    }
    device
}

fn amount(random: &mut SplitMix64, shared: bool) -> Value {
    let mut amount = json!({ "value": pick(random, &SIZES) });
    if shared {
        match random.below(4) {
            0 => {}
            1 => {
                amount["requestPolicy"] = json!({ "default": "2Gi",
                    "validRange": { "min": "1Gi", "max": "4Gi", "step": "512Mi" } });
            }
            2 => {
                amount["requestPolicy"] =
                    json!({ "default": "1Gi", "validValues": ["1Gi", "2Gi", "4Gi"] });
            }
            _ => {
                amount["requestPolicy"] =
                    json!({ "default": "1Gi", "validRange": { "min": "512Mi" } });
            }
        }
    }
    amount
}

/// Claims that have devices: no device has more holders than it can have.
fn held(random: &mut SplitMix64, slices: &[Value]) -> Vec<Value> {
    let mut claims = Vec::new();
    for slice in slices {
        let spec = &slice["spec"];
        if spec["pool"]["generation"] == 1 {
            continue;
        }
        let devices = spec["devices"].as_array().into_iter().flatten();
        for device in devices {
            if !random.one_in(6) {
                continue;
            }
            let name = format!("held-{}", claims.len());
            let mut result = json!({ "request": "r", "driver": spec["driver"],
                "pool": spec["pool"]["name"], "device": device["name"] });
            if device["allowMultipleAllocations"] == true {
                let capacity = device["capacity"].as_object().into_iter().flatten();
                let part = |name: &String| if name == "memory" { "1Gi" } else { "1" };
                let consumed: Map<String, Value> = capacity
                    .map(|(name, _)| (name.clone(), json!(part(name))))
                    .collect();
                result["consumedCapacity"] = json!(consumed);
                result["shareID"] = json!(format!("share-{}", claims.len()));
            }
            if random.one_in(8) {
                result["adminAccess"] = json!(true);
            }
            let mut allocation = json!({ "devices": { "results": [result] } });
            if random.one_in(3) {
                allocation["nodeSelector"] = json!({ "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": "zone", "operator": "In", "values": [pick(random, &["a", "b"])] }] }] });
            }
            claims.push(object(
                &name,
                json!({ "requests": [{ "name": "r", "exactly": {
                    "deviceClassName": "any", "allocationMode": "ExactCount", "count": 1 } }] }),
                json!({ "allocation": allocation }),
            ));
        }
    }
    claims
}

fn object(name: &str, devices: Value, status: Value) -> Value {
    json!({ "metadata": { "name": name, "namespace": "default", "uid": name },
        "spec": { "devices": devices }, "status": status })
}

fn claim(random: &mut SplitMix64, name: &str) -> Value {
    let mut names = Vec::new();
    let mut requests = Vec::new();
    for at in 0..=random.below(3).min(random.below(3)) {
        let name = format!("r{at}");
        names.push(name.clone());
        if random.one_in(4) {
            let ways: Vec<Value> = (0..=random.below(3))
                .map(|way| {
                    let sub = format!("s{way}");
                    names.push(format!("{name}/{sub}"));
                    let mut one = request(random);
                    one["name"] = json!(sub);
                    one
                })
                .collect();
            requests.push(json!({ "name": name, "firstAvailable": ways }));
        } else {
            let mut exactly = request(random);
            if random.one_in(8) {
                exactly["adminAccess"] = json!(true);
            }
            requests.push(json!({ "name": name, "exactly": exactly }));
        }
    }
    let mut devices = json!({ "requests": requests });
    if random.one_in(3) {
        let count = 1 + random.below(2);
        let all: Vec<Value> = (0..count).map(|_| constraint(random, &names)).collect();
        devices["constraints"] = json!(all);
    }
    object(name, devices, json!({}))
}

fn constraint(random: &mut SplitMix64, names: &[String]) -> Value {
    let kind = if random.one_in(2) {
        "matchAttribute"
    } else {
        "distinctAttribute"
    };
    let attribute = pick(
        random,
        &[
            "a.example.com/model",
            "b.example.com/model",
            "a.example.com/index",
            "a.example.com/version",
            "b.example.com/exclusive",
            "topology.example.com/rack",
        ],
    );
    let mut constraint = json!({ kind: attribute });
    if random.one_in(2) {
        let some: Vec<&String> = names.iter().filter(|_| random.one_in(2)).collect();
        if !some.is_empty() {
            constraint["requests"] = json!(some);
        }
    }
    constraint
}

fn request(random: &mut SplitMix64) -> Value {
    let class = if random.one_in(3) {
        CLASSES[0]
    } else {
        pick(random, &CLASSES)
    };
    let mut request = json!({ "deviceClassName": class });
    if random.one_in(8) {
        request["allocationMode"] = json!("All");
    } else {
        request["allocationMode"] = json!("ExactCount");
        request["count"] = json!(1 + random.below(3).min(random.below(3)));
    }
    if random.one_in(4) {
        let expression = pick(
            random,
            &[
                "device.attributes[device.driver].?model.orValue('') == 'A100'",
                "has(device.attributes['topology.example.com'].rack)",
                "'topology.example.com' in device.attributes",
                "device.attributes[device.driver].?index.orValue(9) < 2",
                "has(device.attributes['a.example.com'].version) && device.attributes['a.example.com'].version.isLessThan(semver('2.0.0'))",
                "!device.allowMultipleAllocations",
                "device.attributes[device.driver].?exclusive.orValue(true)",
            ],
        );
        request["selectors"] = json!([cel(expression)]);
    }
    if random.one_in(40) {
        // No answer for a device without a model.
        request["selectors"] = json!([cel("device.attributes[device.driver].model == 'L4'")]);
    }
    if random.one_in(3) {
        let (name, value) = match random.below(5) {
            0 => ("slots", pick(random, &["1", "2", "3"])),
            1 => ("cores", "1"),
            _ => (
                "memory",
                pick(random, &["100Mi", "1Gi", "1100Mi", "3Gi", "6Gi"]),
            ),
        };
        request["capacity"] = json!({ "requests": { name: value } });
    }
    if random.one_in(3) {
        let operator = pick(random, &["Exists", "Equal"]);
        let mut toleration = json!({ "key": pick(random, &TAINTS), "operator": operator });
        if operator == "Equal" {
            toleration["value"] = json!(pick(random, &["", "yes"]));
        } else if random.one_in(3) {
            toleration.as_object_mut().map(|one| one.remove("key"));
        }
        if random.one_in(3) {
            toleration["effect"] = json!(pick(random, &["NoSchedule", "NoExecute"]));
        }
        request["tolerations"] = json!([toleration]);
    }
    request
}
