//! Rules between pods: Kubernetes' `InterPodAffinity`, `PodTopologySpread` and `NodePorts` filters,
//! evaluated on counts that the state keeps.
//!
//! A terminating pod counts as present now and as gone later; a promise counts later only. So a pod may
//! be promised the place that a pod with conflicting anti-affinity is leaving.

use crate::fit::resources::Room;
use crate::model::{HostPort, Node};
use crate::reason::NodeReason;
use crate::state::State;
use crate::state::counted::CountKey;
use crate::state::extra_use::ExtraUse;
use crate::state::keys::NodeKey;
use crate::state::spec_row::SpecRow;

/// Whether other pods let it in. The order of the reasons is kube-scheduler's.
pub(super) fn let_in(
    state: &State,
    spec: &SpecRow,
    key: NodeKey,
    node: &Node,
    room: &mut Room,
) -> Result<(), NodeReason> {
    if spec.asks.is_none() {
        return Ok(());
    }
    let spec = &*state.with_domains(spec);
    let Some((asks, others)) = spec.asks.as_deref().zip(spec.spec.others.as_deref()) else {
        return Ok(());
    };
    let here = |key_of: &CountKey| -> Option<ExtraUse> {
        let domain = state.domain(key, &state.cells.pod_counts.get(*key_of)?.what)?;
        let pods = state.pods_by_domain(asks, *key_of)?;
        Some(pods.get(&domain).copied().unwrap_or_default())
    };
    if !asks.spread.is_empty() {
        let skews = state.skews(spec, node);
        for (spread, skew) in others.rules.spread.iter().zip(skews) {
            match skew {
                _ if !spread.required => {}
                None => return Err(NodeReason::SpreadLabel),
                Some(skew) if skew.later > u128::from(spread.max_skew) => {
                    return Err(NodeReason::Spread);
                }
                Some(skew) => room.now &= skew.now <= u128::from(spread.max_skew),
            }
        }
    }
    if !asks.affinity.is_empty() {
        let near: Option<Vec<ExtraUse>> = asks.affinity.iter().map(here).collect();
        let near = near.ok_or(NodeReason::Affinity)?;
        let nobody = |is_there: fn(&ExtraUse) -> bool| {
            let all = asks.affinity.iter();
            let pods = all.filter_map(|key| state.pods_by_domain(asks, *key));
            let mut used = pods.flat_map(|pods| pods.values());
            others.is_near_itself && !used.any(is_there)
        };
        let is_now =
            near.iter().all(|used| used.used > 0) || nobody(|used| used.used + used.promised > 0);
        let is_later = near.iter().all(ExtraUse::stays) || nobody(ExtraUse::stays);
        room.now &= is_now;
        if !is_later && (room.promise || !is_now) {
            return Err(NodeReason::Affinity);
        }
    }
    for used in asks.anti_affinity.iter().filter_map(here) {
        room.now &= used.used == 0;
        if used.stays() {
            return Err(NodeReason::AntiAffinity);
        }
    }
    let domains = asks.domains.as_ref();
    if let Some(closed) = domains.and_then(|domains| domains.closed()) {
        let (now, later) = closed.is(&node.labels);
        room.now &= !now;
        if later {
            return Err(NodeReason::AvoidedBy);
        }
    }
    Ok(())
}

/// A pod that has a place there is spread as it asks.
pub(crate) fn is_spread(state: &State, spec: &SpecRow, node: &Node) -> bool {
    let Some(others) = spec.spec.others.as_deref() else {
        return true;
    };
    let itself = others
        .counts_itself
        .iter()
        .map(|itself| u128::from(*itself));
    let skews = state.skews(spec, node).into_iter().zip(itself);
    let mut all = skews
        .zip(&others.rules.spread)
        .filter(|(_, spread)| spread.required);
    all.all(|((skew, itself), spread)| {
        let after = skew.map(|skew| skew.later.saturating_sub(itself));
        after.is_some_and(|skew| skew <= u128::from(spread.max_skew))
    })
}

/// Ports of the node that are taken.
pub(super) fn ports(state: &State, spec: &SpecRow, key: NodeKey, room: &mut Room) -> bool {
    spec.spec.ports.iter().all(|port| {
        taken_by(port).all(|name| {
            let used = state.cells.extra.get(&(key, name));
            let used = used.copied().unwrap_or_default();
            room.now &= used.used == 0;
            !used.stays()
        })
    })
}

/// The keys under which holders of the port are counted: for a port on all addresses, any holder;
/// for one address, holders of that address or of all.
fn taken_by(port: &HostPort) -> impl Iterator<Item = crate::ids::ResourceName> {
    let [own, any] = port.counted_as();
    let on_all = HostPort {
        address: HostPort::ANY_ADDRESS.into(),
        ..port.clone()
    };
    let [on_all, _] = on_all.counted_as();
    let names = if port.is_on_all() {
        [Some(any), None]
    } else {
        [Some(own), Some(on_all)]
    };
    names.into_iter().flatten()
}

/// What pods near the node are worth to it, and it to them: the weights of its preferred terms,
/// each as often as there are such pods, and of theirs that match it (kube-scheduler's raw score
/// with the arguments that KAI gives: required terms count nothing, and it does not normalize).
pub(crate) fn preference(state: &State, spec: &SpecRow, key: NodeKey, node: &Node) -> i64 {
    let may_prefer = |row: &SpecRow| {
        let others = row.spec.others.as_ref();
        let own = row.asks.as_ref().map(|asks| &asks.preferred);
        own.is_some_and(|own| !own.is_empty())
            || others.is_some_and(|others| others.subject.is_some())
    };
    if !may_prefer(spec) {
        return 0;
    }
    let spec = &*state.with_domains(spec);
    let Some((asks, others)) = spec.asks.as_deref().zip(spec.spec.others.as_deref()) else {
        return 0;
    };
    let domains = asks.domains.as_ref();
    let theirs = domains.and_then(|domains| Some(domains.worth()?.is(&node.labels)));
    let worth = |(count, preferred): (&CountKey, &crate::model::PreferredTerm)| {
        let domain = state.domain(key, &state.cells.pod_counts.get(*count)?.what)?;
        let used = state.pods_by_domain(asks, *count)?.get(&domain)?;
        Some(used.pods().saturating_mul(i64::from(preferred.weight)))
    };
    let all = asks.preferred.iter().zip(&others.rules.preferred);
    all.filter_map(worth)
        .fold(theirs.unwrap_or(0), i64::saturating_add)
}

/// How uneven the domains of its preferred spread would be: less is better.
pub(crate) fn unevenness(state: &State, spec: &SpecRow, node: &Node) -> i64 {
    let Some(others) = spec.spec.others.as_deref() else {
        return 0;
    };
    if others.rules.spread.iter().all(|spread| spread.required) {
        return 0;
    }
    let skews = state.skews(spec, node).into_iter();
    let preferred = skews
        .zip(&others.rules.spread)
        .filter(|(_, spread)| !spread.required);
    // Where there is no domain, after all that have one.
    let sum = preferred.map(|(skew, _)| skew.and_then(|skew| i64::try_from(skew.later).ok()));
    sum.map(|skew| skew.unwrap_or(i64::from(i32::MAX)))
        .fold(0, i64::saturating_add)
}
