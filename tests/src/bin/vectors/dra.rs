//! Device claims of a case.
//!
//! A case gives each claim's status as it was when the recording ended. At the start a claim has
//! devices if a placed pod has it, or a pod that is not of the case: those of its status, else the
//! first of its node.

use crate::recorded::{Claim, Claims, Has};
use crate::task_state::TaskState;
use anyhow::Context as _;
use scheduler_core::Event;
use scheduler_core::ids::{ClaimUid, FilterName, NodeName, PoolName};
use scheduler_core::model::{
    AllocatedDevice, Allocation, Alternative, Count, Device, DeviceClaim, DeviceNodes, DevicePool,
    DeviceRequest, DeviceWants, NodeTerm, Operator, Pod, Requirement,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// KAI's rule for a class whose devices count as GPUs.
fn is_gpu(class: &str) -> bool {
    class.contains("gpu")
}

/// The request of each claim.
const REQUEST: &str = "request";
const LABEL: &str = "kai.scheduler/queue";

/// What claims have, by name.
pub(crate) type Held = BTreeMap<String, Has>;

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("{key} is missing"))
}

/// A driver's name has no slash; a case calls its driver as its class.
fn driver(class: &str) -> String {
    class.replace('/', ".")
}

/// The pools of a case.
pub(crate) fn pools(dra: &Value) -> anyhow::Result<Vec<Event>> {
    let slices = list(dra, "ResourceSlices").iter();
    let pool = |slice: &Value| -> anyhow::Result<Event> {
        let (class, node) = (text(slice, "DeviceClassName")?, text(slice, "nodeName")?);
        let count = slice["Count"].as_u64().unwrap_or(0);
        let device = |at: u64| Device {
            name: Arc::from(at.to_string()),
            nodes: DeviceNodes::Node(NodeName::new(node)),
            selected_by: BTreeSet::from([FilterName::new(class)]),
            gpu: is_gpu(class),
            ..Device::default()
        };
        Ok(Event::Devices(DevicePool {
            name: PoolName::new(&driver(class), node),
            fault: None,
            devices: (0..count).map(device).collect(),
            counters: BTreeMap::new(),
        }))
    };
    slices.map(pool).collect()
}

/// The claims of a case with these tasks.
pub(crate) fn claims(dra: &Value, own: &BTreeSet<&str>) -> anyhow::Result<Claims> {
    let mut claims = Claims::new();
    for claim in list(dra, "ResourceClaims") {
        let (name, class) = (text(claim, "name")?, text(claim, "deviceClassName")?);
        let count = claim["count"].as_u64().context("count is missing")?;
        let request = DeviceRequest {
            name: Arc::from(REQUEST),
            alternatives: vec![Alternative {
                name: None,
                filter: FilterName::new(class),
                count: Count::Exactly(count),
                capacity: BTreeMap::new(),
                tolerations: Vec::new(),
                admin: false,
                nano: if is_gpu(class) { 1_000_000_000 } else { 0 },
            }],
        };
        let status = &claim["claimStatus"];
        let results = list(&status["allocation"]["devices"], "results").iter();
        let device = |one: &Value| -> anyhow::Result<(String, String)> {
            Ok((
                text(one, "pool")?.to_owned(),
                text(one, "device")?.to_owned(),
            ))
        };
        let known = Claim {
            uid: ClaimUid::new(name),
            queue: claim["labels"][LABEL].as_str().map(str::to_owned),
            class: class.to_owned(),
            wants: Arc::new(DeviceWants {
                requests: vec![request],
                constraints: Vec::new(),
            }),
            recorded: results.map(device).collect::<anyhow::Result<_>>()?,
            other_users: list(status, "reservedFor")
                .iter()
                .filter(|user| user["uid"].as_str().is_none_or(|uid| !own.contains(uid)))
                .count(),
        };
        claims.insert(name.to_owned(), known);
    }
    Ok(claims)
}

/// The claims of a task, and what is against them, as the shell says it.
pub(crate) fn of_task(task: &Value, claims: &Claims, pod: &mut Pod) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for one in list(task, "resourceClaims") {
        let name = text(one, "resourceClaimName")?;
        let claim = claims
            .get(name)
            .with_context(|| format!("claim {name} is missing"))?;
        let queue = claim.queue.as_deref();
        if is_gpu(&claim.class) && queue != Some(pod.queue.as_str()) {
            pod.lacks.push(Arc::from("another queue's claim"));
        }
        pod.devices.push(DeviceClaim {
            uid: claim.uid.clone(),
            name: Arc::from(name),
            own: false,
            stands_in: false,
            wants: Arc::clone(&claim.wants),
        });
        names.push(name.to_owned());
    }
    Ok(names)
}

