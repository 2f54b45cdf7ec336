//! The run times of all pods, from what each declares and from past runs of its template.
//!
//! In: pods as the watch shows them. Out: the run times that estimates of start times use. A template
//! is the namespace, the kind of the controller, and the image, command, arguments and resources of
//! every container: in these a Job is like the one that ran yesterday, whatever its name. A new process
//! knows the runs of the finished pods that are still there.

use super::run_time::{Median, RunTime, Said};
use api::owner::controller;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt as _;
use scheduler_core::ids::PodUid;
use scheduler_core::units::{Duration, Time};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

/// The runs that a median is taken of: the code behind a template changes, so old runs say less.
const RUNS: usize = 9;
/// With fewer runs nothing is known: a single one may have been a trial.
const ENOUGH: usize = 3;
/// The templates of a namespace that are remembered, about 300 bytes each. Arguments may be different
/// in each run, and no namespace is to push out the templates of another.
const TEMPLATES: usize = 500;

/// The pods of one template in a namespace. A digest of 64 bits: it only says whether two pods are
/// alike.
type Template = u64;

/// The declared and the past run times of pods that end by themselves, or declare when they end.
#[derive(Debug, Default)]
pub(super) struct RunTimes {
    pods: BTreeMap<PodUid, PodRun>,
    /// The templates of each namespace.
    templates: BTreeMap<Arc<str>, BTreeMap<Template, PastRuns>>,
}

#[derive(Debug)]
struct PodRun {
    said: Said,
    namespace: Arc<str>,
    template: Template,
    /// True once its own run is among the past ones.
    ended: bool,
}

/// A run of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    ended: Time,
    length: Duration,
    /// A digest of the controller's UID: the pods of one Job are one run.
    owner: u64,
}

/// The last runs of a template, in the order in which they ended.
#[derive(Debug, Default)]
struct PastRuns(Vec<Run>);

impl PastRuns {
    /// Returns the median of the runs that took longer than `age`, which a pod has reached already.
    fn median(&self, age: Duration) -> Option<Median> {
        if self.0.len() < ENOUGH {
            return None;
        }
        let lengths = self.0.iter().map(|run| run.length);
        let mut lengths: Vec<Duration> = lengths.filter(|length| *length > age).collect();
        lengths.sort_unstable();
        let length = *lengths.get(lengths.len() / 2)?;
        let runs = lengths.len();
        Some(Median { length, runs })
    }

    fn note(&mut self, run: Run) {
        self.0.retain(|known| known.owner != run.owner);
        let at = self.0.partition_point(|known| *known < run);
        self.0.insert(at, run);
        if self.0.len() > RUNS {
            self.0.remove(0);
        }
    }

    fn is_usable(&self) -> bool {
        self.0.len() >= ENOUGH
    }
}

impl RunTimes {
    /// Takes in a pod as it is now.
    pub(super) fn show(&mut self, uid: &PodUid, pod: &Pod) {
        let said = Said::on(pod);
        let policy = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref());
        // Pods that are always restarted have no end of their own.
        let ends = policy.is_some_and(|policy| policy != "Always");
        if !ends && said.is_nothing() {
            self.forget(uid);
            return;
        }
        let templates = &self.templates;
        let known = self.pods.entry(uid.clone()).or_insert_with(|| PodRun {
            said,
            namespace: shared_name(templates, pod),
            template: template(pod),
            ended: false,
        });
        known.said = said;
        if !known.ended
            && let Some(run) = run(pod)
        {
            known.ended = true;
            let (namespace, template) = (Arc::clone(&known.namespace), known.template);
            self.note(namespace, template, run);
        }
    }

    /// Forgets a pod that is gone. Its run stays known.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Forgets the runs of a namespace that is gone.
    pub(super) fn forget_namespace(&mut self, name: &str) {
        self.templates.remove(name);
    }

    fn note(&mut self, namespace: Arc<str>, template: Template, run: Run) {
        let templates = self.templates.entry(namespace).or_default();
        templates.entry(template).or_default().note(run);
        if templates.len() > TEMPLATES {
            let last = |past: &PastRuns| past.0.last().copied();
            let others = templates.iter().filter(|(other, _)| **other != template);
            let least = others.min_by_key(|(_, past)| (past.is_usable(), last(past)));
            if let Some(least) = least.map(|(template, _)| *template) {
                templates.remove(&least);
            }
        }
    }

    /// Returns the run time of every pod of which one is known.
    pub(super) fn known(&self, now: Time) -> BTreeMap<PodUid, RunTime> {
        let of = |run: &PodRun| {
            let templates = self.templates.get(&run.namespace);
            let past = templates.and_then(|templates| templates.get(&run.template));
            let median = past.and_then(|past| past.median(run.said.age(now)));
            run.said.run_time(median, now)
        };
        let known = self.pods.iter();
        known
            .filter_map(|(uid, run)| Some((uid.clone(), of(run)?)))
            .collect()
    }
}

/// Returns the name of a pod's namespace, shared with the map if it is there.
fn shared_name<V>(known: &BTreeMap<Arc<str>, V>, pod: &Pod) -> Arc<str> {
    let name = pod.namespace().unwrap_or_default();
    let known = known.get_key_value(name.as_str());
    known.map_or_else(|| name.as_str().into(), |(known, _)| Arc::clone(known))
}

