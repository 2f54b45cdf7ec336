//! A complaint says why a container should not stay, or what happened to it. Pure.

use super::broken_servers::BrokenServers;
use super::fences::Fences;
use super::guard::Guard;
use super::policy::Policy;
use crate::inventory::{DriverLimits, Front, Inventory};
use crate::ledger::{HolderKey, Ledger, Share};
use crate::mps::plan::server_name;
use crate::pods::{Pods, Standing};
use crate::reconcile::Local;
use crate::watchdog::ViolationKind;
use api::Mode;
use api::gpu_node::Reaction;
use proto::mps::Observation;
use std::collections::BTreeMap;

/// Why a container should not stay, or what it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaint {
    /// The complaint in one sentence.
    pub text: String,
    /// Its pod should be evicted for it.
    pub evict: bool,
}

/// The state that complaints follow from.
pub(super) struct Grounds<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) ledger: &'a Ledger,
    pub(super) pods: &'a Pods,
    pub(super) policy: &'a Policy,
    pub(super) local: &'a Local,
    /// The supervisor's last observation.
    pub(super) seen: &'a Observation,
    pub(super) guard: &'a Guard,
    pub(super) broken: &'a BrokenServers,
    pub(super) fences: &'a Fences,
}

impl Grounds<'_> {
    /// Returns the complaints about all containers with a share whose pods are not gone.
    pub(super) fn complaints(&self) -> BTreeMap<HolderKey, Complaint> {
        let standing =
            |share: &&Share| !matches!(self.pods.standing(&share.pod.uid), Standing::Gone);
        self.ledger
            .shares()
            .filter(standing)
            .filter_map(|share| Some((share.key(), self.complaint(share)?)))
            .collect()
    }

    fn complaint(&self, share: &Share) -> Option<Complaint> {
        let evict = self.policy.reaction_to(ViolationKind::Memory, share) == Reaction::Evict;
        let sick = share.gpus.iter().find_map(|uuid| {
            let card = self.inventory.card(uuid)?;
            (!card.health.is_healthy()).then_some(card)
        });
        if let Some(card) = sick {
            return Some(Complaint {
                text: format!("card {} is unhealthy: {}", card.uuid, card.health.reason()),
                // A claim's pod is evicted by its device's taint, unless it tolerates that.
                evict: card.health.is_lasting() && share.front() == Front::Plugin,
            });
        }
        let wrong = share
            .gpus
            .iter()
            .find_map(|uuid| self.fences.wrong_mode_of(self.inventory, uuid));
        if let Some(text) = wrong {
            return Some(Complaint { text, evict: false });
        }
        // A complaint for which the pod must go is not hidden by one that is only reported.
        let hold = share.limit_scope();
        let held: Vec<(ViolationKind, &str)> = self.guard.complaints(&hold).collect();
        let evicts = |(wrong, _): &&(ViolationKind, &str)| {
            self.policy.reaction_to(*wrong, share) == Reaction::Evict
        };
        let evicting = held.iter().find(evicts);
        if let Some((_, text)) = evicting.or(held.first()) {
            return Some(Complaint {
                text: (*text).to_owned(),
                evict: evicting.is_some(),
            });
        }
        let server = server_name(share).and_then(|name| {
            let mut servers = self.seen.servers.iter();
            servers.find(|s| s.name == name)
        });
        if let Some(text) = self.broken.complaint(share) {
            return Some(Complaint {
                text: text.to_owned(),
                evict: false,
            });
        }
        if let Some(server) = server.filter(|server| !server.tampered.is_empty()) {
            return Some(Complaint {
                text: format!("its MPS server was changed by others: {}", server.tampered),
                evict: evict && share.mode == Mode::MpsIsolated,
            });
        }
        let limited = self.local.limited(share)?;
        let lost =
            share
                .gpus
                .iter()
                .find_map(|uuid| match &self.inventory.card(uuid)?.driver_limits {
                    DriverLimits::Lost(missing) => Some((uuid, missing)),
                    _ => None,
                });
        if let Some((uuid, missing)) = lost.filter(|_| limited.mib.is_some()) {
            return Some(Complaint {
                text: format!(
                    "card {uuid} lost the driver's memory limits; the container's own limit stays as it was set: {missing}"
                ),
                evict: false,
            });
        }
        // Reported, since the driver has such limits; the mode's own fence still holds.
        (limited.mib.is_none()).then(|| Complaint {
            text: format!("the driver's memory limit is not set: {}", limited.error),
            evict: false,
        })
    }
}
