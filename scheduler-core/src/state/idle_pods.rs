//! What [`super::idle`] knows of idle pods.

use crate::state::keys::{JobKey, TaskKey};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of idle pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdlePods {
    pub since: BTreeMap<TaskKey, Time>,
    /// When a pod of a job was last evicted for being idle.
    pub gave_way: BTreeMap<JobKey, Time>,
    /// The jobs that give way in this decision.
    pub giving_way: BTreeSet<JobKey>,
    /// The jobs that gave way and come last in this decision.
    pub returning: BTreeSet<JobKey>,
    /// The time at which one of the two changes next.
    pub next: Option<Time>,
}
