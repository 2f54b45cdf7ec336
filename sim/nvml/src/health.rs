//! ECC, remapped rows, retired pages, field values.

use std::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::abi::{Device, FieldValue, INVALID_ARGUMENT, NOT_SUPPORTED, Out, Return, SUCCESS, code};
use crate::enumerate::card;
use crate::link::Answer;

const UNSIGNED_INT: c_uint = 1;
const UNSIGNED_LONG_LONG: c_uint = 3;

/// Microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn ecc(device: Device, error_type: c_uint) -> Result<u64, Return> {
    let card = card(device)?;
    if !card.flag("ecc") {
        return Err(NOT_SUPPORTED);
    }
    match error_type {
        0 => card.number("ecc_corrected"),
        1 => card.number("ecc_uncorrected"),
        _ => Err(INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Device,
    error_type: c_uint,
    _counter: c_uint,
    count: Out<u64>,
) -> Return {
    crate::link::enters("nvmlDeviceGetTotalEccErrors");
    code(ecc(device, error_type).and_then(|errors| count.put(errors)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: Device,
    error_type: c_uint,
    _counter: c_uint,
    location: c_uint,
    count: Out<u64>,
) -> Return {
    crate::link::enters("nvmlDeviceGetMemoryErrorCounter");
    // All errors are in device memory (2).
    code(
        ecc(device, error_type)
            .and_then(|errors| count.put(if location == 2 { errors } else { 0 })),
    )
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEccMode(
    device: Device,
    current: Out<c_uint>,
    pending: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetEccMode");
    code(card(device).and_then(|c| {
        let mode = c.number("ecc")?;
        current.put(mode)?;
        pending.put(mode)
    }))
}

/// From Ampere on; older boards retire pages.
fn remaps(card: &Answer) -> bool {
    card.number::<c_uint>("arch").is_ok_and(|arch| arch >= 7)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRemappedRows(
    device: Device,
    corrected: Out<c_uint>,
    uncorrected: Out<c_uint>,
    pending: Out<c_uint>,
    failed: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetRemappedRows");
    code(card(device).and_then(|c| {
        if !remaps(&c) {
            return Err(NOT_SUPPORTED);
        }
        corrected.put(c.number("remapped_corrected")?)?;
        uncorrected.put(c.number("remapped_uncorrected")?)?;
        pending.put(c.number("remapped_pending")?)?;
        failed.put(c.number("remapped_failed")?)
    }))
}

fn retired(device: Device, count: &Out<c_uint>) -> Result<(), Return> {
    if remaps(&card(device)?) {
        Err(NOT_SUPPORTED)
    } else {
        count.put(0)
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRetiredPages(
    device: Device,
    _cause: c_uint,
    count: Out<c_uint>,
    _addresses: Out<u64>,
) -> Return {
    crate::link::enters("nvmlDeviceGetRetiredPages");
    code(retired(device, &count))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRetiredPages_v2(
    device: Device,
    _cause: c_uint,
    count: Out<c_uint>,
    _addresses: Out<u64>,
    _timestamps: Out<u64>,
) -> Return {
    crate::link::enters("nvmlDeviceGetRetiredPages_v2");
    code(retired(device, &count))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetRetiredPagesPendingStatus(
    device: Device,
    pending: Out<c_uint>,
) -> Return {
    crate::link::enters("nvmlDeviceGetRetiredPagesPendingStatus");
    code(retired(device, &pending))
}

/// A field that this driver has, with its type.
fn field(card: &Answer, id: c_uint) -> Result<(c_uint, u64), Return> {
    let unsigned = |key: &str| Ok((UNSIGNED_INT, card.number(key)?));
    match id {
        // ECC mode now and after the next reboot; errors, volatile and aggregate.
        1 | 2 => unsigned("ecc"),
        3 | 5 => Ok((UNSIGNED_LONG_LONG, card.number("ecc_corrected")?)),
        4 | 6 => Ok((UNSIGNED_LONG_LONG, card.number("ecc_uncorrected")?)),
        91 => Ok((UNSIGNED_INT, card.rows("links").len() as u64)),
        142..=145 if !remaps(card) => Err(NOT_SUPPORTED),
        142 => unsigned("remapped_corrected"),
        143 => unsigned("remapped_uncorrected"),
        144 => unsigned("remapped_pending"),
        145 => unsigned("remapped_failed"),
        230 => unsigned("recovery_action"),
        _ => Err(NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(
    device: Device,
    count: c_int,
    values: Out<FieldValue>,
) -> Return {
    crate::link::enters("nvmlDeviceGetFieldValues");
    code(card(device).and_then(|c| {
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        let timestamp = now_us().cast_signed();
        for index in 0..count {
            values.update(index, |slot| {
                slot.timestamp = timestamp;
                slot.latency = 0;
                match field(&c, slot.field) {
                    Ok((value_type, value)) => {
                        slot.value_type = value_type;
                        slot.value = value;
                        slot.result = SUCCESS;
                    }
                    Err(result) => slot.result = result,
                }
            })?;
        }
        Ok(())
    }))
}
