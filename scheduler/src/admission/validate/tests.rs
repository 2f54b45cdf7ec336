//! Objects that are refused, and the sentences that say why.

use super::*;
use crate::watch::Seen;
use serde_json::{Value, json};

fn judged(spec: &Value, changes: bool) -> Result<Warnings, Invalid> {
    let group = serde_json::from_value(json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
        "spec": spec,
    }));
    let group: PodGroup = group.unwrap();
    let old = changes.then(PodGroup::default);
    pod_group(&group, old.as_ref(), &Limits::default())
}

fn group(sub_groups: Value) -> Result<(), Invalid> {
    let spec = json!({"minMember": 1, "queue": "q", "subGroups": sub_groups});
    judged(&spec, false).map(|_| ())
}

#[test]
fn pods_or_sub_groups_are_counted_but_not_both() {
    let two = json!([{"name": "a", "minMember": 1}, {"name": "b", "minMember": 0}]);
    let inner = |sub: Value| json!({"minMember": 1, "subGroups": [sub, {"name": "x", "minMember": 1, "parent": "a"}]});
    for spec in [
        json!({"minMember": 0}),
        json!({"minSubGroup": 2, "subGroups": two}),
        json!({"minSubGroup": 0, "subGroups": two}),
        inner(json!({"name": "a", "minSubGroup": 1})),
        inner(json!({"name": "a", "minSubGroup": 0})),
        inner(json!({"name": "a"})),
    ] {
        assert_eq!(judged(&spec, false), Ok(Vec::new()), "{spec}");
    }
    let leaf = |sub: Value| json!({"subGroups": [sub]});
    for (spec, expected) in [
        (
            json!({"minMember": 0, "minSubGroup": 1, "subGroups": two}),
            "minMember and minSubGroup are mutually exclusive",
        ),
        (
            inner(json!({"name": "a", "minMember": 0, "minSubGroup": 1})),
            "subgroup \"a\": minMember and minSubGroup are mutually exclusive",
        ),
        (
            json!({"minSubGroup": -1, "subGroups": two}),
            "minSubGroup (-1) must be 0 or more",
        ),
        (
            leaf(json!({"name": "a", "minMember": -2})),
            "subgroup \"a\": minMember (-2) must be 0 or more",
        ),
        (
            leaf(json!({"name": "a", "minSubGroup": 0})),
            "subgroup \"a\": minSubGroup cannot be set on a leaf SubGroup",
        ),
        (
            leaf(json!({"name": "a"})),
            "subgroup a: minMember is required",
        ),
    ] {
        for changes in [false, true] {
            let why = judged(&spec, changes).unwrap_err().to_string();
            assert!(why.starts_with(expected), "{why}");
        }
    }
}

#[test]
fn more_sub_groups_than_there_are_and_old_minimums_of_parents_are_let_pass_with_a_word() {
    let two = json!([{"name": "a", "minMember": 1}, {"name": "b", "minMember": 1}]);
    let inner =
        |sub: Value| json!({"subGroups": [sub, {"name": "x", "minMember": 1, "parent": "a"}]});
    for (spec, word) in [
        (
            json!({"minSubGroup": 3, "subGroups": two}),
            "minSubGroup (3) exceeds the number of direct child SubGroups (2)",
        ),
        (
            inner(json!({"name": "a", "minSubGroup": 2})),
            "subgroup \"a\": minSubGroup (2) exceeds the number of direct child SubGroups (1)",
        ),
    ] {
        for changes in [false, true] {
            assert_eq!(judged(&spec, changes), Ok(vec![word.to_owned()]));
        }
    }
    let old = inner(json!({"name": "a", "minMember": 0}));
    let word = "subgroup \"a\": minMember cannot be set on a mid-level SubGroup (has child SubGroups); use minSubGroup instead";
    assert_eq!(judged(&old, true), Ok(vec![word.to_owned()]));
    assert_eq!(judged(&old, false).unwrap_err().to_string(), word);
}

