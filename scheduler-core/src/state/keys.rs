//! The keys of rows. A key stays unique after its row is gone: a new row never gets an old key.

slotmap::new_key_type! {
    /// This is the key of a node.
    pub(crate) struct NodeKey;
    /// This is the key of a card.
    pub(crate) struct CardKey;
    /// This is the key of a pod.
    pub(crate) struct TaskKey;
    /// This is the key of a job: a pod group, or a pod that is in no group.
    pub(crate) struct JobKey;
    /// This is the key of a queue.
    pub(crate) struct QueueKey;
    /// This is the key of a request, which equal pods share.
    pub(crate) struct SpecKey;
}
