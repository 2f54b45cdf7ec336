//! Text → pools of devices, and claims on them.

use super::line::Line;
use super::read::{Read, list, needed, terms};
use super::taints::effect;
use crate::action::DeviceBinding;
use crate::event::Picked;
use crate::ids::{ClaimUid, DeviceId, FilterName, GpuUuid, NodeName, PoolName};
use crate::model::{
    AllocatedDevice, Allocation, Alternative, Amounts, Attribute, Capacity, Constraint, Count,
    Device, DeviceClaim, DeviceNodes, DevicePool, DeviceRequest, DeviceTaint, DeviceToleration,
    DeviceWants, PoolFault, Range,
};
use crate::units::Quantity;
use std::sync::Arc;

/// The kind of line that says a claim on devices below a pod or a binding.
pub(super) const CLAIM: &str = "devices";

fn quantity(line: &Line, text: &str) -> Read<Quantity> {
    Quantity::parse(text).ok_or_else(|| line.error(format!("{text} is no quantity")))
}

fn one(line: &Line, key: &str) -> Read<Option<Quantity>> {
    line.get(key).map(|text| quantity(line, text)).transpose()
}

fn amounts(line: &Line, prefix: &str) -> Read<Amounts> {
    let all = line.prefixed(prefix);
    all.map(|(name, text)| Ok((Arc::from(name), quantity(line, text)?)))
        .collect()
}

pub(super) fn pool_name(line: &Line) -> Read<PoolName> {
    let name = line.name(1)?;
    PoolName::parse(name).ok_or_else(|| line.error(format!("{name} is no driver and pool")))
}

pub(super) fn pool(line: &Line) -> Read<DevicePool> {
    let fault = if line.flag("incomplete") {
        Some(PoolFault::Incomplete)
    } else {
        let why = line.get("invalid");
        why.map(|why| PoolFault::Invalid(Arc::from(why)))
    };
    let mut pool = DevicePool {
        name: pool_name(line)?,
        fault,
        devices: Vec::new(),
        counters: std::collections::BTreeMap::new(),
    };
    for below in &line.below {
        match below.kind() {
            "device" => pool.devices.push(device(below)?),
            "counters" => {
                let set = Arc::from(below.name(1)?);
                pool.counters.insert(set, amounts(below, "of")?);
            }
            other => return Err(below.error(format!("{other} is no part of a pool"))),
        }
        below.finish()?;
    }
    Ok(pool)
}

fn device(line: &Line) -> Read<Device> {
    let nodes = match (line.get("node"), line.flag("everywhere"), terms(line)?) {
        (Some(node), ..) => DeviceNodes::Node(NodeName::new(node)),
        (None, true, _) => DeviceNodes::All,
        (None, false, Some(terms)) => DeviceNodes::Terms(terms),
        (None, false, None) => DeviceNodes::None,
    };
    let taints = line.prefixed("taint").map(|(key, rest)| {
        let (value, kind) = rest.rsplit_once(':').unwrap_or(("", rest));
        Ok(DeviceTaint {
            key: Arc::from(key),
            value: Arc::from(value),
            effect: effect(line, kind)?,
        })
    });
    let mut device = Device {
        name: Arc::from(line.name(1)?),
        nodes,
        shared: line.flag("shared"),
        taints: taints.collect::<Read<_>>()?,
        waits: line.flag("waits"),
        binds_to_node: line.flag("binds"),
        selected_by: list(line.get("selected"))
            .iter()
            .map(FilterName::new)
            .collect(),
        unanswered: line
            .prefixed("unanswered")
            .map(|(filter, why)| (FilterName::new(filter), Arc::from(why)))
            .collect(),
        card: line.get("card").map(GpuUuid::new),
        gpu: line.flag("gpu"),
        ..Device::default()
    };
    attributes(line, &mut device)?;
    for below in &line.below {
        let name = Arc::from(below.name(1)?);
        match below.kind() {
            "capacity" => drop(device.capacity.insert(name, capacity(below)?)),
            "consumes" => drop(device.consumes.insert(name, amounts(below, "of")?)),
            other => return Err(below.error(format!("{other} is no part of a device"))),
        }
        below.finish()?;
    }
    Ok(device)
}

fn attributes(line: &Line, device: &mut Device) -> Read<()> {
    let wrong = |text: &str| line.error(format!("{text} is no such value"));
    for (name, text) in line.prefixed("text") {
        let value = Attribute::Text(Arc::from(text));
        device.attributes.insert(Arc::from(name), value);
    }
    for (name, text) in line.prefixed("version") {
        let value = Attribute::Version(Arc::from(text));
        device.attributes.insert(Arc::from(name), value);
    }
    for (name, text) in line.prefixed("int") {
        let value = Attribute::Int(text.parse().map_err(|_| wrong(text))?);
        device.attributes.insert(Arc::from(name), value);
    }
    for (name, text) in line.prefixed("bool") {
        let value = Attribute::Bool(text.parse().map_err(|_| wrong(text))?);
        device.attributes.insert(Arc::from(name), value);
    }
    Ok(())
}