#[test]
fn a_tree_of_sub_groups_is_one() {
    let sub = |name: &str, parent: Option<&str>| json!({"name": name, "parent": parent});
    assert_eq!(group(json!([])), Ok(()));
    assert_eq!(
        group(json!([
            sub("a", None),
            sub("b", Some("a")),
            {"name": "c", "minMember": 1, "parent": "b"}
        ])),
        Ok(())
    );
    for (subs, refusal) in [
        (
            json!([sub("a", None), sub("a", None)]),
            Invalid::SubGroupTwice("a".into()),
        ),
        (
            json!([sub("a", Some("x"))]),
            Invalid::SubGroupParent {
                name: "a".into(),
                parent: "x".into(),
            },
        ),
        (
            json!([sub("a", Some("a"))]),
            Invalid::SubGroupCycle("a".into()),
        ),
        (
            json!([
                sub("a", Some("b")),
                sub("b", Some("c")),
                sub("c", Some("b"))
            ]),
            Invalid::SubGroupCycle("b".into()),
        ),
    ] {
        assert_eq!(group(subs), Err(refusal));
    }
}

#[test]
fn a_tree_that_is_too_deep_or_too_wide_is_refused() {
    let chain = |length: usize| -> Value {
        let sub = |at: usize| {
            json!({"name": format!("s{at}"), "parent": (at > 0).then(|| format!("s{}", at - 1)),
                "minMember": (at + 1 == length).then_some(1)})
        };
        (0..length).rev().map(sub).collect()
    };
    assert_eq!(group(chain(16)), Ok(()));
    for length in [17, 1024] {
        let refusal = group(chain(length)).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "spec.subGroups: s16 is more than 16 levels deep (--max-sub-group-depth)"
        );
    }
    let wide = |count: usize| {
        (0..count)
            .map(|at| json!({"name": format!("s{at}"), "minMember": 1}))
            .collect()
    };
    assert_eq!(group(wide(1024)), Ok(()));
    let refusal = group(wide(50_000)).unwrap_err().to_string();
    assert_eq!(
        refusal,
        "spec.subGroups: 50000 sub-groups are more than 1024 (--max-sub-groups)"
    );
}

#[test]
fn a_gang_that_needs_more_pods_at_once_than_any_cluster_has_is_refused() {
    let of = |spec: Value| judged(&spec, false).map_err(|why| why.to_string());
    assert_eq!(of(json!({"minMember": 100_000})), Ok(Vec::new()));
    let part = |name: &str, min: i32| json!({"name": name, "minMember": min});
    for (spec, asked) in [
        (json!({"minMember": 2_147_483_647}), 2_147_483_647),
        (
            json!({"subGroups": [part("a", 99_999), part("b", 2)]}),
            100_001,
        ),
    ] {
        let sentence =
            format!("minMember: {asked} pods at once are more than 100000 (--max-gang-pods)");
        assert_eq!(of(spec), Err(sentence));
    }
}

#[test]
fn a_tree_of_queues_that_is_too_deep_or_too_large_is_refused() {
    let read = |name: &str, parent: &str| -> Queue {
        serde_json::from_value(json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
            "spec": {"resources": {}, "parentQueue": parent},
        }))
        .unwrap()
    };
    let limits = Limits {
        max_queue_depth: 3,
        max_queues: 4,
        ..Limits::default()
    };
    let mut tree = QueueTree::default();
    let mut add = |name: &str, parent: &str| {
        let made = read(name, parent);
        let admitted = queue(&made, None, &limits, &tree).map_err(|why| why.to_string());
        if admitted.is_ok() {
            tree.note(&Seen::There(Box::new(made)));
        }
        admitted
    };
    for (name, parent) in [("a", ""), ("b", "a"), ("c", "b")] {
        assert_eq!(add(name, parent), Ok(()));
    }
    let too_deep = |name: &str| {
        Err(format!(
            "spec.parentQueue: with queue {name} the tree of queues is more than 3 levels deep (--max-queue-depth)"
        ))
    };
    assert_eq!(add("d", "c"), too_deep("d"));
    assert_eq!(add("d", ""), Ok(()));
    assert_eq!(
        add("e", ""),
        Err("there are 4 queues, and at most 4 are allowed (--max-queues)".to_owned())
    );
    // A queue that is there moves below another one, with those below it.
    let moved = |to: &str| {
        let (old, new) = (read("a", ""), read("a", to));
        queue(&new, Some(&old), &limits, &tree).map_err(|why| why.to_string())
    };
    assert_eq!(moved("d"), too_deep("a"));
    let ring = "spec.parentQueue: queue a would be its own ancestor".to_owned();
    assert_eq!(moved("c"), Err(ring));
    assert_eq!(moved(""), Ok(()));
    // Of one that is too deep already all else may change.
    let deep = read("x", "c");
    assert_eq!(queue(&deep, Some(&deep), &limits, &tree), Ok(()));
}

