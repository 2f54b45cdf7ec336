//! The decisions of the DRA front: whether the cards can serve a claim's allocation, which
//! containers may have it, and whether its memory is free. Pure.

pub mod mode;
pub mod parts;
mod pods;

use super::core::Core;
use super::event::Effect;
use super::prepare::Unready;
use crate::identity::IdentityError;
use crate::inventory::Card;
use crate::ledger::{AllocId, Claim, Claimed, HolderKey, Share, ShareOptions, Turn};
use crate::pods::{PodView, Standing};
use api::grant::PodIdentity;
use api::units::Fence;
use api::{Mib, Mode};
use parts::{Allocated, Config, Device, Takes, device_name, goes_with, takes};
pub use pods::Claimants;
pub(super) use pods::Listed;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// One part of a claim that is in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Its allocation.
    pub alloc: AllocId,
    /// The share, as one of its containers has it.
    pub share: Share,
}

impl Core {
    /// Enters a claim's allocation, for each pod of this node that it is reserved for. Existing
    /// entries stay. Nothing is entered if one part cannot be.
    pub fn prepare_claim(
        &mut self,
        allocated: &Allocated,
        now: Instant,
    ) -> (Result<Vec<Prepared>, Unready>, Vec<Effect>) {
        let before = self.ledger.clone();
        let result = self
            .candidates(allocated)
            .and_then(|pods| self.enter_claim(allocated, &pods, now));
        match &result {
            Ok(_) => {
                let reserved = allocated.reserved.keys().cloned().collect();
                self.reserved.insert(allocated.uid.clone(), reserved);
            }
            Err(_) => self.ledger = before,
        }
        let mut effects = Vec::new();
        self.settle(now, &mut effects);
        (result, effects)
    }

    /// The pods that it is reserved for, as far as they are here and not finished.
    fn candidates(&self, allocated: &Allocated) -> Result<Vec<PodView>, Unready> {
        if !self.restored {
            return Err(late("what this node holds is not known yet".to_owned()));
        }
        let mut here = Vec::new();
        let mut unknown = None;
        for uid in allocated.reserved.keys() {
            match self.pods.standing(uid) {
                Standing::Present(pod) if !pod.finished => here.push(pod.clone()),
                Standing::Present(_) | Standing::Gone => {}
                Standing::Unknown => unknown = Some(uid),
            }
        }
        if here.is_empty() {
            let names: Vec<&str> = allocated.reserved.values().map(String::as_str).collect();
            return Err(match unknown {
                Some(uid) => late(IdentityError::PodUnknown(uid.clone()).to_string()),
                None => never(format!(
                    "pod {}/{} is gone or finished",
                    allocated.namespace,
                    names.join(", ")
                )),
            });
        }
        // Existing shares stay; nothing is placed beside them.
        let held = self.of_claim(&allocated.uid).next().is_some();
        match self.not_offering().filter(|_| !held) {
            Some(why) => Err(late(why)),
            None => Ok(here),
        }
    }

    /// The rows of a claim.
    fn of_claim<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Share> {
        let of = move |share: &&Share| share.claimed.as_ref().is_some_and(|of| of.uid == uid);
        self.ledger.all().filter(of)
    }

    fn enter_claim(
        &mut self,
        allocated: &Allocated,
        pods: &[PodView],
        now: Instant,
    ) -> Result<Vec<Prepared>, Unready> {
        let mut parts: BTreeMap<BTreeSet<String>, Claim> = BTreeMap::new();
        let mut first_refusal = None;
        let mut entered: Vec<(AllocId, Claim)> = Vec::new();
        for pod in pods {
            match self.part_claims(allocated, pod, &mut parts) {
                Ok(claims) => entered.extend(claims),
                Err(why) => drop(first_refusal.get_or_insert(why)),
            }
        }
        if let Some(why) = first_refusal.filter(|_| entered.is_empty()) {
            return Err(never(why));
        }
        let mut prepared: BTreeMap<AllocId, Share> = BTreeMap::new();
        for (alloc, claim) in entered {
            self.make_way(&claim, alloc)?;
            let share = self.enter(&claim, alloc, None, now)?;
            let several = self.ledger.holders(&share.limit_scope()).nth(1).is_some();
            if let Some(why) = self.alone_only(&share).filter(|_| several) {
                return Err(never(why));
            }
            prepared.insert(alloc, share);
        }
        let prepared = prepared.into_iter();
        Ok(prepared
            .map(|(alloc, share)| Prepared { alloc, share })
            .collect())
    }

