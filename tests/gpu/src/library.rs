//! Libraries of NVIDIA's that are loaded at run time, by name, so that nothing of theirs is
//! needed to build this.
#![allow(unsafe_code, reason = "the C ABI has no safe face")]

use anyhow::{anyhow, bail};
use std::ffi::{CStr, CString, c_void};
use std::path::Path;

/// Opened for the life of the process: the real ones do not like to be closed.
#[derive(Debug)]
pub(crate) struct Library(*mut c_void);

impl Library {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = CString::new(path.to_string_lossy().as_bytes())?;
        // SAFETY: a text with an end; the library's own start-up code is NVIDIA's.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() {
            bail!("{} cannot be loaded", path.display());
        }
        Ok(Self(handle))
    }

    pub(crate) fn symbol(&self, name: &CStr) -> anyhow::Result<*mut c_void> {
        // SAFETY: the handle is open, the name has an end.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if found.is_null() {
            return Err(anyhow!("the library has no {}", name.to_string_lossy()));
        }
        Ok(found)
    }
}

/// A struct of functions, found one by one by `find`, which answers a pointer to code.
macro_rules! api {
    ($($field:ident: $symbol:literal fn($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions, by the names under which the library exports them.
        #[derive(Debug)]
        struct Api {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl Api {
            fn load(find: impl Fn(&std::ffi::CStr) -> anyhow::Result<*mut std::ffi::c_void>) -> anyhow::Result<Self> {
                Ok(Self {
                    $($field: {
                        let found = find($symbol)?;
                        // SAFETY: the symbol is the library's function of this name, and the
                        // type is its prototype in the header; both are pointers to code.
                        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($argument),*) $(-> $answer)?>(found) }
                    },)*
                })
            }
        }
    };
}

pub(crate) use api;
