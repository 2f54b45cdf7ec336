//! How many devices of each driver are free or leaving, over all nodes. A request for more than that
//! is not met by moving pods.
//!
//! Input: pools and uses, as they change. It is derived: `invariant/devices.rs` counts again.

use crate::ids::{DeviceId, FilterName};
use crate::state::devices::PoolRow;
use crate::state::devices::usage::DeviceUse;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeDevices {
    /// By driver and whether the device is shared: devices with something left once those who leave
    /// have left.
    pub(crate) left: BTreeMap<(Arc<str>, bool), u64>,
    /// Drivers with devices that a filter selects, and how many devices.
    drivers: BTreeMap<FilterName, BTreeMap<Arc<str>, u64>>,
}

fn change<K: Clone + Ord>(counts: &mut BTreeMap<K, u64>, key: &K, comes: bool) {
    if comes {
        *counts.entry(key.clone()).or_default() += 1;
        return;
    }
    let left = counts.get_mut(key).map(|count| {
        *count = count.saturating_sub(1);
        *count
    });
    if left == Some(0) {
        counts.remove(key);
    }
}

impl FreeDevices {
    /// A pool comes or goes, with what is in use of its devices.
    pub(crate) fn change_pool(
        &mut self,
        row: &PoolRow,
        uses: &FxHashMap<DeviceId, DeviceUse>,
        comes: bool,
    ) {
        // Nothing is given of a pool that is not as it should be.
        if row.pool.fault.is_some() {
            return;
        }
        let driver = &row.pool.name.driver;
        for (id, device) in row.all() {
            for filter in &device.selected_by {
                let drivers = self.drivers.entry(filter.clone()).or_default();
                change(drivers, driver, comes);
                if drivers.is_empty() {
                    self.drivers.remove(filter);
                }
            }
            if uses.get(id).is_none_or(|used| used.leaves_some(device)) {
                self.change_device(driver, device.shared, comes);
            }
        }
    }

    /// A device of that driver is taken, or comes free.
    pub(crate) fn change_device(&mut self, driver: &Arc<str>, shared: bool, comes: bool) {
        change(&mut self.left, &(Arc::clone(driver), shared), comes);
    }

    /// How many are free or leaving of the drivers that have devices for such a request. `None`:
    /// some are shared, and several requests may get parts of one.
    pub(crate) fn of(&self, filter: &FilterName) -> Option<u64> {
        let mut sum = 0;
        for driver in self
            .drivers
            .get(filter)
            .into_iter()
            .flat_map(BTreeMap::keys)
        {
            let left = |shared| self.left.get(&(Arc::clone(driver), shared)).copied();
            if left(true).is_some() {
                return None;
            }
            sum += left(false).unwrap_or(0);
        }
        Some(sum)
    }

    /// Counted again.
    pub(crate) fn counted<'a>(
        pools: impl Iterator<Item = &'a PoolRow>,
        uses: &FxHashMap<DeviceId, DeviceUse>,
    ) -> Self {
        let mut counted = Self::default();
        for row in pools {
            counted.change_pool(row, uses, true);
        }
        counted
    }
}
