//! `deploy/chart` against `deploy/*.yaml`: the same objects, changed as the values say.
//!
//! `ALIQUOT_HELM` names the helms to ask; `tests/chart/run` builds the pinned ones, of majors 3 and
//! 4, and sets it to both. Without it only the checks without Helm are run.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use aliquot_tests::manifest::documents;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

type Objects = BTreeMap<(String, String), Value>;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// `255.0` is `255`: which of them is written says nothing.
fn plain_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole: Option<i64> = format!("{number}").trim_end_matches(".0").parse().ok();
            if let Some(whole) = whole {
                *value = json!(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(plain_numbers),
        Value::Object(fields) => fields.values_mut().for_each(plain_numbers),
        _ => {}
    }
}

fn objects(text: &str) -> Objects {
    let named = |mut object: Value| {
        plain_numbers(&mut object);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (
            (text(&object["kind"]), text(&object["metadata"]["name"])),
            object,
        )
    };
    documents(text).unwrap().into_iter().map(named).collect()
}

/// What `kubectl apply` gets, but for KAI's kinds, which helm installs where they are missing.
fn plain() -> Objects {
    let files = [
        "scheduler.yaml",
        "daemonset.yaml",
        "crds/aliquot.dev_gpunodes.yaml",
    ];
    let read = |file| std::fs::read_to_string(deploy().join(file)).unwrap();
    files
        .into_iter()
        .flat_map(|file| objects(&read(file)))
        .collect()
}

fn helms() -> Vec<PathBuf> {
    let helms = std::env::var_os("ALIQUOT_HELM").unwrap_or_default();
    if helms.is_empty() {
        eprintln!("ALIQUOT_HELM is not set: the chart is not rendered");
        return Vec::new();
    }
    std::env::split_paths(&helms).collect()
}

fn template(helm: &Path, namespace: &str, flags: &[&str]) -> Output {
    Command::new(helm)
        .args(["template", "aliquot"])
        .arg(deploy().join("chart"))
        .args(["--namespace", namespace, "--kube-version", "1.36.0"])
        .args(flags)
        .output()
        .unwrap()
}

fn rendered(helm: &Path, namespace: &str, flags: &[&str]) -> Objects {
    let output = template(helm, namespace, flags);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {errors}");
    objects(&String::from_utf8(output.stdout).unwrap())
}

