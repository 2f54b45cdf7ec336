//! Decides when clients of MPS servers are drained: just before the kubelet kills their containers.
//! Pure.
//!
//! In: how each pod with a share leaves, time as a value. Out: whether its clients are due. A client
//! that is killed with work in flight leaves that work behind, and before driver r625 it can hang
//! every other client of the card. A client is not drained earlier, because a program that handles
//! SIGTERM needs the GPU to finish. [`super::guard`] names the clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The time between the request to the MPS server and the kill, in which the server breaks off the
/// work. The agent sees a deletion some milliseconds after the kubelet does.
const BEFORE_KILL: Duration = Duration::from_secs(1);

/// What the API server says about the end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// The pod stays.
    Stays,
    /// The pod is static: the deletion of its mirror ends no container.
    Static,
    /// The pod is being deleted, and the kubelet kills its remaining containers after this time.
    Deleted(Duration),
    /// The object is gone, and the kubelet gives the pod's containers a second.
    Gone,
}

/// The pods that are ending, by UID, and the static ones.
#[derive(Debug, Default)]
pub(super) struct Drains {
    leaving: BTreeMap<String, Leaving>,
    statics: BTreeSet<String>,
}

/// A pod that is ending.
#[derive(Debug)]
struct Leaving {
    /// The time at which the pod's clients are drained.
    due: Instant,
    /// The processes whose drain was requested.
    drained: BTreeSet<u32>,
}

/// Returns the time at which the clients of a pod with this grace period are drained: a second before
/// the kill, or after half of a period below two seconds, so that a program has half of it in any case.
fn due(grace: Duration, now: Instant) -> Instant {
    now + grace.saturating_sub(BEFORE_KILL.min(grace / 2))
}

impl Drains {
    /// Forgets pods without a share.
    pub(super) fn retain(&mut self, has_share: impl Fn(&str) -> bool) {
        self.leaving.retain(|uid, _| has_share(uid));
        self.statics.retain(|uid| has_share(uid));
    }

    /// Returns true if the clients of a pod are due by now.
    pub(super) fn is_due(&mut self, uid: &str, leave: Leave, now: Instant) -> bool {
        let grace = match leave {
            Leave::Stays => return false,
            Leave::Static => {
                self.statics.insert(uid.to_owned());
                return false;
            }
            Leave::Gone if self.statics.contains(uid) => return false,
            Leave::Gone => Duration::ZERO,
            Leave::Deleted(grace) => grace,
        };
        let leaving = self
            .leaving
            .entry(uid.to_owned())
            .or_insert_with(|| Leaving {
                due: due(grace, now),
                drained: BTreeSet::new(),
            });
        // A second deletion may only shorten the period.
        leaving.due = leaving.due.min(due(grace, now));
        now >= leaving.due
    }

    /// Notes that the drain of a process is requested. Returns false if it was before.
    pub(super) fn take(&mut self, uid: &str, pid: u32) -> bool {
        let leaving = self.leaving.get_mut(uid);
        leaving.is_some_and(|leaving| leaving.drained.insert(pid))
    }
}
