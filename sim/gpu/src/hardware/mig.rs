//! MIG: which GPU instances a product can have, where they lie, and what each has.
//!
//! Owns the tables. In: a product and the profiles of a layout. Out: [`Instance`]s. The profiles,
//! placements and sizes are those that `nvidia-smi mig -lgip` and `-lgipp` show for the product;
//! instance ids are the driver's own numbering. Each GPU instance has one compute instance of its
//! whole size: NVIDIA's device plugin offers no others.

use super::error::HardwareError;
use super::preset::Preset;

/// Memory slices of a card.
const SLICES: u32 = 8;
/// GPU instance ids of one card, `NVML_GPU_INSTANCE_PROFILE` aside: 0 to 13.
pub const INSTANCE_IDS: u32 = 14;

/// A GPU instance with its one compute instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Index of its card.
    pub parent: u32,
    /// GPU instance id.
    pub id: u32,
    /// `1g.10gb`.
    pub profile: &'static str,
    /// Compute slices.
    pub slices: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub sm_count: u32,
}

/// One row of `nvidia-smi mig -lgip`.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// `1g.10gb`.
    pub name: &'static str,
    /// Compute slices.
    pub slices: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Memory slices that it takes.
    size: u32,
    /// Where it may begin.
    starts: &'static [u32],
}

