//! A pod's timeline from its request to its end, as steps in chronological order. Pure.
//!
//! In: the pod, if it exists; the scheduler's events on it; its agent's reports. Out: JSON. A step
//! that was not seen is missing, never guessed.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// Steps of one answer at most.
const STEPS: usize = 200;

/// One step.
#[derive(Debug, PartialEq)]
struct Step {
    /// Milliseconds since 1970.
    at: i64,
    /// When it was seen last, where that is later.
    until: Option<i64>,
    kind: &'static str,
    words: String,
    /// How often it was reported.
    count: i64,
}

impl Step {
    fn new(at: i64, kind: &'static str, words: impl Into<String>) -> Self {
        Self {
            at,
            until: None,
            kind,
            words: words.into(),
            count: 1,
        }
    }
}

/// The known facts about it.
#[derive(Debug)]
pub(super) struct PodFacts<'a> {
    pub(super) uid: &'a str,
    /// `None`: it has been deleted.
    pub(super) pod: Option<&'a Pod>,
    /// `None`: the reader may not list events, or they cannot be had.
    pub(super) events: Option<&'a [Event]>,
    /// As `answer::pods::whereabouts` has it; `Null` where its agent says nothing.
    pub(super) live: &'a Value,
}

/// The steps, and the ids by which logs and traces have the pod.
pub(super) fn tell(known: &PodFacts<'_>) -> Value {
    let mut steps = Vec::new();
    let (mut decision, mut asks) = (None, None);
    if let Some(pod) = known.pod {
        let asked = super::row::asks(pod);
        if let Some(created) = pod.creation_timestamp() {
            let words = format!("asked for {asked}");
            steps.push(Step::new(created.0.as_millisecond(), "asked", words));
        }
        asks = Some(asked);
        let grant = pod.annotations().get(proto::names::grant::GRANT);
        let grant = grant.and_then(|text| api::Grant::peek(text).ok());
        decision = grant.map(|grant| grant.decision);
        conditions(pod, &mut steps);
        containers(pod, &mut steps);
    }
    let events = known.events.unwrap_or_default();
    for event in events {
        steps.extend(of_event(event));
    }
    // The condition of a waiting pod has the present reason, but the time since which the pod waits
    // at all. If an event has the same reason, its time is used; otherwise the reason begins when
    // the earlier reasons end.
    if let Some(mut present) = known.pod.and_then(waits_for) {
        let is_same = |old: &Step| old.kind == present.kind && old.words == present.words;
        if !steps.iter().any(is_same) {
            let earlier = steps.iter().filter(|old| old.kind == present.kind);
            let ends = earlier.map(|old| old.until.unwrap_or(old.at));
            present.at = ends.fold(present.at, i64::max);
            steps.push(present);
        }
    }
    agent(known.live, &mut steps);
    // Kubernetes' stamps are of whole seconds: within one, the order is that of a pod's life.
    steps.sort_by_key(|step| (step.at.div_euclid(1000), rank(step.kind), step.at));
    let mut last = i64::MIN;
    for step in &mut steps {
        step.at = step.at.max(last);
        last = step.at;
    }
    // A condition and an event that say the same are one step.
    let mut told: Vec<Step> = Vec::new();
    for step in steps {
        let same = told
            .iter_mut()
            .rev()
            .find(|old| old.kind == step.kind && (old.words == step.words || once(step.kind)));
        match same {
            Some(old) => {
                old.until = old.until.max(step.until);
                old.count = old.count.max(step.count);
                if step.words.len() > old.words.len() {
                    old.words = step.words;
                }
            }
            None => told.push(step),
        }
    }
    told.truncate(STEPS);
    let digits: String = known.uid.chars().filter(|one| *one != '-').collect();
    let is_trace = digits.len() == 32 && digits.chars().all(|one| one.is_ascii_hexdigit());
    let steps: Vec<Value> = told
        .iter()
        .map(|step| {
            json!({"at": step.at, "until": step.until, "kind": step.kind, "words": step.words,
                "count": step.count})
        })
        .collect();
    let allocs = known.live["shares"].as_array().into_iter().flatten();
    let allocs: Vec<&Value> = allocs.map(|share| &share["alloc"]).collect();
    json!({
        "steps": steps, "asks": asks, "trace": is_trace.then_some(digits), "decision": decision,
        "allocations": allocs, "events": known.events.is_some(), "gone": known.pod.is_none(),
    })
}

