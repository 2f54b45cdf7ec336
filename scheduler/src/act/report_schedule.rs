//! When a reason is written: the first at once, another only when it changed, and ever
//! later: a second after the first, five after the second, then every thirty. A cluster
//! that just started is told soon what it really lacks; one that waits long is not busy
//! with saying so.
//!
//! Pure: time comes in with each call.

use crate::clock::Wall;
use jiff::Timestamp;
use scheduler_core::PodReason;
use scheduler_core::ids::PodUid;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Between two writes about one pod, by how many there were; the last one from then on.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];
/// The pause before the first write about a pod that already says why it waits. A process that has
/// just begun to lead does not hear all agents yet, and its first reason may be short-lived.
const SETTLING: Duration = Duration::from_secs(5);
/// A pod about which nothing was said for so long is forgotten.
const MEMORY: Duration = Duration::from_mins(10);
/// Between two looks for pods to forget. A look visits all pods: one look for each reason would
/// cost the square of their number.
const SWEEP_EVERY: Duration = Duration::from_mins(1);

/// A reason to write now.
#[derive(Clone, Debug)]
pub(super) struct DueReport {
    /// The reason.
    pub(super) reason: PodReason,
    /// A line per card.
    pub(super) cards: Vec<String>,
    /// Since when the pod waits, as far as was told, in whole seconds.
    pub(super) since: Timestamp,
}

/// The reason that the watch shows on a pod when the core reports one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// The time since when the pod waits.
    pub(super) since: Timestamp,
    /// True if both reasons are the same.
    pub(super) same: bool,
}

/// The last write about a pod.
#[derive(Debug)]
struct LastReport {
    at: Instant,
    reason: PodReason,
    cards: Vec<String>,
    /// True if the write failed, or if another writer has replaced the reason since.
    lost: bool,
}

#[derive(Debug)]
struct PodReports {
    since: Timestamp,
    last: Option<LastReport>,
    /// How many there were, as far as it matters.
    writes: usize,
    /// To be written at that time.
    next: Option<(Instant, PodReason, Vec<String>)>,
    /// The reason that is being written, to be written again if the write fails.
    sent: Option<(PodReason, Vec<String>)>,
    /// True if the watch showed another reason while a write was under way.
    overwritten: bool,
    /// A write is under way; answers when it is over.
    writing: Option<oneshot::Receiver<()>>,
}

/// What was said about each pod.
#[derive(Debug)]
pub(super) struct ReportSchedule {
    wall: Wall,
    pods: BTreeMap<PodUid, PodReports>,
    agenda: BTreeSet<(Instant, PodUid)>,
    swept: Option<Instant>,
}

impl LastReport {
    fn of(at: Instant, reason: &PodReason, cards: &[String]) -> Self {
        Self {
            at,
            reason: reason.clone(),
            cards: cards.to_vec(),
            lost: false,
        }
    }
}

impl ReportSchedule {
    /// Nothing was said yet.
    pub(super) fn new(wall: Wall) -> Self {
        Self {
            wall,
            pods: BTreeMap::new(),
            agenda: BTreeSet::new(),
            swept: None,
        }
    }

    /// Takes in a reason that changed. `told` is the reason that the watch shows on the pod. It counts
    /// until the first write about the pod, so that a replica that begins to lead repeats nothing.
    pub(super) fn say(
        &mut self,
        reason: PodReason,
        cards: Vec<String>,
        told: Option<Told>,
        now: Instant,
    ) {
        if !reason.mark {
            return;
        }
        if self.swept.is_none_or(|last| now >= last + SWEEP_EVERY) {
            self.sweep(now);
        }
        let pod = reason.pod.clone();
        let (same, says_something) = (told.is_some_and(|told| told.same), told.is_some());
        let told = self.pods.entry(pod.clone()).or_insert_with(|| PodReports {
            since: told.map_or_else(|| self.wall.second(), |told| told.since),
            last: None,
            writes: 0,
            next: None,
            sent: None,
            overwritten: false,
            writing: None,
        });
        if same && told.last.is_none() {
            told.last = Some(LastReport::of(now, &reason, &cards));
            told.writes = 1;
        }
        let due = told.next.take().map(|(at, ..)| at);
        if let Some(at) = due {
            self.agenda.remove(&(at, pod.clone()));
        }
        if told.last.as_ref().is_some_and(|last| {
            !last.lost && last.reason.line == reason.line && last.cards == cards
        }) {
            return;
        }
        let at = match &told.last {
            Some(last) => now.max(last.at + pause_after(told.writes)),
            None if says_something => due.unwrap_or(now + SETTLING),
            None => now,
        };
        told.next = Some((at, reason, cards));
        self.agenda.insert((at, pod));
    }

