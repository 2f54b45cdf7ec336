//! Pods of Kubeflow's training jobs.

use super::draft::{
    Draft, PREFERRED, REQUIRED, TOPOLOGY, constraint_of, part, raise, template_annotation,
};
use super::object::{Object, number};
use super::rule::{Lookup, LookupResult, RuleError};
use serde_json::Value;

const ROLE: &str = proto::names::kai::JOB_ROLE_LABEL;
const JOB: &str = "training.kubeflow.org/job-name";
const REPLICA_TYPE: &str = "training.kubeflow.org/replica-type";
const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";
const MPI_SPECS: &str = "mpiReplicaSpecs";
const PYTORCH_SPECS: &str = "pytorchReplicaSpecs";

/// Annotations of a template: workers are split into segments of that size, each in one domain.
pub(super) const SEGMENT: &str = proto::names::kai::SEGMENT;
pub(super) const SEGMENT_REQUIRED: &str = proto::names::kai::SEGMENT_REQUIRED;
pub(super) const SEGMENT_PREFERRED: &str = proto::names::kai::SEGMENT_PREFERRED;
/// More sub-groups than a group can sensibly have.
pub(super) const MOST_SEGMENTS: i64 = 10_000;

/// The number that the user gives, otherwise all replicas.
pub(super) fn sum(job: &Object, mut draft: Draft, specs: &str) -> Result<Draft, RuleError> {
    draft.min = match min_available(job) {
        Some(min) => min,
        None => replicas(job, specs)?,
    };
    Ok(draft)
}

fn min_available(job: &Object) -> Option<i64> {
    job.number(&["spec", "runPolicy", "schedulingPolicy", "minAvailable"])
}

/// The replicas of all types. The operator creates one where no number is given.
fn replicas(job: &Object, specs: &str) -> Result<i64, RuleError> {
    let types = job
        .fields(&["spec", specs])
        .ok_or_else(|| RuleError::of(job, format!("no {specs}")))?;
    let all = types.values().map(replicas_of).sum();
    if all < 1 {
        return Err(RuleError::of(job, format!("no replicas in its {specs}")));
    }
    Ok(all)
}

fn replicas_of(spec: &Value) -> i64 {
    spec.get("replicas").and_then(number).unwrap_or(1).max(0)
}

/// What has to be read to know whether a launcher exists that is created after the workers.
pub(super) fn launcher_wanted(job: &Object, pod: &Object) -> Option<Lookup> {
    let late = job.text(&["spec", "launcherCreationPolicy"]) == Some("WaitForWorkersReady");
    (late && pod.label(ROLE) != Some("launcher")).then(|| Lookup::Pod {
        labels: format!("{JOB}={},{ROLE}=launcher", job.name()),
    })
}

/// A launcher that is created after the workers does not count before it exists.
pub(super) fn mpi(
    job: &Object,
    draft: Draft,
    pod: &Object,
    extra: Option<&LookupResult>,
) -> Result<Draft, RuleError> {
    let mut draft = sum(job, draft, MPI_SPECS)?;
    let missing = launcher_wanted(job, pod).is_some() && extra != Some(&LookupResult::Pod(true));
    if missing {
        let launchers = job
            .at(&["spec", MPI_SPECS, "Launcher"])
            .map_or(0, replicas_of);
        draft.min = (draft.min - launchers).max(1);
    }
    Ok(draft)
}

