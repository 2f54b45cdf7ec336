//! The guard's policies.

use super::*;

#[test]
fn every_policy_is_bound_refuses_when_in_doubt_and_speaks_in_one_line() {
    let policies = of_kind("ValidatingAdmissionPolicy");
    assert_eq!(
        policies.len(),
        of_kind("ValidatingAdmissionPolicyBinding").len()
    );
    let mut exempt = BTreeSet::new();
    for policy in policies {
        let name = policy["metadata"]["name"].as_str().unwrap();
        let binding = one("ValidatingAdmissionPolicyBinding", name);
        assert_eq!(binding["spec"]["policyName"], name);
        assert_eq!(strings(&binding["spec"]["validationActions"]), ["Deny"]);
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        for validation in list(&policy["spec"]["validations"]) {
            let said = ["message", "messageExpression"].map(|field| validation[field].as_str());
            let said = said.into_iter().flatten().collect::<Vec<_>>();
            assert_eq!(said.len(), 1, "{name}: {validation}");
            assert_eq!(said[0].trim().lines().count(), 1, "{name}: {}", said[0]);
        }
        let selector = &binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"];
        if !selector.is_null() {
            exempt.insert(selector.to_string());
        }
    }
    // One list for all that have exemptions: two names, which no tenant can make, and a label.
    let wanted = serde_json::json!([
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]},
        {"key": names::guard::LABEL, "operator": "NotIn", "values": [names::guard::EXEMPT]},
    ]);
    assert_eq!(exempt, BTreeSet::from([wanted.to_string()]));
}