    /// What is to be written by now, so many at most; the others wait, and are not written
    /// at all if their pods are bound before.
    pub(super) fn due(&mut self, now: Instant, most: usize) -> Vec<DueReport> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some((at, pod)) = self.agenda.first().cloned()
        {
            if at > now {
                break;
            }
            self.agenda.remove(&(at, pod.clone()));
            let Some(told) = self.pods.get_mut(&pod) else {
                continue;
            };
            if let Some((_, reason, cards)) = told.next.take() {
                told.last = Some(LastReport::of(now, &reason, &cards));
                told.writes = PAUSES.len().min(told.writes + 1);
                told.sent = Some((reason.clone(), cards.clone()));
                due.push(DueReport {
                    reason,
                    cards,
                    since: told.since,
                });
            }
        }
        due
    }

    /// When to ask for what is due again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// A write is under way.
    pub(super) fn writing(&mut self, pod: &PodUid, reported: oneshot::Receiver<()>) {
        if let Some(told) = self.pods.get_mut(pod) {
            told.writing = Some(reported);
        }
    }

    /// The write is over. One that was not taken is repeated after a pause, with the newest reason.
    pub(super) fn written(&mut self, pod: &PodUid, taken: bool, now: Instant) {
        let Some(told) = self.pods.get_mut(pod) else {
            return;
        };
        told.writing = None;
        let sent = told.sent.take();
        if taken && !told.overwritten {
            return;
        }
        told.overwritten = false;
        if let Some(last) = &mut told.last {
            last.lost = true;
        }
        if let Some((reason, cards)) = sent.filter(|_| told.next.is_none()) {
            let at = now + pause_after(told.writes);
            told.next = Some((at, reason, cards));
            self.agenda.insert((at, pod.clone()));
        }
    }

    /// Compares the last write with the reason that the watch shows. The reason is written again if
    /// another writer has replaced it: the grouper writes the same condition while a group cannot be
    /// made. `says` returns true for the reason that is shown.
    pub(super) fn shown(
        &mut self,
        pod: &PodUid,
        says: impl Fn(&PodReason, &[String]) -> bool,
        now: Instant,
    ) {
        let Some(told) = self.pods.get_mut(pod) else {
            return;
        };
        let Some(last) = &mut told.last else {
            return;
        };
        if says(&last.reason, &last.cards) {
            // The write has arrived, even if its answer was lost or overtook an older event.
            told.overwritten = false;
            last.lost = false;
            let repeats = |(_, reason, cards): &mut (Instant, PodReason, Vec<String>)| {
                reason.line == last.reason.line && *cards == last.cards
            };
            if let Some((at, ..)) = told.next.take_if(repeats) {
                self.agenda.remove(&(at, pod.clone()));
            }
            return;
        }
        if told.next.is_some() {
            // The next write replaces whatever the pod says.
            return;
        }
        if told.writing.is_some() {
            told.overwritten = true;
            return;
        }
        last.lost = true;
        let at = now.max(last.at + pause_after(told.writes));
        told.next = Some((at, last.reason.clone(), last.cards.clone()));
        self.agenda.insert((at, pod.clone()));
    }

    /// The pod is bound now: nothing more is said, and a write under way is waited for.
    pub(super) fn bound(&mut self, pod: &PodUid) -> Option<oneshot::Receiver<()>> {
        let told = self.pods.remove(pod)?;
        if let Some((at, ..)) = told.next {
            self.agenda.remove(&(at, pod.clone()));
        }
        told.writing
    }

    fn sweep(&mut self, now: Instant) {
        self.swept = Some(now);
        self.pods.retain(|_, told| {
            told.next.is_some()
                || told.writing.is_some()
                || told
                    .last
                    .as_ref()
                    .is_some_and(|last| now < last.at + MEMORY)
        });
    }
}

