//! The services that every write to the API server uses.

use super::awaited_claims::AwaitedClaims;
use super::claim::Locks;
use super::event::EventRecorder;
use crate::clock::Wall;
use crate::status::Meters;
use crate::trust::Trust;
use kube::Client;
use scheduler_core::EvictCause;
use scheduler_core::ids::DecisionId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// The services and settings that every write uses.
#[derive(Clone)]
pub(super) struct WriteContext {
    pub(super) client: Client,
    pub(super) trust: Trust,
    pub(super) events: EventRecorder,
    /// The server takes a Binding's annotations, but not its labels.
    pub(super) labels_apart: bool,
    pub(super) meters: Arc<Meters>,
    pub(super) wall: Wall,
    pub(super) volume_timeout: Duration,
    pub(super) awaited: AwaitedClaims,
    pub(super) budgets: bool,
    pub(super) pools: Arc<BTreeMap<u64, String>>,
    pub(super) grouping: crate::group::Shared,
    pub(super) asks_for_nodes: bool,
    pub(super) claims: Locks,
    pub(super) permits: Arc<Semaphore>,
}

impl WriteContext {
    /// Returns the name of the node pool of a decision.
    pub(super) fn pool(&self, decision: DecisionId) -> &str {
        self.pools
            .get(&decision.epoch)
            .map_or("default", String::as_str)
    }

    /// Returns true if evictions of that cause respect disruption budgets. To save a node is no
    /// reason to break one.
    pub(super) fn keeps_budgets(&self, cause: EvictCause) -> bool {
        cause.makes_room() && (self.budgets || cause == EvictCause::ScaleDown)
    }
}