/// Steps that happen once, whatever the number of sources.
fn once(kind: &str) -> bool {
    matches!(kind, "asked" | "bound" | "prepared" | "running" | "ended")
}

/// The order of what happened in the same millisecond, or second.
fn rank(kind: &str) -> usize {
    let order = [
        "asked",
        "waits",
        "reserved",
        "bound",
        "prepared",
        "running",
        "hard",
        "guarded",
        "watched",
        "unverified",
        "limit",
        "refused",
        "evicted",
        "ended",
    ];
    order
        .iter()
        .position(|one| *one == kind)
        .unwrap_or(order.len())
}

fn conditions(pod: &Pod, steps: &mut Vec<Step>) {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    for condition in conditions.into_iter().flatten() {
        let Some(at) = &condition.last_transition_time else {
            continue;
        };
        let at = at.0.as_millisecond();
        let message = condition.message.as_deref().unwrap_or_default();
        let line = message.lines().next().unwrap_or_default();
        let reason = condition.reason.as_deref().unwrap_or_default();
        let holds = condition.status == "True";
        steps.extend(match (condition.type_.as_str(), holds) {
            ("PodScheduled", true) => {
                let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                let words = format!("bound to node {}", node.unwrap_or_default());
                Some(Step::new(at, "bound", words))
            }
            ("DisruptionTarget", true) => Some(Step::new(at, "evicted", line)),
            // Only a grant that its node does not honour is refused; under a weaker fence the pod
            // runs.
            (proto::names::condition::ISOLATION_VERIFIED, _) => {
                let kind = match reason {
                    "GrantRefused" => "refused",
                    "Hard" => "hard",
                    "Guarded" => "guarded",
                    "Watched" => "watched",
                    _ => "unverified",
                };
                Some(Step::new(at, kind, format!("{reason}: {line}")))
            }
            _ => None,
        });
    }
}

/// Returns the step with the present reason of a waiting pod, at the time at which it began to
/// wait.
fn waits_for(pod: &Pod) -> Option<Step> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let waits = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
    let at = waits.last_transition_time.as_ref()?.0.as_millisecond();
    let line = waits.message.as_deref().unwrap_or_default().lines().next();
    Some(Step::new(at, "waits", summary(line.unwrap_or_default())))
}

/// A reason without its details. In an event they follow on the same line, in a condition on others.
fn summary(line: &str) -> &str {
    let all = line.split(". node ").next().unwrap_or(line);
    all.trim_end_matches('.')
}

fn containers(pod: &Pod, steps: &mut Vec<Step>) {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    let mut ends = Vec::new();
    for container in statuses.into_iter().flatten() {
        let Some(state) = &container.state else {
            continue;
        };
        let running = state
            .running
            .as_ref()
            .and_then(|one| one.started_at.as_ref());
        let ended = state.terminated.as_ref();
        let started = running.or_else(|| ended.and_then(|one| one.started_at.as_ref()));
        if let Some(at) = started {
            let words = format!("container {} runs", container.name);
            steps.push(Step::new(at.0.as_millisecond(), "running", words));
        }
        if let Some(one) = ended {
            let reason = one.reason.as_deref().unwrap_or("ended");
            let words = format!(
                "container {}: {reason}, exit code {}",
                container.name, one.exit_code
            );
            ends.extend(
                one.finished_at
                    .as_ref()
                    .map(|at| (at.0.as_millisecond(), words)),
            );
        }
    }
    if let Some((at, words)) = ends.into_iter().max() {
        steps.push(Step::new(at, "ended", words));
    }
}

