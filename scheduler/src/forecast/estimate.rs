//! Estimates of start times, and the sentences that tell them.

use crate::convert::run_time::Basis;
use jiff::Timestamp;
use proto::names::request::RUN_TIME;
use scheduler_core::ids::PodUid;
use scheduler_core::units::{Duration, Time};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

/// The pod whose end lets another one start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedPod {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// The run time. `None`: the pod is being deleted already.
    pub runs: Option<(Duration, Basis)>,
}

/// The estimate of the time at which a waiting pod starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// The pod starts at about this time if running pods take as long as they say, and no other pod
    /// comes.
    About {
        /// The time.
        time: Time,
        /// The pod whose end lets it start. `None`: it waits for no pod to end.
        after: Option<EndedPod>,
        /// The pods in its way whose run time is known.
        known: usize,
        /// All pods in its way.
        of: usize,
    },
    /// The forecast was cut short before the pod had started. All pods in its way have a known run
    /// time.
    NotBefore {
        /// The time of the first end that can make room for it. The time of the forecast: none is
        /// certain to be the first.
        time: Time,
    },
    /// No known time lets the pod start.
    Unknown {
        /// The pods in its way whose run time is not known. 0: no known end makes room for it.
        unknown: usize,
    },
}

/// Estimates of all pods that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The time at which the forecast was made.
    pub made: Time,
    /// The estimate of each waiting pod.
    pub pods: BTreeMap<PodUid, Estimate>,
    /// The number of decisions that the fork has taken.
    pub decisions: u32,
    /// True if the budget ended before the known run times did.
    pub cut_short: bool,
}

impl Forecast {
    /// Returns one line about a pod, for people. `None`: it did not wait when the forecast was made.
    pub fn line(&self, pod: &PodUid, now: Time) -> Option<String> {
        Some(self.pods.get(pod)?.line(now))
    }
}

impl Estimate {
    /// Returns the estimate in one line, with the time from now.
    pub fn line(&self, now: Time) -> String {
        let mut line = "estimated start: ".to_owned();
        let _ = match self {
            Self::About { time, .. } if *time <= now => {
                write!(line, "now, with the next decisions")
            }
            Self::About {
                time,
                after,
                known,
                of,
            } => {
                let _ = write!(line, "about {}", clock_time(*time, now));
                let _ = match after {
                    Some(EndedPod { name, runs: None }) => {
                        write!(line, ", when {name} has ended, which is being deleted")
                    }
                    Some(EndedPod {
                        name,
                        runs: Some((length, basis)),
                    }) => {
                        let known = known_run_time(*length, *basis);
                        write!(line, ", when {name} ends ({known})")
                    }
                    None => Ok(()),
                };
                if known == of {
                    write!(line, "; the run time of all pods in its way is known")
                } else {
                    write!(
                        line,
                        "; the run time of {known} of {of} pods in its way is known"
                    )
                }
            }
            Self::NotBefore { time } if *time <= now => {
                write!(line, "unknown: the forecast was cut short")
            }
            Self::NotBefore { time } => write!(
                line,
                "not before {}, if the pods in its way run as long as expected",
                clock_time(*time, now)
            ),
            Self::Unknown { unknown: 0 } => {
                write!(line, "unknown: no known end of a pod makes room for it")
            }
            Self::Unknown { unknown: 1 } => write!(
                line,
                "unknown: the run time of a pod in its way is not known (annotation {RUN_TIME})"
            ),
            Self::Unknown { unknown } => write!(
                line,
                "unknown: the run time of {unknown} pods in its way is not known (annotation {RUN_TIME})"
            ),
        };
        line
    }
}

/// Returns a run time and what it rests on, in words.
fn known_run_time(length: Duration, basis: Basis) -> String {
    let length = in_words(length);
    match basis {
        Basis::Limit => format!("its limit is {length}"),
        Basis::Said => format!("expected after {length}"),
        Basis::Past { runs, said: None } => {
            format!("expected after {length}, the median of {runs} past runs")
        }
        Basis::Past {
            runs,
            said: Some(said),
        } => format!(
            "expected after {length}, the median of {runs} past runs, although it says {}",
            in_words(said)
        ),
    }
}

