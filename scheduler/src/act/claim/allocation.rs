//! What a claim's status says of its devices: Kubernetes' `structured.Allocator` writes the
//! same. Pure.

use crate::convert::ClaimTerms;
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequest, ResourceClaimSpec,
};
use ring::digest::{SHA256, digest};
use scheduler_core::DeviceBinding;
use scheduler_core::ids::{ClaimUid, DecisionId};
use scheduler_core::model::{AllocatedDevice, Amounts, NodeTerm, Operator, Requirement};
use scheduler_core::units::Quantity;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// `status.allocation`.
pub(super) fn of(
    spec: &Value,
    decision: DecisionId,
    claim: &DeviceBinding,
    terms: &ClaimTerms,
    now: &str,
) -> Value {
    let spec: ResourceClaimSpec = serde_json::from_value(spec.clone()).unwrap_or_default();
    let requests = spec.devices.as_ref().and_then(|one| one.requests.clone());
    let requests = requests.unwrap_or_default();
    let results = claim.devices.iter().enumerate().map(|(at, device)| {
        let mut result = result(device);
        let mut add = |key: &str, value: Value| {
            if !value.is_null() && value != json!([]) {
                result.insert(key.to_owned(), value);
            }
        };
        add("tolerations", tolerations(&requests, &device.request));
        if device.consumed.is_some() {
            add("shareID", share(decision, &claim.uid, at).into());
        }
        if let Some(terms) = terms.devices.get(at) {
            add("bindingConditions", json!(terms.binding));
            add("bindingFailureConditions", json!(terms.failure));
            add("skipNodeOperations", json!(terms.skips));
        }
        Value::Object(result)
    });
    let mut devices = json!({ "results": results.collect::<Vec<_>>() });
    let config = config(&spec, &requests, &claim.devices, terms);
    if !config.is_empty() {
        devices["config"] = json!(config);
    }
    let mut allocation = json!({ "devices": devices, "allocationTimestamp": now });
    if let Some(nodes) = &claim.nodes {
        allocation["nodeSelector"] =
            json!({ "nodeSelectorTerms": nodes.iter().map(term).collect::<Vec<_>>() });
    }
    allocation
}

fn result(device: &AllocatedDevice) -> Map<String, Value> {
    let mut result = Map::new();
    let mut add = |key: &str, value: Value| result.insert(key.to_owned(), value);
    add("request", json!(&*device.request));
    if let Some((pool, name)) = device.device.split() {
        add("driver", json!(&*pool.driver));
        add("pool", json!(&*pool.pool));
        add("device", json!(name));
    }
    if device.admin {
        add("adminAccess", json!(true));
    }
    if let Some(consumed) = device.consumed.as_ref().filter(|one| !one.is_empty()) {
        let consumed = consumed.iter();
        let consumed = consumed.map(|(name, amount)| (name.to_string(), quantity(*amount).into()));
        add("consumedCapacity", Value::Object(consumed.collect()));
    }
    result
}

/// As people write it: of binary sizes, the largest unit of which it is a multiple.
fn quantity(amount: Quantity) -> String {
    let whole = Quantity::whole(1).0;
    if amount.0 % whole != 0 {
        return amount.to_string();
    }
    let count = amount.0 / whole;
    for (unit, suffix) in [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")] {
        if count != 0 && count % unit == 0 {
            return format!("{}{suffix}", count / unit);
        }
    }
    amount.to_string()
}

/// A UUID that follows from what it names: the same again, where it is written again.
fn share(decision: DecisionId, claim: &ClaimUid, at: usize) -> String {
    let hash = digest(&SHA256, format!("{decision} {claim} {at}").as_bytes());
    let mut hex = String::with_capacity(32);
    for byte in hash.as_ref().iter().take(16) {
        let _ = write!(hex, "{byte:02x}");
    }
    // Version 8, whose content is its maker's, and RFC 9562's variant.
    hex.replace_range(12..13, "8");
    hex.replace_range(16..17, "8");
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32];
    let parts = parts.map(|part| hex.get(part).unwrap_or_default());
    parts.join("-")
}

/// Of the request, or of its alternative.
fn tolerations(requests: &[DeviceRequest], name: &str) -> Value {
    let (main, sub) = name
        .split_once('/')
        .map_or((name, None), |(main, sub)| (main, Some(sub)));
    let request = requests.iter().find(|one| one.name == main);
    let tolerations = request.and_then(|request| match sub {
        None => request.exactly.as_ref()?.tolerations.as_ref(),
        Some(sub) => {
            let mut ways = request.first_available.iter().flatten();
            ways.find(|one| one.name == sub)?.tolerations.as_ref()
        }
    });
    json!(tolerations)
}