    /// What a pod asks the ledger for: a row for each of its containers that takes a part.
    fn part_claims(
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
                return Err(apart(pod, &allocated.name, &takes));
            }
            let template = match parts.get(part) {
                Some(template) => template.clone(),
                None => self.template(allocated, part)?,
            };
            let alloc = allocated.part(part);
            Self::may_have(pod, &template.wishes, template.mode)?;
            for container in containers {
                self.has_nothing_else(pod, container, Some(alloc))?;
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
        // One that is held stays as it is.
        let held = self.ledger.by_alloc(allocated.part(part)).next();
        let mode = match held {
            _ if observes => Mode::Exclusive,
            Some(held) => held.mode,
            None => mode::of(&self.ledger, self.policy.as_ref(), &cards, config.mode)
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
            // By another scheduler.
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

    /// Of a claim against the admin's word: it can only be stricter.
    fn wishes(&self, claim: &str, config: &Config, observes: bool) -> Result<ShareOptions, String> {
        let without = config.on_violation.unwrap_or_else(|| self.on_violation());
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

    /// A claim that was freed and allocated again has other cards than its rows: they go, once
    /// nothing of them lives.
    fn make_way(&mut self, claim: &Claim, alloc: AllocId) -> Result<(), Unready> {
        let old: Vec<Share> = (self.ledger.by_alloc(alloc))
            .filter(|share| share.gpus != claim.gpus)
            .cloned()
            .collect();
        if let Some(share) = old.iter().find(|share| self.lives(share)) {
            return Err(late(format!(
                "container {} of pod {} still holds it",
                share.container, share.pod
            )));
        }
        for share in &old {
            self.ledger.release(&share.key());
        }
        Ok(())
    }

    /// Why a pod must not have a share of this kind, if so.
    fn may_have(pod: &PodView, wishes: &ShareOptions, mode: Mode) -> Result<(), String> {
        // Monitoring is allowed by its namespace's label; the rules for shares do not apply to a
        // whole card.
        let is_fenced = !wishes.observes && mode != Mode::Exclusive;
        match pod.way_around.as_ref().filter(|_| is_fenced) {
            Some(way) => Err(format!(
                "pod {} must not have a share of a GPU: {way}",
                pod.identity
            )),
            None => Ok(()),
        }
    }

    /// A container has one CDI file, so one share.
    fn has_nothing_else(
        &self,
        pod: &PodView,
        container: &str,
        alloc: Option<AllocId>,
    ) -> Result<(), String> {
        let key = HolderKey {
            pod_uid: pod.identity.uid.clone(),
            container: container.to_owned(),
        };
        let other = self.ledger.get(&key);
        let other = other.filter(|share| share.alloc_id.is_some() && share.alloc_id != alloc);
        match other {
            Some(_) => Err(format!(
                "container {container} of pod {} holds another share already",
                pod.identity
            )),
            None => Ok(()),
        }
    }

    /// Why a share cannot have several containers, if so.
    fn alone_only(&self, share: &Share) -> Option<String> {
        let minimum = self
            .minimum_fence()
            .into_iter()
            .chain(share.wishes.minimum_fence);
        // Strongest first.
        let needed = minimum.min() == Some(Fence::DriverLimit);
        let fenced = !share.wishes.observes && share.mode != Mode::Exclusive;
        (needed && fenced).then(|| {
            format!(
                "claim {} cannot have several containers where the minimum fence is DriverLimit: the driver limits each of them, and not their sum",
                share.claim_name().unwrap_or_default()
            )
        })
    }

    /// Frees what a claim had. One that has nothing is free.
    ///
    /// # Errors
    /// One sentence: something of it still runs, or it is not known whether.
    pub fn unprepare(&mut self, uid: &str, now: Instant) -> (Result<(), String>, Vec<Effect>) {
        let mut effects = Vec::new();
        let result = self.free(uid, &mut effects);
        self.settle(now, &mut effects);
        (result, effects)
    }

    fn free(&mut self, uid: &str, effects: &mut Vec<Effect>) -> Result<(), String> {
        if !self.restored {
            return Err("what this node holds is not known yet".to_owned());
        }
        let rows: Vec<Share> = self.of_claim(uid).cloned().collect();
        if let Some(share) = rows.iter().find(|share| self.lives(share)) {
            return Err(format!(
                "container {} of pod {} still runs",
                share.container, share.pod
            ));
        }
        for share in rows {
            self.release(&share.key(), effects);
        }
        self.reserved.remove(uid);
        Ok(())
    }
}

/// What of each of its cards a part has.
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
        // One that is held may have been allocated by another reserve.
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

fn apart(pod: &PodView, claim: &str, takes: &Takes) -> String {
    let names: Vec<&str> = takes.values().flatten().map(String::as_str).collect();
    format!(
        "containers of pod {} ({}) take parts of claim {claim} that overlap with others: containers that use a claim take the same of it, or have nothing in common",
        pod.identity,
        names.join(", ")
    )
}

pub(super) fn late(reason: String) -> Unready {
    Unready {
        reason,
        may_pass: true,
        is_final: false,
        decision: String::new(),
    }
}

fn never(reason: String) -> Unready {
    Unready {
        may_pass: false,
        ..late(reason)
    }
}
