//! Where a pod is, for the sums: its status, its node and what it holds there.

use crate::ids::DecisionId;
use crate::model::Front;
use crate::state::hold::Hold;
use crate::state::keys::NodeKey;
use crate::state::way::As;
use std::sync::Arc;

/// Where a task is, for the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// Not counted anywhere: its row is being changed.
    #[default]
    Detached,
    /// Waits for a place.
    Pending,
    /// Has a place as soon as what is being released there is free: counted apart from
    /// what is really taken. Lives only inside one decision.
    Promised,
    /// Decided here, no outcome yet seen in the API server: counts as taken. Inside a
    /// trial without a decision, and whole GPUs are only counted, not yet chosen.
    Assumed,
    /// Bound.
    Bound,
    /// Runs.
    Running,
    /// Evicted inside a trial; what it holds is in [`TaskCell::leaving`].
    Victim,
    /// On its way out, still holding.
    Releasing,
    /// Termination overdue: it still holds its resources, and is treated as holding them indefinitely.
    Stuck,
    /// Holds nothing any more, or never will.
    Done,
}

impl Status {
    /// How the place of such a pod counts. `None`: it has none.
    pub(crate) fn counts_as(self) -> Option<As> {
        match self {
            Self::Assumed | Self::Bound | Self::Running | Self::Stuck => Some(As::Taken),
            Self::Releasing => Some(As::Leaving),
            Self::Promised => Some(As::Promised),
            Self::Detached | Self::Pending | Self::Victim | Self::Done => None,
        }
    }

    /// KAI's `activeUsed`.
    pub(crate) fn is_active(self) -> bool {
        self.is_allocated() || matches!(self, Self::Releasing | Self::Stuck | Self::Victim)
    }

    /// KAI's `activeAllocated`: promises too, what is on its way out not.
    pub(crate) fn is_allocated(self) -> bool {
        matches!(
            self,
            Self::Promised | Self::Assumed | Self::Bound | Self::Running
        )
    }
}

/// One task's place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskCell {
    pub status: Status,
    pub node: Option<NodeKey>,
    /// How its whole GPUs are given there.
    pub front: Front,
    /// `None`: nothing.
    pub holds: Option<Arc<[Hold]>>,
    /// The open decision, while assumed. Boxed: few pods are.
    pub decision: Option<Box<DecisionId>>,
    /// What a victim of this trial still holds, wherever it may be promised a new place.
    pub leaving: Option<Arc<Leaving>>,
}

impl TaskCell {
    pub(crate) fn of(status: Status) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn holds(&self) -> &[Hold] {
        self.holds.as_deref().unwrap_or_default()
    }

    /// The cell of a pod that leaves its place, which it may get back.
    pub(crate) fn victim(self) -> Self {
        let leaving = match (self.status, self.node) {
            (Status::Promised, _) | (_, None) => self.leaving,
            (was, Some(node)) => Some(Arc::new(Leaving {
                was,
                node,
                front: self.front,
                holds: self.holds,
                decision: self.decision.map(|decision| *decision),
            })),
        };
        Self {
            leaving,
            ..Self::of(Status::Victim)
        }
    }

    /// The places that it takes, and how each counts.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (NodeKey, As)> + use<> {
        let leaving = self
            .leaving
            .as_ref()
            .map(|leaving| (leaving.node, As::Leaving));
        let own = self.node.zip(self.status.counts_as());
        leaving.into_iter().chain(own)
    }

    /// Where it stands, and where it is leaving.
    pub(crate) fn places(&self) -> [Option<NodeKey>; 2] {
        [self.node, self.leaving.as_ref().map(|leaving| leaving.node)]
    }
}

/// The place that a victim of a trial is leaving, to go back to if it is spared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaving {
    pub was: Status,
    pub node: NodeKey,
    pub front: Front,
    pub holds: Option<Arc<[Hold]>>,
    pub decision: Option<DecisionId>,
}

impl Leaving {
    pub(crate) fn holds(&self) -> &[Hold] {
        self.holds.as_deref().unwrap_or_default()
    }
}
