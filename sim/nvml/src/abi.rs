//! NVML's ABI: return codes, structs, handles, out-parameters (`nvml.h`).
//!
//! Owns every dereference of a pointer that a caller passed.

use std::ffi::{c_char, c_uint};
use std::marker::PhantomData;

/// `nvmlReturn_t`.
pub(crate) type Return = c_uint;

pub(crate) const SUCCESS: Return = 0;
pub(crate) const UNINITIALIZED: Return = 1;
pub(crate) const INVALID_ARGUMENT: Return = 2;
pub(crate) const NOT_SUPPORTED: Return = 3;
pub(crate) const NOT_FOUND: Return = 6;
pub(crate) const INSUFFICIENT_SIZE: Return = 7;
pub(crate) const DRIVER_NOT_LOADED: Return = 9;
pub(crate) const TIMEOUT: Return = 10;
pub(crate) const ARGUMENT_VERSION_MISMATCH: Return = 25;
pub(crate) const UNKNOWN: Return = 999;

/// Turns a result into the code that C expects.
pub(crate) fn code(result: Result<(), Return>) -> Return {
    match result {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// An out- or in-out-parameter.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T, PhantomData<T>);

impl<T: Copy> Out<T> {
    /// True for a null pointer.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Writes the value; null is `INVALID_ARGUMENT`.
    pub(crate) fn put(&self, value: T) -> Result<(), Return> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: NVML's contract for every out-parameter is a pointer that is
        // null or valid for one value of its type; null was ruled out above.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Reads the value that the caller left there.
    pub(crate) fn get(&self) -> Result<T, Return> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: as for `put`; in-out parameters (counts, versions, field ids)
        // are initialised by the caller, and the types here have no invalid bits.
        Ok(unsafe { self.0.read() })
    }

    /// Reads and writes back an array element.
    pub(crate) fn update(&self, index: usize, change: impl FnOnce(&mut T)) -> Result<(), Return> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the callers of this function bound `index` by the element
        // count that the caller of the library passed with the array.
        let element = unsafe { &mut *self.0.add(index) };
        change(element);
        Ok(())
    }

    /// Writes an array; the caller has checked that it fits.
    pub(crate) fn put_all(&self, values: &[T]) -> Result<(), Return> {
        for (index, value) in values.iter().enumerate() {
            self.update(index, |slot| *slot = *value)?;
        }
        Ok(())
    }
}

impl Out<c_char> {
    /// Writes a string with its terminating zero into `length` bytes.
    pub(crate) fn put_text(&self, text: &str, length: c_uint) -> Result<(), Return> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        if text.len() + 1 > length as usize {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, byte) in text.bytes().chain([0]).enumerate() {
            self.update(index, |slot| *slot = c_char::from_ne_bytes([byte]))?;
        }
        Ok(())
    }
}

