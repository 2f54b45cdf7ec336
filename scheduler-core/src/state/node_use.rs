//! What is taken of a node.

/// Sums over the tasks of a node. `u128`: adding up any number of pods of any size
/// cannot overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub cpu: u128,
    pub memory: u128,
    pub pods: u128,
    /// Whole GPUs of tasks without cards of their own.
    pub gpus: u128,
}

/// What is taken of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeUse {
    /// By all that stand there, those on their way out too.
    pub used: Amounts,
    /// By those on their way out.
    pub releasing: Amounts,
    /// Promised on top, of what is being released.
    pub promised: Amounts,
    /// What pods of other schedulers count for in queues: GPU, CPU, memory.
    pub foreign: [u128; 3],
}
