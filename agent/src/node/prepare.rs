//! The decision of `PreStartContainer`: the holder of the IDs, its grant, and whether the cards can
//! serve it. Pure.

use super::core::Core;
use super::event::Effect;
use super::policy::Policy;
use crate::fence;
use crate::gpu::GpuUuid;
use crate::identity::{self, Checkpoint, Holder, IdentityError, pod_resources};
use crate::inventory::{Card, DriverLimits};
use crate::ledger::admit::Refused;
use crate::ledger::{AllocId, Claim, HolderKey, Share};
use crate::pods::{PodView, Standing};
use crate::resource::Resource;
use api::Mib;
use api::grant::{Grant, PodIdentity};
use proto::podresources::PodResources;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Without the checkpoint, a container that cannot be identified is tried for this time before the
/// decision is taken back: the kubelet writes the file at its next allocation.
const AMBIGUOUS_GRACE: Duration = Duration::from_mins(2);

/// What the kubelet asks, and where identities can be read.
#[derive(Clone, Debug)]
pub struct PrepareRequest {
    /// The resource.
    pub resource: Resource,
    /// Exactly these.
    pub ids: BTreeSet<String>,
    /// The source that names their holder.
    pub source: Source,
}

/// The source that names the holder of the IDs.
#[derive(Clone, Debug)]
pub enum Source {
    /// The checkpoint, just read.
    Checkpoint(Checkpoint),
    /// It is unreadable; this is all that `PodResources` lists.
    Listed(Vec<PodResources>),
}

/// One allocation of the IDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The holder, if known.
    pub holder: Option<Holder>,
    /// The pod, where it is known.
    pub pod: Option<PodView>,
    /// Bound, or why not.
    pub result: Result<Share, Unready>,
}

/// Why an allocation is not bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    /// The reason in one line.
    pub reason: String,
    /// Waiting can help.
    pub may_pass: bool,
    /// When waiting did not help: only a new decision does.
    pub is_final: bool,
    /// The decision that is not honoured, where it is readable.
    pub decision: String,
}

impl Unready {
    fn identity(error: &IdentityError, pod: Option<&PodView>) -> Self {
        Self {
            reason: error.to_string(),
            may_pass: error.may_pass(),
            is_final: error.is_final(),
            decision: pod.map(decision).unwrap_or_default(),
        }
    }

    fn refused(error: &Refused, claim: &Claim) -> Self {
        Self {
            reason: error.to_string(),
            may_pass: error.may_pass(),
            is_final: true,
            decision: claim.decision.clone(),
        }
    }
}

/// As the grant says, checked or not: for telling the scheduler which of its decisions it is.
fn decision(pod: &PodView) -> String {
    pod.grant
        .as_deref()
        .and_then(|text| Grant::peek(text).ok())
        .map(|grant| grant.decision)
        .unwrap_or_default()
}

impl Core {
    /// Binds every live allocation of these IDs that its grant and the cards allow. The
    /// outcomes are never empty.
    pub fn prepare(&mut self, ask: &PrepareRequest, now: Instant) -> (Vec<Outcome>, Vec<Effect>) {
        if !self.allocations.restored {
            let error = Unready {
                reason: "what this node holds is not known yet".to_owned(),
                may_pass: true,
                is_final: false,
                decision: String::new(),
            };
            let outcome = Outcome {
                holder: None,
                pod: None,
                result: Err(error),
            };
            return (vec![outcome], Vec::new());
        }
        let holders = match &ask.source {
            Source::Checkpoint(checkpoint) => {
                self.allocations.take_checkpoint(checkpoint.clone());
                Ok(identity::holders(checkpoint, ask.resource, &ask.ids))
            }
            Source::Listed(listed) => {
                let pods: Vec<&PodView> = self.pods.iter().collect();
                let allocated = |key: &HolderKey| {
                    let (ledger, ids) = (&self.ledger, &ask.ids);
                    self.allocations.allocated(ledger, key, ask.resource, ids)
                };
                pod_resources::by_list(&pods, listed, ask.resource, &ask.ids, allocated)
                    .map(|holder| vec![holder])
            }
        };
        let mut outcomes = match holders {
            Ok(holders) => holders
                .into_iter()
                .filter_map(|holder| self.prepare_one(holder, ask, now))
                .collect(),
            Err(error) => vec![self.unidentified(&error, now)],
        };
        if outcomes.is_empty() {
            outcomes.push(Outcome {
                holder: None,
                pod: None,
                result: Err(Unready::identity(&IdentityError::NotRecorded, None)),
            });
        }
        let mut effects = Vec::new();
        self.settle(now, &mut effects);
        (outcomes, effects)
    }

