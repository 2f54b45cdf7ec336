//! Pools of devices, and claims on them → text.

use super::taints::effect_text;
use super::write::Text;
use crate::action::DeviceBinding;
use crate::event::Picked;
use crate::ids::FilterName;
use crate::model::{
    AllocatedDevice, Allocation, Alternative, Amounts, Attribute, Capacity, Count, Device,
    DeviceClaim, DeviceNodes, DevicePool, DeviceRequest, DeviceToleration, PoolFault,
};
use crate::units::Quantity;

impl Text {
    fn amounts(&mut self, prefix: &str, amounts: &Amounts) {
        for (name, amount) in amounts {
            self.pair(&format!("{prefix}.{name}"), amount);
        }
    }

    pub(super) fn pool(&mut self, pool: &DevicePool) {
        self.start("devices", &pool.name);
        match &pool.fault {
            None => {}
            Some(PoolFault::Incomplete) => self.flag("incomplete", true),
            Some(PoolFault::Invalid(why)) => self.pair("invalid", why),
        }
        self.end();
        for (set, counters) in &pool.counters {
            self.start("  counters", set);
            self.amounts("of", counters);
            self.end();
        }
        for device in &pool.devices {
            self.device(device);
        }
    }

    fn device(&mut self, device: &Device) {
        self.start("  device", &device.name);
        match &device.nodes {
            DeviceNodes::None => {}
            DeviceNodes::Node(node) => self.pair("node", node),
            DeviceNodes::Terms(terms) => self.terms(Some(terms)),
            DeviceNodes::All => self.flag("everywhere", true),
        }
        self.flag("shared", device.shared);
        self.flag("waits", device.waits);
        self.flag("binds", device.binds_to_node);
        self.flag("gpu", device.gpu);
        self.some("card", device.card.as_ref());
        if !device.selected_by.is_empty() {
            let filters: Vec<&str> = device.selected_by.iter().map(FilterName::as_str).collect();
            self.pair("selected", filters.join(","));
        }
        for (filter, why) in &device.unanswered {
            self.pair(&format!("unanswered.{filter}"), why);
        }
        for (name, value) in &device.attributes {
            match value {
                Attribute::Int(value) => self.pair(&format!("int.{name}"), value),
                Attribute::Bool(value) => self.pair(&format!("bool.{name}"), value),
                Attribute::Text(value) => self.pair(&format!("text.{name}"), value),
                Attribute::Version(value) => self.pair(&format!("version.{name}"), value),
            }
        }
        for taint in &device.taints {
            let value = format!("{}:{}", taint.value, effect_text(taint.effect));
            self.pair(&format!("taint.{}", taint.key), value);
        }
        self.end();
        for (name, capacity) in &device.capacity {
            self.start("    capacity", name);
            self.capacity(capacity);
            self.end();
        }
        for (set, counters) in &device.consumes {
            self.start("    consumes", set);
            self.amounts("of", counters);
            self.end();
        }
    }

    fn capacity(&mut self, capacity: &Capacity) {
        self.pair("has", capacity.has);
        self.some("default", capacity.default);
        if !capacity.values.is_empty() {
            let values: Vec<String> = capacity.values.iter().map(Quantity::to_string).collect();
            self.pair("values", values.join(","));
        }
        if let Some(range) = &capacity.range {
            self.some("min", range.min);
            self.some("max", range.max);
            self.some("step", range.step);
        }
    }

    pub(super) fn device_claim(&mut self, claim: &DeviceClaim) {
        self.start("  devices", &claim.uid);
        self.pair("name", &claim.name);
        self.flag("own", claim.own);
        self.flag("stands-in", claim.stands_in);
        self.end();
        for request in &claim.wants.requests {
            self.request(request);
        }
        for constraint in &claim.wants.constraints {
            self.start("    constraint", &constraint.attribute);
            self.flag("distinct", constraint.distinct);
            if !constraint.requests.is_empty() {
                self.pair("requests", constraint.requests.join(","));
            }
            self.end();
        }
    }

    fn request(&mut self, request: &DeviceRequest) {
        self.start("    request", &request.name);
        if let [only] = request.alternatives.as_slice()
            && only.name.is_none()
        {
            self.alternative(only);
            self.end();
            return;
        }
        self.end();
        for one in &request.alternatives {
            self.start("      or", one.name.as_deref().unwrap_or_default());
            self.alternative(one);
            self.end();
        }
    }

    fn alternative(&mut self, one: &Alternative) {
        self.pair("filter", &one.filter);
        match one.count {
            Count::All => self.flag("all", true),
            Count::Exactly(count) => self.unless("count", count, 1),
        }
        self.flag("admin", one.admin);
        self.unless("nano", one.nano, 0);
        self.amounts("needs", &one.capacity);
        for toleration in &one.tolerations {
            self.pair("tolerates", toleration_text(toleration));
        }
    }

    fn allocated(&mut self, indent: &str, devices: &[AllocatedDevice]) {
        for device in devices {
            self.start(&format!("{indent}device"), &device.device);
            self.pair("request", &device.request);
            self.flag("admin", device.admin);
            self.flag("shared", device.consumed.is_some());
            if let Some(consumed) = &device.consumed {
                self.amounts("consumes", consumed);
            }
            self.end();
        }
    }

    pub(super) fn allocation(&mut self, allocation: &Allocation) {
        self.start("allocated", &allocation.claim);
        self.unless("consumers", allocation.consumers, 0);
        self.flag("leaving", allocation.leaving);
        self.terms(allocation.nodes.as_deref());
        self.end();
        self.allocated("  ", &allocation.devices);
    }

    pub(super) fn picked(&mut self, picked: &Picked) {
        self.start("picked", &picked.claim);
        self.terms(picked.nodes.as_deref());
        self.end();
        self.allocated("  ", &picked.devices);
    }

    pub(super) fn device_binding(&mut self, binding: &DeviceBinding) {
        self.start("  devices", &binding.uid);
        self.pair("name", &binding.name);
        self.terms(binding.nodes.as_deref());
        self.end();
        self.allocated("    ", &binding.devices);
    }
}

fn toleration_text(toleration: &DeviceToleration) -> String {
    let mut text = toleration.key.as_deref().unwrap_or("*").to_owned();
    if let Some(value) = &toleration.value {
        text.push('=');
        text.push_str(value);
    }
    if let Some(effect) = toleration.effect {
        text.push(':');
        text.push_str(effect_text(effect));
    }
    text
}
