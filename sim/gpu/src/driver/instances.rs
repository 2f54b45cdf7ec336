//! MIG instances as the accounting has them: cards of their own, after all cards.

use super::state::{Card, CardId, Made, Process, Refusal, State};
use crate::cuda::{CudaError, nvml};
use crate::hardware::mig;
use crate::wire::Message;

/// NVML's code and its name.
type NvmlRefusal = (u32, &'static str);

const NOT_FOUND: NvmlRefusal = (nvml::NOT_FOUND, "NVML_ERROR_NOT_FOUND");
const NOT_SUPPORTED: NvmlRefusal = (nvml::NOT_SUPPORTED, "NVML_ERROR_NOT_SUPPORTED");
const IN_USE: NvmlRefusal = (nvml::IN_USE, "NVML_ERROR_IN_USE");
const NO_ROOM: NvmlRefusal = (
    nvml::INSUFFICIENT_RESOURCES,
    "NVML_ERROR_INSUFFICIENT_RESOURCES",
);

impl State {
    /// How many of [`State::cards`] are cards.
    pub fn card_count(&self) -> usize {
        let cards = self.cards.iter();
        cards.take_while(|c| c.spec.instance.is_none()).count()
    }

    /// The card of an instance; a card itself.
    pub(super) fn card_of(&self, id: CardId) -> CardId {
        let instance = self.cards[id].spec.instance.as_ref();
        instance.map_or(id, |instance| instance.parent as CardId)
    }

    /// The instances of a card that are there, with a compute instance.
    pub fn instances(&self, card: CardId) -> impl Iterator<Item = CardId> {
        self.gpu_instances(card)
            .filter(|id| self.cards[*id].made == Made::Whole)
    }

    /// The GPU instances of a card that are there.
    fn gpu_instances(&self, card: CardId) -> impl Iterator<Item = CardId> {
        let on = self.cards[card].spec.mig && self.cards[card].spec.instance.is_none();
        let of_card = move |id: &CardId| on && *id != card && self.card_of(*id) == card;
        let is_made = |id: &CardId| self.cards[*id].made != Made::Nothing;
        (0..self.cards.len()).filter(of_card).filter(is_made)
    }

    /// Whether it is a card, or an instance that can be used.
    pub(super) fn is_there(&self, id: CardId) -> bool {
        let card = self.card_of(id);
        card == id || self.instances(card).any(|instance| instance == id)
    }

    /// The GPU instance of a card with this number.
    fn gpu_instance(&self, card: CardId, number: u32) -> Result<CardId, NvmlRefusal> {
        let is = |id: &CardId| {
            let instance = self.cards[*id].spec.instance.as_ref();
            instance.is_some_and(|instance| instance.id == number)
        };
        self.gpu_instances(card).find(is).ok_or(NOT_FOUND)
    }

    /// `nvmlDeviceCreateGpuInstance`. Answers the instance's number.
    pub(super) fn create_gpu_instance(
        &mut self,
        card: CardId,
        profile: u32,
    ) -> Result<u32, NvmlRefusal> {
        let spec = &self.cards[card].spec;
        if !spec.mig || spec.instance.is_some() {
            return Err(NOT_SUPPORTED);
        }
        let profile = spec.mig_profiles.iter().find(|p| p.id() == profile);
        let profile = profile.ok_or(NOT_SUPPORTED)?;
        let of = |id: CardId| self.cards[id].spec.instance.clone();
        let there: Vec<mig::Instance> = self.gpu_instances(card).filter_map(of).collect();
        let made = profile.place(spec.index, &there).ok_or(NO_ROOM)?;
        let number = made.id;
        // The UUID follows from the number, so a slot is of one number.
        let slot = (0..self.cards.len()).find(|id| {
            let instance = self.cards[*id].spec.instance.as_ref();
            instance.is_some_and(|old| old.parent == made.parent && old.id == number)
        });
        let slot = slot.unwrap_or(self.cards.len());
        let index = u32::try_from(slot).unwrap_or(u32::MAX);
        let spec = self.cards[card].spec.of_instance(&made, index);
        let instance = Card {
            made: Made::GpuInstance,
            ..Card::new(spec)
        };
        match self.cards.get_mut(slot) {
            Some(old) => *old = instance,
            None => self.cards.push(instance),
        }
        Ok(number)
    }

    /// `nvmlGpuInstanceCreateComputeInstance`, of the GPU instance's whole size.
    pub(super) fn create_compute_instance(
        &mut self,
        card: CardId,
        number: u32,
    ) -> Result<u32, NvmlRefusal> {
        let id = self.gpu_instance(card, number)?;
        if self.cards[id].made == Made::Whole {
            return Err(NO_ROOM);
        }
        self.cards[id].made = Made::Whole;
        Ok(0)
    }

    /// `nvmlComputeInstanceDestroy`: not while a process uses it.
    pub(super) fn destroy_compute_instance(
        &mut self,
        card: CardId,
        number: u32,
    ) -> Result<u32, NvmlRefusal> {
        let id = self.gpu_instance(card, number)?;
        if self.cards[id].made != Made::Whole {
            return Err(NOT_FOUND);
        }
        let mut processes = self.processes.values();
        if processes.any(|process| process.contexts.contains_key(&id)) {
            return Err(IN_USE);
        }
        self.cards[id].made = Made::GpuInstance;
        Ok(0)
    }

    /// `nvmlGpuInstanceDestroy`: not while it has a compute instance.
    pub(super) fn destroy_gpu_instance(
        &mut self,
        card: CardId,
        number: u32,
    ) -> Result<u32, NvmlRefusal> {
        let id = self.gpu_instance(card, number)?;
        if self.cards[id].made == Made::Whole {
            return Err(IN_USE);
        }
        self.cards[id].made = Made::Nothing;
        Ok(number)
    }

    /// Whether a process was given this card: an instance by both capabilities, and a card in MIG
    /// mode by none of its own.
    pub(super) fn given(&self, process: &Process, card: CardId) -> Result<(), Refusal> {
        if let Some(instance) = &self.cards[card].spec.instance {
            let has = |compute| {
                let minor = mig::capability_minor(instance.parent, instance.id, compute);
                process.capabilities.contains(&minor)
            };
            if !has(None) || !has(Some(0)) {
                return Err((
                    CudaError::NoDevice,
                    "the instance's capability nodes were not opened".to_owned(),
                ));
            }
        } else if self.cards[card].spec.mig {
            return Err((
                CudaError::NoDevice,
                "MIG mode is on and no instance was given".to_owned(),
            ));
        }
        Ok(())
    }
}

/// What NVML says of a card's profiles and GPU instances. Profiles: constant, id, name, compute
/// slices, most, multiprocessors, MiB. Instances: number, id of the profile, whether there is a
/// compute instance.
pub(super) fn describe(state: &State, card: CardId) -> Message {
    let profiles = state.cards[card].spec.mig_profiles.iter();
    let profiles: Vec<Vec<String>> = profiles
        .map(|profile| {
            vec![
                profile.number().to_string(),
                profile.id().to_string(),
                profile.name.to_owned(),
                profile.slices.to_string(),
                profile.most().to_string(),
                profile.sm_count.to_string(),
                profile.memory_mib.to_string(),
            ]
        })
        .collect();
    let instances: Vec<Vec<String>> = state
        .gpu_instances(card)
        .filter_map(|id| {
            let instance = state.cards[id].spec.instance.as_ref()?;
            let mut profiles = state.cards[card].spec.mig_profiles.iter();
            let profile = profiles.find(|profile| profile.name == instance.profile)?;
            let compute = u8::from(state.cards[id].made == Made::Whole);
            Some(vec![
                instance.id.to_string(),
                profile.id().to_string(),
                compute.to_string(),
            ])
        })
        .collect();
    Message::ok()
        .with("mig", u8::from(state.cards[card].spec.mig))
        .with_rows("profiles", &profiles)
        .with_rows("gpu_instances", &instances)
}
