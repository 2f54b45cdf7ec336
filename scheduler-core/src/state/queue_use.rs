//! What queues hold and want, and which of their sums a pod is part of.

/// What the jobs of a queue and of all queues below it hold and want: nano-GPU,
/// millicores, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueUse {
    pub allocated: [u128; 3],
    pub non_preemptible: [u128; 3],
    /// By pods that wait; GPU memory apart, since its worth depends on the cluster.
    pub pending: [u128; 3],
    /// GPU memory that waiting pods want.
    pub pending_mib: u128,
}

/// The sums of its queues that the charge of a pod is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charged {
    /// The sum of all pods.
    Allocated,
    /// The sum of non-preemptible pods.
    Fixed,
    /// Both sums.
    AllocatedAndFixed,
}