fn key(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[test]
fn the_chart_carries_the_very_files_that_kubectl_applies() {
    for (link, file) in [
        ("files/scheduler.yaml", "scheduler.yaml"),
        ("files/daemonset.yaml", "daemonset.yaml"),
        ("files/queues.yaml", "queues/queues.yaml"),
        ("files/dra.yaml", "dra/dra.yaml"),
        ("files/grafana", "grafana"),
        ("files/autoscaling.yaml", "autoscaling/autoscaling.yaml"),
        (
            "files/aliquot.dev_gpunodes.yaml",
            "crds/aliquot.dev_gpunodes.yaml",
        ),
        (
            "crds/scheduling.run.ai_queues.yaml",
            "crds/scheduling.run.ai_queues.yaml",
        ),
        (
            "crds/scheduling.run.ai_podgroups.yaml",
            "crds/scheduling.run.ai_podgroups.yaml",
        ),
        (
            "crds/kai.scheduler_topologies.yaml",
            "crds/kai.scheduler_topologies.yaml",
        ),
        (
            "crds/kai.scheduler_schedulingshards.yaml",
            "crds/kai.scheduler_schedulingshards.yaml",
        ),
        (
            "crds/kai.scheduler_configs.yaml",
            "crds/kai.scheduler_configs.yaml",
        ),
    ] {
        let link = deploy().join("chart").join(link).canonicalize().unwrap();
        assert_eq!(link, deploy().join(file).canonicalize().unwrap());
    }
    let crds = std::fs::read_dir(deploy().join("crds")).unwrap().count();
    assert_eq!(
        crds, 6,
        "a definition came or went: the chart must carry it"
    );
}

#[test]
fn with_nothing_set_the_objects_are_the_same() {
    for helm in helms() {
        same_objects(&helm);
    }
}

fn same_objects(helm: &Path) {
    let mut chart = rendered(helm, "anywhere", &[]);
    for (hook, when) in [("doctor", "helm test"), ("leaves-behind", "an uninstall")] {
        let pod = chart.remove(&key("Pod", &format!("aliquot-{hook}")));
        assert!(pod.is_some(), "{when} has no pod");
    }
    let keep = json!("keep");
    for ((kind, _), object) in &mut chart {
        if [
            "Queue",
            "PriorityClass",
            "CustomResourceDefinition",
            "Secret",
        ]
        .contains(&kind.as_str())
        {
            // Shared by all: an uninstall leaves them.
            let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
            assert_eq!(
                annotations.remove("helm.sh/resource-policy").as_ref(),
                Some(&keep)
            );
            if annotations.is_empty() {
                object["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .remove("annotations");
            }
        }
    }
    let plain = plain();
    let names = |objects: &Objects| -> Vec<(String, String)> { objects.keys().cloned().collect() };
    assert_eq!(names(&chart), names(&plain));
    for (name, object) in &plain {
        assert!(chart[name] == *object, "{name:?} is another one");
    }
    // In its own namespace helm makes that itself.
    let own = rendered(helm, "aliquot-system", &[]);
    assert!(!own.contains_key(&key("Namespace", "aliquot-system")));
}

#[test]
fn shares_by_claim_add_their_objects_and_a_flag_of_the_agent() {
    for helm in helms() {
        let without = rendered(&helm, "aliquot-system", &[]);
        let mut with = rendered(&helm, "aliquot-system", &["--set", "dra.enabled=true"]);
        let added = objects(&std::fs::read_to_string(deploy().join("dra/dra.yaml")).unwrap());
        for (name, object) in &added {
            assert!(!without.contains_key(name), "{name:?} is there without");
            assert_eq!(with.remove(name).as_ref(), Some(object));
        }
        let agent = key("DaemonSet", "aliquot-agent");
        let spec = |objects: &Objects| objects[&agent]["spec"]["template"]["spec"].clone();
        let (mut before, after) = (spec(&without), spec(&with));
        let add = |list: &mut Value, item: Value| list.as_array_mut().unwrap().push(item);
        add(&mut before["containers"][0]["args"], json!("--dra=true"));
        assert_eq!(before, after);
        with.insert(agent.clone(), without[&agent].clone());
        assert!(with == without, "something else changed");
    }
}

#[test]
fn a_mig_strategy_is_a_flag_of_the_agent_and_nothing_else() {
    for helm in helms() {
        let without = rendered(&helm, "aliquot-system", &["--set", "mig.strategy=none"]);
        assert!(without == rendered(&helm, "aliquot-system", &[]));
        let mut with = rendered(&helm, "aliquot-system", &["--set", "mig.strategy=mixed"]);
        let agent = key("DaemonSet", "aliquot-agent");
        let args = "/spec/template/spec/containers/0/args";
        let mut wanted = without[&agent].clone();
        let list = wanted.pointer_mut(args).unwrap().as_array_mut().unwrap();
        list.push(json!("--mig-strategy=mixed"));
        assert_eq!(with[&agent], wanted);
        with.insert(agent.clone(), without[&agent].clone());
        assert!(with == without, "something else changed");
    }
}

#[test]
fn autoscaling_adds_its_objects_and_tells_the_scheduler() {
    for helm in helms() {
        let without = rendered(&helm, "aliquot-system", &[]);
        let on = ["--set", "global.clusterAutoscaling=true"];
        let mut with = rendered(&helm, "aliquot-system", &on);
        let file = deploy().join("autoscaling/autoscaling.yaml");
        let added = objects(&std::fs::read_to_string(file).unwrap());
        for (name, object) in &added {
            assert!(!without.contains_key(name), "{name:?} is there without");
            assert_eq!(with.remove(name).as_ref(), Some(object));
        }
        let scheduler = key("Deployment", "aliquot-scheduler");
        let args = "/spec/template/spec/containers/0/args";
        let mut wanted = without[&scheduler].clone();
        let list = wanted.pointer_mut(args).unwrap().as_array_mut().unwrap();
        list.push(json!("--cluster-autoscaling"));
        assert_eq!(with[&scheduler], wanted);
        with.insert(scheduler.clone(), without[&scheduler].clone());
        assert!(with == without, "something else changed");

        let mut emptied = on.to_vec();
        emptied.extend(["--set", "scaleDown.delaySeconds=600"]);
        let emptied = &rendered(&helm, "aliquot-system", &emptied)[&scheduler];
        let emptied = emptied.pointer(args).unwrap().as_array().unwrap();
        for flag in ["--scale-down-delay-s=600", "--max-scale-down-pods=10"] {
            assert!(emptied.contains(&json!(flag)), "{emptied:?}");
        }

        let mut all = on.to_vec();
        all.extend([
            "--set-json",
            "nodeTemplates=[{\"name\": \"l4\", \"cards\": 1}]",
        ]);
        let with = rendered(&helm, "aliquot-system", &all);
        let map = &with[&key("ConfigMap", "aliquot-node-templates")];
        let text = map["data"]["templates.yaml"].as_str().unwrap();
        assert!(
            text.contains("nodeTemplates:") && text.contains("name: l4"),
            "{text}"
        );
        let pod = &with[&scheduler]["spec"]["template"]["spec"];
        let mounted = "--node-templates=/etc/aliquot-nodes/templates.yaml";
        let args = pod["containers"][0]["args"].as_array().unwrap();
        assert!(args.contains(&json!(mounted)));
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
        let mount =
            json!({"name": "node-templates", "mountPath": "/etc/aliquot-nodes", "readOnly": true});
        assert!(mounts.contains(&mount));
    }
}

#[test]
fn values_change_what_they_say_and_kais_install_lines_work() {
    for helm in helms() {
        changed(&helm);
    }
}

fn changed(helm: &Path) {
    let scheduler = key("Deployment", "aliquot-scheduler");
    let agent = key("DaemonSet", "aliquot-agent");
    let mps = key("DaemonSet", "aliquot-mps");
    let container = |object: &Value| object["spec"]["template"]["spec"]["containers"][0].clone();
    let has = |object: &Value, flag: &str| {
        let args = container(object)["args"].as_array().unwrap().clone();
        assert!(args.contains(&json!(flag)), "{flag} is not in {args:?}");
    };

    let kai = rendered(
        helm,
        "kai-scheduler",
        &[
            "--set",
            "global.gpuSharing=true",
            "--set",
            "global.resourceReservation.runtimeClassName=nvidia",
        ],
    );
    assert_eq!(kai, rendered(helm, "kai-scheduler", &[]));

    let digest = format!("image.digest=sha256:{}", "a".repeat(64));
    let pinned = rendered(helm, "a", &["--set", &digest]);
    let named = container(&pinned[&agent])["image"].to_string();
    assert!(named.contains(&"a".repeat(64)), "{named}");
    let tagged = rendered(helm, "a", &["--set", &digest, "--set", "image.tag=v9"]);
    assert_eq!(container(&tagged[&agent])["image"], "aliquot:v9");

    let image = rendered(
        helm,
        "a",
        &[
            "--set",
            "global.registry=reg.example/x/",
            "--set",
            "global.tag=v9",
            "--set",
            "global.imagePullSecrets={s}",
        ],
    );
    let admission = key("Deployment", "aliquot-admission");
    for name in [&scheduler, &admission, &agent, &mps] {
        assert_eq!(container(&image[name])["image"], "reg.example/x/aliquot:v9");
        let secrets = &image[name]["spec"]["template"]["spec"]["imagePullSecrets"];
        assert_eq!(*secrets, json!([{"name": "s"}]));
    }

    let ha = rendered(
        helm,
        "a",
        &[
            "--set",
            "global.leaderElection=true",
            "--set",
            "scheduler.placementStrategy=spread",
            "--set",
            "scheduler.args={--quiet-ms=5}",
            "--set",
            "scheduler.pageLinks.Logs=https://logs.example/?ns={namespace}&pod={name}",
        ],
    );
    assert_eq!(ha[&scheduler]["spec"]["replicas"], 2);
    for flag in [
        "--gpu-placement=spread",
        "--cpu-placement=spread",
        "--quiet-ms=5",
        "--page-link=Logs=https://logs.example/?ns={namespace}&pod={name}",
    ] {
        has(&ha[&scheduler], flag);
    }
    // Of how queues are checked admission knows what the scheduler knows.
    has(&ha[&admission], "--quiet-ms=5");
    has(&ha[&admission], "--role=admission");

    let host = rendered(helm, "a", &["--set", "driver.root=host"]);
    for name in [&agent, &mps] {
        has(&host[name], "--driver-root=/");
        has(&host[name], "--driver-root-here=/driver");
        let volumes = host[name]["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .unwrap();
        let driver = volumes
            .iter()
            .find(|volume| volume["name"] == "driver")
            .unwrap();
        assert_eq!(driver["hostPath"]["path"], "/");
    }
    let set = ["--set", "driver.root=host", "--set", "driver.nvml=opt/x.so"];
    let elsewhere = rendered(helm, "a", &set);
    has(&elsewhere[&agent], "--nvml=/driver/opt/x.so");

    let lenient = rendered(
        helm,
        "a",
        &[
            "--set",
            "guard.action=Warn",
            "--set",
            "guard.exemptNamespaces={mine}",
            "--set",
            "guard.runtimeClasses={gpu}",
            "--set",
            "scheduler.name=aliquot",
            "--set",
            "podgrouper.queueLabelKey=example.com/queue",
            "--set",
            "global.nodePoolLabelKey=example.com/pool",
        ],
    );
    for (policy, variable, value) in [
        ("aliquot-grant", "queueKey", "'example.com/queue'"),
        ("aliquot-grant", "poolKey", "'example.com/pool'"),
        ("aliquot-requests", "schedulers", "['aliquot']"),
        ("aliquot-grant", "schedulers", "['aliquot']"),
        ("aliquot-runtime-classes", "classes", "['gpu']"),
        (
            "aliquot-exempt-namespaces",
            "exemptNames",
            "['kube-system', 'aliquot-system', 'mine']",
        ),
    ] {
        let spec = &lenient[&key("ValidatingAdmissionPolicy", policy)]["spec"];
        let variables = spec["variables"].as_array().unwrap();
        let found = variables.iter().find(|found| found["name"] == variable);
        assert_eq!(found.unwrap()["expression"], value, "{policy}");
    }
    let webhooks = &lenient[&key("MutatingWebhookConfiguration", "aliquot")]["webhooks"];
    for at in [0, 1] {
        assert_eq!(
            webhooks[at]["matchConditions"][0]["expression"],
            "object.spec.schedulerName == 'aliquot'"
        );
    }
    let webhooks = &lenient[&key("ValidatingWebhookConfiguration", "aliquot")]["webhooks"];
    let condition = |at: usize, of: usize| {
        let condition = &webhooks[at]["matchConditions"][of]["expression"];
        condition.as_str().unwrap().to_owned()
    };
    for expression in [condition(1, 0), condition(2, 1), condition(2, 2)] {
        assert!(
            expression.contains("'aliquot'") && !expression.contains("'kai-scheduler'"),
            "{expression}"
        );
    }
    let network = rendered(
        helm,
        "a",
        &[
            "--set",
            "networkPolicy.monitoringFrom[0].ipBlock.cidr=10.0.0.0/8",
        ],
    );
    for (name, rule) in [
        ("aliquot-scheduler", 2),
        ("aliquot-admission", 1),
        ("aliquot-agent", 0),
    ] {
        let ingress = &network[&key("NetworkPolicy", name)]["spec"]["ingress"];
        let wanted = json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}]);
        assert_eq!(ingress[rule]["from"], wanted, "{name}");
    }
    let queues = rendered(
        helm,
        "a",
        &[
            "--set",
            "queues.namespaces.team={a,b}",
            "--set",
            "scheduler.name=aliquot",
            "--set",
            "podgrouper.queueLabelKey=example.com/queue",
        ],
    );
    assert_eq!(
        queues[&key("ConfigMap", "aliquot-queues")]["data"],
        json!({"team": "a b"})
    );
    let policy = &queues[&key("ValidatingAdmissionPolicy", "aliquot-queues")];
    let condition = policy["spec"]["matchConditions"][0]["expression"].as_str();
    assert!(condition.unwrap().ends_with("in ['aliquot']"));
    let variables = policy["spec"]["variables"].as_array().unwrap();
    let named = variables.iter().find(|found| found["name"] == "queueKey");
    assert_eq!(named.unwrap()["expression"], "'example.com/queue'");
    let open = rendered(helm, "a", &["--set", "networkPolicy.create=false"]);
    assert!(!open.keys().any(|(kind, _)| kind == "NetworkPolicy"));
    let bindings = lenient
        .iter()
        .filter(|((kind, _), _)| kind == "ValidatingAdmissionPolicyBinding");
    for (name, binding) in bindings {
        assert_eq!(
            binding["spec"]["validationActions"],
            json!(["Warn", "Audit"]),
            "{name:?}"
        );
        let expressions =
            &binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"];
        if let Some(first) = expressions.get(0) {
            assert!(
                first["values"].as_array().unwrap().contains(&json!("mine")),
                "{name:?}"
            );
        }
    }

    let bare = rendered(
        helm,
        "a",
        &[
            "--set",
            "defaultQueue.createDefaultQueue=false",
            "--set",
            "priorityClasses.create=false",
        ],
    );
    assert!(
        !bare
            .keys()
            .any(|(kind, _)| kind == "Queue" || kind == "PriorityClass")
    );
}