/// Events of the scheduler or the kubelet.
fn of_event(event: &Event) -> Option<Step> {
    let millis = |at: &Timestamp| at.as_millisecond();
    let series = event.series.as_ref();
    let first = event
        .event_time
        .as_ref()
        .map(|at| millis(&at.0))
        .or_else(|| event.first_timestamp.as_ref().map(|at| millis(&at.0)))?;
    let last = series
        .and_then(|series| series.last_observed_time.as_ref())
        .map(|at| millis(&at.0))
        .or_else(|| event.last_timestamp.as_ref().map(|at| millis(&at.0)));
    let kind = match event.reason.as_deref()? {
        "Unschedulable" | "FailedScheduling" | "WaitingForVolume" => "waits",
        "Pipelined" => "reserved",
        "Scheduled" => "bound",
        "Evict" => "evicted",
        "GrantRefused" | "FailedBinding" => "refused",
        "GPUShare" => "limit",
        _ => return None,
    };
    let message = event.message.as_deref().unwrap_or_default();
    let line = message.lines().next().unwrap_or_default();
    let line = if kind == "waits" { summary(line) } else { line };
    let counted = series.and_then(|series| series.count).or(event.count);
    Some(Step {
        until: last.filter(|last| *last > first),
        count: counted.unwrap_or(1).into(),
        ..Step::new(first, kind, line)
    })
}

