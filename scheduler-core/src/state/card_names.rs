//! The rows of cards by UUID. A card that was moved to another machine, or whose machine has another
//! name now, has a row on each node that names it, for as long as an agent or a pod does.

use super::keys::{CardKey, NodeKey};
use crate::ids::GpuUuid;
use slotmap::KeyData;
use std::collections::BTreeMap;

/// An index of all rows of cards.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardNames(BTreeMap<(GpuUuid, NodeKey), CardKey>);

impl CardNames {
    /// Returns the row of the card on that node.
    pub(crate) fn on(&self, uuid: &GpuUuid, node: NodeKey) -> Option<CardKey> {
        self.0.get(&(uuid.clone(), node)).copied()
    }

    /// Returns the rows of the card on all nodes.
    pub(crate) fn everywhere<'a>(
        &'a self,
        uuid: &'a GpuUuid,
    ) -> impl Iterator<Item = CardKey> + 'a {
        // No row has this key: it is the least one, where a null key is the greatest.
        let least = NodeKey::from(KeyData::from_ffi(0));
        let first = (uuid.clone(), least);
        let rows = self.0.range(first..);
        rows.take_while(move |((name, _), _)| name == uuid)
            .map(|(_, key)| *key)
    }

    pub(super) fn insert(&mut self, uuid: &GpuUuid, node: NodeKey, card: CardKey) {
        self.0.insert((uuid.clone(), node), card);
    }

    pub(super) fn remove(&mut self, uuid: &GpuUuid, node: NodeKey) {
        self.0.remove(&(uuid.clone(), node));
    }
}
