//! Which rule groups the pods of which kind of owner. Pure.
//!
//! Follows KAI's table (`pkg/podgrouper/podgrouper/hub/hub.go`). In: a pod, its owners from the
//! nearest to the top, and what else a rule needs. Out: a [`Draft`], or an error.

use super::draft::{BUILD, Draft, INFERENCE, TRAIN, group_name, name_of_pod_alone};
use super::object::{Object, Reference};
use super::rule::{BATCH_MIN_MEMBER, Lookup, LookupResult, RuleContext, RuleError, min_member};
use super::{gang, jobset, kubeflow, lws, native, ray};

/// Annotation on a `StatefulSet`: the number of its pods that must fit at once.
const MIN_MEMBER: &str = proto::names::kai::MIN_MEMBER;
/// Labels of a pod of Spark; the second names the application.
pub(super) const SPARK: [&str; 2] = ["spark-app-name", "spark-app-selector"];
const MIN_SCALE: &str = "autoscaling.knative.dev/min-scale";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// One group per owner, of one pod at least.
    Owner(&'static str),
    Bare,
    Deployment,
    Job,
    CronJob,
    RunaiJob,
    StatefulSet,
    JobSet,
    Kubeflow(&'static str),
    PyTorch,
    Mpi,
    Ray,
    LeaderWorkerSet,
    Knative,
    Grove,
    Aml,
    /// As if it did not exist.
    Skip,
}

impl Rule {
    /// The priority class of a workload that names none.
    fn class(self) -> &'static str {
        match self {
            Self::Owner(class) => class,
            Self::Knative | Self::Deployment => INFERENCE,
            _ => TRAIN,
        }
    }
}

fn rule(owner: &Reference) -> Rule {
    match (owner.group(), owner.version(), owner.kind.as_str()) {
        ("", "v1", "Pod") => Rule::Bare,
        ("apps", "v1", "Deployment") => Rule::Deployment,
        ("apps", "v1", "StatefulSet") => Rule::StatefulSet,
        ("batch", "v1", "Job") => Rule::Job,
        ("batch", "v1", "CronJob") => Rule::CronJob,
        ("run.ai", "v1", "RunaiJob") => Rule::RunaiJob,
        ("kubeflow.org", "v1", "TFJob") => Rule::Kubeflow("tfReplicaSpecs"),
        ("kubeflow.org", "v1", "XGBoostJob") => Rule::Kubeflow("xgbReplicaSpecs"),
        ("kubeflow.org", "v1", "JAXJob") => Rule::Kubeflow("jaxReplicaSpecs"),
        ("kubeflow.org", "v1", "PyTorchJob") => Rule::PyTorch,
        ("kubeflow.org", "v1" | "v2beta1", "MPIJob") => Rule::Mpi,
        ("kubeflow.org", "v1beta1", "Notebook") => Rule::Owner(BUILD),
        ("egx.nvidia.io", "v1", "SPOTRequest") => Rule::Owner(INFERENCE),
        ("ray.io", "v1" | "v1alpha1", "RayCluster" | "RayJob" | "RayService") => Rule::Ray,
        ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet") => Rule::LeaderWorkerSet,
        ("jobset.x-k8s.io", "v1alpha2", "JobSet") => Rule::JobSet,
        ("serving.knative.dev", "v1", "Service") => Rule::Knative,
        ("grove.io", "v1alpha1", "PodGangSet" | "PodCliqueSet") => Rule::Grove,
        ("amlarc.azureml.com", "v1alpha1", "AmlJob") => Rule::Aml,
        ("argoproj.io", "v1alpha1", "Workflow")
        | ("trainer.kubeflow.org", _, "TrainJob")
        | ("nvidia.com", _, "DynamoGraphDeployment")
        | (
            "run.ai",
            _,
            "TrainingWorkload"
            | "InteractiveWorkload"
            | "DistributedWorkload"
            | "InferenceWorkload"
            | "DistributedInferenceWorkload"
            | "WorkloadRunner",
        ) => Rule::Skip,
        _ => Rule::Owner(TRAIN),
    }
}