/// A C string that the caller passed.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// Copies it; null is `INVALID_ARGUMENT`.
    pub(crate) fn read(&self) -> Result<String, Return> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: NVML takes zero-terminated strings only, and null was ruled out.
        let text = unsafe { std::ffi::CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// `nvmlDevice_t`: points into [`SLOTS`]; never dereferenced, compared by address.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(*const u8);

/// For the cards, and for all MIG instances that these can have.
static SLOTS: [u8; 512] = [0; 512];

impl Device {
    /// The handle of the card with this driver index.
    pub(crate) fn of(index: usize) -> Option<Self> {
        SLOTS.get(index).map(|slot| Self(std::ptr::from_ref(slot)))
    }

    /// The driver index of a handle; anything that we did not hand out is `INVALID_ARGUMENT`.
    pub(crate) fn index(self) -> Result<usize, Return> {
        let offset = (self.0 as usize).wrapping_sub(SLOTS.as_ptr() as usize);
        if offset < SLOTS.len() {
            Ok(offset)
        } else {
            Err(INVALID_ARGUMENT)
        }
    }
}

/// `nvmlGpuInstance_t` and `nvmlComputeInstance_t`, each pointing into a table of its own: a card and
/// the number of its GPU instance, which has at most one compute instance.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance<const COMPUTE: bool>(*const u8);

/// As many GPU instances as a card can have, for 32 cards.
static INSTANCE_SLOTS: [[u8; 16 * 32]; 2] = [[0; 16 * 32]; 2];

impl<const COMPUTE: bool> Instance<COMPUTE> {
    fn slots() -> &'static [u8] {
        let [gpu, compute] = &INSTANCE_SLOTS;
        if COMPUTE { compute } else { gpu }
    }

    /// The handle of an instance of a card.
    pub(crate) fn of(card: usize, number: usize) -> Option<Self> {
        let slot = Self::slots().get(card * 16 + number)?;
        (number < 16).then(|| Self(std::ptr::from_ref(slot)))
    }

    /// Its card and number; anything that we did not hand out is `INVALID_ARGUMENT`.
    pub(crate) fn place(self) -> Result<(usize, usize), Return> {
        let offset = (self.0 as usize).wrapping_sub(Self::slots().as_ptr() as usize);
        if offset < Self::slots().len() {
            Ok((offset / 16, offset % 16))
        } else {
            Err(INVALID_ARGUMENT)
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GpuInstanceProfileV2 {
    pub(crate) version: c_uint,
    pub(crate) id: c_uint,
    pub(crate) peer_to_peer: c_uint,
    pub(crate) slices: c_uint,
    pub(crate) most: c_uint,
    pub(crate) multiprocessors: c_uint,
    pub(crate) copy_engines: c_uint,
    pub(crate) decoders: c_uint,
    pub(crate) encoders: c_uint,
    pub(crate) jpeg: c_uint,
    pub(crate) ofa: c_uint,
    pub(crate) memory_mb: u64,
    pub(crate) name: [c_char; 96],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ComputeInstanceProfile {
    pub(crate) id: c_uint,
    pub(crate) slices: c_uint,
    pub(crate) most: c_uint,
    pub(crate) multiprocessors: c_uint,
    pub(crate) copy_engines: c_uint,
    pub(crate) decoders: c_uint,
    pub(crate) encoders: c_uint,
    pub(crate) jpeg: c_uint,
    pub(crate) ofa: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PciInfo {
    pub(crate) bus_id_legacy: [c_char; 16],
    pub(crate) domain: c_uint,
    pub(crate) bus: c_uint,
    pub(crate) device: c_uint,
    pub(crate) pci_device_id: c_uint,
    pub(crate) pci_subsystem_id: c_uint,
    pub(crate) bus_id: [c_char; 32],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryV2 {
    pub(crate) version: c_uint,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessInfo {
    pub(crate) pid: c_uint,
    pub(crate) used_gpu_memory: u64,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UtilizationSample {
    pub(crate) pid: c_uint,
    pub(crate) timestamp: u64,
    pub(crate) sm: c_uint,
    pub(crate) memory: c_uint,
    pub(crate) encoder: c_uint,
    pub(crate) decoder: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Utilization {
    pub(crate) gpu: c_uint,
    pub(crate) memory: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EventData {
    pub(crate) device: Device,
    pub(crate) kind: u64,
    pub(crate) data: u64,
    pub(crate) gpu_instance: c_uint,
    pub(crate) compute_instance: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FieldValue {
    pub(crate) field: c_uint,
    pub(crate) scope: c_uint,
    pub(crate) timestamp: i64,
    pub(crate) latency: i64,
    pub(crate) value_type: c_uint,
    pub(crate) result: Return,
    // The union of NVML's value types; we only write `unsigned int` and
    // `unsigned long long`, whose low bytes coincide on this architecture.
    pub(crate) value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Bar1Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `NVML_VALUE_NOT_AVAILABLE` as an unsigned 64-bit value.
pub(crate) const NOT_AVAILABLE: u64 = u64::MAX;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) multiprocessors: c_uint,
    pub(crate) copy_engines: c_uint,
    pub(crate) decoders: c_uint,
    pub(crate) encoders: c_uint,
    pub(crate) jpeg: c_uint,
    pub(crate) ofa: c_uint,
    pub(crate) gpu_slices: c_uint,
    pub(crate) compute_slices: c_uint,
    pub(crate) memory_mb: u64,
}

/// No MIG instance.
pub(crate) const NO_INSTANCE: c_uint = c_uint::MAX;

/// Fills a fixed character array.
pub(crate) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (slot, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *slot = c_char::from_ne_bytes([byte]);
    }
    array
}
