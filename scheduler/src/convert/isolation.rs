//! What agents read back from the fences → the pod condition `IsolationVerified`.

use super::shown::Shown;
use api::isolation::{self, Held};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use proto::names::condition::ISOLATION_VERIFIED;
use proto::telemetry::{NodeState, Refusal, Share as HeldShare};
use scheduler_core::model::Mode;
use scheduler_core::units::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a message: what is longer is cut here, so that what is shown is what was written.
const LONGEST: usize = 8_000;
/// Milliseconds before a write that is not seen is repeated, doubled each time.
const PAUSE: u64 = 5_000;
/// So often: up to 80 s.
const DOUBLED: u32 = 4;

/// The end of the message of a pod whose grant was refused for good.
const ADVICE: &str =
    ". A pod that no controller creates again is left as it is: delete it and create it again";

/// What an agent says about the fence around a pod's share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isolation {
    /// `metadata.uid`.
    pub pod_uid: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// The word for the weakest fence of its containers, or why there is none.
    pub because: &'static str,
    /// One line per container.
    pub message: String,
    /// What was done about a container of it, or is held against one: the first of it, until
    /// all is well again.
    pub complaint: Option<String>,
}

impl Isolation {
    /// Whether the driver or the kernel holds every limit.
    pub fn is_verified(&self) -> bool {
        isolation::is_verified(self.because)
    }

    /// The condition's message.
    pub(crate) fn text(&self) -> String {
        let mut text = self.message.clone();
        if let Some(complaint) = &self.complaint {
            text.push('\n');
            text.push_str(complaint);
        }
        let end = text.floor_char_boundary(LONGEST);
        text.truncate(end);
        text
    }
}

/// A condition that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwedIsolation {
    /// What it is to say.
    pub isolation: Isolation,
    /// Since when its status is what it is; `None`: from now on.
    pub since: Option<Timestamp>,
}

/// The conditions of all pods: as agents say, and as the watch shows them. Whatever differs is
/// written, by the replica that leads, until the watch shows it.
#[derive(Debug, Default)]
pub(super) struct IsolationConditions {
    pods: BTreeMap<String, Entry>,
    /// Pods whose condition is another than it is to be, by the time of the next write.
    owed: BTreeSet<(Time, String)>,
}

#[derive(Debug, Default)]
struct Entry {
    /// What the agent says.
    wanted: Option<Isolation>,
    /// True if the agent has refused the grant for good. Limits that it reads back are ignored then.
    refused: bool,
    /// What the watch shows.
    shown: Option<Shown>,
    /// When it is written next.
    next: Option<Time>,
    /// Writes since the agent said something else.
    writes: u32,
}

impl IsolationConditions {
    /// Takes in what the agent says of a pod.
    fn want(&mut self, wanted: Isolation) {
        let uid = wanted.pod_uid.clone();
        let entry = self.pods.entry(uid.clone()).or_default();
        if entry.refused && wanted.because != isolation::GRANT_REFUSED {
            return;
        }
        if entry.wanted.as_ref() != Some(&wanted) {
            entry.wanted = Some(wanted);
            entry.writes = 0;
            self.settle(&uid);
        }
    }

