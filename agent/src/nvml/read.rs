//! One pass over the cards: NVML's calls → plain values.

use super::error::{ErrorClass, trouble, words};
use super::observation::{Counters, Device, Identity, Process, Reading, UnreadableCard};
use super::origins::Origins;
use super::raw;
use crate::gpu::{ComputeMode, GpuUuid, Profile, Slice};
use api::Mib;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{self as wire, EccCounter, MemoryError};
use nvml_wrapper::enum_wrappers::nv_link::IntDeviceType;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use nvml_wrapper::structs::device::FieldId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// `NVML_NVLINK_MAX_LINKS`.
const MAX_LINKS: u32 = 18;
/// `NVML_FI_DEV_REMAPPED_PENDING`.
const REMAPPED_PENDING: u32 = 144;
/// `NVML_FI_DEV_REMAPPED_FAILURE`.
const REMAPPED_FAILURE: u32 = 145;
/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: u32 = 230;

/// The age of the driver's samples of processes that are read. It is longer than the time between two
/// looks, so that no sample is missed.
const SAMPLED: Duration = Duration::from_millis(1500);

/// Unsupported is an answer; the rest is the caller's to handle.
fn optional<T>(result: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(trouble(&error), ErrorClass::Unsupported | ErrorClass::Bug) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The identity of a card and its slices, which is valid as long as its layout stays.
#[derive(Clone, Debug)]
pub(super) struct Identified {
    /// The card, and then its slices if it is in MIG mode. The links are missing, because they take
    /// a call each and are read later.
    pub cards: Vec<Identity>,
    /// The UUIDs of the MIG devices that were found; `None` if they cannot be listed.
    pub layout: Option<BTreeSet<String>>,
    /// Why a MIG device of the card cannot be identified; `None` if all can.
    pub incomplete: Option<String>,
}

/// Identifies the card of an index and, with `slices`, its slices.
///
/// # Errors
/// Returns an error if the card itself cannot be identified.
pub(super) fn identify(nvml: &Nvml, index: u32, slices: bool) -> Result<Identified, NvmlError> {
    let card = identity(nvml, index)?;
    let mut found = Identified {
        cards: vec![card.clone()],
        layout: Some(BTreeSet::new()),
        incomplete: None,
    };
    if slices {
        found.add_slices(nvml, &card);
    }
    Ok(found)
}

impl Identified {
    /// The slices of a card, by id.
    fn add_slices(&mut self, nvml: &Nvml, card: &Identity) {
        let mut list = || -> Result<BTreeSet<String>, NvmlError> {
            let device = nvml.device_by_uuid(card.uuid.as_str())?;
            let total = || Ok(device.memory_info()?.total);
            let mut uuids = BTreeSet::new();
            for device in mig_devices(&device)? {
                uuids.insert(device.uuid()?);
                match total().and_then(|total| slice(nvml, &device, card, total)) {
                    Ok(slice) => self.cards.push(slice),
                    Err(error) => self.incomplete = Some(error.to_string()),
                }
            }
            Ok(uuids)
        };
        self.layout = match list() {
            Ok(uuids) => Some(uuids),
            // Without a list here, the first list that can be read counts as a change.
            Err(error) => {
                tracing::warn!(gpu = %card.uuid, %error, "the card's MIG devices cannot be listed");
                None
            }
        };
    }
}

fn identity(nvml: &Nvml, index: u32) -> Result<Identity, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let capability = optional(device.cuda_compute_capability())?;
    Ok(Identity {
        uuid: GpuUuid::from(device.uuid()?.as_str()),
        index,
        minor: device.minor_number()?,
        product: device.name()?,
        pci: device.pci_info()?.bus_id,
        compute_capability: capability
            .map(|c| format!("{}.{}", c.major, c.minor))
            .unwrap_or_default(),
        // Not supported on many boards, and all ones on some drivers.
        numa: optional(device.numa_node_id())?.filter(|node| *node < u32::MAX),
        nvlink_peers: Vec::new(),
        slice: None,
    })
}

