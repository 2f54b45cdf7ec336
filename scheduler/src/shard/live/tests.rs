//! Claims about what an admin changes while the scheduler runs.

use super::*;
use scheduler_core::{Placement, Plugin};
use serde_json::json;

const POOL: &str = "pool-a";

fn live(pool: Pool) -> Live {
    let shard = Shard {
        name: "a".to_owned(),
        live: true,
        pool,
        core: Config::default(),
        usage: None,
    };
    let in_force = InForce {
        scheduler_name: "kai-scheduler".to_owned(),
        queue_label_key: "kai.scheduler/queue".to_owned(),
        node_pool_label_key: "kai.scheduler/node-pool".to_owned(),
        volume_binding_timeout_s: 120,
        deployment_gang_schedule: true,
    };
    Live::new(&shard, Some(in_force))
}

fn object(generation: i64, spec: Value) -> SchedulingShard {
    let object = json!({
        "apiVersion": "kai.scheduler/v1", "kind": "SchedulingShard",
        "metadata": {"name": "a", "uid": "u", "generation": generation}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

fn of_pool() -> Live {
    live(Pool::Of {
        key: "kai.scheduler/node-pool".to_owned(),
        value: POOL.to_owned(),
    })
}

/// Whether it holds, and what it says.
fn said(reports: &[Report], kind: &str) -> (bool, String) {
    let wants = reports.iter().flat_map(|report| &report.wants);
    let found = wants.into_iter().find(|want| want.kind == kind).unwrap();
    (found.holds, found.message.clone())
}

/// As the API server keeps it.
fn written(mut object: SchedulingShard, report: &Report) -> SchedulingShard {
    let conditions = report.wants.iter().map(|want| Condition {
        type_: want.kind.to_owned(),
        status: if want.holds { "True" } else { "False" }.to_owned(),
        reason: want.reason.to_owned(),
        message: want.message.clone(),
        observed_generation: report.meta.generation,
        last_transition_time: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
    });
    let conditions: Vec<Condition> = conditions.collect();
    object
        .status
        .insert("conditions".to_owned(), json!(conditions));
    object
}

#[test]
fn what_is_written_counts_over_the_file_and_ends_with_the_object() {
    let mut live = of_pool();
    let spread = json!({"placementStrategy": {"gpu": "spread"},
        "plugins": {"minruntime": {"enabled": false}}});
    let settings = live.shard(object(1, spread.clone())).unwrap();
    assert_eq!(settings.gpu_placement, Placement::Spread);
    assert_eq!(settings.cpu_placement, Placement::Binpack);
    assert!(settings.without.contains(&Plugin::MinRuntime));
    assert_eq!(live.shard(object(2, spread)), None, "nothing has changed");
    assert_eq!(live.shard_gone("b"), None);
    assert_eq!(live.shard_gone("a"), Some(Config::default()));
    let mut other = object(1, json!({"kValue": 2}));
    other.metadata.name = Some("b".to_owned());
    assert_eq!(live.shard(other), None, "another shard's");
}

#[test]
fn what_cannot_be_meant_changes_nothing_and_is_said_with_its_field_and_a_fix() {
    for (spec, field, fix) in [
        (
            json!({"placementStrategy": {"gpu": "thin"}}),
            "spec.placementStrategy.gpu: ",
            "binpack",
        ),
        (json!({"kValue": -1}), "spec.kValue: ", "at least 0"),
        (
            json!({"minRuntime": {"preemptMinRuntime": "soon"}}),
            "spec.minRuntime.preemptMinRuntime: ",
            "5m",
        ),
        (
            json!({"actions": {"dance": {}}}),
            "spec.actions.dance: ",
            "allocate",
        ),
        (
            json!({"args": {"max-consolidation-preemptees": "many"}}),
            "spec.args.max-consolidation-preemptees: ",
            "not a number",
        ),
        (
            json!({"plugins": {"proportion": {"arguments": {"kValue": "x"}}}}),
            "spec.plugins.proportion.arguments.kValue: ",
            "not a number",
        ),
        (
            json!({"partitionLabelValue": "pool-b"}),
            "spec.partitionLabelValue: ",
            "--node-pool=pool-b",
        ),
        (
            json!({"args": {"nodepool-label-key": "x"}}),
            "spec.args.nodepool-label-key: ",
            "--node-pool-label-key=x",
        ),
        (
            json!({"placementStrategy": {"gpus": "spread"}}),
            "spec: ",
            "gpus",
        ),
    ] {
        let mut live = of_pool();
        let before = live.shard(object(1, json!({"kValue": 2}))).unwrap();
        assert_eq!(live.shard(object(2, spec.clone())), None, "{spec}");
        assert_eq!(live.settings, before, "{spec}");
        let (ready, why) = said(&live.reports(Time(1)), "Ready");
        assert!(
            !ready && why.starts_with(field) && why.contains(fix),
            "{why}"
        );
        assert!(live.shard(object(3, json!({}))).is_some());
        assert!(said(&live.reports(Time(2)), "Ready").0);
    }
}

#[test]
fn every_key_without_effect_is_named() {
    let mut live = of_pool();
    let spec = json!({
        "args": {"schedule-period": "1s", "no-such": "x"},
        "plugins": {"dreams": {}, "topology": {"enabled": false, "priority": 5},
            "dynamicresources": {}, "nodeplacement": {"arguments": {"disk": "x"}}},
        "queueDepthPerAction": {"allocate": 10}, "goMemLimit": "1Gi", "newField": {},
        "partitionLabelValue": POOL, "kValue": 2});
    assert_eq!(live.shard(object(1, spec)).unwrap().k_value, 2_000_000_000);
    let reports = live.reports(Time(1));
    assert!(said(&reports, "Ready").0);
    let (ignored, names) = said(&reports, "KeysIgnored");
    assert!(ignored);
    for name in [
        "spec.args.schedule-period: ",
        "spec.args.no-such: ",
        "spec.plugins.dreams: plugin dreams is not known",
        "spec.plugins.topology.enabled: ",
        "spec.plugins.topology.priority: ",
        "spec.plugins.dynamicresources: ",
        "spec.plugins.nodeplacement.arguments.disk: ",
        "spec.queueDepthPerAction: ",
        "spec.goMemLimit: ",
        "spec.newField: ",
    ] {
        assert_eq!(
            names.lines().filter(|line| line.starts_with(name)).count(),
            1,
            "{names}"
        );
    }
    assert_eq!(names.lines().count(), 10, "{names}");
    live.shard(object(2, json!({"kValue": 3})));
    assert!(!said(&live.reports(Time(1)), "KeysIgnored").0);
}

#[test]
fn a_status_is_written_once_for_each_generation_and_seldom_against_another_writer() {
    let mut live = of_pool();
    live.shard(object(1, json!({})));
    let reports = live.reports(Time(1_000));
    assert_eq!(reports.len(), 1);
    assert_eq!(live.reports(Time(1_001)), [], "its answer is waited for");
    live.shard(written(object(1, json!({})), &reports[0]));
    assert_eq!((live.due(), live.reports(Time(99_000))), (None, vec![]));
    // The same words are of another generation.
    live.shard(written(object(2, json!({})), &reports[0]));
    assert_eq!(live.reports(Time(100_000)).len(), 1);
    // Another client removes them again and again.
    for millis in (100_000..130_000).step_by(100) {
        live.shard(object(2, json!({})));
        let written = live.reports(Time(millis));
        assert_eq!(
            written.len(),
            usize::from(millis > 100_000 && millis % 10_000 == 0)
        );
    }
    assert_eq!(live.due(), Some(Time(130_000)));
}

#[test]
fn what_a_config_cannot_change_is_said_and_the_rest_is_named() {
    let mut live = of_pool();
    let config = |spec: Value| -> KaiConfig {
        let object = json!({"apiVersion": "kai.scheduler/v1", "kind": "Config",
            "metadata": {"name": "kai-config", "generation": 1}, "spec": spec});
        serde_json::from_value(object).unwrap()
    };
    live.config(config(json!({
        "global": {"schedulerName": "kai-scheduler", "openshift": true},
        "namespace": "kai-scheduler", "binder": {"volumeBindingTimeoutSeconds": 120}})));
    let reports = live.reports(Time(1));
    assert!(said(&reports, "Ready").0);
    let (_, ignored) = said(&reports, "KeysIgnored");
    assert_eq!(
        ignored,
        "spec.global.openshift: has no effect\nspec.namespace: has no effect"
    );
    live.config(config(json!({"global": {"queueLabelKey": "team"},
        "binder": {"volumeBindingTimeoutSeconds": 60},
        "podGrouper": {"args": {"gangScheduleDeployment": false, "gangScheduleKnative": true}}})));
    let reports = live.reports(Time(2));
    let (_, ignored) = said(&reports, "KeysIgnored");
    assert_eq!(
        ignored,
        "spec.podGrouper.args.gangScheduleKnative: has no effect"
    );
    let (ready, why) = said(&reports, "Ready");
    assert!(!ready, "{why}");
    for words in [
        "spec.global.queueLabelKey: it is kai.scheduler/queue",
        "--queue-label-key=team",
        "--volume-binding-timeout-s=60",
        "spec.podGrouper.args.gangScheduleDeployment: it is true",
        "--deployment-gang-schedule=false",
    ] {
        assert!(why.contains(words), "{why}");
    }
}

/// Two that both wrote it would overwrite each other without end.
#[test]
fn of_two_schedulers_one_has_the_last_word_on_a_config() {
    let of = |name: &str| {
        let mut live = live(Pool::All);
        let (in_force, _) = live.config.as_mut().unwrap();
        in_force.scheduler_name = name.to_owned();
        live
    };
    let object = |named: Option<&str>, report: Option<&Report>| -> KaiConfig {
        let conditions = report.map(|report| {
            let wants = report.wants.iter();
            let conditions = wants.map(|want| {
                json!({"type": want.kind, "status": if want.holds { "True" } else { "False" },
                    "reason": want.reason, "message": want.message, "observedGeneration": 1,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            });
            conditions.collect::<Vec<_>>()
        });
        let object = json!({"apiVersion": "kai.scheduler/v1", "kind": "Config",
            "metadata": {"name": "kai-config", "generation": 1},
            "spec": {"global": {"schedulerName": named}}, "status": {"conditions": conditions}});
        serde_json::from_value(object).unwrap()
    };
    let (mut kai, mut other) = (of("kai-scheduler"), of("other"));
    // Of KAI's own the other says nothing.
    other.config(object(None, None));
    assert!(other.due().is_none());
    kai.config(object(None, None));
    assert!(said(&kai.reports(Time(1)), "Ready").0);
    // One that names the other is its own, and KAI's says nothing against it.
    kai.config(object(Some("other"), None));
    let first = kai.reports(Time(2));
    let (ready, why) = said(&first, "Ready");
    assert!(!ready && why.contains("--scheduler-name=other"), "{why}");
    other.config(object(Some("other"), first.first()));
    let last = other.reports(Time(3));
    assert!(said(&last, "Ready").0);
    for live in [&mut kai, &mut other] {
        live.config(object(Some("other"), last.first()));
        assert!(live.due().is_none());
    }
}

#[test]
fn a_message_has_an_end() {
    let line = "x".repeat(MAX_MESSAGE);
    let text = cut(vec![line; 10]);
    assert!(
        text.len() < MAX_MESSAGE + 64 && text.ends_with("... and 8 more"),
        "{}",
        text.len()
    );
}
