//! Which pod groups are reported, and when: each when it has changed, all when a replica begins to
//! lead.
//!
//! What does not fit into the channel stays with the core until its receiver has written some.

use crate::act::answer;
use crate::report::GroupReport;
use scheduler_core::Core;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Groups that are looked at in one go, about 1 us each: nothing is decided meanwhile.
const AT_ONCE: usize = 1024;
/// Until the next ones are.
const PAUSE: Duration = Duration::from_millis(100);

/// The next reports of pod groups.
#[derive(Debug, Default)]
pub(super) struct GroupFeed {
    /// When all are reported, whatever was reported before.
    all: Option<Instant>,
    /// The same once more, when no write of the leader before can be carried out any more.
    once_more: Option<Instant>,
    /// When some are left.
    rest: Option<Instant>,
    /// Not before: there may still be no room in the channel.
    pause: Option<Instant>,
}

impl GroupFeed {
    /// The replica leads from now on.
    pub(super) fn begins_to_lead(&mut self, now: Instant) {
        self.all = Some(now);
        self.once_more = Some(now + answer::LANDING);
    }

    /// When [`GroupFeed::feed`] has something to do though nothing has happened.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = [self.all, self.once_more, self.rest].into_iter().flatten();
        due.min()
            .map(|at| self.pause.map_or(at, |pause| at.max(pause)))
    }

    /// The replica does not lead.
    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    /// Reports the groups of the node pool that have changed, as many as the channel takes. Called
    /// by the leader.
    pub(super) fn feed(
        &mut self,
        core: &mut Core,
        pool: &str,
        reports: &mpsc::Sender<GroupReport>,
        now: Instant,
    ) {
        let pool: Arc<str> = pool.into();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.all)
            && let Ok(permit) = reports.try_reserve()
        {
            core.forget_taken_groups();
            permit.send(GroupReport::All(Arc::clone(&pool)));
            self.all = None;
        }
        // This is not announced: the receiver's own writes without an answer may still be carried out.
        if is_due(self.once_more) {
            core.forget_taken_groups();
            self.once_more = None;
        }
        let room = reports.capacity().min(AT_ONCE);
        // Another node pool's cycle may have been faster.
        if room > 0
            && let Ok(permits) = reports.try_reserve_many(room)
        {
            let changes = core.take_changed_groups(room);
            for (permit, change) in permits.zip(changes) {
                permit.send(GroupReport::Change(Arc::clone(&pool), change));
            }
        }
        // Without a receiver everything ends.
        let more = core.has_changed_groups() && !reports.is_closed();
        self.rest = more.then_some(now + PAUSE);
        self.pause = Some(now + PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::{Config, GroupChange, text};
    use std::collections::BTreeSet;

    fn put(core: &mut Core, events: &str) {
        for event in text::read(events).unwrap() {
            assert_eq!(core.apply(event), []);
        }
    }

    /// With one pending pod each.
    fn core(groups: u32) -> Core {
        let mut core = Core::new(Config::default());
        put(&mut core, "queue q\n");
        for at in 0..groups {
            put(
                &mut core,
                &format!("group a/g{at} queue=q\npod p{at} group=a/g{at}\n"),
            );
        }
        core
    }

    /// What is in the channel: how often all are announced, and which groups follow.
    fn read(reports: &mut mpsc::Receiver<GroupReport>) -> (usize, BTreeSet<String>) {
        let (mut all, mut names) = (0, BTreeSet::new());
        while let Ok(report) = reports.try_recv() {
            match report {
                GroupReport::All(_) => all += 1,
                GroupReport::Change(_, GroupChange::Changed(view)) => {
                    names.insert(view.group.to_string());
                }
                GroupReport::Change(_, GroupChange::Gone(name)) => {
                    names.insert(format!("no {name}"));
                }
            }
        }
        (all, names)
    }

    #[test]
    fn all_are_reported_in_the_beginning_and_once_more_and_each_other_time_only_what_changed() {
        let (sender, mut reports) = mpsc::channel(4);
        let (mut core, mut feed) = (core(5), GroupFeed::default());
        let begin = Instant::now();
        feed.begins_to_lead(begin);
        assert_eq!(feed.due(), Some(begin));
        feed.feed(&mut core, "pool", &sender, begin);
        let (all, first) = read(&mut reports);
        assert_eq!((all, first.len()), (1, 3), "what does not fit stays");
        let next = begin + PAUSE;
        assert_eq!(feed.due(), Some(next));
        feed.feed(&mut core, "pool", &sender, next);
        let (all, others) = read(&mut reports);
        assert_eq!((all, others.len()), (0, 2));
        assert!(first.is_disjoint(&others));
        let again = begin + answer::LANDING;
        assert_eq!(feed.due(), Some(again));

        // A group without pods in between, one that is gone, and nothing of the others.
        put(&mut core, "pod-gone p1\npod-gone p2\ngroup-gone a/g2\n");
        feed.feed(&mut core, "pool", &sender, next);
        let changed = ["a/g1", "no a/g2"].map(str::to_owned);
        assert_eq!(read(&mut reports), (0, changed.into()));
        // Undone, and so nothing to write.
        put(&mut core, "pod p1 group=a/g1\npod-gone p1\n");
        feed.feed(&mut core, "pool", &sender, next);
        assert_eq!(read(&mut reports), (0, BTreeSet::new()));

        // One goes while all are to be reported again.
        feed.feed(&mut core, "pool", &sender, again);
        put(&mut core, "pod-gone p4\ngroup-gone a/g4\n");
        let mut reported = read(&mut reports);
        assert_eq!((reported.0, reported.1.len()), (0, 4));
        feed.feed(&mut core, "pool", &sender, again);
        reported.1.append(&mut read(&mut reports).1);
        assert!(reported.1.contains("no a/g4"), "{reported:?}");
        assert_eq!(feed.due(), None);
    }

    #[test]
    fn while_the_channel_is_full_the_cycle_does_not_come_back_at_once_and_nothing_is_lost() {
        let (sender, mut reports) = mpsc::channel(2);
        let (mut core, mut feed) = (core(2), GroupFeed::default());
        let mut now = Instant::now();
        feed.feed(&mut core, "pool", &sender, now);
        assert_eq!(sender.capacity(), 0, "nobody reads");
        feed.begins_to_lead(now);
        for _ in 0..3 {
            feed.feed(&mut core, "pool", &sender, now);
            assert_eq!(feed.due(), Some(now + PAUSE));
            now += PAUSE;
        }
        assert_eq!(
            read(&mut reports),
            (0, ["a/g0", "a/g1"].map(str::to_owned).into())
        );
        feed.feed(&mut core, "pool", &sender, now);
        let (all, mut names) = read(&mut reports);
        feed.feed(&mut core, "pool", &sender, now + PAUSE);
        names.append(&mut read(&mut reports).1);
        assert_eq!((all, names.len()), (1, 2), "all of them again");
    }

    #[test]
    fn without_a_receiver_nothing_is_due() {
        let (sender, reports) = mpsc::channel(1);
        drop(reports);
        let mut feed = GroupFeed::default();
        feed.feed(&mut core(3), "pool", &sender, Instant::now());
        assert_eq!(feed.due(), None);
    }
}
