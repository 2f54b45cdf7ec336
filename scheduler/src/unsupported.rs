//! What has been proposed for KAI and is in no release of it: refused wherever it is written, because
//! its author relies on it. Pure.

use proto::names::kai;

/// Why an object with these annotations is not taken, as one sentence.
pub(crate) fn of<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    annotation(kai::SAFE_TO_CONSOLIDATE)?;
    Some(format!(
        "annotation {}: no KAI release implements it: remove it, or make the workload {}: {} so that it is not moved",
        kai::SAFE_TO_CONSOLIDATE,
        kai::PREEMPTIBILITY_LABEL,
        "non-preemptible"
    ))
}
