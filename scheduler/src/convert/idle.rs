//! Agents' reports on pods without work → events, and the pod condition that warns of the queue's rule.
//!
//! A pod is idle while all its containers with shares are idle. The core computes when a pod gives way
//! ([`IdlePod`]). Ten minutes before, and again when the time has come, the pod gets a condition and an
//! event. The condition becomes false as soon as the pod works.

use super::owed::{OwedConditions, PodCondition};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use proto::names::condition::IDLE;
use proto::names::queue::IDLE_AFTER;
use proto::telemetry::{NodeState, Share as HeldShare};
use scheduler_core::ids::PodUid;
use scheduler_core::units::Time;
use scheduler_core::{Activity, Event, IdlePod};
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds between the warning and the time from which a pod gives way; half of the rule's time
/// where that is less.
const WARNING: u64 = 10 * 60_000;
/// An agent that restarts counts from zero. A reported beginning that is more than this many
/// milliseconds after the known one means a restart; a smaller difference is due to whole minutes.
const ROUNDING: u64 = 90_000;

/// A pod that an agent says is idle.
#[derive(Debug)]
struct Told {
    node: String,
    namespace: String,
    name: String,
    since: Time,
}

/// The idle pods, and their conditions.
#[derive(Debug)]
pub(super) struct IdlePods {
    told: BTreeMap<String, Told>,
    conditions: OwedConditions,
}

impl Default for IdlePods {
    fn default() -> Self {
        Self {
            told: BTreeMap::new(),
            conditions: OwedConditions::of(IDLE),
        }
    }
}

impl IdlePods {
    /// Reads an agent's report on the pods of its node. `is_here` is true for the UIDs of these pods.
    pub(super) fn read(
        &mut self,
        state: &NodeState,
        now: Time,
        is_here: impl Fn(&str) -> bool,
    ) -> Vec<Event> {
        let mut by_pod: BTreeMap<&str, Vec<&HeldShare>> = BTreeMap::new();
        for share in &state.shares {
            if is_here(&share.pod_uid) {
                by_pod.entry(&share.pod_uid).or_default().push(share);
            }
        }
        // Nothing is known of a pod that the report no longer names.
        let mut events =
            self.forget_word(|uid, told| told.node == state.node && !by_pod.contains_key(uid));
        for (uid, shares) in by_pod {
            let minutes = shares.iter().map(|share| {
                let idle = share.idle_minutes.filter(|minutes| *minutes > 0);
                idle.filter(|_| share.phase == "Running")
            });
            let minutes = minutes
                .reduce(|one, other| Some(one?.min(other?)))
                .flatten();
            let Some((minutes, first)) = minutes.zip(shares.first()) else {
                events.extend(self.works(uid, shares.first().copied()));
                continue;
            };
            let since = Time(now.0.saturating_sub(u64::from(minutes) * 60_000));
            let known = self.told.get(uid).map(|told| told.since);
            if known.is_some_and(|known| since.0 <= known.0.saturating_add(ROUNDING)) {
                continue;
            }
            let told = Told {
                node: state.node.clone(),
                namespace: first.pod_namespace.clone(),
                name: first.pod_name.clone(),
                since,
            };
            self.told.insert(uid.to_owned(), told);
            events.push(activity(uid, Some(since)));
        }
        events
    }

    /// Records that the pod works, or that nothing is known of it. `share` is a share of it, if its agent
    /// named one.
    fn works(&mut self, uid: &str, share: Option<&HeldShare>) -> Option<Event> {
        let wanted = self.conditions.wanted(uid).filter(|was| was.holds);
        if wanted.is_some() {
            self.take_back(uid);
        } else if let Some(share) = share.filter(|_| self.conditions.shows_true(uid)) {
            self.conditions
                .want(works(uid, &share.pod_namespace, &share.pod_name));
        }
        self.told.remove(uid).map(|_| activity(uid, None))
    }

    /// Forgets the pods of a node whose agent is disconnected: nothing is known of them.
    pub(super) fn agent_silent(&mut self, node: &str) -> Vec<Event> {
        self.forget_word(|_, told| told.node == node)
    }

