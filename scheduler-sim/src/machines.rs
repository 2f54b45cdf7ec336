//! What a run remembers of the machines that its autoscaler made.

use crate::time::Ms;
use std::collections::{BTreeMap, BTreeSet};

/// Its state.
#[derive(Debug, Default)]
pub struct Autoscaler {
    /// Requested machines that do not exist yet, by number.
    pub(crate) coming: BTreeSet<usize>,
    /// Since when machines have been empty.
    pub(crate) empty: BTreeMap<usize, Ms>,
    /// Machines to be removed, and their pods when every scheduler had seen it.
    pub(crate) leaving: BTreeMap<usize, BTreeSet<String>>,
    /// When a machine was removed last.
    pub(crate) removed: Option<Ms>,
    /// Machines that were asked for.
    pub asked: usize,
    /// Machines that were removed.
    pub gone: usize,
    /// Most machines at a time, those that are coming included.
    pub most: usize,
    /// Machines times milliseconds.
    pub worked: u64,
    /// Cards that pods asked for, times milliseconds, in thousandths.
    pub wanted: u64,
}
