//! One row per kind of owner.

use super::super::rule::{Lookup, LookupResult, RuleContext};
use super::super::rules;
use super::{Object, between, classes, draft, draft_with, owner, pod};
use serde_json::{Value, json};

/// What it is, its owners, then name, size, class and owner's kind of the group.
type Row = (
    &'static str,
    Vec<Object>,
    &'static str,
    i64,
    &'static str,
    &'static str,
);

#[test]
fn kinds_without_parts_get_the_name_the_size_and_the_class_that_kai_gives_them() {
    let of = |api_version: &str, kind: &str| vec![owner(api_version, kind, &json!({}))];
    let with = |api_version: &str, kind: &str, spec: Value| {
        vec![owner(api_version, kind, &json!({"spec": spec}))]
    };
    let under = |first: Object, mut above: Vec<Object>| {
        above.insert(0, first);
        above
    };
    let set = |api_version: &str, kind: &str| between(api_version, kind);
    let rows: Vec<Row> = vec![
        ("a pod alone", vec![], "pg-p-0-up", 1, "train", "Pod"),
        (
            "ReplicaSet",
            of("apps/v1", "ReplicaSet"),
            "pg-o-uo",
            1,
            "train",
            "ReplicaSet",
        ),
        (
            "Deployment",
            under(set("apps/v1", "ReplicaSet"), of("apps/v1", "Deployment")),
            "pg-o-uo",
            1,
            "inference",
            "Deployment",
        ),
        (
            "StatefulSet",
            of("apps/v1", "StatefulSet"),
            "pg-o-uo",
            1,
            "train",
            "StatefulSet",
        ),
        (
            "DaemonSet",
            of("apps/v1", "DaemonSet"),
            "pg-o-uo",
            1,
            "train",
            "DaemonSet",
        ),
        (
            "Job",
            with("batch/v1", "Job", json!({"parallelism": 4})),
            "pg-p-0-uo",
            1,
            "train",
            "Job",
        ),
        (
            "CronJob",
            under(set("batch/v1", "Job"), of("batch/v1", "CronJob")),
            "pg-i-ui",
            1,
            "train",
            "Job",
        ),
        (
            "RunaiJob",
            of("run.ai/v1", "RunaiJob"),
            "pg-p-uo",
            1,
            "train",
            "RunaiJob",
        ),
        (
            "TFJob",
            with(
                "kubeflow.org/v1",
                "TFJob",
                json!({"tfReplicaSpecs": {"PS": {"replicas": 2}, "Worker": {"replicas": 3}, "Chief": {}}}),
            ),
            "pg-o-uo",
            6,
            "train",
            "TFJob",
        ),
        (
            "TFJob with a minimum",
            with(
                "kubeflow.org/v1",
                "TFJob",
                json!({"runPolicy": {"schedulingPolicy": {"minAvailable": 2}}, "tfReplicaSpecs": {"Worker": {"replicas": 3}}}),
            ),
            "pg-o-uo",
            2,
            "train",
            "TFJob",
        ),
        (
            "XGBoostJob",
            with(
                "kubeflow.org/v1",
                "XGBoostJob",
                json!({"xgbReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}),
            ),
            "pg-o-uo",
            4,
            "train",
            "XGBoostJob",
        ),
        (
            "JAXJob",
            with(
                "kubeflow.org/v1",
                "JAXJob",
                json!({"jaxReplicaSpecs": {"Worker": {"replicas": 5}}}),
            ),
            "pg-o-uo",
            5,
            "train",
            "JAXJob",
        ),
        (
            "MPIJob v1",
            with(
                "kubeflow.org/v1",
                "MPIJob",
                json!({"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}}),
            ),
            "pg-o-uo",
            3,
            "train",
            "MPIJob",
        ),
        (
            "MPIJob v2beta1",
            under(
                set("batch/v1", "Job"),
                with(
                    "kubeflow.org/v2beta1",
                    "MPIJob",
                    json!({"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}}),
                ),
            ),
            "pg-o-uo",
            3,
            "train",
            "MPIJob",
        ),
        (
            "Notebook",
            under(
                set("apps/v1", "StatefulSet"),
                of("kubeflow.org/v1beta1", "Notebook"),
            ),
            "pg-o-uo",
            1,
            "build",
            "Notebook",
        ),
        (
            "ScheduledWorkflow",
            of("kubeflow.org/v1alpha1", "ScheduledWorkflow"),
            "pg-o-uo",
            1,
            "train",
            "ScheduledWorkflow",
        ),
        (
            "AmlJob",
            with(
                "amlarc.azureml.com/v1alpha1",
                "AmlJob",
                json!({"job": {"options": {"envs": {"AZUREML_NODE_COUNT": 7}}}}),
            ),
            "pg-o-uo",
            7,
            "train",
            "AmlJob",
        ),
        (
            "SPOTRequest",
            of("egx.nvidia.io/v1", "SPOTRequest"),
            "pg-o-uo",
            1,
            "inference",
            "SPOTRequest",
        ),
        (
            "SeldonDeployment",
            under(
                set("apps/v1", "Deployment"),
                of("machinelearning.seldon.io/v1", "SeldonDeployment"),
            ),
            "pg-o-uo",
            1,
            "train",
            "SeldonDeployment",
        ),
        (
            "VirtualMachineInstance",
            of("kubevirt.io/v1", "VirtualMachineInstance"),
            "pg-o-uo",
            1,
            "train",
            "VirtualMachineInstance",
        ),
        (
            "DevWorkspace",
            of("workspace.devfile.io/v1alpha2", "DevWorkspace"),
            "pg-o-uo",
            1,
            "train",
            "DevWorkspace",
        ),
        (
            "TaskRun",
            under(
                set("tekton.dev/v1", "TaskRun"),
                of("tekton.dev/v1", "PipelineRun"),
            ),
            "pg-o-uo",
            1,
            "train",
            "PipelineRun",
        ),
        (
            "Workflow",
            of("argoproj.io/v1alpha1", "Workflow"),
            "pg-p-0-up",
            1,
            "train",
            "Pod",
        ),
        (
            "run.ai",
            under(
                set("apps/v1", "StatefulSet"),
                of("run.ai/v2", "InteractiveWorkload"),
            ),
            "pg-i-ui",
            1,
            "train",
            "StatefulSet",
        ),
        (
            "a Deployment of run.ai",
            vec![
                set("apps/v1", "ReplicaSet"),
                owner("apps/v1", "Deployment", &json!({})),
                owner("run.ai/v2", "InferenceWorkload", &json!({})),
            ],
            "pg-o-uo",
            1,
            "inference",
            "Deployment",
        ),
        (
            "anything",
            of("example.org/v7", "Thing"),
            "pg-o-uo",
            1,
            "train",
            "Thing",
        ),
        (
            "NIMService",
            under(
                set("apps/v1", "Deployment"),
                of("apps.nvidia.com/v1alpha1", "NIMService"),
            ),
            "pg-o-uo",
            1,
            "train",
            "NIMService",
        ),
        (
            "Knative",
            vec![
                set("apps/v1", "ReplicaSet"),
                owner(
                    "serving.knative.dev/v1",
                    "Revision",
                    &json!({"metadata": {"name": "r", "uid": "ur", "annotations": {"autoscaling.knative.dev/min-scale": "3"}}}),
                ),
                owner("serving.knative.dev/v1", "Configuration", &json!({})),
                owner("serving.knative.dev/v1", "Service", &json!({})),
            ],
            "pg-r-ur",
            3,
            "inference",
            "Revision",
        ),
    ];
    let pod = pod(&json!({}));
    for (row, chain, name, min, class, owner) in rows {
        let draft = draft(&pod, &chain);
        let found = (
            draft.name.as_str(),
            draft.min,
            draft.class.as_str(),
            draft.owner.kind.as_str(),
        );
        assert_eq!(found, (name, min, class, owner), "{row}");
        assert_eq!((draft.sub_groups.len(), draft.part), (0, None), "{row}");
        assert_eq!(
            (draft.namespace.as_str(), draft.queue.as_str()),
            ("ns", "default-queue"),
            "{row}"
        );
    }
}

#[test]
fn pods_of_a_spark_application_share_a_group_named_by_its_selector() {
    let driver = pod(
        &json!({"metadata": {"labels": {"spark-app-name": "a", "spark-app-selector": "spark-1"}}}),
    );
    assert_eq!(draft(&driver, &[]).name, "spark-1");
    // Its operator's object may not be read: the chain ends at the driver.
    let executor = pod(
        &json!({"metadata": {"name": "p-1", "uid": "u1", "labels": {"spark-app-name": "a", "spark-app-selector": "spark-1"}}}),
    );
    let draft = draft(&executor, std::slice::from_ref(&driver));
    assert_eq!(
        (draft.name.as_str(), draft.owner.uid.as_str()),
        ("spark-1", "up")
    );
}

#[test]
fn a_deployment_is_one_group_unless_its_pods_have_groups_already_or_the_setting_says_so() {
    let chain = |min: Option<&str>| {
        let annotations =
            json!({"metadata": {"annotations": {"kai.scheduler/batch-min-member": min}}});
        vec![
            between("apps/v1", "ReplicaSet"),
            owner("apps/v1", "Deployment", &annotations),
        ]
    };
    let drafted = |gangs: bool, pod: &Object, former: bool, min: Option<&str>| {
        let chain = chain(min);
        let drafted = rules::draft(RuleContext {
            pod,
            chain: &chain,
            extra: Some(&LookupResult::Former(former)),
            classes: &classes(),
            deployment_gangs: gangs,
        });
        drafted.map_err(|error| error.to_string())
    };
    let (shared, alone) = ("pg-o-uo", "pg-p-0-up");
    let member =
        |group: &str| pod(&json!({"metadata": {"annotations": {"pod-group-name": group}}}));
    let new = pod(&json!({}));
    for (gangs, pod, former, min, expected) in [
        (true, &new, false, None, Ok((shared, 1, "uo"))),
        (true, &new, false, Some("3"), Ok((shared, 3, "uo"))),
        (
            true,
            &new,
            false,
            Some("0"),
            Err("no whole number from 1 on"),
        ),
        (true, &new, true, Some("3"), Ok((alone, 1, "up"))),
        (false, &new, false, Some("3"), Ok((alone, 1, "up"))),
        // Of a deleted group, which is made again.
        (true, &member(alone), false, Some("3"), Ok((alone, 1, "up"))),
        (
            false,
            &member(shared),
            false,
            Some("3"),
            Ok((shared, 3, "uo")),
        ),
    ] {
        match (drafted(gangs, pod, former, min), expected) {
            (Ok(draft), Ok(expected)) => {
                let of = (draft.name.as_str(), draft.min, draft.owner.uid.as_str());
                assert_eq!(of, expected);
                assert_eq!(draft.class, "inference");
            }
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
            (drafted, expected) => panic!("{drafted:?}, not {expected:?}"),
        }
    }
    let (chain, classes) = (chain(None), classes());
    let context = RuleContext {
        pod: &new,
        chain: &chain,
        extra: None,
        classes: &classes,
        deployment_gangs: true,
    };
    assert_eq!(
        rules::needed_lookup(context),
        Some(Lookup::Former {
            owner: "uo".to_owned()
        })
    );
}

#[test]
fn a_job_that_says_how_many_belong_together_is_one_group() {
    let of = |text: &str| {
        owner(
            "batch/v1",
            "Job",
            &json!({"metadata": {"annotations": {"kai.scheduler/batch-min-member": text}}}),
        )
    };
    let group = draft(&pod(&json!({})), &[of("4")]);
    assert_eq!((group.name.as_str(), group.min), ("pg-o-uo", 4));
    for wrong in ["0", "-1", "many", "1.5"] {
        let error = draft_with(&pod(&json!({})), &[of(wrong)], None).unwrap_err();
        assert!(error.contains("kai.scheduler/batch-min-member"), "{error}");
    }
}

#[test]
fn a_stateful_set_is_a_gang_only_where_its_pods_are_made_at_once() {
    let of = |policy: &str| {
        owner(
            "apps/v1",
            "StatefulSet",
            &json!({
        "metadata": {"annotations": {"kai.scheduler/min-member": "3"}}, "spec": {"podManagementPolicy": policy}}),
        )
    };
    assert_eq!(draft(&pod(&json!({})), &[of("Parallel")]).min, 3);
    let error = draft_with(&pod(&json!({})), &[of("OrderedReady")], None).unwrap_err();
    assert!(error.contains("Parallel"), "{error}");
}

#[test]
fn an_mpi_launcher_that_comes_late_counts_when_it_is_there() {
    let job = vec![owner(
        "kubeflow.org/v2beta1",
        "MPIJob",
        &json!({"spec": {
        "launcherCreationPolicy": "WaitForWorkersReady",
        "mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}}}),
    )];
    let worker =
        pod(&json!({"metadata": {"labels": {"training.kubeflow.org/job-role": "worker"}}}));
    let launcher =
        pod(&json!({"metadata": {"labels": {"training.kubeflow.org/job-role": "launcher"}}}));
    let there = classes();
    let context = |pod| RuleContext {
        pod,
        chain: &job,
        extra: None,
        classes: &there,
        deployment_gangs: true,
    };
    assert_eq!(
        rules::needed_lookup(context(&worker)),
        Some(Lookup::Pod {
            labels: "training.kubeflow.org/job-name=o,training.kubeflow.org/job-role=launcher"
                .into()
        })
    );
    assert_eq!(rules::needed_lookup(context(&launcher)), None);
    for (pod, there, min) in [
        (&worker, false, 2),
        (&worker, true, 3),
        (&launcher, false, 3),
    ] {
        let draft = draft_with(pod, &job, Some(&LookupResult::Pod(there))).unwrap();
        assert_eq!(draft.min, min, "{there}");
    }
}
