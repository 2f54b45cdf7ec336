//! This file has the words of MIG: profiles, instances, layouts, and the admin's strategy for
//! offering them.
//!
//! Pure. In: NVML's attributes of an instance. Out: [`Profile`]. The names are those of NVIDIA's
//! device plugin.

use super::GpuUuid;
use std::collections::BTreeMap;
use std::fmt;

/// The resources as which slices are offered; NVIDIA calls it `migStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MigStrategy {
    /// Slices are not offered: cards in MIG mode are left to others.
    #[default]
    None,
    /// Slices are `nvidia.com/gpu`, if all cards are in MIG mode and all slices have one profile.
    Single,
    /// Slices are `nvidia.com/mig-<profile>`; other cards are offered beside them.
    Mixed,
}

/// Longest name of a profile.
const LONGEST: usize = 24;

/// Profile of a slice, as resource names have it: `1g.10gb`, `1g.10gb.me`. Short, so that it is
/// copied by value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Profile {
    text: [u8; LONGEST],
    length: u8,
}

impl Profile {
    /// From its name, with the `+` of an attribute or with the `.` that replaces it. `None`: no
    /// profile is called so.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.replace('+', ".");
        let is_fit = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'.';
        let (slices, memory) = name.split_once("g.")?;
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (gigabytes, _) = memory.split_once("gb")?;
        let fits = is_number(slices) && is_number(gigabytes) && name.bytes().all(is_fit);
        let bytes = Some(name.as_bytes()).filter(|bytes| fits && bytes.len() <= LONGEST)?;
        let mut text = [0; LONGEST];
        text[..bytes.len()].copy_from_slice(bytes);
        Some(Self {
            text,
            length: u8::try_from(bytes.len()).ok()?,
        })
    }

    /// Computes the profile of an instance from its GPU slices, its MiB, its card's bytes, and its
    /// product's name, which ends with the attribute where there is one (`1g.10gb+me`). GB are
    /// counted as NVIDIA's device plugin does: eighths of the card, rounded up, of its GiB.
    pub fn of(slices: u32, memory_mib: u64, card_bytes: u64, product: &str) -> Option<Self> {
        let memory = memory_mib.checked_mul(1 << 20)?;
        let eighths = memory.checked_mul(8)?.div_ceil(card_bytes.max(1));
        let gigabytes = (eighths * card_bytes.div_ceil(1 << 30) + 4) / 8;
        let attribute = product.rsplit_once('+').map(|(_, attribute)| attribute);
        let attribute = attribute.map_or_else(String::new, |text| format!("+{text}"));
        Self::parse(&format!("{slices}g.{gigabytes}gb{attribute}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The position of a slice: its card and its two instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its card.
    pub parent: GpuUuid,
    /// `None`: its compute instance is smaller than its GPU instance, which no resource names.
    pub profile: Option<Profile>,
    /// Id of its GPU instance.
    pub gpu_instance: u32,
    /// Id of its compute instance.
    pub compute_instance: u32,
}

/// The number of slices of each profile that a card has, or is to have.
pub type MigLayout = BTreeMap<Profile, u32>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_called_as_nvidias_device_plugin_calls_it() {
        let gib = |gib: u64| gib << 30;
        for (slices, mib, card, product, expected) in [
            (1, 4864, gib(40), "A100 MIG 1g.5gb", "1g.5gb"),
            (1, 4864, gib(40), "A100 MIG 1g.5gb+me", "1g.5gb.me"),
            (1, 9856, gib(40), "A100 MIG 1g.10gb", "1g.10gb"),
            (3, 19968, gib(40), "A100 MIG 3g.20gb", "3g.20gb"),
            (7, 40192, gib(40), "A100 MIG 7g.40gb", "7g.40gb"),
            (1, 9984, 81559 << 20, "H100 MIG 1g.10gb", "1g.10gb"),
            (2, 20096, 81559 << 20, "H100 MIG 2g.20gb", "2g.20gb"),
            (4, 40448, 81559 << 20, "H100 MIG 4g.40gb", "4g.40gb"),
            (7, 81152, 81559 << 20, "H100 MIG 7g.80gb", "7g.80gb"),
        ] {
            let profile = Profile::of(slices, mib, card, product).unwrap();
            assert_eq!(profile.as_str(), expected, "{product}");
            assert_eq!(Profile::parse(expected), Some(profile));
        }
        for noise in [
            "",
            "1g",
            "g.gb",
            "1g.xgb",
            "1c.3g.20gb",
            "1g.10gb/x",
            "1G.10GB",
        ] {
            assert_eq!(Profile::parse(noise), None, "{noise}");
        }
        assert_eq!(Profile::parse(&format!("1g.10gb{}", "x".repeat(20))), None);
    }
}