fn capacity(line: &Line) -> Read<Capacity> {
    let values = line.get("values").into_iter();
    let values = values.flat_map(|text| text.split(','));
    let range = Range {
        min: one(line, "min")?,
        max: one(line, "max")?,
        step: one(line, "step")?,
    };
    Ok(Capacity {
        has: quantity(line, needed(line, "has")?)?,
        default: one(line, "default")?,
        values: values
            .map(|text| quantity(line, text))
            .collect::<Read<_>>()?,
        range: (range != Range::default()).then_some(range),
    })
}

/// Lines about claims on devices below one.
pub(super) fn device_claims_of(line: &Line) -> impl Iterator<Item = &Line> {
    line.below.iter().filter(|line| line.kind() == CLAIM)
}

pub(super) fn device_claims(line: &Line) -> Read<Vec<DeviceClaim>> {
    device_claims_of(line).map(claim).collect()
}

fn claim(line: &Line) -> Read<DeviceClaim> {
    let mut wants = DeviceWants::default();
    for below in &line.below {
        match below.kind() {
            "request" => wants.requests.push(request(below)?),
            "constraint" => wants.constraints.push(Constraint {
                attribute: Arc::from(below.name(1)?),
                requests: list(below.get("requests")),
                distinct: below.flag("distinct"),
            }),
            other => return Err(below.error(format!("{other} is no part of a claim"))),
        }
        below.finish()?;
    }
    let claim = DeviceClaim {
        uid: ClaimUid::new(line.name(1)?),
        name: Arc::from(needed(line, "name")?),
        own: line.flag("own"),
        stands_in: line.flag("stands-in"),
        wants: Arc::new(wants),
    };
    line.finish()?;
    Ok(claim)
}

fn request(line: &Line) -> Read<DeviceRequest> {
    let name = Arc::from(line.name(1)?);
    let mut alternatives = Vec::new();
    for below in &line.below {
        if below.kind() != "or" {
            return Err(below.error("an alternative is wanted"));
        }
        let name = Arc::from(below.name(1)?);
        alternatives.push(alternative(below, Some(name))?);
        below.finish()?;
    }
    if alternatives.is_empty() {
        alternatives.push(alternative(line, None)?);
    }
    Ok(DeviceRequest { name, alternatives })
}

fn alternative(line: &Line, name: Option<Arc<str>>) -> Read<Alternative> {
    let count = line.number("count")?.unwrap_or(1);
    Ok(Alternative {
        name,
        filter: FilterName::new(needed(line, "filter")?),
        count: if line.flag("all") {
            Count::All
        } else {
            Count::Exactly(count)
        },
        capacity: amounts(line, "needs")?,
        tolerations: line
            .all("tolerates")
            .map(|text| toleration(line, text))
            .collect::<Read<_>>()?,
        admin: line.flag("admin"),
        nano: line.number("nano")?.unwrap_or(0),
    })
}

/// `*`, `key`, `key=value`, each with `:Effect` at the end where it is for one only.
fn toleration(line: &Line, text: &str) -> Read<DeviceToleration> {
    let (rest, effect) = match text.rsplit_once(':') {
        Some((rest, kind)) => (rest, Some(effect(line, kind)?)),
        None => (text, None),
    };
    let (key, value) = match rest.split_once('=') {
        Some((key, value)) => (key, Some(Arc::from(value))),
        None => (rest, None),
    };
    Ok(DeviceToleration {
        key: (key != "*").then(|| Arc::from(key)),
        value,
        effect,
    })
}

fn allocated(line: &Line) -> Read<Arc<[AllocatedDevice]>> {
    let below = line.below.iter().map(|below| {
        if below.kind() != "device" {
            return Err(below.error("a device is wanted"));
        }
        let shared = below.flag("shared");
        let consumed = amounts(below, "consumes")?;
        let device = AllocatedDevice {
            request: Arc::from(needed(below, "request")?),
            device: DeviceId::new(below.name(1)?),
            admin: below.flag("admin"),
            consumed: shared.then_some(consumed),
        };
        below.finish()?;
        Ok(device)
    });
    below.collect()
}

pub(super) fn allocation(line: &Line) -> Read<Allocation> {
    Ok(Allocation {
        claim: ClaimUid::new(line.name(1)?),
        devices: allocated(line)?,
        nodes: terms(line)?.map(Arc::from),
        consumers: line.number("consumers")?.unwrap_or(0),
        leaving: line.flag("leaving"),
    })
}

pub(super) fn picked(line: &Line) -> Read<Picked> {
    Ok(Picked {
        claim: ClaimUid::new(line.name(1)?),
        devices: allocated(line)?,
        nodes: terms(line)?.map(Arc::from),
    })
}

pub(super) fn device_binding(line: &Line) -> Read<DeviceBinding> {
    let binding = DeviceBinding {
        uid: ClaimUid::new(line.name(1)?),
        name: Arc::from(needed(line, "name")?),
        devices: allocated(line)?,
        nodes: terms(line)?.map(Arc::from),
    };
    line.finish()?;
    Ok(binding)
}
