//! Pods of a `JobSet`.
//!
//! All start together, unless the user says how many must. KAI does so before 0.14, and again since
//! its groups have sub-groups; in between, its default was one pod.

use super::draft::Draft;
use super::object::{Object, at, number};
use super::rules::RuleError;
use serde_json::Value;

const REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";

/// One group for all; one for each replicated job if they are created one after the other.
pub(super) fn draft(
    set: &Object,
    mut draft: Draft,
    pod: &Object,
    min: Option<i64>,
) -> Result<Draft, RuleError> {
    let jobs = set.list(&["spec", "replicatedJobs"]);
    if jobs.is_empty() {
        return Err(RuleError::of(set, "no replicatedJobs"));
    }
    let order = set.text(&["spec", "startupPolicy", "startupPolicyOrder"]);
    if order == Some("AnyOrder") {
        draft.min = min.unwrap_or_else(|| jobs.iter().map(pods).sum());
        return Ok(draft);
    }
    let name = pod
        .label(REPLICATED_JOB)
        .ok_or_else(|| RuleError::of(pod, format!("no label {REPLICATED_JOB}")))?;
    let job = jobs
        .iter()
        .find(|job| job.get("name").and_then(Value::as_str) == Some(name))
        .ok_or_else(|| RuleError::of(set, format!("no replicated job {name}")))?;
    draft.name = format!("{}-{name}", draft.name);
    draft.min = min.unwrap_or_else(|| pods(job));
    Ok(draft)
}

/// How many pods run at once: the parallelism of a job, but not more than its completions,
/// times its replicas.
fn pods(job: &Value) -> i64 {
    let of = |path: &[&str]| at(job, path).and_then(number);
    let parallel = of(&["template", "spec", "parallelism"]).unwrap_or(1);
    let completions = of(&["template", "spec", "completions"]).unwrap_or(parallel);
    of(&["replicas"])
        .unwrap_or(1)
        .saturating_mul(parallel.min(completions))
}
