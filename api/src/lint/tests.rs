use super::*;
use serde_json::json;

fn cluster() -> Cluster {
    Cluster::of_scheduler("kai-scheduler")
}

fn lines(object: &Value) -> Vec<String> {
    of(object, &cluster())
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn pod(metadata: Value, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}]},
    });
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// One finding, which begins with the field, names the fix and says whether the GPU is lost.
fn only(object: &Value, field: &str, fix: &str, costs: bool) {
    let findings = of(object, &cluster());
    let [finding] = findings.as_slice() else {
        panic!("{object}: {findings:?}");
    };
    assert_eq!(finding.field, field, "{finding}");
    assert!(finding.fix.contains(fix), "{finding}");
    assert_eq!(finding.costs_the_gpu, costs, "{finding}");
    assert_eq!(finding.to_string().lines().count(), 1);
}

#[test]
fn a_right_manifest_has_no_finding() {
    let share = json!({
        "gpu-memory": "2000", "gpu-memory.limit": "4Gi", "aliquot.dev/gpu-compute": "25",
        "kai.scheduler/gpu-compute-sharing-mode": "sm-sharing", "gpu-fraction-container-name": "main",
        "kai.scheduler/min-member": "2", "prometheus.io/scrape": "true", "example.com/gpu-type": "a",
        "aliquot.dev/safe-to-evict": "true", "kai.scheduler/of-a-later-version": "1",
    });
    let labels = json!({
        "kai.scheduler/queue": "team-a", "priorityClassName": "train", "app": "x", "project": "p",
        "gpu": "a100", "app.kubernetes.io/name": "queue",
    });
    for object in [
        pod(
            json!({"name": "p", "annotations": share, "labels": labels}),
            json!({"containers": [{"name": "main"}, {"name": "log"}]}),
        ),
        pod(
            json!({"name": "p"}),
            json!({"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": 1}}}]}),
        ),
        // Several containers with shares of their own.
        pod(
            json!({"annotations": {"nvidia.com/container.main.gpu-memory.request": "2Gi"}}),
            json!({"containers": [{"name": "main"}, {"name": "log"}]}),
        ),
        // A pod of others, in their words.
        pod(
            json!({}),
            json!({"schedulerName": "volcano", "containers": [{"name": "c", "resources": {"limits": {"volcano.sh/vgpu-memory": 1}}}]}),
        ),
        // KAI's pods, next to a scheduler of ours with another name, are tested below.
        pod(
            json!({"labels": {"app": "x"}}),
            json!({"schedulerName": null}),
        ),
        json!({"kind": "ConfigMap", "metadata": {"name": "c", "annotations": {"gpu-memory": "1"}}}),
        json!({"kind": "Deployment", "metadata": {"annotations": {"note": "x"}, "labels": {"kai.scheduler/queue": "q"}},
            "spec": {"template": pod(json!({"annotations": {"gpu-fraction": "0.5"}}), json!({}))}}),
        json!(null),
    ] {
        assert_eq!(lines(&object), [""; 0], "{object}");
    }
}

#[test]
fn a_misspelt_annotation_is_told_with_what_was_meant() {
    for (key, meant, costs) in [
        ("gpu-memroy", "write gpu-memory", true),
        ("gpu_memory", "write gpu-memory", true),
        ("GPU-Memory", "write gpu-memory", true),
        ("gpumemory", "write gpu-memory", true),
        ("gpu-memory-limit", "write gpu-memory.limit", true),
        ("gpu-fractio", "write gpu-fraction", true),
        (
            "gpu-fraction-container",
            "write gpu-fraction-container-name",
            true,
        ),
        ("aliquot.dev/gpu-memory", "write gpu-memory", true),
        ("run.ai/gpu-fraction", "write gpu-fraction", true),
        ("nvidia.com/gpu-memory", "write gpu-memory", true),
        ("gpu-compute", "write aliquot.dev/gpu-compute", true),
        (
            "aliquot.dev/gpu-compte",
            "write aliquot.dev/gpu-compute",
            true,
        ),
        ("gpu-mem", "gpu-memory or gpu-fraction", true),
        ("aliquot.dev/memory", "gpu-memory or gpu-fraction", true),
        (
            "nvidia.com/containers.main.gpu-memory.request",
            "nvidia.com/container.NAME.gpu-memory.request",
            true,
        ),
        (
            "kai.scheduler/min-membr",
            "write kai.scheduler/min-member",
            false,
        ),
        (
            "kai.scheduler/topology-required-placemnt",
            "write kai.scheduler/topology-required-placement",
            false,
        ),
        ("pod-group-names", "write pod-group-name", false),
    ] {
        let object = pod(json!({"annotations": {key: "2000"}}), json!({}));
        only(
            &object,
            &format!("metadata.annotations[{key}]"),
            meant,
            costs,
        );
    }
}

