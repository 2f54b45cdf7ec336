//! The hardware: cards, their links, the driver's version and its behaviour.
//!
//! Owns the hardware file (JSON) and the presets. In: a file, or a preset and a
//! count. Out: [`Hardware`], expanded so that every card has its UUID and its
//! place on the bus. Must never: depend on time or chance; the same file and
//! seed give the same UUIDs.
//!
//! ```json
//! { "driver_version": "570.172.08",
//!   "cards": [ { "preset": "H100-80", "count": 8 }, { "preset": "T4", "total_mib": 15000 } ] }
//! ```

mod error;
pub mod mig;
mod preset;

pub use error::HardwareError;
pub use preset::Preset;

use mig::Instance;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The whole machine, as far as the driver knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Driver version, as NVML reports it.
    #[serde(default = "default_driver")]
    pub driver_version: String,
    /// CUDA version of that driver, `major.minor`; left out, that of its branch.
    #[serde(default)]
    pub cuda_version: Option<String>,
    /// Makes UUIDs differ between simulated machines; the driver root when left out.
    #[serde(default)]
    pub seed: String,
    /// The cards, in bus order.
    pub cards: Vec<Card>,
    /// How MPS behaves; defaults follow the driver version.
    #[serde(default)]
    pub mps: MpsBehaviour,
    /// How memory is limited per cgroup, from driver 615 on.
    #[serde(default)]
    pub memory_accounting: MemoryAccounting,
}

/// `RmMemacctMode`, a setting of the kernel module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemacctMode {
    /// 0: there are no limits.
    Off,
    /// 1: a map of the driver's has them, for processes that the misc controller reaches.
    Misc,
    /// 3: the kernel's dmem controller where it has the card, else misc.
    #[default]
    Auto,
}

impl MemacctMode {
    /// Whether there are limits.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }

    /// Whether the dmem controller may have them.
    pub fn allows_dmem(self) -> bool {
        self == Self::Auto
    }
}

/// How memory is limited per cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryAccounting {
    /// The kernel module's setting.
    pub mode: MemacctMode,
    /// Where cgroup v2 is mounted. A test has a folder there with files as the kernel has them.
    pub cgroup: PathBuf,
    /// A fault: a limit that is set reads back, is not in the kernel's file, and holds nobody.
    pub only_reads_back: bool,
}

impl Default for MemoryAccounting {
    fn default() -> Self {
        Self {
            mode: MemacctMode::default(),
            cgroup: "/sys/fs/cgroup".into(),
            only_reads_back: false,
        }
    }
}

/// One card, or `count` equal ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// The product whose figures are the defaults.
    pub preset: Preset,
    /// How many of them.
    #[serde(default = "one")]
    pub count: u32,
    /// Product name.
    #[serde(default)]
    pub name: Option<String>,
    /// `GPU-...`; only for single cards.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Total memory as NVML reports it, MiB.
    #[serde(default)]
    pub total_mib: Option<u64>,
    /// What the driver keeps for itself, MiB.
    #[serde(default)]
    pub reserved_mib: Option<u64>,
    /// What a context costs before its first allocation, MiB.
    #[serde(default)]
    pub context_mib: Option<u64>,
    /// NUMA node; -1 says that the board does not know.
    #[serde(default)]
    pub numa_node: Option<i32>,
    /// How the cards of this entry are linked.
    #[serde(default)]
    pub nvlink: Option<NvLink>,
    /// MIG mode is on; shares are not for such a card.
    #[serde(default)]
    pub mig: bool,
    /// Profiles of its instances, `1g.10gb`, in the order in which they are created. They are
    /// there while MIG mode is on.
    #[serde(default)]
    pub mig_instances: Vec<String>,
}

/// How cards are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NvLink {
    /// Over `PCIe` only.
    None,
    /// Cards 0 and 1, 2 and 3, ... by bridges.
    Pairs,
    /// All to all through switches.
    NvSwitch,
}

