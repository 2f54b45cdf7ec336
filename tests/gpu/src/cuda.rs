//! The CUDA driver API, as far as a program needs it that takes memory and breaks.
//!
//! Owns the library, loaded at run time by its path, so that nothing of CUDA is needed to
//! build this. In: calls. Out: values, or CUDA's code. One card and its primary context.
#![allow(unsafe_code, reason = "the C ABI of libcuda has no safe face")]

use crate::library::{Library, api};
use anyhow::Context as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::path::Path;
use std::ptr;

/// A `CUresult` that is not `CUDA_SUCCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// `cuMemAllocManaged`'s `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: c_uint = 1;

/// Two kernels: one writes to address 0 and takes its process's contexts with it, the other
/// does nothing. Compiled by the driver itself, for whatever card it has.
const KERNELS: &CStr = c"
.version 6.3
.target sm_75
.address_size 64
.visible .entry stray_write()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 0;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
.visible .entry nothing()
{
    ret;
}
";

api! {
    init: c"cuInit" fn(c_uint) -> u32;
    version: c"cuDriverGetVersion" fn(*mut c_int) -> u32;
    error_name: c"cuGetErrorName" fn(u32, *mut *const c_char) -> u32;
    device: c"cuDeviceGet" fn(*mut c_int, c_int) -> u32;
    uuid: c"cuDeviceGetUuid_v2" fn(*mut [u8; 16], c_int) -> u32;
    retain: c"cuDevicePrimaryCtxRetain" fn(*mut usize, c_int) -> u32;
    release: c"cuDevicePrimaryCtxRelease_v2" fn(c_int) -> u32;
    set_current: c"cuCtxSetCurrent" fn(usize) -> u32;
    synchronize: c"cuCtxSynchronize" fn() -> u32;
    memory: c"cuMemGetInfo_v2" fn(*mut usize, *mut usize) -> u32;
    allocate: c"cuMemAlloc_v2" fn(*mut u64, usize) -> u32;
    allocate_managed: c"cuMemAllocManaged" fn(*mut u64, usize, c_uint) -> u32;
    free: c"cuMemFree_v2" fn(u64) -> u32;
    set: c"cuMemsetD8_v2" fn(u64, u8, usize) -> u32;
    load_module: c"cuModuleLoadData" fn(*mut usize, *const c_void) -> u32;
    function: c"cuModuleGetFunction" fn(*mut usize, usize, *const c_char) -> u32;
    launch: c"cuLaunchKernel" fn(usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void, *mut *mut c_void) -> u32;
}

/// A library that is loaded and not yet initialized.
#[derive(Debug)]
pub(crate) struct Cuda {
    api: Api,
}

/// The first visible card, with its context current.
#[derive(Debug)]
pub(crate) struct Card<'a> {
    api: &'a Api,
    device: c_int,
}

/// Calls, and turns a code into an error.
macro_rules! call {
    ($api:expr, $field:ident($($argument:expr),*)) => {{
        // SAFETY: the prototype is the library's; every pointer is to a local of the type
        // that it writes, which outlives the call, or comes from the library itself.
        match unsafe { ($api.$field)($($argument),*) } {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }};
}

impl Cuda {
    /// Loads the library of this path or name.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let library = Library::open(path)?;
        let api = Api::load(|name| library.symbol(name))
            .context("not a libcuda that this program knows")?;
        Ok(Self { api })
    }

    /// CUDA's version times 1000.
    pub(crate) fn version(&self) -> Result<i32, Code> {
        let mut version = 0;
        call!(self.api, version(&raw mut version))?;
        Ok(version)
    }

    /// `CUDA_ERROR_...`.
    pub(crate) fn name(&self, code: Code) -> String {
        let mut name = ptr::null();
        let told = call!(self.api, error_name(code.0, &raw mut name));
        if told.is_err() || name.is_null() {
            return format!("code {}", code.0);
        }
        // SAFETY: the library answered with a text of its own, which it never frees.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }

    /// `cuInit`, and a context on the first card that is visible.
    pub(crate) fn begin(&self) -> Result<Card<'_>, Code> {
        let api = &self.api;
        call!(api, init(0))?;
        let mut device = 0;
        call!(api, device(&raw mut device, 0))?;
        let mut context = 0;
        call!(api, retain(&raw mut context, device))?;
        call!(api, set_current(context))?;
        Ok(Card { api, device })
    }
}

impl Card<'_> {
    /// As NVML and `nvidia-smi` spell it.
    pub(crate) fn uuid(&self) -> Result<String, Code> {
        let mut bytes = [0; 16];
        call!(self.api, uuid(&raw mut bytes, self.device))?;
        let mut text = String::from("GPU");
        for (at, byte) in bytes.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&at) {
                text.push('-');
            }
            let _ = write!(text, "{byte:02x}");
        }
        Ok(text)
    }

    /// Total and free, bytes.
    pub(crate) fn memory(&self) -> Result<(usize, usize), Code> {
        let (mut free, mut total) = (0, 0);
        call!(self.api, memory(&raw mut free, &raw mut total))?;
        Ok((total, free))
    }

    /// Takes memory, and writes to all of it.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Code> {
        let mut address = 0;
        call!(self.api, allocate(&raw mut address, bytes))?;
        self.touch(address, bytes)?;
        Ok(address)
    }

    /// Takes managed memory, and writes to all of it, so that it is on the card.
    pub(crate) fn allocate_managed(&self, bytes: usize) -> Result<u64, Code> {
        let mut address = 0;
        call!(
            self.api,
            allocate_managed(&raw mut address, bytes, ATTACH_GLOBAL)
        )?;
        self.touch(address, bytes)?;
        Ok(address)
    }

    /// Gives memory back.
    pub(crate) fn free(&self, address: u64) -> Result<(), Code> {
        call!(self.api, free(address))
    }

    /// Writes, and waits until it is done.
    pub(crate) fn touch(&self, address: u64, bytes: usize) -> Result<(), Code> {
        call!(self.api, set(address, 0xa5, bytes))?;
        call!(self.api, synchronize())
    }

    /// Waits until all work is done.
    pub(crate) fn synchronize(&self) -> Result<(), Code> {
        call!(self.api, synchronize())
    }

    /// Lets the card run a kernel; `stray`: one that writes where it may not.
    pub(crate) fn run(&self, stray: bool) -> Result<(), Code> {
        let (mut module, mut function) = (0, 0);
        call!(
            self.api,
            load_module(&raw mut module, KERNELS.as_ptr().cast())
        )?;
        let name = if stray { c"stray_write" } else { c"nothing" };
        call!(self.api, function(&raw mut function, module, name.as_ptr()))?;
        let none = ptr::null_mut();
        call!(
            self.api,
            launch(function, 1, 1, 1, 1, 1, 1, 0, 0, none, none)
        )?;
        call!(self.api, synchronize())
    }

    /// Gives the context up, as a process does that ends well.
    pub(crate) fn end(self) -> Result<(), Code> {
        call!(self.api, release(self.device))
    }
}
