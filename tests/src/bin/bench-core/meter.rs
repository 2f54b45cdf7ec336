//! Time and memory: an allocator that counts, medians, fitted exponents.
#![allow(clippy::cast_precision_loss)] // Durations and counts far below 2^52.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The system's allocator, and what is allocated through it.
pub(crate) struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static TOTAL: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; counting touches no memory of
// the caller's.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        TOTAL.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes that are allocated now.
pub(crate) fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Bytes that were ever allocated.
pub(crate) fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// The process's resident memory in KiB, now and at most, as the kernel counts it.
pub(crate) fn resident() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// The middle, the least and the most of some measurements.
pub(crate) fn spread(times: &[Duration]) -> (Duration, Duration, Duration) {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    (
        at(sorted.len() / 2),
        at(0),
        at(sorted.len().saturating_sub(1)),
    )
}

/// The exponent with which `y` grows with `x`: the slope of a line through the logarithms.
pub(crate) fn exponent(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |value: fn(&(f64, f64)) -> f64| logs.iter().map(value).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let over: f64 = logs.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let under: f64 = logs.iter().map(|point| (point.0 - x).powi(2)).sum();
    over / under
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_square_is_two() {
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0].map(|x| (x, 3.0 * x * x)).to_vec();
        assert!((exponent(&points) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn the_middle_is_not_moved_by_one_slow_run() {
        let times = [5, 1, 900, 2, 3].map(Duration::from_millis);
        assert_eq!(
            spread(&times),
            (
                Duration::from_millis(3),
                Duration::from_millis(1),
                Duration::from_millis(900)
            )
        );
    }
}