#[test]
fn a_run_time_counts_on_pods_alone() {
    for (key, fix) in [
        ("aliquot.dev/expected-run-time", "move it to spec.template."),
        (
            "aliquot.dev/expected-runtime",
            "annotations as aliquot.dev/expected-run-time",
        ),
    ] {
        let object = json!({
            "kind": "Job", "metadata": {"name": "j", "annotations": {key: "2h"}},
            "spec": {"template": pod(json!({}), json!({}))},
        });
        only(&object, &format!("metadata.annotations[{key}]"), fix, false);
    }
}

#[test]
fn labels_and_annotations_that_were_taken_for_each_other_are_told() {
    let label = |key: &str, value: &str| pod(json!({"labels": {key: value}}), json!({}));
    only(
        &label("gpu-memory", "2000"),
        "metadata.labels[gpu-memory]",
        "move it to metadata.annotations",
        true,
    );
    only(
        &label("kai.scheduler/quue", "a"),
        "metadata.labels[kai.scheduler/quue]",
        "write kai.scheduler/queue",
        false,
    );
    only(
        &label("kai-scheduler/queue", "a"),
        "metadata.labels[kai-scheduler/queue]",
        "write kai.scheduler/queue",
        false,
    );
    let object = pod(
        json!({"annotations": {"kai.scheduler/queue": "a"}}),
        json!({}),
    );
    only(
        &object,
        "metadata.annotations[kai.scheduler/queue]",
        "move it to metadata.labels",
        false,
    );
}

/// YAML is indented by hand.
#[test]
fn an_annotation_at_another_level_is_told() {
    let at = |field: &str, object: Value| {
        let object = json!({"kind": "Job", "metadata": {}, "spec": {"template": object}});
        let field = format!("spec.template.{field}[gpu-memory]");
        let fix = "move it to spec.template.metadata.annotations";
        only(&object, &field, fix, true);
    };
    let ours = || pod(json!({}), json!({}));
    let with = |path: &str| {
        let mut object = ours();
        let map = json!({"gpu-memory": "2000"});
        match path {
            "" => object["annotations"] = map,
            path => *object.pointer_mut(path).unwrap() = map,
        }
        object
    };
    at("annotations", with(""));
    at("metadata", with("/metadata"));
    let mut object = ours();
    object["spec"]["gpu-memory"] = json!("2000");
    at("spec", object);
    let mut object = ours();
    object["spec"]["annotations"] = json!({"gpu-memory": "2000"});
    at("spec.annotations", object);
    let mut object = ours();
    object["spec"]["containers"][0]["resources"] = json!({"limits": {"gpu-memory": "2000"}});
    at("spec.containers[0].resources.limits", object);
}

#[test]
fn what_is_on_the_owner_belongs_to_its_pods() {
    let owner = |kind: &str, spec: Value| json!({"kind": kind, "metadata": {"name": "o", "annotations": {"gpu-memory": "2000"}}, "spec": spec});
    let template = || pod(json!({}), json!({}));
    for (object, path) in [
        (
            owner("Deployment", json!({"template": template()})),
            "spec.template.",
        ),
        (
            owner(
                "CronJob",
                json!({"jobTemplate": {"spec": {"template": template()}}}),
            ),
            "spec.jobTemplate.spec.template.",
        ),
        (
            owner(
                "PyTorchJob",
                json!({"pytorchReplicaSpecs": {"Worker": {"template": template()}}}),
            ),
            "spec.pytorchReplicaSpecs.Worker.template.",
        ),
        (
            owner(
                "RayCluster",
                json!({"workerGroupSpecs": [{"template": template()}]}),
            ),
            "spec.workerGroupSpecs[0].template.",
        ),
    ] {
        let fix = format!("move it to {path}metadata.annotations");
        only(&object, "metadata.annotations[gpu-memory]", &fix, true);
    }
    let misspelt = json!({"kind": "Job", "metadata": {"annotations": {"gpu-memroy": "1"}}, "spec": {"template": template()}});
    only(
        &misspelt,
        "metadata.annotations[gpu-memroy]",
        "as gpu-memory",
        true,
    );
    let label = json!({"kind": "Job", "metadata": {"labels": {"gpu-fraction": "0.5", "priorityClassName": "inferenze"}}, "spec": {"template": template()}});
    let said = lines(&label);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("as an annotation") && said[1].contains("write inference"),
        "{said:?}"
    );
}

