//! Tells an admin that nothing is decided, and why.
//!
//! In: what decisions wait for, with the time. Out: lines for the log. Pure.

use std::time::Duration;
use tokio::time::Instant;

/// A large cluster takes seconds to be listed; what takes longer is reported,
const UNUSUAL: Duration = Duration::from_secs(10);
/// and again after each such time.
const AGAIN: Duration = Duration::from_mins(1);

/// Since when nothing is decided.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    since: Option<Instant>,
    /// The time of the next line.
    next: Option<Instant>,
    said: bool,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Waits(String),
    GoesOn(String),
}

impl Standstill {
    /// When [`Self::look`] has a line although nothing changes.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// `awaited`: the kinds of objects whose listing decisions wait for.
    pub(super) fn look(&mut self, awaited: &[&str], now: Instant) -> Option<Line> {
        if awaited.is_empty() {
            let before = std::mem::take(self);
            let since = before.since.filter(|_| before.said)?;
            let seconds = now.saturating_duration_since(since).as_secs();
            return Some(Line::GoesOn(format!(
                "everything is listed: decisions continue after {seconds} s"
            )));
        }
        let since = *self.since.get_or_insert(now);
        let next = *self.next.get_or_insert(since + UNUSUAL);
        if now < next {
            return None;
        }
        self.next = Some(now + AGAIN);
        self.said = true;
        let seconds = now.saturating_duration_since(since).as_secs();
        Some(Line::Waits(format!(
            "nothing is decided for {seconds} s: not listed yet: {}",
            awaited.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_standstill_is_reported_each_minute_and_so_is_its_end() {
        let mut standstill = Standstill::default();
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(standstill.look(&["pods", "nodes"], at(0)), None);
        assert_eq!(standstill.due(), Some(at(10)));
        assert_eq!(standstill.look(&["nodes"], at(9)), None);
        let waits = |text: &str| Some(Line::Waits(text.to_owned()));
        let said = standstill.look(&["nodes"], at(10));
        assert_eq!(
            said,
            waits("nothing is decided for 10 s: not listed yet: nodes")
        );
        assert_eq!(standstill.look(&["nodes"], at(69)), None);
        let said = standstill.look(&["nodes"], at(70));
        assert_eq!(
            said,
            waits("nothing is decided for 70 s: not listed yet: nodes")
        );
        let over = "everything is listed: decisions continue after 75 s".to_owned();
        assert_eq!(standstill.look(&[], at(75)), Some(Line::GoesOn(over)));
        assert_eq!(standstill.due(), None);
    }

    #[test]
    fn a_short_one_is_not_reported() {
        let mut standstill = Standstill::default();
        let begin = Instant::now();
        let later = begin + UNUSUAL - Duration::from_millis(1);
        assert_eq!(standstill.look(&["pods"], begin), None);
        assert_eq!(standstill.look(&[], later), None);
        assert_eq!(standstill.look(&["pods"], later), None);
    }
}
