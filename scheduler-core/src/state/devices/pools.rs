//! Pools of devices, and which nodes they are for.

use crate::ids::{DeviceId, NodeName};
use crate::model::{Device, DeviceNodes, DevicePool, Node};
use std::collections::BTreeMap;

/// A pool, and its devices by node.
#[derive(Clone, Debug)]
pub(crate) struct PoolRow {
    pub pool: DevicePool,
    /// Of each device, in the pool's order.
    pub(crate) ids: Vec<DeviceId>,
    /// Devices of one node, by its name.
    pub(crate) by_node: BTreeMap<NodeName, Vec<usize>>,
    /// The others.
    pub(crate) roaming: Vec<usize>,
}

impl PoolRow {
    pub(crate) fn new(pool: DevicePool) -> Self {
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
    pub(crate) fn is_everywhere(&self) -> bool {
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
