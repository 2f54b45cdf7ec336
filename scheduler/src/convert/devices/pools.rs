//! `ResourceSlice`s → pools of devices: Kubernetes' `structured.GatherPools`, without its node.

use super::super::rules;
use crate::selector::{self, Subject};
use api::quantity;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, Device as KubeDevice, DeviceAttribute, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as KubeQuantity;
use kube::ResourceExt as _;
use proto::names::dra;
use scheduler_core::ids::{FilterName, GpuUuid, NodeName, PoolName};
use scheduler_core::model::{
    Amounts, Attribute, Capacity, Device, DeviceNodes, DevicePool, DeviceTaint, Effect, PoolFault,
    Range,
};
use scheduler_core::units::Quantity;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a claim's status says of a device beside its name, as its driver has published it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// `bindingConditions`: the pod is bound when all of them are true.
    pub binding: Vec<String>,
    /// `bindingFailureConditions`: the claim loses its devices when one of them is true.
    pub failure: Vec<String>,
    /// `skipNodeOperations`.
    pub skips: Vec<String>,
}

/// A device as it was published.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub device: Device,
    pub subject: Subject,
    pub terms: Terms,
}

/// A slice, as far as it matters.
#[derive(Clone, Debug)]
struct Slice {
    pool: PoolName,
    generation: i64,
    /// How many slices the pool has.
    of: i64,
    devices: Vec<Published>,
    counters: Vec<(Arc<str>, Amounts)>,
    /// A field that nothing here follows.
    unknown: Option<Arc<str>>,
}

/// A pool, put together.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// As it is; what selects its devices, too.
    pub pool: DevicePool,
    /// Of each of its devices.
    pub subjects: Vec<Subject>,
    /// By device; those that have none are left out.
    terms: BTreeMap<Arc<str>, Terms>,
    /// The core knows it so.
    pub told: Option<DevicePool>,
}

/// All slices, and the pools that they make.
#[derive(Debug, Default)]
pub(super) struct Pools {
    slices: BTreeMap<String, Slice>,
    of_pool: BTreeMap<PoolName, BTreeSet<String>>,
    /// Memory of the smallest card of our agents, by pool.
    cards: BTreeMap<PoolName, Quantity>,
    pub rows: BTreeMap<PoolName, Row>,
}

impl Pools {
    /// The pools that it changes.
    pub(super) fn slice(&mut self, object: &ResourceSlice) -> Vec<PoolName> {
        let name = object.name_any();
        let mut changed = self.gone(&name);
        let slice = slice(&object.spec);
        let pool = slice.pool.clone();
        let slices = self.of_pool.entry(pool.clone()).or_default();
        slices.insert(name.clone());
        self.slices.insert(name, slice);
        changed.retain(|name| *name != pool);
        changed.push(pool);
        changed
    }

    /// A slice is gone. The pool that it changes.
    pub(super) fn gone(&mut self, name: &str) -> Vec<PoolName> {
        let Some(slice) = self.slices.remove(name) else {
            return Vec::new();
        };
        if let Some(slices) = self.of_pool.get_mut(&slice.pool) {
            slices.remove(name);
            if slices.is_empty() {
                self.of_pool.remove(&slice.pool);
            }
        }
        vec![slice.pool]
    }

    /// What a driver says of one of its devices.
    pub(super) fn terms(&self, pool: &PoolName, device: &str) -> Terms {
        let terms = self.rows.get(pool).and_then(|row| row.terms.get(device));
        terms.cloned().unwrap_or_default()
    }

    /// Memory of the smallest card of our agents.
    pub(super) fn smallest_card(&self) -> Option<Quantity> {
        self.cards.values().min().copied()
    }

    /// Memory of that device, if it is a card of our agents.
    pub(super) fn card_memory(&self, pool: &PoolName, name: &str) -> Option<Quantity> {
        let mut devices = self.rows.get(pool)?.pool.devices.iter();
        card_memory(devices.find(|device| *device.name == *name)?)
    }

