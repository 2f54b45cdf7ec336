//! How pools of devices come, go, and change.

use crate::ids::{DeviceId, PoolName};
use crate::model::DevicePool;
use crate::state::State;
use crate::state::devices::Devices;
use crate::state::devices::pools::PoolRow;
use crate::state::keys::NodeKey;

impl State {
    /// A pool is there, or has changed.
    pub(crate) fn device_pool(&mut self, pool: DevicePool) {
        let name = pool.name.clone();
        if self.devices.pools.get(&name).map(|row| &row.pool) == Some(&pool) {
            return;
        }
        let mut reached = self.forget_pool(&name);
        let row = PoolRow::new(pool);
        for node in row.by_node.keys() {
            let pools = self.devices.local.entry(node.clone()).or_default();
            pools.insert(name.clone());
        }
        if row.is_everywhere() {
            self.devices.roaming.insert(name.clone());
        }
        for (id, device) in row.all() {
            if let Some(card) = &device.card {
                self.devices.cards.insert(card.clone(), id.clone());
            }
        }
        reached.extend(self.nodes_of(&row));
        let Devices { free, uses, .. } = &mut self.devices;
        free.change_pool(&row, uses, true);
        self.devices.pools.insert(name, row);
        self.reached(reached);
        self.changes.capacity_grew();
    }

    /// False: there was none of that name.
    pub(crate) fn device_pool_gone(&mut self, name: &PoolName) -> bool {
        let known = self.devices.pools.contains_key(name);
        let reached = self.forget_pool(name);
        self.reached(reached);
        self.changes.wake();
        known
    }

    fn reached(&mut self, mut nodes: Vec<NodeKey>) {
        self.devices.version += 1;
        nodes.sort_unstable();
        nodes.dedup();
        for node in nodes {
            self.touch_node(node);
        }
    }

    fn nodes_of(&self, row: &PoolRow) -> Vec<NodeKey> {
        if row.is_everywhere() {
            return self.nodes.keys().collect();
        }
        let names = row.by_node.keys();
        names
            .filter_map(|name| self.names.nodes.get(name).copied())
            .collect()
    }

    fn forget_pool(&mut self, name: &PoolName) -> Vec<NodeKey> {
        let Some(row) = self.devices.pools.remove(name) else {
            return Vec::new();
        };
        let Devices { free, uses, .. } = &mut self.devices;
        free.change_pool(&row, uses, false);
        for node in row.by_node.keys() {
            if let Some(pools) = self.devices.local.get_mut(node) {
                pools.remove(name);
                if pools.is_empty() {
                    self.devices.local.remove(node);
                }
            }
        }
        self.devices.roaming.remove(name);
        let ids: std::collections::BTreeSet<&DeviceId> = row.ids.iter().collect();
        self.devices.cards.retain(|_, id| !ids.contains(id));
        self.nodes_of(&row)
    }
}
