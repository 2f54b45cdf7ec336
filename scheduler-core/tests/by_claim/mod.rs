//! Devices, and claims on them, of the properties' worlds.

use scheduler_core::Bind;
use scheduler_core::ids::{ClaimUid, DeviceId, FilterName, GpuUuid, NodeName, PoolName};
use scheduler_core::model::{
    Allocation, Alternative, Amounts, Ask, Attribute, Capacity, Constraint, Count, Device,
    DeviceClaim, DeviceNodes, DevicePool, DeviceRequest, DeviceTaint, DeviceToleration,
    DeviceWants, Effect, NodeTerm, Operator, Pod, PoolFault, Range, Requirement,
};
use scheduler_core::units::Quantity;
use std::collections::BTreeMap;
use std::sync::Arc;

const DRIVER: &str = "drv.example.com";

fn text(text: impl AsRef<str>) -> Arc<str> {
    Arc::from(text.as_ref())
}

fn amounts(of: &[(&str, i64)]) -> Amounts {
    let each = of.iter();
    each.map(|(name, amount)| (text(name), Quantity::whole(*amount)))
        .collect()
}

fn device(name: &str, node: u8, filters: &[&str]) -> Device {
    Device {
        name: text(name),
        nodes: DeviceNodes::Node(NodeName::new(format!("n{node}"))),
        selected_by: filters.iter().map(FilterName::new).collect(),
        ..Device::default()
    }
}

/// What the node's driver publishes: two whole devices, a shared one, one that is a card of our
/// agent's, and three parts of which either the first or the others can be had. `how` changes
/// something of it.
pub(crate) fn pool(node: u8, how: u16) -> DevicePool {
    let model = |name: &str| Attribute::Text(text(name));
    let key = text(format!("{DRIVER}/model"));
    let memory = |range: bool| Capacity {
        has: Quantity::whole(100),
        default: Some(Quantity::whole(if range { 100 } else { 10 })),
        range: range.then(|| Range {
            min: Some(Quantity::whole(10)),
            max: None,
            step: Some(Quantity::whole(10)),
        }),
        ..Capacity::default()
    };
    let mut devices = vec![
        device("d0", node, &["whole"]),
        device("d1", node, &["whole", "all"]),
        device("s0", node, &["part", "all"]),
        device("card", node, &["part"]),
        device("p0", node, &["slice"]),
        device("p1", node, &["slice"]),
        device("p2", node, &["slice"]),
    ];
    for (at, device) in devices.iter_mut().enumerate() {
        let name = if at % 2 == usize::from(node % 2) {
            "A"
        } else {
            "B"
        };
        device.attributes.insert(Arc::clone(&key), model(name));
        match at {
            2 | 3 => {
                device.shared = true;
                device.capacity.insert(text("memory"), memory(at == 3));
            }
            4..=6 => {
                let takes = amounts(&[("units", if at == 4 { 4 } else { 2 })]);
                device.consumes.insert(text("engine"), takes);
            }
            _ => {}
        }
    }
    devices[3].card = Some(GpuUuid::new(format!("GPU-{node}-0")));
    let changed = usize::from(how / 5) % devices.len();
    match how % 5 {
        1 => drop(devices.remove(changed)),
        2 => devices[changed].taints.push(DeviceTaint {
            key: text("bad"),
            value: text(""),
            effect: Effect::NoSchedule,
        }),
        3 => devices[changed].waits = true,
        _ => {}
    }
    DevicePool {
        name: PoolName::new(DRIVER, &format!("n{node}")),
        fault: (how % 35 == 4).then_some(PoolFault::Incomplete),
        devices,
        counters: BTreeMap::from([(text("engine"), amounts(&[("units", 4)]))]),
    }
}

/// Two devices of the network: one for all nodes, one for some of them.
pub(crate) fn network() -> DevicePool {
    let some = Requirement {
        key: text("metadata.name"),
        operator: Operator::In(vec![text("n0"), text("n1")]),
    };
    let mut devices = [device("far", 0, &["net"]), device("near", 0, &["net"])];
    devices[0].nodes = DeviceNodes::All;
    devices[1].nodes = DeviceNodes::Terms(vec![NodeTerm {
        name: vec![some],
        ..NodeTerm::default()
    }]);
    DevicePool {
        name: PoolName::new(DRIVER, "net"),
        fault: None,
        devices: devices.into(),
        counters: BTreeMap::new(),
    }
}

fn ask(filter: &str, count: Count) -> Alternative {
    Alternative {
        name: None,
        filter: FilterName::new(filter),
        count,
        capacity: Amounts::new(),
        tolerations: Vec::new(),
        admin: false,
        nano: if filter == "whole" { 1_000_000_000 } else { 0 },
    }
}

fn request(name: &str, ask: Alternative) -> DeviceRequest {
    DeviceRequest {
        name: text(name),
        alternatives: vec![ask],
    }
}

