//! Pod groups are owed annotations: each is written until the API server has taken it. They are all
//! that a later leader knows of a group's past.
//!
//! Pure: the caller passes the time with each call.

use crate::group::Stamps;
use jiff::Timestamp;
use proto::names::{self, kai};
use scheduler_core::ids::{GroupName, SetName};
use scheduler_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// The pause after a write that was not taken; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, because a policy may refuse an annotation for as long as the group exists.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// A fact that is written to a group as an annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupStamp {
    /// The time at which the group went from no placed pod to some.
    Started(Time),
    /// The time since which the group is below its minimum; `None` if it is no longer.
    Stale(Option<Time>),
    /// The time at which a pod of the group was evicted.
    Evicted(Time),
    /// The number of members, by pod set, that have succeeded and are gone.
    Succeeded(BTreeMap<SetName, u32>),
}

impl GroupStamp {
    fn key(&self) -> &'static str {
        match self {
            Self::Started(_) => kai::LAST_START,
            Self::Stale(_) => kai::STALE_SINCE,
            Self::Evicted(_) => kai::LAST_EVICTION,
            Self::Succeeded(_) => names::pod_group::SUCCEEDED,
        }
    }

    fn value(&self) -> Option<String> {
        match self {
            Self::Started(at) | Self::Evicted(at) => rfc3339(*at),
            Self::Stale(since) => since.and_then(rfc3339),
            Self::Succeeded(sets) => {
                let sets = sets.iter().map(|(set, count)| (set.as_str(), *count));
                let sets: BTreeMap<&str, u32> = sets.collect();
                (!sets.is_empty()).then(|| serde_json::json!(sets).to_string())
            }
        }
    }
}

/// Formats a time as KAI writes it.
pub(super) fn rfc3339(at: Time) -> Option<String> {
    let millis = i64::try_from(at.0).ok()?;
    Some(Timestamp::from_millisecond(millis).ok()?.to_string())
}

#[derive(Debug, Default)]
struct Owed {
    stamps: Stamps,
    /// The time of the next write; `None` while a write is under way.
    next: Option<Instant>,
    /// The number of writes in a row that were not taken.
    failed: u32,
}

/// The annotations that are owed to each group.
#[derive(Debug, Default)]
pub(super) struct StampSchedule {
    groups: BTreeMap<GroupName, Owed>,
    agenda: BTreeSet<(Instant, GroupName)>,
}

impl StampSchedule {
    /// Owes a stamp to the group. A newer value of the same key replaces the older one.
    pub(super) fn owe(&mut self, group: GroupName, stamp: &GroupStamp, now: Instant) {
        let is_new = !self.groups.contains_key(&group);
        let owed = self.groups.entry(group.clone()).or_default();
        owed.stamps.insert(stamp.key(), stamp.value());
        if is_new {
            owed.next = Some(now);
            self.agenda.insert((now, group));
        }
    }

    /// Returns the annotations that are due by now, of this number of groups at most.
    pub(super) fn due(&mut self, now: Instant, most: usize) -> Vec<(GroupName, Stamps)> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some((at, group)) = self.agenda.first().cloned()
            && at <= now
        {
            self.agenda.remove(&(at, group.clone()));
            if let Some(owed) = self.groups.get_mut(&group) {
                owed.next = None;
                due.push((group, owed.stamps.clone()));
            }
        }
        due
    }

    /// Returns when the next annotations are due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// Notes that a write is over. Annotations that were not taken, or that have changed since, are
    /// written again.
    pub(super) fn written(&mut self, group: GroupName, sent: &Stamps, taken: bool, now: Instant) {
        let Some(owed) = self.groups.get_mut(&group) else {
            return;
        };
        if taken {
            owed.stamps
                .retain(|key, value| sent.get(key) != Some(value));
            owed.failed = 0;
        } else {
            owed.failed = owed.failed.saturating_add(1);
        }
        if owed.stamps.is_empty() {
            self.groups.remove(&group);
            return;
        }
        let at = now + pause(owed.failed);
        owed.next = Some(at);
        self.agenda.insert((at, group));
    }
}

fn pause(failed: u32) -> Duration {
    let Some(doubled) = failed.checked_sub(1) else {
        return Duration::ZERO;
    };
    LONGEST_PAUSE.min(PAUSE.saturating_mul(1 << doubled.min(16)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stamp_is_written_until_it_is_taken_and_the_newest_is_written() {
        let mut schedule = StampSchedule::default();
        let group = GroupName::new("ns/g");
        let begin = Instant::now();
        schedule.owe(group.clone(), &GroupStamp::Started(Time(1000)), begin);
        let [(_, first)] = &schedule.due(begin, 8)[..] else {
            panic!("not due")
        };
        assert_eq!(
            first[kai::LAST_START].as_deref(),
            Some("1970-01-01T00:00:01Z")
        );
        // A newer value comes while the first is being written, and that write fails.
        schedule.owe(group.clone(), &GroupStamp::Started(Time(2000)), begin);
        schedule.owe(group.clone(), &GroupStamp::Stale(None), begin);
        assert_eq!(schedule.next(), None, "one write at a time");
        schedule.written(group.clone(), first, false, begin);
        let mut now = begin;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            now += Duration::from_secs(pause);
            assert_eq!(schedule.next(), Some(now));
            let [(_, sent)] = &schedule.due(now, 8)[..] else {
                panic!("not due")
            };
            let wanted = Some("1970-01-01T00:00:02Z");
            assert_eq!(sent[kai::LAST_START].as_deref(), wanted);
            assert_eq!(sent[kai::STALE_SINCE], None);
            schedule.written(group.clone(), sent, false, now);
        }
        now += LONGEST_PAUSE;
        let [(_, sent)] = &schedule.due(now, 8)[..] else {
            panic!("not due")
        };
        // A change during a write is written right after it.
        let gone = BTreeMap::from([(SetName::new("default"), 2)]);
        schedule.owe(group.clone(), &GroupStamp::Succeeded(gone), now);
        schedule.written(group.clone(), sent, true, now);
        let [(_, rest)] = &schedule.due(now, 8)[..] else {
            panic!("not due")
        };
        let wanted = Stamps::from([(
            names::pod_group::SUCCEEDED,
            Some("{\"default\":2}".to_owned()),
        )]);
        assert_eq!(*rest, wanted);
        schedule.written(group, rest, true, now);
        assert_eq!((schedule.next(), schedule.groups.len()), (None, 0));
    }
}
