//! `deploy/` against the programs and the names: what is applied is what was built.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

mod guard;
mod rights;

use aliquot_tests::manifest::documents;
use clap::Parser;
use proto::names::{self, NAMESPACE, env, grant, kai, object, request, resource, telemetry};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const MPS_ACCOUNT: &str = "aliquot-mps";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Every YAML file below `deploy/`, by its path there.
fn files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in ["", "crds/"] {
        for entry in fs::read_dir(deploy().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                let name = path.file_name().unwrap().to_str().unwrap();
                files.insert(
                    format!("{folder}{name}"),
                    fs::read_to_string(&path).unwrap(),
                );
            }
        }
    }
    files
}

/// Everything that is applied.
static OBJECTS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    files()
        .into_iter()
        .filter(|(name, _)| name != "kustomization.yaml")
        .flat_map(|(name, text)| documents(&text).unwrap_or_else(|e| panic!("{name}: {e:#}")))
        .collect()
});

fn of_kind(kind: &str) -> Vec<Value> {
    let all = OBJECTS.iter();
    all.filter(|object| object["kind"] == kind)
        .cloned()
        .collect()
}

fn one(kind: &str, name: &str) -> Value {
    of_kind(kind)
        .into_iter()
        .find(|object| object["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().into_iter().flatten().collect()
}

fn strings(value: &Value) -> Vec<&str> {
    list(value)
        .into_iter()
        .map(|item| item.as_str().unwrap())
        .collect()
}

/// The one container of a workload.
fn container(workload: &Value) -> &Value {
    let containers = &workload["spec"]["template"]["spec"]["containers"];
    assert_eq!(
        list(containers).len(),
        1,
        "{}",
        workload["metadata"]["name"]
    );
    &containers[0]
}

fn workloads() -> [Value; 4] {
    [
        one("Deployment", "aliquot-scheduler"),
        one("Deployment", "aliquot-admission"),
        one("DaemonSet", "aliquot-agent"),
        one("DaemonSet", "aliquot-mps"),
    ]
}

#[derive(Parser)]
struct SchedulerLine {
    #[command(flatten)]
    config: scheduler::Config,
}

#[derive(Parser)]
enum AgentLine {
    Run(Box<agent::Config>),
    Mps(Box<agent::Config>),
}

/// The command line of a workload, with what its environment gives.
fn line(workload: &Value) -> Vec<String> {
    let container = container(workload);
    let program = container["command"][0].as_str().unwrap();
    let mut line = vec![program.to_owned()];
    line.extend(strings(&container["args"]).into_iter().map(str::to_owned));
    if has_env(container, "NODE_NAME", "spec.nodeName") {
        line.push("--node-name=n1".to_owned());
    }
    line
}

fn has_env(container: &Value, name: &str, field: &str) -> bool {
    list(&container["env"]).iter().any(|variable| {
        variable["name"] == name && variable["valueFrom"]["fieldRef"]["fieldPath"] == field
    })
}

fn scheduler_config() -> scheduler::Config {
    config_of("aliquot-scheduler")
}

fn config_of(deployment: &str) -> scheduler::Config {
    let line = line(&one("Deployment", deployment));
    SchedulerLine::try_parse_from(line)
        .unwrap_or_else(|e| panic!("{e}"))
        .config
}

fn agent_config(name: &str) -> agent::Config {
    let line = line(&one("DaemonSet", name));
    match AgentLine::try_parse_from(line).unwrap_or_else(|e| panic!("{e}")) {
        AgentLine::Run(config) if name == "aliquot-agent" => *config,
        AgentLine::Mps(config) if name == "aliquot-mps" => *config,
        _ => panic!("{name} runs the other one's command"),
    }
}

#[test]
fn every_object_has_its_own_name_and_lies_in_our_namespace_if_in_any() {
    let cluster_wide = [
        "Namespace",
        "ClusterRole",
        "ClusterRoleBinding",
        "PriorityClass",
        "Queue",
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "FlowSchema",
    ];
    let mut seen = BTreeSet::new();
    for object in OBJECTS.iter() {
        let kind = object["kind"].as_str().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(seen.insert(format!("{kind}/{name}")), "{kind}/{name} twice");
        let namespace = object["metadata"]["namespace"].as_str();
        let wanted = (!cluster_wide.contains(&kind)).then_some(NAMESPACE);
        assert_eq!(namespace, wanted, "{kind}/{name}");
    }
    assert!(seen.contains(&format!("Namespace/{NAMESPACE}")));
    assert!(seen.contains(&format!("Queue/{}", names::kai::DEFAULT_QUEUE)));
}

#[test]
fn definitions_are_what_the_types_say() {
    let made = tempfile::tempdir().unwrap();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_crds"))
        .arg(made.path())
        .status()
        .unwrap();
    assert!(status.success());
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(made.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let new = fs::read_to_string(made.path().join(&name)).unwrap();
        let old = fs::read_to_string(deploy().join("crds").join(&name)).unwrap_or_default();
        assert!(
            new == old,
            "deploy/crds/{name} is old: cargo run -p aliquot-tests --bin crds -- deploy/crds"
        );
        found.insert(format!("crds/{name}"));
    }
    let there: BTreeSet<String> = files()
        .into_keys()
        .filter(|name| name.starts_with("crds/"))
        .collect();
    assert_eq!(there, found);
}

#[test]
fn every_flag_is_one_that_its_program_knows() {
    let scheduling = scheduler_config();
    assert!(
        scheduling.leader_elect,
        "two replicas at once during an update"
    );
    assert!(has_env(
        container(&one("Deployment", "aliquot-scheduler")),
        "POD_NAME",
        "metadata.name"
    ));
    assert!(has_env(
        container(&one("Deployment", "aliquot-scheduler")),
        "POD_IP",
        "status.podIP"
    ));
    assert_eq!(scheduling.role, scheduler::Role::Scheduler);
    // Admission belongs to the same scheduler, and looks for its lease.
    let admission = config_of("aliquot-admission");
    assert_eq!(admission.role, scheduler::Role::Admission);
    assert_eq!(admission.scheduler_name, scheduling.scheduler_name);
    assert_eq!(admission.lease(), scheduling.lease());
    let (agent, mps) = (agent_config("aliquot-agent"), agent_config("aliquot-mps"));
    // The agent's plan and the supervisor's deeds are about the same places.
    assert_eq!(agent.run_dir, mps.run_dir);
    assert_eq!(agent.mps_socket(), mps.mps_socket());
    assert_eq!(agent.driver_root, mps.driver_root);
    assert_eq!(agent.driver_root_here(), mps.driver_root_here());
    assert!(agent.hook_binary.is_some() && agent.drop_capabilities);
}

#[test]
fn every_path_that_a_program_is_told_of_is_mounted_where_it_looks() {
    for (name, writes) in [("aliquot-agent", true), ("aliquot-mps", false)] {
        let (workload, config) = (one("DaemonSet", name), agent_config(name));
        let mounts = list(&container(&workload)["volumeMounts"]);
        let volumes = list(&workload["spec"]["template"]["spec"]["volumes"]);
        // The mount that holds a path: whether it can be written, and what it is on the host.
        let holds = |path: &Path| {
            let mount = mounts
                .iter()
                .filter(|mount| path.starts_with(mount["mountPath"].as_str().unwrap()))
                .max_by_key(|mount| mount["mountPath"].as_str().unwrap().len())
                .unwrap_or_else(|| panic!("{name}: nothing is mounted at {}", path.display()));
            let volume = volumes
                .iter()
                .find(|volume| volume["name"] == mount["name"])
                .unwrap_or_else(|| panic!("{name}: no volume {}", mount["name"]));
            let below = path
                .strip_prefix(mount["mountPath"].as_str().unwrap())
                .unwrap();
            let host = volume["hostPath"]["path"]
                .as_str()
                .map(|host| Path::new(host).join(below));
            (!mount["readOnly"].as_bool().unwrap_or(false), host)
        };
        // What the runtime, the kubelet or the other DaemonSet reads has one path for all.
        let shared = |path: &Path, write: bool| {
            let (writable, host) = holds(path);
            assert!(
                writable || !write,
                "{name}: {} cannot be written",
                path.display()
            );
            assert_eq!(host.as_deref(), Some(path), "{name}");
        };
        shared(&config.run_dir, true);
        let (_, driver) = holds(config.driver_root_here());
        assert_eq!(
            driver.as_deref(),
            Some(config.driver_root.as_path()),
            "{name}"
        );
        shared(Path::new("/dev/nvidiactl"), false);
        if !writes {
            continue;
        }
        shared(&config.cdi_dir, true);
        shared(&config.plugin_dir(), true);
        shared(&config.pod_resources(), false);
        shared(&config.hook_path, true);
        for dir in &config.nvidia_cdi_dirs {
            shared(dir, false);
        }
        for library in config.nvml_libraries() {
            let (_, nvml) = holds(&library);
            assert!(nvml.unwrap().starts_with(&config.driver_root));
        }
        // The token is the kubelet's to write.
        let token = holds(&config.telemetry_token_file);
        assert_eq!(token, (false, None));
    }
}

#[test]
fn ports_are_the_same_in_flags_containers_services_and_names() {
    let [scheduler, admission, agent, _] = workloads();
    let port = |workload: &Value, name: &str| {
        list(&container(workload)["ports"])
            .into_iter()
            .find(|port| port["name"] == name)
            .unwrap_or_else(|| panic!("no port {name}"))["containerPort"]
            .as_u64()
            .unwrap()
    };
    let of = |address: SocketAddr| u64::from(address.port());
    let config = scheduler_config();
    assert_eq!(port(&scheduler, "webhook"), of(config.webhook));
    assert_eq!(port(&scheduler, "telemetry"), of(config.telemetry));
    assert_eq!(port(&scheduler, "metrics"), of(config.metrics.unwrap()));
    assert_eq!(port(&scheduler, "page"), of(config.page.unwrap()));
    let admits = config_of("aliquot-admission");
    assert_eq!(port(&admission, "webhook"), of(admits.webhook));
    assert_eq!(port(&admission, "metrics"), of(admits.metrics.unwrap()));
    assert_eq!(of(config.telemetry), u64::from(telemetry::PORT));
    let agents = agent_config("aliquot-agent");
    assert_eq!(port(&agent, "metrics"), of(agents.listen.unwrap()));
    for workload in [&scheduler, &agent] {
        let template = &workload["spec"]["template"]["metadata"]["annotations"];
        assert_eq!(
            template["prometheus.io/port"],
            port(workload, "metrics").to_string()
        );
    }
    for workload in [&scheduler, &admission, &agent] {
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container(workload)[probe]["httpGet"]["port"], "metrics");
        }
    }
    for (service, name, outside, behind) in [
        (object::WEBHOOK_SERVICE, "webhook", 443, &admission),
        (object::PAGE_SERVICE, "page", 443, &scheduler),
        (
            object::TELEMETRY_SERVICE,
            "telemetry",
            u64::from(telemetry::PORT),
            &scheduler,
        ),
    ] {
        let service = one("Service", service);
        assert_eq!(service["spec"]["ports"][0]["targetPort"], name);
        assert_eq!(service["spec"]["ports"][0]["port"], outside);
        assert_eq!(
            service["spec"]["selector"],
            behind["spec"]["selector"]["matchLabels"]
        );
    }
    // Every replica has an address of its own there, ready or not.
    let telemetry = one("Service", object::TELEMETRY_SERVICE);
    assert_eq!(telemetry["spec"]["clusterIP"], "None");
    assert_eq!(telemetry["spec"]["publishNotReadyAddresses"], true);
    // The agents look for it under a name that is in the certificate.
    let endpoint = agents.telemetry_endpoint.unwrap();
    let (host, to) = endpoint.rsplit_once(':').unwrap();
    assert_eq!(to, telemetry::PORT.to_string());
    assert!(config.names().iter().any(|name| name == host), "{host}");
}

