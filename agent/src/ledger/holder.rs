//! A share is held by a container.

/// A container of a pod: what holds a share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderKey {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// The container's name.
    pub container: String,
}
