//! Every field that the types of KAI's objects have is read, refused or remarked upon.

use super::tests::{there, world};
use crate::shard::{Live, Shard};
use crate::watch::Fact;
use kube::CustomResourceExt as _;
use scheduler_core::Event;
use scheduler_core::units::Time;
use serde_json::{Map, Value, json};

/// Paths of the leaves below a schema; an item of a list is `0`, a value of a map `*`.
fn leaves(schema: &Value, path: &str, out: &mut Vec<String>) {
    if let Some(fields) = schema["properties"]
        .as_object()
        .filter(|all| !all.is_empty())
    {
        for (name, field) in fields {
            leaves(field, &format!("{path}/{name}"), out);
        }
    } else if schema["items"].is_object() {
        leaves(&schema["items"], &format!("{path}/0"), out);
    } else if schema["additionalProperties"].is_object() {
        leaves(&schema["additionalProperties"], &format!("{path}/*"), out);
    } else {
        out.push(path.to_owned());
    }
}

fn leaves_of(definition: impl serde::Serialize) -> Vec<String> {
    let definition = serde_json::to_value(definition).unwrap();
    let root = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut out = Vec::new();
    leaves(&root["spec"], "/spec", &mut out);
    // The webhook refuses these: `what_no_release_of_kai_has_a_rule_for_is_refused_by_its_name`.
    out.retain(|path| !path.ends_with("/lendingLimit") && path != "/spec/minNonPreemptible");
    out
}

/// Each leaf of the definition is in one of these objects, and with another value there the
/// events are others. `other`: that value.
fn each_is_read(
    paths: Vec<String>,
    objects: &[Value],
    other: impl Fn(&str, &Value) -> Value,
    events: impl Fn(Value) -> Vec<Event>,
) {
    assert!(paths.len() > 1, "{paths:?}");
    for path in paths {
        let read = objects.iter().any(|object| {
            let Some(value) = object.pointer(&path) else {
                return false;
            };
            let mut changed = object.clone();
            *changed.pointer_mut(&path).unwrap() = other(&path, value);
            events(object.clone()) != events(changed)
        });
        assert!(read, "{path} has no reader");
    }
}

/// Another value of the same type.
fn otherwise(path: &str, value: &Value) -> Value {
    match value {
        Value::Bool(is) => json!(!is),
        Value::Number(number) if number.is_f64() => json!(number.as_f64().unwrap() + 1.0),
        Value::Number(number) => json!(number.as_i64().unwrap() + 1),
        Value::String(text) if text.ends_with('m') => json!(format!("1{text}")),
        Value::String(text) => json!(format!("{text}x")),
        _ => panic!("{path} is {value}"),
    }
}

#[test]
fn every_field_of_a_queue_a_pod_group_and_a_topology_has_a_reader() {
    let resource = json!({"quota": 1.5, "limit": 2.5, "overQuotaWeight": 3.5});
    let queue = json!({"metadata": {"name": "q"}, "spec": {
        "displayName": "Q", "parentQueue": "p", "priority": 5,
        "resources": {"gpu": resource, "cpu": resource, "memory": resource},
        "preemptMinRuntime": "5m", "reclaimMinRuntime": "6m"}});
    each_is_read(
        leaves_of(api::Queue::crd()),
        &[queue],
        otherwise,
        |object| world().take(Fact::Queue(there(object))),
    );

    let topology = json!({"topology": "t", "requiredTopologyLevel": "rack",
        "preferredTopologyLevel": "host"});
    let condition = json!({"nodePool": "default", "message": "no room"});
    let group = |spec: Value| {
        json!({"metadata": {"name": "g", "namespace": "ns"}, "spec": spec,
            "status": {"schedulingConditions": [condition]}})
    };
    let alone = group(
        json!({"minMember": 2, "queue": "q", "priorityClassName": "low",
        "preemptibility": "preemptible", "topologyConstraint": topology,
        "markUnschedulable": true, "schedulingBackoff": 1,
        "stalenessGracePeriod": "5m", "preemptionDelay": "6m"}),
    );
    let part = json!({"name": "part", "minMember": 1, "parent": "whole",
        "topologyConstraint": topology});
    let whole = json!({"name": "whole", "minSubGroup": 1});
    let parts = group(json!({"minSubGroup": 1, "subGroups": [part, whole]}));
    let inner = group(json!({"subGroups": [whole, part]}));
    let other = |path: &str, value: &Value| match path {
        "/spec/preemptibility" => json!("non-preemptible"),
        "/spec/priorityClassName" => json!("high"),
        "/spec/subGroups/0/parent" => json!(""),
        path => otherwise(path, value),
    };
    let objects = [alone, parts, inner];
    each_is_read(leaves_of(api::PodGroup::crd()), &objects, other, |object| {
        let mut world = world();
        for (name, value) in [("low", 10), ("high", 200)] {
            let class = json!({"metadata": {"name": name}, "value": value});
            world.take(Fact::Class(there(class)));
        }
        world.take(Fact::Group(there(object)))
    });

    let topology = json!({"metadata": {"name": "t"},
        "spec": {"levels": [{"nodeLabel": "rack", "alias": "r"}]}});
    each_is_read(
        leaves_of(api::Topology::crd()),
        &[topology],
        otherwise,
        |object| world().take(Fact::Topology(there(object))),
    );
}