impl Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`.
    pub fn number(&self) -> u32 {
        match (self.slices, self.size) {
            (1, 1) => 0,
            (1, _) => 9,
            (7, _) => 4,
            (slices, _) => slices - 1,
        }
    }

    /// The id of the table's row, which creates an instance.
    pub fn id(&self) -> u32 {
        match (self.slices, self.size) {
            (1, 1) => 19,
            (1, _) => 15,
            (2, _) => 14,
            (3, _) => 9,
            (4, _) => 5,
            _ => 0,
        }
    }

    /// How many of them a card can have.
    pub fn most(&self) -> usize {
        self.starts.len()
    }

    /// An instance at the first place that `there` leaves for it, as `nvidia-smi mig -cgi` puts
    /// it. `None`: there is none.
    pub fn place(&self, parent: u32, there: &[Instance]) -> Option<Instance> {
        let compute: u32 = there.iter().map(|instance| instance.slices).sum();
        // Seven compute slices go with eight of memory.
        let fits = compute + self.slices < SLICES;
        let is_free = |start: &&u32| {
            let mut own = **start..**start + self.size;
            own.all(|slice| !there.iter().any(|other| extent(other.id).contains(&slice)))
        };
        let start = self.starts.iter().find(is_free).filter(|_| fits)?;
        Some(Instance {
            parent,
            id: id_of(self.size, *start),
            profile: self.name,
            slices: self.slices,
            memory_mib: self.memory_mib,
            sm_count: self.sm_count,
        })
    }
}

#[rustfmt::skip]
const A100_40: [Profile; 6] = [
    Profile { name: "1g.5gb", slices: 1, memory_mib: 4864, sm_count: 14, size: 1, starts: &[0, 1, 2, 3, 4, 5, 6] },
    Profile { name: "1g.10gb", slices: 1, memory_mib: 9856, sm_count: 14, size: 2, starts: &[0, 2, 4, 6] },
    Profile { name: "2g.10gb", slices: 2, memory_mib: 9856, sm_count: 28, size: 2, starts: &[0, 2, 4] },
    Profile { name: "3g.20gb", slices: 3, memory_mib: 19968, sm_count: 42, size: 4, starts: &[0, 4] },
    Profile { name: "4g.20gb", slices: 4, memory_mib: 19968, sm_count: 56, size: 4, starts: &[0] },
    Profile { name: "7g.40gb", slices: 7, memory_mib: 40192, sm_count: 98, size: 8, starts: &[0] },
];
#[rustfmt::skip]
const A100_80: [Profile; 6] = [
    Profile { name: "1g.10gb", slices: 1, memory_mib: 9856, sm_count: 14, size: 1, starts: &[0, 1, 2, 3, 4, 5, 6] },
    Profile { name: "1g.20gb", slices: 1, memory_mib: 19968, sm_count: 14, size: 2, starts: &[0, 2, 4, 6] },
    Profile { name: "2g.20gb", slices: 2, memory_mib: 19968, sm_count: 28, size: 2, starts: &[0, 2, 4] },
    Profile { name: "3g.40gb", slices: 3, memory_mib: 40192, sm_count: 42, size: 4, starts: &[0, 4] },
    Profile { name: "4g.40gb", slices: 4, memory_mib: 40192, sm_count: 56, size: 4, starts: &[0] },
    Profile { name: "7g.80gb", slices: 7, memory_mib: 80384, sm_count: 98, size: 8, starts: &[0] },
];
#[rustfmt::skip]
const H100_80: [Profile; 6] = [
    Profile { name: "1g.10gb", slices: 1, memory_mib: 9984, sm_count: 16, size: 1, starts: &[0, 1, 2, 3, 4, 5, 6] },
    Profile { name: "1g.20gb", slices: 1, memory_mib: 20096, sm_count: 26, size: 2, starts: &[0, 2, 4, 6] },
    Profile { name: "2g.20gb", slices: 2, memory_mib: 20096, sm_count: 32, size: 2, starts: &[0, 2, 4] },
    Profile { name: "3g.40gb", slices: 3, memory_mib: 40448, sm_count: 60, size: 4, starts: &[0, 4] },
    Profile { name: "4g.40gb", slices: 4, memory_mib: 40448, sm_count: 64, size: 4, starts: &[0] },
    Profile { name: "7g.80gb", slices: 7, memory_mib: 81152, sm_count: 132, size: 8, starts: &[0] },
];

/// Those of the product; none of one without MIG.
pub(super) fn profiles(preset: Preset) -> &'static [Profile] {
    match preset {
        Preset::A100x40 => &A100_40,
        Preset::A100x80 => &A100_80,
        Preset::H100x80 => &H100_80,
        Preset::T4 | Preset::L4 | Preset::Rtx6000Ada => &[],
    }
}

/// The driver's number of an instance of this size at this place.
fn id_of(size: u32, start: u32) -> u32 {
    match size {
        SLICES.. => 0,
        4..SLICES => 1 + start / 4,
        2..4 => 3 + start / 2,
        _ => 7 + start,
    }
}

/// The memory slices of the instance with this number.
fn extent(id: u32) -> std::ops::Range<u32> {
    match id {
        0 => 0..SLICES,
        1..3 => (id - 1) * 4..id * 4,
        3..7 => (id - 3) * 2..(id - 2) * 2,
        _ => id - 7..id - 6,
    }
}

/// The instances of a layout, made in its order.
///
/// # Errors
/// The product has no such profile, or no place is left for it.
pub(super) fn place(
    preset: Preset,
    parent: u32,
    layout: &[String],
) -> Result<Vec<Instance>, HardwareError> {
    let mut placed = Vec::new();
    for name in layout {
        let invalid = |why: &str| HardwareError::Invalid(format!("card {parent}: {name}: {why}"));
        let profile = profiles(preset).iter().find(|p| p.name == name);
        let profile = profile.ok_or_else(|| invalid("the product has no such MIG profile"))?;
        let instance = profile.place(parent, &placed);
        placed.push(instance.ok_or_else(|| invalid("no placement is left for it"))?);
    }
    placed.sort_by_key(|instance| instance.id);
    Ok(placed)
}

/// Minor of the capability node of a GPU instance, or of its compute instance: the numbers that
/// `/proc/driver/nvidia-caps/mig-minors` lists.
pub fn capability_minor(card: u32, instance: u32, compute: Option<u32>) -> u32 {
    3 + card * 135 + instance * 9 + compute.map_or(0, |compute| compute + 1)
}

/// `/proc/driver/nvidia-caps/mig-minors` of a machine with this many cards.
pub fn minors_file(cards: u32) -> String {
    use std::fmt::Write as _;
    let mut text = "config 1\nmonitor 2\n".to_owned();
    for card in 0..cards {
        for id in 0..INSTANCE_IDS {
            let minor = capability_minor(card, id, None);
            let _ = writeln!(text, "gpu{card}/gi{id}/access {minor}");
            for compute in 0..8 {
                let minor = capability_minor(card, id, Some(compute));
                let _ = writeln!(text, "gpu{card}/gi{id}/ci{compute}/access {minor}");
            }
        }
    }
    text
}
