//! Init, versions, error texts.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::abi::{NOT_FOUND, Out, Return, code};
use crate::link;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Return {
    crate::link::enters("nvmlInit_v2");
    code(link::open())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> Return {
    crate::link::enters("nvmlInit");
    code(link::open())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Return {
    crate::link::enters("nvmlInitWithFlags");
    code(link::open())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Return {
    crate::link::enters("nvmlShutdown");
    code(link::close())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: Return) -> *const c_char {
    let text: &CStr = match result {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        15 => c"GPU is lost",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) -> Return {
    crate::link::enters("nvmlSystemGetDriverVersion");
    code(link::ask("machine").and_then(|m| version.put_text(&m.text("driver"), length)))
}

/// CUDA's major version and the driver's, as the real library composes it.
#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) -> Return {
    crate::link::enters("nvmlSystemGetNVMLVersion");
    code(link::ask("machine").and_then(|m| {
        let cuda = m.text("cuda");
        let major = cuda.split('.').next().unwrap_or_default();
        version.put_text(&format!("{major}.{}", m.text("driver")), length)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> Return {
    crate::link::enters("nvmlSystemGetCudaDriverVersion");
    code(link::ask("machine").and_then(|m| {
        let cuda = m.text("cuda");
        let mut parts = cuda.split('.').map(|p| p.parse::<c_int>().unwrap_or(0));
        version.put(parts.next().unwrap_or(0) * 1000 + parts.next().unwrap_or(0) * 10)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> Return {
    crate::link::enters("nvmlSystemGetCudaDriverVersion_v2");
    nvmlSystemGetCudaDriverVersion(version)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) -> Return {
    crate::link::enters("nvmlSystemGetProcessName");
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = command.split(|b| *b == 0).next().unwrap_or_default();
    if first.is_empty() {
        return NOT_FOUND;
    }
    code(name.put_text(&String::from_utf8_lossy(first), length))
}
