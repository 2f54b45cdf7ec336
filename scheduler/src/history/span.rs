//! The spans of time that history shows.

use scheduler_core::units::Duration;

/// Between two samples.
pub(crate) const PERIOD: Duration = Duration::seconds(30);
pub(super) const MINUTE: Duration = Duration::seconds(60);
pub(super) const FIVE_MINUTES: Duration = Duration::seconds(300);
pub(super) const HOUR: Duration = Duration::seconds(3600);

/// The range of a query, and its resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// The last hour, as fine as it is known.
    Hour,
    /// The last day.
    Day,
    /// The last 14 days; of queues alone.
    Fortnight,
}

impl Span {
    /// Between two points of a card.
    pub(crate) fn of_cards(self) -> Duration {
        match self {
            Self::Hour => PERIOD,
            Self::Day | Self::Fortnight => FIVE_MINUTES,
        }
    }

    /// Between two points of a queue.
    pub(crate) fn of_queues(self) -> Duration {
        match self {
            Self::Hour => MINUTE,
            Self::Day | Self::Fortnight => HOUR,
        }
    }
}
