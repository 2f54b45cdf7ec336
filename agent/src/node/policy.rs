//! The admin's policy for this node, and what holds where it says nothing.

use crate::ledger::Share;
use crate::watchdog::ViolationKind;
use api::gpu_node::{GpuNodeSpec, Reaction};
use std::sync::LazyLock;

/// The policy of a node without a `GpuNode`.
static NONE: LazyLock<Policy> = LazyLock::new(Policy::default);

/// `GpuNode.spec` and where it came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// As written.
    pub spec: GpuNodeSpec,
    /// `metadata.generation`.
    pub generation: i64,
}

impl Policy {
    /// The policy that was seen, or the one of a node without any.
    pub fn or_none(seen: Option<&Self>) -> &Self {
        seen.unwrap_or(&NONE)
    }

    /// What happens to containers that violate their limits like this, where no claim says more.
    pub fn reaction(&self, wrong: ViolationKind) -> Reaction {
        let reaction = match wrong {
            ViolationKind::Pressure => self.spec.on_pressure,
            _ => self.spec.on_violation,
        };
        reaction.unwrap_or(Reaction::Kill)
    }

    /// The same for one share: its class may say anything, its claim only more.
    pub fn reaction_to(&self, wrong: ViolationKind, share: &Share) -> Reaction {
        let nodes = self.reaction(wrong);
        if wrong == ViolationKind::Pressure {
            return nodes;
        }
        let without = share.wishes.on_violation.unwrap_or(nodes);
        share
            .wishes
            .at_least
            .map_or(without, |own| own.max(without))
    }

    /// What happens to pods with a process on a card and without a grant.
    pub fn on_stranger(&self) -> Reaction {
        self.spec.on_stranger.unwrap_or(Reaction::Report)
    }
}
