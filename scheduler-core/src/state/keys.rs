//! The keys of rows. A key stays unique after its row is gone: a new row never gets an old key.

slotmap::new_key_type! {
    /// A node.
    pub(crate) struct NodeKey;
    /// A card.
    pub(crate) struct CardKey;
    /// A pod.
    pub(crate) struct TaskKey;
    /// A pod group, or a pod that is a group of its own.
    pub(crate) struct JobKey;
    /// A queue.
    pub(crate) struct QueueKey;
    /// A request signature.
    pub(crate) struct SpecKey;
}
