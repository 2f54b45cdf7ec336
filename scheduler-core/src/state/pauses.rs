//! Pauses of pods, cards, evictions and searches.

use crate::action::EvictCause;
use crate::ids::GroupName;
use crate::state::keys::{CardKey, TaskKey};
use crate::state::rows::{Evicted, Rest};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The pauses in force. They outlive a restart in the snapshot: without them a scheduler that
/// crashes over a decision would take it again at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    /// Pods that are not tried, in the order in which their pauses end.
    pub tasks: BTreeSet<(Time, TaskKey)>,
    /// Cards that get no pod, in the order in which their pauses end.
    pub cards: BTreeSet<(Time, CardKey)>,
    /// The last evictions for each job.
    pub evicted: BTreeMap<GroupName, Evicted>,
    /// Searches for victims that were cut short, by whose and what for.
    pub searches: BTreeMap<(GroupName, EvictCause), Rest>,
}

impl Pauses {
    /// Other jobs may be entitled now. How often evictions gained a job nothing stays known.
    pub(crate) fn end_evictions(&mut self, now: Time) {
        for last in self.evicted.values_mut() {
            last.until = last.until.min(now);
        }
    }
}
