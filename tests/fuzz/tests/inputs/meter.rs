//! What a run costs: memory by an allocator that counts for each thread, time by the thread's own
//! clock, which stops while the machine does something else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The system's allocator, and what each thread allocates through it.
pub(crate) struct Counting;

thread_local! {
    // Constant and without a destructor: neither is allocated.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged; counting touches no memory of
// the caller's. `realloc` is the trait's own: an `alloc`, a copy, a `dealloc`.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Below zero where another thread frees what this one has allocated, and back.
        let live = LIVE.get().wrapping_add(layout.size());
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
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
    // Nothing that is freed meanwhile, but was allocated before, takes it below zero.
    LIVE.set(usize::MAX / 2);
    PEAK.set(usize::MAX / 2);
    let start = Instant::now();
    run();
    Cost {
        bytes: PEAK.get() - usize::MAX / 2,
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
