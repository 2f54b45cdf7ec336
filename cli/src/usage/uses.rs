//! What was granted and not used: the answer of a source.

use std::collections::BTreeMap;

/// Hours of GPUs and of MiB. `None`: the source does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Use {
    /// GPU-hours that were granted.
    pub(super) gpu: f64,
    /// Of them, the part whose memory was not in use.
    pub(super) gpu_unused: Option<f64>,
    /// MiB-hours that were granted.
    pub(super) mib: Option<f64>,
    /// Of them, those that were not in use.
    pub(super) mib_unused: Option<f64>,
}

/// Whose.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) queue: String,
    pub(super) namespace: String,
    pub(super) owner: String,
}

/// An answer of a source.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    /// By product of cards.
    pub(super) rows: BTreeMap<Key, BTreeMap<String, Use>>,
    /// GPU-hours of all cards, and of them those that no pod was granted.
    pub(super) cards: Option<(f64, f64)>,
    /// Milliseconds since 1970.
    pub(super) from: u64,
    pub(super) until: u64,
    /// What a reader should know.
    pub(super) notes: Vec<String>,
}
