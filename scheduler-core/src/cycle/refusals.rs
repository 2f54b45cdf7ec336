//! Which nodes refused requests for devices in this decision.

use crate::state::keys::{NodeKey, SpecKey};
use rustc_hash::FxHashMap;
use slotmap::SecondaryMap;

/// Which nodes refused a request for devices, while nothing of them has changed. Nodes whose
/// devices are all in use come first, and a search among devices is a hundred times the look at a
/// number.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// [`crate::state::devices::Devices::version`] at that time.
    pub(super) devices: u64,
    /// By request, and by whether only a promise was wanted: the nodes, and
    /// [`crate::state::rows::NodeRow::generation`] at that time.
    of: FxHashMap<(SpecKey, bool), SecondaryMap<NodeKey, u64>>,
}

impl Refusals {
    /// Requests that are remembered: 16 MiB of a cluster with 4,000 nodes, for one decision.
    const MOST: usize = 256;

    pub(super) fn of(
        &mut self,
        spec: SpecKey,
        devices: u64,
        promise: bool,
    ) -> &mut SecondaryMap<NodeKey, u64> {
        let is_full = self.of.len() == Self::MOST && !self.of.contains_key(&(spec, promise));
        if std::mem::replace(&mut self.devices, devices) != devices || is_full {
            self.of.clear();
        }
        self.of.entry((spec, promise)).or_default()
    }
}