#[test]
fn a_wrong_quota_of_a_product_is_refused_where_it_is_written() {
    let read = |text: &str, priority: i32| -> Queue {
        serde_json::from_value(json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "q", "annotations": {"aliquot.dev/gpu-quota-by-product": text}},
            "spec": {"resources": {}, "priority": priority},
        }))
        .unwrap()
    };
    let of = |new: &Queue, old: Option<&Queue>| {
        let verdict = queue(new, old, &Limits::default(), &QueueTree::default());
        verdict.map_err(|why| why.to_string())
    };
    let good = read(r#"{"NVIDIA-L4": {"quota": 1.5, "limit": -1}}"#, 100);
    assert_eq!(of(&good, None), Ok(()));
    let wrong = r#"{"NVIDIA-L4": {"quota": -2}, "*": {"limit": 1}}"#;
    let said = "annotation aliquot.dev/gpu-quota-by-product: \"*\" is no product, which is the exact value of the node label nvidia.com/gpu.product";
    assert_eq!(of(&read(wrong, 100), None), Err(said.to_owned()));
    assert_eq!(of(&read(wrong, 100), Some(&good)), Err(said.to_owned()));
    // It got in before: all else may change.
    assert_eq!(of(&read(wrong, 1), Some(&read(wrong, 100))), Ok(()));
}

#[test]
fn a_rule_about_idle_pods_that_cannot_be_read_is_refused_where_it_is_written() {
    let read = |text: &str, priority: i32| -> Queue {
        serde_json::from_value(json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "q", "annotations": {"aliquot.dev/idle-after": text}},
            "spec": {"resources": {}, "priority": priority},
        }))
        .unwrap()
    };
    let of = |new: &Queue, old: Option<&Queue>| {
        let verdict = queue(new, old, &Limits::default(), &QueueTree::default());
        verdict.map_err(|why| why.to_string())
    };
    let good = read("30m", 100);
    assert_eq!(of(&good, None), Ok(()));
    let said = "annotation aliquot.dev/idle-after: \"soon\" is no duration of at least 2 minutes: write 30m, 2h or never";
    assert_eq!(of(&read("soon", 100), Some(&good)), Err(said.to_owned()));
    // A queue that already has it may change otherwise.
    assert_eq!(of(&read("soon", 1), Some(&read("soon", 100))), Ok(()));
}

#[test]
fn a_queue_says_its_resources_and_is_not_its_own_parent() {
    let of = |spec: Value| {
        queue(
            &serde_json::from_value(json!({
                "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec,
            }))
            .unwrap(),
            None,
            &Limits::default(),
            &QueueTree::default(),
        )
    };
    assert_eq!(of(json!({})), Err(Invalid::QueueResources));
    assert_eq!(of(json!({"resources": {}})), Ok(()));
    assert_eq!(
        of(json!({"resources": {}, "parentQueue": "q"})),
        Err(Invalid::QueueParent("q".into()))
    );
}

#[test]
fn a_topology_has_levels_each_once() {
    let of = |labels: &[&str]| {
        let levels: Vec<Value> = labels
            .iter()
            .map(|label| json!({"nodeLabel": label}))
            .collect();
        topology(
            &serde_json::from_value(json!({
                "apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "t"},
                "spec": {"levels": levels},
            }))
            .unwrap(),
        )
    };
    assert_eq!(of(&["zone", "rack"]), Ok(()));
    assert_eq!(of(&[]), Err(Invalid::NoLevels));
    assert_eq!(of(&["zone", ""]), Err(Invalid::LevelEmpty));
    assert_eq!(
        of(&["zone", "zone"]),
        Err(Invalid::LevelTwice("zone".into()))
    );
}

#[test]
fn the_other_name_of_a_level_is_its_own() {
    let of = |zone: &str, rack: &str| {
        let levels =
            json!([{"nodeLabel": "zone", "alias": zone}, {"nodeLabel": "rack", "alias": rack}]);
        let object = json!({"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology",
            "metadata": {"name": "t"}, "spec": {"levels": levels}});
        topology(&serde_json::from_value(object).unwrap())
    };
    assert_eq!(of("wide", "narrow"), Ok(()));
    assert_eq!(of("", ""), Ok(()));
    for (zone, rack) in [("wide", "wide"), ("rack", "narrow"), ("zone", "")] {
        let twice = if zone == rack { rack } else { zone };
        assert_eq!(of(zone, rack), Err(Invalid::AliasTwice(twice.into())));
    }
}