fn wants(which: u64, size: u64) -> DeviceWants {
    let one = Count::Exactly(1);
    let part = |amount: u64| Alternative {
        capacity: amounts(&[("memory", i64::try_from(amount).unwrap())]),
        ..ask("part", one)
    };
    let mut wants = DeviceWants::default();
    match which % 8 {
        0 => wants.requests.push(request("a", ask("whole", one))),
        1 => wants.requests.push(request("a", part(1 + size % 120))),
        2 => wants
            .requests
            .push(request("a", ask("slice", Count::Exactly(1 + size % 2)))),
        3 => {
            wants.requests.push(request("a", ask("whole", one)));
            wants.requests.push(request("b", ask("slice", one)));
            wants.constraints.push(Constraint {
                requests: Vec::new(),
                attribute: text(format!("{DRIVER}/model")),
                distinct: size % 2 == 0,
            });
        }
        4 => wants.requests.push(request("a", ask("all", Count::All))),
        5 => {
            let either = [("two", ask("whole", Count::Exactly(2))), ("part", part(40))];
            wants.requests.push(DeviceRequest {
                name: text("a"),
                alternatives: either
                    .map(|(name, ask)| Alternative {
                        name: Some(text(name)),
                        ..ask
                    })
                    .into(),
            });
        }
        6 => wants.requests.push(request("a", ask("net", one))),
        _ => {
            let tolerant = Alternative {
                admin: size % 2 == 0,
                tolerations: vec![DeviceToleration {
                    key: Some(text("bad")),
                    value: None,
                    effect: None,
                }],
                ..ask("whole", one)
            };
            wants.requests.push(request("a", tolerant));
        }
    }
    wants
}

/// Gives some pods a claim that was made for them, and some one that they share.
pub(crate) fn give(pod: &mut Pod, kind: u8, size: u64) {
    if kind % 3 != 1 {
        return;
    }
    let claim = |name: String, own, wants| DeviceClaim {
        uid: ClaimUid::new(&name),
        name: text(format!("default/{name}")),
        own,
        stands_in: false,
        wants: Arc::new(wants),
    };
    let own = claim(format!("own-{}", pod.uid), true, wants(size / 7, size));
    let shared = size % 4;
    if size % 3 > 0 {
        pod.devices.push(own);
    }
    if size % 3 < 2 {
        let wants = wants([0, 1, 6, 2][shared as usize], shared);
        pod.devices
            .push(claim(format!("shared-{shared}"), false, wants));
    }
}

/// Gives a pod that asks for whole GPUs alone a claim that may stand in for them.
pub(crate) fn stand_in(pod: &mut Pod) {
    let whole = pod.gpus.iter().map(|ask| match ask.ask {
        Ask::Whole(count) => Some(u64::from(count)),
        Ask::Share(_) => None,
    });
    let Some(most) = whole.max().flatten() else {
        return;
    };
    let name = format!("ext-{}", pod.uid);
    let wants = DeviceWants {
        requests: vec![request("gpu", ask("whole", Count::Exactly(most)))],
        constraints: Vec::new(),
    };
    pod.devices.push(DeviceClaim {
        uid: ClaimUid::new(&name),
        name: text(format!("default/{name}")),
        own: true,
        stands_in: true,
        wants: Arc::new(wants),
    });
}

/// The claims of a pod that is being bound, as the API server shows them then.
pub(crate) fn allocations(bind: &Bind) -> impl Iterator<Item = Allocation> {
    bind.devices.iter().map(|claim| Allocation {
        claim: claim.uid.clone(),
        devices: Arc::clone(&claim.devices),
        nodes: claim.nodes.clone(),
        consumers: 1,
        leaving: false,
    })
}

/// Devices that are held beyond what they have, by these claims together.
pub(crate) fn beyond(pools: &[DevicePool], claims: &[Allocation]) -> Option<DeviceId> {
    let mut whole: BTreeMap<DeviceId, u32> = BTreeMap::new();
    let mut taken: BTreeMap<(DeviceId, Arc<str>), i128> = BTreeMap::new();
    let devices = claims.iter().flat_map(|claim| &*claim.devices);
    for held in devices.filter(|device| !device.admin) {
        match &held.consumed {
            None => *whole.entry(held.device.clone()).or_default() += 1,
            Some(consumed) => {
                for (name, amount) in consumed {
                    let key = (held.device.clone(), Arc::clone(name));
                    *taken.entry(key).or_default() += amount.0;
                }
            }
        }
    }
    let all = pools.iter().flat_map(|pool| {
        let devices = pool.devices.iter();
        devices.map(move |device| (pool.name.device(&device.name), pool, device))
    });
    let mut counters: BTreeMap<PoolName, i128> = BTreeMap::new();
    for (id, pool, device) in all {
        let held = whole.get(&id).copied().unwrap_or(0);
        for (name, capacity) in &device.capacity {
            let taken = taken.get(&(id.clone(), Arc::clone(name)));
            if taken.is_some_and(|taken| *taken > capacity.has.0) {
                return Some(id);
            }
        }
        let units = device.consumes.values().flat_map(BTreeMap::values);
        let sum = counters.entry(pool.name.clone()).or_default();
        *sum += units.map(|units| units.0).sum::<i128>() * i128::from(held);
        if held > 1 || *sum > Quantity::whole(4).0 {
            return Some(id);
        }
    }
    None
}
