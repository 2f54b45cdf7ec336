//! A wall clock that a test sets, for one process: loaded before the C library, it shows the
//! machine's time plus the number of seconds in a file.
//!
//! In: `ALIQUOT_SIM_CLOCK`, the path of a file of eight bytes, a signed number in the
//! machine's order; it may change at any time. Out: `clock_gettime` of `CLOCK_REALTIME`.
//! Every other clock is the machine's. Without the file, so is this one.

// The C library's function is replaced: that is this crate's whole purpose.
#![allow(unsafe_code)]

use libc::{c_int, clockid_t, timespec};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

/// Bytes of the file.
const SIZE: usize = size_of::<i64>();

static FILE: AtomicPtr<AtomicI64> = AtomicPtr::new(ptr::null_mut());
static OPENED: Once = Once::new();

/// How much later it is than the machine says, in seconds.
fn ahead() -> i64 {
    OPENED.call_once(|| FILE.store(open(), Ordering::Release));
    let file = FILE.load(Ordering::Acquire);
    if file.is_null() {
        return 0;
    }
    // SAFETY: mapped below for the life of the process, of that size, aligned to a page.
    unsafe { &*file }.load(Ordering::Relaxed)
}

/// The file in memory; null where there is none.
fn open() -> *mut AtomicI64 {
    // SAFETY: both texts end with a zero byte; what `getenv` answers is not kept; a failure to open
    // or map the file is visible in its result. The C library's own functions are called because
    // Rust's could ask for the time.
    unsafe {
        let path = libc::getenv(c"ALIQUOT_SIM_CLOCK".as_ptr());
        if path.is_null() {
            return ptr::null_mut();
        }
        let file = libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return ptr::null_mut();
        }
        let mapped = libc::mmap(
            ptr::null_mut(),
            SIZE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file,
            0,
        );
        libc::close(file);
        if mapped == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        mapped.cast()
    }
}

/// As the C library's, but for the step.
///
/// # Safety
/// `time` must be null or point to a `timespec` that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the kernel judges both, and writes only where the caller lets it.
    let answer = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    if answer != 0 {
        return -1;
    }
    if clock == libc::CLOCK_REALTIME && !time.is_null() {
        // SAFETY: the kernel has written there.
        let time = unsafe { &mut *time };
        time.tv_sec = time.tv_sec.saturating_add(ahead());
    }
    0
}
