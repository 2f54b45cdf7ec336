//! The data of [`super::idle`].

use crate::state::keys::{JobKey, TaskKey};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Facts about idle pods, and what the last decision computed from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdlePods {
    /// The time since when each idle pod has done no work.
    pub since: BTreeMap<TaskKey, Time>,
    /// The time at which a pod of each job was last evicted for being idle.
    pub gave_way: BTreeMap<JobKey, Time>,
    /// The jobs that give way in this decision.
    pub giving_way: BTreeSet<JobKey>,
    /// The jobs that gave way and come last in this decision.
    pub returning: BTreeSet<JobKey>,
    /// The time at which one of these sets changes next without an event.
    pub next: Option<Time>,
}