#[test]
fn every_port_is_let_in_from_somewhere_and_none_of_the_pods_is_past_the_policies() {
    for workload in workloads() {
        let name = workload["metadata"]["name"].as_str().unwrap();
        let spec = one("NetworkPolicy", name)["spec"].clone();
        assert_eq!(spec["podSelector"], workload["spec"]["selector"]);
        assert_eq!(strings(&spec["policyTypes"]), ["Ingress"]);
        let let_in: BTreeSet<&str> = list(&spec["ingress"])
            .into_iter()
            .flat_map(|rule| list(&rule["ports"]))
            .map(|port| port["port"].as_str().unwrap())
            .collect();
        let listens: BTreeSet<&str> = list(&container(&workload)["ports"])
            .into_iter()
            .map(|port| port["name"].as_str().unwrap())
            .collect();
        assert_eq!(let_in, listens, "{name}");
        assert!(workload["spec"]["template"]["spec"]["hostNetwork"].is_null());
        // To all the world is open what checks its callers by itself and must not know them.
        for rule in list(&spec["ingress"]) {
            let open = list(&rule["from"]).is_empty();
            let admits = name == "aliquot-admission" && rule["ports"][0]["port"] == "webhook";
            assert_eq!(open, admits, "{rule}");
        }
    }
}

