//! A pod that is kept until it is looked at again, as its JSON.
//!
//! The types of a pod are made for reading: with one container and one volume they take 17 KB of
//! memory, most of it for fields that are not set. The same pod is 2 KB of JSON. Tens of thousands of
//! pods wait for a volume, for a config map or for a move to another shard, and few of them are ever
//! looked at again.

use k8s_openapi::api::core::v1::Pod;

/// The JSON of a pod.
#[derive(Clone, Debug)]
pub(crate) struct StoredPod(Box<[u8]>);

impl StoredPod {
    /// Stores a copy.
    pub(crate) fn of(pod: &Pod) -> Self {
        let text = serde_json::to_vec(pod).unwrap_or_else(|error| {
            // A pod that was read from JSON can be written as JSON.
            tracing::error!(%error, "a pod cannot be stored");
            Vec::new()
        });
        Self(text.into_boxed_slice())
    }

    /// Returns the pod, equal to the one that was stored.
    pub(crate) fn load(&self) -> Pod {
        serde_json::from_slice(&self.0).unwrap_or_else(|error| {
            tracing::error!(%error, "a stored pod cannot be read");
            Pod::default()
        })
    }

    /// The memory that it takes, in bytes.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }
}