    /// Puts the pool together; devices that are as they were stay selected. False: it is gone.
    pub(super) fn put_together(&mut self, name: &PoolName) -> bool {
        let old = self.rows.remove(name);
        self.cards.remove(name);
        let slices = self.of_pool.get(name).into_iter().flatten();
        let slices = slices.filter_map(|name| self.slices.get(name));
        let newest = slices.clone().map(|slice| slice.generation).max();
        let slices: Vec<&Slice> = slices
            .filter(|slice| Some(slice.generation) == newest)
            .collect();
        let Some(first) = slices.first() else {
            return false;
        };
        let published = || slices.iter().flat_map(|slice| &slice.devices);
        let counters = slices.iter().flat_map(|slice| slice.counters.clone());
        let has_all = i64::try_from(slices.len()).ok() == Some(first.of);
        let fault = if has_all {
            fault(&slices).map(|why| PoolFault::Invalid(Arc::from(why)))
        } else {
            Some(PoolFault::Incomplete)
        };
        let terms = published()
            .filter(|one| one.terms != Terms::default())
            .map(|one| (Arc::clone(&one.device.name), one.terms.clone()));
        let mut row = Row {
            terms: terms.collect(),
            subjects: published().map(|one| one.subject.clone()).collect(),
            pool: DevicePool {
                name: name.clone(),
                fault,
                devices: published().map(|one| one.device.clone()).collect(),
                counters: counters.collect(),
            },
            told: None,
        };
        if let Some(old) = old {
            let known = old.pool.devices.iter().zip(&old.subjects);
            let known: BTreeMap<&str, (&Device, &Subject)> = known
                .map(|(device, subject)| (&*device.name, (device, subject)))
                .collect();
            for (device, subject) in row.pool.devices.iter_mut().zip(&row.subjects) {
                if let Some((before, was)) = known.get(&*device.name)
                    && *was == subject
                {
                    device.selected_by.clone_from(&before.selected_by);
                    device.unanswered.clone_from(&before.unanswered);
                }
            }
            row.told = old.told;
        }
        if let Some(least) = row.pool.devices.iter().filter_map(card_memory).min() {
            self.cards.insert(name.clone(), least);
        }
        self.rows.insert(name.clone(), row);
        true
    }
}

impl Row {
    /// Whether the filter selects the device is known, or why it has no answer.
    pub(super) fn select(
        &mut self,
        at: usize,
        filter: &FilterName,
        answer: Result<bool, Arc<str>>,
    ) {
        let Some(device) = self.pool.devices.get_mut(at) else {
            return;
        };
        device.selected_by.remove(filter);
        device.unanswered.remove(filter);
        match answer {
            Ok(true) => drop(device.selected_by.insert(filter.clone())),
            Ok(false) => {}
            Err(why) => drop(device.unanswered.insert(filter.clone(), why)),
        }
    }

    /// The pool, where the core knows another.
    pub(super) fn news(&mut self) -> Option<DevicePool> {
        if self.told.as_ref() == Some(&self.pool) {
            return None;
        }
        self.told = Some(self.pool.clone());
        self.told.clone()
    }
}

fn card_memory(device: &Device) -> Option<Quantity> {
    device.card.as_ref()?;
    let memory = device.capacity.get(dra::MEMORY)?.has;
    (memory > Quantity::default()).then_some(memory)
}

/// What contradicts itself in a pool, as kube-scheduler says it.
fn fault(slices: &[&Slice]) -> Option<String> {
    if let Some(unknown) = slices.iter().find_map(|slice| slice.unknown.as_ref()) {
        return Some(format!("{unknown} is not served"));
    }
    let mut names = BTreeSet::new();
    let devices = || slices.iter().flat_map(|slice| &slice.devices);
    if let Some(twice) = devices().find(|one| !names.insert(&one.device.name)) {
        return Some(format!("duplicate device name {}", twice.device.name));
    }
    let mut sets: BTreeMap<&str, &Amounts> = BTreeMap::new();
    for (set, counters) in slices.iter().flat_map(|slice| &slice.counters) {
        if sets.insert(set, counters).is_some() {
            return Some(format!("duplicate counter set name {set}"));
        }
    }
    devices().find_map(|one| {
        one.device.consumes.iter().find_map(|(set, counters)| {
            let Some(has) = sets.get(&**set) else {
                return Some(format!("counter set {set} not found"));
            };
            let lacks = counters.keys().find(|name| !has.contains_key(*name))?;
            Some(format!("counter {lacks} not found in counter set {set}"))
        })
    })
}

