//! The two faces of an event: core `v1` and `events.k8s.io/v1` are one object.
//! Kept in the core form. In: an event in either form. Out: the other.

use serde_json::{Map, Value, json};

/// New name, core name.
const RENAMED: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// To the form that is kept.
pub(crate) fn to_core(event: Value) -> Value {
    rename(event, "v1", |name| {
        RENAMED
            .iter()
            .find(|(new, _)| *new == name)
            .map(|(_, core)| *core)
    })
}

/// To the form of `events.k8s.io/v1`.
pub(crate) fn to_new(event: Value) -> Value {
    rename(event, "events.k8s.io/v1", |name| {
        RENAMED
            .iter()
            .find(|(_, core)| *core == name)
            .map(|(new, _)| *new)
    })
}

fn rename(event: Value, version: &str, other: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(fields) = event else {
        return event;
    };
    let mut renamed: Map<String, Value> = fields
        .into_iter()
        .map(|(name, value)| (other(&name).map_or(name, str::to_owned), value))
        .collect();
    renamed.insert("apiVersion".into(), json!(version));
    Value::Object(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_the_same_in_both_forms() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "note": "n", "regarding": {"name": "p"}, "reason": "r"});
        let core = to_core(new.clone());
        assert_eq!(core["message"], "n");
        assert_eq!(core["involvedObject"]["name"], "p");
        assert_eq!(to_new(core), new);
    }
}
