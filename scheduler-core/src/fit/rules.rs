//! Rules of the node that no pod's coming or going changes, and its MIG strategy.

use crate::model::Effect;

use crate::model::Taint;

use crate::model::Toleration;
use crate::reason::NodeReason;
use crate::state::State;
use crate::state::keys::NodeKey;
use crate::state::mig::MigStrategy;
use crate::state::rows::{MissingLabels, NodeRow};
use crate::state::spec::Spec;
use crate::state::spec_row::SpecRow;
use std::sync::Arc;

/// Rules of the node that no pod's coming or going changes; `gpus`: the pod wants some.
pub(crate) fn rules(row: &NodeRow, spec: &Spec, gpus: bool) -> Result<(), NodeReason> {
    let Some(node) = &row.node else {
        return Err(NodeReason::Unschedulable);
    };
    if let Some(why) = node.not_ready.first() {
        return Err(NodeReason::NotReady(Arc::clone(why)));
    }
    if node.unschedulable && !tolerates_unschedulable(&spec.tolerations) {
        return Err(NodeReason::Unschedulable);
    }
    if let Some(taint) = node.barring_taint(&spec.tolerations) {
        return Err(NodeReason::Taint(taint.clone()));
    }
    if !spec.rules.admit(node) {
        return Err(NodeReason::Selector);
    }
    match (&row.lacks, gpus) {
        (
            MissingLabels {
                gpu: Some(label), ..
            },
            true,
        ) => Err(NodeReason::NoGpuWorker(Arc::clone(label))),
        (
            MissingLabels {
                cpu: Some(label), ..
            },
            false,
        ) => Err(NodeReason::NoCpuWorker(Arc::clone(label))),
        _ => Ok(()),
    }
}

/// What a node's MIG strategy lets in (KAI's `PredicateByNodeResourcesType`).
pub(super) fn mig(state: &State, spec: &SpecRow, key: NodeKey) -> Result<(), NodeReason> {
    let Some(row) = state.nodes.get(key) else {
        return Ok(());
    };
    if spec.mig_nano > 0 && row.mig != MigStrategy::Off && has_legacy_mig(state, key) {
        return Err(NodeReason::LegacyMig);
    }
    mig_strategy(row, spec)
}

/// The same without the pods that hold slices, which may be evicted. A node with an agent may have
/// cards beside those in MIG mode: there the cards decide.
pub(super) fn mig_strategy(row: &NodeRow, spec: &SpecRow) -> Result<(), NodeReason> {
    let wants_profile = spec.mig_nano > 0;
    let by_card = row.node.as_ref().is_some_and(|node| node.managed);
    match row.mig {
        MigStrategy::Off if wants_profile => Err(NodeReason::NotMig),
        MigStrategy::Single if wants_profile || spec.shares => Err(NodeReason::MigSingle),
        MigStrategy::Mixed if !wants_profile && !by_card => Err(NodeReason::MigMixed),
        _ => Ok(()),
    }
}

/// A pod that KAI placed by a legacy annotation holds MIG slices that are not counted.
fn has_legacy_mig(state: &State, key: NodeKey) -> bool {
    state
        .index
        .on_node
        .get(key)
        .into_iter()
        .flatten()
        .any(|task| {
            state
                .tasks
                .get(*task)
                .and_then(|row| state.specs.get(row.spec))
                .is_some_and(|spec| {
                    let rules = &spec.spec.unsupported;
                    rules.iter().any(|rule| **rule == *crate::model::LEGACY_MIG)
                })
        })
}

/// Kubernetes' own taint for the flag.
fn tolerates_unschedulable(tolerations: &[Toleration]) -> bool {
    let taint = Taint {
        key: Arc::from("node.kubernetes.io/unschedulable"),
        value: Arc::from(""),
        effect: Effect::NoSchedule,
    };
    tolerations
        .iter()
        .any(|toleration| toleration.tolerates(&taint))
}
