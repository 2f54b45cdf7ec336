//! What a run costs: memory by an allocator that counts, time by the thread's own clock, which
//! stops while the machine does something else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The system's allocator, and what is allocated through it.
pub(crate) struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; counting touches no memory of
// the caller's. `realloc` is the trait's own: an `alloc`, a copy, a `dealloc`.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What one run took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Bytes that were allocated at once, at most, beside what was before.
    pub(crate) bytes: usize,
    /// By the wall; never less than by the thread's own clock.
    pub(crate) time: Duration,
}

/// Runs it.
pub(crate) fn measured(run: impl FnOnce()) -> Cost {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    run();
    Cost {
        bytes: PEAK.load(Ordering::Relaxed).saturating_sub(before),
        time: start.elapsed(),
    }
}

/// How long this thread has computed.
pub(crate) fn computed() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        now.tv_sec.try_into().unwrap_or(0),
        now.tv_nsec.try_into().unwrap_or(0),
    )
}