    /// The container is not identified. If its pod is known, the attempts end after a time.
    fn unidentified(&mut self, error: &IdentityError, now: Instant) -> Outcome {
        let pod = match error {
            IdentityError::Ambiguous { uid, .. } => match self.pods.standing(uid) {
                Standing::Present(pod) => Some(pod.clone()),
                _ => None,
            },
            _ => None,
        };
        let mut why = Unready::identity(error, pod.as_ref());
        if let Some(pod) = &pod {
            let pods = &self.pods;
            self.ambiguous
                .retain(|uid, _| matches!(pods.standing(uid), Standing::Present(_)));
            let since = self.ambiguous.entry(pod.identity.uid.clone());
            let since = *since.or_insert(now);
            why.is_final = now.saturating_duration_since(since) >= AMBIGUOUS_GRACE;
        }
        Outcome {
            holder: None,
            pod,
            result: Err(why),
        }
    }

    /// `None`: the pod is gone, the kubelet's entry is a leftover.
    fn prepare_one(
        &mut self,
        holder: Holder,
        ask: &PrepareRequest,
        now: Instant,
    ) -> Option<Outcome> {
        let pod = match self.pods.standing(&holder.pod_uid) {
            Standing::Present(pod) if pod.finished => return None,
            Standing::Present(pod) => pod.clone(),
            Standing::Gone => return None,
            Standing::Unknown => {
                let error = IdentityError::PodUnknown(holder.pod_uid.clone());
                return Some(Outcome {
                    holder: Some(holder),
                    pod: None,
                    result: Err(Unready::identity(&error, None)),
                });
            }
        };
        let result = self.bind(&pod, &holder, ask, now);
        Some(Outcome {
            holder: Some(holder),
            pod: Some(pod),
            result,
        })
    }

    fn bind(
        &mut self,
        pod: &PodView,
        holder: &Holder,
        ask: &PrepareRequest,
        now: Instant,
    ) -> Result<Share, Unready> {
        let claim = self.due(pod, &holder.container, ask)?;
        if holds_another(holder, ask) {
            let error = Refused::TwoShares {
                pod: pod.identity.to_string(),
                container: holder.container.clone(),
            };
            return Err(Unready::refused(&error, &claim));
        }
        let picked: Option<BTreeSet<GpuUuid>> = ask.resource.is_of_devices().then(|| {
            ask.ids
                .iter()
                .map(|id| GpuUuid::from(id.as_str()))
                .collect()
        });
        // A container that has its share already may restart; no new share is bound.
        let held = self.holds(&claim);
        if let Some(reason) = self.held_up().filter(|_| !held) {
            return Err(Unready {
                reason,
                may_pass: true,
                is_final: false,
                decision: claim.decision.clone(),
            });
        }
        self.enter(&claim, holder.alloc, picked.as_ref(), now)
    }

    /// Returns what a card lacks for the driver's limits. `None`: it has them, or the driver is too
    /// old.
    fn lacking(&self, uuid: &GpuUuid) -> Option<String> {
        match &self.cards.card(uuid)?.driver_limits {
            DriverLimits::None | DriverLimits::Kept(_) => None,
            DriverLimits::Unknown => Some(format!("card {uuid} is not probed yet")),
            DriverLimits::Missing(part) | DriverLimits::Lost(part) => {
                Some(format!("on card {uuid} {part}"))
            }
        }
    }

    /// Returns whether the container of a claim has its share already.
    fn holds(&self, claim: &Claim) -> bool {
        let share = self.ledger.get(&claim.key());
        share.is_some_and(|share| share.alloc_id.is_some())
    }

