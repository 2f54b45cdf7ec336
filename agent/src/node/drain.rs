//! When clients of MPS servers are drained: just before the kubelet kills their containers. Pure.
//!
//! In: how each pod with a share leaves, time as a value. Out: whether its clients are due. A client
//! that is killed with work in flight leaves that work behind, and before driver r625 it can hang
//! every other client of the card. Not earlier: a program that handles SIGTERM needs the GPU to
//! finish. [`super::guard`] names the clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long before the kill the MPS server is asked, which is the time that it has to break off the
/// work. The agent sees a deletion some milliseconds after the kubelet does.
const BEFORE_KILL: Duration = Duration::from_secs(1);

/// How a pod leaves, by the API server's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It does not.
    Stays,
    /// A static pod: the deletion of its mirror ends no container.
    Static,
    /// It is being deleted, and what is left of its containers is killed after this time.
    Deleted(Duration),
    /// Its object is gone: the kubelet gives its containers a second.
    Gone,
}

/// The pods that leave, by UID.
#[derive(Debug, Default)]
pub(super) struct Drains {
    leaving: BTreeMap<String, Leaving>,
    statics: BTreeSet<String>,
}

/// A pod that leaves.
#[derive(Debug)]
struct Leaving {
    /// When its clients are to be drained.
    due: Instant,
    /// Processes that were drained.
    drained: BTreeSet<u32>,
}

/// When the clients of a pod are drained that is killed after this grace period: a second before the
/// kill, or after half of a shorter period, so that a program has some of it in any case.
fn due(grace: Duration, now: Instant) -> Instant {
    now + grace.saturating_sub(BEFORE_KILL.min(grace / 2))
}

impl Drains {
    /// Forgets pods without a share.
    pub(super) fn retain(&mut self, has_share: impl Fn(&str) -> bool) {
        self.leaving.retain(|uid, _| has_share(uid));
        self.statics.retain(|uid| has_share(uid));
    }

    /// Returns whether the clients of a pod are to be drained by now.
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

    /// Takes a process of a pod that is due; false: it was taken before.
    pub(super) fn take(&mut self, uid: &str, pid: u32) -> bool {
        let leaving = self.leaving.get_mut(uid);
        leaving.is_some_and(|leaving| leaving.drained.insert(pid))
    }
}
