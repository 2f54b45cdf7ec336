//! What the grouper and the binder share.

use super::groups::Groups;
use super::known::KnownGroups;
use super::member::Memberships;
use crate::config::LonePodGroups;
use kube::Client;
use std::sync::Arc;

/// All clones share the same state.
#[derive(Clone, Debug)]
pub struct Shared {
    pub(crate) groups: Arc<Groups>,
    pub(crate) memberships: Memberships,
    /// The groups that are there.
    pub(crate) known: KnownGroups,
    lone_pods: LonePodGroups,
}

impl Shared {
    /// An empty state. Groups are written with `client`.
    pub fn new(client: Client, lone_pods: LonePodGroups) -> Self {
        Self {
            groups: Arc::new(Groups::new(client)),
            memberships: Memberships::default(),
            known: KnownGroups::default(),
            lone_pods,
        }
    }

    /// Whether pods without an owner get a group.
    pub(crate) fn groups_lone_pods(&self) -> bool {
        self.lone_pods == LonePodGroups::Write
    }
}
