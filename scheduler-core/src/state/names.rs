//! Keys of rows by the names of their objects.

use crate::ids::{GroupName, NodeName, QueueName};
use crate::state::card_names::CardNames;
use crate::state::keys::{JobKey, NodeKey, QueueKey, SpecKey, TaskKey};
use crate::state::spec::Spec;
use crate::state::uid::Uid;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The keys of all rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub nodes: BTreeMap<NodeName, NodeKey>,
    pub cards: CardNames,
    /// Names are only looked up in this map: its order is chance.
    pub tasks: FxHashMap<Uid, TaskKey>,
    pub jobs: BTreeMap<GroupName, JobKey>,
    pub queues: BTreeMap<QueueName, QueueKey>,
    pub specs: BTreeMap<Arc<Spec>, SpecKey>,
}
