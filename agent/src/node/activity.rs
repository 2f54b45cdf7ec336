//! Which shares do no work, by what the driver says of their processes and cards.
//!
//! A share is idle while none of its processes has SM time, encodes or decodes, and its memory does not
//! grow. The driver's samples of processes are believed only as far as the card agrees: on a card that
//! is busy while no process of it has a sample, or while an MPS server has one, work is not told apart,
//! and nothing is known of any share there. Nothing is known of slices in MIG mode either, for which
//! NVML has no such samples. Where nothing is known, a share never counts as idle.

use crate::ledger::HolderKey;
use crate::nvml::{Process, Reading};
use api::Mib;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What one look says of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    /// No process of it worked since the look before.
    Nothing,
    /// The driver does not tell.
    Unknown,
    /// A process of it worked.
    Work,
}

/// Returns what a card says of the share to which `own` processes belong. `servers`: the processes of
/// MPS servers.
pub(super) fn on_card(
    reading: &Reading,
    own: impl Fn(&Process) -> bool,
    servers: &BTreeSet<u32>,
) -> Seen {
    let works = |process: &Process| process.works == Some(true);
    if reading.processes.iter().any(|one| own(one) && works(one)) {
        return Seen::Work;
    }
    let untold = |one: &Process| one.works.is_none() || (servers.contains(&one.pid) && works(one));
    if reading.unseen.is_some() || reading.processes.iter().any(untold) {
        return Seen::Unknown;
    }
    match reading.busy {
        Some(false) => Seen::Nothing,
        Some(true) if reading.processes.iter().any(works) => Seen::Nothing,
        Some(true) | None => Seen::Unknown,
    }
}

/// Since when each share has done no work.
#[derive(Debug, Default)]
pub(super) struct Activities(BTreeMap<HolderKey, Watch>);

#[derive(Debug)]
struct Watch {
    /// The container; another one begins anew.
    container: String,
    /// The most that its processes held since it last worked.
    used: Mib,
    worked: Instant,
}

impl Activities {
    /// Takes in a look at the share of a container that runs, and returns for how many whole minutes it
    /// has done no work. `None`: that is not known.
    pub(super) fn follow(
        &mut self,
        key: &HolderKey,
        container: &str,
        used: Mib,
        seen: Seen,
        now: Instant,
    ) -> Option<u32> {
        let fresh = || Watch {
            container: container.to_owned(),
            used,
            worked: now,
        };
        let watch = self.0.entry(key.clone()).or_insert_with(fresh);
        if seen != Seen::Nothing || used > watch.used || watch.container != container {
            *watch = fresh();
        }
        let idle = now.saturating_duration_since(watch.worked);
        let minutes = idle.as_secs() / Duration::from_mins(1).as_secs();
        (seen != Seen::Unknown).then(|| u32::try_from(minutes).unwrap_or(u32::MAX))
    }

    /// Forgets a share whose container does not run.
    pub(super) fn forget(&mut self, key: &HolderKey) {
        self.0.remove(key);
    }

    /// Forgets all shares but those that are there.
    pub(super) fn keep(&mut self, is_there: impl Fn(&HolderKey) -> bool) {
        self.0.retain(|key, _| is_there(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, works: Option<bool>) -> Process {
        Process {
            pid,
            works,
            ..Process::default()
        }
    }

    fn seen(busy: Option<bool>, processes: &[(u32, Option<bool>)]) -> Seen {
        let reading = Reading {
            busy,
            processes: (processes.iter())
                .map(|(pid, works)| process(*pid, *works))
                .collect(),
            ..Reading::default()
        };
        on_card(&reading, |one| one.pid == 1, &BTreeSet::from([9]))
    }

    #[test]
    fn a_share_is_idle_only_where_all_work_of_its_card_is_told_apart() {
        let (yes, no) = (Some(true), Some(false));
        for (busy, processes, expected) in [
            (yes, &[(1, yes), (9, yes)][..], Seen::Work),
            (no, &[(1, yes)], Seen::Work),
            (no, &[(1, no), (9, no)], Seen::Nothing),
            // It has no process at all.
            (no, &[], Seen::Nothing),
            (yes, &[(1, no), (2, yes)], Seen::Nothing),
            // The card works for somebody, and nobody has a sample.
            (yes, &[(1, no), (2, no)], Seen::Unknown),
            (yes, &[], Seen::Unknown),
            // The driver gives what its clients do to the server.
            (yes, &[(1, no), (2, yes), (9, yes)], Seen::Unknown),
            (no, &[(1, no), (9, yes)], Seen::Unknown),
            (no, &[(1, no), (2, None)], Seen::Unknown),
            (None, &[(1, no)], Seen::Unknown),
        ] {
            assert_eq!(seen(busy, processes), expected, "{busy:?} {processes:?}");
        }
        let hidden = Reading {
            busy: no,
            unseen: Some("the driver does not tell its MPS processes".into()),
            ..Reading::default()
        };
        let said = on_card(&hidden, |_| true, &BTreeSet::new());
        assert_eq!(said, Seen::Unknown);
    }

    #[test]
    fn time_without_work_begins_anew_with_work_memory_doubt_and_another_container() {
        let key = HolderKey {
            pod_uid: "u".into(),
            container: "main".into(),
        };
        let start = Instant::now();
        let mut all = Activities::default();
        let mut at = |seconds, container: &str, used, seen| {
            let now = start + Duration::from_secs(seconds);
            all.follow(&key, container, Mib(used), seen, now)
        };
        assert_eq!(at(0, "c", 10, Seen::Work), Some(0));
        assert_eq!(at(59, "c", 10, Seen::Nothing), Some(0));
        assert_eq!(at(180, "c", 10, Seen::Nothing), Some(3));
        // It gave memory back, and takes it again.
        assert_eq!(at(181, "c", 5, Seen::Nothing), Some(3));
        assert_eq!(at(182, "c", 10, Seen::Nothing), Some(3));
        assert_eq!(at(183, "c", 11, Seen::Nothing), Some(0));
        assert_eq!(at(243, "c", 11, Seen::Nothing), Some(1));
        assert_eq!(at(244, "c", 11, Seen::Unknown), None);
        assert_eq!(at(303, "c", 11, Seen::Nothing), Some(0));
        assert_eq!(at(364, "c", 11, Seen::Nothing), Some(2));
        assert_eq!(at(365, "d", 0, Seen::Nothing), Some(0));
        assert_eq!(at(425, "d", 0, Seen::Work), Some(0));
    }
}