    /// Takes in that the agent refuses the grant for good.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        let uid = refusal.pod_uid.clone();
        self.pods.entry(uid).or_default().refused = true;
        self.want(Isolation {
            pod_uid: refusal.pod_uid.clone(),
            namespace: refusal.pod_namespace.clone(),
            name: refusal.pod_name.clone(),
            because: isolation::GRANT_REFUSED,
            message: format!("{}{ADVICE}", refusal.reason.trim_end_matches('.')),
            complaint: None,
        });
    }

    /// Takes in the condition that the watch shows on a pod. A pod whose grant was refused for good
    /// says so itself: the agent repeats its refusal for two minutes only, and a process that begins
    /// later learns of it here.
    pub(super) fn show(&mut self, uid: &str, pod: &Pod) {
        let shown = Shown::on(pod, ISOLATION_VERIFIED);
        if refusal_on(pod).is_some() {
            self.pods.entry(uid.to_owned()).or_default().refused = true;
        }
        if let Some(entry) = self.pods.get_mut(uid) {
            if entry.shown == shown {
                return;
            }
            entry.shown = shown;
        } else if shown.is_some() {
            let entry = Entry {
                shown,
                ..Entry::default()
            };
            self.pods.insert(uid.to_owned(), entry);
        }
        self.settle(uid);
    }

    pub(super) fn forget(&mut self, uid: &str) {
        if let Some(entry) = self.pods.remove(uid)
            && let Some(next) = entry.next
        {
            self.owed.remove(&(next, uid.to_owned()));
        }
    }

    /// Owed from now on, where what is shown is not what is wanted.
    fn settle(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let wanted = entry.wanted.as_ref();
        let differs = wanted.is_some_and(|wanted| {
            !entry
                .shown
                .is_some_and(|one| one.says(wanted.is_verified(), wanted.because, &wanted.text()))
        });
        // A write that is under way shows before it is repeated.
        let next = differs.then_some(match entry.next {
            Some(next) if entry.writes > 0 => next,
            _ => Time(0),
        });
        if next != entry.next {
            if let Some(old) = entry.next.take() {
                self.owed.remove(&(old, uid.to_owned()));
            }
            if let Some(next) = next {
                self.owed.insert((next, uid.to_owned()));
            }
            entry.next = next;
        }
        if !differs {
            entry.writes = 0;
        }
    }

    /// When the next one is to be written.
    pub(super) fn due(&self) -> Option<Time> {
        self.owed.first().map(|(at, _)| *at)
    }

    pub(super) fn owed(&mut self, now: Time) -> Vec<OwedIsolation> {
        let mut owed = Vec::new();
        while let Some((at, uid)) = self.owed.first().cloned()
            && at <= now
        {
            self.owed.remove(&(at, uid.clone()));
            let Some(entry) = self.pods.get_mut(&uid) else {
                continue;
            };
            let pause = PAUSE.saturating_mul(1 << entry.writes.min(DOUBLED));
            entry.writes = entry.writes.saturating_add(1);
            let next = Time(now.0.saturating_add(pause));
            entry.next = Some(next);
            self.owed.insert((next, uid));
            if let Some(isolation) = entry.wanted.clone() {
                let shown = entry.shown;
                let same = shown.filter(|one| one.holds == isolation.is_verified());
                owed.push(OwedIsolation {
                    isolation,
                    since: same.map(|one| one.since),
                });
            }
        }
        owed
    }

    /// Takes in what an agent says of pods that stand on its own node, as `is_here` says of a UID. Of a
    /// share whose fence is not known yet nothing is said that was not said before.
    pub(super) fn read(&mut self, state: &NodeState, is_here: impl Fn(&str) -> bool) {
        let mut by_pod: BTreeMap<&str, Vec<&HeldShare>> = BTreeMap::new();
        for share in &state.shares {
            let own = is_here(&share.pod_uid);
            if own && share.phase == "Running" && share.mode != Mode::Exclusive.as_str() {
                by_pod.entry(&share.pod_uid).or_default().push(share);
            }
        }
        for shares in by_pod.into_values() {
            let mut now = isolation_of(&shares);
            // Its figures change from look to look.
            let entry = self.pods.get(&now.pod_uid);
            let before = entry.and_then(|entry| entry.wanted.as_ref());
            if let Some(first) = before.and_then(|before| before.complaint.clone())
                && now.complaint.is_some()
            {
                now.complaint = Some(first);
            }
            let known = shares.iter().all(|share| !share.fence.is_empty());
            if known || before.is_some() {
                self.want(now);
            }
        }
    }
}

/// Returns why the grant of a pod was refused for good, as its condition says. `None`: it does not.
pub(super) fn refusal_on(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let one = conditions
        .iter()
        .find(|one| one.type_ == ISOLATION_VERIFIED)?;
    let refused = one.status == "False" && one.reason.as_deref() == Some(isolation::GRANT_REFUSED);
    let message = one.message.as_deref().filter(|_| refused)?;
    Some(message.strip_suffix(ADVICE).unwrap_or(message))
}

fn isolation_of(shares: &[&HeldShare]) -> Isolation {
    let first = shares.first();
    let text =
        |of: fn(&HeldShare) -> &String| first.map(|share| of(share).clone()).unwrap_or_default();
    let lines: Vec<String> = shares.iter().map(|share| held(share).line()).collect();
    Isolation {
        pod_uid: text(|share| &share.pod_uid),
        namespace: text(|share| &share.pod_namespace),
        name: text(|share| &share.pod_name),
        because: isolation::reason(shares.iter().map(|share| held(share))),
        message: lines.join("\n"),
        complaint: shares
            .iter()
            .find(|share| !share.complaint.is_empty())
            .map(|share| format!("container {} {}", share.container, share.complaint)),
    }
}

