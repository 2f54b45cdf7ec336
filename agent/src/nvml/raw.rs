//! Calls and fields that the wrapper lacks: ids of MIG instances, also those of an event; making and
//! destroying instances.
//!
//! The one file of the agent with unsafe code.
#![allow(unsafe_code)]

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, EventSet, Nvml};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NVML_COMPUTE_INSTANCE_PROFILE_COUNT,
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlComputeInstance_t, nvmlComputeInstanceProfileInfo_t,
    nvmlEventData_t, nvmlGpuInstance_t, nvmlGpuInstanceProfileInfo_v2_t,
};
use std::ffi::{CStr, c_uint};

/// What an event of no single instance has in place of an id.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Ids of a GPU instance and of a compute instance in it.
pub(super) type InstanceIds = (u32, u32);

/// What the driver reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Number of an XID, 999 where the driver does not know it; `None`: it is another event.
    pub(super) xid: Option<u64>,
    /// `None`: it is of the card as a whole.
    pub(super) instance: Option<InstanceIds>,
}

/// The ids of a MIG device.
///
/// # Errors
/// NVML's; a card is `InvalidArg`.
pub(super) fn instance(nvml: &Nvml, device: &Device<'_>) -> Result<InstanceIds, NvmlError> {
    let of_gpu = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let of_compute = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut ids = (0, 0);
    // SAFETY: the handle is one that this library gave out, and it is loaded as long as `device`
    // lives; the out-parameter is valid for one value.
    // JUSTIFICATION: nvml-wrapper has no such call.
    nvml_try(unsafe { of_gpu(device.handle(), &raw mut ids.0) })?;
    // SAFETY: as above.
    // JUSTIFICATION: as above.
    nvml_try(unsafe { of_compute(device.handle(), &raw mut ids.1) })?;
    Ok(ids)
}

/// Waits for an event, at most this long.
///
/// # Errors
/// `Timeout` when there was none; NVML's others.
pub(super) fn wait(nvml: &Nvml, set: &EventSet<'_>, timeout_ms: u32) -> Result<Event, NvmlError> {
    let wait = nvml_sym(nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    let mut data = nvmlEventData_t {
        device: std::ptr::null_mut(),
        eventType: 0,
        eventData: 0,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    };
    // SAFETY: the set is one that this library gave out, and it is loaded as long as `set` lives;
    // the out-parameter is valid for one value.
    // JUSTIFICATION: nvml-wrapper drops the ids of the instance.
    nvml_try(unsafe { wait(set.handle(), &raw mut data, timeout_ms) })?;
    let is_xid = data.eventType & EventTypes::CRITICAL_XID_ERROR.bits() != 0;
    let ids = (data.gpuInstanceId, data.computeInstanceId);
    Ok(Event {
        xid: is_xid.then_some(data.eventData),
        instance: (ids.0 != NO_INSTANCE).then_some(ids),
    })
}

/// Room for all GPU instances, or compute instances, of one profile: a card has at most seven.
const MOST_INSTANCES: usize = 16;
/// `nvmlGpuInstanceProfileInfo_v2`, by the rule of `NVML_STRUCT_VERSION`.
#[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
const PROFILE_V2: c_uint = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as c_uint | 2 << 24;

/// A kind of GPU instances that a card can have.
#[derive(Clone, Debug)]
pub(super) struct GpuInstanceProfile {
    id: c_uint,
    /// As NVML names it: `MIG 1g.10gb+me`.
    pub(super) name: String,
    /// GPU slices.
    pub(super) slices: u32,
    /// How many of them a card can have.
    pub(super) most: u32,
    /// MiB.
    pub(super) memory: u64,
}

/// A GPU instance. It is the caller's to use no instance after it was destroyed.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuInstance(nvmlGpuInstance_t);

/// What is there, and what is not supported as nothing.
fn supported<T>(result: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match result {
        Err(NvmlError::NotSupported | NvmlError::InvalidArg) => Ok(None),
        result => result.map(Some),
    }
}

/// The kinds of GPU instances that a card in MIG mode can have.
///
/// # Errors
/// NVML's.
pub(super) fn gpu_instance_profiles(
    nvml: &Nvml,
    device: &Device<'_>,
) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
    let mut profiles = Vec::new();
    for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        let mut info = nvmlGpuInstanceProfileInfo_v2_t {
            version: PROFILE_V2,
            id: 0,
            isP2pSupported: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: 0,
            name: [0; 96],
        };
        // SAFETY: the handle is one that this library gave out; the struct is of the version that
        // it says.
        // JUSTIFICATION: nvml-wrapper has no such call.
        let answer = nvml_try(unsafe { ask(device.handle(), number, &raw mut info) });
        if supported(answer)?.is_none() {
            continue;
        }
        let name = info.name.map(c_char_to_byte);
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        profiles.push(GpuInstanceProfile {
            id: info.id,
            name: name.to_string_lossy().into_owned(),
            slices: info.sliceCount,
            most: info.instanceCount,
            memory: info.memorySizeMB,
        });
    }
    Ok(profiles)
}