/// The classes' configuration, each class once, then the claim's own.
fn config(
    spec: &ResourceClaimSpec,
    requests: &[DeviceRequest],
    devices: &[AllocatedDevice],
    terms: &ClaimTerms,
) -> Vec<DeviceAllocationConfiguration> {
    // Of a request with alternatives: which one it has.
    let chosen = |request: &DeviceRequest| -> Option<(String, String)> {
        if let Some(exactly) = &request.exactly {
            return Some((request.name.clone(), exactly.device_class_name.clone()));
        }
        request.first_available.iter().flatten().find_map(|way| {
            let name = format!("{}/{}", request.name, way.name);
            let is_it = devices.iter().any(|device| *device.request == *name);
            is_it.then(|| (name, way.device_class_name.clone()))
        })
    };
    let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut of_class: BTreeMap<String, std::ops::Range<usize>> = BTreeMap::new();
    for (name, class) in requests.iter().filter_map(chosen) {
        if let Some(known) = of_class.get(&class) {
            for one in all.get_mut(known.clone()).into_iter().flatten() {
                one.requests.get_or_insert_default().push(name.clone());
            }
            continue;
        }
        let begin = all.len();
        for one in terms.config.get(&class).into_iter().flatten() {
            all.push(DeviceAllocationConfiguration {
                opaque: one.opaque.clone(),
                requests: Some(vec![name.clone()]),
                source: "FromClass".to_owned(),
            });
        }
        of_class.insert(class, begin..all.len());
    }
    let own = spec.devices.as_ref().and_then(|one| one.config.as_ref());
    for one in own.into_iter().flatten() {
        let named = one.requests.as_deref().unwrap_or_default();
        let concerns = |request: &DeviceRequest| {
            named.contains(&request.name)
                || chosen(request).is_some_and(|(name, _)| named.contains(&name))
        };
        let times = if named.is_empty() {
            1
        } else {
            requests.iter().filter(|one| concerns(one)).count()
        };
        for _ in 0..times {
            all.push(DeviceAllocationConfiguration {
                opaque: one.opaque.clone(),
                requests: one.requests.clone(),
                source: "FromClaim".to_owned(),
            });
        }
    }
    all
}

fn term(term: &NodeTerm) -> Value {
    let requirements = |all: &[Requirement]| -> Vec<Value> {
        let each = all.iter().map(|one| {
            let (operator, values): (&str, Vec<String>) = match &one.operator {
                Operator::In(values) => ("In", values.iter().map(ToString::to_string).collect()),
                Operator::NotIn(values) => {
                    ("NotIn", values.iter().map(ToString::to_string).collect())
                }
                Operator::Exists => ("Exists", Vec::new()),
                Operator::DoesNotExist => ("DoesNotExist", Vec::new()),
                Operator::Above(bound) => ("Gt", vec![bound.to_string()]),
                Operator::Below(bound) => ("Lt", vec![bound.to_string()]),
            };
            let mut requirement = json!({ "key": &*one.key, "operator": operator });
            if !values.is_empty() {
                requirement["values"] = json!(values);
            }
            requirement
        });
        each.collect()
    };
    let mut out = json!({});
    if !term.labels.is_empty() {
        out["matchExpressions"] = requirements(&term.labels).into();
    }
    if !term.name.is_empty() {
        out["matchFields"] = requirements(&term.name).into();
    }
    out
}

/// Whether that is an allocation of those devices.
pub(super) fn is_same(allocation: &Value, devices: &[AllocatedDevice]) -> bool {
    let results = allocation
        .pointer("/devices/results")
        .and_then(Value::as_array);
    let results = results.map_or(&[][..], Vec::as_slice);
    let same = |(result, device): (&Value, &AllocatedDevice)| {
        let expected = self::result(device);
        let text = ["request", "driver", "pool", "device"];
        let consumed = |value: Option<&Value>| -> Amounts {
            let all = value.and_then(Value::as_object).into_iter().flatten();
            all.filter_map(|(name, amount)| {
                let nano = api::quantity::nano(amount.as_str()?)?;
                Some((name.as_str().into(), Quantity(nano)))
            })
            .collect()
        };
        text.iter().all(|key| result.get(key) == expected.get(*key))
            && (result["adminAccess"] == true) == device.admin
            && consumed(result.get("consumedCapacity"))
                == device.consumed.clone().unwrap_or_default()
    };
    results.len() == devices.len() && results.iter().zip(devices).all(same)
}

/// What drivers say of a claim's devices.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// A condition is not true yet.
    Waits(String),
    /// A condition is true that means that it never will be.
    Failed(String),
}

/// Of a claim: its `status`.
pub(super) fn readiness(claim: &Value) -> Readiness {
    let array = |path: &str| -> Vec<Value> {
        let found = claim.pointer(path).and_then(Value::as_array);
        found.cloned().unwrap_or_default()
    };
    let told = array("/status/devices");
    let mut waits = None;
    for result in array("/status/allocation/devices/results") {
        let keys = ["driver", "pool", "device", "shareID"];
        let of_it = |one: &&Value| keys.iter().all(|key| one.get(key) == result.get(key));
        let conditions = told.iter().find(of_it).map(|one| &one["conditions"]);
        let conditions = conditions.and_then(Value::as_array);
        let holds = |kind: &Value| {
            let mut all = conditions.into_iter().flatten();
            all.any(|one| one["type"] == *kind && one["status"] == "True")
        };
        let kinds = |field: &str| -> Vec<Value> {
            let all = result.get(field).and_then(Value::as_array);
            all.cloned().unwrap_or_default()
        };
        let name = |kind: &Value| kind.as_str().unwrap_or_default().to_owned();
        if let Some(failed) = kinds("bindingFailureConditions")
            .iter()
            .find(|one| holds(one))
        {
            return Readiness::Failed(format!("binding failure condition {}", name(failed)));
        }
        let missing = kinds("bindingConditions");
        let missing = missing.iter().find(|one| !holds(one));
        waits = waits.or_else(|| missing.map(|one| format!("binding condition {}", name(one))));
    }
    waits.map_or(Readiness::Ready, Readiness::Waits)
}
