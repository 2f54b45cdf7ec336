//! The products that a simulated card can be, and their figures.

use super::error::HardwareError;
use serde::{Deserialize, Serialize};

/// The products that a simulated card can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::upper_case_acronyms)]
pub enum Preset {
    /// Tesla T4.
    T4,
    /// NVIDIA L4.
    L4,
    /// NVIDIA RTX 6000 Ada Generation.
    #[serde(rename = "RTX-6000-Ada")]
    Rtx6000Ada,
    /// A100 SXM4 40 GB.
    #[serde(rename = "A100-40")]
    A100x40,
    /// A100 SXM4 80 GB.
    #[serde(rename = "A100-80")]
    A100x80,
    /// H100 SXM5 80 GB.
    #[serde(rename = "H100-80")]
    H100x80,
}

/// The figures of a product. Totals are NVML's; the reserve is the difference
/// to what CUDA calls the total, as frameworks print it in their errors; the
/// context overhead is of the size that `nvidia-smi` shows for an idle process.
pub(super) struct Product {
    pub(super) name: &'static str,
    pub(super) total_mib: u64,
    pub(super) reserved_mib: u64,
    pub(super) context_mib: u64,
    pub(super) sm_count: u32,
    pub(super) cores_per_sm: u32,
    pub(super) capability: (u32, u32),
    pub(super) architecture: u32,
    pub(super) brand: u32,
    pub(super) device: u32,
    pub(super) subsystem: u32,
    pub(super) links: u32,
    pub(super) mig: bool,
    pub(super) watts: u32,
}

impl Preset {
    /// All products, in order of size.
    pub const ALL: [Self; 6] = [
        Self::T4,
        Self::L4,
        Self::Rtx6000Ada,
        Self::A100x40,
        Self::A100x80,
        Self::H100x80,
    ];

    /// Returns the preset of this name, as the hardware file spells it.
    pub fn parse(name: &str) -> Result<Self, HardwareError> {
        serde_json::from_value(serde_json::Value::String(name.to_owned())).map_err(|_| {
            HardwareError::Invalid(format!(
                "unknown preset `{name}`: one of T4, L4, RTX-6000-Ada, A100-40, A100-80, H100-80"
            ))
        })
    }

    #[rustfmt::skip]
    pub(super) fn product(self) -> Product {
        match self {
            Self::T4 => Product { name: "Tesla T4", total_mib: 15360, reserved_mib: 258, context_mib: 104, sm_count: 40, cores_per_sm: 64, capability: (7, 5), architecture: 6, brand: 14, device: 0x1EB8_10DE, subsystem: 0x12A2_10DE, links: 0, mig: false, watts: 70 },
            Self::L4 => Product { name: "NVIDIA L4", total_mib: 23034, reserved_mib: 465, context_mib: 250, sm_count: 58, cores_per_sm: 128, capability: (8, 9), architecture: 8, brand: 14, device: 0x27B8_10DE, subsystem: 0x16CA_10DE, links: 0, mig: false, watts: 72 },
            Self::Rtx6000Ada => Product { name: "NVIDIA RTX 6000 Ada Generation", total_mib: 49140, reserved_mib: 500, context_mib: 304, sm_count: 142, cores_per_sm: 128, capability: (8, 9), architecture: 8, brand: 13, device: 0x26B1_10DE, subsystem: 0x16A1_10DE, links: 0, mig: false, watts: 300 },
            Self::A100x40 => Product { name: "NVIDIA A100-SXM4-40GB", total_mib: 40960, reserved_mib: 424, context_mib: 410, sm_count: 108, cores_per_sm: 64, capability: (8, 0), architecture: 7, brand: 14, device: 0x20B0_10DE, subsystem: 0x134F_10DE, links: 12, mig: true, watts: 400 },
            Self::A100x80 => Product { name: "NVIDIA A100-SXM4-80GB", total_mib: 81920, reserved_mib: 869, context_mib: 418, sm_count: 108, cores_per_sm: 64, capability: (8, 0), architecture: 7, brand: 14, device: 0x20B2_10DE, subsystem: 0x1463_10DE, links: 12, mig: true, watts: 400 },
            Self::H100x80 => Product { name: "NVIDIA H100 80GB HBM3", total_mib: 81559, reserved_mib: 551, context_mib: 498, sm_count: 132, cores_per_sm: 128, capability: (9, 0), architecture: 9, brand: 14, device: 0x2330_10DE, subsystem: 0x16C1_10DE, links: 18, mig: true, watts: 700 },
        }
    }
}
