use super::*;
use scheduler_core::units::Duration;
use serde_json::json;

#[test]
fn units_of_a_queue_are_kais() {
    let read: kai::Queue = serde_json::from_value(json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "a"},
            "spec": {"parentQueue": "", "displayName": "A", "preemptMinRuntime": "1m30s", "reclaimMinRuntime": "-1s",
                "resources": {
                    "gpu": {"quota": 0.5, "limit": -1, "overQuotaWeight": 2},
                    "cpu": {"quota": 1000, "limit": -2},
                    "memory": {"quota": 10, "limit": -1}}},
        }))
        .unwrap();
    let queue = queue(&read);
    assert_eq!(queue.parent, None);
    assert_eq!(queue.gpu.quota, Bound::Exactly(500_000_000));
    assert_eq!(queue.gpu.limit, Bound::Unlimited);
    assert_eq!(queue.gpu.weight, Weight(2_000_000));
    assert_eq!(queue.cpu.limit, Bound::Exactly(0));
    assert_eq!(queue.memory.quota, Bound::Exactly(10_000_000));
    assert_eq!(queue.preempt_min_runtime, Some(Duration(90_000)));
    assert_eq!(queue.reclaim_min_runtime, None);
    assert_eq!(queue.priority, 100);
}

#[test]
fn quotas_of_products_come_from_an_annotation_and_wrong_ones_are_named() {
    let of = |text: &str| {
        let read: kai::Queue = serde_json::from_value(json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "a", "annotations": {"aliquot.dev/gpu-quota-by-product": text}},
            "spec": {},
        }))
        .unwrap();
        let queue = queue(&read);
        (
            queue.products,
            queue.bad_products.map(|bad| bad.to_string()),
        )
    };
    let row = |product: &str, unit, quota, limit| ProductQuota {
        product: Arc::from(product),
        unit,
        quota,
        limit,
    };
    let (rows, bad) = of(
        r#"{"L4": {"limit": 2.5}, "H100": {"quota": -1}, "A30": {"quotaMib": -1, "limitMib": 24576},
                "T4": {"quota": -3}}"#,
    );
    let (gpus, memory) = (ProductUnit::Gpus, ProductUnit::Memory);
    let (mib, without) = (Bound::Exactly(24_576), Bound::Unlimited);
    let expected = [
        row("A30", memory, Some(without), mib),
        row("H100", gpus, Some(without), without),
        row("L4", gpus, None, Bound::Exactly(2_500_000_000)),
    ];
    assert_eq!(rows, expected);
    let said = "annotation aliquot.dev/gpu-quota-by-product, T4: quota is -3, and must be 0 or more, or -1 for unlimited";
    assert_eq!(bad.as_deref(), Some(said));
    let (rows, bad) = of("L4: 2");
    assert!(rows.is_empty() && bad.is_some());
}

#[test]
fn rules_about_idle_pods_come_from_annotations_and_a_wrong_one_takes_no_place() {
    let of = |annotations: serde_json::Value| {
        let read: kai::Queue = serde_json::from_value(json!({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue",
            "metadata": {"name": "a", "annotations": annotations}, "spec": {},
        }))
        .unwrap();
        let queue = queue(&read);
        let bad = queue.bad_idle.map(|bad| bad.to_string());
        (queue.idle_after, queue.idle_exempt_from, bad)
    };
    let after = |text: &str| of(json!({"aliquot.dev/idle-after": text}));
    let minutes = |minutes: u64| Some(Grace::For(Duration::seconds(minutes * 60)));
    assert_eq!(of(json!({})), (None, None, None));
    assert_eq!(after("1h30m"), (minutes(90), None, None));
    assert_eq!(after("2m"), (minutes(2), None, None));
    assert_eq!(after("never"), (Some(Grace::Never), None, None));
    let both = json!({"aliquot.dev/idle-after": "30m", "aliquot.dev/idle-exempt-priority": "125"});
    assert_eq!(of(both), (minutes(30), Some(125), None));
    let refused = |(rule, exempt, bad): (Option<Grace>, Option<i32>, Option<String>)| {
        assert_eq!((rule, exempt), (Some(Grace::Never), None), "{bad:?}");
        bad.unwrap()
    };
    for text in ["119s", "30", "-1h", "0", "", "soon", "1h-5m"] {
        assert_eq!(
            refused(after(text)),
            format!(
                "annotation aliquot.dev/idle-after: {text:?} is no duration of at least 2 minutes: write 30m, 2h or never; until then nobody gives way"
            )
        );
    }
    let exempt = |text: &str| json!({"aliquot.dev/idle-after": "30m", "aliquot.dev/idle-exempt-priority": text});
    let said = refused(of(exempt("inference")));
    assert!(said.contains("\"inference\" is no priority"), "{said}");
    let alone = of(json!({"aliquot.dev/idle-exempt-priority": "125"}));
    assert!(refused(alone).contains("is set without aliquot.dev/idle-after"));
}

