//! The pause between two attempts at a step that fails.

use backon::{BackoffBuilder as _, ExponentialBuilder};
use std::time::Duration;

/// After the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST: Duration = Duration::from_mins(1);

/// The pause after a failure, with that many failures before it.
pub(super) fn after(failures: u32) -> Duration {
    let failures = usize::try_from(failures.min(16)).unwrap_or(0);
    let mut pauses = ExponentialBuilder::new()
        .with_min_delay(FIRST)
        .with_max_delay(LONGEST)
        .without_max_times()
        .build();
    pauses.nth(failures).unwrap_or(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_a_minute() {
        let pauses: Vec<u128> = (0..9).map(|failures| after(failures).as_millis()).collect();
        let expected = [
            500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000,
        ];
        assert_eq!(pauses, expected);
        assert_eq!(after(u32::MAX), LONGEST);
    }
}
