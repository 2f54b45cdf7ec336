//! The node's state → what its `ResourceSlice` says. Pure.
//!
//! One device per card, which several claims may hold at once (KEP-5075). What keeps a card
//! from being allocated again is a taint (KEP-5055), so that the device stays in the pool while
//! claims hold it.

use crate::fence;
use crate::inventory::Card;
use crate::inventory::Front;
use crate::node::State;
use crate::node::claims::mode;
use crate::node::claims::parts::device_name;
use api::Mode;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint, ResourcePool, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proto::names::dra as names;
use std::collections::BTreeMap;

/// Of one slice, where its devices have taints.
const MOST_DEVICES: usize = 64;
/// Bytes of an attribute's text.
const LONGEST_TEXT: usize = 64;

/// The current slice, as generation 0; `None` before the cards and their holders are known.
pub fn spec(state: &State) -> Option<ResourceSliceSpec> {
    let known = state.ready.nvml || !state.inventory.cards.is_empty();
    if !known || !state.restored || state.node.uid.is_empty() {
        return None;
    }
    // The last card first: schedulers allocate devices in the slice's order, and the kubelet and
    // the scheduler take the device plugin's cards from the first on. What both fronts give away
    // at the same time is the same card only where a single one is idle.
    let mut devices: Vec<Device> = cards(state).map(|card| device(state, card)).collect();
    devices.reverse();
    Some(ResourceSliceSpec {
        devices: Some(devices),
        driver: names::DRIVER.to_owned(),
        node_name: Some(state.node.name.clone()),
        pool: ResourcePool {
            generation: 0,
            name: state.node.name.clone(),
            resource_slice_count: 1,
        },
        ..ResourceSliceSpec::default()
    })
}

/// The cards that are devices.
pub(super) fn cards(state: &State) -> impl Iterator<Item = &Card> {
    let cards = state.inventory.cards.iter();
    cards
        .filter(|card| !card.mig && card.slice.is_none() && card.capacity().0 > 0)
        .take(MOST_DEVICES)
}

/// The mode that a share of this card alone has now, or would get; `exclusive` where the card is
/// used whole, or can be used in no other way. `None`: it takes no new share.
fn mode_of(state: &State, card: &Card) -> Option<Mode> {
    if state.ledger.mode_of(&card.uuid) == Some(Mode::Exclusive) {
        return Some(Mode::Exclusive);
    }
    let shared = mode::of(&state.ledger, state.policy.as_ref(), &[card], None).ok();
    shared.or_else(|| {
        let idle = state.ledger.mode_of(&card.uuid).is_none();
        (idle && card.switchable.contains(&Mode::Exclusive)).then_some(Mode::Exclusive)
    })
}

fn device(state: &State, card: &Card) -> Device {
    Device {
        name: device_name(&card.uuid),
        allow_multiple_allocations: Some(true),
        attributes: Some(attributes(state, card)),
        capacity: Some(capacity(state, card)),
        taints: Some(taints(state, card)).filter(|taints| !taints.is_empty()),
        ..Device::default()
    }
}