/// Returns the run of a pod that has succeeded. One that failed ended before its time, and so did one
/// that was evicted or deleted, even if its programs ended without an error.
fn run(pod: &Pod) -> Option<Run> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_disrupted =
        conditions.any(|one| one.type_ == "DisruptionTarget" && one.status == "True");
    if status.phase.as_deref() != Some("Succeeded")
        || is_disrupted
        || pod.metadata.deletion_timestamp.is_some()
    {
        return None;
    }
    let ends = status.container_statuses.iter().flatten();
    let ends = ends.filter_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        Some(ended.finished_at.as_ref()?.0.as_millisecond())
    });
    let (start, end) = (status.start_time.as_ref()?.0.as_millisecond(), ends.max()?);
    let length = u64::try_from(end.checked_sub(start)?).ok()?;
    let mut hasher = DefaultHasher::new();
    match controller(pod) {
        Some(owner) => owner.uid.hash(&mut hasher),
        None => pod.metadata.uid.hash(&mut hasher),
    }
    (length > 0).then_some(Run {
        ended: Time(u64::try_from(end).ok()?),
        length: Duration(length),
        owner: hasher.finish(),
    })
}

fn template(pod: &Pod) -> Template {
    let mut hasher = DefaultHasher::new();
    controller(pod).map(|owner| &owner.kind).hash(&mut hasher);
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

    fn pod(args: &str, owner: &str, ended_after: Option<u64>) -> Pod {
        let ended = ended_after.map(|seconds| {
            let at = jiff::Timestamp::from_second(i64::try_from(10 + seconds).unwrap()).unwrap();
            json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "finishedAt": at.to_string()}}}])
        });
        serde_json::from_value(json!({
            "metadata": {"namespace": "team-a", "name": format!("run-{args}"),
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": owner,
                    "uid": owner, "controller": true}]},
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

    fn show(times: &mut RunTimes, uid: &str, pod: &Pod) {
        times.show(&PodUid::new(uid), pod);
    }

    /// Returns the run time and the number of past runs, so many seconds after the pods started.
    fn known_after(times: &RunTimes, uid: &str, seconds: u64) -> Option<(u64, usize)> {
        let known = times.known(Time((10 + seconds) * 1000));
        let run = known.get(&PodUid::new(uid))?;
        let Basis::Past { runs, said: None } = run.basis else {
            panic!("{run:?}");
        };
        Some((run.length.0 / 1000, runs))
    }

    #[test]
    fn a_pod_is_expected_to_run_as_long_as_the_middle_one_of_those_like_it() {
        let mut times = RunTimes::default();
        show(&mut times, "now", &pod("a", "now", None));
        for (uid, length) in [("1", 60), ("2", 3600), ("3", 90)] {
            assert_eq!(known_after(&times, "now", 0), None, "{uid}");
            // Its last state comes more than once, and other pods of its Job end, too.
            show(&mut times, uid, &pod("a", uid, None));
            show(&mut times, uid, &pod("a", uid, Some(length)));
            show(&mut times, uid, &pod("a", uid, Some(length)));
            show(&mut times, &format!("{uid}b"), &pod("a", uid, Some(length)));
            times.forget(&PodUid::new(uid));
        }
        assert_eq!(known_after(&times, "now", 0), Some((90, 3)));
        // A time that the pod has outlived is no estimate any more.
        assert_eq!(known_after(&times, "now", 90), Some((3600, 1)));
        assert_eq!(known_after(&times, "now", 3600), None);
        show(&mut times, "other", &pod("b", "other", None));
        assert_eq!(
            known_after(&times, "other", 0),
            None,
            "its arguments are others"
        );
        // The nine that ended last count, in whatever order a listing has them.
        for uid in (10..20).rev() {
            let uid = uid.to_string();
            show(&mut times, &uid, &pod("a", &uid, Some(10_000)));
        }
        show(&mut times, "old", &pod("a", "old", Some(5)));
        assert_eq!(known_after(&times, "now", 0), Some((10_000, 9)));
    }

    #[test]
    fn only_whole_runs_count_and_a_server_has_no_end() {
        let mut times = RunTimes::default();
        for uid in ["1", "2", "3"] {
            let mut failed = pod("a", uid, Some(5));
            failed.status.as_mut().unwrap().phase = Some("Failed".to_owned());
            show(&mut times, uid, &failed);
            let mut deleted = serde_json::to_value(pod("a", uid, Some(5))).unwrap();
            deleted["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:12Z");
            let deleted = serde_json::from_value(deleted).unwrap();
            show(&mut times, &format!("{uid} deleted"), &deleted);
            let mut evicted = serde_json::to_value(pod("a", uid, Some(5))).unwrap();
            evicted["status"]["conditions"] =
                json!([{"type": "DisruptionTarget", "status": "True"}]);
            let evicted = serde_json::from_value(evicted).unwrap();
            show(&mut times, &format!("{uid} evicted"), &evicted);
        }
        show(&mut times, "now", &pod("a", "now", None));
        assert_eq!(known_after(&times, "now", 0), None);
        let mut server = pod("a", "server", None);
        server.spec.as_mut().unwrap().restart_policy = Some("Always".to_owned());
        show(&mut times, "server", &server);
        assert!(!times.pods.contains_key(&PodUid::new("server")));
    }

    #[test]
    fn a_namespace_with_many_templates_keeps_those_that_say_something_and_harms_no_other() {
        let mut times = RunTimes::default();
        let run = |at: u64| Run {
            ended: Time(at),
            length: Duration(1),
            owner: at,
        };
        for at in 0..3 {
            times.note("quiet".into(), 1, run(at));
            times.note("busy".into(), u64::MAX, run(at));
        }
        for template in 0..2 * TEMPLATES as u64 {
            times.note("busy".into(), template, run(10 + template));
        }
        let kept = &times.templates["busy"];
        assert_eq!(kept.len(), TEMPLATES);
        assert!(kept.contains_key(&u64::MAX), "it has enough runs");
        assert!(times.templates["quiet"].contains_key(&1));
        times.forget_namespace("busy");
        assert!(times.templates.keys().eq([&Arc::from("quiet")]));
    }
}