#[test]
fn a_group_says_its_own_grace_and_delay_in_its_spec_or_by_annotation() {
    let read = |spec: serde_json::Value, annotations: serde_json::Value| {
        let object = serde_json::json!({"metadata": {"name": "g", "annotations": annotations},
                "spec": spec});
        let group = group(
            &serde_json::from_value(object).unwrap(),
            TRAIN,
            &Limits::default(),
            "default",
        );
        (group.staleness_grace, group.preemption_delay.0)
    };
    let none = serde_json::json!({});
    assert_eq!(read(none.clone(), none.clone()), (None, 0));
    let spec = serde_json::json!({"stalenessGracePeriod": "1m", "preemptionDelay": "2s"});
    let said = (Some(Grace::For(Duration(60_000))), 2_000);
    assert_eq!(read(spec.clone(), none.clone()), said);
    let by_annotation = serde_json::json!({"kai.scheduler/staleness-grace-period": "-1s",
            "kai.scheduler/preemption-delay": "3s"});
    assert_eq!(
        read(none, by_annotation.clone()),
        (Some(Grace::Never), 3_000)
    );
    assert_eq!(read(spec, by_annotation), said, "the spec goes first");
    let odd = serde_json::json!({"stalenessGracePeriod": "soon"});
    assert_eq!(read(odd, serde_json::json!({})), (None, 0));
}

#[test]
fn durations_are_gos_and_no_text_ends_the_process() {
    let read = |text| duration(Some(text)).map(|length| length.0);
    for (text, millis) in [
        ("0", Some(0)),
        ("1m30s", Some(90_000)),
        ("+1.5h", Some(5_400_000)),
        (".5s", Some(500)),
        ("1001us", Some(1)),
        ("1.001s", Some(1_001)),
        ("-1s", None),
        ("1h-5m", None),
        ("19223372036854775806s", None),
        ("1e300h", None),
        ("5", None),
        ("s", None),
        ("", None),
        (".", None),
        ("1d", None),
    ] {
        assert_eq!(read(text), millis, "{text}");
    }
    assert_eq!(read(&format!("{}h", "9".repeat(400))), None);
}

const TRAIN: Class = Class {
    value: 50,
    never_preempts: false,
};

fn read_group(spec: serde_json::Value) -> PodGroup {
    let read: kai::PodGroup = serde_json::from_value(json!({
        "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "ns", "annotations": {
            "kai.scheduler/last-start-timestamp": "1970-01-01T00:00:02Z"}},
        "spec": spec,
    }))
    .unwrap();
    group(&read, TRAIN, &Limits::default(), "default")
}

#[test]
fn a_group_without_sub_groups_has_the_default_set() {
    let group = read_group(json!({"minMember": 3}));
    assert_eq!(group.name.as_str(), "ns/g");
    assert_eq!(group.queue.as_str(), "default-queue");
    assert_eq!(
        (group.root.sets[0].name.as_str(), group.root.sets[0].min),
        ("default", 3)
    );
    assert_eq!(group.last_start, Some(Time(2000)));
    assert_eq!(group.preemptibility, Preemptibility::Preemptible);
}

#[test]
fn sub_groups_become_a_tree_and_a_ring_of_them_nothing() {
    let group = read_group(json!({"minMember": 3, "subGroups": [
        {"name": "root", "minMember": 1},
        {"name": "a", "minMember": 2, "parent": "root"},
        {"name": "b", "minMember": 0, "parent": "root"},
        {"name": "x", "minMember": 1, "parent": "y"},
        {"name": "y", "minMember": 1, "parent": "x"},
    ]}));
    assert_eq!(group.root.groups.len(), 1);
    let sets: Vec<_> = group.root.groups[0]
        .sets
        .iter()
        .map(|set| (set.name.to_string(), set.min))
        .collect();
    assert_eq!(sets, [("a".to_owned(), 2), ("b".to_owned(), 0)]);
    assert!(group.root.sets.is_empty());
}