fn held(share: &HeldShare) -> Held<'_> {
    Held {
        container: &share.container,
        fence: &share.fence,
        backend: &share.limit_backend,
        granted: share.memory_mib,
        read_back: share.observed_limit_mib,
        reach: share.reach_mib,
        holders: usize::try_from(share.holders).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(because: &'static str) -> Isolation {
        Isolation {
            pod_uid: "u".into(),
            namespace: "ns".into(),
            name: "p".into(),
            because,
            message: "a line".into(),
            complaint: None,
        }
    }

    fn shows(holds: bool, because: &str, message: &str) -> Pod {
        let status = if holds { "True" } else { "False" };
        serde_json::from_value(json!({"metadata": {"uid": "u"}, "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": ISOLATION_VERIFIED, "status": status, "reason": because, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap()
    }

    #[test]
    fn what_a_node_refuses_is_not_verified_whatever_it_reads_back() {
        let mut all = IsolationConditions::default();
        all.refuse(&Refusal {
            pod_uid: "u".into(),
            reason: "the grant is for another node".into(),
            r#final: true,
            ..Refusal::default()
        });
        all.want(said("Hard"));
        let owed = all.owed(Time(0));
        assert_eq!(owed.len(), 1);
        assert_eq!(owed[0].isolation.because, isolation::GRANT_REFUSED);
    }

    #[test]
    fn a_refusal_that_a_pod_shows_is_known_to_the_next_process() {
        let mut all = IsolationConditions::default();
        let pod = shows(false, isolation::GRANT_REFUSED, &format!("no{ADVICE}"));
        all.show("u", &pod);
        all.want(said("Hard"));
        assert!(all.owed(Time(0)).is_empty());
        assert_eq!(refusal_on(&pod), Some("no"));
        assert_eq!(refusal_on(&shows(false, "Guarded", "no")), None);
    }

    #[test]
    fn a_condition_is_owed_until_the_watch_shows_it_and_again_when_it_shows_another() {
        let mut all = IsolationConditions::default();
        all.want(said("NotReadBack"));
        // At once for who asks first, as a replica that did not lead before; then ever later.
        for at in [900_000, 905_000, 915_000, 935_000, 975_000] {
            assert_eq!(all.owed(Time(at)).len(), 1, "{at}");
            assert_eq!(all.owed(Time(at)).len(), 0, "{at}");
        }
        all.show("u", &shows(false, "NotReadBack", "a line"));
        assert_eq!((all.due(), all.owed(Time(u64::MAX))), (None, vec![]));
        // Another writer, or an earlier leader, has changed the condition.
        all.show("u", &shows(true, "Hard", "a line"));
        assert_eq!(all.owed(Time(0)).len(), 1);
        all.show("u", &shows(false, "NotReadBack", "a line"));
        assert_eq!(all.due(), None);
        all.forget("u");
        assert!(all.pods.is_empty() && all.owed.is_empty());
    }

    #[test]
    fn a_change_is_owed_at_once_and_its_time_is_that_of_the_status() {
        let mut all = IsolationConditions::default();
        all.show("u", &shows(true, "Hard", "an older line"));
        assert_eq!(all.due(), None, "no agent has spoken");
        all.want(said("Hard"));
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(all.owed(Time(7)).pop().unwrap().since, Some(since));
        // The first is not shown yet.
        all.want(said("NotReadBack"));
        let owed = all.owed(Time(8)).pop().unwrap();
        assert_eq!((owed.since, owed.isolation.because), (None, "NotReadBack"));
    }

    #[test]
    fn a_long_message_is_cut_where_it_is_made() {
        let mut long = said("NotReadBack");
        long.complaint = Some("é".repeat(LONGEST));
        let text = long.text();
        assert!(text.len() <= LONGEST);
        let mut all = IsolationConditions::default();
        all.want(long);
        all.show("u", &shows(false, "NotReadBack", &text));
        assert_eq!(all.due(), None);
    }
}