fn pause_after(writes: usize) -> Duration {
    let [.., longest] = PAUSES;
    let pause = writes.checked_sub(1).and_then(|at| PAUSES.get(at));
    pause.copied().unwrap_or(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::ReasonKind;
    use std::sync::Arc;

    fn reason(pod: &str, line: &str) -> PodReason {
        PodReason {
            pod: PodUid::new(pod),
            namespace: Arc::from("ns"),
            name: Arc::from(pod),
            mark: true,
            kind: ReasonKind::Unschedulable,
            line: Arc::from(line),
        }
    }

    fn lines(due: Vec<DueReport>) -> Vec<String> {
        due.into_iter()
            .map(|due| due.reason.line.to_string())
            .collect()
    }

    #[test]
    fn the_first_is_written_at_once_others_ever_later_and_only_the_last_of_many() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(Wall::machine());
        schedule.say(reason("a", "first"), vec![], None, start);
        assert_eq!(lines(schedule.due(start, 9)), ["first"]);
        let mut last = start;
        for (round, seconds) in [1, 5, 30, 30, 30].into_iter().enumerate() {
            let due = last + Duration::from_secs(seconds);
            let early = due.checked_sub(Duration::from_millis(1)).unwrap();
            schedule.say(reason("a", "passes"), vec![], None, last);
            schedule.say(reason("a", &format!("last {round}")), vec![], None, early);
            assert!(schedule.due(early, 9).is_empty(), "{round}");
            assert_eq!(schedule.next(), Some(due), "{round}");
            assert_eq!(lines(schedule.due(due, 9)), [format!("last {round}")]);
            assert_eq!(schedule.next(), None);
            last = due;
        }
    }

    #[test]
    fn who_begins_to_lead_repeats_nothing_and_keeps_since_when_a_pod_waits() {
        let start = Instant::now();
        let since = Timestamp::from_second(7).unwrap();
        let mut schedule = ReportSchedule::new(Wall::machine());
        let told = |same| Some(Told { since, same });
        schedule.say(reason("a", "as before"), vec![], told(true), start);
        schedule.say(reason("b", "another"), vec![], told(false), start);
        // Some agents are not heard yet, and the earlier reason may come back.
        schedule.say(reason("c", "for now"), vec![], told(false), start);
        schedule.say(reason("c", "as before"), vec![], told(true), start);
        assert!(schedule.due(start, 9).is_empty());
        let due = schedule.due(start + SETTLING, 9);
        let due: Vec<_> = due
            .iter()
            .map(|due| (&*due.reason.line, due.since))
            .collect();
        assert_eq!(due, [("another", since)]);
        // A reason that changes after that is written like any second reason.
        schedule.say(reason("a", "new"), vec![], told(false), start);
        assert_eq!(lines(schedule.due(start + PAUSES[0], 9)), ["new"]);
    }

    #[test]
    fn what_another_writer_has_overwritten_is_said_again() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(Wall::machine());
        let pod = PodUid::new("a");
        let shows = |line: &'static str| move |said: &PodReason, _: &[String]| *said.line == *line;
        schedule.say(reason("a", "one"), vec![], None, start);
        assert_eq!(lines(schedule.due(start, 9)), ["one"]);
        let (_over, reported) = oneshot::channel();
        schedule.writing(&pod, reported);
        schedule.shown(&pod, shows("one"), start);
        schedule.written(&pod, true, start);
        assert_eq!(schedule.next(), None);
        schedule.shown(&pod, shows("no group"), start);
        let at = start + PAUSES[0];
        assert_eq!(lines(schedule.due(at, 9)), ["one"]);
        // The watch shows the other reason between the write and its answer.
        let (_over, reported) = oneshot::channel();
        schedule.writing(&pod, reported);
        schedule.shown(&pod, shows("no group"), at);
        schedule.written(&pod, true, at);
        assert_eq!(lines(schedule.due(at + PAUSES[1], 9)), ["one"]);
        // The answer is lost, and the watch shows what was written.
        schedule.written(&pod, false, at + PAUSES[1]);
        assert!(schedule.next().is_some());
        schedule.shown(&pod, shows("one"), at + PAUSES[1]);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn what_was_said_is_not_said_again_and_a_reason_that_came_back_cancels_the_write() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(Wall::machine());
        schedule.say(reason("a", "one"), vec![], None, start);
        schedule.due(start, 9);
        schedule.say(reason("a", "one"), vec![], None, start + PAUSES[0]);
        assert_eq!(schedule.next(), None);
        schedule.say(reason("a", "two"), vec![], None, start);
        schedule.say(reason("a", "one"), vec![], None, start);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn after_a_binding_nothing_is_said_and_a_write_under_way_is_waited_for() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(Wall::machine());
        schedule.say(reason("a", "one"), vec![], None, start);
        schedule.due(start, 9);
        let (_done, reported) = oneshot::channel();
        schedule.writing(&PodUid::new("a"), reported);
        schedule.say(reason("a", "two"), vec![], None, start);
        assert!(schedule.bound(&PodUid::new("a")).is_some());
        assert!(schedule.due(start + PAUSES[2], 9).is_empty());
    }

    #[test]
    fn what_gets_no_permit_waits_and_is_not_written_if_its_pod_is_bound_meanwhile() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(Wall::machine());
        for pod in ["a", "b", "c"] {
            schedule.say(reason(pod, pod), vec![], None, start);
        }
        assert!(schedule.due(start, 0).is_empty());
        assert_eq!(lines(schedule.due(start, 1)), ["a"]);
        assert_eq!(schedule.next(), Some(start));
        assert!(schedule.bound(&PodUid::new("b")).is_none());
        assert_eq!(lines(schedule.due(start, 9)), ["c"]);
    }

    #[test]
    fn a_write_that_is_not_taken_is_repeated_until_it_is() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(Wall::machine());
        let pod = PodUid::new("a");
        schedule.say(reason("a", "one"), vec![], None, start);
        assert_eq!(lines(schedule.due(start, 9)), ["one"]);
        // The core says a reason once; the same text meanwhile changes nothing.
        schedule.say(reason("a", "one"), vec![], None, start);
        schedule.written(&pod, false, start);
        let again = start + PAUSES[0];
        assert_eq!(schedule.next(), Some(again));
        assert_eq!(lines(schedule.due(again, 9)), ["one"]);
        schedule.written(&pod, false, again);
        // A newer reason replaces the one that was lost.
        let later = again + PAUSES[1];
        schedule.say(reason("a", "two"), vec![], None, again);
        assert_eq!(lines(schedule.due(later, 9)), ["two"]);
        schedule.written(&pod, true, later);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn pods_are_looked_over_once_a_minute_and_the_silent_are_forgotten() {
        let start = Instant::now();
        let mut schedule = ReportSchedule::new(Wall::machine());
        schedule.say(reason("a", "one"), vec![], None, start);
        schedule.due(start, 9);
        schedule.written(&PodUid::new("a"), true, start);
        for seconds in 1..60 {
            schedule.say(
                reason("b", "x"),
                vec![],
                None,
                start + Duration::from_secs(seconds),
            );
            assert_eq!(schedule.swept, Some(start));
        }
        schedule.say(reason("b", "y"), vec![], None, start + MEMORY);
        assert!(!schedule.pods.contains_key(&PodUid::new("a")));
    }

    #[test]
    fn a_group_that_wants_no_condition_gets_none() {
        let mut schedule = ReportSchedule::new(Wall::machine());
        let quiet = PodReason {
            mark: false,
            ..reason("a", "one")
        };
        schedule.say(quiet, vec![], None, Instant::now());
        assert_eq!(schedule.next(), None);
    }
}
