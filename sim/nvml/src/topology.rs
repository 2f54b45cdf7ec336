//! Links and neighbours.

use std::ffi::c_uint;

use crate::abi::{Device, INVALID_ARGUMENT, NOT_SUPPORTED, Out, PciInfo, Return, UNKNOWN, code};
use crate::device::pci_info;
use crate::enumerate::{card, seen};

const MAX_LINKS: c_uint = 18;

/// `nvmlGpuTopologyLevel_t` from one card to another.
fn level(device: Device, other: usize) -> Result<c_uint, Return> {
    let row = card(device)?
        .rows("topology")
        .into_iter()
        .nth(other)
        .ok_or(INVALID_ARGUMENT)?;
    row.first()
        .and_then(|text| text.parse().ok())
        .ok_or(UNKNOWN)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTopologyCommonAncestor(
    one: Device,
    other: Device,
    path: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetTopologyCommonAncestor");
    code(other.index().and_then(|other| path.put(level(one, other)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTopologyNearestGpus(
    device: Device,
    wanted: c_uint,
    count: Out<c_uint>,
    devices: Out<Device>,
) -> Return {
    crate::link::enters("nvmlDeviceGetTopologyNearestGpus");
    code(device.index().and_then(|own| {
        let mut found = Vec::new();
        for index in seen()?.into_iter().filter(|index| *index != own) {
            if level(device, index)? == wanted {
                found.extend(Device::of(index));
            }
        }
        let room = count.get()? as usize;
        count.put(c_uint::try_from(found.len()).map_err(|_| UNKNOWN)?)?;
        if devices.is_null() {
            return Ok(());
        }
        devices.put_all(&found[..room.min(found.len())])
    }))
}

/// Remote bus id and device type of one link. Cards without links, and links
/// that a card does not have, are `NOT_SUPPORTED`.
fn link(device: Device, link: c_uint) -> Result<(String, c_uint), Return> {
    if link >= MAX_LINKS {
        return Err(INVALID_ARGUMENT);
    }
    let row = card(device)?
        .rows("links")
        .into_iter()
        .nth(link as usize)
        .ok_or(NOT_SUPPORTED)?;
    match row.as_slice() {
        [pci, kind] => Ok((pci.clone(), kind.parse().map_err(|_| UNKNOWN)?)),
        _ => Err(UNKNOWN),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkState(
    device: Device,
    number: c_uint,
    active: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetNvLinkState");
    code(link(device, number).and_then(|_| active.put(1)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkVersion(
    device: Device,
    number: c_uint,
    version: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetNvLinkVersion");
    code(link(device, number).and_then(|_| {
        // Ampere has the third generation, Hopper the fourth.
        let arch: c_uint = card(device)?.number("arch")?;
        version.put(if arch >= 9 { 4 } else { 3 })
    }))
}

/// `NVML_NVLINK_CAP_P2P_SUPPORTED` and similar ones: all except SLI.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkCapability(
    device: Device,
    number: c_uint,
    capability: c_uint,
    result: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetNvLinkCapability");
    code(link(device, number).and_then(|_| result.put(c_uint::from(capability != 4))))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: Device,
    number: c_uint,
    pci: Out<PciInfo>,
) -> Return {
    crate::link::enters("nvmlDeviceGetNvLinkRemotePciInfo_v2");
    code(link(device, number).and_then(|(remote, kind)| {
        // A switch's device id, or the peer's, which is of the same product.
        let id = match kind {
            2 => 0x22A3_10DE,
            _ => card(device)?.number("pci_device")?,
        };
        pci.put(pci_info(&remote, id, 0)?)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: Device,
    number: c_uint,
    kind: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetNvLinkRemoteDeviceType");
    code(link(device, number).and_then(|(_, remote)| kind.put(remote)))
}
