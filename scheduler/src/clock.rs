//! The machine's clock, and the core's time: milliseconds since 1970, as stamps on objects
//! are, that never jump.
//!
//! A step of the machine's clock must not end all pauses, protections and graces at once, nor delay
//! them until the clock is where it was: the difference is corrected at a tenth of real time.

use jiff::Timestamp;
use scheduler_core::units::Time;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The rate of correction, as a divisor.
const SLEW: u64 = 10;

/// What the machine's clock shows. All stamps of one scheduler are read here, so that a
/// simulation can say what time it is.
#[derive(Clone)]
pub struct Wall(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Wall {
    /// The machine's own.
    pub fn machine() -> Self {
        Self::reads(Timestamp::now)
    }

    /// Another one.
    pub fn reads(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }

    /// In whole seconds, as Kubernetes keeps it.
    pub(crate) fn second(&self) -> Timestamp {
        Timestamp::from_second(self.now().as_second()).unwrap_or_default()
    }

    /// Microseconds since 1970.
    fn micros(&self) -> u64 {
        u64::try_from(self.now().as_microsecond()).unwrap_or_default()
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wall({})", self.now())
    }
}

/// Time by the machine's clock at its start, and on from there.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    wall: Wall,
    /// Microseconds since 1970.
    told: u64,
    at: Instant,
}

impl Clock {
    /// Shows what the machine's clock shows now.
    pub(crate) fn start(wall: Wall) -> Self {
        Self {
            told: wall.micros(),
            at: Instant::now(),
            wall,
        }
    }

    /// Never earlier than before.
    pub(crate) fn now(&mut self) -> Time {
        self.read(Instant::now(), self.wall.micros())
    }

    fn read(&mut self, at: Instant, wall: u64) -> Time {
        let elapsed = micros(at.saturating_duration_since(self.at));
        let even = self.told.saturating_add(elapsed);
        let most = elapsed / SLEW;
        self.told = wall.clamp(even.saturating_sub(most), even.saturating_add(most));
        self.at = self.at.max(at);
        Time(self.told / 1000)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    #[test]
    fn a_step_of_the_clock_either_way_is_made_good_at_a_tenth_of_the_pace_of_time() {
        for (step, tenth) in [(HOUR, 11_000), (0, 10_000), (HOUR.wrapping_neg(), 9_000)] {
            let start = Instant::now();
            let begin = 100 * HOUR;
            let mut clock = Clock {
                wall: Wall::machine(),
                told: begin,
                at: start,
            };
            let mut last = Time(0);
            // However often it is read.
            for tick in 1..=1000_u64 {
                let elapsed = tick * 10_000;
                let wall = (begin + elapsed).wrapping_add(step);
                let now = clock.read(start + Duration::from_micros(elapsed), wall);
                assert!(now >= last);
                last = now;
            }
            assert_eq!(last.0 - begin / 1000, tenth);
            // In time it is right again, and stays so.
            for hours in [1, 10, 11] {
                let elapsed = hours * HOUR + 10_000_000;
                let wall = (begin + elapsed).wrapping_add(step);
                last = clock.read(start + Duration::from_micros(elapsed), wall);
            }
            assert_eq!(
                last.0,
                (begin + 11 * HOUR + 10_000_000).wrapping_add(step) / 1000
            );
        }
    }

    #[test]
    fn time_never_goes_back() {
        let start = Instant::now();
        let mut clock = Clock {
            wall: Wall::machine(),
            told: HOUR,
            at: start,
        };
        let later = start + Duration::from_secs(1);
        let told = clock.read(later, HOUR);
        assert_eq!(clock.read(start, 0), told);
        assert_eq!(clock.read(later, 0), told);
    }
}