    /// Into the ledger, if node and cards allow it.
    pub(super) fn enter(
        &mut self,
        claim: &Claim,
        alloc: AllocId,
        picked: Option<&BTreeSet<GpuUuid>>,
        now: Instant,
    ) -> Result<Share, Unready> {
        let policy = Policy::or_none(self.policy.as_ref());
        // Strongest first; a whole card needs no fence.
        let driver_limits = self.cards.inventory.driver_limits(claim.gpus.iter());
        let best = fence::best(claim.mode, driver_limits);
        let probing = claim.gpus.iter().any(|uuid| {
            let card = self.cards.card(uuid);
            card.is_some_and(|card| card.driver_limits == DriverLimits::Unknown)
        });
        let minima = [
            ("node", policy.spec.minimum_fence),
            ("claim", claim.wishes.minimum_fence),
        ];
        for (whose, minimum) in minima {
            let Some(minimum) = minimum else { continue };
            if let Some(best) = best.filter(|best| *best > minimum) {
                let lacks = claim.gpus.iter().find_map(|uuid| self.lacking(uuid));
                return Err(Unready {
                    reason: format!(
                        "the {whose}'s minimum fence is {minimum}, mode {} gives at best {best}{}",
                        claim.mode,
                        lacks.map_or_else(String::new, |lacks| format!(": {lacks}"))
                    ),
                    may_pass: probing,
                    is_final: !probing,
                    decision: claim.decision.clone(),
                });
            }
        }
        let held_up = self.guard.held_up_on(&claim.gpus);
        if let Some(reason) = held_up.filter(|_| !self.holds(claim)) {
            return Err(Unready {
                reason,
                may_pass: true,
                is_final: false,
                decision: claim.decision.clone(),
            });
        }
        let share = self
            .ledger
            .bind(claim, alloc, picked, &self.cards.inventory)
            .map_err(|error| Unready::refused(&error, claim))?;
        self.allocations.identified(alloc, true);
        let (cards, slack) = (&self.cards, self.terms.watchdog_slack);
        let policy = Policy::or_none(self.policy.as_ref());
        let awaits = self
            .guard
            .awaits_memory(&share, &self.ledger, cards, policy, slack, now);
        if let Some(reason) = awaits {
            return Err(Unready {
                reason,
                may_pass: true,
                is_final: false,
                decision: claim.decision.clone(),
            });
        }
        self.unproven.let_start(share.proof_name());
        Ok(share)
    }

    fn due(&self, pod: &PodView, container: &str, ask: &PrepareRequest) -> Result<Claim, Unready> {
        let found = self.grants.claim(pod, container, ask.resource, &ask.ids);
        // Kubernetes counts slices by their profile, so every scheduler does: the kubelet gives a
        // slice to one pod alone. A grant has nothing of it.
        let counted = matches!(ask.resource, Resource::Slice(_));
        match found {
            Err(IdentityError::NoGrant(_) | IdentityError::NotGranted { .. }) if counted => {
                self.whole_by_count(pod, container, ask)
            }
            Err(IdentityError::NoGrant(_))
                if ask.resource == Resource::Whole && self.terms.allow_ungranted_whole =>
            {
                self.whole_by_count(pod, container, ask)
            }
            other => other.map_err(|error| Unready::identity(&error, Some(pod))),
        }
    }

    /// The devices that the kubelet picked, for a container of a pod that has no grant for them.
    fn whole_by_count(
        &self,
        pod: &PodView,
        container: &str,
        ask: &PrepareRequest,
    ) -> Result<Claim, Unready> {
        let Some(view) = pod.container(container) else {
            let error = IdentityError::NotGranted {
                pod: pod.identity.to_string(),
                container: container.to_owned(),
            };
            return Err(Unready::identity(&error, Some(pod)));
        };
        let least = ask
            .ids
            .iter()
            .filter_map(|id| self.cards.card(&GpuUuid::from(id.as_str())))
            .map(Card::capacity)
            .min();
        Ok(identity::ungranted(
            pod,
            view,
            &ask.ids,
            least.unwrap_or(Mib(0)),
        ))
    }

    /// Takes a binding back if the second source disagrees: it stays reserved.
    pub fn unbind(&mut self, alloc: AllocId, now: Instant) -> Vec<Effect> {
        let mut effects = Vec::new();
        let key = self.ledger.by_alloc(alloc).map(Share::key).next();
        if let Some(key) = key {
            self.ledger.release(&key);
        }
        self.allocations.identified(alloc, false);
        self.settle(now, &mut effects);
        effects
    }
}

/// Whether the kubelet gave the container something of another of our resources too. A container
/// has one CDI file, so one share.
fn holds_another(holder: &Holder, ask: &PrepareRequest) -> bool {
    let Source::Checkpoint(checkpoint) = &ask.source else {
        return false;
    };
    checkpoint.entries.iter().any(|entry| {
        let same = entry.pod_uid == holder.pod_uid && entry.container == holder.container;
        let other = entry.alloc.is_some_and(|alloc| alloc != holder.alloc);
        same && other && Resource::parse(&entry.resource) != Some(ask.resource)
    })
}

/// The identity of an outcome's pod, for a refusal.
impl Outcome {
    /// UID, namespace and name; only the UID where the pod is not known.
    pub fn identity(&self) -> PodIdentity {
        match (&self.pod, &self.holder) {
            (Some(pod), _) => pod.identity.clone(),
            (None, holder) => PodIdentity {
                uid: holder
                    .as_ref()
                    .map(|h| h.pod_uid.clone())
                    .unwrap_or_default(),
                namespace: String::new(),
                name: String::new(),
            },
        }
    }
}
