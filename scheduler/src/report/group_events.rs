//! KAI's events about pod groups that wait: `NotReady` and `Unschedulable`, once for each change of
//! the reason. Best effort: the group's condition and its pods' say the same.

use super::GroupReport;
use crate::act::event::{self, Annotations, KubeEvent};
use crate::group::KnownGroups;
use kube::Client;
use kube::runtime::events::Reporter;
use scheduler_core::ids::GroupName;
use scheduler_core::{GroupChange, ReasonKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Events of one round, one after the other; the others come with the next. A status is more
/// urgent.
const AT_ONCE: usize = 16;

/// The groups that wait, and which of them were not told about it.
pub(crate) struct GroupEvents {
    client: Client,
    reporter: Reporter,
    known: KnownGroups,
    waiting: BTreeMap<GroupName, Waiting>,
    due: BTreeSet<GroupName>,
}

struct Waiting {
    /// The name of its node pool.
    pool: Arc<str>,
    kind: ReasonKind,
    /// Its reason in words, until the event is sent.
    line: Option<Arc<str>>,
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
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    /// Notes who waits, and for another reason than before. Groups that no longer wait are
    /// forgotten.
    pub(super) fn take(&mut self, report: &GroupReport) {
        let GroupReport::Change(pool, change) = report else {
            return;
        };
        let (name, reason) = match change {
            GroupChange::Changed(view) => (&view.group, view.reason.as_ref()),
            GroupChange::Gone(name) => (name, None),
        };
        let reason = reason.filter(|(kind, _)| word(*kind).is_some());
        let before = self.waiting.get(name);
        let Some((kind, line)) = reason else {
            let is_of_pool = before.is_some_and(|of| of.pool == *pool);
            if is_of_pool || matches!(change, GroupChange::Changed(_)) {
                self.waiting.remove(name);
                self.due.remove(name);
            }
            return;
        };
        let is_told = before.is_some_and(|of| of.kind == *kind && of.line.is_none());
        if !is_told {
            self.due.insert(name.clone());
        }
        let of = Waiting {
            pool: Arc::clone(pool),
            kind: *kind,
            line: (!is_told).then(|| Arc::clone(line)),
        };
        self.waiting.insert(name.clone(), of);
    }

    /// Sends new events; returns whether all were sent. A group that the watch does not show yet
    /// gets its event later.
    pub(super) async fn tell(&mut self) -> bool {
        let Self { known, waiting, .. } = &*self;
        let due = self.due.iter().filter_map(|name| {
            let (space, own) = name.as_str().split_once('/')?;
            waiting.get(name)?;
            Some((name.clone(), known.reference(space, own)?))
        });
        let due: Vec<_> = due.take(AT_ONCE).collect();
        for (name, about) in due {
            self.due.remove(&name);
            let Some(of) = self.waiting.get_mut(&name) else {
                continue;
            };
            let (Some(reason), Some(line)) = (word(of.kind), of.line.take()) else {
                continue;
            };
            let event = KubeEvent {
                about,
                warning: false,
                reason,
                action: "Scheduling",
                note: line.to_string(),
            };
            event::publish(&self.client, &self.reporter, event, Annotations::new()).await;
        }
        self.due.is_empty()
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
