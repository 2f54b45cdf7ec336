//! Where best: KAI's terms (`plugins/scores`), compared one after another in place of
//! summed, which is the same since each outweighs all that follow.

use crate::config::{Config, Placement, Plugin};
use crate::cycle::fragments::Fragments;
use crate::fit::{Assignment, free, pods};
use crate::state::State;
use crate::state::keys::NodeKey;
use crate::state::spec_row::SpecRow;
use std::cmp::Reverse;

/// Larger is better. The caller breaks ties by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score {
    /// In KAI's weights: a hundred for the node that another component named, ten times what
    /// pods near it are worth, and 0 to 10 for the preferred topology domain.
    preferred: i64,
    /// A share joins a card that is shared already.
    joins: bool,
    /// The countable resources are free now.
    now: bool,
    /// A pod without GPUs on a node without GPUs.
    plain: bool,
    /// Taints that prefer other pods, which it does not tolerate.
    taints: Reverse<usize>,
    /// What the node is worth to its preferred node affinity.
    affinity: i64,
    /// How uneven the domains of its preferred spread would be.
    spread: Reverse<i64>,
    /// How full, or how empty, of the resource that the pod is about.
    placement: i128,
}

impl Score {
    /// The node is in that one of its preferred topology domains, 0 to 10.
    pub(crate) fn prefer_domain(&mut self, domain: Option<u8>) {
        let domain = i64::from(domain.unwrap_or(0));
        self.preferred = self.preferred.saturating_add(domain);
    }
}

/// How good a seat is. `fragments`: where a placement asks for it.
pub(crate) fn node(
    state: &State,
    config: &Config,
    spec: &SpecRow,
    key: NodeKey,
    assignment: &Assignment,
    fragments: Option<&Fragments>,
) -> Score {
    let Some((row, node)) = state
        .nodes
        .get(key)
        .and_then(|row| Some((row, row.node.as_ref()?)))
    else {
        return Score::default();
    };
    let gpus = if node.managed {
        row.cards.len() as u128
    } else {
        u128::from(node.gpus)
    };
    let wants_gpus = spec.wants_gpus();
    let signed = |amount: u128| i128::try_from(amount).unwrap_or(i128::MAX);
    let (free, has) = if wants_gpus {
        (
            i128::from(free::whole_count(state, key).later),
            signed(gpus),
        )
    } else {
        let used = state.cells.nodes.get(key).copied().unwrap_or_default();
        let free = signed(u128::from(node.cpu.0) + used.releasing.cpu)
            - signed(used.used.cpu + used.promised.cpu);
        (free, i128::from(node.cpu.0))
    };
    let strategy = if wants_gpus {
        config.gpu_placement
    } else {
        config.cpu_placement
    };
    let placement = match strategy {
        Placement::Binpack => -free,
        // Parts of shared cards count here, as in KAI.
        Placement::Spread if has > 0 && wants_gpus => signed(free::nano(state, key)) / has,
        Placement::Spread if has > 0 => free.saturating_mul(1_000_000_000) / has,
        Placement::Spread => 0,
        Placement::Fragmentation => fragments.map_or(0, |fragments| {
            i128::from(fragments.rank(state, spec, key, assignment))
        }),
    };
    let pods = if config.has(Plugin::PodAffinity) {
        pods::preference(state, spec, key, node).saturating_mul(10)
    } else {
        0
    };
    let is_nominated = spec.spec.rules.nominated.as_ref() == Some(&node.name);
    Score {
        preferred: if is_nominated && config.has(Plugin::NominatedNode) {
            pods.saturating_add(100)
        } else {
            pods
        },
        joins: assignment.joins
            && config.gpu_placement == Placement::Binpack
            && config.has(Plugin::GpuSharingOrder),
        now: assignment.allocatable && config.has(Plugin::NodeAvailability),
        plain: !wants_gpus && row.is_plain() && config.has(Plugin::ResourceType),
        taints: Reverse(node.soft_taints(&spec.spec.tolerations)),
        affinity: spec.spec.rules.worth(node),
        spread: Reverse(pods::unevenness(state, spec, node)),
        placement: if config.has(Plugin::NodePlacement) {
            placement
        } else {
            0
        },
    }
}