fn slice(spec: &ResourceSliceSpec) -> Slice {
    let all = place(
        spec.node_name.as_deref(),
        spec.all_nodes,
        spec.node_selector.as_ref(),
    );
    let by_device = spec.per_device_node_selection == Some(true);
    let mut unknown = None;
    let skips = spec.skip_node_operations.clone().unwrap_or_default();
    let published = spec.devices.iter().flatten().map(|one| {
        let nodes = if by_device {
            place(
                one.node_name.as_deref(),
                one.all_nodes,
                one.node_selector.as_ref(),
            )
        } else {
            all.clone()
        };
        unknown = unknown.take().or_else(|| unknown_field(one));
        Published {
            device: device(one, &spec.driver, nodes),
            subject: subject(one, &spec.driver),
            terms: Terms {
                binding: one.binding_conditions.clone().unwrap_or_default(),
                failure: one.binding_failure_conditions.clone().unwrap_or_default(),
                skips: skips.clone(),
            },
        }
    });
    let sets = spec.shared_counters.iter().flatten();
    Slice {
        pool: PoolName::new(&spec.driver, &spec.pool.name),
        generation: spec.pool.generation,
        of: spec.pool.resource_slice_count,
        devices: published.collect(),
        counters: sets
            .map(|set| {
                let counters = set.counters.iter();
                let counters = counters.map(|(name, one)| (name, &one.value));
                (Arc::from(set.name.as_str()), amounts(counters))
            })
            .collect(),
        unknown,
    }
}

/// A field of a device without which it is not what its driver means.
fn unknown_field(device: &KubeDevice) -> Option<Arc<str>> {
    let mut consumes = device.consumes_counters.iter().flatten();
    let field = if device.node_allocatable_resources.is_some() {
        "nodeAllocatableResources"
    } else if consumes.any(|one| one.compatibility_groups.is_some()) {
        "consumesCounters.compatibilityGroups"
    } else {
        return None;
    };
    Some(Arc::from(format!("device {}: {field}", device.name)))
}

fn place(name: Option<&str>, all: Option<bool>, selector: Option<&NodeSelector>) -> DeviceNodes {
    match (name.filter(|name| !name.is_empty()), selector) {
        (Some(name), _) => DeviceNodes::Node(NodeName::new(name)),
        (None, _) if all == Some(true) => DeviceNodes::All,
        (None, Some(selector)) => {
            let terms = selector.node_selector_terms.iter();
            DeviceNodes::Terms(terms.map(rules::term).collect())
        }
        (None, None) => DeviceNodes::None,
    }
}

fn device(device: &KubeDevice, driver: &str, nodes: DeviceNodes) -> Device {
    let capacity = device.capacity.iter().flatten().map(|(name, one)| {
        let capacity = Capacity {
            has: exact(&one.value),
            ..one.request_policy.as_ref().map(policy).unwrap_or_default()
        };
        (Arc::from(name.as_str()), capacity)
    });
    let attributes = device.attributes.iter().flatten();
    let mut by_name: BTreeMap<Arc<str>, Attribute> = BTreeMap::new();
    // A name without a domain counts as the driver's, where it has no other of that name.
    let (full, short): (Vec<_>, Vec<_>) = attributes.partition(|(name, _)| name.contains('/'));
    for (name, value) in short {
        if let Some(value) = attribute(value) {
            by_name.insert(Arc::from(format!("{driver}/{name}")), value);
        }
    }
    for (name, value) in full {
        if let Some(value) = attribute(value) {
            by_name.insert(Arc::from(name.as_str()), value);
        }
    }
    let consumes = device.consumes_counters.iter().flatten().map(|one| {
        let counters = one.counters.iter();
        let counters = counters.map(|(name, one)| (name, &one.value));
        (Arc::from(one.counter_set.as_str()), amounts(counters))
    });
    let ours = driver == dra::DRIVER;
    let text = |name: &str| match by_name.get(format!("{driver}/{name}").as_str()) {
        Some(Attribute::Text(text)) => Some(Arc::clone(text)),
        _ => None,
    };
    let card = text("uuid").filter(|_| ours).map(GpuUuid::new);
    // NVIDIA's driver lists the parts of a GPU beside it.
    let is_whole = text("type").is_none_or(|kind| &*kind == "gpu");
    Device {
        name: Arc::from(device.name.as_str()),
        nodes,
        shared: device.allow_multiple_allocations == Some(true),
        capacity: capacity.collect(),
        consumes: consumes.collect(),
        taints: device.taints.iter().flatten().filter_map(taint).collect(),
        waits: device.binding_conditions.is_some(),
        binds_to_node: device.binds_to_node == Some(true),
        selected_by: BTreeSet::new(),
        unanswered: BTreeMap::new(),
        card,
        gpu: !ours && is_gpu(driver) && is_whole,
        attributes: by_name,
    }
}

