//! The supervisor's tasks pause between two tries.

use backon::ExponentialBuilder;
use std::time::Duration;

/// Pauses that double with each failure, from the shortest to the longest, without jitter: one
/// supervisor drives one driver, which nothing else asks at the same time.
pub(super) fn backoff((shortest, longest): (Duration, Duration)) -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(shortest)
        .with_max_delay(longest)
        .without_max_times()
}