/// Behaviours of MPS that differ between drivers or are not settled for all of
/// them. Left out, they follow the driver version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MpsBehaviour {
    /// Clients per card: 48, 60 from r590 (CUDA 13.1), by NVIDIA's MPS documentation.
    #[serde(default)]
    pub max_clients: Option<u32>,
    /// Clients must see the server's `/dev/shm`. Those of r580 need not (measured on 580.159.04).
    #[serde(default)]
    pub needs_shm: Option<bool>,
    /// A client killed without a word takes the server down with it.
    #[serde(default)]
    pub sigkill_faults_server: bool,
    /// `get_*_device_pinned_mem_limit` answers whole GiB, rounded down, from
    /// 1 GiB on (measured on 580.159.04: 21564M reads `21G`). The log has the exact bytes.
    #[serde(default = "yes")]
    pub limits_read_back_in_gib: bool,
    /// For how long NVML lists a new client among the compute processes before it is on the MPS
    /// list, ms. Driver 580.159.04 has it on the MPS list first; no source says so of others.
    #[serde(default)]
    pub listed_late_ms: u64,
    /// What a server takes on each of its cards, MiB.
    #[serde(default = "server_mib")]
    pub server_mib: u64,
}

/// A card with everything filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSpec {
    /// NVML index and device minor at once.
    pub index: u32,
    /// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Total memory, MiB.
    pub total_mib: u64,
    /// The driver's own part, MiB.
    pub reserved_mib: u64,
    /// Context overhead, MiB.
    pub context_mib: u64,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// CUDA cores.
    pub cores: u32,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// `nvmlBrandType_t`.
    pub brand: u32,
    /// Device and vendor id.
    pub pci_device_id: u32,
    /// Subsystem id.
    pub pci_subsystem_id: u32,
    /// `00000000:1B:00.0`.
    pub pci_bus_id: String,
    /// NUMA node; `None` if the board does not report it.
    pub numa_node: Option<u32>,
    /// Links of this card: remote bus id and `nvmlIntNvLinkDeviceType_t` (0 GPU, 2 switch).
    pub links: Vec<(String, u32)>,
    /// The product can do MIG at all.
    pub mig_capable: bool,
    /// Which instances it can have.
    pub mig_profiles: &'static [mig::Profile],
    /// MIG mode is on.
    pub mig: bool,
    /// Its instances, by id; there while MIG mode is on.
    pub instances: Vec<mig::Instance>,
    /// This is no card, but an instance of one.
    pub instance: Option<mig::Instance>,
    /// ECC memory that reports errors.
    pub ecc: bool,
    /// Power limit, mW.
    pub power_limit_mw: u32,
    /// Board serial number.
    pub serial: String,
}