#[test]
fn kais_own_values_install_what_none_install_and_what_is_set_in_them_acts() {
    for helm in helms() {
        kais_values(&helm);
    }
}

fn kais_values(helm: &Path) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("chart/kai-values.yaml");
    let file = file.to_str().unwrap();
    let with = |set: &[&str]| {
        let mut flags = vec!["-f", file];
        for one in set {
            flags.extend(["--set", *one]);
        }
        rendered(helm, "kai-scheduler", &flags)
    };
    let scheduler = key("Deployment", "aliquot-scheduler");
    let pod = |objects: &Objects| objects[&scheduler]["spec"]["template"]["spec"].clone();
    let args = |objects: &Objects| pod(objects)["containers"][0]["args"].clone();
    let plain = rendered(helm, "kai-scheduler", &[]);
    // But for the registry and the defaults that it spells out.
    let same = [
        "global.registry=",
        "global.imagePullPolicy=",
        "scheduler.placementStrategy=",
    ];
    assert_eq!(with(&same), plain);
    let spelled = with(&[]);
    assert!(
        args(&spelled)
            .to_string()
            .contains("--gpu-placement=binpack")
    );

    let set = with(&[
        "scheduler.args.max-consolidation-preemptees=4",
        "scheduler.plugins.gpuspread.enabled=true",
        "scheduler.actions.consolidation.enabled=false",
        "podgrouper.queueLabelKey=example.com/queue",
        "podgrouper.args.defaultPrioritiesConfigMapName=types",
        "podgrouper.args.defaultPrioritiesConfigMapNamespace=kai",
        "podgrouper.args.gangScheduleDeployment=false",
        "global.nodePoolLabelKey=example.com/pool",
        "global.priorityClassName=system-cluster-critical",
        "global.daemonsetsTolerations[0].operator=Exists",
        "defaultQueue.parentName=top",
        "defaultQueue.childName=below",
        "defaultQueue.childResources.gpu.quota=8",
        "defaultPriorityClasses.enabled=false",
    ]);
    for flag in [
        "--node-pool=",
        "--queue-label-key=example.com/queue",
        "--default-priorities-configmap-name=types",
        "--default-priorities-configmap-namespace=kai",
        "--deployment-gang-schedule=false",
        "--node-pool-label-key=example.com/pool",
    ] {
        assert!(
            args(&set).as_array().unwrap().contains(&json!(flag)),
            "{flag}"
        );
    }
    assert_eq!(pod(&set)["priorityClassName"], "system-cluster-critical");
    let agent = &set[&key("DaemonSet", "aliquot-agent")]["spec"]["template"]["spec"];
    let tolerations = agent["tolerations"].as_array().unwrap();
    assert!(tolerations.contains(&json!({ "operator": "Exists" })));
    assert!(!set.keys().any(|(kind, _)| kind == "PriorityClass"));
    assert!(set.contains_key(&key("Queue", "top")));
    let below = &set[&key("Queue", "below")]["spec"];
    assert_eq!(below["parentQueue"], "top");
    assert_eq!(below["resources"]["gpu"]["quota"], json!(8));
    assert_eq!(below["resources"]["gpu"]["limit"], json!(-1));
    // A file with the object means the same, and no key of it is unknown.
    let object = &set[&key("SchedulingShard", "default")];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shards.yaml");
    std::fs::write(&path, object.to_string()).unwrap();
    let config = scheduler::Config {
        config: Some(path),
        ..scheduler::Config::default()
    };
    let plan = scheduler::shard::Plan::of(&config, 1).unwrap();
    let [shard] = plan.shards.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!(shard.core.consolidation_jobs, Some(4));
    assert_eq!(
        shard.core.card_placement,
        Some(scheduler_core::Placement::Spread)
    );
    assert!(
        !shard
            .core
            .actions
            .contains(&scheduler_core::Step::Consolidation)
    );
}

