//! Calls and fields that the wrapper lacks: ids of MIG instances, also those of an event.
//!
//! The one file of the agent with unsafe code.
#![allow(unsafe_code)]

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, EventSet, Nvml};
use nvml_wrapper_sys::bindings::nvmlEventData_t;
use std::ffi::c_uint;

/// What an event of no single instance has in place of an id.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// Ids of a GPU instance and of a compute instance in it.
pub(super) type InstanceIds = (u32, u32);

/// What the driver reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// UUID of the card; `None`: it no longer tells.
    pub(super) card: Option<String>,
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
    // SAFETY: the handle is the driver's answer, of the same library.
    // JUSTIFICATION: nvml-wrapper makes its devices so.
    let device = unsafe { Device::new(data.device, nvml) };
    let is_xid = data.eventType & EventTypes::CRITICAL_XID_ERROR.bits() != 0;
    let ids = (data.gpuInstanceId, data.computeInstanceId);
    Ok(Event {
        card: device.uuid().ok(),
        xid: is_xid.then_some(data.eventData),
        instance: (ids.0 != NO_INSTANCE).then_some(ids),
    })
}