/// Master and workers are sub-groups; workers may be split into segments.
pub(super) fn pytorch(job: &Object, mut draft: Draft, pod: &Object) -> Result<Draft, RuleError> {
    let all = replicas(job, PYTORCH_SPECS)?;
    let elastic = job.number(&["spec", "elasticPolicy", "minReplicas"]);
    draft.min = min_available(job).or(elastic).unwrap_or(all);
    let spec = |name: &str| job.at(&["spec", PYTORCH_SPECS, name]);
    let masters = spec("Master").map_or(0, replicas_of);
    let role = pod.label(REPLICA_TYPE);
    if masters > 0 {
        draft.sub_groups.push(part("master", masters));
        if role == Some("master") {
            draft.part = Some("master".to_owned());
        }
    }
    let Some(workers) = spec("Worker") else {
        return Ok(draft);
    };
    let template = workers.get("template").unwrap_or(&Value::Null);
    draft
        .sub_groups
        .push(part("worker", draft.min.saturating_sub(masters)));
    let segment = segment_size(
        pod,
        pod.annotation(SEGMENT)
            .or_else(|| template_annotation(template, SEGMENT)),
    )?;
    let Some(size) = segment else {
        if role == Some("worker") {
            draft.part = Some("worker".to_owned());
        }
        return Ok(draft);
    };
    let workers = replicas_of(workers);
    let segments = workers.div_euclid(size) + i64::from(workers.rem_euclid(size) != 0);
    if segments > MOST_SEGMENTS {
        return Err(RuleError::of(
            job,
            format!("{segments} segments, more than {MOST_SEGMENTS}"),
        ));
    }
    let constraint = segment_constraint(job, pod, template);
    for at in 0..segments {
        let members = size.min(workers - at * size);
        let mut segment = part(&format!("worker-{at}"), members);
        segment.parent = Some("worker".to_owned());
        segment.topology_constraint.clone_from(&constraint);
        draft.sub_groups.push(segment);
    }
    raise(&mut draft.sub_groups);
    // An elastic job needs as many segments as hold its minimum.
    let least = draft.min.saturating_sub(masters).max(1);
    let needed = (least + size - 1).div_euclid(size).min(segments);
    if let Some(worker) = draft
        .sub_groups
        .iter_mut()
        .find(|part| part.name == "worker")
    {
        worker.min_sub_group = i32::try_from(needed).ok();
    }
    if role == Some("worker") {
        let index = index(pod, REPLICA_INDEX)?;
        draft.part = Some(format!("worker-{}", index / size));
    }
    Ok(draft)
}

/// A whole number of at least 1, if one is given.
pub(super) fn segment_size(on: &Object, text: Option<&str>) -> Result<Option<i64>, RuleError> {
    let Some(text) = text else {
        return Ok(None);
    };
    match text.parse::<i32>() {
        Ok(size) if size >= 1 => Ok(Some(i64::from(size))),
        _ => Err(RuleError::of(
            on,
            format!("{SEGMENT} is {text:?}, which is no whole number from 1 on"),
        )),
    }
}

/// The pod's index among those of its type, from 0.
pub(super) fn index(pod: &Object, label: &str) -> Result<i64, RuleError> {
    pod.label(label)
        .and_then(|text| text.parse::<u32>().ok())
        .map(i64::from)
        .ok_or_else(|| RuleError::of(pod, format!("no label {label} with a number from 0 on")))
}

/// The domain in which each segment must or should be placed together: from the pod, then its
/// template; the name of the topology also from the owner.
pub(super) fn segment_constraint(
    owner: &Object,
    pod: &Object,
    template: &Value,
) -> Option<api::kai::TopologyConstraint> {
    let of = |key: &str| {
        pod.annotation(key)
            .or_else(|| template_annotation(template, key))
    };
    let (required, preferred) = (of(SEGMENT_REQUIRED), of(SEGMENT_PREFERRED));
    let topology = of(TOPOLOGY).or_else(|| owner.annotation(TOPOLOGY))?;
    if required.is_none() && preferred.is_none() {
        return None;
    }
    constraint_of(Some(topology), required, preferred)
}

/// The domain in which one sub-group must or should be placed together, from its template.
pub(super) fn template_constraint(
    owner: &Object,
    template: &Value,
    part: &str,
) -> Result<Option<api::kai::TopologyConstraint>, RuleError> {
    let of = |key: &str| template_annotation(template, key);
    let (required, preferred) = (of(REQUIRED), of(PREFERRED));
    if required.is_none() && preferred.is_none() {
        return Ok(None);
    }
    match of(TOPOLOGY) {
        Some(topology) => Ok(constraint_of(Some(topology), required, preferred)),
        None => Err(RuleError::of(
            owner,
            format!("{part} has a placement annotation, but no {TOPOLOGY}"),
        )),
    }
}