#[test]
fn the_prometheus_operator_and_grafana_get_the_files_of_deploy() {
    let file = |name: &str| std::fs::read_to_string(deploy().join("grafana").join(name)).unwrap();
    let alerts = documents(&file("alerts.yaml")).unwrap().remove(0);
    for helm in helms() {
        let none = rendered(&helm, "aliquot-system", &[]);
        assert!(!none.contains_key(&key("PrometheusRule", "aliquot")));
        let flags = [
            "monitoring.enabled=true",
            "monitoring.labels.release=kube-prometheus-stack",
            "monitoring.interval=15s",
            "monitoring.dashboards=true",
        ];
        let flags: Vec<&str> = flags.iter().flat_map(|flag| ["--set", flag]).collect();
        let objects = rendered(&helm, "aliquot-system", &flags);
        let monitor = &objects[&key("PodMonitor", "aliquot")];
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        assert_eq!(endpoint["interval"], "15s");
        assert_eq!(endpoint["honorLabels"], true);
        let names = &monitor["spec"]["selector"]["matchExpressions"][0]["values"];
        for name in names.as_array().unwrap() {
            let name = name.as_str().unwrap();
            let workload = ["DaemonSet", "Deployment"].map(|kind| objects.get(&key(kind, name)));
            let workload = workload.into_iter().flatten().next().unwrap();
            let template = &workload["spec"]["template"];
            assert_eq!(
                template["metadata"]["labels"]["app.kubernetes.io/name"],
                name
            );
            let ports = template["spec"]["containers"][0]["ports"].as_array();
            assert!(ports.unwrap().iter().any(|port| port["name"] == "metrics"));
        }
        let rule = &objects[&key("PrometheusRule", "aliquot")];
        assert_eq!(rule["spec"], alerts);
        let labels = &rule["metadata"]["labels"];
        assert_eq!(labels["release"], "kube-prometheus-stack");
        for name in ["card", "fleet", "tenant"] {
            let board = &objects[&key("ConfigMap", &format!("aliquot-dashboard-{name}"))];
            assert_eq!(board["metadata"]["labels"]["grafana_dashboard"], "1");
            let text = board["data"][format!("aliquot-{name}.json")].as_str();
            assert_eq!(text.unwrap(), file(&format!("{name}.json")));
        }
    }
}

