//! This file turns a claim's allocation into requests to the ledger, one for each container of a pod.
//! Pure.

use super::mode;
use super::parts::{Allocated, Config, Device, device_name, goes_with, takes};
use super::rules;
use crate::inventory::{Card, Inventory};
use crate::ledger::{AllocId, Claim, Claimed, Ledger, ShareOptions, Turn};
use crate::node::policy::Policy;
use crate::pods::PodView;
use crate::watchdog::ViolationKind;
use api::grant::PodIdentity;
use api::{Mib, Mode};
use std::collections::{BTreeMap, BTreeSet};

/// The state that an allocation is compared with.
pub(in crate::node) struct Ask<'a> {
    pub(in crate::node) ledger: &'a Ledger,
    pub(in crate::node) inventory: &'a Inventory,
    pub(in crate::node) policy: &'a Policy,
}

impl Ask<'_> {
    /// Returns the pod's requests to the ledger: a row for each of its containers that takes a part.
    pub(in crate::node) fn part_claims(
        &self,
        allocated: &Allocated,
        pod: &PodView,
        parts: &mut BTreeMap<BTreeSet<String>, Claim>,
    ) -> Result<Vec<(AllocId, Claim)>, String> {
        let takes = takes(pod, &allocated.name, &allocated.requests())?;
        let mut new: BTreeMap<BTreeSet<String>, Claim> = BTreeMap::new();
        let mut claims = Vec::new();
        for (part, containers) in &takes {
            let others = parts.keys().chain(takes.keys());
            if !goes_with(part, others) {
                return Err(rules::apart(pod, &allocated.name, &takes));
            }
            let template = match parts.get(part) {
                Some(template) => template.clone(),
                None => self.template(allocated, part)?,
            };
            let alloc = allocated.part(part);
            rules::may_have(pod, &template.wishes, template.mode)?;
            for container in containers {
                rules::has_nothing_else(self.ledger, pod, container, Some(alloc))?;
                claims.push((alloc, with_holder(&template, pod, container)));
            }
            new.insert(part.clone(), template);
        }
        parts.extend(new);
        Ok(claims)
    }

    /// A claim part's requests to the cards; the holder is set later.
    fn template(&self, allocated: &Allocated, part: &BTreeSet<String>) -> Result<Claim, String> {
        let claim = allocated.claim();
        let devices = allocated.devices.iter();
        let devices: Vec<&Device> = devices
            .filter(|device| part.contains(&device.request))
            .collect();
        let cards = self.cards_of(&claim, &devices)?;
        let Some(first) = devices.first() else {
            return Err(format!("claim {claim} has no device"));
        };
        if devices.iter().any(|one| one.observes != first.observes) {
            return Err(format!(
                "claim {claim} asks for adminAccess to some of a container's devices and for shares of others: take them in two claims, by two containers"
            ));
        }
        if devices.iter().any(|one| one.config != first.config) {
            return Err(format!(
                "claim {claim} configures the devices of one container differently: it has one share of all of them"
            ));
        }
        let config = &first.config;
        let observes = first.observes;
        // A part that is held stays as it is.
        let held = self.ledger.by_alloc(allocated.part(part)).next();
        let mode = match held {
            _ if observes => Mode::Exclusive,
            Some(held) => held.mode,
            None => mode::of(self.ledger, Some(self.policy), &cards, config.mode)
                .map_err(|why| format!("claim {claim}: {why}"))?,
        };
        let memory = if observes {
            Mib(0)
        } else {
            memory(&claim, &devices, &cards, mode, held.is_some())?
        };
        Ok(Claim {
            pod: PodIdentity {
                uid: String::new(),
                namespace: allocated.namespace.clone(),
                name: String::new(),
            },
            container: String::new(),
            turn: Turn::default(),
            gpus: cards.iter().map(|card| card.uuid.clone()).collect(),
            memory,
            kept: memory,
            compute_percent: config.compute_percent.unwrap_or(100),
            mode,
            // Another scheduler has placed the pod.
            decision: String::new(),
            claimed: Some(Claimed {
                uid: allocated.uid.clone(),
                name: allocated.name.clone(),
                requests: part.clone(),
            }),
            wishes: self.wishes(&claim, config, observes)?,
        })
    }

    fn cards_of(&self, claim: &str, devices: &[&Device]) -> Result<Vec<&Card>, String> {
        let mut found: Vec<&Card> = Vec::new();
        for device in devices {
            let mut cards = self.inventory.cards.iter();
            let card = cards
                .find(|card| device_name(&card.uuid) == device.device)
                .ok_or_else(|| {
                    format!(
                        "claim {claim} is allocated device {}, which is no card of this node",
                        device.device
                    )
                })?;
            if found.iter().any(|other| other.uuid == card.uuid) {
                return Err(format!(
                    "claim {claim} is allocated card {} twice for one container: add the constraint distinctAttribute: aliquot.dev/uuid, or ask for more of one card",
                    card.uuid
                ));
            }
            found.push(card);
        }
        Ok(found)
    }

    /// Returns the options of a claim. It can only be stricter than the admin's policy.
    fn wishes(&self, claim: &str, config: &Config, observes: bool) -> Result<ShareOptions, String> {
        let without =
            (config.on_violation).unwrap_or_else(|| self.policy.reaction(ViolationKind::Memory));
        if let Some(own) = config.at_least.filter(|own| *own < without) {
            return Err(format!(
                "claim {claim} asks for onViolation {own:?}, and without that it is {without:?} here: a claim can only be stricter"
            ));
        }
        Ok(ShareOptions {
            minimum_fence: config.minimum_fence,
            on_violation: config.on_violation,
            at_least: config.at_least,
            observes,
        })
    }
}

/// Returns the memory that a part has of each of its cards.
fn memory(
    claim: &str,
    devices: &[&Device],
    cards: &[&Card],
    mode: Mode,
    again: bool,
) -> Result<Mib, String> {
    let mut amounts = Vec::new();
    for (device, card) in devices.iter().zip(cards) {
        if device.memory == Some(Mib(0)) {
            return Err(format!(
                "claim {claim} asks for no memory of card {}: a share has at least 1Mi",
                card.uuid
            ));
        }
        let Some(memory) = device.memory else {
            return Err(format!(
                "the allocation of claim {claim} consumes no {} of device {}: it needs Kubernetes with the feature DRAConsumableCapacity, on by default from 1.36",
                proto::names::dra::MEMORY,
                device.device
            ));
        };
        // A part that is held may have been allocated under another reserve.
        if mode == Mode::Exclusive && !again && memory < card.capacity() {
            return Err(format!(
                "claim {claim} asks for card {} whole, and for {memory} of it: leave the amount out",
                card.uuid
            ));
        }
        amounts.push(memory);
    }
    let least = amounts.iter().min().copied().unwrap_or_default();
    if mode != Mode::Exclusive && amounts.iter().any(|amount| *amount != least) {
        return Err(format!(
            "claim {claim} takes different amounts of the cards of one container: its share has one limit, so ask for the same of each"
        ));
    }
    Ok(least)
}

fn with_holder(template: &Claim, pod: &PodView, container: &str) -> Claim {
    Claim {
        pod: pod.identity.clone(),
        container: container.to_owned(),
        ..template.clone()
    }
}