#[test]
fn the_webhooks_are_those_that_admission_wants() {
    let config = config_of("aliquot-admission");
    let settings = scheduler::admission::Settings {
        reach: scheduler::admission::Reach::Service,
        namespace: config.namespace,
        scheduler_name: config.scheduler_name,
        exempt_namespaces: config.exempt_namespaces,
    };
    for wanted in scheduler::admission::configurations(&settings, "") {
        let mut found = one(
            wanted["kind"].as_str().unwrap(),
            object::WEBHOOK_CONFIGURATION,
        );
        for webhook in found["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"]["caBundle"] = Value::String(String::new());
        }
        assert_eq!(found, wanted);
    }
}

#[test]
fn the_image_is_named_once_for_all_and_is_of_this_version() {
    let text = files().remove("kustomization.yaml").unwrap();
    let kustomization = documents(&text).unwrap().remove(0);
    let images = list(&kustomization["images"]);
    assert_eq!(images.len(), 1);
    let (name, version) = (
        images[0]["name"].as_str().unwrap(),
        env!("CARGO_PKG_VERSION"),
    );
    assert_eq!(images[0]["newTag"], version);
    for workload in workloads() {
        assert_eq!(container(&workload)["image"], format!("{name}:{version}"));
    }
    let listed: BTreeSet<&str> = strings(&kustomization["resources"]).into_iter().collect();
    let files = files();
    let there: BTreeSet<&str> = files
        .keys()
        .map(String::as_str)
        .filter(|name| *name != "kustomization.yaml")
        .collect();
    assert_eq!(listed, there);
}

