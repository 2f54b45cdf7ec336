//! What a run remembers of the machines that its autoscaler made.

use crate::time::Ms;
use std::collections::{BTreeMap, BTreeSet};

/// The state of the autoscaler.
#[derive(Debug, Default)]
pub struct Autoscaler {
    /// Requested machines that do not exist yet, by number.
    pub(crate) coming: BTreeSet<usize>,
    /// The time since which each machine has been empty.
    pub(crate) empty: BTreeMap<usize, Ms>,
    /// Machines to be removed, and their pods when every scheduler had seen it.
    pub(crate) leaving: BTreeMap<usize, BTreeSet<String>>,
    /// The time at which a machine was last removed.
    pub(crate) removed: Option<Ms>,
    /// Machines that were asked for.
    pub asked: usize,
    /// Machines that were removed.
    pub gone: usize,
    /// The largest number of machines at a time, including those that are coming.
    pub most: usize,
    /// Machines times milliseconds.
    pub worked: u64,
    /// Cards that pods asked for, times milliseconds, in thousandths.
    pub wanted: u64,
}
