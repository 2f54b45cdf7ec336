//! The answer of a source: memory and time that was granted, and the part that was not used.

use std::collections::BTreeMap;

/// The hours of GPUs and of MiB that were granted, and those that were not used. `None`: the source
/// does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Use {
    /// The GPU-hours that were granted.
    pub(super) gpu: f64,
    /// The part of these GPU-hours whose memory was not in use.
    pub(super) gpu_unused: Option<f64>,
    /// The MiB-hours that were granted.
    pub(super) mib: Option<f64>,
    /// The part of these MiB-hours that was not in use.
    pub(super) mib_unused: Option<f64>,
    /// The longest time for which a share did no work, in minutes.
    pub(super) longest_idle: Option<u64>,
}

/// The owner of the hours.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) queue: String,
    pub(super) namespace: String,
    pub(super) owner: String,
}

/// The answer of a source.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    /// The hours by owner and product of cards.
    pub(super) rows: BTreeMap<Key, BTreeMap<String, Use>>,
    /// The GPU-hours of all cards, and those that no pod was granted.
    pub(super) cards: Option<(f64, f64)>,
    /// The beginning and the end, in milliseconds since 1970.
    pub(super) from: u64,
    pub(super) until: u64,
    /// Remarks for the reader, a sentence each.
    pub(super) notes: Vec<String>,
}
