//! Gives a card in MIG mode other instances.
//!
//! In: the layout that it is to have. Out: it has that one, or the one that it had, and why. The driver
//! destroys no instance that a process uses.

use super::raw::{self, GpuInstanceProfile};
use crate::gpu::{GpuUuid, MigLayout, Profile};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::cmp::Reverse;

/// `NVML_ERROR_INSUFFICIENT_RESOURCES`.
const INSUFFICIENT_RESOURCES: u32 = 23;

/// What one card is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutOrder {
    /// Which card.
    pub card: GpuUuid,
    /// Its new slices.
    pub layout: MigLayout,
}

/// What became of an order: nothing, and why, where it is an error.
pub type LayoutResult = (LayoutOrder, Result<(), String>);

/// Destroys the card's instances and creates those of the layout.
///
/// # Errors
/// One sentence. The card has the profiles that it had, unless the sentence says otherwise.
pub(super) fn make(nvml: &Nvml, order: &LayoutOrder) -> Result<(), String> {
    let device = nvml.device_by_uuid(order.card.as_str());
    let device = device.map_err(|error| error.to_string())?;
    if !device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Err("MIG mode is off".to_owned());
    }
    let profiles = raw::gpu_instance_profiles(nvml, &device);
    let mut profiles = profiles.map_err(|error| format!("its profiles cannot be read: {error}"))?;
    // The driver places each at the first place that is left: smaller ones must not take one that a
    // larger one needs.
    profiles.sort_by_key(|profile| Reverse((profile.slices, profile.memory)));
    let mut wanted = Vec::new();
    for (name, count) in &order.layout {
        let found = profiles
            .iter()
            .position(|profile| profile_of(profile) == Some(*name));
        let Some(at) = found else {
            let known: Vec<String> = profiles
                .iter()
                .filter_map(profile_of)
                .map(|profile| profile.to_string())
                .collect();
            return Err(format!(
                "the card has no MIG profile {name}: use {}",
                known.join(", ")
            ));
        };
        let most = profiles.get(at).map_or(0, |profile| profile.most);
        if *count > most {
            return Err(format!("the card can have at most {most} slices {name}"));
        }
        wanted.extend(std::iter::repeat_n(at, *count as usize));
    }
    wanted.sort_unstable();
    let card = Card {
        nvml,
        device,
        profiles,
    };
    let before = card.instances().map_err(|error| error.to_string())?;
    let made = card
        .clear()
        .map_err(|error| format!("its slices cannot be destroyed: {error}"));
    let made = made.and_then(|()| card.create(&wanted));
    made.map_err(|why| match card.restore(&before) {
        Ok(()) => why,
        Err(error) => format!("{why}; the slices that it had cannot be created again: {error}"),
    })
}

/// `MIG 1g.10gb+me` → `1g.10gb.me`.
fn profile_of(profile: &GpuInstanceProfile) -> Option<Profile> {
    Profile::parse(profile.name.strip_prefix("MIG ").unwrap_or(&profile.name))
}

/// A card, with its profiles, the largest first.
struct Card<'nvml> {
    nvml: &'nvml Nvml,
    device: Device<'nvml>,
    profiles: Vec<GpuInstanceProfile>,
}

impl Card<'_> {
    /// The profile of each instance that is there, by its place in the list.
    fn instances(&self) -> Result<Vec<usize>, NvmlError> {
        let mut found = Vec::new();
        for (at, profile) in self.profiles.iter().enumerate() {
            let instances = raw::gpu_instances(self.nvml, &self.device, profile)?;
            found.extend(std::iter::repeat_n(at, instances.len()));
        }
        Ok(found)
    }

    /// Destroys all instances, up to the first that is in use.
    fn clear(&self) -> Result<(), NvmlError> {
        for profile in &self.profiles {
            for instance in raw::gpu_instances(self.nvml, &self.device, profile)? {
                raw::destroy(self.nvml, instance)?;
            }
        }
        Ok(())
    }

    fn create(&self, wanted: &[usize]) -> Result<(), String> {
        for profile in wanted.iter().filter_map(|at| self.profiles.get(*at)) {
            let made = raw::create(self.nvml, &self.device, profile);
            made.map_err(|error| {
                let name = profile_of(profile).map(|profile| profile.to_string());
                let name = name.unwrap_or_else(|| profile.name.clone());
                let why = match error {
                    // The wrapper has no name for it.
                    NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES) => {
                        "the card has no room left for it".to_owned()
                    }
                    error => error.to_string(),
                };
                format!("a slice {name} cannot be created: {why}")
            })?;
        }
        Ok(())
    }

    /// What it had, as far as it does not have it still.
    fn restore(&self, before: &[usize]) -> Result<(), String> {
        if self.clear().is_ok() {
            return self.create(before);
        }
        // One that is in use was there before.
        let mut missing = before.to_vec();
        for there in self.instances().map_err(|error| error.to_string())? {
            if let Some(at) = missing.iter().position(|at| *at == there) {
                missing.swap_remove(at);
            }
        }
        missing.sort_unstable();
        self.create(&missing)
    }
}
