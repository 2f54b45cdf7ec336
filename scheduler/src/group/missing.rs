//! Groups that do not exist although pods are in them, and when each is created again.
//!
//! Each group is here at most once, however often it is reported, and not while it is being created.

use super::backoff;
use super::groups::Key;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// From the report until the group is created again: most often its pods are being deleted too.
const GRACE: Duration = Duration::from_secs(2);

/// A group that does not exist.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) namespace: String,
    pub(super) group: String,
    /// One of the pods in it.
    pub(super) pod: String,
    /// How often it could not be created.
    failures: u32,
}

impl Missing {
    fn key(&self) -> Key {
        (self.namespace.clone(), self.group.clone())
    }
}

/// Missing groups, by the time when each is due.
#[derive(Debug, Default)]
pub(super) struct MissingGroups {
    agenda: BTreeMap<(Instant, Key), Missing>,
    at: HashMap<Key, Instant>,
}

impl MissingGroups {
    /// Reports a group that does not exist, with a pod that is in it. A group that is here already
    /// stays due at the same time.
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

    /// The group could not be created. It is due again after the pause that this returns.
    pub(super) fn failed(&mut self, mut missing: Missing) -> Duration {
        let pause = backoff::after(missing.failures);
        missing.failures += 1;
        if let Some((_, since)) = self.remove(&missing.key()) {
            // It was reported in the meantime: that pod is the more recent one.
            missing.pod = since.pod;
        }
        self.put(Instant::now() + pause, missing);
        pause
    }

    /// When the next group is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.agenda.keys().next().map(|(at, _)| *at)
    }

    /// The next group, if it is due.
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
