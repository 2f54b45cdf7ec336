//! The spans of time that the history of the status page shows.

use scheduler_core::units::Duration;

/// The time between two samples.
pub(crate) const PERIOD: Duration = Duration::seconds(30);
pub(super) const MINUTE: Duration = Duration::seconds(60);
pub(super) const FIVE_MINUTES: Duration = Duration::seconds(300);
pub(super) const HOUR: Duration = Duration::seconds(3600);

/// The range of a query. The resolution follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// The last hour, with every sample.
    Hour,
    /// The last day.
    Day,
    /// The last 14 days, which are kept for queues alone.
    Fortnight,
}

impl Span {
    /// Returns the time between two points of a card.
    pub(crate) fn of_cards(self) -> Duration {
        match self {
            Self::Hour => PERIOD,
            Self::Day | Self::Fortnight => FIVE_MINUTES,
        }
    }

    /// Returns the time between two points of a queue.
    pub(crate) fn of_queues(self) -> Duration {
        match self {
            Self::Hour => MINUTE,
            Self::Day | Self::Fortnight => HOUR,
        }
    }
}
