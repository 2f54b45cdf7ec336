//! The process behind the C ABI: one connection to the driver, contexts, allocations.
//!
//! Owns the only state of the library, behind one lock. In: calls. Out: answers, or
//! `CUresult` codes. Must never: decide what the driver decides.

use sim_gpu::client::process::{CudaProcess, Route};
use sim_gpu::client::{CallError, Driver};
use sim_gpu::cuda::CudaError;
use sim_gpu::paths::Root;
use sim_gpu::wire::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// A `CUresult`.
pub(crate) type Code = u32;
pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: Code = 801;
const MIB: usize = 1 << 20;
/// Addresses look like the real ones: far up, and apart.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// One process.
pub(crate) struct State {
    process: CudaProcess,
    contexts: BTreeSet<usize>,
    current: Option<usize>,
    allocations: BTreeMap<u64, Allocation>,
    next: u64,
}

struct Allocation {
    ordinal: usize,
    id: u64,
    bytes: usize,
}

/// Runs on an initialised process.
pub(crate) fn with<T>(run: impl FnOnce(&mut State) -> Result<T, Code>) -> Result<T, Code> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    match state.as_mut() {
        Some(state) => run(state),
        None => Err(CudaError::NotInitialized.code()),
    }
}

/// Finds the driver and, by the environment, the MPS daemon.
pub(crate) fn init() -> Result<(), Code> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if state.is_none() {
        let environment = std::env::vars().collect();
        let process = CudaProcess::init(&Root::from_env(), &environment, Route::Usual);
        *state = Some(State {
            process: process.map_err(|error| told(&error))?,
            contexts: BTreeSet::new(),
            current: None,
            allocations: BTreeMap::new(),
            next: FIRST_ADDRESS,
        });
    }
    Ok(())
}

/// 1000 times the major version of CUDA and 10 times the minor one.
pub(crate) fn version() -> Result<c_int, Code> {
    let asked = Driver::connect(&Root::from_env())
        .and_then(|mut driver| driver.call(&Message::new("habits")))
        .map_err(|error| told(&error))?;
    let text = asked.get("cuda").unwrap_or_default();
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    Ok(parts.next().unwrap_or(0) * 1000 + parts.next().unwrap_or(0) * 10)
}

/// Gives a context up; with the last one the process takes its leave of the driver.
pub(crate) fn release(device: c_int) -> Result<(), Code> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(known) = state.as_mut() else {
        return Err(CudaError::NotInitialized.code());
    };
    let ordinal = known.ordinal(device)?;
    known.contexts.remove(&ordinal);
    if known.contexts.is_empty()
        && let Some(last) = state.take()
    {
        last.process.finish();
    }
    Ok(())
}

impl State {
    pub(crate) fn count(&self) -> Result<c_int, Code> {
        c_int::try_from(self.process.visible.len()).map_err(|_| CudaError::Unknown.code())
    }

    pub(crate) fn device(&self, ordinal: c_int) -> Result<c_int, Code> {
        self.ordinal(ordinal).map(|_| ordinal)
    }

    fn ordinal(&self, device: c_int) -> Result<usize, Code> {
        usize::try_from(device)
            .ok()
            .filter(|at| *at < self.process.visible.len())
            .ok_or(CudaError::InvalidDevice.code())
    }

    /// The 16 bytes that `GPU-...` or `MIG-...` spells.
    pub(crate) fn uuid(&self, device: c_int) -> Result<[u8; 16], Code> {
        let at = self.ordinal(device)?;
        let text = self.process.visible.get(at).map_or("", String::as_str);
        let digits: Vec<u8> = text
            .trim_start_matches("GPU-")
            .trim_start_matches("MIG-")
            .bytes()
            .filter_map(|byte| char::from(byte).to_digit(16))
            .filter_map(|digit| u8::try_from(digit).ok())
            .collect();
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |sum, digit| sum << 4 | digit);
        }
        Ok(bytes)
    }

    pub(crate) fn retain(&mut self, device: c_int) -> Result<usize, Code> {
        let ordinal = self.ordinal(device)?;
        self.process
            .context(ordinal)
            .map_err(|error| told(&error))?;
        self.contexts.insert(ordinal);
        Ok(ordinal + 1)
    }

    pub(crate) fn set_current(&mut self, context: usize) -> Result<(), Code> {
        let ordinal = context.checked_sub(1);
        if ordinal.is_some_and(|at| !self.contexts.contains(&at)) {
            return Err(CudaError::InvalidContext.code());
        }
        self.current = ordinal;
        Ok(())
    }

    fn current(&self) -> Result<usize, Code> {
        self.current.ok_or(CudaError::InvalidContext.code())
    }

    /// What earlier work came to.
    pub(crate) fn synchronize(&mut self) -> Result<(), Code> {
        self.memory().map(drop)
    }

    /// Free and total, bytes.
    pub(crate) fn memory(&mut self) -> Result<(usize, usize), Code> {
        let at = self.current()?;
        let view = self.process.memory(at).map_err(|error| told(&error))?;
        let bytes = |mib: u64| usize::try_from(mib).unwrap_or(usize::MAX >> 20) * MIB;
        Ok((bytes(view.free), bytes(view.total)))
    }

    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<u64, Code> {
        let ordinal = self.current()?;
        if bytes == 0 {
            return Err(CudaError::InvalidValue.code());
        }
        let mib = u64::try_from(bytes.div_ceil(MIB)).unwrap_or(u64::MAX);
        let answer = self.process.allocate(ordinal, mib);
        let (id, _) = answer.map_err(|error| told(&error))?;
        let address = self.next;
        self.next += mib << 20;
        let allocation = Allocation { ordinal, id, bytes };
        self.allocations.insert(address, allocation);
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), Code> {
        let gone = self.allocations.remove(&address);
        let gone = gone.ok_or(CudaError::InvalidValue.code())?;
        let answer = self.process.free(gone.ordinal, gone.id);
        answer.map(drop).map_err(|error| told(&error))
    }

    /// Writes to memory of ours; to any other it is refused, as the real library does
    /// before the card sees it.
    pub(crate) fn touch(&mut self, address: u64, bytes: usize) -> Result<(), Code> {
        let known = self.allocations.get(&address);
        if known.is_none_or(|known| bytes > known.bytes) {
            return Err(CudaError::InvalidValue.code());
        }
        self.synchronize()
    }

    pub(crate) fn launch(&mut self, stray: bool) -> Result<(), Code> {
        self.synchronize()?;
        if stray {
            self.process.fault().map_err(|error| told(&error))?;
        }
        Ok(())
    }
}

fn told(error: &CallError) -> Code {
    error.code()
}
