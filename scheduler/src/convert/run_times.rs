//! The run times of all pods: what each says, and what pods of the same template took.
//!
//! In: pods as the watch shows them. Out: the run times that estimates of start times use. A template
//! is the namespace, the kind of the controller, and the image, command, arguments and resources of
//! every container: in these a Job is like the one that ran yesterday, whatever its name. A new process
//! knows the runs of the finished pods that are still there.

use super::run_time::{Median, RunTime, Said};
use k8s_openapi::api::core::v1::{Container, Pod};
use scheduler_core::ids::PodUid;
use scheduler_core::units::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The runs that a median is taken of: the code behind a template changes, so old runs say less.
const RUNS: usize = 9;
/// With fewer runs nothing is known: a single one may have been a trial.
const ENOUGH: usize = 3;
/// The templates that are remembered, about 200 bytes each. Beyond it, the one whose last run is the
/// oldest is forgotten.
const TEMPLATES: usize = 10_000;

/// A digest of 64 bits: it only says whether two pods are alike.
type Template = u64;

/// What is known of the run times of pods that end by themselves, or say when they end.
#[derive(Debug, Default)]
pub(super) struct RunTimes {
    pods: BTreeMap<PodUid, PodRun>,
    templates: BTreeMap<Template, PastRuns>,
    /// The number of runs that were noted.
    noted: u64,
}

#[derive(Debug)]
struct PodRun {
    said: Said,
    template: Template,
    /// True once its own run is among the past ones.
    ended: bool,
}

#[derive(Debug, Default)]
struct PastRuns {
    /// [`RunTimes::noted`] at the last run.
    last: u64,
    /// Oldest first.
    lengths: VecDeque<Duration>,
}

impl PastRuns {
    fn median(&self) -> Option<Median> {
        let runs = self.lengths.len();
        let mut lengths: Vec<Duration> = self.lengths.iter().copied().collect();
        lengths.sort_unstable();
        let length = *lengths.get(runs / 2)?;
        (runs >= ENOUGH).then_some(Median { length, runs })
    }
}

impl RunTimes {
    /// Takes in a pod as it is now.
    pub(super) fn show(&mut self, uid: &str, pod: &Pod) {
        let said = Said::on(pod);
        let Some(spec) = &pod.spec else { return };
        // Pods that are always restarted have no end of their own.
        let ends = spec
            .restart_policy
            .as_deref()
            .is_some_and(|policy| policy != "Always");
        let uid = PodUid::new(uid);
        if !ends && said.is_nothing() {
            self.pods.remove(&uid);
            return;
        }
        let template = template(pod);
        let known = self.pods.entry(uid).or_insert(PodRun {
            said,
            template,
            ended: false,
        });
        known.said = said;
        if !known.ended
            && let Some(length) = length(pod)
        {
            known.ended = true;
            self.note(template, length);
        }
    }

    /// Forgets a pod that is gone. Its run stays known.
    pub(super) fn forget(&mut self, uid: &str) {
        self.pods.remove(&PodUid::new(uid));
    }

    fn note(&mut self, template: Template, length: Duration) {
        self.noted += 1;
        let past = self.templates.entry(template).or_default();
        past.last = self.noted;
        past.lengths.push_back(length);
        if past.lengths.len() > RUNS {
            past.lengths.pop_front();
        }
        if self.templates.len() > TEMPLATES {
            let oldest = self.templates.iter().min_by_key(|(_, past)| past.last);
            if let Some(oldest) = oldest.map(|(template, _)| *template) {
                self.templates.remove(&oldest);
            }
        }
    }

    /// Returns the run time of every pod of which one is known.
    pub(super) fn known(&self) -> BTreeMap<PodUid, RunTime> {
        let of = |run: &PodRun| {
            let past = self.templates.get(&run.template);
            run.said.run_time(past.and_then(PastRuns::median))
        };
        let known = self.pods.iter();
        known
            .filter_map(|(uid, run)| Some((uid.clone(), of(run)?)))
            .collect()
    }

    /// Returns true if [`RunTimes::known`] may return any.
    pub(super) fn is_any_known(&self) -> bool {
        let is_enough = |past: &PastRuns| past.lengths.len() >= ENOUGH;
        self.templates.values().any(is_enough)
            || self.pods.values().any(|run| !run.said.is_nothing())
    }
}

