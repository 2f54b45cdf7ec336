//! What is known of idle pods. What follows from it is in [`super::idle`].

use crate::ids::{PodUid, QueueName};
use crate::state::keys::{JobKey, TaskKey};
use crate::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A placed pod that does no work and whose queue has a rule about that, for the shell to warn of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdlePod {
    /// The pod.
    pub pod: PodUid,
    /// The time since when all pods of its job have been idle.
    pub since: Time,
    /// The time from which it gives way.
    pub gives_way: Time,
    /// The queue whose rule that is.
    pub queue: QueueName,
}

/// What is known of idle pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdlePods {
    pub(super) since: BTreeMap<TaskKey, Time>,
    /// When a pod of a job was last evicted for being idle.
    pub(super) gave_way: BTreeMap<JobKey, Time>,
    /// The jobs that give way in this decision.
    pub(super) giving_way: BTreeSet<JobKey>,
    /// The jobs that gave way and come last in this decision.
    pub(super) returning: BTreeSet<JobKey>,
    /// The time at which one of the two changes next.
    pub next: Option<Time>,
}
