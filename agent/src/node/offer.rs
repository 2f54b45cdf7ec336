//! What the kubelet is offered, and which IDs suit best.
//!
//! Pure. In: inventory, ledger, the holder of each ID. Out: [`Offer`], from which `ListAndWatch`
//! and `GetPreferredAllocation` answer. IDs without a holder are withdrawn as soon as their card
//! takes nothing new. A held ID is Unhealthy only when its holder has lost a card that it was
//! granted, because an Unhealthy ID makes its pod fail permanently when the kubelet restarts.

use super::allocations::Allocations;
use super::grants::Grants;
use crate::gpu::{GpuUuid, Profile};
use crate::inventory::Front;
use crate::inventory::{Card, Inventory};
use crate::ledger::{Claim, HolderKey, Ledger};
use crate::reconcile::Held;
use crate::resource::Resource;
use api::Mode;
use proto::deviceplugin::{Device, NumaNode, TopologyInfo};
use proto::names::kubelet::{HEALTHY, UNHEALTHY};
use std::collections::{BTreeMap, BTreeSet};

/// The offer to the kubelet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// Tokens, in the cards' order.
    pub share: Vec<Device>,
    /// Whole cards, in their order.
    pub whole: Vec<Device>,
    /// Slices, by profile, in their cards' order.
    pub slices: BTreeMap<Profile, Vec<Device>>,
    /// Cards of claims that the kubelet has not allocated for yet, oldest first.
    pub awaited: Vec<Awaited>,
    /// Some card can be allocated whole by this front, or is.
    pub any_whole: bool,
}

/// A claim that the kubelet will allocate for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Under which resource.
    pub resource: Resource,
    /// Its cards.
    pub gpus: Vec<GpuUuid>,
}

/// One token of a card. Two cards never share one, and one survives restarts.
pub fn token(card: &GpuUuid, n: u32) -> String {
    format!("{card}::{n}")
}

/// The card of a token.
fn card_of(token: &str) -> &str {
    token.split_once("::").map_or(token, |(card, _)| card)
}

/// The inputs of an offer, besides the cards.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The holder of each part.
    pub ledger: &'a Ledger,
    /// The holder of each ID.
    pub held: &'a Held,
    /// Cards whose tokens may be offered at all.
    pub shared: &'a BTreeSet<GpuUuid>,
    /// Cards that may be offered whole at all.
    pub whole: &'a BTreeSet<GpuUuid>,
    /// Slices that may be offered by profile at all.
    pub slices: &'a BTreeSet<GpuUuid>,
}

/// IDs with their health, by resource.
pub type Lists = BTreeMap<Resource, Vec<Device>>;

/// All IDs with their health.
pub fn devices(inventory: &Inventory, terms: Terms<'_>) -> Lists {
    let mut lists = Lists::new();
    for card in &inventory.cards {
        let healthy = card.health.is_healthy();
        let mode = terms.ledger.mode_of(&card.uuid);
        let shareable = card.switchable.iter().any(|mode| *mode != Mode::Exclusive);
        let closed = card.only_front == Some(Front::Dra)
            || terms.ledger.front_of(&card.uuid) == Some(Front::Dra);
        let shares = healthy
            && !closed
            && shareable
            && terms.shared.contains(&card.uuid)
            && mode != Some(Mode::Exclusive);
        for n in 0..card.client_slots {
            let id = token(&card.uuid, n);
            let holder = terms.held.get(&(Resource::Share, id.clone()));
            // A card that cannot be shared has no tokens, but for those that are held.
            if shareable || holder.is_some() {
                let fit = holder.map_or(shares, |holder| {
                    granted_health(holder.as_ref(), inventory, terms.ledger)
                });
                push(&mut lists, Resource::Share, device(id, fit, None));
            }
        }
        let wholly = card.switchable.contains(&Mode::Exclusive);
        let id = card.uuid.to_string();
        let holder = terms.held.get(&(card.resource, id.clone()));
        if wholly || holder.is_some() {
            let open = match card.resource {
                Resource::Slice(_) => terms.slices,
                _ => terms.whole,
            };
            // A pod that requests a profile is placed by count alone: nothing else knows of the
            // admin's cordon.
            let cordoned = card.cordoned && card.resource != Resource::Whole;
            let free = wholly
                && !closed
                && !cordoned
                && open.contains(&card.uuid)
                && mode.is_none_or(|mode| mode == Mode::Exclusive);
            let away = inventory.driver_version.is_empty();
            let fit = match holder {
                Some(_) => !card.health.is_lasting() || away,
                None => healthy && free,
            };
            push(&mut lists, card.resource, device(id, fit, card.numa));
        }
    }
    // A holder keeps its ID while its card is not known: NVML may be late.
    for ((resource, id), holder) in terms.held {
        let card = inventory.card(&GpuUuid::from(card_of(id)));
        let elsewhere = |card: &Card| resource.is_of_devices() && card.resource != *resource;
        if card.is_none_or(elsewhere) {
            let fit = granted_health(holder.as_ref(), inventory, terms.ledger);
            push(&mut lists, *resource, device(id.clone(), fit, None));
        }
    }
    lists
}

