//! Groups that do not exist although pods are in them, and when each is to be made anew.
//!
//! A group is here once, however often it is reported, and not while it is being made.

use super::backoff;
use super::groups::Key;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// From the report of a deleted group until it is made anew: most often its pods are being
/// deleted too.
const GRACE: Duration = Duration::from_secs(2);

/// A group that does not exist.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) namespace: String,
    pub(super) group: String,
    /// One of the pods in it.
    pub(super) pod: String,
    /// Times that it could not be made.
    failures: u32,
}

impl Missing {
    fn key(&self) -> Key {
        (self.namespace.clone(), self.group.clone())
    }
}

/// Missing groups, by when each is to be made.
#[derive(Debug, Default)]
pub(super) struct MissingGroups {
    agenda: BTreeMap<(Instant, Key), Missing>,
    at: HashMap<Key, Instant>,
}

impl MissingGroups {
    /// That group does not exist, and that pod is in it. A group that is here already keeps its
    /// time.
    pub(super) fn report(&mut self, namespace: String, group: String, pod: String) {
        let mut missing = Missing {
            namespace,
            group,
            pod,
            failures: 0,
        };
        let mut at = Instant::now() + GRACE;
        if let Some((time, before)) = self.remove(&missing.key()) {
            (at, missing.failures) = (time, before.failures);
        }
        self.put(at, missing);
    }

    /// It could not be made: it is tried again after the pause that this returns.
    pub(super) fn failed(&mut self, mut missing: Missing) -> Duration {
        let pause = backoff::after(missing.failures);
        missing.failures += 1;
        if let Some((_, since)) = self.remove(&missing.key()) {
            // It was reported while it was being made, perhaps with a pod that exists longer.
            missing.pod = since.pod;
        }
        self.put(Instant::now() + pause, missing);
        pause
    }

    /// When the first of them is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    /// The first of them, where its time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Missing> {
        let first = self.agenda.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let missing = first.remove();
        self.at.remove(&missing.key());
        Some(missing)
    }

    fn put(&mut self, at: Instant, missing: Missing) {
        let key = missing.key();
        self.at.insert(key.clone(), at);
        self.agenda.insert((at, key), missing);
    }

    fn remove(&mut self, key: &Key) -> Option<(Instant, Missing)> {
        let at = self.at.remove(key)?;
        let missing = self.agenda.remove(&(at, key.clone()))?;
        Some((at, missing))
    }
}
