//! What a reader may see.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

/// What a reader may see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::page) struct Rights {
    /// Cards and nodes: `list` of `gpunodes.aliquot.dev`.
    pub(in crate::page) cards: bool,
    /// Queues: `list` of `queues.scheduling.run.ai`.
    pub(in crate::page) queues: bool,
    /// Pods: `list` of pods.
    pub(in crate::page) pods: Pods,
}

/// Pods of which namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::page) enum Pods {
    /// Of all.
    All,
    /// Of these.
    In(BTreeSet<String>),
}

impl Rights {
    /// Everything.
    pub(in crate::page) fn all() -> Self {
        Self {
            cards: true,
            queues: true,
            pods: Pods::All,
        }
    }

    /// A number that is another for other rights.
    pub(super) fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    pub(in crate::page) fn sees(&self, namespace: &str) -> bool {
        match &self.pods {
            Pods::All => true,
            Pods::In(namespaces) => namespaces.contains(namespace),
        }
    }
}
