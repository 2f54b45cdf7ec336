//! Decides when clients of MPS servers are drained: just before the kubelet kills their containers.
//! Pure.
//!
//! In: how each pod with a share leaves, time as a value. Out: the clients that are due. A client
//! that is killed with work in flight leaves that work behind, and before driver r625 it can hang
//! every other client of the card. A client is not drained earlier, because a program that handles
//! SIGTERM needs the GPU to finish.

use super::cards::Cards;
use super::event::Effect;
use crate::ledger::Ledger;
use crate::mps::plan::server_name;
use crate::pods::{Pods, Standing};
use crate::termination::Drain;
use crate::watchdog::is_of;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The time between the request to the MPS server and the kill, in which the server breaks off the
/// work. The agent sees a deletion some milliseconds after the kubelet does.
const BEFORE_KILL: Duration = Duration::from_secs(1);

/// What the API server says about the end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
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
    /// Requests the drain of each client that the kubelet is about to kill, once.
    pub(super) fn request(
        &mut self,
        ledger: &Ledger,
        pods: &Pods,
        cards: &Cards,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        let has_share = |uid: &str| ledger.all().any(|share| share.pod.uid == uid);
        self.retain(has_share);
        for share in ledger.all() {
            let uid = &share.pod.uid;
            let leave = match pods.standing(uid) {
                Standing::Present(pod) if pod.mirror_uid.is_some() => Leave::Static,
                Standing::Present(pod) if pod.deleting => Leave::Deleted(pod.grace),
                Standing::Present(_) | Standing::Unknown => Leave::Stays,
                Standing::Gone => Leave::Gone,
            };
            let server = server_name(share);
            let due = self.is_due(uid, leave, now);
            let Some(server) = server.filter(|_| due) else {
                continue;
            };
            let pids: Vec<u32> = cards
                .beside(share)
                .filter(|process| is_of(process, share, ledger))
                .map(|process| process.pid)
                .filter(|pid| self.take(uid, *pid))
                .collect();
            if !pids.is_empty() {
                effects.push(Effect::Drain(Drain {
                    pod: share.pod.clone(),
                    server,
                    pids,
                }));
            }
        }
    }

    /// Forgets pods without a share.
    fn retain(&mut self, has_share: impl Fn(&str) -> bool) {
        self.leaving.retain(|uid, _| has_share(uid));
        self.statics.retain(|uid| has_share(uid));
    }

    /// Returns true if the clients of a pod are due by now.
    fn is_due(&mut self, uid: &str, leave: Leave, now: Instant) -> bool {
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
    fn take(&mut self, uid: &str, pid: u32) -> bool {
        let leaving = self.leaving.get_mut(uid);
        leaving.is_some_and(|leaving| leaving.drained.insert(pid))
    }
}
