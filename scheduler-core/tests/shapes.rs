//! Shapes that one user may write, at sizes at which a cost that grows with the square shows.
//! Counted in what a decision does, not in time.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.

use scheduler_core::units::Time;
use scheduler_core::{Action, Config, Core, Event, Outcome, OutcomeResult, Step, text};
use std::fmt::Write as _;

fn core(lines: &str) -> Core {
    with(Config::default(), lines)
}

fn with(config: Config, lines: &str) -> Core {
    let mut core = Core::new(config);
    for event in text::read(lines).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core
}

/// A group that needs one pod and has 6,400 is placed over several decisions, so that it delays no
/// other job; in the meantime no pod is evicted for it, since there is room for all of it.
#[test]
fn a_large_group_that_grows_holds_up_nobody_and_evicts_nobody() {
    const PODS: usize = 6_400;
    let mut lines = String::from("queue q\nnode n-low cpu=64000 pods=110 gpus=8\n");
    for index in 0..8 {
        let _ = writeln!(
            lines,
            "pod low-{index} queue=q priority=10 gpus.main=1 on=n-low"
        );
    }
    for node in 0..PODS.div_ceil(8) {
        let _ = writeln!(lines, "node n{node:03} cpu=64000 pods=110 gpus=8");
    }
    lines.push_str("group default/grows queue=q priority=90\n  set default min=1\n");
    for index in 0..PODS {
        let _ = writeln!(lines, "pod g-{index:04} group=default/grows gpus.main=1");
    }
    let mut core = core(&lines);
    let mut bound = 0;
    let mut decisions = 0;
    loop {
        let decision = core.decide(Time(1_000));
        decisions += 1;
        let is_bind = |action: &Action| matches!(action, Action::Bind(_));
        assert!(decision.actions.iter().all(is_bind), "a pod is evicted");
        bound += decision.actions.len();
        if !decision.cut_short {
            break;
        }
        assert!(!decision.actions.is_empty(), "each goes on");
    }
    assert_eq!((bound, decisions), (PODS, 2));
}

/// One node more or less that is not ready does not change the reason of pods that wait for a GPU;
/// a node that lacks something else does.
#[test]
fn a_node_that_flaps_gives_no_new_reasons() {
    let mut lines = String::from("queue q\n");
    for node in 0..20 {
        let _ = writeln!(lines, "node n{node:02} cpu=64000 pods=110");
    }
    for index in 0..50 {
        let _ = writeln!(
            lines,
            "pod p-{index:02} queue=q gpus.main=3 cpu={}",
            100 + index % 5
        );
    }
    // In groups, of one pod and of more than there is room for, and shares.
    lines.push_str("node g0 cpu=64000 pods=110 managed gpus=2\ncards g0 default=mps\n");
    for card in 0..2 {
        let _ = writeln!(lines, "  card GPU-{card} index={card} total=1000");
    }
    for index in 0..10 {
        let _ = writeln!(
            lines,
            "group default/one-{index} queue=q\n  set default min=1\n\
             pod one-{index} group=default/one-{index} gpus.main=3\n\
             group default/gang-{index} queue=q\n  set default min=3\n\
             pod share-{index} queue=q gpu-memory.main=2000"
        );
        for pod in 0..3 {
            let _ = writeln!(
                lines,
                "pod gang-{index}-{pod} group=default/gang-{index} gpus.main=1"
            );
        }
    }
    let mut core = core(&lines);
    assert_eq!(core.decide(Time(1_000)).reasons.len(), 100);
    let mut reasons_after = |line: &str| {
        for event in text::read(line).unwrap() {
            core.apply(event);
        }
        core.decide(Time(1_000)).reasons.len()
    };
    let flaps = "node n00 cpu=64000 pods=110 not-ready=\"node(s) were not ready\"\n";
    assert_eq!(reasons_after(flaps), 0);
    assert_eq!(reasons_after("node n00 cpu=64000 pods=110\n"), 0);
    assert_eq!(
        reasons_after("node n20 cpu=64000 pods=110\n"),
        0,
        "one more of them"
    );
    assert_eq!(
        reasons_after("pod new queue=q gpus.main=3 cpu=100\n"),
        1,
        "who is new"
    );
    assert_eq!(
        reasons_after("node n21 cpu=10 pods=110\n"),
        51,
        "CPU is short, too"
    );
}