#[test]
fn the_guard_speaks_of_the_names_that_the_programs_use() {
    let text = |name: &str| one("ValidatingAdmissionPolicy", name)["spec"].to_string();
    let quoted = |name: &str| format!("'{name}'");
    let account = |name: &str| format!("'system:serviceaccount:{NAMESPACE}:{name}'");
    let asks = [
        quoted(request::MEMORY),
        quoted(request::FRACTION),
        quoted(request::CONTAINER_PREFIX),
        quoted(request::CONTAINER_MEMORY_REQUEST),
        quoted(request::CONTAINER_MEMORY_LIMIT),
    ];
    let counted = [
        request::NUM_DEVICES,
        request::CONTAINER,
        request::MPS,
        request::COMPUTE,
        request::MEMORY_LIMIT,
        request::FRACTION_LIMIT,
        request::COMPUTE_MODE,
        kai::POD_GROUP,
        kai::QUEUE_LABEL,
        kai::QUEUE_LABEL_OLD,
        kai::PROJECT_LABEL,
        kai::PRIORITY_CLASS_LABEL,
        kai::PREEMPTIBILITY_LABEL,
        kai::NODE_POOL_LABEL,
        kai::SUB_GROUP_LABEL,
        kai::SCHEDULER_NAME,
    ];
    let resources = [resource::SHARE, resource::MEMORY_MIB, resource::MILLI].map(quoted);
    let mut wanted: Vec<(&str, Vec<String>)> = vec![
        (
            "aliquot-visible-devices",
            vec![quoted(env::NVIDIA_VISIBLE_DEVICES)],
        ),
        ("aliquot-requests", [&asks[..], &resources[..]].concat()),
        (
            "aliquot-requests",
            vec![quoted(kai::SCHEDULER_NAME), quoted(request::CONTAINER)],
        ),
        ("aliquot-grant", asks[..2].to_vec()),
        ("aliquot-grant", counted.map(quoted).to_vec()),
        (
            "aliquot-runtime-classes",
            [resource::SHARE, resource::GPU, env::NVIDIA_VISIBLE_DEVICES]
                .map(quoted)
                .to_vec(),
        ),
        (
            "aliquot-exempt-namespaces",
            [names::guard::LABEL, names::guard::EXEMPT, NAMESPACE]
                .map(quoted)
                .to_vec(),
        ),
        (
            "aliquot-share-isolation",
            [&asks[..], &resources[..1]].concat(),
        ),
        ("aliquot-host-paths", asks.to_vec()),
        ("aliquot-grant", grant::PROTECTED.map(quoted).to_vec()),
        ("aliquot-agent-node", resources[1..].to_vec()),
    ];
    wanted.push((
        "aliquot-exempt-namespaces",
        [
            "aliquot.dev/monitoring",
            "resource.kubernetes.io/admin-access",
        ]
        .map(quoted)
        .to_vec(),
    ));
    for policy in [
        "aliquot-grant",
        "aliquot-scheduler-claims",
        "aliquot-scheduler-gpunode",
        "aliquot-scheduler-pods",
        "aliquot-scheduler-bindings",
        "aliquot-scheduler-volumes",
    ] {
        wanted.push((policy, vec![account(object::SCHEDULER_ACCOUNT)]));
    }
    for policy in ["aliquot-agent-node", "aliquot-agent-gpunode"] {
        let node = quoted(telemetry::NODE_NAME_EXTRA);
        wanted.push((policy, vec![account(object::AGENT_ACCOUNT), node]));
    }
    for (policy, words) in wanted {
        for word in words {
            assert!(text(policy).contains(&word), "{policy} lacks {word}");
        }
    }
    // The policies for Bindings name each key that the scheduler writes on a pod; the policy for
    // pods has it as a pattern.
    let written = [
        kai::POD_GROUP,
        kai::SUB_GROUP_LABEL,
        kai::NODE_POOL_LABEL,
        grant::GPU_GROUP,
    ];
    for key in written.into_iter().chain(grant::PROTECTED) {
        let bindings = text("aliquot-scheduler-bindings");
        assert!(bindings.contains(&quoted(key)), "{key}");
    }
    for key in written {
        let key = format!(", \\\"{}\\\":", key.replace('.', "[.]"));
        assert!(text("aliquot-scheduler-pods").contains(&key), "{key}");
    }
    let written = text("aliquot-scheduler-pods");
    assert!(names::condition::ISOLATION_VERIFIED.starts_with("aliquot.dev/"));
    assert!(written.contains("startsWith('aliquot.dev/')"));
    // The label opens exactly the networks of the policies.
    for network in of_kind("NetworkPolicy") {
        let text = network.to_string();
        let opened = text.matches("namespaceSelector").count();
        let label = r#""namespaceSelector":{"matchLabels":{"aliquot.dev/monitoring":"true"}}"#;
        assert_eq!(text.matches(label).count(), opened, "{text}");
    }
    // Every variable that is ours to set for MPS, by its prefix.
    for name in [
        env::MPS_PIPE_DIRECTORY,
        env::MPS_PINNED_DEVICE_MEM_LIMIT,
        env::MPS_ACTIVE_THREAD_PERCENTAGE,
    ] {
        assert!(name.starts_with("CUDA_MPS_"));
    }
    assert!(text("aliquot-visible-devices").contains("startsWith('CUDA_MPS_')"));
    let limiting = format!("startsWith('{}')", env::NVIDIA_GPU_MEMORY);
    assert!(text("aliquot-share-isolation").contains(&limiting));
    // The per-container form, as one text.
    let pattern = |name: &str| name.replace('.', "[.]");
    let (theirs, kais) = (request::CONTAINER_PREFIX, request::KAI_CONTAINER_PREFIX);
    let domain = |prefix: &str| pattern(prefix.strip_suffix("/container.").unwrap());
    let either = format!("\\\"(?:{}|{})/container[.]", domain(theirs), domain(kais));
    assert!(text("aliquot-grant").contains(&either), "{either}");
    for suffix in [
        request::CONTAINER_DEVICES,
        request::CONTAINER_COMPUTE_PORTION,
    ] {
        let suffix = pattern(suffix.strip_prefix('.').unwrap());
        assert!(text("aliquot-grant").contains(&suffix), "{suffix}");
    }
    // No pod may mount the directories in the agent's flags.
    let paths = text("aliquot-host-paths");
    let agent = agent_config("aliquot-agent");
    for path in [
        &agent.run_dir,
        &agent.cdi_dir,
        &agent.plugin_dir(),
        agent.hook_path.parent().unwrap().parent().unwrap(),
    ] {
        let path = path.to_str().unwrap().replace("/var/run/", "/run/");
        assert!(paths.contains(&format!("'{path}/'")), "{path}");
    }
}
