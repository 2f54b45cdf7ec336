//! `libcuda.so.1` for the simulated driver: as much of the driver API as a program needs
//! that takes memory, gives it back and breaks, in the order of a call's way:
//!
//! - `state`: the process, its contexts and allocations;
//! - `egl`: a graphics context, for programs that take memory without CUDA;
//! - this file: the C ABI, one function of NVIDIA's each.
//!
//! So that a program written against the real library, loaded at run time, is the one that
//! is tried here. What it leaves out answers `CUDA_ERROR_NOT_SUPPORTED`.

// The C ABI is this crate's whole purpose; each block says why it holds.
#![allow(unsafe_code)]
// The names are NVIDIA's.
#![allow(non_snake_case)]

mod egl;
mod state;

use state::{Code, NOT_SUPPORTED, SUCCESS, with};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: Code = 1;

/// Writes an answer where the caller wants it.
fn put<T>(place: *mut T, answer: Result<T, Code>) -> Code {
    match answer {
        Ok(_) if place.is_null() => INVALID_VALUE,
        Ok(value) => {
            // SAFETY: not null, and the caller vouches for a place of this type, as with
            // the real library.
            unsafe { place.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}

fn code(answer: Result<(), Code>) -> Code {
    answer.err().unwrap_or(SUCCESS)
}

/// `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> Code {
    code(state::init())
}

/// `cuDriverGetVersion`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    put(version, state::version())
}

/// `cuGetErrorName`.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: Code, name: *mut *const c_char) -> Code {
    let text = match error {
        SUCCESS => "CUDA_SUCCESS",
        NOT_SUPPORTED => "CUDA_ERROR_NOT_SUPPORTED",
        other => sim_gpu::cuda::CudaError::name_of(other),
    };
    // As with the real one, the text lives as long as the process.
    let text = CString::new(text).map(CString::into_raw);
    put(
        name,
        text.map(<*mut c_char>::cast_const)
            .map_err(|_| INVALID_VALUE),
    )
}

/// `cuDeviceGetCount`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    put(count, with(|state| state.count()))
}

/// `cuDeviceGet`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Code {
    put(device, with(|state| state.device(ordinal)))
}

/// `cuDeviceGetUuid_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> Code {
    put(uuid, with(|state| state.uuid(device)))
}

/// `cuDevicePrimaryCtxRetain`. A context's handle is its device's number plus one.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Code {
    put(context, with(|state| state.retain(device)))
}

/// `cuDevicePrimaryCtxRelease_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    code(state::release(device))
}

/// `cuCtxSetCurrent`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Code {
    code(with(|state| state.set_current(context)))
}

/// `cuCtxSynchronize`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Code {
    code(with(state::State::synchronize))
}

/// `cuMemGetInfo_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    let answer = with(state::State::memory);
    match put(free, answer.map(|(free, _)| free)) {
        SUCCESS => put(total, answer.map(|(_, total)| total)),
        refused => refused,
    }
}

/// `cuMemAlloc_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> Code {
    put(pointer, with(|state| state.allocate(bytes)))
}

/// `cuMemAllocManaged`: managed memory is not simulated.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocManaged(_pointer: *mut u64, _bytes: usize, _flags: c_uint) -> Code {
    NOT_SUPPORTED
}

/// `cuMemFree_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> Code {
    code(with(|state| state.free(pointer)))
}

/// `cuMemsetD8_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(pointer: u64, _value: u8, bytes: usize) -> Code {
    code(with(|state| state.touch(pointer, bytes)))
}

/// `cuModuleLoadData`. There is one module.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(module: *mut usize, _image: *const c_void) -> Code {
    put(module, with(|state| state.synchronize().map(|()| 1)))
}

/// `cuModuleGetFunction`. A kernel whose name begins with `stray` writes where it may not.
///
/// # Safety
/// The name is null or a text with an end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut usize,
    _module: usize,
    name: *const c_char,
) -> Code {
    if name.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and the caller vouches for a text with an end, as with the real library.
    let name = unsafe { CStr::from_ptr(name) };
    put(
        function,
        Ok(usize::from(name.to_bytes().starts_with(b"stray"))),
    )
}

/// `cuLaunchKernel`. Returns at once; what goes wrong shows at the next call.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: usize,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    _stream: usize,
    _parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Code {
    code(with(|state| state.launch(function == 1)))
}