fn default_driver() -> String {
    "570.172.08".to_owned()
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn server_mib() -> u64 {
    30
}

impl Default for Hardware {
    fn default() -> Self {
        Self::of(Preset::Rtx6000Ada, 1)
    }
}

impl Hardware {
    /// `count` cards of one product.
    pub fn of(preset: Preset, count: u32) -> Self {
        Self {
            driver_version: default_driver(),
            cuda_version: None,
            seed: String::new(),
            cards: vec![Card::of(preset, count)],
            mps: MpsBehaviour {
                limits_read_back_in_gib: true,
                server_mib: server_mib(),
                ..MpsBehaviour::default()
            },
            memory_accounting: MemoryAccounting::default(),
        }
    }

    /// Reads a hardware file.
    pub fn read(path: &Path) -> Result<Self, HardwareError> {
        let text =
            std::fs::read_to_string(path).map_err(|e| HardwareError::Read(path.to_owned(), e))?;
        Self::parse(&text)
    }

    /// Parses a hardware file's text and checks it.
    pub fn parse(text: &str) -> Result<Self, HardwareError> {
        let hardware: Self = serde_json::from_str(text).map_err(HardwareError::Parse)?;
        hardware.cards()?;
        Ok(hardware)
    }

    /// The release branch, 570 of `570.172.08`.
    pub fn branch(&self) -> u32 {
        self.driver_version
            .split('.')
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// CUDA version of the driver.
    pub fn cuda_version(&self) -> &str {
        let of_branch = match self.branch() {
            0..580 => "12.8",
            580..590 => "13.0",
            590..615 => "13.1",
            _ => "13.4",
        };
        self.cuda_version.as_deref().unwrap_or(of_branch)
    }

    /// The driver keeps memory limits per cgroup: NVIDIA's MPS documentation, "Release 615".
    pub fn memory_limits(&self) -> bool {
        self.branch() >= 615
    }

    /// Clients that one card takes under MPS.
    pub fn max_clients(&self) -> usize {
        self.mps
            .max_clients
            .unwrap_or(if self.branch() >= 590 { 60 } else { 48 }) as usize
    }

    /// Whether clients must share the server's `/dev/shm`.
    pub fn needs_shm(&self) -> bool {
        self.mps.needs_shm.unwrap_or(self.branch() < 580)
    }

    /// Every card, filled in.
    pub fn cards(&self) -> Result<Vec<CardSpec>, HardwareError> {
        let mut specs = Vec::new();
        for card in &self.cards {
            if card.count == 0 {
                return Err(HardwareError::Invalid(
                    "a card entry has count 0".to_owned(),
                ));
            }
            if card.count > 1 && card.uuid.is_some() {
                return Err(HardwareError::Invalid(
                    "`uuid` needs an entry of its own with count 1".to_owned(),
                ));
            }
            let first = specs.len();
            for _ in 0..card.count {
                let spec = self.spec(card, specs.len())?;
                specs.push(spec);
            }
            link(&mut specs[first..], card);
        }
        if specs.len() > 64 {
            return Err(HardwareError::Invalid("more than 64 cards".to_owned()));
        }
        place(&mut specs, &self.cards);
        let mut uuids: Vec<&str> = specs.iter().map(|s| s.uuid.as_str()).collect();
        uuids.sort_unstable();
        if uuids.windows(2).any(|w| w[0] == w[1]) {
            return Err(HardwareError::Invalid("two cards have one UUID".to_owned()));
        }
        Ok(specs)
    }

    fn spec(&self, card: &Card, position: usize) -> Result<CardSpec, HardwareError> {
        let product = card.preset.product();
        let index = u32::try_from(position)
            .map_err(|_| HardwareError::Invalid("too many cards".to_owned()))?;
        let total_mib = card.total_mib.unwrap_or(product.total_mib);
        let reserved_mib = card.reserved_mib.unwrap_or(product.reserved_mib);
        if reserved_mib >= total_mib {
            return Err(HardwareError::Invalid(format!(
                "card {index} reserves {reserved_mib} of {total_mib} MiB"
            )));
        }
        if card.mig && !product.mig {
            return Err(HardwareError::Invalid(format!(
                "{} has no MIG",
                product.name
            )));
        }
        Ok(CardSpec {
            index,
            uuid: card.uuid.clone().unwrap_or_else(|| uuid(&self.seed, index)),
            name: card.name.clone().unwrap_or_else(|| product.name.to_owned()),
            total_mib,
            reserved_mib,
            context_mib: card.context_mib.unwrap_or(product.context_mib),
            sm_count: product.sm_count,
            cores: product.sm_count * product.cores_per_sm,
            compute_capability: product.capability,
            architecture: product.architecture,
            brand: product.brand,
            pci_device_id: product.device,
            pci_subsystem_id: product.subsystem,
            pci_bus_id: format!("{:08X}:{:02X}:00.0", index / 14, 0x1B + (index % 14) * 0x10),
            numa_node: None,
            links: Vec::new(),
            mig_capable: product.mig,
            mig_profiles: mig::profiles(card.preset),
            mig: card.mig,
            instances: mig::place(card.preset, index, &card.mig_instances)?,
            instance: None,
            ecc: true,
            power_limit_mw: product.watts * 1000,
            serial: format!(
                "{:013}",
                1_320_000_000_000_u64 + hash(&self.seed, u64::from(index)) % 1_000_000_000
            ),
        })
    }
}

impl Card {
    /// `count` cards of one product, nothing changed.
    pub fn of(preset: Preset, count: u32) -> Self {
        Self {
            preset,
            count,
            name: None,
            uuid: None,
            total_mib: None,
            reserved_mib: None,
            context_mib: None,
            numa_node: None,
            nvlink: None,
            mig: false,
            mig_instances: Vec::new(),
        }
    }
}

/// Joins the cards of one entry. SXM boards have switches from four cards on,
/// direct links between two.
fn link(specs: &mut [CardSpec], card: &Card) {
    let links = card.preset.product().links as usize;
    let default = match (links, specs.len()) {
        (0, _) | (_, 0 | 1) => NvLink::None,
        (_, 2 | 3) => NvLink::Pairs,
        _ => NvLink::NvSwitch,
    };
    let ids: Vec<String> = specs.iter().map(|s| s.pci_bus_id.clone()).collect();
    let links = links.max(4);
    for (at, spec) in specs.iter_mut().enumerate() {
        spec.links = match card.nvlink.unwrap_or(default) {
            NvLink::None => Vec::new(),
            NvLink::Pairs => ids
                .get(at ^ 1)
                .map(|peer| vec![(peer.clone(), 0); links])
                .unwrap_or_default(),
            NvLink::NvSwitch => (0..links)
                .map(|l| (format!("00000000:{:02X}:00.0", 0x05 + (l % 4)), 2))
                .collect(),
        };
    }
}

/// Spreads cards over two NUMA nodes from four cards on, unless the file says otherwise.
fn place(specs: &mut [CardSpec], cards: &[Card]) {
    let total = specs.len();
    let stated = cards
        .iter()
        .flat_map(|card| std::iter::repeat_n(card.numa_node, card.count as usize));
    for ((at, spec), stated) in specs.iter_mut().enumerate().zip(stated) {
        spec.numa_node = match stated {
            Some(node) => u32::try_from(node).ok(),
            None => Some(u32::from(total >= 4 && at >= total / 2)),
        };
    }
}

fn uuid(seed: &str, index: u32) -> String {
    let a = hash(seed, u64::from(index) * 2 + 1);
    let b = hash(seed, u64::from(index) * 2 + 2);
    format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xffff,
        b >> 48,
        b & 0xffff_ffff_ffff
    )
}

/// FNV-1a with a final mix: stable over releases, which the standard hasher does not promise.
fn hash(seed: &str, salt: u64) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for byte in seed.bytes().chain(salt.to_le_bytes()) {
        h = (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

impl CardSpec {
    /// What CUDA and NVML see of one of this card's instances. Its UUID follows from its card and
    /// its place, as the driver's does.
    #[must_use]
    pub fn of_instance(&self, instance: &Instance, index: u32) -> Self {
        let salt = u64::from(instance.id);
        let (a, b) = (hash(&self.uuid, salt * 2), hash(&self.uuid, salt * 2 + 1));
        let context = self.context_mib * u64::from(instance.sm_count);
        Self {
            index,
            uuid: format!(
                "MIG-{:08x}-{:04x}-5{:03x}-{:04x}-{:012x}",
                a >> 32,
                (a >> 16) & 0xffff,
                a & 0xfff,
                b >> 48,
                b & 0xffff_ffff_ffff
            ),
            name: format!("{} MIG {}", self.name, instance.profile),
            total_mib: instance.memory_mib,
            reserved_mib: 0,
            context_mib: context.div_ceil(u64::from(self.sm_count)),
            sm_count: instance.sm_count,
            cores: self.cores / self.sm_count * instance.sm_count,
            links: Vec::new(),
            mig_capable: false,
            mig_profiles: &[],
            mig: false,
            instances: Vec::new(),
            instance: Some(instance.clone()),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests;