/// The owner whose rule applies, with what it inherits from a skipped owner above it, and the
/// owners up to it.
fn deciding(context: RuleContext<'_>) -> (Object, Vec<&Object>, Rule) {
    let Some(top) = context.chain.last() else {
        return (context.pod.clone(), vec![context.pod], Rule::Bare);
    };
    let rule_of_top = rule(&top.reference());
    if rule_of_top != Rule::Skip {
        return (top.clone(), context.chain.iter().collect(), rule_of_top);
    }
    let below = context
        .chain
        .split_last()
        .map_or(&[][..], |(_, below)| below);
    let mut inner = below.last().unwrap_or(context.pod).clone();
    inner.inherit(top);
    let rule = match rule(&inner.reference()) {
        // A skipped owner under another one counts as itself.
        Rule::Skip => Rule::Owner(TRAIN),
        rule => rule,
    };
    (inner, below.iter().collect(), rule)
}

/// What else must be read before [`draft`] can decide.
pub(super) fn needed_lookup(context: RuleContext<'_>) -> Option<Lookup> {
    if let Some(name) = native::named(context.pod) {
        let name = name.to_owned();
        return Some(Lookup::Native { name });
    }
    let (top, _, rule) = deciding(context);
    match rule {
        Rule::Grove => context
            .pod
            .label(gang::POD_GANG)
            .map(|name| Lookup::Object {
                api_version: "scheduler.grove.io/v1alpha1",
                kind: "PodGang",
                name: name.to_owned(),
            }),
        Rule::Mpi => kubeflow::launcher_wanted(&top, context.pod),
        Rule::JobSet | Rule::Deployment => Some(Lookup::Former {
            owner: top.uid().to_owned(),
        }),
        _ => None,
    }
}

/// The group of this pod, as KAI would create it.
pub(super) fn draft(context: RuleContext<'_>) -> Result<Draft, RuleError> {
    let pod = context.pod;
    for object in context.chain.iter().chain([pod]) {
        let why = crate::unsupported::of(|key| object.annotation(key));
        if let Some(why) = why {
            return Err(RuleError::of(object, why));
        }
    }
    let (top, owners, rule) = deciding(context);
    if let Some(name) = native::named(pod) {
        let Some(LookupResult::Object(group)) = context.extra else {
            return Err(RuleError::of(
                pod,
                format!(
                    "its spec.schedulingGroup names the {} {name} of {}, which is not there",
                    native::KIND,
                    native::GROUP
                ),
            ));
        };
        // A pod without an owner is no workload: others of its group may say something else.
        let group = if context.chain.is_empty() {
            group.as_ref().clone()
        } else {
            native::with_workload(group, &top)
        };
        let owners: Vec<&Object> = [&group].into_iter().chain(owners).collect();
        let draft = Draft::of(&group, &owners, pod, context.classes, rule.class());
        return native::settle(&group, draft, context.classes);
    }
    // The rule of a kind looks at the owner of that kind, the common rule at all owners.
    let of_top = |class: &str| Draft::of(&top, &[&top], pod, context.classes, class);
    match rule {
        Rule::Owner(class) => {
            // The key that inherited replaces the one that did not.
            let owners: Vec<&Object> = owners
                .into_iter()
                .map(|owner| {
                    if owner.uid() == top.uid() {
                        &top
                    } else {
                        owner
                    }
                })
                .collect();
            Ok(Draft::of(&top, &owners, pod, context.classes, class))
        }
        Rule::Deployment => deployment(&top, of_top(INFERENCE), context),
        Rule::Bare => {
            let mut draft = of_top(TRAIN);
            if let [Some(_), Some(application)] = SPARK.map(|key| pod.label(key)) {
                application.clone_into(&mut draft.name);
            }
            Ok(draft)
        }
        Rule::Job => job(&top, of_top(TRAIN), pod),
        Rule::CronJob => {
            let job = context
                .chain
                .iter()
                .find(|owner| owner.reference().kind == "Job")
                .ok_or_else(|| RuleError::of(&top, "no Job between it and the pod"))?;
            Ok(Draft::of(job, &[job], pod, context.classes, TRAIN))
        }
        Rule::RunaiJob => {
            let mut draft = of_top(TRAIN);
            let stem = pod
                .name()
                .rsplit_once('-')
                .map_or(pod.name(), |(stem, _)| stem);
            draft.name = group_name(stem, top.uid());
            Ok(draft)
        }
        Rule::StatefulSet => stateful_set(&top, of_top(TRAIN)),
        Rule::JobSet => {
            let min = min_member(&top, BATCH_MIN_MEMBER)?;
            let rule = match context.extra {
                Some(LookupResult::Former(true)) => jobset::old,
                _ => jobset::draft,
            };
            rule(&top, of_top(TRAIN), pod, min)
        }
        Rule::Kubeflow(specs) => kubeflow::sum(&top, of_top(TRAIN), specs),
        Rule::PyTorch => kubeflow::pytorch(&top, of_top(TRAIN), pod),
        Rule::Mpi => kubeflow::mpi(&top, of_top(TRAIN), pod, context.extra),
        Rule::Ray => ray::draft(&top, of_top(TRAIN), context),
        Rule::LeaderWorkerSet => lws::draft(&top, of_top(TRAIN), pod),
        Rule::Knative => knative(context, &top),
        Rule::Grove => gang::draft(&top, context),
        Rule::Aml => {
            let path = ["spec", "job", "options", "envs", "AZUREML_NODE_COUNT"];
            let mut draft = of_top(TRAIN);
            draft.min = top
                .number(&path)
                .ok_or_else(|| RuleError::of(&top, "no AZUREML_NODE_COUNT in its spec"))?;
            Ok(draft)
        }
        Rule::Skip => Ok(of_top(TRAIN)),
    }
}