#[test]
fn the_scheduler_holds_no_privilege_and_tenants_outlive_the_agents_upgrade() {
    let [scheduler, admission, agent, mps] = workloads();
    for workload in [&scheduler, &admission] {
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        let context = &container(workload)["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(strings(&context["capabilities"]["drop"]), ["ALL"]);
        for name in ["hostPID", "hostIPC", "hostNetwork", "volumes"] {
            assert!(pod.get(name).is_none(), "{name}");
        }
        // It cannot place itself.
        assert_eq!(pod["schedulerName"], "default-scheduler");
    }

    assert_eq!(agent["spec"]["updateStrategy"]["type"], "RollingUpdate");
    assert_eq!(mps["spec"]["updateStrategy"]["type"], "OnDelete");
    let resources = &container(&mps)["resources"];
    assert_eq!(resources["requests"], resources["limits"], "not Guaranteed");
    for name in ["cpu", "memory"] {
        assert!(resources["limits"].get(name).is_some(), "not Guaranteed");
    }
    let run = agent_config("aliquot-mps").run_dir;
    let mount = list(&container(&mps)["volumeMounts"])
        .into_iter()
        .find(|mount| mount["mountPath"] == run.to_str().unwrap())
        .unwrap();
    assert_eq!(mount["mountPropagation"], "Bidirectional");
    let (agent, mps) = (
        &agent["spec"]["template"]["spec"],
        &mps["spec"]["template"]["spec"],
    );
    for field in [
        "nodeSelector",
        "affinity",
        "tolerations",
        "priorityClassName",
        "hostPID",
    ] {
        assert_eq!(agent[field], mps[field], "{field}");
        assert!(!agent[field].is_null(), "{field}");
    }
    assert_eq!(mps["automountServiceAccountToken"], false);
}

/// Each of our own values has an effect, and the notes after an installation list all of them.
#[test]
fn the_notes_of_the_chart_know_every_value() {
    let read = |name: &str| std::fs::read_to_string(deploy().join("chart").join(name)).unwrap();
    let notes = read("templates/NOTES.txt");
    let known = notes.split("(has $key (list ").nth(1).unwrap();
    let known = known.split(')').next().unwrap();
    let values = read("values.yaml");
    let keys = values.lines().filter_map(|line| line.split_once(':'));
    let keys = keys.map(|(key, _)| key);
    let keys = keys.filter(|key| key.starts_with(|first: char| first.is_ascii_lowercase()));
    let unknown: Vec<&str> = keys
        .filter(|key| !known.contains(&format!("\"{key}\"")))
        .collect();
    assert_eq!(
        unknown,
        Vec::<&str>::new(),
        "add them to the list in NOTES.txt"
    );
}

/// Whether a pod of this workload may be on a node with these labels, by its selector and the
/// operators that its affinity uses.
fn admits(workload: &Value, labels: &[(&str, &str)]) -> bool {
    let label = |key: &str| {
        labels
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, is)| *is)
    };
    let spec = &workload["spec"]["template"]["spec"];
    let selector = spec["nodeSelector"].as_object().unwrap();
    let selected = |(key, value): (&String, &Value)| label(key) == value.as_str();
    let affinity = &spec["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    let holds = |expression: &Value| {
        let is = label(expression["key"].as_str().unwrap());
        match expression["operator"].as_str().unwrap() {
            "DoesNotExist" => is.is_none(),
            "In" => is.is_some_and(|is| strings(&expression["values"]).contains(&is)),
            other => panic!("operator {other}"),
        }
    };
    selector.iter().all(selected)
        && list(&required["nodeSelectorTerms"])
            .into_iter()
            .any(|term| list(&term["matchExpressions"]).into_iter().all(holds))
}