/// Thousands of different requests that fit nowhere get their reasons over several decisions, each
/// once; in the meantime pods that fit are placed.
#[test]
fn many_different_requests_hold_up_nobody() {
    const NODES: usize = 200;
    const REQUESTS: usize = 5_000;
    let mut lines = String::from("queue q\n");
    for node in 0..NODES {
        let _ = writeln!(lines, "node n{node:03} cpu=64000 pods=110");
    }
    for index in 0..REQUESTS {
        let _ = writeln!(
            lines,
            "pod p-{index:04} queue=q gpus.main=1 cpu={}",
            1 + index
        );
    }
    lines.push_str("pod fits queue=q priority=1 cpu=100\n");
    let mut core = core(&lines);
    let (mut told, mut bound, mut decisions) = (0, 0, 0);
    loop {
        let decision = core.decide(Time(1_000));
        decisions += 1;
        bound += decision.actions.len();
        assert!(
            decision
                .reasons
                .iter()
                .all(|reason| !reason.line.is_empty())
        );
        told += decision.reasons.len();
        if !decision.cut_short {
            break;
        }
        assert_eq!(bound, 1, "in the first");
        assert!(!decision.reasons.is_empty(), "each goes on");
    }
    assert_eq!((told, bound, decisions), (REQUESTS, 1, 3));
}

/// Groups of the same second whose objects are not made yet: pending groups are listed in one
/// order, whatever the order of events. A debug assertion compares.
#[test]
fn groups_that_are_announced_in_the_same_second_are_in_order() {
    let mut lines = String::from("queue q\nnode n cpu=64000 pods=110\n");
    for name in ["b", "c", "a"] {
        let _ = writeln!(
            lines,
            "group default/{name} queue=q created=5 uid=\"\"\n  set default min=1\n\
             pod {name}-0 group=default/{name} queue=q gpus.main=1"
        );
    }
    let mut core = core(&lines);
    assert_eq!(core.decide(Time(1_000)).reasons.len(), 3);
    for name in ["c", "b"] {
        let line = format!("pod {name}-0 group=default/{name} queue=q cpu=1 gpus.main=1\n");
        for event in text::read(&line).unwrap() {
            core.apply(event);
        }
        core.decide(Time(1_000));
    }
    assert_eq!(core.violations(), Vec::<String>::new());
}

/// Gangs whose rules cannot be met are tried over several decisions, once each; jobs behind them in
/// the queue have a place at the end, also those that need an eviction.
#[test]
fn gangs_that_look_at_many_nodes_in_vain_hold_up_nobody_for_long() {
    const NODES: usize = 600;
    let mut lines = String::from("queue q\nqueue other\n");
    for node in 0..NODES {
        let _ = writeln!(
            lines,
            "node n{node:03} cpu=64000 pods=110 label.host=n{node:03}"
        );
    }
    lines.push_str("node g cpu=1000 pods=110 gpus=1 label.host=g\n");
    lines.push_str("pod low queue=other priority=10 gpus.main=1 on=g\n");
    // Each wants one host more than there are.
    for gang in 0..4 {
        let _ = writeln!(
            lines,
            "group default/g{gang} queue=q priority=90 created={gang}"
        );
        let _ = writeln!(lines, "  set default min={}", NODES + 2);
        for pod in 0..NODES + 2 {
            let _ = writeln!(
                lines,
                "pod g{gang}-{pod:03} group=default/g{gang} cpu=1 label.gang=g{gang}\n  away host ns=default labels=\"gang in g{gang}\""
            );
        }
    }
    lines.push_str("pod plain queue=q priority=50 created=9 cpu=1\n");
    lines.push_str("pod high queue=other priority=90 created=9 gpus.main=1\n");
    let mut core = core(&lines);
    let (mut bound, mut evicted, mut decisions) = (Vec::new(), Vec::new(), 0);
    loop {
        let decision = core.decide(Time(1_000));
        decisions += 1;
        for action in &decision.actions {
            match action {
                Action::Bind(bind) => bound.push(bind.pod.to_string()),
                Action::Evict(evict) => evicted.push(evict.pod.to_string()),
            }
            core.apply(Event::Outcome(Outcome {
                decision: action.decision(),
                result: OutcomeResult::Confirmed,
            }));
        }
        assert!(decisions < 20, "it never comes to an end");
        if !decision.cut_short {
            break;
        }
    }
    assert!(decisions > 1, "all in one");
    assert!(bound == ["plain"], "{} are bound", bound.len());
    assert_eq!(evicted, ["low"]);
}

