//! What agents read back from the fences → the pod condition `IsolationVerified`.

use super::owed::{OwedConditions, PodCondition};
use api::isolation::{self, Held};
use k8s_openapi::api::core::v1::Pod;
use proto::names::condition::ISOLATION_VERIFIED;
use proto::telemetry::{NodeState, Refusal, Share as HeldShare};
use scheduler_core::model::Mode;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a message: what is longer is cut here, so that what is shown is what was written.
const LONGEST: usize = 8_000;
/// The end of the message of a pod whose grant was refused for good.
const ADVICE: &str =
    ". A pod that no controller creates again is left as it is: delete it and create it again";

/// The conditions of all pods, by their agents' reports.
#[derive(Debug)]
pub(super) struct IsolationConditions {
    conditions: OwedConditions,
    /// Pods whose grant was refused for good. Limits that are read back are ignored then.
    refused: BTreeSet<String>,
}

impl Default for IsolationConditions {
    fn default() -> Self {
        Self {
            conditions: OwedConditions::of(ISOLATION_VERIFIED),
            refused: BTreeSet::new(),
        }
    }
}

impl IsolationConditions {
    /// Takes in what the agent says of a pod.
    fn want(&mut self, wanted: PodCondition) {
        if self.refused.contains(&wanted.uid) && wanted.because != isolation::GRANT_REFUSED {
            return;
        }
        self.conditions.want(wanted);
    }

    /// Takes in that the agent refuses the grant for good.
    pub(super) fn refuse(&mut self, refusal: &Refusal) {
        self.refused.insert(refusal.pod_uid.clone());
        let message = format!("{}{ADVICE}", refusal.reason.trim_end_matches('.'));
        self.want(PodCondition {
            uid: refusal.pod_uid.clone(),
            namespace: refusal.pod_namespace.clone(),
            name: refusal.pod_name.clone(),
            holds: false,
            because: isolation::GRANT_REFUSED,
            message: whole(message),
            event: None,
        });
    }

    /// Takes in the condition that the watch shows on a pod. A pod whose grant was refused for good
    /// says so itself: the agent repeats its refusal for two minutes only, and a process that begins
    /// later learns of it here.
    pub(super) fn show(&mut self, uid: &str, pod: &Pod) {
        if refusal_on(pod).is_some() {
            self.refused.insert(uid.to_owned());
        }
        self.conditions.show(uid, pod);
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.refused.remove(uid);
        self.conditions.forget(uid);
    }

    pub(super) fn conditions(&mut self) -> &mut OwedConditions {
        &mut self.conditions
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
        for (uid, shares) in by_pod {
            let before = self.conditions.wanted(uid);
            let known = shares.iter().all(|share| !share.fence.is_empty());
            if known || before.is_some() {
                // The figures in a complaint change all the time, so the first one is kept until it is over.
                let first = before.and_then(|before| before.event.clone());
                self.want(isolation_of(&shares, first));
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

/// Returns the condition of a pod with these shares. `first` is the complaint that was written before.
fn isolation_of(shares: &[&HeldShare], first: Option<String>) -> PodCondition {
    let one = shares.first();
    let text =
        |of: fn(&HeldShare) -> &String| one.map(|share| of(share).clone()).unwrap_or_default();
    let lines: Vec<String> = shares.iter().map(|share| held(share).line()).collect();
    let because = isolation::reason(shares.iter().map(|share| held(share)));
    let complains = shares.iter().find(|share| !share.complaint.is_empty());
    let complaint = complains.map(|share| {
        first.unwrap_or_else(|| format!("container {} {}", share.container, share.complaint))
    });
    let message = lines.into_iter().chain(complaint.clone());
    PodCondition {
        uid: text(|share| &share.pod_uid),
        namespace: text(|share| &share.pod_namespace),
        name: text(|share| &share.pod_name),
        holds: isolation::is_verified(because),
        because,
        message: whole(message.collect::<Vec<_>>().join("\n")),
        event: complaint,
    }
}

/// Cuts a message that is too long.
fn whole(mut text: String) -> String {
    let end = text.floor_char_boundary(LONGEST);
    text.truncate(end);
    text
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
    use jiff::Timestamp;
    use scheduler_core::units::Time;
    use serde_json::json;

    fn said(because: &'static str) -> PodCondition {
        PodCondition {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "p".into(),
            holds: isolation::is_verified(because),
            because,
            message: "a line".into(),
            event: None,
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
        let owed = all.conditions.owed(Time(0));
        assert_eq!(owed.len(), 1);
        assert_eq!(owed[0].condition.because, isolation::GRANT_REFUSED);
    }

    #[test]
    fn a_refusal_that_a_pod_shows_is_known_to_the_next_process() {
        let mut all = IsolationConditions::default();
        let pod = shows(false, isolation::GRANT_REFUSED, &format!("no{ADVICE}"));
        all.show("u", &pod);
        all.want(said("Hard"));
        assert!(all.conditions.owed(Time(0)).is_empty());
        assert_eq!(refusal_on(&pod), Some("no"));
        assert_eq!(refusal_on(&shows(false, "Guarded", "no")), None);
    }

    #[test]
    fn a_condition_is_owed_until_the_watch_shows_it_and_again_when_it_shows_another() {
        let mut all = IsolationConditions::default();
        all.want(said("NotReadBack"));
        // At once for who asks first, as a replica that did not lead before; then ever later.
        for at in [900_000, 905_000, 915_000, 935_000, 975_000] {
            assert_eq!(all.conditions.owed(Time(at)).len(), 1, "{at}");
            assert_eq!(all.conditions.owed(Time(at)).len(), 0, "{at}");
        }
        all.show("u", &shows(false, "NotReadBack", "a line"));
        assert_eq!(
            (all.conditions.due(), all.conditions.owed(Time(u64::MAX))),
            (None, vec![])
        );
        // Another writer, or an earlier leader, has changed the condition.
        all.show("u", &shows(true, "Hard", "a line"));
        assert_eq!(all.conditions.owed(Time(0)).len(), 1);
        all.show("u", &shows(false, "NotReadBack", "a line"));
        assert_eq!(all.conditions.due(), None);
        all.forget("u");
        assert!(all.conditions.is_empty() && all.refused.is_empty());
    }

    #[test]
    fn a_change_is_owed_at_once_and_its_time_is_that_of_the_status() {
        let mut all = IsolationConditions::default();
        all.show("u", &shows(true, "Hard", "an older line"));
        assert_eq!(all.conditions.due(), None, "no agent has spoken");
        all.want(said("Hard"));
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(
            all.conditions.owed(Time(7)).pop().unwrap().since,
            Some(since)
        );
        // The first is not shown yet.
        all.want(said("NotReadBack"));
        let owed = all.conditions.owed(Time(8)).pop().unwrap();
        assert_eq!((owed.since, owed.condition.because), (None, "NotReadBack"));
    }

    #[test]
    fn a_long_message_is_cut_where_it_is_made() {
        let share = HeldShare {
            pod_uid: "u".into(),
            fence: "ServerLimit".into(),
            complaint: "é".repeat(LONGEST),
            ..HeldShare::default()
        };
        let long = isolation_of(&[&share], None);
        assert!(long.message.len() <= LONGEST);
        let shown = shows(long.holds, long.because, &long.message);
        let mut all = IsolationConditions::default();
        all.want(long);
        all.show("u", &shown);
        assert_eq!(all.conditions.due(), None);
    }
}
