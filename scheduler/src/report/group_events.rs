//! KAI's events about pod groups that wait: `NotReady` and `Unschedulable`, once for each change of
//! the reason. Best effort: the group's condition and its pods' say the same.

use crate::act::event::{self, Annotations, KubeEvent};
use crate::group::KnownGroups;
use kube::Client;
use kube::runtime::events::Reporter;
use scheduler_core::ids::GroupName;
use scheduler_core::{GroupView, ReasonKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Events of one round, one after the other; the others come with the next. A status is more
/// urgent.
const AT_ONCE: usize = 16;

/// The last event of each group.
pub(crate) struct GroupEvents {
    client: Client,
    reporter: Reporter,
    known: KnownGroups,
    said: BTreeMap<GroupName, ReasonKind>,
}

impl GroupEvents {
    /// No events yet. `controller`, `instance`: their source.
    pub(crate) fn new(
        client: Client,
        known: KnownGroups,
        controller: String,
        instance: String,
    ) -> Self {
        Self {
            client,
            reporter: Reporter {
                controller,
                instance: Some(instance),
            },
            known,
            said: BTreeMap::new(),
        }
    }

    /// Sends new events; returns whether all were sent. Groups that no longer wait are forgotten.
    pub(super) async fn tell(&mut self, groups: &[(Arc<str>, Arc<[GroupView]>)]) -> bool {
        let before = std::mem::take(&mut self.said);
        let mut told = 0;
        for view in groups.iter().flat_map(|(_, groups)| &**groups) {
            let Some((kind, line)) = &view.reason else {
                continue;
            };
            let Some(reason) = word(*kind) else {
                continue;
            };
            if before.get(&view.group) != Some(kind) {
                // A group that the watch does not show yet gets its event later.
                let parts = view.group.as_str().split_once('/');
                let about = parts.and_then(|(space, name)| self.known.reference(space, name));
                let Some(about) = about else {
                    continue;
                };
                told += 1;
                if told > AT_ONCE {
                    continue;
                }
                let event = KubeEvent {
                    about,
                    warning: false,
                    reason,
                    action: "Scheduling",
                    note: line.to_string(),
                };
                event::publish(&self.client, &self.reporter, event, Annotations::new()).await;
            }
            self.said.insert(view.group.clone(), *kind);
        }
        told <= AT_ONCE
    }
}

/// KAI's word; none where the group has a place already.
fn word(kind: ReasonKind) -> Option<&'static str> {
    match kind {
        ReasonKind::NotReady | ReasonKind::Gated => Some("NotReady"),
        ReasonKind::Promised => None,
        _ => Some("Unschedulable"),
    }
}
