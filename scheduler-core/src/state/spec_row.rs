//! A request signature with what follows from it, and with the answers that are kept for it.

use crate::ids::ResourceName;
use crate::model::Amount;
use crate::model::Ask;
use crate::model::Attachment;
use crate::model::ContainerAsk;
use crate::model::DeviceRequest;
use crate::model::Front;
use crate::state::counted::CountKey;
use crate::state::domains::Domains;
use crate::state::mig::{gpus_of_others, mig_memory, mig_slices};
use crate::state::spec::{Spec, most_at_once, whole_gpus};
use crate::state::verdicts::Verdicts;
use crate::units::NanoGpu;
use std::sync::Arc;

/// A spec and what follows from it.
#[derive(Clone, Debug)]
pub(crate) struct SpecRow {
    pub spec: Arc<Spec>,
    /// How many pods have it.
    pub users: u32,
    /// Whole GPUs that it takes at once of a device plugin.
    pub whole: u32,
    /// Whole GPUs that it takes at once of a device plugin or, where a node lists none, by the
    /// claim that stands in for them. Then [`Self::whole`] is 0: no bound over what nodes list
    /// speaks of them.
    pub either: u32,
    /// True when it asks for shares.
    pub shares: bool,
    /// Fractions of all its containers and devices.
    pub share_nano: u128,
    /// GPU memory of all its containers and devices.
    pub share_mib: u128,
    /// What its MIG profiles count for.
    pub mig_nano: u128,
    /// Memory of its MIG profiles, by their names.
    pub mig_mib: u128,
    /// What its claims on devices count for, GPUs of other vendors, and [`Self::either`]: what queues
    /// count and no sum of free GPUs has.
    pub device_nano: u128,
    /// Of each volume that is attached where it goes, what it is counted as.
    pub attached: Vec<[ResourceName; 2]>,
    /// What it asks of other pods, where it does.
    pub asks: Option<Box<PodAsks>>,
    /// What the nodes answer to it, where a pending pod has it.
    pub verdicts: Option<Box<Verdicts>>,
}

/// What a signature asks of the counts of other pods, each in the order of its rules.
#[derive(Clone, Debug)]
pub(crate) struct PodAsks {
    pub affinity: Box<[CountKey]>,
    pub anti_affinity: Box<[CountKey]>,
    pub preferred: Box<[CountKey]>,
    pub spread: Box<[CountKey]>,
    /// It is one of those who avoid others, or prefer them: counted there, not asked.
    pub terms: Box<[CountKey]>,
    /// What was found out for a search, as of the last one.
    pub domains: Option<Box<Domains>>,
}

impl PodAsks {
    /// Every count that it names.
    pub(crate) fn all(&self) -> impl Iterator<Item = CountKey> {
        self.asked().chain(self.terms.iter().copied())
    }

    /// Every count that an answer to it depends on.
    pub(crate) fn asked(&self) -> impl Iterator<Item = CountKey> {
        let required = self.affinity.iter().chain(&self.anti_affinity);
        required.chain(&self.preferred).chain(&self.spread).copied()
    }
}

impl SpecRow {
    pub(crate) fn new(spec: Arc<Spec>) -> Self {
        let share = |ask: &ContainerAsk| match &ask.ask {
            Ask::Share(share) => Some((u128::from(share.devices), share.amount)),
            Ask::Whole(_) => None,
        };
        let share_mib = most_at_once(&spec.gpus, |ask| match share(ask) {
            Some((devices, Amount::Memory(mib))) => devices * u128::from(mib.0),
            _ => 0,
        });
        let share_nano = most_at_once(&spec.gpus, |ask| match share(ask) {
            Some((devices, Amount::Fraction(part))) => devices * u128::from(part.0),
            _ => 0,
        });
        let (mut mig_nano, mut mig_mib) = (0_u128, 0_u128);
        for (name, count) in &spec.extended {
            let (slices, memory) = (mig_slices(name.as_str()), mig_memory(name.as_str()));
            mig_nano += u128::from(slices) * u128::from(*count) * u128::from(NanoGpu::ONE.0);
            mig_mib += u128::from(memory.0) * u128::from(*count);
        }
        let others = spec
            .extended
            .iter()
            .map(|(name, count)| u128::from(gpus_of_others(name.as_str())) * u128::from(*count));
        let others: u128 = others.sum();
        let gpus = whole_gpus(&spec);
        let (whole, either) = if spec.stands_in() {
            (0, gpus)
        } else {
            (gpus, 0)
        };
        Self {
            whole,
            either,
            shares: spec.gpus.iter().any(|ask| matches!(ask.ask, Ask::Share(_))),
            share_nano,
            share_mib,
            mig_nano,
            mig_mib,
            device_nano: spec
                .devices
                .iter()
                .filter(|ask| !ask.stands_in)
                .flat_map(|ask| &ask.wants.requests)
                .map(DeviceRequest::nano)
                .fold(0, u128::saturating_add)
                .saturating_add((u128::from(either) + others) * u128::from(NanoGpu::ONE.0)),
            attached: spec
                .attachments
                .iter()
                .map(Attachment::counted_as)
                .collect(),
            asks: None,
            verdicts: None,
            spec,
            users: 1,
        }
    }

    /// What others do where it does not stand may make a place for it, or take one.
    pub(crate) fn depends_on_others(&self) -> bool {
        !self.spec.claims.is_empty() || self.spec.others.is_some() || !self.spec.devices.is_empty()
    }

    /// What it requests, as queues count it, without GPU memory.
    pub(crate) fn request(&self) -> [u128; 3] {
        [
            u128::from(self.whole) * u128::from(NanoGpu::ONE.0)
                + self.share_nano
                + self.mig_nano
                + self.device_nano,
            u128::from(self.spec.cpu.0),
            u128::from(self.spec.memory.0),
        ]
    }

    /// Once it fits nowhere, that stays so until something leaves. Not where several of its
    /// containers want GPUs and one a share: they are seated in turn, and who comes between
    /// may leave the first of them only what suits the others. Nor where it goes beside others,
    /// or is spread among them.
    pub(crate) fn stays_out(&self) -> bool {
        let may_gain = self
            .spec
            .others
            .as_ref()
            .is_some_and(|others| others.may_gain());
        self.is_assigned_at_once() && !may_gain
    }

    /// At most one of its containers wants a share: no other can take its cards in between.
    pub(crate) fn is_assigned_at_once(&self) -> bool {
        !self.shares || self.spec.gpus.len() <= 1
    }

    /// Whole GPUs that it takes at once, however they are given.
    pub(crate) fn gpus(&self) -> u32 {
        self.whole.saturating_add(self.either)
    }

    /// Whole GPUs that it takes at once of a device plugin where they are given so.
    pub(crate) fn gpus_by(&self, front: Front) -> u32 {
        match front {
            Front::Plugin => self.gpus(),
            Front::Claim => self.whole,
        }
    }

    /// True when it is a pod with GPUs for the roles of nodes: by claim and of another vendor, too.
    pub(crate) fn is_gpu_work(&self) -> bool {
        self.wants_gpus() || self.device_nano > 0
    }

    /// True when it wants GPUs of any kind, those of claims left aside.
    pub(crate) fn wants_gpus(&self) -> bool {
        self.gpus() > 0 || self.shares || self.mig_nano > 0
    }

    /// It has a constraint of spread, required or preferred.
    pub(crate) fn is_spread(&self) -> bool {
        let others = self.spec.others.as_ref();
        others.is_some_and(|others| !others.rules.spread.is_empty())
    }
}
