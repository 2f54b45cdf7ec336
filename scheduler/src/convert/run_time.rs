//! The run time of a pod, if the pod says how long it runs.
//!
//! In: the annotation [`RUN_TIME`] and `activeDeadlineSeconds`. Out: the run time for estimates of
//! start times, or a warning if the annotation counts for nothing. No decision rests on it.

use super::duration;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use proto::names::request::RUN_TIME;
use scheduler_core::units::{Duration, Time};

/// The longest run time that counts. A longer one counts as unknown. Kubernetes has no default for `activeDeadlineSeconds`, and
/// some charts write the largest number instead of none.
const MAX: Duration = Duration::seconds(366 * 24 * 3600);

/// The run time of a pod, and its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// The time from the pod's start to its end.
    pub length: Duration,
    /// True if Kubernetes ends the pod after that time (`activeDeadlineSeconds`). False: the pod is
    /// expected to end by itself, as its annotation says.
    pub limit: bool,
    /// The time at which the kubelet took the pod in. `None`: it has not yet.
    pub started: Option<Time>,
}

impl RunTime {
    /// Returns the time at which the pod ends. A pod that has not started is taken to start at `now`.
    pub fn end(&self, now: Time) -> Time {
        self.started.unwrap_or(now).after(self.length)
    }
}

/// Returns how long the pod runs. `None`: it does not say. If it says both, the shorter one counts.
pub(super) fn of(pod: &Pod) -> Option<RunTime> {
    let spec = pod.spec.as_ref()?;
    let deadline = spec.active_deadline_seconds;
    let deadline = deadline.and_then(|seconds| u64::try_from(seconds).ok());
    let deadline = deadline.and_then(|seconds| usable(seconds.checked_mul(1000)?));
    let expected = annotation(pod).and_then(|text| duration(Some(text)));
    let expected = expected.and_then(|expected| usable(expected.0));
    let limit = deadline.is_some_and(|deadline| expected.is_none_or(|one| deadline <= one));
    let status = pod.status.as_ref();
    let started = status.and_then(|status| status.start_time.as_ref());
    let started = started.and_then(|time| u64::try_from(time.0.as_millisecond()).ok());
    Some(RunTime {
        length: if limit { deadline } else { expected }?,
        limit,
        started: started.map(Time),
    })
}

fn annotation(pod: &Pod) -> Option<&str> {
    pod.annotations().get(RUN_TIME).map(String::as_str)
}

fn usable(millis: u64) -> Option<Duration> {
    (millis > 0 && millis <= MAX.0).then_some(Duration(millis))
}

/// Returns why the annotation counts for nothing, as one sentence with the fix. `None`: it counts, or
/// there is none.
pub(crate) fn warning(pod: &Pod) -> Option<String> {
    let text = annotation(pod)?;
    let why = match duration(Some(text)) {
        Some(length) if usable(length.0).is_some() => return None,
        Some(length) if length.0 > MAX.0 => "it is longer than a year",
        Some(_) => "it is zero",
        None if text.starts_with('-') && duration(text.strip_prefix('-')).is_some() => {
            "it is negative"
        }
        None if text.parse::<f64>().is_ok() => "it has no unit",
        None => "it is not a duration",
    };
    let text: String = text.chars().take(64).collect();
    Some(format!(
        "annotation {RUN_TIME}: {text:?} counts for nothing, because {why}: write the time that the pod runs with its units, such as 2h30m"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(annotation: &str, deadline: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"annotations": {RUN_TIME: annotation}},
            "spec": {"containers": [], "activeDeadlineSeconds": deadline},
            "status": {"startTime": "1970-01-01T00:00:10Z"},
        }))
        .unwrap()
    }

    #[test]
    fn the_shorter_of_what_a_pod_says_counts() {
        let says = |annotation: &str, deadline: Value| {
            let run = of(&pod(annotation, deadline))?;
            assert_eq!(run.end(Time(1)), Time(10_000 + run.length.0));
            Some((run.length.0, run.limit))
        };
        assert_eq!(says("1m30s", Value::Null), Some((90_000, false)));
        assert_eq!(says("1m30s", json!(60)), Some((60_000, true)));
        assert_eq!(says("1m30s", json!(120)), Some((90_000, false)));
        assert_eq!(says("soon", json!(60)), Some((60_000, true)));
        // Charts that write a number for "no limit".
        assert_eq!(says("soon", json!(2_147_483_647)), None);
        assert_eq!(says("1m", json!(i64::MAX)), Some((60_000, false)));
    }

    #[test]
    fn a_value_that_counts_for_nothing_is_warned_of_with_the_fix() {
        for (text, why) in [
            ("0s", "it is zero"),
            ("-5m", "it is negative"),
            ("9000h", "it is longer than a year"),
            ("7200", "it has no unit"),
            ("two hours", "it is not a duration"),
            ("", "it is not a duration"),
        ] {
            let pod = pod(text, Value::Null);
            assert_eq!(of(&pod), None, "{text}");
            let warning = warning(&pod).unwrap();
            for part in [RUN_TIME, why, "such as 2h30m"] {
                assert!(warning.contains(part), "{warning}");
            }
        }
        assert_eq!(warning(&pod("2h30m", Value::Null)), None);
        assert_eq!(warning(&Pod::default()), None);
    }
}
