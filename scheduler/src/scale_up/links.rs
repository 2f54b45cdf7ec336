//! The channels between the cycle and the planner of nodes.

use super::meters::ScaleUpMeters;
use super::templates::NodeGroups;
use scheduler_core::ids::PodUid;
use scheduler_core::scale_up::{Shortage, Unknown};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The pods for which one cycle has no room.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) shortage: Shortage,
    pub(crate) config: scheduler_core::Config,
}

/// The pods for which nodes were requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked(pub(crate) BTreeMap<PodUid, Arc<str>>);

/// The planner's ends of the channels.
pub(crate) struct Links {
    pub(super) known: NodeGroups,
    pub(super) unknown: Unknown,
    pub(super) looks: watch::Receiver<Option<Look>>,
    pub(super) asked: watch::Sender<Asked>,
    pub(crate) client: kube::Client,
    pub(crate) wall: crate::clock::Wall,
    pub(crate) meters: Arc<ScaleUpMeters>,
    /// The name of the shard's node pool.
    pub(crate) pool: String,
}
