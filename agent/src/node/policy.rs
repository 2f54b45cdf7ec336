//! The admin's policy for this node decides about reactions; defaults apply where it says nothing.

use crate::ledger::Share;
use crate::watchdog::ViolationKind;
use api::gpu_node::{GpuNodeSpec, Reaction};
use std::sync::LazyLock;

/// The policy of a node without a `GpuNode`.
static NONE: LazyLock<Policy> = LazyLock::new(Policy::default);

/// `GpuNode.spec` and where it came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// The spec as it was written.
    pub spec: GpuNodeSpec,
    /// `metadata.generation`.
    pub generation: i64,
}

impl Policy {
    /// Returns the policy that was seen, or that of a node without a `GpuNode`.
    pub fn or_none(seen: Option<&Self>) -> &Self {
        seen.unwrap_or(&NONE)
    }

    /// Returns the reaction to a kind of violation, where neither class nor claim says more.
    pub fn reaction(&self, wrong: ViolationKind) -> Reaction {
        let reaction = match wrong {
            ViolationKind::Pressure => self.spec.on_pressure,
            _ => self.spec.on_violation,
        };
        reaction.unwrap_or(Reaction::Kill)
    }

    /// Returns the reaction for one share. Its class may say anything, its claim only something
    /// stricter.
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

    /// Returns the reaction to pods with a process on a card and without a grant.
    pub fn on_stranger(&self) -> Reaction {
        self.spec.on_stranger.unwrap_or(Reaction::Report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{ShareOptions, SharePhase, Turn};
    use api::grant::PodIdentity;
    use api::{Mib, Mode};

    fn share(class: Option<Reaction>, claim: Option<Reaction>) -> Share {
        Share {
            pod: PodIdentity {
                uid: "u".into(),
                namespace: "ns".into(),
                name: "p".into(),
            },
            container: "main".into(),
            turn: Turn::default(),
            gpus: Vec::new(),
            memory: Mib(1),
            kept: Mib(1),
            compute_percent: 100,
            mode: Mode::Mps,
            decision: String::new(),
            claimed: None,
            wishes: ShareOptions {
                on_violation: class,
                at_least: claim,
                ..ShareOptions::default()
            },
            phase: SharePhase::Running,
            alloc_id: None,
            fence: None,
            container_id: None,
            used: Mib(0),
            sm_percent: None,
            idle_minutes: None,
        }
    }

    #[test]
    fn a_class_says_anything_a_claim_only_more_and_neither_anything_of_pressure() {
        let (report, evict, kill) = (
            Some(Reaction::Report),
            Some(Reaction::Evict),
            Some(Reaction::Kill),
        );
        for (node, class, claim, expected) in [
            (None, None, None, kill),
            (report, None, None, report),
            (kill, report, None, report),
            (report, kill, None, kill),
            (report, None, evict, evict),
            (kill, None, report, kill),
            (kill, report, evict, evict),
        ] {
            let mut policy = Policy::default();
            policy.spec.on_violation = node;
            policy.spec.on_pressure = evict;
            let share = share(class, claim);
            let found = policy.reaction_to(ViolationKind::Memory, &share);
            assert_eq!(Some(found), expected, "{node:?} {class:?} {claim:?}");
            let found = policy.reaction_to(ViolationKind::Pressure, &share);
            assert_eq!(found, Reaction::Evict);
        }
        assert_eq!(Policy::or_none(None).on_stranger(), Reaction::Report);
    }
}
