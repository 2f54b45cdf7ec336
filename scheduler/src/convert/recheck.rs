//! Pods that are looked at again because another object changed that they name: a config map, a
//! claim, a volume, what a driver says of its storage.
//!
//! Many pods may name one object, and who may write it may do so in a loop. So a change costs no
//! more than a note here, and each decision looks at [`LOOKS`] pods at most, in turn. Until then a
//! pod is what it was when it was looked at last, as if the change came that much later.
//! A listing is another matter: what comes of it is known before anything is decided.

use k8s_openapi::api::core::v1::Pod as KubePod;
use scheduler_core::Event;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Pods that one decision looks at again: some milliseconds, with many volumes to choose from.
pub(super) const LOOKS: usize = 512;

/// What follows from an object that pods name.
#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) events: Vec<Event>,
    /// UIDs of pods that are looked at again in turn.
    pub(super) later: BTreeSet<String>,
    /// Pods that are converted again at once, because a listing has ended.
    pub(super) now: Vec<KubePod>,
}

/// UIDs of pods that are due.
#[derive(Debug, Default)]
pub(super) struct RecheckQueue {
    uids: BTreeSet<String>,
    /// The last that was looked at: those after it come first, so that pods that are due again
    /// and again keep no other waiting.
    last: String,
}

impl RecheckQueue {
    pub(super) fn add(&mut self, uids: impl IntoIterator<Item = String>) {
        self.uids.extend(uids);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.uids.is_empty()
    }

    pub(super) fn next(&mut self) -> Option<String> {
        let after = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let next = self.uids.range::<str, _>(after).next();
        let next = next.or_else(|| self.uids.first())?.clone();
        self.uids.remove(&next);
        self.last.clone_from(&next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gone, pod, there, world};
    use super::*;
    use crate::convert::World;
    use crate::watch::{Fact, Seen};
    use scheduler_core::units::Time;
    use serde_json::json;

    fn looked_at(events: &[Event]) -> Vec<&str> {
        let pods = events.iter().map(|event| match event {
            Event::Pod(pod) => pod.uid.as_str(),
            other => panic!("{other:?}"),
        });
        pods.collect()
    }

    /// A world with so many pods that wait for the config map `all`.
    fn waiting(count: usize) -> World {
        let mut world = world();
        for at in 0..count {
            let mut pod = pod(&format!("u{at:05}"), None, 0);
            pod["spec"]["containers"][0]["envFrom"] =
                json!([{ "configMapRef": { "name": "all" } }]);
            world.take(Fact::Pod(there(pod)));
        }
        world.take(Fact::ConfigMap(Seen::Listing));
        assert_eq!(world.take(Fact::ConfigMap(Seen::Listed)), []);
        world
    }

    #[test]
    fn an_object_that_many_pods_name_costs_a_decision_so_much_however_often_it_changes() {
        let mut world = waiting(3 * LOOKS);
        let all = || json!({ "metadata": { "name": "all", "namespace": "ns" } });
        for _ in 0..5 {
            assert_eq!(world.take(Fact::ConfigMap(there(all()))), []);
            assert_eq!(world.take(Fact::ConfigMap(gone(all()))), []);
        }
        world.take(Fact::ConfigMap(there(all())));
        for part in 0..3 {
            assert!(world.is_due(), "part {part}");
            assert_eq!(looked_at(&world.elapse(Time(0))).len(), LOOKS);
        }
        assert!(!world.is_due());
        // What is as it was when it was looked at is no news.
        world.take(Fact::ConfigMap(gone(all())));
        world.take(Fact::ConfigMap(there(all())));
        assert_eq!(world.elapse(Time(0)), []);
    }

    #[test]
    fn pods_that_are_due_in_each_decision_keep_no_other_waiting() {
        let mut world = waiting(LOOKS + 1);
        let all = || json!({ "metadata": { "name": "all", "namespace": "ns" } });
        let last = format!("u{LOOKS:05}");
        world.take(Fact::ConfigMap(there(all())));
        assert!(!looked_at(&world.elapse(Time(0))).contains(&last.as_str()));
        // All are due again, and begin with the one that had no turn.
        world.take(Fact::ConfigMap(gone(all())));
        world.take(Fact::ConfigMap(there(all())));
        assert_eq!(looked_at(&world.elapse(Time(0))), [last]);
        assert_eq!(world.again.uids.len(), 1);
    }
}
