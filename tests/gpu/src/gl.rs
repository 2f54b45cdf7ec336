//! A headless OpenGL context by EGL, as far as a program needs it that takes memory of a card
//! without CUDA.
//!
//! Owns the context until the process ends. In: MiB. Out: what was made, or what was refused.
#![allow(unsafe_code, reason = "the C ABI of EGL and OpenGL has no safe face")]

use crate::library::{Library, api};
use anyhow::{Context as _, bail, ensure};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;

/// `EGL_CUDA_DEVICE_NV`: a device of NVIDIA's says its CUDA ordinal.
const CUDA_DEVICE: c_int = 0x323A;
/// `EGL_PLATFORM_DEVICE_EXT`.
const PLATFORM_DEVICE: c_uint = 0x313F;
/// `EGL_OPENGL_API`.
const OPENGL: c_uint = 0x30A2;
/// `EGL_SURFACE_TYPE`, `EGL_PBUFFER_BIT`, `EGL_RENDERABLE_TYPE`, `EGL_OPENGL_BIT`, `EGL_NONE`.
const ATTRIBUTES: [c_int; 5] = [0x3033, 1, 0x3040, 8, 0x3038];
/// `GL_ARRAY_BUFFER`, `GL_STATIC_DRAW`, `GL_R8`, `GL_RED`, `GL_UNSIGNED_BYTE`.
const ARRAY_BUFFER: c_uint = 0x8892;
const STATIC_DRAW: c_uint = 0x88E4;
const R8: c_uint = 0x8229;
const RED: c_uint = 0x1903;
const UNSIGNED_BYTE: c_uint = 0x1401;
/// One buffer; several make up more.
const BUFFER_MIB: usize = 256;

api! {
    initialize: c"eglInitialize" fn(usize, *mut c_int, *mut c_int) -> c_uint;
    bind: c"eglBindAPI" fn(c_uint) -> c_uint;
    choose: c"eglChooseConfig" fn(usize, *const c_int, *mut usize, c_int, *mut c_int) -> c_uint;
    create: c"eglCreateContext" fn(usize, usize, usize, *const c_int) -> usize;
    make_current: c"eglMakeCurrent" fn(usize, usize, usize, usize) -> c_uint;
    devices: c"eglQueryDevicesEXT" fn(c_int, *mut usize, *mut c_int) -> c_uint;
    attribute: c"eglQueryDeviceAttribEXT" fn(usize, c_int, *mut isize) -> c_uint;
    display: c"eglGetPlatformDisplayEXT" fn(c_uint, usize, *const c_int) -> usize;
    generate: c"glGenBuffers" fn(c_int, *mut c_uint);
    bind_buffer: c"glBindBuffer" fn(c_uint, c_uint);
    buffer_data: c"glBufferData" fn(c_uint, isize, *const c_void, c_uint);
    clear_buffer: c"glClearBufferData" fn(c_uint, c_uint, c_uint, c_uint, *const c_void);
    finish: c"glFinish" fn();
    error: c"glGetError" fn() -> c_uint;
}

/// A current context on a card of NVIDIA's.
#[derive(Debug)]
pub(crate) struct Graphics {
    api: Api,
}

/// Calls. The results are the caller's to judge.
macro_rules! call {
    ($api:expr, $field:ident($($argument:expr),*)) => {
        // SAFETY: the prototype is the header's; every pointer is to locals of the type and the
        // number that the call names, or null where the API takes null.
        unsafe { ($api.$field)($($argument),*) }
    };
}

impl Graphics {
    /// A context without a window on NVIDIA's first device.
    pub(crate) fn begin(library: &Path) -> anyhow::Result<Self> {
        let library = Library::open(library)?;
        let pointer = library.symbol(c"eglGetProcAddress")?;
        // SAFETY: the symbol is EGL's function of this name, and this is its prototype.
        let by_name = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *mut c_void>(
                pointer,
            )
        };
        let api = Api::load(|name| {
            library.symbol(name).or_else(|_| {
                // SAFETY: the name has an end.
                let found = unsafe { by_name(name.as_ptr()) };
                ensure!(!found.is_null(), "EGL has no {}", name.to_string_lossy());
                Ok(found)
            })
        })?;
        let display = call!(api, display(PLATFORM_DEVICE, device(&api)?, ptr::null()));
        ensure!(display != 0, "no display on the device");
        let (mut major, mut minor) = (0, 0);
        ensure!(
            call!(api, initialize(display, &raw mut major, &raw mut minor)) != 0,
            "EGL does not start"
        );
        ensure!(call!(api, bind(OPENGL)) != 0, "EGL has no OpenGL");
        let (mut config, mut count) = (0, 0);
        let chosen = call!(
            api,
            choose(
                display,
                ATTRIBUTES.as_ptr(),
                &raw mut config,
                1,
                &raw mut count
            )
        );
        ensure!(chosen != 0 && count > 0, "EGL has no configuration");
        let context = call!(api, create(display, config, 0, ptr::null()));
        ensure!(context != 0, "EGL makes no context");
        ensure!(
            call!(api, make_current(display, 0, 0, context)) != 0,
            "the context cannot be used without a surface"
        );
        Ok(Self { api })
    }

    /// Takes memory of the card and writes to all of it.
    pub(crate) fn take(&self, mib: usize) -> anyhow::Result<()> {
        let mut left = mib;
        while left > 0 {
            let part = left.min(BUFFER_MIB);
            let mut buffer = 0;
            call!(self.api, generate(1, &raw mut buffer));
            call!(self.api, bind_buffer(ARRAY_BUFFER, buffer));
            let bytes = isize::try_from(part << 20).context("too much")?;
            call!(
                self.api,
                buffer_data(ARRAY_BUFFER, bytes, ptr::null(), STATIC_DRAW)
            );
            call!(
                self.api,
                clear_buffer(ARRAY_BUFFER, R8, RED, UNSIGNED_BYTE, ptr::null())
            );
            call!(self.api, finish());
            match call!(self.api, error()) {
                0 => left -= part,
                code => bail!("OpenGL's error {code:#x} with {} MiB taken", mib - left),
            }
        }
        Ok(())
    }
}

/// NVIDIA's first device: the others have no CUDA ordinal.
fn device(api: &Api) -> anyhow::Result<usize> {
    let mut devices = [0; 16];
    let mut count = 0;
    let told = call!(api, devices(16, devices.as_mut_ptr(), &raw mut count));
    ensure!(told != 0, "EGL tells no devices");
    let known = devices.iter().take(usize::try_from(count).unwrap_or(0));
    for device in known {
        let mut ordinal = 0;
        if call!(api, attribute(*device, CUDA_DEVICE, &raw mut ordinal)) != 0 {
            return Ok(*device);
        }
    }
    bail!("EGL has no device of NVIDIA's")
}