/// A `c_char` is signed on x86-64 and unsigned on arm64.
fn c_char_to_byte(byte: std::ffi::c_char) -> u8 {
    let [byte] = byte.to_ne_bytes();
    byte
}

/// The GPU instances of that kind.
///
/// # Errors
/// NVML's.
pub(super) fn gpu_instances(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: &GpuInstanceProfile,
) -> Result<Vec<GpuInstance>, NvmlError> {
    let list = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstances.as_ref())?;
    let mut found = [std::ptr::null_mut(); MOST_INSTANCES];
    let mut count = 0;
    // SAFETY: the array has room for more instances than a card can have.
    // JUSTIFICATION: nvml-wrapper has no such call.
    let answer = unsafe {
        list(
            device.handle(),
            profile.id,
            found.as_mut_ptr(),
            &raw mut count,
        )
    };
    nvml_try(answer)?;
    let found = found.into_iter().take(count as usize);
    Ok(found.map(GpuInstance).collect())
}

/// The kinds of compute instances of a GPU instance: id and slices.
fn compute_profiles(nvml: &Nvml, instance: GpuInstance) -> Result<Vec<(c_uint, u32)>, NvmlError> {
    let ask = nvml_sym(
        nvml.lib()
            .nvmlGpuInstanceGetComputeInstanceProfileInfo
            .as_ref(),
    )?;
    let mut profiles = Vec::new();
    for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
        let mut info = nvmlComputeInstanceProfileInfo_t {
            id: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
        };
        let engines = NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
        // SAFETY: the handle is one that this library gave out; the out-parameter is valid for one
        // value.
        // JUSTIFICATION: nvml-wrapper has no such call.
        let answer = nvml_try(unsafe { ask(instance.0, number, engines, &raw mut info) });
        if supported(answer)?.is_some() {
            profiles.push((info.id, info.sliceCount));
        }
    }
    Ok(profiles)
}

/// Makes a GPU instance, and in it one compute instance of its whole size.
///
/// # Errors
/// NVML's. Nothing is made then, unless the driver does not take back what it made either.
pub(super) fn create(
    nvml: &Nvml,
    device: &Device<'_>,
    profile: &GpuInstanceProfile,
) -> Result<(), NvmlError> {
    let create = nvml_sym(nvml.lib().nvmlDeviceCreateGpuInstance.as_ref())?;
    let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
    // SAFETY: the handle is one that this library gave out; the out-parameter is valid for one
    // value.
    // JUSTIFICATION: nvml-wrapper has no such call.
    nvml_try(unsafe { create(device.handle(), profile.id, &raw mut instance) })?;
    let instance = GpuInstance(instance);
    let filled = fill(nvml, instance, profile.slices);
    if filled.is_err() {
        let _ = destroy(nvml, instance);
    }
    filled
}

/// Makes the compute instance that takes all of a GPU instance.
fn fill(nvml: &Nvml, instance: GpuInstance, slices: u32) -> Result<(), NvmlError> {
    let create = nvml_sym(nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
    let profiles = compute_profiles(nvml, instance)?;
    let whole = profiles.into_iter().find(|(_, of)| *of == slices);
    let (id, _) = whole.ok_or(NvmlError::NotSupported)?;
    let mut made: nvmlComputeInstance_t = std::ptr::null_mut();
    // SAFETY: the handle is one that this library gave out; the out-parameter is valid for one
    // value.
    // JUSTIFICATION: nvml-wrapper has no such call.
    nvml_try(unsafe { create(instance.0, id, &raw mut made) })
}

/// Destroys a GPU instance and its compute instances.
///
/// # Errors
/// NVML's: `InUse` while a process uses one.
pub(super) fn destroy(nvml: &Nvml, instance: GpuInstance) -> Result<(), NvmlError> {
    let list = nvml_sym(nvml.lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
    let destroy = nvml_sym(nvml.lib().nvmlComputeInstanceDestroy.as_ref())?;
    let destroy_gpu = nvml_sym(nvml.lib().nvmlGpuInstanceDestroy.as_ref())?;
    for (id, _) in compute_profiles(nvml, instance)? {
        let mut found: [nvmlComputeInstance_t; MOST_INSTANCES] =
            [std::ptr::null_mut(); MOST_INSTANCES];
        let mut count = 0;
        // SAFETY: the array has room for more instances than a GPU instance can have.
        // JUSTIFICATION: nvml-wrapper has no such call.
        nvml_try(unsafe { list(instance.0, id, found.as_mut_ptr(), &raw mut count) })?;
        for compute in found.into_iter().take(count as usize) {
            // SAFETY: the library gave the handle out just now.
            // JUSTIFICATION: nvml-wrapper has no such call.
            nvml_try(unsafe { destroy(compute) })?;
        }
    }
    // SAFETY: the library gave the handle out, and it is not used again.
    // JUSTIFICATION: nvml-wrapper has no such call.
    nvml_try(unsafe { destroy_gpu(instance.0) })
}