/// Returns how long a pod ran that has succeeded: one that failed ended before its time.
fn length(pod: &Pod) -> Option<Duration> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() != Some("Succeeded") {
        return None;
    }
    let ends = status.container_statuses.iter().flatten();
    let ends = ends.filter_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        Some(ended.finished_at.as_ref()?.0.as_millisecond())
    });
    let start = status.start_time.as_ref()?.0.as_millisecond();
    let length = u64::try_from(ends.max()?.checked_sub(start)?).ok()?;
    (length > 0).then_some(Duration(length))
}

fn template(pod: &Pod) -> Template {
    let mut hasher = DefaultHasher::new();
    pod.metadata.namespace.hash(&mut hasher);
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    controller.map(|owner| &owner.kind).hash(&mut hasher);
    let spec = pod.spec.iter();
    for container in spec.flat_map(|spec| {
        spec.init_containers
            .iter()
            .flatten()
            .chain(&spec.containers)
    }) {
        let Container {
            image,
            command,
            args,
            resources,
            ..
        } = container;
        (image, command, args).hash(&mut hasher);
        let amounts = resources
            .iter()
            .flat_map(|one| [&one.limits, &one.requests]);
        for (name, amount) in amounts.flatten().flatten() {
            (name, &amount.0).hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::super::run_time::Basis;
    use super::*;
    use serde_json::{Value, json};

    fn pod(args: &str, ended_after: Option<u64>) -> Pod {
        let ended = ended_after.map(|seconds| {
            let at = jiff::Timestamp::from_second(i64::try_from(10 + seconds).unwrap()).unwrap();
            json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "finishedAt": at.to_string()}}}])
        });
        serde_json::from_value(json!({
            "metadata": {"namespace": "team-a", "name": format!("run-{args}"),
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "any",
                    "uid": "any", "controller": true}]},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "c", "image": "train", "args": [args]}]},
            "status": {
                "phase": if ended_after.is_some() { "Succeeded" } else { "Running" },
                "startTime": "1970-01-01T00:00:10Z",
                "containerStatuses": ended.unwrap_or(Value::Null),
            },
        }))
        .unwrap()
    }

    fn known(times: &RunTimes, uid: &str) -> Option<(u64, Basis)> {
        let run = *times.known().get(&PodUid::new(uid))?;
        Some((run.length.0 / 1000, run.basis))
    }

    #[test]
    fn a_pod_is_expected_to_run_as_long_as_the_middle_one_of_those_like_it() {
        let mut times = RunTimes::default();
        times.show("now", &pod("a", None));
        for (uid, length) in [("1", 60), ("2", 3600), ("3", 90)] {
            assert_eq!(known(&times, "now"), None, "{uid}");
            assert!(!times.is_any_known());
            // Its last state comes more than once.
            times.show(uid, &pod("a", None));
            times.show(uid, &pod("a", Some(length)));
            times.show(uid, &pod("a", Some(length)));
            times.forget(uid);
        }
        assert!(times.is_any_known());
        let past = |runs| Basis::Past { runs, said: None };
        assert_eq!(known(&times, "now"), Some((90, past(3))));
        times.show("other", &pod("b", None));
        assert_eq!(known(&times, "other"), None, "its arguments are others");
        // The last nine count.
        for uid in 10..20 {
            times.show(&uid.to_string(), &pod("a", Some(200)));
        }
        assert_eq!(known(&times, "now"), Some((200, past(9))));
    }

    #[test]
    fn a_failed_run_says_nothing_and_a_server_has_no_end() {
        let mut times = RunTimes::default();
        for uid in ["1", "2", "3"] {
            let mut failed = pod("a", Some(5));
            failed.status.as_mut().unwrap().phase = Some("Failed".to_owned());
            times.show(uid, &failed);
        }
        times.show("now", &pod("a", None));
        assert_eq!(known(&times, "now"), None);
        let mut server = pod("a", None);
        server.spec.as_mut().unwrap().restart_policy = Some("Always".to_owned());
        times.show("server", &server);
        assert!(!times.pods.contains_key(&PodUid::new("server")));
    }

    #[test]
    fn templates_that_ran_last_are_kept() {
        let mut times = RunTimes::default();
        for template in 0..=TEMPLATES as u64 {
            times.note(template, Duration(1));
        }
        assert_eq!(times.templates.len(), TEMPLATES);
        assert!(!times.templates.contains_key(&0));
    }
}