/// Returns the time of day, with the date if it is another day, and how long that is from now.
fn clock_time(time: Time, now: Time) -> String {
    let timestamp = |time: Time| {
        let millis = i64::try_from(time.0).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
    };
    let (at, from) = (timestamp(time), timestamp(now));
    let same_day = at.strftime("%F").to_string() == from.strftime("%F").to_string();
    let form = if same_day { "%H:%M" } else { "%F %H:%M" };
    format!(
        "{} UTC (in {})",
        at.strftime(form),
        in_words(time.since(now))
    )
}

/// Returns a duration in its two largest units, the smaller one rounded up.
pub fn in_words(duration: Duration) -> String {
    let seconds = duration.0.div_ceil(1000);
    let minutes = seconds.div_ceil(60);
    let two = |large: u64, unit: &str, small: u64, part: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {part}"),
    };
    match (seconds, minutes) {
        (0..600, _) => match seconds / 60 {
            0 => format!("{seconds} s"),
            minutes => two(minutes, "min", seconds % 60, "s"),
        },
        (_, 0..60) => format!("{minutes} min"),
        (_, 60..2880) => two(minutes / 60, "h", minutes % 60, "min"),
        _ => {
            let hours = minutes.div_ceil(60);
            two(hours / 24, "d", hours % 24, "h")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 13:00 on the 1st of January 1970.
    const MADE: Time = Time(13 * 3_600_000);

    fn about(time: Time, runs: Option<(Duration, Basis)>) -> String {
        let estimate = Estimate::About {
            time,
            after: Some(EndedPod {
                name: "team-a/train-3".into(),
                runs,
            }),
            known: 3,
            of: 5,
        };
        estimate.line(MADE)
    }

    #[test]
    fn an_estimate_says_when_and_why_and_on_what_it_rests() {
        let expected = Some((Duration::seconds(7200), Basis::Said));
        assert_eq!(
            about(MADE.after(Duration::seconds(4800)), expected),
            "estimated start: about 14:20 UTC (in 1 h 20 min), when team-a/train-3 ends (expected after 2 h); the run time of 3 of 5 pods in its way is known"
        );
        let limit = Some((Duration::seconds(90), Basis::Limit));
        assert_eq!(
            about(MADE.after(Duration::seconds(200_000)), limit),
            "estimated start: about 1970-01-03 20:33 UTC (in 2 d 8 h), when team-a/train-3 ends (its limit is 1 min 30 s); the run time of 3 of 5 pods in its way is known"
        );
        assert_eq!(
            about(MADE.after(Duration::seconds(5)), None),
            "estimated start: about 13:00 UTC (in 5 s), when team-a/train-3 has ended, which is being deleted; the run time of 3 of 5 pods in its way is known"
        );
        let past = |said| Some((Duration::seconds(7200), Basis::Past { runs: 5, said }));
        let line = about(MADE.after(Duration::seconds(60)), past(None));
        assert!(
            line.contains("(expected after 2 h, the median of 5 past runs)"),
            "{line}"
        );
        let line = about(
            MADE.after(Duration::seconds(60)),
            past(Some(Duration::seconds(600))),
        );
        assert!(
            line.contains("5 past runs, although it says 10 min)"),
            "{line}"
        );
        assert_eq!(
            about(MADE, None),
            "estimated start: now, with the next decisions"
        );
    }

    #[test]
    fn what_is_not_known_is_said_to_be_unknown() {
        let time = MADE.after(Duration::seconds(300));
        assert_eq!(
            Estimate::NotBefore { time }.line(MADE),
            "estimated start: not before 13:05 UTC (in 5 min), if the pods in its way run as long as expected"
        );
        assert_eq!(
            Estimate::Unknown { unknown: 4 }.line(MADE),
            "estimated start: unknown: the run time of 4 pods in its way is not known (annotation aliquot.dev/expected-run-time)"
        );
        assert_eq!(
            Estimate::Unknown { unknown: 0 }.line(MADE),
            "estimated start: unknown: no known end of a pod makes room for it"
        );
    }
}