#[test]
fn an_agent_starts_where_an_admin_says_so_and_nothing_of_nvidias_serves_the_gpus() {
    const OURS: (&str, &str) = (names::node_label::AGENT, "true");
    const PLUGIN: &str = "nvidia.com/gpu.deploy.device-plugin";
    const DRIVER: &str = "nvidia.com/gpu.deploy.dra-driver";
    let present = ("nvidia.com/gpu.present", "true");
    for name in ["aliquot-agent", "aliquot-mps"] {
        let workload = one("DaemonSet", name);
        let on = |labels: &[(&str, &str)]| admits(&workload, labels);
        // NVIDIA's stand-alone plugin sets no label, and nobody has asked for the agent.
        assert!(!on(&[]) && !on(&[present]), "{name}");
        assert!(!on(&[present, (PLUGIN, "false")]), "{name}");
        assert!(on(&[OURS]) && on(&[present, OURS]), "{name}");
        assert!(!on(&[(OURS.0, "false")]), "{name}");
        // The operator's driver manager pauses an operand by another value.
        for label in [PLUGIN, DRIVER] {
            assert!(on(&[present, OURS, (label, "false")]), "{name} {label}");
            for value in ["true", "", "paused-for-driver-upgrade"] {
                assert!(!on(&[present, OURS, (label, value)]), "{name} {label}");
            }
        }
        assert!(on(&[OURS, (PLUGIN, "false"), (DRIVER, "false")]), "{name}");
        assert!(!on(&[OURS, (PLUGIN, "false"), (DRIVER, "true")]), "{name}");
    }
}
