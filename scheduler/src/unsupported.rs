//! What KAI is going to have, or was asked for, and has no rule for in a release: refused
//! wherever it is written, because its author relies on it. Pure.

use proto::names::kai;

/// Why an object with these labels and annotations is not taken, as one sentence.
pub(crate) fn of<'a>(
    label: impl Fn(&str) -> Option<&'a str>,
    annotation: impl Fn(&str) -> Option<&'a str>,
) -> Option<String> {
    if let Some(why) = label(kai::PREEMPTIBILITY_LABEL).and_then(semi_preemptible) {
        return Some(format!("label {}: {why}", kai::PREEMPTIBILITY_LABEL));
    }
    annotation(kai::SAFE_TO_CONSOLIDATE)?;
    Some(format!(
        "annotation {}: no KAI release implements it: remove it, or make the workload {}: {} so that it is not moved",
        kai::SAFE_TO_CONSOLIDATE,
        kai::PREEMPTIBILITY_LABEL,
        "non-preemptible"
    ))
}

/// Of a preemptibility.
pub(crate) fn semi_preemptible(word: &str) -> Option<&'static str> {
    (word == "semi-preemptible")
        .then_some("no KAI release implements semi-preemptible: set preemptible or non-preemptible")
}
