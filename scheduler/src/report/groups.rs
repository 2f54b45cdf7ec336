//! The statuses of pod groups that are to be written.
//!
//! In: what the cycles report, in order; how writes ended. Out: what to write. Pure. Keeps only
//! what is not written yet, and what may have to be written again.

use scheduler_core::ids::GroupName;
use scheduler_core::{GroupChange, GroupView};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// A report about the pod groups of a node pool. The cycle of the pool sends each change once, in
/// order, and has a status for each group; the receiver owes the write of the last one.
#[derive(Clone, Debug)]
pub enum GroupReport {
    /// All groups of that node pool follow, and what is not written yet counts no more: the
    /// replica begins to lead.
    All(Arc<str>),
    /// A group of that node pool.
    Change(Arc<str>, GroupChange),
}

/// The status that a group is to have.
#[derive(Clone, Debug)]
pub(super) struct GroupStatus {
    /// The name of its node pool.
    pub pool: Arc<str>,
    pub view: GroupView,
}

/// What is to be written, and what was written without an answer.
#[derive(Debug, Default)]
pub(super) struct GroupStatuses {
    due: BTreeMap<GroupName, GroupStatus>,
    /// The last status of each group of which a write had no answer, and until when that write
    /// may be carried out. `None`: the group is gone, and another one may get its name.
    unknown: BTreeMap<GroupName, (Instant, Option<GroupStatus>)>,
}

impl GroupStatuses {
    pub(super) fn take(&mut self, report: GroupReport) {
        match report {
            GroupReport::All(pool) => {
                self.due.retain(|_, status| status.pool != pool);
                let is_of_another = |status: &GroupStatus| status.pool != pool;
                self.unknown
                    .retain(|_, (_, status)| status.as_ref().is_some_and(is_of_another));
            }
            GroupReport::Change(pool, GroupChange::Changed(view)) => {
                let name = view.group.clone();
                let view = *view;
                self.due.insert(name, GroupStatus { pool, view });
            }
            // A group that moved to another node pool may have been reported from there before.
            GroupReport::Change(pool, GroupChange::Gone(name)) => {
                let is_of_pool = |status: &GroupStatus| status.pool == pool;
                if self.due.get(&name).is_some_and(is_of_pool) {
                    self.due.remove(&name);
                }
                if let Some((_, status)) = self.unknown.get_mut(&name) {
                    status.take_if(|status| is_of_pool(status));
                }
            }
        }
    }

    /// A status is written once more when a write whose end was not observed can no longer
    /// arrive: it may have arrived after its successor.
    pub(super) fn settle(&mut self, now: Instant) {
        for (name, (_, status)) in self.unknown.extract_if(.., |_, (until, _)| *until <= now) {
            if let Some(status) = status {
                self.due.entry(name).or_insert(status);
            }
        }
    }

    /// When [`GroupStatuses::settle`] has something to do.
    pub(super) fn settles_at(&self) -> Option<Instant> {
        self.unknown.values().map(|(until, _)| *until).min()
    }

    /// Everything that is to be written now.
    pub(super) fn take_due(&mut self) -> BTreeMap<GroupName, GroupStatus> {
        std::mem::take(&mut self.due)
    }

    /// A write ended. `lost_until`: it had no answer, and may be carried out until then. What was
    /// not taken is due again.
    pub(super) fn ended(
        &mut self,
        name: GroupName,
        status: GroupStatus,
        is_done: bool,
        lost_until: Option<Instant>,
    ) {
        if let Some(until) = lost_until {
            self.unknown
                .insert(name.clone(), (until, Some(status.clone())));
        } else if let Some((_, last)) = self.unknown.get_mut(&name) {
            *last = Some(status.clone());
        }
        if !is_done {
            self.due.entry(name).or_insert(status);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn change(pool: &str, pending: u32) -> GroupReport {
        let view = GroupView {
            group: "a/g".into(),
            running: 0,
            pending,
            held: [0; 3],
            held_non_preemptible: [0; 3],
            requested: [0; 3],
            core: Box::default(),
            reason: None,
            over: None,
        };
        GroupReport::Change(pool.into(), GroupChange::Changed(Box::new(view)))
    }

    fn gone(pool: &str) -> GroupReport {
        GroupReport::Change(pool.into(), GroupChange::Gone("a/g".into()))
    }

    fn pending(due: &BTreeMap<GroupName, GroupStatus>) -> Vec<u32> {
        due.values().map(|status| status.view.pending).collect()
    }

    #[test]
    fn the_last_status_is_written_and_one_of_another_pool_stays_when_the_first_says_that_it_is_gone()
     {
        let mut groups = GroupStatuses::default();
        groups.take(change("a", 1));
        groups.take(change("a", 2));
        groups.take(change("b", 3));
        groups.take(gone("a"));
        groups.take(GroupReport::All("a".into()));
        assert_eq!(pending(&groups.take_due()), [3]);
        groups.take(change("b", 4));
        groups.take(gone("b"));
        assert!(groups.take_due().is_empty());
    }

    #[test]
    fn what_was_not_taken_is_due_again_unless_there_is_news() {
        let mut groups = GroupStatuses::default();
        groups.take(change("a", 1));
        for (name, status) in groups.take_due() {
            groups.ended(name, status, false, None);
        }
        let due = groups.take_due();
        assert_eq!(pending(&due), [1]);
        groups.take(change("a", 2));
        for (name, status) in due {
            groups.ended(name, status, false, None);
        }
        assert_eq!(pending(&groups.take_due()), [2]);
    }

    #[test]
    fn after_a_write_without_an_answer_the_last_status_is_written_once_more() {
        let mut groups = GroupStatuses::default();
        let begin = Instant::now();
        let until = begin + Duration::from_mins(1);
        groups.take(change("a", 1));
        for (name, status) in groups.take_due() {
            groups.ended(name, status, false, Some(until));
        }
        groups.take(change("a", 2));
        for (name, status) in groups.take_due() {
            groups.ended(name, status, true, None);
        }
        groups.settle(begin);
        assert!(groups.take_due().is_empty());
        assert_eq!(groups.settles_at(), Some(until));
        groups.settle(until);
        assert_eq!(pending(&groups.take_due()), [2]);
        assert_eq!(groups.settles_at(), None);
    }

    #[test]
    fn a_lost_write_of_a_group_that_is_gone_may_reach_the_next_one_of_its_name() {
        let mut groups = GroupStatuses::default();
        let begin = Instant::now();
        let until = begin + Duration::from_mins(1);
        let write = |groups: &mut GroupStatuses, lost_until: Option<Instant>| {
            for (name, status) in groups.take_due() {
                groups.ended(name, status, lost_until.is_none(), lost_until);
            }
        };
        groups.take(change("a", 1));
        write(&mut groups, Some(until));
        groups.take(gone("a"));
        groups.settle(begin);
        assert!(groups.take_due().is_empty());
        groups.take(change("a", 2));
        write(&mut groups, None);
        groups.settle(until);
        assert_eq!(pending(&groups.take_due()), [2]);
        // Without a next one, nothing is written.
        groups.take(change("a", 3));
        write(&mut groups, Some(until));
        groups.take(gone("a"));
        groups.settle(until);
        assert!(groups.take_due().is_empty());
    }
}
