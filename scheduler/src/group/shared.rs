//! What the grouper shares with whoever binds pods.

use super::groups::Groups;
use super::member::Memberships;
use crate::config::LonePodGroups;
use kube::Client;
use std::sync::Arc;

/// Each clone stands for the same.
#[derive(Clone, Debug)]
pub struct Shared {
    pub(crate) groups: Arc<Groups>,
    pub(crate) memberships: Memberships,
    lone_pods: LonePodGroups,
}

impl Shared {
    /// Nothing is known yet. `client` writes the groups.
    pub fn new(client: Client, lone_pods: LonePodGroups) -> Self {
        Self {
            groups: Arc::new(Groups::new(client)),
            memberships: Memberships::default(),
            lone_pods,
        }
    }

    /// Whether a pod that nobody owns gets a group.
    pub(crate) fn groups_lone_pods(&self) -> bool {
        self.lone_pods == LonePodGroups::Write
    }
}