    /// Forgets the reports on some pods, which then count as working.
    fn forget_word(&mut self, of: impl Fn(&str, &Told) -> bool) -> Vec<Event> {
        let told = self.told.iter().filter(|(uid, told)| of(uid, told));
        let uids: Vec<String> = told.map(|(uid, _)| uid.clone()).collect();
        uids.iter()
            .filter_map(|uid| self.works(uid, None))
            .collect()
    }

    /// Takes in the condition that the watch shows on a pod.
    pub(super) fn show(&mut self, uid: &str, pod: &Pod) {
        self.conditions.show(uid, pod);
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.told.remove(uid);
        self.conditions.forget(uid);
    }

    pub(super) fn conditions(&mut self) -> &mut OwedConditions {
        &mut self.conditions
    }

    /// Sets the conditions of idle pods by the times at which they give way. Returns when to call it again
    /// if nothing happens before.
    pub(super) fn warn(&mut self, pods: &[IdlePod], now: Time) -> Option<Time> {
        let mut next = None;
        let mut due: BTreeSet<&str> = BTreeSet::new();
        for pod in pods {
            let uid = pod.pod.as_str();
            let Some(told) = self.told.get(uid) else {
                continue;
            };
            let length = pod.gives_way.0.saturating_sub(pod.since.0);
            let warned = pod.gives_way.0.saturating_sub(WARNING.min(length / 2));
            let changes = [warned, pod.gives_way.0].into_iter().find(|at| *at > now.0);
            next = next.into_iter().chain(changes.map(Time)).min();
            if now.0 < warned {
                continue;
            }
            due.insert(uid);
            let condition = if now < pod.gives_way {
                said(uid, told, pod, "GivesWaySoon", "From")
            } else {
                said(uid, told, pod, "GivesWay", "Since")
            };
            self.conditions.want(condition);
        }
        // The queues of the others have no rule any more.
        let others = self.told.keys().filter(|uid| !due.contains(uid.as_str()));
        for uid in others.cloned().collect::<Vec<_>>() {
            self.take_back(&uid);
        }
        next
    }

    fn take_back(&mut self, uid: &str) {
        let wanted = self.conditions.wanted(uid).filter(|was| was.holds);
        if let Some(condition) = wanted.map(|was| works(uid, &was.namespace, &was.name)) {
            self.conditions.want(condition);
        }
    }
}

fn activity(uid: &str, idle_since: Option<Time>) -> Event {
    Event::Activity(Activity {
        pod: PodUid::new(uid),
        idle_since,
    })
}

fn said(uid: &str, told: &Told, pod: &IdlePod, because: &'static str, from: &str) -> PodCondition {
    let message = format!(
        "no work on its GPU since {}. {from} {} it gives way to pods that wait and fit in its place, by {IDLE_AFTER} of queue {}",
        clock(pod.since),
        clock(pod.gives_way),
        pod.queue
    );
    PodCondition {
        uid: uid.to_owned(),
        namespace: told.namespace.clone(),
        name: told.name.clone(),
        holds: true,
        because,
        event: Some(message.clone()),
        message,
    }
}

fn works(uid: &str, namespace: &str, name: &str) -> PodCondition {
    PodCondition {
        uid: uid.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        holds: false,
        because: "Works",
        message: "it works, or no rule of its queue applies to it".to_owned(),
        event: None,
    }
}