/// The MIG devices of a card; none of one that is not in MIG mode.
///
/// # Errors
/// All of them or none: with a part of them, the others would be taken for destroyed.
fn mig_devices<'a>(
    card: &nvml_wrapper::Device<'a>,
) -> Result<Vec<nvml_wrapper::Device<'a>>, NvmlError> {
    if optional(card.mig_mode())?.is_none_or(|mode| mode.current != 1) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for index in 0..card.mig_device_count()? {
        match card.mig_device_by_index(index) {
            Ok(device) => found.push(device),
            // Indices may have gaps, which drivers answer in one of two ways (go-nvlib,
            // `VisitMigDevices`).
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// `total`: the card's bytes.
fn slice(
    nvml: &Nvml,
    device: &nvml_wrapper::Device<'_>,
    card: &Identity,
    total: u64,
) -> Result<Identity, NvmlError> {
    let (gpu_instance, compute_instance) = raw::instance(nvml, device)?;
    let attributes = device.attributes()?;
    let product = device.name()?;
    let slices = attributes.gpu_instance_slice_count;
    let profile = (slices == attributes.compute_instance_slice_count)
        .then(|| Profile::of(slices, attributes.memory_size_mb, total, &product))
        .flatten();
    Ok(Identity {
        uuid: GpuUuid::from(device.uuid()?.as_str()),
        product,
        slice: Some(Slice {
            parent: card.uuid.clone(),
            profile,
            gpu_instance,
            compute_instance,
        }),
        ..card.clone()
    })
}

/// Returns the UUIDs of a card's current MIG devices, or `None` if they cannot be listed.
pub(super) fn layout(nvml: &Nvml, card: &Identity) -> Option<BTreeSet<String>> {
    let list = || -> Result<BTreeSet<String>, NvmlError> {
        let device = nvml.device_by_uuid(card.uuid.as_str())?;
        let devices = mig_devices(&device)?;
        devices.iter().map(nvml_wrapper::Device::uuid).collect()
    };
    list().ok()
}

/// Returns the cards that a card is linked with, or `None` if they cannot be read. `by_bus` has the
/// known cards by bus id.
pub(super) fn links(
    nvml: &Nvml,
    card: &Identity,
    by_bus: &BTreeMap<String, GpuUuid>,
) -> Option<Vec<String>> {
    let list = || -> Result<Vec<String>, NvmlError> {
        let device = nvml.device_by_uuid(card.uuid.as_str())?;
        let mut peers = BTreeSet::new();
        for number in 0..MAX_LINKS {
            let link = device.link_wrapper_for(number);
            match link.is_active() {
                Ok(true) => {}
                Ok(false) => continue,
                // Past the last link, or no links at all.
                Err(_) => break,
            }
            if let Ok(IntDeviceType::Switch) = link.remote_device_type(number) {
                peers.insert("nvswitch".to_owned());
                continue;
            }
            let bus = link.remote_pci_info()?.bus_id;
            let peer = by_bus
                .get(bus.as_str())
                .map_or(bus.as_str(), |uuid| uuid.as_str());
            peers.insert(peer.to_owned());
        }
        Ok(peers.into_iter().collect())
    };
    list()
        .inspect_err(|error| {
            tracing::debug!(gpu = %card.uuid, %error, "NVLink links cannot be read");
        })
        .ok()
}

/// Takes one look at a card or at a slice, and returns also whether the driver as a whole does not
/// answer. With `slices`, the processes of a card in MIG mode are left to its slices.
pub(super) fn device(
    nvml: &Nvml,
    identity: &Identity,
    slices: bool,
    proc_root: &Path,
    origins: &mut Origins,
) -> (Device, bool) {
    match reading(nvml, identity, slices, proc_root, origins) {
        Ok(reading) => {
            let identity = identity.clone();
            let reading = Ok(reading);
            (Device { identity, reading }, false)
        }
        Err(error) => {
            let gone = trouble(&error) == ErrorClass::DriverGone;
            (unreadable(identity, &error), gone)
        }
    }
}

/// Returns the device without a reading, for a card that answers with an error.
pub(super) fn unreadable(identity: &Identity, error: &NvmlError) -> Device {
    Device {
        identity: identity.clone(),
        reading: Err(UnreadableCard {
            reason: words(error),
            lost: trouble(error) == ErrorClass::DeviceLost,
            hangs: false,
        }),
    }
}

fn reading(
    nvml: &Nvml,
    identity: &Identity,
    slices: bool,
    proc_root: &Path,
    origins: &mut Origins,
) -> Result<Reading, NvmlError> {
    let device = nvml.device_by_uuid(identity.uuid.as_str())?;
    // A card whose memory is the machine's (GB10, Jetson) has none to report.
    let memory = optional(device.memory_info())?;
    let compute_mode = match optional(device.compute_mode())? {
        Some(wire::ComputeMode::ExclusiveProcess) => ComputeMode::ExclusiveProcess,
        Some(wire::ComputeMode::Prohibited) => ComputeMode::Prohibited,
        _ => ComputeMode::Default,
    };
    // Shares are not offered on such a card, whatever its lists say.
    let mig = optional(device.mig_mode())?.is_some_and(|mode| mode.current == 1);
    let listed = if mig && slices {
        // They are its slices'.
        Listed::default()
    } else {
        processes(&device, proc_root, origins)?
    };
    // A slice is whatever its card is: NVML counts errors of cards.
    let counters = match identity.slice {
        Some(_) => counters(&device.mig_parent_device()?)?,
        None => counters(&device)?,
    };
    let unshared = mig || identity.slice.is_some();
    let mib = |part: fn(&MemoryInfo) -> u64| {
        let bytes = memory.as_ref().map_or(0, part);
        Mib(bytes.div_ceil(1 << 20))
    };
    let busy = optional(device.utilization_rates())?;
    Ok(Reading {
        busy: busy.map(|rates| rates.gpu > 0),
        unified: memory.is_none(),
        total: (memory.as_ref()).map_or(Mib(0), |memory| Mib::floor_of_bytes(memory.total)),
        reserved: mib(|memory| memory.reserved),
        used: mib(|memory| memory.used),
        compute_mode,
        mig,
        // The caller has the list of them.
        slices_unknown: false,
        processes: listed.processes,
        unseen: listed.unseen.filter(|_| !unshared),
        counters,
    })
}

/// The processes of one card, for the watchdog; `None` when it does not answer, or not in
/// full: a client on no list of clients would be taken for one that goes past its server.
pub(super) fn sample(
    nvml: &Nvml,
    card: &GpuUuid,
    proc_root: &Path,
    origins: &mut Origins,
) -> Option<Vec<Process>> {
    let device = nvml.device_by_uuid(card.as_str()).ok()?;
    let (found, missing) = listed(&device).ok()?;
    if missing.is_some() {
        return None;
    }
    let found = found.into_values().map(|process| Process {
        origin: origins.known(proc_root, process.pid),
        ..process
    });
    Some(found.collect())
}

#[derive(Default)]
struct Listed {
    processes: Vec<Process>,
    unseen: Option<String>,
}

fn processes(
    device: &nvml_wrapper::Device<'_>,
    proc_root: &Path,
    origins: &mut Origins,
) -> Result<Listed, NvmlError> {
    let (found, missing) = listed(device)?;
    let unseen = missing.or_else(|| {
        let unknown = found.values().find(|process| process.memory.is_none())?;
        Some(format!(
            "the driver does not tell what process {} holds",
            unknown.pid
        ))
    });
    let busy = if found.is_empty() {
        None
    } else {
        utilization(device)?
    };
    let processes = found.into_values().map(|process| Process {
        origin: origins.read(proc_root, process.pid),
        sm_percent: (busy.as_ref()).map(|by| by.get(&process.pid).map_or(0, |used| used.sm)),
        works: (busy.as_ref()).map(|by| by.get(&process.pid).is_some_and(|used| used.works)),
        ..process
    });
    Ok(Listed {
        processes: processes.collect(),
        unseen,
    })
}

/// The recent use of a card by a process.
struct Used {
    /// Per cent of SM time, the mean of the driver's samples.
    sm: u32,
    /// True if a sample has SM time, encoding or decoding.
    works: bool,
}

/// Returns the recent use of a card by pid, for processes that used it. `None`: the driver keeps no
/// samples.
fn utilization(
    device: &nvml_wrapper::Device<'_>,
) -> Result<Option<BTreeMap<u32, Used>>, NvmlError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = now.unwrap_or_default().saturating_sub(SAMPLED);
    let since = u64::try_from(since.as_micros()).unwrap_or(0);
    let samples = match device.process_utilization_stats(since) {
        // No process did anything.
        Err(NvmlError::NotFound) => return Ok(Some(BTreeMap::new())),
        // A sample came between the count and the list: there is a next look.
        Err(NvmlError::InsufficientSize(_)) => return Ok(None),
        other => match optional(other)? {
            Some(samples) => samples,
            None => return Ok(None),
        },
    };
    let mut by_pid: BTreeMap<u32, (u32, u32, bool)> = BTreeMap::new();
    for sample in samples {
        let (sum, count, works) = by_pid.entry(sample.pid).or_default();
        // Above 100 is a driver's fault.
        *sum += sample.sm_util.min(100);
        *count += 1;
        *works |= sample.sm_util > 0 || sample.enc_util > 0 || sample.dec_util > 0;
    }
    let used = by_pid.into_iter().map(|(pid, (sum, count, works))| {
        let sm = sum / count;
        (pid, Used { sm, works })
    });
    Ok(Some(used.collect()))
}

/// Every process with a context on the card once, and the list that the driver does not
/// have, which is not an empty one. A process that draws is no client of a server, whatever
/// else it is: no limit of a server counts what it holds by drawing. NVML's figure is the
/// process's on each list.
fn listed(
    device: &nvml_wrapper::Device<'_>,
) -> Result<(BTreeMap<u32, Process>, Option<String>), NvmlError> {
    let mut found: BTreeMap<u32, Process> = BTreeMap::new();
    let mut missing = None;
    for (name, client, list) in [
        (
            "MPS",
            true,
            retried(|| device.mps_running_compute_processes()),
        ),
        (
            "compute",
            false,
            retried(|| device.running_compute_processes()),
        ),
        (
            "graphics",
            false,
            retried(|| device.running_graphics_processes()),
        ),
    ] {
        let list = match list {
            Ok(list) => list,
            Err(error) if matches!(trouble(&error), ErrorClass::Unsupported | ErrorClass::Bug) => {
                missing = Some(format!(
                    "the driver does not tell its {name} processes: {error}"
                ));
                continue;
            }
            Err(error) => return Err(error),
        };
        for process in list {
            let memory = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(Mib(bytes.div_ceil(1 << 20))),
                UsedGpuMemory::Unavailable => None,
            };
            let entry = found.entry(process.pid).or_insert(Process {
                pid: process.pid,
                memory,
                mps_client: client,
                ..Process::default()
            });
            entry.memory = entry.memory.max(memory);
            entry.mps_client &= name != "graphics";
        }
    }
    Ok((found, missing))
}

