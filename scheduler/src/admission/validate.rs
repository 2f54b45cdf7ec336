//! Invalid queues, pod groups and topologies → one sentence. Pure.
//!
//! An invalid object that is created while the webhook is down does no harm: the core handles it
//! and reports it. Rejecting it here only helps its author.

use super::invalid::Invalid;
use super::queues::{self, QueueTree};
use super::raised_minimum;
use crate::convert::IdleRule;
use crate::limits::Limits;
use api::{PodGroup, Queue, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// `old`: the previous object. An object that was admitted once may be changed in everything else:
/// a limit may be lower now.
pub(super) fn queue(
    queue: &Queue,
    old: Option<&Queue>,
    limits: &Limits,
    queues: &QueueTree,
) -> Result<(), Invalid> {
    let Some(resources) = &queue.spec.resources else {
        return Err(Invalid::QueueResources);
    };
    let all = [
        ("gpu", resources.gpu),
        ("cpu", resources.cpu),
        ("memory", resources.memory),
    ];
    let lends = all.iter().find(|(_, one)| one.lending_limit.is_some());
    if let Some((name, _)) = lends {
        return Err(Invalid::LendingLimit(name));
    }
    let by_product = queues::by_product(queue);
    let changes = old.is_none_or(|old| queues::by_product(old) != by_product);
    if let Some(text) = by_product.filter(|_| changes) {
        let (_, wrong) = api::gpu_quota::read(text);
        if let Some(wrong) = wrong.into_iter().next() {
            return Err(Invalid::QuotaByProduct(wrong));
        }
    }
    let rule = IdleRule::of(queue);
    if old.is_none_or(|old| IdleRule::of(old) != rule)
        && let Err(wrong) = rule
    {
        return Err(Invalid::IdleRule(wrong));
    }
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    let parent = queues::parent(queue);
    if !name.is_empty() && parent == Some(name) {
        return Err(Invalid::QueueParent(name.to_owned()));
    }
    if old.is_none() && !queues.has(name) && queues.len() >= limits.max_queues as usize {
        return Err(Invalid::Queues {
            there: queues.len(),
            most: limits.max_queues,
        });
    }
    let moves = old.is_none_or(|old| queues::parent(old) != parent);
    if moves && parent.is_some_and(|parent| queues.is_below(parent, name)) {
        return Err(Invalid::QueueCycle(name.to_owned()));
    }
    let most = limits.max_queue_depth as usize;
    if moves && queues.depth(name, parent, most) > most {
        return Err(Invalid::QueueDepth {
            name: name.to_owned(),
            most: limits.max_queue_depth,
        });
    }
    Ok(())
}

/// Admitted with a warning, as in KAI.
pub(super) type Warnings = Vec<String>;

/// `old` is the group as it exists.
pub(super) fn pod_group(
    group: &PodGroup,
    old: Option<&PodGroup>,
    limits: &Limits,
) -> Result<Warnings, Invalid> {
    let spec = &group.spec;
    if spec.min_non_preemptible.is_some() {
        return Err(Invalid::MinNonPreemptible);
    }
    let there = group.spec.sub_groups.len();
    if there > limits.max_sub_groups as usize {
        return Err(Invalid::SubGroups {
            there,
            most: limits.max_sub_groups,
        });
    }
    let mut parents: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for sub in &group.spec.sub_groups {
        let parent = sub.parent.as_deref().filter(|parent| !parent.is_empty());
        if parents.insert(&sub.name, parent).is_some() {
            return Err(Invalid::SubGroupTwice(sub.name.clone()));
        }
    }
    for (name, parent) in &parents {
        if let Some(parent) = parent
            && !parents.contains_key(parent)
        {
            return Err(Invalid::SubGroupParent {
                name: (*name).to_owned(),
                parent: (*parent).to_owned(),
            });
        }
    }
    depths(&parents, limits.max_sub_group_depth)?;
    if let Some(old) = old {
        raised_minimum::check(&old.spec, spec)?;
    }
    let warnings = minimums(group, old.is_some())?;
    let asked = pods_at_once(group);
    if asked > u64::from(limits.max_gang_pods) {
        return Err(Invalid::GangPods {
            asked,
            most: limits.max_gang_pods,
        });
    }
    Ok(warnings)
}

/// Its own minimum, or those of its sub-groups together.
fn pods_at_once(group: &PodGroup) -> u64 {
    let pods = |min: Option<i32>| min.and_then(|min| u64::try_from(min).ok()).unwrap_or(0);
    let parts = group.spec.sub_groups.iter();
    let parts: u64 = parts.map(|sub| pods(sub.min_member)).sum();
    parts.max(pods(group.spec.min_member))
}

/// Each is below a root, and not too far below it. Every step is taken once, whatever the
/// order and depth.
fn depths(parents: &BTreeMap<&str, Option<&str>>, most: u32) -> Result<(), Invalid> {
    let mut depths: BTreeMap<&str, u32> = BTreeMap::new();
    for name in parents.keys() {
        let mut path = Vec::new();
        let mut above = BTreeSet::new();
        let mut at = Some(*name);
        while let Some(name) = at.filter(|name| !depths.contains_key(name)) {
            if !above.insert(name) {
                return Err(Invalid::SubGroupCycle(name.to_owned()));
            }
            path.push(name);
            at = parents.get(name).copied().flatten();
        }
        let mut depth = at.and_then(|known| depths.get(known)).copied().unwrap_or(0);
        while let Some(name) = path.pop() {
            depth += 1;
            if depth > most {
                let name = name.to_owned();
                return Err(Invalid::SubGroupDepth { name, most });
            }
            depths.insert(name, depth);
        }
    }
    Ok(())
}

/// Pods or sub-groups are counted, not both. That more sub-groups are needed than there are is
/// let pass: the others may come. So is, where the group was let in by an older version, the
/// minimum of a sub-group with sub-groups (KAI, `podgroup_webhook.go`, August 2026).
fn minimums(group: &PodGroup, changes: bool) -> Result<Warnings, Invalid> {
    let spec = &group.spec;
    let mut warnings = Warnings::new();
    if let Some(other) = spec.scheduling_backoff.filter(|of| ![-1, 1].contains(of)) {
        warnings.push(format!(
            "spec.schedulingBackoff ({other}) is neither -1, to try for ever, nor 1, to try once in each node pool: it counts as -1"
        ));
    }
    let mut count: BTreeMap<Option<&str>, usize> = BTreeMap::new();
    for sub in &spec.sub_groups {
        let parent = sub.parent.as_deref().filter(|name| !name.is_empty());
        *count.entry(parent).or_default() += 1;
    }
    let children = |of: Option<&str>| count.get(&of).copied().unwrap_or(0);
    let too_many = |of: &str, asked: i32, there: usize| {
        let more = usize::try_from(asked).is_ok_and(|asked| asked > there);
        more.then(|| {
            format!(
                "{of}minSubGroup ({asked}) exceeds the number of direct child SubGroups ({there})"
            )
        })
    };
    if spec.min_member.is_some() && spec.min_sub_group.is_some() {
        return Err(Invalid::GroupMinimum);
    }
    not_negative("", spec.min_member, spec.min_sub_group)?;
    if let Some(asked) = spec.min_sub_group {
        warnings.extend(too_many("", asked, children(None)));
    }
    for sub in &spec.sub_groups {
        if sub.min_member.is_some() && sub.min_sub_group.is_some() {
            return Err(Invalid::SubGroupMinimum(sub.name.clone()));
        }
        let of = format!("subgroup {:?}: ", sub.name);
        not_negative(&of, sub.min_member, sub.min_sub_group)?;
        match (children(Some(&sub.name)), sub.min_member, sub.min_sub_group) {
            (0, _, Some(_)) => return Err(Invalid::LeafSubGroups(sub.name.clone())),
            (0, None, None) => return Err(Invalid::LeafMinimum(sub.name.clone())),
            (1.., Some(_), _) => {
                let wrong = Invalid::ParentMinimum(sub.name.clone());
                if !changes {
                    return Err(wrong);
                }
                warnings.push(wrong.to_string());
            }
            (there, _, Some(asked)) => warnings.extend(too_many(&of, asked, there)),
            _ => {}
        }
    }
    Ok(warnings)
}

fn not_negative(of: &str, pods: Option<i32>, parts: Option<i32>) -> Result<(), Invalid> {
    for (field, asked) in [("minMember", pods), ("minSubGroup", parts)] {
        if let Some(asked) = asked.filter(|asked| *asked < 0) {
            let field = format!("{of}{field}");
            return Err(Invalid::Negative { field, asked });
        }
    }
    Ok(())
}

pub(super) fn topology(topology: &Topology) -> Result<(), Invalid> {
    let levels = &topology.spec.levels;
    if levels.is_empty() {
        return Err(Invalid::NoLevels);
    }
    let mut seen = BTreeSet::new();
    for level in levels {
        if level.node_label.is_empty() {
            return Err(Invalid::LevelEmpty);
        }
        if !seen.insert(&level.node_label) {
            return Err(Invalid::LevelTwice(level.node_label.clone()));
        }
    }
    // A level's name is one level's alone, whichever of the two it is.
    for alias in levels.iter().filter_map(|level| level.alias.as_ref()) {
        if !alias.is_empty() && !seen.insert(alias) {
            return Err(Invalid::AliasTwice(alias.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
