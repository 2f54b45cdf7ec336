//! Counts and handles. As the real library does inside a container, only cards
//! whose device node exists are seen, and indices count those.

use std::ffi::c_uint;

use crate::abi::{
    Device, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Out, Return, Text, UNKNOWN, code,
};
use crate::link::{self, Answer};

/// Driver indices of the cards that this process can see.
pub(crate) fn seen() -> Result<Vec<usize>, Return> {
    let dev = link::root()?.join("dev");
    let count: usize = link::ask("machine")?.number("count")?;
    Ok((0..count)
        .filter(|index| dev.join(format!("nvidia{index}")).exists())
        .collect())
}

/// Everything about a card; a lost one is `GPU_IS_LOST`. Most calls do not take a MIG instance.
pub(crate) fn card(device: Device) -> Result<Answer, Return> {
    let card = either(device)?;
    if card.text("parent").is_empty() {
        Ok(card)
    } else {
        Err(NOT_SUPPORTED)
    }
}

/// Everything about a card or a MIG instance.
pub(crate) fn either(device: Device) -> Result<Answer, Return> {
    link::ask(&format!("card index={}", device.index()?))
}

/// Hands a handle out; asks for the card, so that a lost one gets none.
fn hand_out(request: &str, out: &Out<Device>) -> Result<(), Return> {
    let answer = link::ask(request)?;
    let index: usize = answer.number("index")?;
    let here = if answer.text("parent").is_empty() {
        seen()?.contains(&index)
    } else {
        seen()?.contains(&answer.number("parent")?) && sees(&answer)?
    };
    if !here {
        return Err(NOT_FOUND);
    }
    out.put(Device::of(index).ok_or(UNKNOWN)?)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetCount_v2");
    code(seen().and_then(|seen| count.put(c_uint::try_from(seen.len()).map_err(|_| UNKNOWN)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Device>) -> Return {
    crate::link::enters("nvmlDeviceGetHandleByIndex_v2");
    code(seen().and_then(|seen| {
        let index = seen.get(index as usize).ok_or(INVALID_ARGUMENT)?;
        hand_out(&format!("card index={index}"), &device)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Device>) -> Return {
    crate::link::enters("nvmlDeviceGetHandleByUUID");
    code(
        uuid.read()
            .and_then(|uuid| hand_out(&format!("card gpu={}", link::encode(&uuid)), &device)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: Text, device: Out<Device>) -> Return {
    crate::link::enters("nvmlDeviceGetHandleByPciBusId_v2");
    code(
        bus_id
            .read()
            .and_then(|id| hand_out(&format!("card pci={}", link::encode(&id)), &device)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: Device, index: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetIndex");
    code(device.index().and_then(|own| {
        let at = seen()?.iter().position(|i| *i == own).ok_or(NOT_FOUND)?;
        index.put(c_uint::try_from(at).map_err(|_| UNKNOWN)?)
    }))
}

/// Whether both capability nodes of an instance exist: numbered as the driver's `mig-minors`.
pub(crate) fn sees(instance: &Answer) -> Result<bool, Return> {
    let (parent, id): (usize, usize) =
        (instance.number("parent")?, instance.number("gpu_instance")?);
    sees_id(parent, id)
}

pub(crate) fn sees_id(parent: usize, id: usize) -> Result<bool, Return> {
    let first = 3 + parent * 135 + id * 9;
    let nodes = link::root()?.join("dev/nvidia-caps");
    let is_there = |minor: usize| nodes.join(format!("nvidia-cap{minor}")).exists();
    Ok(is_there(first) && is_there(first + 1))
}
