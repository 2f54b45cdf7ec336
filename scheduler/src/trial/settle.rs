//! One decision after another, each with the outcome of the one before.

use scheduler_core::ids::PodUid;
use scheduler_core::model::Phase;
use scheduler_core::units::{Duration, Time};
use scheduler_core::{Action, Core, Decision, Event, Outcome, OutcomeResult, PodReason};

/// Suffix of the UID of a pod that was evicted here and recreated.
pub const RECREATED: &str = "-recreated";
/// Decisions in a row, each with what came of the last.
const ROUNDS: usize = 64;
/// The trial ends after this time without an event. By then a search with backoff has reached its
/// largest number of steps.
pub const QUIET: Duration = Duration::seconds(180);

/// The outcome of deciding again and again.
#[derive(Debug)]
pub struct TrialResult {
    /// The decisions, one after another, without those that only the passing of time caused and
    /// that had no actions.
    pub rounds: Vec<Decision>,
    /// The time from the first decision to the last one with an action.
    pub took: Duration,
    /// A search for room is not at its end yet.
    pub searching: bool,
}

impl TrialResult {
    /// Returns the sentences about time.
    pub fn of_time(&self) -> Vec<String> {
        let took = (self.took.0 > 0)
            .then(|| format!("The last of it is decided after {}.", seconds(self.took)));
        let searching = self.searching.then(|| {
            format!(
                "A search for room was not at its end when nothing had happened for {}.",
                seconds(QUIET)
            )
        });
        took.into_iter().chain(searching).collect()
    }
}

/// Returns a duration in whole seconds, rounded up, for messages.
pub fn seconds(time: Duration) -> String {
    format!("{} s", time.0.div_ceil(1000))
}

/// Decides until nothing more happens: the API server accepts every binding, and every evicted pod
/// leaves at once and is recreated by its controller. When nothing is left to do, time advances to
/// the scheduler's next attempt (the end of a search backoff or of a minimum run time), until
/// nothing happens for `quiet`. `after` is called with each decision
/// before it is carried out.
pub fn settle(
    core: &mut Core,
    now: &mut Time,
    quiet: Duration,
    mut after: impl FnMut(&Core, &Decision),
) -> TrialResult {
    let begin = *now;
    let (mut last, mut waited) = (begin, false);
    let mut rounds: Vec<Decision> = Vec::new();
    for _ in 0..ROUNDS {
        let decision = core.decide(*now);
        after(core, &decision);
        carry_out(core, *now, &decision);
        if !decision.actions.is_empty() {
            last = *now;
        }
        let over = decision.actions.is_empty() && !decision.cut_short;
        let next = next(&decision, *now, last.after(quiet));
        let said = rounds.last().is_none_or(|before| {
            !over || !decision.reasons.is_empty() || before.promises != decision.promises
        });
        if said || !waited {
            rounds.push(decision);
        }
        waited = next.is_some();
        match next {
            Some(at) => *now = at,
            None if over => break,
            None => {}
        }
    }
    let cut_short = rounds.last().is_some_and(|last| last.cut_short);
    TrialResult {
        rounds,
        took: Duration(last.0 - begin.0),
        searching: cut_short || core.is_searching(),
    }
}

/// Decides until a decision does something, or nothing happens for [`QUIET`]; with how
/// much later than now that is.
pub fn decide_in_time(core: &mut Core, now: &mut Time) -> (Duration, Decision) {
    let begin = *now;
    let mut decision = core.decide(*now);
    for _ in 0..ROUNDS {
        if !decision.actions.is_empty() {
            break;
        }
        match next(&decision, *now, begin.after(QUIET)) {
            Some(at) => *now = at,
            None if decision.cut_short => {}
            None => break,
        }
        let said = std::mem::take(&mut decision.reasons);
        decision = core.decide(*now);
        // Only changes are reported again.
        let again = |old: &PodReason| decision.reasons.iter().any(|new| new.pod == old.pod);
        let still: Vec<PodReason> = said.into_iter().filter(|old| !again(old)).collect();
        decision.reasons.extend(still);
    }
    (Duration(now.0 - begin.0), decision)
}

/// The scheduler's next attempt by itself, if nothing happens before.
fn next(decision: &Decision, now: Time, until: Time) -> Option<Time> {
    let idle = decision.actions.is_empty() && !decision.cut_short;
    let again = decision.wake_at.filter(|_| idle);
    again.filter(|at| *at > now && *at <= until)
}

/// Carries out all actions of a decision.
pub(crate) fn carry_out(core: &mut Core, now: Time, decision: &Decision) {
    let mut evicted = Vec::new();
    for action in &decision.actions {
        core.apply(Event::Outcome(Outcome {
            decision: action.decision(),
            result: OutcomeResult::Confirmed,
        }));
        if let Action::Evict(evict) = action {
            evicted.push(evict.pod.clone());
        }
    }
    evicted.sort_unstable();
    for uid in evicted {
        let Some(mut pod) = core.pod(&uid) else {
            continue;
        };
        core.apply(Event::PodGone(pod.uid.clone()));
        // Those that are made for the new one want the same.
        free_claims(core, &pod);
        pod.uid = PodUid::new(format!("{}{RECREATED}", pod.uid));
        pod.phase = Phase::Pending;
        pod.created = now;
        core.apply(Event::Pod(Box::new(pod)));
    }
}

/// The claims that were made for a pod are deleted with it.
pub(crate) fn free_claims(core: &mut Core, pod: &scheduler_core::model::Pod) {
    for claim in pod.devices.iter().filter(|claim| claim.own) {
        core.apply(Event::Freed(claim.uid.clone()));
    }
}

/// Whether a pod has a place, or will have one as soon as the leaving pods there have ended.
pub fn is_placed(rounds: &[Decision], uid: &PodUid) -> bool {
    let bound = |decision: &Decision| {
        let binds = |action: &Action| matches!(action, Action::Bind(bind) if bind.pod == *uid);
        decision.actions.iter().any(binds)
    };
    let promised = rounds
        .last()
        .is_some_and(|last| last.promises.iter().any(|promise| promise.pod == *uid));
    promised || rounds.iter().any(bound)
}
