//! Accounts, and what each may do.

use super::*;

#[test]
fn accounts_and_their_objects_have_the_names_that_the_programs_use() {
    let [scheduler, admission, agent, mps] = workloads();
    for (workload, account) in [
        (&scheduler, object::SCHEDULER_ACCOUNT),
        (&admission, object::ADMISSION_ACCOUNT),
        (&agent, object::AGENT_ACCOUNT),
        (&mps, MPS_ACCOUNT),
    ] {
        assert_eq!(
            workload["spec"]["template"]["spec"]["serviceAccountName"],
            account
        );
        one("ServiceAccount", account);
        assert_eq!(
            workload["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"],
            workload["metadata"]["name"]
        );
    }
    let tokens: Vec<&Value> = list(&agent["spec"]["template"]["spec"]["volumes"])
        .into_iter()
        .filter_map(|volume| volume.pointer("/projected/sources/0/serviceAccountToken"))
        .collect();
    assert_eq!(tokens.len(), 1);
    assert_eq!(tokens[0]["audience"], telemetry::AUDIENCE);
    let file = agent_config("aliquot-agent").telemetry_token_file;
    assert_eq!(
        tokens[0]["path"],
        file.file_name().unwrap().to_str().unwrap()
    );

    // Rules that name objects name these, and no others.
    let mut named: BTreeSet<String> = BTreeSet::new();
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind) {
            for rule in list(&role["rules"]) {
                named.extend(
                    strings(&rule["resourceNames"])
                        .into_iter()
                        .map(str::to_owned),
                );
            }
        }
    }
    let wanted = [
        object::GRANT_KEY_SECRET,
        object::TLS_SECRET,
        object::TRUST_CONFIG_MAP,
        object::WEBHOOK_CONFIGURATION,
        "queues.scheduling.run.ai",
        "podgroups.scheduling.run.ai",
        "topologies.kai.scheduler",
        "schedulingshards.kai.scheduler",
        "configs.kai.scheduler",
    ];
    assert_eq!(named, wanted.map(str::to_owned).into());
}

#[test]
fn no_right_is_a_wildcard_and_every_right_belongs_to_an_account_that_exists() {
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind) {
            for rule in list(&role["rules"]) {
                let all = ["apiGroups", "resources", "verbs"].map(|field| strings(&rule[field]));
                assert!(!all.concat().contains(&"*"), "{rule}");
            }
            let name = role["metadata"]["name"].as_str().unwrap();
            let binding = one(&format!("{kind}Binding"), name);
            assert_eq!(binding["roleRef"]["kind"], kind);
            assert_eq!(binding["roleRef"]["name"], name);
            for subject in list(&binding["subjects"]) {
                assert_eq!(subject["namespace"], NAMESPACE);
                one("ServiceAccount", subject["name"].as_str().unwrap());
            }
        }
    }
}

/// RBAC cannot restrict a right to create to one name, so an account that may create one Secret may
/// create each.
#[test]
fn nobody_creates_secrets_and_those_of_the_programs_are_there_and_empty() {
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind) {
            for rule in list(&role["rules"]) {
                if strings(&rule["resources"]).contains(&"secrets") {
                    assert!(!rule["resourceNames"].is_null(), "{rule}");
                    let verbs = strings(&rule["verbs"]);
                    assert!(
                        verbs.iter().all(|verb| ["get", "update"].contains(verb)),
                        "{rule}"
                    );
                }
            }
        }
    }
    assert_eq!(of_kind("Secret").len(), 2);
    for name in [object::GRANT_KEY_SECRET, object::TLS_SECRET] {
        let secret = one("Secret", name);
        assert_eq!(secret["metadata"]["namespace"], NAMESPACE);
        // If the manifest had a field for data, an apply would empty a Secret that is filled.
        assert!(secret["data"].is_null() && secret["stringData"].is_null());
        assert_eq!(secret["type"], "Opaque");
    }
}

#[test]
fn the_observer_may_read_what_the_scheduler_reads_and_write_nothing() {
    let text = fs::read_to_string(deploy().join("observe/observe.yaml")).unwrap();
    let objects = documents(&text).unwrap();
    let of = |kind: &str| {
        let found = objects.iter().find(|object| object["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}"))
    };
    let rights = |role: &Value| {
        let mut rights = BTreeSet::new();
        for rule in list(&role["rules"]) {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        rights.insert(format!("{verb} {group}/{resource}"));
                    }
                }
            }
        }
        rights
    };
    let (observer, scheduler) = (
        rights(of("ClusterRole")),
        rights(&one("ClusterRole", "aliquot-scheduler")),
    );
    assert!(observer.is_subset(&scheduler), "{observer:?}");
    for right in &observer {
        let verb = right.split(' ').next().unwrap();
        assert!(["get", "list", "watch"].contains(&verb), "{right}");
    }
    // Everything that the scheduler watches but its own objects.
    let watched = scheduler.iter().filter(|right| right.starts_with("watch"));
    for right in watched {
        assert!(observer.contains(right), "{right}");
    }
    let deployment = of("Deployment");
    let config = SchedulerLine::try_parse_from(line(deployment))
        .unwrap()
        .config;
    assert!(config.observe && config.metrics.is_some());
    let theirs = one("Deployment", "aliquot-scheduler");
    assert_eq!(container(deployment)["image"], container(&theirs)["image"]);
}
