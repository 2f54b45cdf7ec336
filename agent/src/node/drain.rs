//! Clients of MPS servers whose containers the kubelet is about to kill. Pure, as the core is.
//!
//! In: the pods that are being deleted, with their grace periods, and the processes of their
//! shares. Out: [`Drain`]s, just before the kill. A client that is killed with work in flight leaves
//! that work behind, and before driver r625 it can hang every other client of the card. Not earlier:
//! a program that handles SIGTERM needs the GPU to finish.

use crate::inventory::InventoryBuilder;
use crate::ledger::{Ledger, Share};
use crate::mps::plan::server_name;
use crate::pods::{Pods, Standing};
use crate::termination::Drain;
use crate::watchdog::is_of;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long before the kill the MPS server is asked, which is the time that it has to break off the
/// work. The agent sees a deletion some milliseconds after the kubelet does.
const BEFORE_KILL: Duration = Duration::from_secs(1);

/// The pods that are being deleted.
#[derive(Debug, Default)]
pub(super) struct Drains {
    /// By UID.
    leaving: BTreeMap<String, Leaving>,
    /// UIDs of static pods. The deletion of their mirrors ends no container.
    statics: BTreeSet<String>,
}

/// A pod that is being deleted.
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
    now + (grace - BEFORE_KILL.min(grace / 2))
}

impl Drains {
    /// Returns the processes to be drained now, each of them once.
    pub(super) fn take(
        &mut self,
        ledger: &Ledger,
        pods: &Pods,
        cards: &InventoryBuilder,
        now: Instant,
    ) -> Vec<Drain> {
        let has = |uid: &String| ledger.all().any(|share| share.pod.uid == *uid);
        self.leaving.retain(|uid, _| has(uid));
        self.statics.retain(has);
        let mut drains = Vec::new();
        for share in ledger.all() {
            let server = server_name(share);
            let Some(server) = server.filter(|_| self.is_due(share, pods, now)) else {
                continue;
            };
            let Some(leaving) = self.leaving.get_mut(&share.pod.uid) else {
                continue;
            };
            let on_cards = share.gpus.iter().flat_map(|card| cards.processes(card));
            let pids: Vec<u32> = on_cards
                .filter(|process| is_of(process, share, ledger))
                .map(|process| process.pid)
                .filter(|pid| leaving.drained.insert(*pid))
                .collect();
            if !pids.is_empty() {
                drains.push(Drain {
                    pod: share.pod.clone(),
                    server,
                    pids,
                });
            }
        }
        drains
    }

    /// Returns whether the clients of a share's pod are to be drained by now.
    fn is_due(&mut self, share: &Share, pods: &Pods, now: Instant) -> bool {
        let uid = &share.pod.uid;
        let grace = match pods.standing(uid) {
            Standing::Present(pod) if pod.mirror_uid.is_some() => {
                self.statics.insert(uid.clone());
                return false;
            }
            Standing::Present(pod) if pod.deleting => pod.grace,
            // By force: the kubelet gives its containers a second.
            Standing::Gone if !self.statics.contains(uid) => Duration::ZERO,
            _ => return false,
        };
        let leaving = self.leaving.entry(uid.clone()).or_insert_with(|| Leaving {
            due: due(grace, now),
            drained: BTreeSet::new(),
        });
        // A second deletion may only shorten the period.
        leaving.due = leaving.due.min(due(grace, now));
        now >= leaving.due
    }
}
