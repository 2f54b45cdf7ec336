//! What answers leave behind.

use super::*;
use crate::action::Action;
use crate::event::Event;
use crate::ids::PodUid;
use crate::model::{Phase, Pod};
use crate::{Core, text};

fn core() -> (Core, Pod) {
    let mut core = Core::new(Config::verified());
    let cluster = "node n1 cpu=4000 memory=8589934592 pods=10 gpus=1 managed\n\
        cards n1 default=mps\n  card GPU-1 product=T4 total=15360\n\
        queue default-queue\npod a gpu-memory.main=2000\n";
    let mut pods = Vec::new();
    for event in text::read(cluster).expect("a cluster") {
        if let Event::Pod(pod) = &event {
            pods.push(Pod::clone(pod));
        }
        assert_eq!(core.apply(event), Vec::new());
    }
    (core, pods.remove(0))
}

/// In whichever order the two facts come, nothing is kept of a binding afterwards.
#[test]
fn ten_thousand_bindings_that_were_answered_and_seen_leave_nothing_open() {
    let (mut core, mut pod) = core();
    for round in 0..10_000_u64 {
        let decision = core.decide(Time(round));
        let [Action::Bind(bind)] = decision.actions.as_slice() else {
            panic!("round {round}: {decision:?}");
        };
        let answer = Event::Outcome(Outcome {
            decision: bind.decision,
            result: OutcomeResult::Confirmed,
        });
        pod.phase = Phase::Bound(bind.placement());
        let seen = Event::Pod(Box::new(pod.clone()));
        let [first, second] = if round % 2 == 0 {
            [answer, seen]
        } else {
            [seen, answer]
        };
        assert_eq!(core.apply(first), Vec::new());
        assert_eq!(core.open_decisions(), 1);
        assert_eq!(core.apply(second), Vec::new());
        assert_eq!(core.open_decisions(), 0, "round {round}");
        core.apply(Event::PodGone(pod.uid.clone()));
        pod.uid = PodUid::new(format!("a{round}"));
        pod.phase = Phase::Pending;
        core.apply(Event::Pod(Box::new(pod.clone())));
    }
}

/// Between its answer and the pod's update, the snapshot contains a binding with all that is
/// known of it.
#[test]
fn an_answered_binding_is_rebuilt_as_answered() {
    let (mut core, pod) = core();
    let decision = core.decide(Time(1));
    let [Action::Bind(bind)] = decision.actions.as_slice() else {
        panic!("{decision:?}");
    };
    core.apply(Event::Outcome(Outcome {
        decision: bind.decision,
        result: OutcomeResult::Confirmed,
    }));
    let mut rebuilt = Core::new(Config::verified());
    for event in core.snapshot() {
        assert_eq!(rebuilt.apply(event), Vec::new());
    }
    let mut bound = pod;
    bound.phase = Phase::Bound(bind.placement());
    for core in [&mut core, &mut rebuilt] {
        assert_eq!(core.open_decisions(), 1);
        core.apply(Event::Pod(Box::new(bound.clone())));
        assert_eq!(core.open_decisions(), 0);
    }
}