/// KAI's rule for classes, taken for drivers, too.
pub(super) fn is_gpu(name: &str) -> bool {
    name.to_ascii_lowercase().contains("gpu")
}

fn policy(policy: &CapacityRequestPolicy) -> Capacity {
    let mut values: Vec<Quantity> = policy.valid_values.iter().flatten().map(exact).collect();
    values.sort_unstable();
    Capacity {
        has: Quantity::default(),
        default: policy.default.as_ref().map(exact),
        values,
        range: policy.valid_range.as_ref().map(|range| Range {
            min: Some(exact(&range.min)),
            max: range.max.as_ref().map(exact),
            step: range.step.as_ref().map(exact),
        }),
    }
}

fn attribute(value: &DeviceAttribute) -> Option<Attribute> {
    let text = |text: &String| Arc::from(text.as_str());
    (value.int.map(Attribute::Int))
        .or_else(|| value.bool.map(Attribute::Bool))
        .or_else(|| value.string.as_ref().map(|one| Attribute::Text(text(one))))
        .or_else(|| {
            value
                .version
                .as_ref()
                .map(|one| Attribute::Version(text(one)))
        })
}

/// A taint whose effect is not known does nothing, as `None` does.
fn taint(taint: &k8s_openapi::api::resource::v1::DeviceTaint) -> Option<DeviceTaint> {
    let effect = match taint.effect.as_str() {
        "NoSchedule" => Effect::NoSchedule,
        "NoExecute" => Effect::NoExecute,
        _ => return None,
    };
    Some(DeviceTaint {
        key: Arc::from(taint.key.as_str()),
        value: Arc::from(taint.value.as_deref().unwrap_or_default()),
        effect,
    })
}

fn subject(device: &KubeDevice, driver: &str) -> Subject {
    let attributes = device.attributes.iter().flatten().map(|(name, value)| {
        let value = match attribute(value) {
            Some(Attribute::Int(one)) => selector::Attribute::Int(one),
            Some(Attribute::Bool(one)) => selector::Attribute::Bool(one),
            Some(Attribute::Text(one)) => selector::Attribute::Text(one.to_string()),
            Some(Attribute::Version(one)) => selector::Attribute::Version(one.to_string()),
            None => selector::Attribute::Unknown,
        };
        (name.clone(), value)
    });
    let capacity = device.capacity.iter().flatten();
    Subject {
        driver: driver.to_owned(),
        shared: device.allow_multiple_allocations == Some(true),
        attributes: attributes.collect(),
        capacity: capacity
            .map(|(name, one)| (name.clone(), exact(&one.value).0))
            .collect(),
    }
}

/// The API server lets no other be written.
pub(super) fn exact(quantity: &KubeQuantity) -> Quantity {
    Quantity(quantity::nano(&quantity.0).unwrap_or_default())
}

pub(super) fn amounts<'a>(all: impl Iterator<Item = (&'a String, &'a KubeQuantity)>) -> Amounts {
    all.map(|(name, value)| (Arc::from(name.as_str()), exact(value)))
        .collect()
}
