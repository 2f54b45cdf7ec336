//! EGL and OpenGL, as far as a program needs them that takes memory by a headless graphics
//! context: one device, one context, buffers whose memory is the simulated card's.
//!
//! The handles mean nothing; a process has one graphics connection for each buffer.

use crate::state::Code;
use sim_gpu::client::Driver;
use sim_gpu::client::process::hold_outside_cuda;
use sim_gpu::paths::Root;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

/// `EGL_TRUE`.
const TRUE: c_uint = 1;
/// `GL_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_uint = 0x0505;

static HELD: Mutex<(Vec<Driver>, c_uint)> = Mutex::new((Vec::new(), 0));

#[unsafe(no_mangle)]
extern "C" fn eglQueryDevicesEXT(_max: c_int, devices: *mut usize, count: *mut c_int) -> Code {
    crate::put(devices, Ok(1));
    crate::put(count, Ok(1));
    TRUE
}

#[unsafe(no_mangle)]
extern "C" fn eglQueryDeviceAttribEXT(_device: usize, _name: c_int, value: *mut isize) -> Code {
    crate::put(value, Ok(0));
    TRUE
}

#[unsafe(no_mangle)]
extern "C" fn eglGetPlatformDisplayEXT(
    _platform: c_uint,
    _device: usize,
    _attributes: *const c_int,
) -> usize {
    1
}

#[unsafe(no_mangle)]
extern "C" fn eglInitialize(_display: usize, major: *mut c_int, minor: *mut c_int) -> Code {
    crate::put(major, Ok(1));
    crate::put(minor, Ok(5));
    TRUE
}

#[unsafe(no_mangle)]
extern "C" fn eglBindAPI(_api: c_uint) -> Code {
    TRUE
}

#[unsafe(no_mangle)]
extern "C" fn eglChooseConfig(
    _display: usize,
    _attributes: *const c_int,
    config: *mut usize,
    _room: c_int,
    count: *mut c_int,
) -> Code {
    crate::put(config, Ok(1));
    crate::put(count, Ok(1));
    TRUE
}

/// The context itself, which has some MiB of its own.
#[unsafe(no_mangle)]
extern "C" fn eglCreateContext(
    _display: usize,
    _config: usize,
    _share: usize,
    _attributes: *const c_int,
) -> usize {
    usize::from(hold(0))
}

#[unsafe(no_mangle)]
extern "C" fn eglMakeCurrent(_display: usize, _draw: usize, _read: usize, _context: usize) -> Code {
    TRUE
}

/// None: whatever there is, is a symbol of this library.
#[unsafe(no_mangle)]
extern "C" fn eglGetProcAddress(_name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn glGenBuffers(_count: c_int, buffer: *mut c_uint) {
    crate::put(buffer, Ok(1));
}

#[unsafe(no_mangle)]
extern "C" fn glBindBuffer(_target: c_uint, _buffer: c_uint) {}

#[unsafe(no_mangle)]
extern "C" fn glBufferData(_target: c_uint, bytes: isize, _data: *const c_void, _usage: c_uint) {
    hold(u64::try_from(bytes).unwrap_or(0).div_ceil(1 << 20));
}

#[unsafe(no_mangle)]
extern "C" fn glClearBufferData(
    _target: c_uint,
    _internal: c_uint,
    _format: c_uint,
    _kind: c_uint,
    _data: *const c_void,
) {
}

#[unsafe(no_mangle)]
extern "C" fn glFinish() {}

/// The last error, once.
#[unsafe(no_mangle)]
extern "C" fn glGetError() -> c_uint {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut held.1)
}

/// Takes memory for as long as the process lives; whether it was there.
fn hold(mib: u64) -> bool {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    match hold_outside_cuda(&Root::from_env(), "graphics", mib) {
        Ok((driver, _)) => {
            held.0.push(driver);
            true
        }
        Err(_) => {
            held.1 = OUT_OF_MEMORY;
            false
        }
    }
}
