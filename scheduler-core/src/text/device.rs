//! This file has the tables of devices and the claims on them.

use super::field::{
    All, Below, BelowMap, Field, Map, Name, NameIn, Object, Present, Taints, Terms, When, Whole,
    fields, flag, key, needed,
};
use super::line::{Line, Read};
use super::value::Value;
use crate::action::DeviceBinding;
use crate::model::{
    AllocatedDevice, Allocation, Alternative, Attribute, Capacity, Constraint, Count, Device,
    DeviceClaim, DeviceNodes, DevicePool, DeviceRequest, DeviceWants, PoolFault, Range,
};
use std::collections::BTreeMap;
use std::sync::Arc;

fields!(DevicePool {
    name: Name,
    fault: Fault,
    counters: BelowMap("counters", Map("of")),
    devices: Below("device"),
});

struct Fault;

impl Field<Option<PoolFault>> for Fault {
    fn read(&self, line: &Line) -> Read<Option<PoolFault>> {
        if line.flag("incomplete") {
            return Ok(Some(PoolFault::Incomplete));
        }
        Ok(line.value("invalid")?.map(PoolFault::Invalid))
    }

    fn write(&self, fault: &Option<PoolFault>, line: &mut Line) {
        match fault {
            None => {}
            Some(PoolFault::Incomplete) => line.push_word("incomplete"),
            Some(PoolFault::Invalid(why)) => line.push_pair("invalid", why),
        }
    }
}

fields!(Device {
    name: Name,
    nodes: Whole,
    shared: flag("shared"),
    waits: flag("waits"),
    binds_to_node: flag("binds"),
    gpu: flag("gpu"),
    card: key("card"),
    selected_by: key("selected"),
    unanswered: Map("unanswered"),
    attributes: Attributes,
    taints: Taints("taint"),
    capacity: BelowMap("capacity", Whole),
    consumes: BelowMap("consumes", Map("of")),
});

impl Object for DeviceNodes {
    fn read(line: &Line) -> Read<Self> {
        if let Some(node) = line.value("node")? {
            return Ok(Self::Node(node));
        }
        if line.flag("everywhere") {
            return Ok(Self::All);
        }
        let terms: Option<Vec<_>> = Terms.read(line)?;
        Ok(terms.map_or(Self::None, Self::Terms))
    }

    fn write(&self, line: &mut Line) {
        match self {
            Self::None => {}
            Self::Node(node) => line.push_pair("node", node),
            Self::Terms(terms) => Terms.write(&Some(terms.clone()), line),
            Self::All => line.push_word("everywhere"),
        }
    }
}

/// Each attribute is written as `type.name=value`.
struct Attributes;

impl Field<BTreeMap<Arc<str>, Attribute>> for Attributes {
    fn read(&self, line: &Line) -> Read<BTreeMap<Arc<str>, Attribute>> {
        let mut all = BTreeMap::new();
        for kind in ["text", "version", "int", "bool"] {
            for (name, text) in line.prefixed(kind) {
                let value = match kind {
                    "text" => Attribute::Text(Arc::from(text)),
                    "version" => Attribute::Version(Arc::from(text)),
                    "int" => Attribute::Int(line.parsed(name, text)?),
                    _ => Attribute::Bool(line.parsed(name, text)?),
                };
                all.insert(Arc::from(name), value);
            }
        }
        Ok(all)
    }

    fn write(&self, attributes: &BTreeMap<Arc<str>, Attribute>, line: &mut Line) {
        for (name, value) in attributes {
            let (kind, text) = match value {
                Attribute::Int(value) => ("int", value.text()),
                Attribute::Bool(value) => ("bool", value.text()),
                Attribute::Text(value) => ("text", value.text()),
                Attribute::Version(value) => ("version", value.text()),
            };
            line.push_pair(format!("{kind}.{name}"), text);
        }
    }
}

fields!(Capacity {
    has: needed("has"),
    default: key("default"),
    values: key("values"),
    range: Present(&["min", "max", "step"]),
});

fields!(Range {
    min: key("min"),
    max: key("max"),
    step: key("step"),
});

fields!(DeviceClaim {
    uid: Name,
    name: needed("name"),
    own: flag("own"),
    stands_in: flag("stands-in"),
    wants: Whole,
});

fields!(DeviceWants {
    requests: Below("request"),
    constraints: Below("constraint"),
});

fields!(Constraint {
    attribute: Name,
    distinct: flag("distinct"),
    requests: key("requests"),
});

fields!(DeviceRequest {
    name: Name,
    alternatives: Alternatives,
});

const ALTERNATIVE: &str = "or";

/// Each alternative is an indented line. A single one without a name is in the line of the request.
struct Alternatives;

impl Field<Vec<Alternative>> for Alternatives {
    fn read(&self, line: &Line) -> Read<Vec<Alternative>> {
        let below: Vec<Alternative> = Below(ALTERNATIVE).read(line)?;
        if below.is_empty() {
            return Ok(vec![Alternative::read(line)?]);
        }
        Ok(below)
    }

    fn write(&self, alternatives: &Vec<Alternative>, line: &mut Line) {
        match alternatives.as_slice() {
            [only] if only.name.is_none() => only.write(line),
            _ => Below(ALTERNATIVE).write(alternatives, line),
        }
    }
}

fields!(Alternative {
    name: NameIn(ALTERNATIVE),
    filter: needed("filter"),
    count: Whole,
    admin: flag("admin"),
    nano: key("nano"),
    capacity: Map("needs"),
    tolerations: All("tolerates"),
});

impl Object for Count {
    fn read(line: &Line) -> Read<Self> {
        if line.flag("all") {
            return Ok(Self::All);
        }
        Ok(Self::Exactly(line.value("count")?.unwrap_or(1)))
    }

    fn write(&self, line: &mut Line) {
        match self {
            Self::All => line.push_word("all"),
            Self::Exactly(1) => {}
            Self::Exactly(count) => line.push_pair("count", count),
        }
    }
}

fields!(Allocation {
    claim: Name,
    consumers: key("consumers"),
    leaving: flag("leaving"),
    nodes: Terms,
    devices: Below("device"),
});

fields!(AllocatedDevice {
    device: Name,
    request: needed("request"),
    admin: flag("admin"),
    consumed: When("shared", Map("consumes")),
});

fields!(DeviceBinding {
    uid: Name,
    name: needed("name"),
    nodes: Terms,
    devices: Below("device"),
});
