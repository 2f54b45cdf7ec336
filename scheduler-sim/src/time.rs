//! Virtual time: milliseconds since the run began, and the date on which runs begin.

use jiff::{SignedDuration, Timestamp};

/// Milliseconds since the run began.
pub type Ms = u64;

/// When runs begin: 2026-01-01, in milliseconds since 1970.
const BEGIN: i64 = 1_767_225_600_000;

/// A date of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(Timestamp);

impl Stamp {
    /// Time since the start of the run, by the true clock.
    pub fn at(now: Ms) -> Self {
        Self::skewed(now, 0)
    }

    /// By a clock that is this many milliseconds ahead, or behind.
    pub fn skewed(now: Ms, ahead: i64) -> Self {
        let millis = BEGIN.saturating_add_unsigned(now).saturating_add(ahead);
        Self(Timestamp::from_millisecond(millis).unwrap_or_default())
    }

    /// This many seconds later.
    #[must_use]
    pub fn after(self, seconds: i64) -> Self {
        Self(self.0 + SignedDuration::from_secs(seconds))
    }

    /// As Kubernetes writes it.
    pub fn seconds(self) -> String {
        Timestamp::from_second(self.0.as_second())
            .unwrap_or_default()
            .to_string()
    }

    /// As the scheduler's clock shows it.
    pub fn timestamp(self) -> Timestamp {
        self.0
    }
}
