//! Compares the conditions that pods should have with those that the watch shows. The leading replica
//! writes what differs, again and again, until the watch shows it.

use super::shown::Shown;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use scheduler_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds before a write that the watch does not show is repeated. The time doubles each time.
const PAUSE: u64 = 5_000;
/// The time doubles at most this often, up to 80 s.
const DOUBLED: u32 = 4;

/// A condition that a pod should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCondition {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// True if the status is `True`.
    pub holds: bool,
    /// The condition's reason.
    pub because: &'static str,
    /// The condition's message.
    pub message: String,
    /// The note of the event that is recorded with it; `None`: there is none.
    pub event: Option<String>,
}

/// A condition that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedCondition {
    /// The type of the condition.
    pub kind: &'static str,
    /// Its content.
    pub condition: PodCondition,
    /// The time since when it has its status; `None`: from now on.
    pub since: Option<Timestamp>,
}

/// The conditions of one type of all pods.
#[derive(Debug)]
pub(super) struct OwedConditions {
    kind: &'static str,
    pods: BTreeMap<String, Entry>,
    /// The pods whose shown condition differs, by the time of the next write.
    owed: BTreeSet<(Time, String)>,
}

#[derive(Debug, Default)]
struct Entry {
    wanted: Option<PodCondition>,
    /// The condition that the watch shows.
    shown: Option<Shown>,
    /// The time of the next write; `None`: nothing is to be written.
    next: Option<Time>,
    /// The number of writes of the same content.
    writes: u32,
}

impl OwedConditions {
    pub(super) fn of(kind: &'static str) -> Self {
        Self {
            kind,
            pods: BTreeMap::new(),
            owed: BTreeSet::new(),
        }
    }

    /// Sets the condition that a pod should have.
    pub(super) fn want(&mut self, wanted: PodCondition) {
        let uid = wanted.uid.clone();
        let entry = self.pods.entry(uid.clone()).or_default();
        if entry.wanted.as_ref() != Some(&wanted) {
            entry.wanted = Some(wanted);
            entry.writes = 0;
            self.settle(&uid);
        }
    }

    /// Returns the condition that a pod should have. `None`: none was set.
    pub(super) fn wanted(&self, uid: &str) -> Option<&PodCondition> {
        self.pods.get(uid)?.wanted.as_ref()
    }

    /// Returns true if the watch shows the condition with the status `True`.
    pub(super) fn shows_true(&self, uid: &str) -> bool {
        let shown = self.pods.get(uid).and_then(|entry| entry.shown);
        shown.is_some_and(|shown| shown.holds)
    }

    /// Takes in the condition that the watch shows on a pod.
    pub(super) fn show(&mut self, uid: &str, pod: &Pod) {
        let shown = Shown::on(pod, self.kind);
        if let Some(entry) = self.pods.get_mut(uid) {
            if entry.shown == shown {
                return;
            }
            entry.shown = shown;
        } else if shown.is_some() {
            let entry = Entry {
                shown,
                ..Entry::default()
            };
            self.pods.insert(uid.to_owned(), entry);
        }
        self.settle(uid);
    }

    pub(super) fn forget(&mut self, uid: &str) {
        if let Some(entry) = self.pods.remove(uid)
            && let Some(next) = entry.next
        {
            self.owed.remove(&(next, uid.to_owned()));
        }
    }

    /// Schedules a write if the shown condition differs from the wanted one.
    fn settle(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let differs = entry.wanted.as_ref().is_some_and(|wanted| {
            let says = |shown: Shown| shown.says(wanted.holds, wanted.because, &wanted.message);
            !entry.shown.is_some_and(says)
        });
        // A write that is under way gets its time before it is repeated.
        let next = differs.then_some(match entry.next {
            Some(next) if entry.writes > 0 => next,
            _ => Time(0),
        });
        if next != entry.next {
            if let Some(old) = entry.next.take() {
                self.owed.remove(&(old, uid.to_owned()));
            }
            if let Some(next) = next {
                self.owed.insert((next, uid.to_owned()));
            }
            entry.next = next;
        }
        if !differs {
            entry.writes = 0;
        }
    }

    /// Returns the time of the next write.
    pub(super) fn due(&self) -> Option<Time> {
        self.owed.first().map(|(at, _)| *at)
    }

    /// Returns the conditions that are to be written now, and schedules their repetition.
    pub(super) fn owed(&mut self, now: Time) -> Vec<OwedCondition> {
        let mut owed = Vec::new();
        while let Some((at, uid)) = self.owed.first().cloned()
            && at <= now
        {
            self.owed.remove(&(at, uid.clone()));
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            let pause = PAUSE.saturating_mul(1 << entry.writes.min(DOUBLED));
            entry.writes = entry.writes.saturating_add(1);
            let next = Time(now.0.saturating_add(pause));
            entry.next = Some(next);
            self.owed.insert((next, uid));
            if let Some(condition) = entry.wanted.clone() {
                let same = entry.shown.filter(|one| one.holds == condition.holds);
                owed.push(OwedCondition {
                    kind: self.kind,
                    condition,
                    since: same.map(|one| one.since),
                });
            }
        }
        owed
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.owed.is_empty()
    }
}