#[test]
fn a_drain_takes_one_replica_at_a_time_unless_the_values_say_otherwise() {
    for helm in helms() {
        let budget = |flags: &[&str], name| {
            let objects = rendered(&helm, "aliquot-system", flags);
            objects.get(&key("PodDisruptionBudget", name)).cloned()
        };
        for name in ["aliquot-scheduler", "aliquot-admission"] {
            let plain = budget(&[], name).unwrap();
            assert_eq!(plain["spec"]["maxUnavailable"], 1);
            let labels = &plain["spec"]["selector"]["matchLabels"];
            let workload = &rendered(&helm, "aliquot-system", &[])[&key("Deployment", name)];
            assert_eq!(*labels, workload["spec"]["selector"]["matchLabels"]);
        }
        let half = ["--set", "scheduler.podDisruptionBudget.maxUnavailable=50%"];
        let of_scheduler = budget(&half, "aliquot-scheduler").unwrap();
        assert_eq!(of_scheduler["spec"]["maxUnavailable"], "50%");
        let off = ["--set", "admission.podDisruptionBudget.enabled=false"];
        assert!(budget(&off, "aliquot-admission").is_none());
        assert!(budget(&off, "aliquot-scheduler").is_some());
    }
}

#[test]
fn on_openshift_each_workload_may_use_the_constraints_that_it_needs() {
    for helm in helms() {
        let objects = rendered(&helm, "aliquot-system", &["--set", "openshift=true"]);
        let mut bound = BTreeMap::new();
        for constraints in ["privileged", "nonroot-v2"] {
            let binding = &objects[&key("RoleBinding", &format!("aliquot-scc-{constraints}"))];
            let role = format!("system:openshift:scc:{constraints}");
            assert_eq!(binding["roleRef"]["name"], role);
            for subject in binding["subjects"].as_array().unwrap() {
                bound.insert(subject["name"].as_str().unwrap().to_owned(), constraints);
            }
        }
        let mut workloads = 0;
        for ((kind, _), object) in &objects {
            if kind != "Deployment" && kind != "DaemonSet" {
                continue;
            }
            workloads += 1;
            let pod = &object["spec"]["template"]["spec"];
            let container = &pod["containers"][0]["securityContext"];
            let needs = if container["privileged"] == true {
                "privileged"
            } else {
                assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
                "nonroot-v2"
            };
            assert_eq!(bound[pod["serviceAccountName"].as_str().unwrap()], needs);
        }
        assert_eq!(workloads, 4);
    }
}

