//! Identity, memory, modes and readings of one card.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, Bar1Memory, Device, INVALID_ARGUMENT, Memory, MemoryV2,
    NOT_SUPPORTED, Out, PciInfo, Return, UNKNOWN, Utilization, chars, code,
};
use crate::enumerate::{card, either};
use crate::link::{self, Answer};

/// Of a card or of a MIG instance.
fn name(device: Device, key: &str, out: &Out<c_char>, length: c_uint) -> Return {
    code(either(device).and_then(|c| out.put_text(&c.text(key), length)))
}

fn text(device: Device, key: &str, out: &Out<c_char>, length: c_uint) -> Return {
    code(card(device).and_then(|c| out.put_text(&c.text(key), length)))
}

fn number<T: Copy + std::str::FromStr>(device: Device, key: &str, out: &Out<T>) -> Return {
    code(card(device).and_then(|c| out.put(c.number(key)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: Device, uuid: Out<c_char>, length: c_uint) -> Return {
    crate::link::enters("nvmlDeviceGetUUID");
    name(device, "gpu", &uuid, length)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: Device, text: Out<c_char>, length: c_uint) -> Return {
    crate::link::enters("nvmlDeviceGetName");
    name(device, "name", &text, length)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSerial(device: Device, serial: Out<c_char>, length: c_uint) -> Return {
    crate::link::enters("nvmlDeviceGetSerial");
    text(device, "serial", &serial, length)
}

/// The minor survives the card: it names a device node, not a register.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: Device, minor: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetMinorNumber");
    number(device, "minor", &minor)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBrand(device: Device, brand: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetBrand");
    number(device, "brand", &brand)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetArchitecture(device: Device, architecture: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetArchitecture");
    number(device, "arch", &architecture)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumGpuCores(device: Device, cores: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetNumGpuCores");
    number(device, "cores", &cores)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: Out<c_int>,
    minor: Out<c_int>,
) -> Return {
    crate::link::enters("nvmlDeviceGetCudaComputeCapability");
    code(card(device).and_then(|c| {
        major.put(c.number("cc_major")?)?;
        minor.put(c.number("cc_minor")?)
    }))
}

/// A `PciInfo` for a bus id of the form `00000000:1B:00.0`.
pub(crate) fn pci_info(
    bus_id: &str,
    device_id: c_uint,
    subsystem_id: c_uint,
) -> Result<PciInfo, Return> {
    let mut parts = bus_id
        .split([':', '.'])
        .map(|part| c_uint::from_str_radix(part, 16).map_err(|_| UNKNOWN));
    let mut part = || parts.next().unwrap_or(Err(UNKNOWN));
    Ok(PciInfo {
        domain: part()?,
        bus: part()?,
        device: part()?,
        pci_device_id: device_id,
        pci_subsystem_id: subsystem_id,
        bus_id_legacy: chars(bus_id.get(4..).unwrap_or_default()),
        bus_id: chars(bus_id),
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, pci: Out<PciInfo>) -> Return {
    crate::link::enters("nvmlDeviceGetPciInfo_v3");
    code(card(device).and_then(|c| {
        pci.put(pci_info(
            &c.text("pci"),
            c.number("pci_device")?,
            c.number("pci_subsystem")?,
        )?)
    }))
}

/// Not known to every board: then `NOT_SUPPORTED`, as on many real ones.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumaNodeId(device: Device, node: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetNumaNodeId");
    code(card(device).and_then(|c| node.put(c.number("numa").map_err(|_| NOT_SUPPORTED)?)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: Device,
    size: c_uint,
    nodes: Out<c_ulong>,
    _scope: c_uint,
) -> Return {
    crate::link::enters("nvmlDeviceGetMemoryAffinity");
    code(card(device).and_then(|c| {
        let node: u32 = c.number("numa").map_err(|_| NOT_SUPPORTED)?;
        if size == 0 || node >= c_ulong::BITS {
            return Err(INVALID_ARGUMENT);
        }
        nodes.put_all(&vec![0; size as usize])?;
        nodes.put(1 << node)
    }))
}

fn bytes(card: &Answer, key: &str) -> Result<u64, Return> {
    Ok(card.number::<u64>(key)? << 20)
}

/// `NVML_STRUCT_VERSION(Memory, 2)` combines the size and the version number of the struct.
const MEMORY_V2: c_uint = 0x0200_0028;

/// Version 1 counts the driver's reserve as used.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, memory: Out<Memory>) -> Return {
    crate::link::enters("nvmlDeviceGetMemoryInfo");
    code(either(device).and_then(|c| {
        memory.put(Memory {
            total: bytes(&c, "total_mib")?,
            free: bytes(&c, "free_mib")?,
            used: bytes(&c, "used_mib")? + bytes(&c, "reserved_mib")?,
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Out<MemoryV2>) -> Return {
    crate::link::enters("nvmlDeviceGetMemoryInfo_v2");
    code(memory.get().and_then(|asked| {
        if asked.version != MEMORY_V2 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let c = either(device)?;
        memory.put(MemoryV2 {
            version: MEMORY_V2,
            total: bytes(&c, "total_mib")?,
            reserved: bytes(&c, "reserved_mib")?,
            free: bytes(&c, "free_mib")?,
            used: bytes(&c, "used_mib")?,
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBAR1MemoryInfo(device: Device, memory: Out<Bar1Memory>) -> Return {
    crate::link::enters("nvmlDeviceGetBAR1MemoryInfo");
    code(card(device).and_then(|_| {
        memory.put(Bar1Memory {
            total: 256 << 20,
            free: 255 << 20,
            used: 1 << 20,
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeMode(device: Device, mode: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetComputeMode");
    number(device, "mode", &mode)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetComputeMode(device: Device, mode: c_uint) -> Return {
    crate::link::enters("nvmlDeviceSetComputeMode");
    code(
        device
            .index()
            .and_then(|index| link::ask(&format!("set-mode index={index} mode={mode}")).map(drop)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetPersistenceMode");
    code(card(device).and_then(|_| mode.put(1)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, rates: Out<Utilization>) -> Return {
    crate::link::enters("nvmlDeviceGetUtilizationRates");
    code(card(device).and_then(|c| {
        rates.put(Utilization {
            gpu: c.number("busy")?,
            memory: c.number("memory_busy")?,
        })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(device: Device, milliwatts: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetPowerUsage");
    number(device, "power_mw", &milliwatts)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerManagementLimit(device: Device, milliwatts: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetPowerManagementLimit");
    number(device, "power_limit_mw", &milliwatts)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: Device, milliwatts: Out<c_uint>) -> Return {
    crate::link::enters("nvmlDeviceGetEnforcedPowerLimit");
    number(device, "power_limit_mw", &milliwatts)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(
    device: Device,
    sensor: c_uint,
    celsius: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetTemperature");
    if sensor != 0 {
        return INVALID_ARGUMENT;
    }
    number(device, "temperature", &celsius)
}
