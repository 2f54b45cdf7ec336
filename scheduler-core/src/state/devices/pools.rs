//! Pools of devices, and which nodes they are for.

use super::super::State;
use super::super::keys::NodeKey;
use super::Devices;
use crate::ids::{DeviceId, NodeName, PoolName};
use crate::model::{Device, DeviceNodes, DevicePool, Node};
use std::collections::BTreeMap;

/// A pool, and its devices by node.
#[derive(Clone, Debug)]
pub(crate) struct PoolRow {
    pub pool: DevicePool,
    /// Of each device, in the pool's order.
    ids: Vec<DeviceId>,
    /// Devices of one node, by its name.
    by_node: BTreeMap<NodeName, Vec<usize>>,
    /// The others.
    roaming: Vec<usize>,
}

impl PoolRow {
    fn new(pool: DevicePool) -> Self {
        let ids = pool.devices.iter();
        let ids = ids.map(|device| pool.name.device(&device.name)).collect();
        let mut by_node: BTreeMap<NodeName, Vec<usize>> = BTreeMap::new();
        let mut roaming = Vec::new();
        for (at, device) in pool.devices.iter().enumerate() {
            match &device.nodes {
                DeviceNodes::Node(name) => by_node.entry(name.clone()).or_default().push(at),
                DeviceNodes::None => {}
                DeviceNodes::All | DeviceNodes::Terms(_) => roaming.push(at),
            }
        }
        Self {
            pool,
            ids,
            by_node,
            roaming,
        }
    }

    /// Every node looks at it: its devices are for several, or it has something wrong, and what
    /// its devices share is not said for one node.
    fn is_everywhere(&self) -> bool {
        !self.roaming.is_empty() || self.blocks_all()
    }

    /// What is wrong with it concerns every request for all devices, of whatever node: with
    /// counters it may have devices for each.
    pub(crate) fn blocks_all(&self) -> bool {
        self.pool.fault.is_some() && !self.pool.counters.is_empty()
    }

    /// Every device.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&DeviceId, &Device)> {
        self.ids.iter().zip(&self.pool.devices)
    }

    /// Those that the node can use, in the pool's order.
    pub(crate) fn devices_on<'a>(
        &'a self,
        node: &Node,
    ) -> impl Iterator<Item = (&'a DeviceId, &'a Device)> + use<'a> {
        let mut here = self.by_node.get(&node.name).cloned().unwrap_or_default();
        let has = |at: &&usize| {
            let device = self.pool.devices.get(**at);
            device.is_some_and(|device| device.nodes.has(node))
        };
        if !self.roaming.is_empty() {
            here.extend(self.roaming.iter().filter(has));
            here.sort_unstable();
        }
        let device = |at: usize| Some((self.ids.get(at)?, self.pool.devices.get(at)?));
        here.into_iter().filter_map(device)
    }
}

impl Devices {
    /// Pools with devices that a node of that name can use, perhaps.
    pub(crate) fn pools_of(&self, node: &NodeName) -> impl Iterator<Item = &PoolRow> {
        let local = self.local.get(node).into_iter().flatten();
        let mut names: Vec<&PoolName> = local.chain(&self.roaming).collect();
        if !self.roaming.is_empty() {
            names.sort_unstable();
            names.dedup();
        }
        names.into_iter().filter_map(|name| self.pools.get(name))
    }

    /// The device and its pool, where they are there.
    pub(super) fn found(&self, id: &DeviceId) -> Option<(&PoolRow, &Device)> {
        let (pool, name) = id.split()?;
        let row = self.pools.get(&pool)?;
        let mut devices = row.pool.devices.iter();
        Some((row, devices.find(|device| *device.name == *name)?))
    }

    /// The device, where its pool is there.
    pub(crate) fn device(&self, id: &DeviceId) -> Option<&Device> {
        self.found(id).map(|(_, device)| device)
    }
}

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
        self.capacity_grew();
    }

    /// False: there was none of that name.
    pub(crate) fn device_pool_gone(&mut self, name: &PoolName) -> bool {
        let known = self.devices.pools.contains_key(name);
        let reached = self.forget_pool(name);
        self.reached(reached);
        self.wake();
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
            .filter_map(|name| self.node_names.get(name).copied())
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
