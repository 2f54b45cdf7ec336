//! Refuses a higher minimum of a semi-preemptible group (KAI, `podgroup_webhook.go`, 0.18). The pods
//! beyond the minimum may run above the quota of their queue, and a higher minimum would put them into
//! the core without a check of the quota.

use super::invalid::Invalid;
use api::kai::{PodGroupSpec, SubGroup};
use proto::names::kai;
use std::collections::BTreeMap;

/// Refuses a change that raises a minimum of the group or of a sub-group. Minimums that are not set
/// are compared by their effect.
pub(super) fn check(old: &PodGroupSpec, new: &PodGroupSpec) -> Result<(), Invalid> {
    if old.preemptibility.as_deref() != Some(kai::SEMI_PREEMPTIBLE) {
        return Ok(());
    }
    let (old_children, new_children) = (children(old), children(new));
    let all = |children: &BTreeMap<&str, i64>, of: &str| children.get(of).copied().unwrap_or(0);
    let or = |min: Option<i32>, unset: i64| min.map_or(unset, i64::from);
    let mut minimums = vec![
        (
            "minMember",
            None,
            or(old.min_member, 1),
            or(new.min_member, 1),
        ),
        (
            "minSubGroup",
            None,
            or(old.min_sub_group, all(&old_children, ROOT)),
            or(new.min_sub_group, all(&new_children, ROOT)),
        ),
    ];
    let known: BTreeMap<&str, &SubGroup> = old
        .sub_groups
        .iter()
        .map(|sub| (sub.name.as_str(), sub))
        .collect();
    for sub in &new.sub_groups {
        let name = sub.name.as_str();
        let Some(before) = known.get(name) else {
            continue;
        };
        minimums.push((
            "minMember",
            Some(name),
            or(before.min_member, 0),
            or(sub.min_member, 0),
        ));
        minimums.push((
            "minSubGroup",
            Some(name),
            or(before.min_sub_group, all(&old_children, name)),
            or(sub.min_sub_group, all(&new_children, name)),
        ));
    }
    let raised = minimums.into_iter().find(|(.., old, new)| new > old);
    raised.map_or(Ok(()), |(field, name, old, new)| {
        Err(Invalid::RaisedMinimum {
            field,
            of: name.map_or_else(String::new, |name| format!("subgroup {name:?} of ")),
            old,
            new,
        })
    })
}

/// The name of the group itself, as the parent of its sub-groups.
const ROOT: &str = "";

/// Returns the number of direct sub-groups of each parent.
fn children(spec: &PodGroupSpec) -> BTreeMap<&str, i64> {
    let mut children = BTreeMap::new();
    for sub in &spec.sub_groups {
        let parent = sub.parent.as_deref().unwrap_or(ROOT);
        *children.entry(parent).or_default() += 1;
    }
    children
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use serde_json::{Value, json};

    fn refusal(old: &Value, new: &Value) -> Option<String> {
        let spec = |sub_groups: &Value| -> PodGroupSpec {
            let mut spec = json!({"preemptibility": "semi-preemptible"});
            json_patch::merge(&mut spec, sub_groups);
            serde_json::from_value(spec).unwrap()
        };
        let said = check(&spec(old), &spec(new)).err();
        said.map(|said| said.to_string())
    }

    #[test]
    fn no_minimum_in_the_tree_rises_and_each_may_fall() {
        let leaf = |name: &str, min: i32| json!({"name": name, "parent": "top", "minMember": min});
        let tree = |min: Value, leaves: Value| {
            let mut all = vec![json!({"name": "top", "minSubGroup": min})];
            all.extend(leaves.as_array().unwrap().iter().cloned());
            json!({"minSubGroup": 1, "subGroups": all})
        };
        let two = || json!([leaf("a", 2), leaf("b", 2)]);
        let three = || json!([leaf("a", 2), leaf("b", 2), leaf("c", 2)]);
        let before = || tree(json!(1), two());
        assert_eq!(refusal(&before(), &before()), None);
        let lower = tree(json!(0), json!([leaf("a", 1)]));
        assert_eq!(refusal(&before(), &lower), None);
        // Another sub-group is none of the core, while the group needs one of them.
        assert_eq!(refusal(&before(), &tree(json!(1), three())), None);
        for (old, new, why) in [
            (
                before(),
                tree(json!(2), two()),
                "minSubGroup (1 -> 2) on subgroup \"top\" of a semi",
            ),
            // All of them, when unset.
            (
                before(),
                tree(Value::Null, two()),
                "minSubGroup (1 -> 2) on subgroup \"top\" of a semi",
            ),
            (
                tree(Value::Null, two()),
                tree(Value::Null, three()),
                "minSubGroup (2 -> 3) on subgroup \"top\" of a semi",
            ),
            (
                before(),
                tree(json!(1), json!([leaf("a", 2), leaf("b", 3)])),
                "minMember (2 -> 3) on subgroup \"b\" of a semi",
            ),
            (
                json!({"minMember": 0}),
                json!({}),
                "minMember (0 -> 1) on a semi",
            ),
        ] {
            let said = refusal(&old, &new).unwrap();
            assert!(said.contains(why), "{said}");
        }
    }
}
