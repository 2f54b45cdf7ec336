//! Pods of a `JobSet`: one group, with a sub-group for each replicated job and in it one for each
//! of its replicas (KAI 0.16 and later, `plugins/jobset`).
//!
//! A `JobSet` that has a group without sub-groups was grouped by the rule before: all its pods
//! are, until it is over. Pods of both kinds in one tree would wait for each other.

use super::draft::{Draft, constraint_of, part, template_annotation};
use super::draft::{PREFERRED, REQUIRED, TOPOLOGY};
use super::object::{Object, at, number};
use super::rule::{BATCH_MIN_MEMBER, RuleError, count};
use api::kai::SubGroup;
use serde_json::Value;

const REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const INDEX: &str = "jobset.sigs.k8s.io/job-index";
/// A pod group has no more sub-groups by default (`--max-sub-groups`).
const MOST_PARTS: i64 = 1024;

/// `min`: how many replicated jobs are needed; all of them, or one where they are made one after
/// the other.
pub(super) fn draft(
    set: &Object,
    mut draft: Draft,
    pod: &Object,
    min: Option<i64>,
) -> Result<Draft, RuleError> {
    let jobs = jobs(set)?;
    let all = i64::try_from(jobs.len()).unwrap_or(i64::MAX);
    let default = if in_order(set) { 1 } else { all };
    draft.min_parts = Some(min.unwrap_or(default).min(all));
    let replicas: i64 = jobs.iter().map(replicas).sum();
    // Where there are too many parts, a replicated job is one.
    let whole = all.saturating_add(replicas) > MOST_PARTS;
    for job in jobs {
        let name = job.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| RuleError::of(set, "a replicated job without a name"))?;
        let (count, least) = (replicas_of(set, job)?, least(set, job)?);
        if whole {
            let mut leaf = part(name, count.saturating_mul(least));
            leaf.topology_constraint = constraint(job);
            draft.sub_groups.push(leaf);
            continue;
        }
        draft.sub_groups.push(SubGroup {
            name: name.to_owned(),
            min_sub_group: i32::try_from(count).ok(),
            ..SubGroup::default()
        });
        draft.sub_groups.extend((0..count).map(|index| {
            let mut leaf = part(&replica(name, index), least);
            leaf.parent = Some(name.to_owned());
            leaf.topology_constraint = constraint(job);
            leaf
        }));
    }
    let job = label(pod, REPLICATED_JOB)?;
    let own = if whole {
        job.to_owned()
    } else {
        replica(job, label(pod, INDEX)?)
    };
    if !draft.sub_groups.iter().any(|part| part.name == own) {
        return Err(RuleError::of(
            set,
            format!("no sub-group {own}, which pod {} names", pod.name()),
        ));
    }
    draft.part = Some(own);
    Ok(draft)
}

/// The rule before: one group for all, without sub-groups; one for each replicated job if they
/// are made one after the other.
pub(super) fn old(
    set: &Object,
    mut draft: Draft,
    pod: &Object,
    min: Option<i64>,
) -> Result<Draft, RuleError> {
    let jobs = jobs(set)?;
    let order = set.text(&["spec", "startupPolicy", "startupPolicyOrder"]);
    if order == Some("AnyOrder") {
        draft.min = min.unwrap_or_else(|| jobs.iter().map(pods).sum());
        return Ok(draft);
    }
    let name = label(pod, REPLICATED_JOB)?;
    let job = jobs
        .iter()
        .find(|job| job.get("name").and_then(Value::as_str) == Some(name))
        .ok_or_else(|| RuleError::of(set, format!("no replicated job {name}")))?;
    draft.name = format!("{}-{name}", draft.name);
    draft.min = min.unwrap_or_else(|| pods(job));
    Ok(draft)
}

fn jobs(set: &Object) -> Result<&[Value], RuleError> {
    let jobs = set.list(&["spec", "replicatedJobs"]);
    if jobs.is_empty() {
        return Err(RuleError::of(set, "no replicatedJobs"));
    }
    Ok(jobs)
}

fn in_order(set: &Object) -> bool {
    set.text(&["spec", "startupPolicy", "startupPolicyOrder"]) == Some("InOrder")
}

fn label<'a>(pod: &'a Object, key: &str) -> Result<&'a str, RuleError> {
    pod.label(key)
        .ok_or_else(|| RuleError::of(pod, format!("no label {key}")))
}

fn replica(job: &str, index: impl std::fmt::Display) -> String {
    format!("{job}-replica-{index}")
}

fn replicas(job: &Value) -> i64 {
    at(job, &["replicas"]).and_then(number).unwrap_or(1).max(0)
}

fn replicas_of(set: &Object, job: &Value) -> Result<i64, RuleError> {
    let count = replicas(job);
    if count > i64::from(i32::MAX) {
        return Err(RuleError::of(set, format!("{count} replicas of a job")));
    }
    Ok(count)
}

/// How many pods of a replica start at once: what its template says, else all that run at once.
fn least(set: &Object, job: &Value) -> Result<i64, RuleError> {
    match at(job, &["template"]).and_then(|it| template_annotation(it, BATCH_MIN_MEMBER)) {
        Some(text) => count(set, BATCH_MIN_MEMBER, text),
        None => Ok(at_once(job)),
    }
}

/// The parallelism of a job, but not more than its completions.
fn at_once(job: &Value) -> i64 {
    let of = |path: &[&str]| at(job, path).and_then(number);
    let parallel = of(&["template", "spec", "parallelism"]).unwrap_or(1);
    parallel.min(of(&["template", "spec", "completions"]).unwrap_or(parallel))
}

/// Pods of a replicated job that run at once.
fn pods(job: &Value) -> i64 {
    let replicas = at(job, &["replicas"]).and_then(number).unwrap_or(1);
    replicas.saturating_mul(at_once(job))
}

/// Where a replica is to be together, by the annotations of its job's template.
fn constraint(job: &Value) -> Option<api::kai::TopologyConstraint> {
    let template = at(job, &["template"])?;
    let topology = template_annotation(template, TOPOLOGY)?;
    let required = template_annotation(template, REQUIRED);
    let preferred = template_annotation(template, PREFERRED);
    (required.is_some() || preferred.is_some())
        .then(|| constraint_of(Some(topology), required, preferred))
        .flatten()
}
