//! The run time of one pod, from what it declares and from past runs of its template.
//!
//! In: the annotation [`RUN_TIME`] and `activeDeadlineSeconds`, and the median of past runs. Out: the
//! run time for estimates of start times, or a warning if the annotation counts for nothing. No
//! decision rests on it.

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
    /// The source of the length.
    pub basis: Basis,
    /// The time at which the kubelet took the pod in. `None`: it has not yet.
    pub started: Option<Time>,
}

/// The source of a run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Kubernetes ends the pod after that time (`activeDeadlineSeconds`).
    Limit,
    /// The pod is expected to end by itself, as its annotation says.
    Said,
    /// The median of the past runs of pods like it.
    Past {
        /// The number of these runs.
        runs: usize,
        /// The shorter time that the annotation declares.
        said: Option<Duration>,
    },
}

impl RunTime {
    /// Returns the time at which the pod ends. A pod that has not started is taken to start at `now`.
    pub fn end(&self, now: Time) -> Time {
        self.started.unwrap_or(now).after(self.length)
    }
}

/// The median of past runs, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Median {
    pub(super) length: Duration,
    pub(super) runs: usize,
}

/// The times that a pod declares about its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    expected: Option<Duration>,
    deadline: Option<Duration>,
    started: Option<Time>,
}

impl Said {
    /// Reads what a pod says.
    pub(super) fn on(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let deadline = spec.and_then(|spec| u64::try_from(spec.active_deadline_seconds?).ok());
        let expected = annotation(pod).and_then(|text| duration(Some(text)));
        let status = pod.status.as_ref();
        let started = status.and_then(|status| status.start_time.as_ref());
        let started = started.and_then(|time| u64::try_from(time.0.as_millisecond()).ok());
        Self {
            expected: expected.and_then(|expected| usable(expected.0)),
            deadline: deadline.and_then(|seconds| usable(seconds.checked_mul(1000)?)),
            started: started.map(Time),
        }
    }

    /// Returns true if the pod says nothing.
    pub(super) fn is_nothing(&self) -> bool {
        self.expected.is_none() && self.deadline.is_none()
    }

    /// Returns how long the pod has run.
    pub(super) fn age(&self, now: Time) -> Duration {
        self.started
            .map_or(Duration(0), |started| now.since(started))
    }

    /// Returns the run time. `None`: nothing is known. Of what the pod says and what pods like it took,
    /// the longer one counts: the shorter one has been wrong before, or promises more than was seen. A
    /// time that the pod has already outlived says nothing. No pod runs longer than Kubernetes lets it.
    pub(super) fn run_time(&self, past: Option<Median>, now: Time) -> Option<RunTime> {
        let age = self.age(now);
        let said = self.expected.filter(|said| *said > age);
        let past = past.filter(|past| past.length > said.unwrap_or(age));
        let expected = match (past, said) {
            (Some(Median { length, runs }), said) => Some((length, Basis::Past { runs, said })),
            (None, said) => said.map(|said| (said, Basis::Said)),
        };
        let limit = self.deadline.map(|deadline| (deadline, Basis::Limit));
        let (length, basis) = match (limit, expected) {
            (Some(limit), Some(expected)) if expected.0 < limit.0 => expected,
            (Some(limit), _) => limit,
            (None, expected) => expected?,
        };
        Some(RunTime {
            length,
            basis,
            started: self.started,
        })
    }
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
            let run = Said::on(&pod(annotation, deadline)).run_time(None, Time(1))?;
            assert_eq!(run.end(Time(1)), Time(10_000 + run.length.0));
            Some((run.length.0, run.basis == Basis::Limit))
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
    fn past_runs_count_where_the_pod_says_less_or_nothing_and_never_beyond_its_limit() {
        let past = |annotation: &str, deadline: Value| {
            let past = Median {
                length: Duration::seconds(100),
                runs: 5,
            };
            let said = Said::on(&pod(annotation, deadline));
            // It has run for 10 s.
            let run = said.run_time(Some(past), Time(20_000))?;
            Some((run.length.0 / 1000, run.basis))
        };
        let runs = |said: Option<u64>| Basis::Past {
            runs: 5,
            said: said.map(Duration::seconds),
        };
        assert_eq!(past("", Value::Null), Some((100, runs(None))));
        assert_eq!(past("50s", Value::Null), Some((100, runs(Some(50)))));
        assert_eq!(past("150s", Value::Null), Some((150, Basis::Said)));
        assert_eq!(past("", json!(300)), Some((100, runs(None))));
        assert_eq!(past("50s", json!(80)), Some((80, Basis::Limit)));
        // It has outlived what it said, and has a limit or nothing.
        let said = |deadline| Said::on(&pod("5s", deadline)).run_time(None, Time(20_000));
        assert_eq!(said(json!(80)).unwrap().basis, Basis::Limit);
        assert_eq!(said(Value::Null), None);
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
            assert_eq!(Said::on(&pod).run_time(None, Time(1)), None, "{text}");
            let warning = warning(&pod).unwrap();
            for part in [RUN_TIME, why, "such as 2h30m"] {
                assert!(warning.contains(part), "{warning}");
            }
        }
        assert_eq!(warning(&pod("2h30m", Value::Null)), None);
        assert_eq!(warning(&Pod::default()), None);
    }
}
