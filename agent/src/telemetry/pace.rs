//! When to try again.
//!
//! In: failures. Out: pauses, spread at random.

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::time::Duration;

/// Pauses that double with each failure, each shortened at random by up to a half: agents
/// of many nodes that lost the same peer must not come back as one.
#[derive(Debug)]
pub struct Backoff {
    builder: ExponentialBuilder,
    pauses: ExponentialBackoff,
    most: Duration,
}

impl Backoff {
    /// From `first` up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        // `backon` lengthens a pause by up to its own length: half of each is the lower bound.
        let builder = ExponentialBuilder::new()
            .with_min_delay(first / 2)
            .with_max_delay(most / 2)
            .with_jitter()
            .without_max_times();
        Self {
            builder,
            pauses: builder.build(),
            most,
        }
    }

    /// The pause after one more failure.
    pub fn fail(&mut self) -> Duration {
        self.pauses.next().unwrap_or(self.most)
    }

    /// It worked: the next failure is the first again.
    pub fn succeed(&mut self) {
        self.pauses = self.builder.build();
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
        for most in [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            let pause = backoff.fail().as_millis();
            assert!((most / 2..=most).contains(&pause), "{pause} of {most} ms");
        }
        let late: Vec<Duration> = (0..100).map(|_| backoff.fail()).collect();
        let bounds = Duration::from_secs(15)..=Duration::from_secs(30);
        assert!(late.iter().all(|pause| bounds.contains(pause)), "{late:?}");
        assert!(late.iter().any(|pause| *pause != late[0]), "all are alike");
        backoff.succeed();
        assert!(backoff.fail() <= Duration::from_millis(250));
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