fn attributes(state: &State, card: &Card) -> BTreeMap<String, DeviceAttribute> {
    let text = |text: &str| {
        let short: String = text.chars().take(LONGEST_TEXT).collect();
        (!short.is_empty() && short.len() <= LONGEST_TEXT).then(|| DeviceAttribute {
            string: Some(short),
            ..DeviceAttribute::default()
        })
    };
    let version = |text: &str| {
        semver(text).map(|version| DeviceAttribute {
            version: Some(version),
            ..DeviceAttribute::default()
        })
    };
    let mode = mode_of(state, card);
    let fence = mode.and_then(fence::of_mode).map(|range| range.least);
    let all = [
        (
            "whole",
            Some(DeviceAttribute {
                bool: Some(card.switchable.contains(&Mode::Exclusive)),
                ..DeviceAttribute::default()
            }),
        ),
        ("uuid", text(card.uuid.as_str())),
        ("productName", text(&card.product)),
        ("mode", mode.and_then(|mode| text(mode.as_str()))),
        ("fence", fence.and_then(|fence| text(&fence.to_string()))),
        ("driverVersion", version(&state.inventory.driver_version)),
        ("computeCapability", version(&card.compute_capability)),
        (
            "numaNode",
            card.numa.map(|node| DeviceAttribute {
                int: Some(i64::from(node)),
                ..DeviceAttribute::default()
            }),
        ),
        (
            "resource.kubernetes.io/pciBusID",
            pci(&card.pci).and_then(|pci| text(&pci)),
        ),
    ];
    all.into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// Two numbers or three, as semantic versioning has them: `570.172.08` is `570.172.8`.
fn semver(text: &str) -> Option<String> {
    let mut numbers = text
        .split('.')
        .map(|part| part.parse::<u64>().ok())
        .collect::<Option<Vec<u64>>>()?;
    if numbers.len() > 3 || numbers.len() < 2 {
        return None;
    }
    numbers.resize(3, 0);
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    Some(numbers.join("."))
}

/// NVML writes the domain with eight digits, Kubernetes with four.
fn pci(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    let domain = domain.get(domain.len().checked_sub(4)?..)?;
    Some(format!("{domain}:{rest}").to_ascii_lowercase())
}

/// A claim without an amount takes the whole card, and each share takes one client slot. In mode
/// `mps-isolated` each share has an MPS server of its own, whose memory is in no limit: the memory
/// of the next server is in the card's reserve, that of the existing ones is subtracted here.
fn capacity(state: &State, card: &Card) -> BTreeMap<String, DeviceCapacity> {
    let mib = |mib: u64| Quantity(format!("{mib}Mi"));
    let one = Quantity("1".to_owned());
    let servers = state.ledger.servers_of_shares(card);
    let whole = mib(card.capacity().saturating_sub(servers).0);
    BTreeMap::from([
        (
            names::MEMORY.to_owned(),
            DeviceCapacity {
                request_policy: Some(CapacityRequestPolicy {
                    default: Some(whole.clone()),
                    valid_range: Some(CapacityRequestPolicyRange {
                        // A claim of nothing only monitors, also on a full card.
                        min: mib(0),
                        step: Some(mib(1)),
                        max: None,
                    }),
                    valid_values: None,
                }),
                value: whole,
            },
        ),
        (
            names::SLOTS.to_owned(),
            DeviceCapacity {
                request_policy: Some(CapacityRequestPolicy {
                    default: Some(one.clone()),
                    valid_range: None,
                    valid_values: Some(vec![one]),
                }),
                value: Quantity(card.client_slots.to_string()),
            },
        ),
    ])
}

/// Why nothing new is to be allocated of the card.
fn taints(state: &State, card: &Card) -> Vec<DeviceTaint> {
    let taint = |key: &str, value: Option<&str>, effect: &str| DeviceTaint {
        key: key.to_owned(),
        value: value.map(str::to_owned),
        effect: effect.to_owned(),
        time_added: None,
    };
    let mut taints = Vec::new();
    if !card.health.is_healthy() || state.unguarded.contains_key(&card.uuid) {
        // Pods on a lost card have lost it and are evicted. A card that is slow to answer
        // evicts none.
        let effect = if card.health.is_lasting() {
            "NoExecute"
        } else {
            "NoSchedule"
        };
        taints.push(taint(names::TAINT_UNHEALTHY, None, effect));
    }
    if card.cordoned {
        taints.push(taint(names::TAINT_CORDONED, None, "NoSchedule"));
    }
    let plugin = Some(Front::Plugin);
    if card.only_front == plugin || state.ledger.front_of(&card.uuid) == plugin {
        taints.push(taint(
            names::TAINT_FRONT,
            Some(Front::Plugin.as_str()),
            "NoSchedule",
        ));
    }
    if state.not_offering.is_some() || mode_of(state, card).is_none() {
        taints.push(taint(names::TAINT_NOT_OFFERING, None, "NoSchedule"));
    }
    taints
}

#[cfg(test)]
mod tests;