/// Every pod's anti-affinity matches every other pod, each by a different selector: as many terms
/// as pods, each of which matches all. Evaluated terms count as steps, as nodes do; if each node
/// were checked against each term, this would take minutes.
#[test]
fn pods_that_all_avoid_each_other_in_their_own_words_hold_up_nobody() {
    const PODS: usize = 600;
    let mut lines = String::from("queue q\n");
    for index in 0..PODS {
        let _ = writeln!(
            lines,
            "node n{index:03} cpu=64000 pods=110 label.host=n{index:03}\n\
             pod p{index:03} queue=q cpu=1 label.app=a{index}\n  \
             away host labels=\"app notin a{index}\" ns-labels=\"\""
        );
    }
    let mut core = core(&lines);
    let mut nodes = std::collections::BTreeSet::new();
    let (mut bound, mut decisions) = (0, 0);
    loop {
        let decision = core.decide(Time(1_000));
        decisions += 1;
        for action in &decision.actions {
            let Action::Bind(bind) = action else {
                panic!("a pod is evicted");
            };
            bound += 1;
            nodes.insert(bind.node.clone());
        }
        if !decision.cut_short {
            break;
        }
        assert!(!decision.actions.is_empty(), "each goes on");
    }
    assert_eq!((bound, nodes.len(), decisions), (PODS, PODS, 3));
}

/// Every node has a GPU to spare, and nothing that is moved leaves eight of them on one. The
/// searches that find this out use up their part of a decision. The first jobs reclaim their nodes
/// all the same, and no job does for which moves have yet to be tried.
#[test]
fn jobs_for_which_nothing_can_be_moved_do_not_keep_the_first_from_reclaiming() {
    const NODES: usize = 60;
    const WAITING: usize = 300;
    let mut lines =
        String::from("queue over gpu=0/-1/0\nqueue under gpu=1000000000000/-1/1000000\n");
    for node in 0..NODES {
        let _ = writeln!(
            lines,
            "node n{node:03} cpu=64000 pods=110 gpus=8\n\
             pod run-{node:03} queue=over gpus.main=7 on=n{node:03}"
        );
    }
    for index in 0..WAITING {
        let cpu = 1000 + index;
        let _ = writeln!(
            lines,
            "pod wait-{index:04} queue=under gpus.main=8 cpu={cpu}"
        );
    }
    let config = Config {
        budget: 30_000,
        ..Config::default()
    };
    let mut core = with(config, &lines);
    let decision = core.decide(Time(1_000));
    assert!(decision.cut_short, "all was searched at once");
    let searched = |step| decision.tallies.get(&step).map_or(0, |tally| tally.tried);
    let moves = searched(Step::Consolidation);
    assert!((1..WAITING as u64).contains(&moves), "{moves} searches");
    let evicts = |action: &&Action| matches!(action, Action::Evict(_));
    let evicted = decision.actions.iter().filter(evicts).count();
    assert_eq!(evicted as u64, moves.min(NODES as u64));
}

/// How often consolidation searched, for a pod that wants two devices of a node which has two, one
/// held by a pod that may be moved, with so many devices more on another node.
fn consolidated(more: usize) -> u64 {
    let mut lines = String::from(
        "queue q\nnode n1 cpu=64000 pods=110\nnode n2 cpu=64000 pods=110\n\
         devices gpu.example.com/one\n  device gpu-0 node=n1 selected=gpu gpu\n  device gpu-1 node=n1 selected=gpu gpu\n\
         devices gpu.example.com/two\n",
    );
    for index in 0..more {
        let _ = writeln!(lines, "  device gpu-{index} node=n2 selected=gpu gpu");
    }
    lines.push_str(
        "allocated claim-a consumers=1\n  device gpu.example.com/one/gpu-0 request=gpu\n\
         pod runs queue=q phase=running on=n1\n  devices claim-a name=default/claim-a own\n    \
         request gpu filter=gpu nano=1000000000\n\
         pod waits queue=q\n  devices claim-b name=default/claim-b own\n    \
         request gpu filter=gpu count=2 nano=1000000000\n",
    );
    let decision = core(&lines).decide(Time(1_000));
    let tally = decision.tallies.get(&Step::Consolidation);
    tally.map_or(0, |tally| tally.tried)
}

/// Moving a pod frees no device in sum.
#[test]
fn nothing_is_moved_where_too_few_devices_are_free_in_sum() {
    assert_eq!(consolidated(0), 0);
    assert_eq!(consolidated(1), 1);
}

/// What a tenant asks for in sum is more than can be counted.
#[test]
fn requests_for_any_number_of_devices_are_summed() {
    let mut lines = String::from(
        "queue q\nnode n1 cpu=64000 pods=110\ndevices gpu.example.com/one\n  device gpu-0 node=n1 selected=gpu gpu\n\
         pod waits queue=q\n  devices claim-a name=default/claim-a own\n",
    );
    for index in 0..3 {
        let _ = writeln!(
            lines,
            "    request r{index} filter=gpu count=9223372036854775807 nano=1000000000"
        );
    }
    assert_eq!(core(&lines).decide(Time(1_000)).actions, []);
}
