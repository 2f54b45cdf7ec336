//! MIG: mode, instances, their handles. As inside a container, only instances whose capability
//! nodes exist are seen.

use std::ffi::c_uint;

use crate::abi::{
    Attributes, Device, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Out, Return, UNKNOWN, code,
};
use crate::enumerate::{card, either, sees_id};
use crate::link::Answer;

/// An instance's own answer; a card's handle is `INVALID_ARGUMENT`.
fn instance(device: Device) -> Result<Answer, Return> {
    let answer = either(device)?;
    if answer.text("parent").is_empty() {
        Err(INVALID_ARGUMENT)
    } else {
        Ok(answer)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(
    device: Device,
    current: Out<c_uint>,
    pending: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetMigMode");
    code(card(device).and_then(|c| {
        if !c.flag("mig_capable") {
            return Err(NOT_SUPPORTED);
        }
        let mode = c.number("mig")?;
        current.put(mode)?;
        pending.put(mode)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetMaxMigDeviceCount");
    code(card(device).and_then(|c| count.put(if c.flag("mig_capable") { 7 } else { 0 })))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceIsMigDeviceHandle(device: Device, is_mig: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceIsMigDeviceHandle");
    code(either(device).and_then(|c| is_mig.put(c_uint::from(!c.text("parent").is_empty()))))
}

/// `NOT_FOUND` at an index without an instance, `NOT_SUPPORTED` while MIG mode is off.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Device,
    index: c_uint,
    instance: Out<Device>,
) -> Return {
    crate::link::enters("nvmlDeviceGetMigDeviceHandleByIndex");
    code(card(device).and_then(|c| {
        if !c.flag("mig") {
            return Err(NOT_SUPPORTED);
        }
        if index >= 7 {
            return Err(INVALID_ARGUMENT);
        }
        match c.number("mig_device")? {
            fault if fault != 0 && index > 0 => return Err(fault),
            _ => {}
        }
        let parent = device.index()?;
        let mut seen = Vec::new();
        for row in c.rows("instances") {
            let id = row.get(3).and_then(|id| id.parse().ok()).ok_or(UNKNOWN)?;
            if sees_id(parent, id)? {
                seen.push(row);
            }
        }
        let row = seen.get(index as usize).ok_or(NOT_FOUND)?;
        let handle = row.first().and_then(|index| index.parse().ok());
        instance.put(handle.and_then(Device::of).ok_or(UNKNOWN)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    device: Device,
    parent: Out<Device>,
) -> Return {
    crate::link::enters("nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    code(instance(device).and_then(|i| {
        let index = i.number("parent")?;
        parent.put(Device::of(index).ok_or(UNKNOWN)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceId(device: Device, id: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetGpuInstanceId");
    code(instance(device).and_then(|i| id.put(i.number("gpu_instance")?)))
}

/// Each GPU instance has one compute instance.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeInstanceId(device: Device, id: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetComputeInstanceId");
    code(instance(device).and_then(|_| id.put(0)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes_v2(device: Device, attributes: Out<Attributes>) -> Return {
    crate::link::enters("nvmlDeviceGetAttributes_v2");
    code(instance(device).and_then(|i| {
        let slices = i.number("slices")?;
        attributes.put(Attributes {
            multiprocessors: i.number("sms")?,
            copy_engines: slices,
            decoders: slices / 2,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
            gpu_slices: slices,
            compute_slices: slices,
            memory_mb: i.number("total_mib")?,
        })
    }))
}