/// Reports of its agent since this process started.
fn agent(live: &Value, steps: &mut Vec<Step>) {
    for share in live["shares"].as_array().into_iter().flatten() {
        let container = share["container"].as_str().unwrap_or_default();
        let node = share["node"].as_str().unwrap_or_default();
        if let Some(at) = share["prepared"].as_i64() {
            let words = format!("the share of container {container} is prepared on {node}");
            steps.push(Step::new(at, "prepared", words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "2a7f0c1e-8b5d-4f60-9d53-3c4f7b1a9e02",
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"gpu-memory": "2000"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "main"}]}, "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn event(reason: &str, second: u32, message: &str) -> Event {
        let event = json!({
            "metadata": {"name": "e"}, "involvedObject": {}, "reason": reason, "message": message,
            "eventTime": format!("2026-01-01T00:00:{second:02}.000000Z"),
        });
        serde_json::from_value(event).unwrap()
    }

    fn kinds(told: &Value) -> Vec<&str> {
        let steps = told["steps"].as_array().unwrap().iter();
        steps.map(|step| step["kind"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_pods_steps_are_in_order_and_what_is_said_twice_is_told_once() {
        let pod = pod(json!({
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"},
                {"type": "aliquot.dev/IsolationVerified", "status": "False", "reason": "Guarded",
                    "message": "held by the server", "lastTransitionTime": "2026-01-01T00:00:12Z"},
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                    "message": "Pod ns/p was preempted by higher priority workload ns/q",
                    "lastTransitionTime": "2026-01-01T00:00:40Z"},
            ],
            "containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:11Z"}}}],
        }));
        let mut waits = event("Unschedulable", 1, "no card\nn1: full");
        waits.series = Some(
            serde_json::from_value(
                json!({"count": 7, "lastObservedTime": "2026-01-01T00:00:05.000000Z"}),
            )
            .unwrap(),
        );
        let events = [
            event(
                "Evict",
                40,
                "Pod ns/p was preempted by higher priority workload ns/q",
            ),
            event(
                "Scheduled",
                9,
                "Successfully assigned pod ns/p to node n1 at node-pool default",
            ),
            event("Pulled", 10, "not ours"),
            waits,
            event("Pipelined", 6, "waits for what leaves n1"),
            event("GPUShare", 30, "held 2100 of 2000 MiB: killed"),
        ];
        let live = json!({"shares": [{"container": "main", "node": "n1", "alloc": "a1", "prepared": 1_767_225_610_000_i64}]});
        let told = tell(&PodFacts {
            uid: "2a7f0c1e-8b5d-4f60-9d53-3c4f7b1a9e02",
            pod: Some(&pod),
            events: Some(&events),
            live: &live,
        });
        assert_eq!(
            kinds(&told),
            [
                "asked", "waits", "reserved", "bound", "prepared", "running", "guarded", "limit",
                "evicted"
            ]
        );
        assert_eq!(told["steps"][1]["count"], 7);
        assert_eq!(told["steps"][1]["until"], 1_767_225_605_000_i64);
        assert_eq!(told["steps"][1]["words"], "no card");
        assert_eq!(told["asks"], "2000 MiB");
        assert_eq!(told["trace"], "2a7f0c1e8b5d4f609d533c4f7b1a9e02");
        assert_eq!(told["allocations"], json!(["a1"]));
    }

    /// The condition has the present reason of a waiting pod, but the time since which it waits at
    /// all.
    #[test]
    fn the_present_reason_of_a_pod_comes_after_those_before_it() {
        let waits = |message: &str| {
            pod(json!({"conditions": [
                {"type": "PodScheduled", "status": "False", "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]}))
        };
        let mut queue = event("Unschedulable", 1, "Queue 'product' does not exist");
        queue.series = Some(
            serde_json::from_value(
                json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:40.000000Z"}),
            )
            .unwrap(),
        );
        let full = event("Unschedulable", 41, "no node has room");
        let words = |pod: &Pod, events: &[Event]| -> Vec<(i64, String)> {
            let told = tell(&PodFacts {
                uid: "2a7f0c1e-8b5d-4f60-9d53-3c4f7b1a9e02",
                pod: Some(pod),
                events: Some(events),
                live: &Value::Null,
            });
            let steps = told["steps"].as_array().unwrap().iter().skip(1);
            steps
                .map(|step| {
                    let at = step["at"].as_i64().unwrap() - 1_767_225_600_000;
                    (at / 1000, step["words"].as_str().unwrap().to_owned())
                })
                .collect()
        };
        let details = event(
            "Unschedulable",
            3,
            "no room: 2 nodes. node n1: full; node n2: full",
        );
        let once = [(3, "no room: 2 nodes".to_owned())];
        assert_eq!(
            words(&waits("no room: 2 nodes.\nnode n1: full"), &[details]),
            once
        );
        let missing = (1, "Queue 'product' does not exist".to_owned());
        // The event of the present reason is missing, or it is there as well.
        let now = waits("no node has room");
        assert_eq!(
            words(&now, std::slice::from_ref(&queue)),
            [missing.clone(), (40, "no node has room".to_owned())]
        );
        assert_eq!(
            words(&now, &[queue.clone(), full]),
            [missing.clone(), (41, "no node has room".to_owned())]
        );
        let same = waits("Queue 'product' does not exist");
        assert_eq!(words(&same, &[queue]), [missing]);
        assert_eq!(words(&now, &[]), [(0, "no node has room".to_owned())]);
    }

    #[test]
    fn a_pod_under_a_weaker_fence_was_not_refused() {
        for (reason, kind) in [
            ("Hard", "hard"),
            ("Guarded", "guarded"),
            ("Watched", "watched"),
            ("NotReadBack", "unverified"),
            ("GrantRefused", "refused"),
        ] {
            let pod = pod(json!({"conditions": [
                {"type": "aliquot.dev/IsolationVerified", "status": "False", "reason": reason,
                    "message": "a line", "lastTransitionTime": "2026-01-01T00:00:12Z"},
            ]}));
            let told = tell(&PodFacts {
                uid: "2a7f0c1e-8b5d-4f60-9d53-3c4f7b1a9e02",
                pod: Some(&pod),
                events: None,
                live: &Value::Null,
            });
            assert_eq!(kinds(&told), ["asked", kind]);
        }
    }

    #[test]
    fn of_a_pod_that_is_gone_its_events_are_told_and_without_them_that_is_said() {
        let events = [
            event("Scheduled", 9, "bound"),
            event("Evict", 12, "for another"),
        ];
        let known = PodFacts {
            uid: "mirror",
            pod: None,
            events: Some(&events),
            live: &Value::Null,
        };
        let told = tell(&known);
        assert_eq!(kinds(&told), ["bound", "evicted"]);
        assert_eq!(
            (&told["gone"], &told["trace"]),
            (&json!(true), &Value::Null)
        );
        let told = tell(&PodFacts {
            events: None,
            pod: Some(&pod(json!({"phase": "Pending"}))),
            ..known
        });
        assert_eq!(
            (kinds(&told), &told["events"]),
            (vec!["asked"], &json!(false))
        );
    }
}