#[test]
fn sub_groups_are_cut_where_they_are_too_deep_or_too_many() {
    let sub = |at: usize| json!({"name": format!("s{at}"), "parent": (at > 0).then(|| format!("s{}", at - 1))});
    let limits = Limits::default();
    let most = limits.max_sub_groups as usize;
    let all: Vec<_> = (0..most).rev().map(sub).collect();
    let group = read_group(json!({"subGroups": all}));
    let mut depth = 0;
    let mut at = &group.root;
    while let Some(inner) = at.groups.first() {
        depth += 1;
        at = inner;
    }
    assert_eq!(depth, limits.max_sub_group_depth);
    assert!(at.sets.is_empty());
    let wide = |at: usize| json!({"name": format!("s{at}")});
    let group = read_group(json!({"subGroups": (0..30_000).map(wide).collect::<Vec<_>>()}));
    assert_eq!(group.root.sets.len(), most);
}

#[test]
fn as_many_sub_groups_are_needed_as_is_said_else_all() {
    let group = read_group(json!({"minSubGroup": 1, "subGroups": [
        {"name": "a", "minSubGroup": 2},
        {"name": "a-0", "minMember": 4, "parent": "a"},
        {"name": "a-1", "parent": "a"},
        {"name": "a-2", "minMember": 1, "parent": "a"},
        {"name": "b", "minMember": 1},
    ]}));
    assert_eq!(group.root.min_children, Some(1));
    let inner = &group.root.groups[0];
    let least: Vec<u32> = inner.sets.iter().map(|set| set.min).collect();
    assert_eq!((inner.min_children, least), (Some(2), vec![4, 1, 1]));
    let none = json!({"minSubGroup": 0, "subGroups": [{"name": "a"}]});
    assert_eq!(read_group(none).root.min_children, Some(0));
    for (min, least) in [(json!(0), 0), (json!(null), 1), (json!(-1), 1)] {
        let group = read_group(json!({"minMember": min}));
        assert_eq!(group.root.sets[0].min, least, "{min}");
    }
}

#[test]
fn the_other_name_of_a_level_stands_for_its_label() {
    let read: kai::Topology = serde_json::from_value(json!({
        "apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": "t"},
        "spec": {"levels": [{"nodeLabel": "a/zone"}, {"nodeLabel": "a/rack", "alias": "rack"}]},
    }))
    .unwrap();
    let topology = topology(&read);
    assert_eq!(topology.levels, ["a/zone", "a/rack"].map(Arc::from));
    let aliases = BTreeMap::from([(Arc::from("rack"), Arc::from("a/rack"))]);
    assert_eq!(topology.aliases, aliases);
}

#[test]
fn preemptible_is_what_is_said_else_below_priority_100() {
    for (word, priority, expected) in [
        (None, 99, Preemptibility::Preemptible),
        (None, 100, Preemptibility::NonPreemptible),
        (Some("preemptible"), 125, Preemptibility::Preemptible),
        (
            Some("semi-preemptible"),
            50,
            Preemptibility::SemiPreemptible,
        ),
        (
            Some("semi-preemptible"),
            125,
            Preemptibility::SemiPreemptible,
        ),
        (Some("non-preemptible"), 50, Preemptibility::NonPreemptible),
        (Some("perhaps"), 50, Preemptibility::Preemptible),
    ] {
        let is = preemptibility(word, priority);
        assert_eq!(is, expected, "{word:?} {priority}");
    }
}

#[test]
fn who_was_tried_in_vain_in_this_pool_and_wants_no_more_is_parked() {
    let parked = |backoff: i32, conditions: serde_json::Value| {
        let object = json!({"metadata": {"name": "g", "namespace": "ns"},
                "spec": {"schedulingBackoff": backoff}, "status": {"schedulingConditions": conditions}});
        let object = serde_json::from_value(object).unwrap();
        super::group(&object, TRAIN, &Limits::default(), "a").parked
    };
    let of = |pool: &str, id: &str, message: &str| {
        json!({"type": "UnschedulableOnNodePool", "nodePool": pool, "status": "True",
                "transitionID": id, "message": message})
    };
    let said = parked(1, json!([of("a", "", "no room")])).unwrap();
    assert!(said.starts_with("no room (schedulingBackoff: 1"), "{said}");
    // What we wrote ourselves is read again: it does not grow.
    assert_eq!(parked(1, json!([of("a", "", &said)])), Some(said));
    assert_eq!(parked(1, json!([])), None);
    assert_eq!(parked(-1, json!([of("a", "", "no room")])), None);
    assert_eq!(parked(1, json!([of("a", "1", ""), of("b", "2", "")])), None);
    assert!(parked(1, json!([of("b", "1", ""), of("a", "2", "")])).is_some());
    assert!(parked(1, json!([of("a", "2", ""), of("b", "1", "")])).is_some());
    assert!(parked(1, json!([of("b", "", ""), of("a", "", "")])).is_some());
}
