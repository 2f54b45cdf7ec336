//! What happened and is shown as a mark on a line of time: evictions, faults, limits. Pure.
//!
//! The last [`MOST`], of 14 days at most. A mark names no pod.

use scheduler_core::units::{Duration, Time};
use std::collections::VecDeque;
use std::sync::Arc;

/// Marks that are kept: 400 kB with the longest words.
const MOST: usize = 1000;
const REACH: Duration = Duration::seconds(14 * 24 * 3600);
/// Longest text of a mark, in bytes.
const WORDS: usize = 160;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// The scheduler evicted a pod.
    Evicted,
    /// A card failed.
    Fault,
    /// It works again.
    Recovered,
    /// An admin cordoned a card.
    Cordoned,
    /// It takes pods again.
    Uncordoned,
    /// A container exceeded its limit, or had another problem on its card.
    Limit,
    /// A node did not honour a grant.
    Refused,
}

impl MarkKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Fault => "fault",
            Self::Recovered => "recovered",
            Self::Cordoned => "cordoned",
            Self::Uncordoned => "uncordoned",
            Self::Limit => "limit",
            Self::Refused => "refused",
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at: Time,
    pub(crate) kind: MarkKind,
    /// UUID of the card; empty: none.
    pub(crate) card: Arc<str>,
    /// Empty: none.
    pub(crate) queue: Arc<str>,
    /// Of the pod; empty: it is about none.
    pub(crate) namespace: Arc<str>,
    /// A few words.
    pub(crate) words: Arc<str>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Marks(VecDeque<Mark>);

impl Marks {
    /// One more. The oldest gives way.
    pub(crate) fn put(&mut self, mut mark: Mark) {
        if mark.words.len() > WORDS {
            let mut end = WORDS - 3;
            while !mark.words.is_char_boundary(end) {
                end -= 1;
            }
            mark.words = format!("{}...", &mark.words[..end]).into();
        }
        let oldest = Time(mark.at.0.saturating_sub(REACH.0));
        while self.0.len() >= MOST || self.0.front().is_some_and(|first| first.at < oldest) {
            self.0.pop_front();
        }
        self.0.push_back(mark);
    }

    /// Those since a time, the oldest first.
    pub(crate) fn since(&self, from: Time) -> impl Iterator<Item = &Mark> {
        self.0.iter().filter(move |mark| mark.at >= from)
    }

    pub(super) fn bytes(&self) -> usize {
        let words = self.0.iter().map(|mark| {
            let texts = [&mark.card, &mark.queue, &mark.namespace, &mark.words];
            texts.map(|text| text.len()).iter().sum::<usize>()
        });
        words.sum::<usize>() + self.0.capacity() * size_of::<Mark>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at: u64, words: &str) -> Mark {
        Mark {
            at: Time(at),
            kind: MarkKind::Fault,
            card: "GPU-1".into(),
            queue: Arc::default(),
            namespace: Arc::default(),
            words: words.into(),
        }
    }

    #[test]
    fn the_last_ones_are_kept_and_long_words_are_cut() {
        let mut marks = Marks::default();
        for at in 0..2000 {
            marks.put(mark(at, &"é".repeat(500)));
        }
        assert_eq!(marks.since(Time(0)).count(), MOST);
        assert_eq!(marks.since(Time(1990)).count(), 10);
        assert!(marks.since(Time(0)).all(|mark| mark.words.len() <= WORDS));
        assert!(marks.bytes() <= 400_000, "{}", marks.bytes());
        marks.put(mark(REACH.0 + 3000, "again"));
        assert_eq!(marks.since(Time(0)).count(), 1, "two weeks later");
    }
}
