//! When to try again.
//!
//! Pure but for [`chance`]. In: failures, a random number. Out: pauses.

use ring::rand::{SecureRandom as _, SystemRandom};
use std::time::Duration;

/// Pauses that double with each failure, each shortened by chance by up to a half: agents
/// of many nodes that lost the same peer must not come back as one.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// From `first` up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            failures: 0,
        }
    }

    /// The pause after one more failure; `chance` in [0, 1).
    pub fn fail(&mut self, chance: f64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let pause = self.first.saturating_mul(factor).min(self.most);
        pause.mul_f64(1.0 - chance.clamp(0.0, 1.0) / 2.0)
    }

    /// It worked.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }
}

/// `pause`, longer or shorter by up to a fifth.
pub fn around(pause: Duration, chance: f64) -> Duration {
    pause.mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0))
}

/// A number in [0, 1). One half on a machine without randomness: only the spreading of
/// many agents suffers.
pub fn chance() -> f64 {
    let mut bytes = [0; 4];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 0.5,
    }
}

/// Sixteen hexadecimal digits that no other agent has.
pub fn instance() -> String {
    let mut bytes = [0; 8];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        return format!("pid{}", std::process::id());
    }
    format!("{:016x}", u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_most_and_start_again_after_success() {
        let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(30));
        let millis = |pause: Duration| pause.as_millis();
        let pauses: Vec<u128> = (0..9).map(|_| millis(backoff.fail(0.0))).collect();
        assert_eq!(
            pauses,
            [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
        );
        for _ in 0..100 {
            backoff.fail(0.0);
        }
        assert_eq!(millis(backoff.fail(0.0)), 30_000);
        assert_eq!(millis(backoff.fail(1.0)), 15_000);
        backoff.succeed();
        assert_eq!(millis(backoff.fail(0.5)), 187);
    }

    #[test]
    fn chance_is_within_its_bounds_and_not_always_the_same() {
        let drawn: Vec<f64> = (0..100).map(|_| chance()).collect();
        assert!(drawn.iter().all(|c| (0.0..1.0).contains(c)));
        assert!(drawn.iter().any(|c| (c - drawn[0]).abs() > 0.001));
        assert_ne!(instance(), instance());
        let minute = Duration::from_mins(1);
        assert_eq!(around(minute, 0.0), Duration::from_secs(48));
        assert_eq!(around(minute, 1.0), Duration::from_secs(72));
    }
}