fn only(node: &str) -> Arc<[NodeTerm]> {
    Arc::from([NodeTerm {
        labels: Vec::new(),
        name: vec![Requirement {
            key: Arc::from("metadata.name"),
            operator: Operator::In(vec![Arc::from(node)]),
        }],
    }])
}

/// The first node with devices of the class.
fn first_node<'a>(facts: &'a [Event], class: &str) -> Option<&'a str> {
    facts.iter().find_map(|event| match event {
        Event::Devices(pool) => pool.devices.iter().find_map(|device| match &device.nodes {
            DeviceNodes::Node(node) if device.selected_by.contains(&FilterName::new(class)) => {
                Some(node.as_str())
            }
            _ => None,
        }),
        _ => None,
    })
}

/// What claims have at the start.
pub(crate) fn at_start(claims: &Claims, facts: &[Event], stands: &[TaskState]) -> Held {
    let mut held = Held::new();
    let mut used = BTreeSet::new();
    let standing = stands.iter().filter(|stand| stand.holds());
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for stand in standing {
        let node = stand.node.as_deref().unwrap_or_default();
        wanted.extend(stand.task.claims.iter().map(|name| (name.as_str(), node)));
    }
    // A claim that other pods use has devices too.
    for (name, claim) in claims.iter().filter(|(_, claim)| claim.other_users > 0) {
        let recorded = claim.recorded.first().map(|(pool, _)| pool.as_str());
        let node = recorded.or_else(|| first_node(facts, &claim.class));
        wanted.extend(node.map(|node| (name.as_str(), node)));
    }
    // Those that are recorded first, so that no other one gets their devices.
    wanted.sort_by_key(|(name, _)| claims.get(*name).is_none_or(|one| one.recorded.is_empty()));
    for (name, node) in wanted {
        let Some(claim) = claims.get(name).filter(|_| !held.contains_key(name)) else {
            continue;
        };
        let pool = PoolName::new(&driver(&claim.class), node);
        let recorded = claim.recorded.iter();
        let mut devices: Vec<_> = recorded
            .map(|(pool, device)| PoolName::new(&driver(&claim.class), pool).device(device))
            .collect();
        if devices.is_empty() {
            let all = facts.iter().find_map(|event| match event {
                Event::Devices(one) if one.name == pool => Some(one.devices.as_slice()),
                _ => None,
            });
            let ids = all
                .unwrap_or_default()
                .iter()
                .map(|one| pool.device(&one.name));
            let count = claim
                .wants
                .requests
                .iter()
                .flat_map(|one| &one.alternatives);
            let count = count.map(|one| match one.count {
                Count::Exactly(count) => usize::try_from(count).unwrap_or(usize::MAX),
                Count::All => usize::MAX,
            });
            let count = count.sum();
            devices = ids.filter(|id| !used.contains(id)).take(count).collect();
        }
        used.extend(devices.iter().cloned());
        let device = |device| AllocatedDevice {
            request: Arc::from(REQUEST),
            device,
            admin: false,
            consumed: None,
        };
        let devices: Arc<[AllocatedDevice]> = devices.into_iter().map(device).collect();
        held.insert(name.to_owned(), (devices, Some(only(node))));
    }
    held
}

/// What the API server shows of claims.
pub(crate) fn shown(claims: &Claims, held: &Held, stands: &[TaskState]) -> Vec<Event> {
    let show = |(name, (devices, nodes)): (&String, &Has)| {
        let uses = |stand: &&TaskState| stand.holds() && stand.task.claims.contains(name);
        let others = claims.get(name).map_or(0, |claim| claim.other_users);
        let consumers = others + stands.iter().filter(uses).count();
        Event::Allocated(Allocation {
            claim: ClaimUid::new(name),
            devices: Arc::clone(devices),
            nodes: nodes.clone(),
            consumers: u32::try_from(consumers).unwrap_or(u32::MAX),
            leaving: false,
        })
    };
    held.iter().map(show).collect()
}

/// Claims that no pod has any more lose their devices.
pub(crate) fn free(claims: &Claims, held: &mut Held, stands: &[TaskState]) -> Vec<Event> {
    let uses = |stand: &TaskState, name: &String| stand.holds() && stand.task.claims.contains(name);
    let is_used = |name: &String| {
        let others = claims.get(name).map_or(0, |claim| claim.other_users);
        others > 0 || stands.iter().any(|stand| uses(stand, name))
    };
    let gone: Vec<String> = held.keys().filter(|name| !is_used(name)).cloned().collect();
    held.retain(|name, _| !gone.contains(name));
    let freed = gone.iter().map(|name| Event::Freed(ClaimUid::new(name)));
    freed.collect()
}