#[test]
fn a_pod_of_another_scheduler_gets_no_share() {
    let share = || json!({"annotations": {"gpu-memory": "2000"}});
    for (name, said) in [
        (
            json!(null),
            "is not set, so that Kubernetes' own scheduler places the pod without a GPU",
        ),
        (json!(""), "is not set"),
        (
            json!("aliquot"),
            "is aliquot, so that Aliquot does not see the pod",
        ),
        (json!("default-scheduler"), "is default-scheduler"),
    ] {
        let object = pod(share(), json!({"schedulerName": name}));
        only(
            &object,
            "spec.schedulerName",
            "set it to kai-scheduler",
            true,
        );
        assert!(lines(&object)[0].contains(said), "{:?}", lines(&object));
    }
    // By its queue alone, by a misspelt annotation, and by a whole GPU.
    let queue = pod(
        json!({"labels": {"kai.scheduler/queue": "a"}}),
        json!({"schedulerName": null}),
    );
    only(&queue, "spec.schedulerName", "kai-scheduler", true);
    let both = pod(
        json!({"annotations": {"gpu-memroy": "1"}}),
        json!({"schedulerName": null}),
    );
    assert_eq!(lines(&both).len(), 2, "{:?}", lines(&both));
    let gpu = json!([{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}]);
    let whole = pod(json!({}), json!({"schedulerName": null, "containers": gpu}));
    only(&whole, "spec.schedulerName", "kai-scheduler", false);
    // KAI's own pods are right where KAI runs as well.
    let object = pod(share(), json!({}));
    assert_eq!(of(&object, &Cluster::of_scheduler("aliquot-canary")), []);
}

#[test]
fn the_words_of_other_products_are_translated() {
    for (limits, field, fix, costs) in [
        (
            json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3000"}),
            "nvidia.com/gpumem",
            "gpu-memory: \"3000\", and remove nvidia.com/gpu",
            true,
        ),
        (
            json!({"nvidia.com/gpumem": 3000}),
            "nvidia.com/gpumem",
            "gpu-memory: \"3000\"",
            true,
        ),
        (
            json!({"nvidia.com/gpumem-percentage": 50}),
            "nvidia.com/gpumem-percentage",
            "gpu-fraction: \"0.5\"",
            true,
        ),
        (
            json!({"nvidia.com/gpumem-percentage": 5}),
            "nvidia.com/gpumem-percentage",
            "gpu-fraction: \"0.05\"",
            true,
        ),
        (
            json!({"nvidia.com/gpucores": 30}),
            "nvidia.com/gpucores",
            "aliquot.dev/gpu-compute: \"30\"",
            false,
        ),
        (
            json!({"volcano.sh/vgpu-number": 1}),
            "volcano.sh/vgpu-number",
            "gpu-fraction-num-devices",
            true,
        ),
        (
            json!({"aliyun.com/gpu-mem": "3"}),
            "aliyun.com/gpu-mem",
            "gpu-memory: \"3072\"",
            true,
        ),
        (
            json!({"nvidia.com/gpu.shared": 1}),
            "nvidia.com/gpu.shared",
            "gpu-fraction",
            true,
        ),
        (
            json!({"aliquot.dev/gpu-memory-mib": 1}),
            "aliquot.dev/gpu-memory-mib",
            "annotation gpu-memory",
            true,
        ),
        (
            json!({"nvidia.com/gpus": 1}),
            "nvidia.com/gpus",
            "write nvidia.com/gpu",
            false,
        ),
    ] {
        let resources = json!({"limits": limits.clone(), "requests": limits});
        let object = pod(
            json!({}),
            json!({"containers": [{"name": "c", "resources": resources}]}),
        );
        only(
            &object,
            &format!("spec.containers[0].resources.limits[{field}]"),
            fix,
            costs,
        );
    }
    let object = pod(
        json!({"annotations": {"nvidia.com/use-gputype": "A100"}}),
        json!({}),
    );
    only(
        &object,
        "metadata.annotations[nvidia.com/use-gputype]",
        "nvidia.com/gpu.product",
        false,
    );
}