/// The settings in force and what is said with this spec.
fn of_shard(spec: &Value) -> (Option<scheduler_core::Config>, String) {
    let settings = crate::Config::default();
    let shard = Shard::of_all(&settings, settings.core(0));
    let mut live = Live::new(&shard, None);
    let object = json!({"metadata": {"name": "default"}, "spec": spec});
    let settings = live.shard(serde_json::from_value(object).unwrap());
    let usage = live.usage().cloned();
    let reports = live.reports(Time(1));
    let said = reports.iter().flat_map(|report| &report.wants);
    let said: Vec<&str> = said.map(|want| want.message.as_str()).collect();
    (settings, format!("{} {usage:?}", said.join("\n")))
}

fn in_memory(params: Value) -> Value {
    json!({"usageDBConfig": {"clientType": "in-memory", "usageParams": params}})
}

#[test]
fn every_field_of_a_shard_acts_is_refused_or_is_named() {
    let samples = [
        (
            "/spec/args/*",
            json!({"args": {"max-consolidation-preemptees": "3"}}),
        ),
        (
            "/spec/placementStrategy/gpu",
            json!({"placementStrategy": {"gpu": "spread"}}),
        ),
        (
            "/spec/placementStrategy/cpu",
            json!({"placementStrategy": {"cpu": "spread"}}),
        ),
        (
            "/spec/partitionLabelValue",
            json!({"partitionLabelValue": "a"}),
        ),
        ("/spec/usageDBConfig/clientType", in_memory(json!({}))),
        (
            "/spec/usageDBConfig/connectionString",
            json!({"usageDBConfig": {"connectionString": "x", "clientType": "prometheus"}}),
        ),
        (
            "/spec/usageDBConfig/connectionStringEnvVar",
            json!({"usageDBConfig": {"connectionStringEnvVar": "X", "connectionString": "http://x",
                "clientType": "prometheus"}}),
        ),
        (
            "/spec/usageDBConfig/usageParams/halfLifePeriod",
            in_memory(json!({"halfLifePeriod": "soon"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/windowSize",
            in_memory(json!({"windowSize": "soon"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/windowType",
            in_memory(json!({"windowType": "hopping"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/tumblingWindowStartTime",
            in_memory(json!({"tumblingWindowStartTime": "2026-01-05T00:00:00Z"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/cronString",
            in_memory(json!({"cronString": "@daily"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/fetchInterval",
            in_memory(json!({"fetchInterval": "soon"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/stalenessPeriod",
            in_memory(json!({"stalenessPeriod": "soon"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/waitTimeout",
            in_memory(json!({"waitTimeout": "soon"})),
        ),
        (
            "/spec/usageDBConfig/usageParams/extraParams/*",
            in_memory(json!({"extraParams": {"queryResolution": "5m"}})),
        ),
        (
            "/spec/queueDepthPerAction/*",
            json!({"queueDepthPerAction": {"allocate": 3}}),
        ),
        (
            "/spec/minRuntime/preemptMinRuntime",
            json!({"minRuntime": {"preemptMinRuntime": "5m"}}),
        ),
        (
            "/spec/minRuntime/reclaimMinRuntime",
            json!({"minRuntime": {"reclaimMinRuntime": "5m"}}),
        ),
        ("/spec/kValue", json!({"kValue": 2})),
        (
            "/spec/plugins/*/enabled",
            json!({"plugins": {"minruntime": {"enabled": false}}}),
        ),
        (
            "/spec/plugins/*/priority",
            json!({"plugins": {"minruntime": {"priority": 3}}}),
        ),
        (
            "/spec/plugins/*/arguments/*",
            json!({"plugins": {"proportion": {"arguments": {"kValue": "2"}}}}),
        ),
        (
            "/spec/actions/*/enabled",
            json!({"actions": {"preempt": {"enabled": false}}}),
        ),
        (
            "/spec/actions/*/priority",
            json!({"actions": {"preempt": {"priority": 900}}}),
        ),
    ];
    let nothing = of_shard(&json!({}));
    assert_eq!(nothing.0, None);
    for path in leaves_of(api::kai::ShardDefinition::crd()) {
        let sample = samples.iter().find(|(of, _)| *of == path);
        let (_, sample) = sample.unwrap_or_else(|| panic!("{path} is new: what does it do?"));
        assert_ne!(of_shard(sample), nothing, "{path} has no reader");
    }
    // KAI's defaults of `schedulingshard_types.go`, and those that a newer one adds.
    for plugin in [
        "predicates",
        "proportion",
        "priority",
        "nodeavailability",
        "resourcetype",
        "podaffinity",
        "elastic",
        "kubeflow",
        "ray",
        "subgrouporder",
        "taskorder",
        "nominatednode",
        "dynamicresources",
        "minruntime",
        "topology",
        "snapshot",
        "sg-nodelocalgreedy",
        "sg-multinodegang",
        "gpupack",
        "gpuspread",
        "nodeplacement",
        "gpusharingorder",
        "reflectjoborder",
    ] {
        let of = |on: bool| of_shard(&json!({"plugins": {plugin: {"enabled": on}}}));
        assert_ne!(of(true), of(false), "{plugin} is switched off in vain");
        let known = |(_, said): (_, String)| !said.contains("not known");
        assert!(known(of(true)) && known(of(false)), "{plugin}");
    }
}

#[test]
fn every_flag_of_kais_scheduler_acts_is_refused_or_is_named() {
    // `cmd/scheduler/app/options/options.go`, with a value that is not the default.
    let flags: Map<String, Value> = serde_json::from_value(json!({
        "schedule-period": "5s", "default-staleness-grace-period": "90s",
        "max-consolidation-preemptees": "3", "use-scheduling-signatures": "false",
        "full-hierarchy-fairness": "false", "allow-consolidating-reclaim": "false",
        "schedule-csi-storage": "true", "restrict-node-scheduling": "true",
        "num-of-status-recording-workers": "3", "detailed-fit-errors": "true",
        "update-pod-eviction-condition": "true", "nodepool-label-key": "x",
        "partition-label-value": "a", "leader-elect": "true", "plugin-server-port": "1",
        "listen-address": ":1", "profiler-api-port": "1", "qps": "1", "burst": "1", "v": "9",
        "scheduler-name": "other", "metrics-namespace": "x", "enable-profiler": "true",
        "resource-reservation-app-label": "x", "feature-gates": "x", "master": "x",
        "kubeconfig": "x", "lock-object-namespace": "x", "inform": "x",
        "cpu-worker-node-label-key": "x", "gpu-worker-node-label-key": "x",
        "mig-worker-node-label-key": "x", "queue-label-key": "x",
    }))
    .unwrap();
    let nothing = of_shard(&json!({}));
    for (name, value) in flags {
        let said = of_shard(&json!({"args": {name.clone(): value}}));
        assert_ne!(said, nothing, "{name} has no reader");
        assert!(!said.1.contains("is no flag of KAI"), "{name}: {}", said.1);
    }
}