#[test]
fn every_value_is_described() {
    fn missing(schema: &Value, path: &str, out: &mut Vec<String>) {
        let properties = schema["properties"].as_object();
        for (name, value) in properties.into_iter().flatten() {
            let path = format!("{path}.{name}");
            let text = value["description"].as_str().unwrap_or_default();
            if !text.ends_with('.') {
                out.push(path.clone());
            }
            missing(value, &path, out);
        }
    }
    let text = std::fs::read_to_string(deploy().join("chart/values.schema.json")).unwrap();
    let mut out = Vec::new();
    missing(&serde_json::from_str(&text).unwrap(), "", &mut out);
    assert!(out.is_empty(), "without a description: {out:?}");
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for helm in helms() {
        refused(&helm);
    }
}

fn refused(helm: &Path) {
    for (value, words) in [
        ("nonsense=1", "nonsense"),
        ("scheduler.placementStrategy=random", "placementStrategy"),
        ("driver.root=/somewhere", "root"),
        ("scheduler.args={quiet}", "args"),
        ("scheduler.pageLinks.Logs=javascript:x", "pageLinks"),
        ("defaultQueue.childResources.gpu.quotas=1", "quotas"),
        ("guard.action=Allow", "action"),
        ("mig.strategy=dynamic", "strategy"),
        ("monitoring.interval=often", "interval"),
        ("scaleDown.delaySeconds=600", "global.clusterAutoscaling"),
    ] {
        let output = template(helm, "a", &["--set", value]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{value}");
        assert!(errors.contains(words), "{value}: {errors}");
    }
}

/// Each leaf of the chart's values, and another value for it.
fn leaves(values: &Value, path: &str, out: &mut Vec<(String, Value)>) {
    let other = match path {
        "scheduler.placementStrategy" => json!("spread"),
        "scheduler.args" => json!(["--quiet-ms=5"]),
        "scheduler.pageLinks" => json!({"Logs": "https://x/{name}"}),
        "scheduler.plugins" => json!({"minruntime": {"enabled": false}}),
        "scheduler.actions" => json!({"preempt": {"enabled": false}}),
        "nodeAgent.args" | "mps.args" => json!(["--x=1"]),
        "nodeTemplates" => json!([{"name": "x"}]),
        "scaleDown" => json!({"delaySeconds": 600, "maxPods": 5}),
        "driver.root" => json!("host"),
        "podgrouper.args.gangScheduleDeployment" => json!(false),
        "image.digest" => json!(format!("sha256:{}", "0".repeat(64))),
        "mig.strategy" => json!("mixed"),
        "guard.action" => json!("Warn"),
        "global.imagePullPolicy" => json!("Always"),
        "global.affinity" => json!({"podAffinity": {}}),
        "global.securityContext" => json!({"runAsUser": 7}),
        "queues.namespaces" => json!({"team-a": ["research"]}),
        "networkPolicy.monitoringFrom" => json!([{"podSelector": {}}]),
        "monitoring.labels" | "monitoring.dashboardLabels" => json!({"x": "y"}),
        "monitoring.interval" => json!("7s"),
        "defaultQueue.parentResources" | "defaultQueue.childResources" => {
            json!({"gpu": {"quota": 8}})
        }
        "scheduler.resources" | "admission.resources" | "nodeAgent.resources" | "mps.resources" => {
            json!({"limits": {"memory": "7Gi"}})
        }
        path if path.ends_with("topologySpreadConstraints") => {
            json!([{"topologyKey": "x", "maxSkew": 1}])
        }
        path if path.ends_with("olerations") => json!([{"key": "x", "operator": "Exists"}]),
        path if path.ends_with("nodeSelector") => json!({"x": "y"}),
        path => match values {
            Value::Object(inner) => {
                assert!(!inner.is_empty(), "{path} is new: what may it be?");
                for (name, value) in inner {
                    let dot = if path.is_empty() { "" } else { "." };
                    leaves(value, &format!("{path}{dot}{name}"), out);
                }
                return;
            }
            Value::Bool(is) => json!(!is),
            Value::Number(number) => json!(number.as_i64().unwrap() + 1),
            Value::Array(_) => json!(["x"]),
            _ => json!("x"),
        },
    };
    out.push((path.to_owned(), other));
}

#[test]
fn every_value_of_the_chart_has_a_reader() {
    let Some(helm) = helms().into_iter().next() else {
        return;
    };
    let text = std::fs::read_to_string(deploy().join("chart/values.yaml")).unwrap();
    let mut all = Vec::new();
    leaves(&documents(&text).unwrap()[0], "", &mut all);
    assert!(all.len() > 40, "{}", all.len());
    let autoscaling = ["--set", "global.clusterAutoscaling=true"];
    let monitored = "monitoring.enabled=true,monitoring.dashboards=true";
    let monitored = ["--set", monitored];
    for (path, other) in all {
        // KAI's key for two replicas, which there always are; `values.yaml` says so.
        if path == "global.leaderElection" {
            continue;
        }
        let flag = format!("{path}={other}");
        // Some values are read where another is set.
        let on: &[&str] = match path.split_once('.') {
            None if path == "scaleDown" => &autoscaling,
            Some(("monitoring", key)) if !monitored[1].contains(key) => &monitored,
            _ => &[],
        };
        let flags = [on, &["--set-json", &flag]].concat();
        let unchanged = rendered(&helm, "aliquot-system", on);
        let changed = rendered(&helm, "aliquot-system", &flags);
        assert_ne!(changed, unchanged, "{flag} has no reader");
    }
}