#[test]
fn a_priority_class_that_is_not_there_is_told() {
    let named = |name: &str| pod(json!({"labels": {"priorityClassName": name}}), json!({}));
    only(
        &named("trian"),
        "metadata.labels[priorityClassName]",
        "write train",
        false,
    );
    only(
        &pod(json!({}), json!({"priorityClassName": "inferenze"})),
        "spec.priorityClassName",
        "write inference",
        false,
    );
    // It may be the cluster's own.
    for name in ["gold", "train-2", "trains", "system-node-critical"] {
        assert_eq!(lines(&named(name)), [""; 0], "{name}");
    }
    let mut cluster = cluster();
    cluster.all_classes = true;
    cluster.classes.insert("gold".to_owned());
    assert_eq!(of(&named("gold"), &cluster), []);
    let said = of(&named("silver"), &cluster);
    assert!(
        said[0].problem.ends_with("which does not exist"),
        "{said:?}"
    );
    assert!(said[0].fix.contains("train, build-preemptible"), "{said:?}");
}

#[test]
fn a_second_container_gets_none_unless_it_is_said_who_gets_it() {
    let object = pod(
        json!({"annotations": {"gpu-memory": "2000"}}),
        json!({"containers": [{"name": "main"}, {"name": "log"}]}),
    );
    only(
        &object,
        "spec.containers[1]",
        "nvidia.com/container.log.gpu-memory.request",
        false,
    );
    assert!(
        lines(&object)[0].contains("(log) gets no GPU"),
        "{:?}",
        lines(&object)
    );
}

#[test]
fn values_that_kubernetes_or_cuda_cannot_use_are_told() {
    let with = |value: Value| pod(json!({"annotations": {"gpu-memory": value}}), json!({}));
    only(
        &with(json!(2000)),
        "metadata.annotations[gpu-memory]",
        "in quotes, \"2000\"",
        false,
    );
    only(
        &with(json!("8")),
        "metadata.annotations[gpu-memory]",
        "for 8 GiB write \"8192\"",
        false,
    );
    only(
        &pod(json!({"labels": {"x": true}}), json!({})),
        "metadata.labels[x]",
        "in quotes, \"true\"",
        false,
    );
}

/// Admission sees objects before anything has checked them.
#[test]
fn hostile_objects_take_little_and_say_little() {
    let long = "gpu-memory\u{202e}\u{1b}[2J\n".to_owned() + &"x".repeat(1 << 20);
    let mut annotations = serde_json::Map::new();
    for number in 0..100_000 {
        annotations.insert(format!("gpu-memo{number}"), json!("1"));
    }
    annotations.insert(format!("a{long}"), json!("1"));
    let mut deep = json!({"spec": {"containers": []}});
    for _ in 0..100 {
        deep = json!({"a": [deep]});
    }
    for object in [
        pod(
            json!({"annotations": annotations, "labels": {&long: 1}}),
            json!({"schedulerName": long, "priorityClassName": long,
            "containers": [{"name": long, "resources": {"limits": {&long: long}}}, {"name": long}]}),
        ),
        json!({"kind": long, "metadata": {"annotations": {"gpu-memory": 1}}, "spec": {"template": pod(json!({}), json!({}))}}),
        json!({"kind": "X", "spec": deep}),
        json!({"kind": "Pod", "metadata": [], "spec": "x"}),
        json!({"kind": "Pod", "metadata": {"annotations": []}, "spec": {"containers": [1, null, {"resources": 7}]}}),
    ] {
        let findings = of(&object, &cluster());
        assert!(findings.len() <= MOST);
        for line in findings.iter().map(ToString::to_string) {
            assert!(line.len() < 2000, "{}", line.len());
            assert!(line.chars().all(crate::visible::is_visible), "{line}");
        }
    }
}