/// Claims that the kubelet has not allocated for, oldest first.
pub(super) fn awaited(grants: &Grants, allocations: &Allocations, ledger: &Ledger) -> Vec<Awaited> {
    let checkpoint = allocations.local.checkpoint.iter();
    let recorded: BTreeSet<(&str, &str)> = checkpoint
        .flat_map(|checkpoint| &checkpoint.entries)
        .filter(|entry| entry.alloc.is_some())
        .map(|entry| (entry.pod_uid.as_str(), entry.container.as_str()))
        .collect();
    let is_open = |claim: &&Claim| {
        let share = ledger.get(&claim.key());
        !recorded.contains(&(claim.pod.uid.as_str(), claim.container.as_str()))
            && share.is_none_or(|share| share.alloc_id.is_none())
    };
    let open = grants.oldest_first().into_iter().filter(is_open);
    let mut open: Vec<Awaited> = open
        .map(|claim| Awaited {
            resource: match claim.mode {
                Mode::Exclusive => Resource::Whole,
                _ => Resource::Share,
            },
            gpus: claim.gpus.clone(),
        })
        .collect();
    // Each answer that is not recorded yet was for one of them.
    for fresh in allocations.minted.values() {
        let cards: BTreeSet<&str> = fresh.ids.iter().map(|id| card_of(id)).collect();
        let one = open.iter().position(|awaited| {
            awaited.resource == fresh.resource
                && awaited.gpus.iter().any(|gpu| cards.contains(gpu.as_str()))
        });
        if let Some(one) = one {
            open.remove(one);
        }
    }
    open
}

fn push(lists: &mut Lists, resource: Resource, device: Device) {
    lists.entry(resource).or_default().push(device);
}

/// The health of what a token's holder was granted. Unknown is not unhealthy: a holder whose grant
/// is not read yet keeps its token, and a missing driver says nothing about cards.
fn granted_health(holder: Option<&HolderKey>, inventory: &Inventory, ledger: &Ledger) -> bool {
    if inventory.driver_version.is_empty() {
        return true;
    }
    let Some(share) = holder.and_then(|key| ledger.get(key)) else {
        return true;
    };
    share
        .gpus
        .iter()
        .filter_map(|uuid| inventory.card(uuid))
        .all(|card| !card.health.is_lasting())
}

fn device(id: String, healthy: bool, numa: Option<u32>) -> Device {
    Device {
        id,
        health: if healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
        topology: numa.map(|node| TopologyInfo {
            nodes: vec![NumaNode {
                id: i64::from(node),
            }],
        }),
    }
}

impl Offer {
    /// The list of one resource.
    pub fn list(&self, resource: Resource) -> &[Device] {
        match resource {
            Resource::Share => &self.share,
            Resource::Whole => &self.whole,
            Resource::Slice(profile) => self.slices.get(&profile).map_or(&[], Vec::as_slice),
        }
    }

    /// The resources that there are, offered or not.
    pub fn resources(&self) -> impl Iterator<Item = Resource> {
        let slices = self.slices.keys().copied().map(Resource::Slice);
        [Resource::Share, Resource::Whole].into_iter().chain(slices)
    }

    /// The best of `available`: `must` first, then the cards that the oldest awaited claim names,
    /// then cards that no claim awaits. At most `size`, and never an error: the kubelet adds what
    /// is missing.
    pub fn prefer(
        &self,
        resource: Resource,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Vec<String> {
        let free: BTreeSet<&str> = available.iter().map(String::as_str).collect();
        let mut chosen: Vec<String> = must.iter().take(size).cloned().collect();
        let awaited = || self.awaited.iter().filter(|a| a.resource == resource);
        let rank = |id: &str| {
            let card = card_of(id);
            awaited().position(|a| a.gpus.iter().any(|gpu| gpu.as_str() == card))
        };
        let order: BTreeMap<&str, usize> = self
            .list(resource)
            .iter()
            .enumerate()
            .map(|(place, device)| (device.id.as_str(), place))
            .collect();
        let place = |id: &str| order.get(id).copied().unwrap_or(usize::MAX);
        let mut candidates: Vec<&str> = match resource {
            // A token of the oldest awaited card; else of any.
            Resource::Share => {
                let mut all: Vec<&str> = free.iter().copied().collect();
                all.sort_by_key(|id| (rank(id).unwrap_or(usize::MAX), place(id)));
                all
            }
            // Exactly what a claim of this size names; else cards that no claim awaits.
            Resource::Whole | Resource::Slice(_) => {
                let exact = awaited().find(|a| {
                    a.gpus.len() == size
                        && a.gpus.iter().all(|gpu| free.contains(gpu.as_str()))
                        && must
                            .iter()
                            .all(|id| a.gpus.iter().any(|gpu| gpu.as_str() == id))
                });
                if let Some(exact) = exact {
                    exact.gpus.iter().map(GpuUuid::as_str).collect()
                } else {
                    let mut all: Vec<&str> = free.iter().copied().collect();
                    all.sort_by_key(|id| (rank(id).is_some(), place(id)));
                    all
                }
            }
        };
        candidates.retain(|id| !chosen.iter().any(|taken| taken == id));
        let missing = size.saturating_sub(chosen.len());
        chosen.extend(candidates.into_iter().take(missing).map(str::to_owned));
        chosen
    }
}

#[cfg(test)]
pub(super) mod tests;
