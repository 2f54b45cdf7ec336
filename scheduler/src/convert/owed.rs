//! Conditions of pods: as they are to be, and as the watch shows them. Whatever differs is written, by
//! the replica that leads, until the watch shows it.

use super::shown::Shown;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use scheduler_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds before a write that is not seen is repeated, doubled each time.
const PAUSE: u64 = 5_000;
/// So often: up to 80 s.
const DOUBLED: u32 = 4;

/// What a condition of a pod is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCondition {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The status `True`.
    pub holds: bool,
    /// The condition's reason.
    pub because: &'static str,
    /// The condition's message.
    pub message: String,
    /// What a user reads in the pod's events beside it.
    pub event: Option<String>,
}

/// A condition that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedCondition {
    /// The type of the condition.
    pub kind: &'static str,
    /// What it is to say.
    pub condition: PodCondition,
    /// Since when its status is what it is; `None`: from now on.
    pub since: Option<Timestamp>,
}

/// The conditions of one type of all pods.
#[derive(Debug)]
pub(super) struct OwedConditions {
    kind: &'static str,
    pods: BTreeMap<String, Entry>,
    /// Pods whose condition is another than it is to be, by the time of the next write.
    owed: BTreeSet<(Time, String)>,
}

#[derive(Debug, Default)]
struct Entry {
    wanted: Option<PodCondition>,
    /// What the watch shows.
    shown: Option<Shown>,
    /// When it is written next.
    next: Option<Time>,
    /// Writes since it is to say something else.
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

    /// Takes in what the condition is to say.
    pub(super) fn want(&mut self, wanted: PodCondition) {
        let uid = wanted.uid.clone();
        let entry = self.pods.entry(uid.clone()).or_default();
        if entry.wanted.as_ref() != Some(&wanted) {
            entry.wanted = Some(wanted);
            entry.writes = 0;
            self.settle(&uid);
        }
    }

    /// Returns what the condition of a pod is to say. `None`: nothing was said of it.
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

    /// Owed from now on, where what is shown is not what is wanted.
    fn settle(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let differs = entry.wanted.as_ref().is_some_and(|wanted| {
            let says = |shown: Shown| shown.says(wanted.holds, wanted.because, &wanted.message);
            !entry.shown.is_some_and(says)
        });
        // A write that is under way shows before it is repeated.
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

    /// When the next one is to be written.
    pub(super) fn due(&self) -> Option<Time> {
        self.owed.first().map(|(at, _)| *at)
    }

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