/// Returns the time to the second, in UTC.
fn clock(at: Time) -> Timestamp {
    let seconds = i64::try_from(at.0 / 1000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::ids::QueueName;
    use serde_json::json;

    const MINUTE: u64 = 60_000;

    fn share(container: &str, idle_minutes: Option<u32>) -> HeldShare {
        HeldShare {
            pod_uid: "u".into(),
            pod_namespace: "ns".into(),
            pod_name: "p".into(),
            container: container.into(),
            phase: "Running".into(),
            idle_minutes,
            ..HeldShare::default()
        }
    }

    fn state(shares: Vec<HeldShare>) -> NodeState {
        NodeState {
            node: "n1".into(),
            shares,
            ..NodeState::default()
        }
    }

    fn read(all: &mut IdlePods, minutes: &[Option<u32>], now: u64) -> Vec<Option<Time>> {
        let names = ["a", "b"];
        let shares = minutes.iter().zip(names);
        let shares = shares.map(|(minutes, name)| share(name, *minutes));
        let events = all.read(&state(shares.collect()), Time(now * MINUTE), |_| true);
        let since = |event| match event {
            Event::Activity(said) => said.idle_since,
            other => panic!("{other:?}"),
        };
        events.into_iter().map(since).collect()
    }

    #[test]
    fn a_pod_is_idle_while_all_its_containers_are_and_changes_alone_are_told() {
        let mut all = IdlePods::default();
        let at = |minutes: u64| vec![Some(Time(minutes * MINUTE))];
        assert_eq!(read(&mut all, &[Some(0)], 100), []);
        assert_eq!(read(&mut all, &[Some(7), None], 100), []);
        assert_eq!(read(&mut all, &[Some(7), Some(3)], 100), at(97));
        assert_eq!(read(&mut all, &[Some(8), Some(4)], 101), []);
        // The agent started again.
        assert_eq!(read(&mut all, &[Some(1), Some(1)], 110), at(109));
        assert_eq!(read(&mut all, &[Some(2), Some(0)], 111), [None]);
        assert_eq!(read(&mut all, &[Some(1)], 120), at(119));
        assert_eq!(read(&mut all, &[None], 121), [None]);
        assert_eq!(read(&mut all, &[Some(1)], 130), at(129));
        assert_eq!(all.agent_silent("n2").len(), 0);
        assert_eq!(all.agent_silent("n1").len(), 1);
        // The report no longer names the pod.
        assert_eq!(read(&mut all, &[Some(1)], 140), at(139));
        assert_eq!(read(&mut all, &[], 141), [None]);
        assert_eq!(read(&mut all, &[], 142), []);
        let other = all.read(&state(vec![share("a", Some(9))]), Time(0), |_| false);
        assert_eq!(other, []);
    }

    #[test]
    fn the_warning_comes_ten_minutes_before_and_goes_with_the_first_work() {
        let mut all = IdlePods::default();
        read(&mut all, &[Some(1)], 1);
        let rule = |minutes: u64| IdlePod {
            pod: PodUid::new("u"),
            since: Time(0),
            gives_way: Time(minutes * MINUTE),
            queue: QueueName::new("team"),
        };
        let pods = [rule(30)];
        let told = |all: &mut IdlePods| {
            let owed = all.conditions().owed(Time(u64::MAX / 2));
            owed.into_iter()
                .next()
                .map(|one| (one.condition.because, one.condition.message))
        };
        assert_eq!(all.warn(&pods, Time(19 * MINUTE)), Some(Time(20 * MINUTE)));
        assert_eq!(told(&mut all), None);
        assert_eq!(all.warn(&pods, Time(20 * MINUTE)), Some(Time(30 * MINUTE)));
        let (because, message) = told(&mut all).unwrap();
        assert_eq!(because, "GivesWaySoon");
        assert_eq!(
            message,
            "no work on its GPU since 1970-01-01T00:00:00Z. From 1970-01-01T00:30:00Z it gives way to pods that wait and fit in its place, by aliquot.dev/idle-after of queue team"
        );
        assert_eq!(all.warn(&pods, Time(30 * MINUTE)), None);
        assert_eq!(told(&mut all).unwrap().0, "GivesWay");
        read(&mut all, &[Some(0)], 31);
        assert_eq!(told(&mut all).unwrap().0, "Works");
        // A rule of ten minutes warns after five.
        let mut all = IdlePods::default();
        read(&mut all, &[Some(1)], 1);
        assert_eq!(all.warn(&[rule(10)], Time(MINUTE)), Some(Time(5 * MINUTE)));
        // The rule is gone.
        all.warn(&[rule(10)], Time(6 * MINUTE));
        all.warn(&[], Time(7 * MINUTE));
        assert_eq!(told(&mut all).unwrap().0, "Works");
    }

    #[test]
    fn a_condition_of_an_earlier_process_goes_once_its_pod_is_heard_to_work() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u", "namespace": "ns",
            "name": "p"}, "status": {"conditions": [{"type": IDLE, "status": "True",
            "reason": "GivesWay", "message": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap();
        let mut all = IdlePods::default();
        all.show("u", &pod);
        assert_eq!(all.conditions().due(), None, "no agent has spoken");
        read(&mut all, &[Some(0)], 31);
        let owed = all.conditions().owed(Time(0)).pop().unwrap().condition;
        assert_eq!((owed.because, owed.name.as_str()), ("Works", "p"));
    }
}
