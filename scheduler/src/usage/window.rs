//! Since when use counts.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use scheduler_core::units::{Duration, Time};
use std::fmt;

/// Of what length, and from when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// `sliding`: the most recent period of this length.
    Sliding(Duration),
    /// `tumbling`: since the last of the moments `start`, `start + size`, ...; nothing before
    /// `start`.
    Tumbling {
        /// `tumblingWindowStartTime`.
        start: Time,
        /// `windowSize`, above 0.
        size: Duration,
    },
    /// `cron`: since the last moment that a cron expression names, in UTC.
    Cron(Box<Cron>),
}

/// A cron expression.
#[derive(Clone)]
pub struct Cron {
    text: String,
    pattern: croner::Cron,
}

impl Cron {
    /// With five fields, or with seconds before or a year behind.
    ///
    /// # Errors The expression is invalid, or matches no time.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pattern = croner::parser::CronParser::builder()
            .seconds(croner::parser::Seconds::Optional)
            .year(croner::parser::Year::Optional)
            .build()
            .parse(text)
            .map_err(|error| error.to_string())?;
        let cron = Self {
            text: text.to_owned(),
            pattern,
        };
        // Of a year that has a leap day before it and after it.
        match cron.last(Time(1_800_000_000_000)) {
            Some(_) => Ok(cron),
            None => Err("it names no moment in the past".to_owned()),
        }
    }

    /// The last moment that it names, not after `now`.
    fn last(&self, now: Time) -> Option<Time> {
        let millis = i64::try_from(now.0).ok()?;
        let now = Timestamp::from_millisecond(millis).ok()?;
        let found = self
            .pattern
            .find_previous_occurrence(&now.to_zoned(TimeZone::UTC), true)
            .ok()?;
        u64::try_from(found.timestamp().as_millisecond())
            .ok()
            .map(Time)
    }
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cron {}

impl fmt::Debug for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({})", self.text)
    }
}

impl Window {
    /// When it began, not after `now`.
    pub fn begin(&self, now: Time) -> Time {
        match self {
            Self::Sliding(size) => Time(now.0.saturating_sub(size.0)),
            Self::Tumbling { start, size } => {
                let since = now.since(*start).0;
                let into = since.checked_rem(size.0).unwrap_or(0);
                Time(now.0.saturating_sub(if now < *start { 0 } else { into }))
            }
            // An expression that can be read has a moment before any other.
            Self::Cron(cron) => cron.last(now).unwrap_or(now),
        }
    }
}

impl fmt::Display for Window {
    /// As people see it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sliding(size) => write!(f, "sliding, {}", Length(*size)),
            Self::Tumbling { size, .. } => write!(f, "tumbling, {}", Length(*size)),
            Self::Cron(cron) => write!(f, "cron, {}", cron.text),
        }
    }
}

/// In days, hours, minutes and seconds.
struct Length(Duration);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seconds = self.0.0.div_ceil(1000);
        for (unit, letter) in [(86_400, 'd'), (3_600, 'h'), (60, 'm')] {
            if seconds >= unit {
                write!(f, "{}{letter}", seconds / unit)?;
                seconds %= unit;
                if seconds == 0 {
                    return Ok(());
                }
            }
        }
        write!(f, "{seconds}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds of a moment.
    fn at(text: &str) -> Time {
        let stamp: Timestamp = text.parse().unwrap();
        Time(u64::try_from(stamp.as_millisecond()).unwrap())
    }

    fn cron(text: &str) -> Window {
        Window::Cron(Box::new(Cron::parse(text).unwrap()))
    }

    #[test]
    fn windows_begin_where_kais_do() {
        let hour = Duration::seconds(3600);
        let start = at("2026-01-01T00:30:00Z");
        let tumbling = Window::Tumbling { start, size: hour };
        for (window, now, begin) in [
            (
                Window::Sliding(hour),
                "2026-01-05T10:20:00Z",
                "2026-01-05T09:20:00Z",
            ),
            (
                tumbling.clone(),
                "2026-01-05T10:20:00Z",
                "2026-01-05T09:30:00Z",
            ),
            // The edge belongs to the window that begins.
            (
                tumbling.clone(),
                "2026-01-05T10:29:59.999Z",
                "2026-01-05T09:30:00Z",
            ),
            (
                tumbling.clone(),
                "2026-01-05T10:30:00Z",
                "2026-01-05T10:30:00Z",
            ),
            // Before the first one nothing counts.
            (tumbling, "2026-01-01T00:10:00Z", "2026-01-01T00:10:00Z"),
            (
                cron("0 0 * * 1"),
                "2026-01-07T12:00:00Z",
                "2026-01-05T00:00:00Z",
            ),
            (
                cron("0 0 * * 1"),
                "2026-01-05T00:00:00Z",
                "2026-01-05T00:00:00Z",
            ),
            (
                cron("0 0 * * 1"),
                "2026-01-04T23:59:59Z",
                "2025-12-29T00:00:00Z",
            ),
            (
                cron("@daily"),
                "2026-01-07T12:00:00Z",
                "2026-01-07T00:00:00Z",
            ),
            (
                cron("30 0 6 * * *"),
                "2026-01-07T06:00:29Z",
                "2026-01-06T06:00:30Z",
            ),
            (
                cron("0 0 29 2 *"),
                "2027-06-01T00:00:00Z",
                "2024-02-29T00:00:00Z",
            ),
        ] {
            assert_eq!(window.begin(at(now)), at(begin), "{window:?} at {now}");
        }
    }

    #[test]
    fn an_expression_without_a_moment_is_refused() {
        for text in ["", "often", "61 * * * *", "0 0 30 2 *", "* * * *"] {
            assert!(Cron::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_are_read_at_a_glance() {
        for (seconds, text) in [(604_800, "7d"), (5_400, "1h30m"), (90, "1m30s"), (0, "0s")] {
            assert_eq!(Length(Duration::seconds(seconds)).to_string(), text);
        }
    }
}
