//! The processes on a card. An MPS server and programs without it are compute processes; its
//! clients are only in the MPS list. Graphics programs are on the graphics list.

use std::ffi::c_uint;

use crate::abi::{
    Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NO_INSTANCE, NOT_AVAILABLE, NOT_FOUND, Out,
    ProcessInfo, Return, UNKNOWN, UtilizationSample, code,
};
use crate::enumerate::{card, either};
use crate::health::now_us;
use crate::link::Answer;

struct Row {
    pid: c_uint,
    kind: String,
    mib: u64,
    busy: c_uint,
}

fn rows(card: &Answer) -> Result<Vec<Row>, Return> {
    card.rows("processes")
        .into_iter()
        .map(|row| {
            let mut parts = row.into_iter();
            let mut part = || parts.next().ok_or(UNKNOWN);
            Ok(Row {
                pid: part()?.parse().map_err(|_| UNKNOWN)?,
                kind: part()?,
                mib: part()?.parse().map_err(|_| UNKNOWN)?,
                busy: part()?.parse().map_err(|_| UNKNOWN)?,
            })
        })
        .collect()
}

/// NVML's two steps: a call with too small an array returns the size that it needs.
fn fill<T: Copy>(values: &[T], count: &Out<c_uint>, array: &Out<T>) -> Result<(), Return> {
    let room = count.get()?;
    let needed = c_uint::try_from(values.len()).map_err(|_| UNKNOWN)?;
    count.put(needed)?;
    if needed == 0 {
        return Ok(());
    }
    if room < needed {
        return Err(INSUFFICIENT_SIZE);
    }
    if array.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    array.put_all(values)
}

fn list(device: Device, kind: &str, count: &Out<c_uint>, infos: &Out<ProcessInfo>) -> Return {
    code(either(device).and_then(|card| {
        let memory = card.flag("process_memory");
        let instance = if card.text("parent").is_empty() {
            NO_INSTANCE
        } else {
            0
        };
        let found: Vec<ProcessInfo> = rows(&card)?
            .iter()
            // A client of an MPS server is on both lists (driver 580.159.04).
            .filter(|row| row.kind == kind || (row.kind == "M+C" && kind == "C"))
            .map(|row| ProcessInfo {
                pid: row.pid,
                used_gpu_memory: if memory { row.mib << 20 } else { NOT_AVAILABLE },
                gpu_instance: card.number("gpu_instance").unwrap_or(NO_INSTANCE),
                compute_instance: instance,
            })
            .collect();
        fill(&found, count, infos)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: Out<c_uint>,
    infos: Out<ProcessInfo>,
) -> Return {
    crate::link::enters("nvmlDeviceGetComputeRunningProcesses_v3");
    list(device, "C", &count, &infos)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: Device,
    count: Out<c_uint>,
    infos: Out<ProcessInfo>,
) -> Return {
    crate::link::enters("nvmlDeviceGetMPSComputeRunningProcesses_v3");
    list(device, "M+C", &count, &infos)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: Out<c_uint>,
    infos: Out<ProcessInfo>,
) -> Return {
    crate::link::enters("nvmlDeviceGetGraphicsRunningProcesses_v3");
    list(device, "G", &count, &infos)
}

/// Samples are newer than any time that the caller has seen. Without one the
/// real library answers `NOT_FOUND`.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetProcessUtilization(
    device: Device,
    samples: Out<UtilizationSample>,
    count: Out<c_uint>,
    _last_seen: u64,
) -> Return {
    crate::link::enters("nvmlDeviceGetProcessUtilization");
    code(card(device).and_then(|card| {
        let rows = rows(&card)?;
        let timestamp = now_us();
        let found: Vec<UtilizationSample> = rows
            .iter()
            .filter(|row| row.busy > 0)
            .map(|row| UtilizationSample {
                pid: row.pid,
                timestamp,
                sm: row.busy,
                memory: row.busy / 2,
                encoder: 0,
                decoder: 0,
            })
            .collect();
        if found.is_empty() {
            count.put(0)?;
            return Err(NOT_FOUND);
        }
        // The sizing call passes no array, whatever its count says.
        if samples.is_null() {
            count.put(c_uint::try_from(found.len()).map_err(|_| UNKNOWN)?)?;
            return Err(INSUFFICIENT_SIZE);
        }
        fill(&found, &count, &samples)
    }))
}