/// The list is sized by a count taken before it: a burst of starts in between makes it fail.
fn retried<T>(mut call: impl FnMut() -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    for _ in 0..3 {
        match call() {
            Err(NvmlError::InsufficientSize(_)) => {}
            other => return other,
        }
    }
    call()
}

fn counters(device: &nvml_wrapper::Device<'_>) -> Result<Counters, NvmlError> {
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    let uncorrected = optional(errors)?;
    let ids = [REMAPPED_PENDING, REMAPPED_FAILURE, RECOVERY_ACTION].map(FieldId);
    let Some(samples) = optional(device.field_values_for(&ids))? else {
        return Ok(Counters {
            uncorrected,
            ..Counters::default()
        });
    };
    let mut values = samples.into_iter().map(|sample| {
        let value = sample.and_then(|sample| sample.value).ok()?;
        match value {
            SampleValue::U32(value) => Some(value),
            SampleValue::U64(value) => u32::try_from(value).ok(),
            SampleValue::I64(value) => u32::try_from(value).ok(),
            SampleValue::F64(_) => None,
        }
    });
    let mut next = || values.next().flatten();
    Ok(Counters {
        remap_pending: next().map(|value| value != 0),
        remap_failed: next().map(|value| value != 0),
        recovery_action: next(),
        uncorrected,
    })
}