/// One group for all pods, or one for each (KAI before 0.18). A pod that is in one of them stays in it,
/// and so does a Deployment: pods of both kinds would not share a minimum.
fn deployment(top: &Object, draft: Draft, context: RuleContext<'_>) -> Result<Draft, RuleError> {
    let pod = context.pod;
    let is_shared = match pod.annotation(proto::names::kai::POD_GROUP) {
        Some(group) if group == draft.name => true,
        Some(group) if group == name_of_pod_alone(pod.name(), pod.uid()) => false,
        _ => {
            let is_former = matches!(context.extra, Some(LookupResult::Former(true)));
            context.deployment_gangs && !is_former
        }
    };
    if !is_shared {
        return Ok(draft.of_pod_alone(pod));
    }
    let min = min_member(top, BATCH_MIN_MEMBER)?;
    Ok(Draft {
        min: min.unwrap_or(1),
        ..draft
    })
}

/// One group per pod, because the pods of a Job do not wait for each other; one per Job if the
/// user says how many pods must be placed at once.
fn job(job: &Object, mut draft: Draft, pod: &Object) -> Result<Draft, RuleError> {
    match min_member(job, BATCH_MIN_MEMBER)? {
        Some(min) => draft.min = min,
        None => draft.name = group_name(pod.name(), job.uid()),
    }
    Ok(draft)
}

fn stateful_set(set: &Object, mut draft: Draft) -> Result<Draft, RuleError> {
    let Some(min) = min_member(set, MIN_MEMBER)? else {
        return Ok(draft);
    };
    if set.text(&["spec", "podManagementPolicy"]) != Some("Parallel") {
        return Err(RuleError::of(
            set,
            format!(
                "annotation {MIN_MEMBER} needs podManagementPolicy Parallel: pods that are made one after the other never are so many"
            ),
        ));
    }
    draft.min = min;
    Ok(draft)
}

/// One group per revision, as large as its smallest scale.
fn knative(context: RuleContext<'_>, top: &Object) -> Result<Draft, RuleError> {
    let revision = context
        .chain
        .iter()
        .find(|owner| owner.reference().kind == "Revision")
        .ok_or_else(|| RuleError::of(top, "no Revision between it and the pod"))?;
    let mut draft = Draft::of(
        revision,
        &[revision],
        context.pod,
        context.classes,
        INFERENCE,
    );
    draft.min = revision
        .annotation(MIN_SCALE)
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    Ok(draft)
}
