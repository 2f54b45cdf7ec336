//! Which nodes are asked for, of a cluster that has no room.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // A test from its first line to its last.

use scheduler_core::ids::NodeName;
use scheduler_core::model::{Card, Labels, Mode, Node};
use scheduler_core::scale_up::{Groups, NodeTemplate, Plan, Unknown, plan};
use scheduler_core::units::{Bytes, CpuMilli, Mib, NanoGpu, Time};
use scheduler_core::{Config, Core, text};
use std::fmt::Write as _;
use std::sync::Arc;

const UNKNOWN: Unknown = Unknown {
    memory_counts_as: NanoGpu(100_000_000),
    most: 100,
};
const QUEUES: &str = "queue q\nqueue small gpu=1000000000/-1/1\n";

fn groups() -> Groups {
    Groups {
        keys: vec![Arc::from("group"), Arc::from("pool")],
        described: Vec::new(),
    }
}

fn template(name: &str, cards: u32, mib: u64) -> NodeTemplate {
    let labels: Labels = [(Arc::from("group"), Arc::from(name))]
        .into_iter()
        .collect();
    NodeTemplate {
        name: Arc::from(name),
        node: Node {
            cpu: CpuMilli(64_000),
            memory: Bytes(1 << 38),
            pods: 110,
            labels: labels.clone(),
            ..Node::named(name)
        },
        cards: (0..cards)
            .map(|index| Card::named("any", index, "L4", mib))
            .collect(),
        default_mode: Mode::Mps,
        most: 1_000,
        known_by: labels,
    }
}

/// After a decision on that cluster.
fn planned(lines: &str, templates: &[NodeTemplate]) -> Plan {
    let mut core = Core::new(Config::verified());
    for event in text::read(&format!("{QUEUES}{lines}")).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core.decide(Time(1_000));
    let shortage = core.shortage(&groups(), 1_000, Mib(10_000));
    plan(&shortage, templates, &UNKNOWN, core.config())
}

/// Cards of each node that is asked for.
fn cards(plan: &Plan) -> Vec<u32> {
    plan.nodes.iter().map(|node| node.cards).collect()
}

/// Pods that ask for so many tenths of a card, each older than the next.
fn pods(tenths: &[u32]) -> String {
    let mut lines = String::new();
    for (at, tenths) in tenths.iter().enumerate() {
        let nano = tenths * 100_000_000;
        let _ = writeln!(
            lines,
            "pod p{at} queue=q created={at} cpu=1000 gpu-fraction.main={nano}"
        );
    }
    lines
}

#[test]
fn two_halves_bring_one_node_and_a_third_half_a_second() {
    let one = [template("a", 1, 10_000)];
    assert_eq!(cards(&planned(&pods(&[5]), &one)), [1]);
    assert_eq!(cards(&planned(&pods(&[5, 5]), &one)), [1]);
    assert_eq!(cards(&planned(&pods(&[5, 5, 5]), &one)), [1, 1]);
    assert_eq!(cards(&planned(&pods(&[5; 5]), &one)), [1, 1, 1]);
    // The larger first, whatever came first: three nodes where age decided.
    assert_eq!(cards(&planned(&pods(&[4, 4, 6, 6]), &one)), [1, 1]);
    let plan = planned(&pods(&[5, 5]), &one);
    let [node] = plan.nodes.as_slice() else {
        panic!("{plan:?}");
    };
    assert_eq!((node.template, node.cpu), (Some(0), CpuMilli(2_000)));
    assert_eq!(node.pods.len(), 2);
}

#[test]
fn nothing_is_known_of_the_nodes_and_the_pods_say_which_will_do() {
    assert_eq!(cards(&planned(&pods(&[5, 5, 5]), &[])), [1, 1]);
    // KAI's ratio: whatever it is, it counts as a tenth.
    let mut memory = String::new();
    for at in 0..11 {
        let _ = writeln!(memory, "pod m{at} queue=q gpu-memory.main={}", 100 + at);
    }
    assert_eq!(cards(&planned(&memory, &[])), [1, 1]);
    // Pods with other rules want other nodes, and the largest says how many cards one has.
    let rules = "pod a queue=q gpus.main=2 selector.zone=a\n\
        pod b queue=q gpus.main=1 selector.zone=b\npod c queue=q gpus.main=1 selector.zone=a\n\
        pod d queue=q cpu=1000 selector.zone=a\npod e queue=q cpu=1000 selector.zone=a\n";
    let plan = planned(rules, &[]);
    let mut asked: Vec<_> = (plan.nodes.iter())
        .map(|node| (node.template, node.cards, node.pods.len()))
        .collect();
    asked.sort_unstable();
    assert_eq!(
        asked,
        [
            (None, 0, 1),
            (None, 0, 1),
            (None, 1, 1),
            (None, 1, 1),
            (None, 2, 1)
        ]
    );
}

#[test]
fn the_first_group_takes_what_it_can_and_a_gang_gets_all_or_nothing() {
    let both = [template("small", 1, 10_000), template("large", 8, 80_000)];
    let share = "pod s queue=q created=1 cpu=1000 gpu-memory.main=2000\n";
    let large = "pod l queue=q created=2 cpu=1000 gpu-memory.main=60000\n";
    let plan = planned(&format!("{share}{large}"), &both);
    let asked: Vec<_> = (plan.nodes.iter())
        .map(|node| (node.template, node.cards))
        .collect();
    assert_eq!(asked, [(Some(0), 1), (Some(1), 1)]);

    let gang = |min: usize| {
        let mut lines = format!("group default/g queue=q\n  set default min={min}\n");
        for at in 0..min {
            let _ = writeln!(lines, "pod g{at} group=default/g gpus.main=1");
        }
        lines
    };
    let mut few = [template("small", 1, 10_000)];
    few[0].most = 3;
    assert_eq!(cards(&planned(&gang(3), &few)), [1, 1, 1]);
    let mut core = Core::new(Config::verified());
    for event in text::read(&format!("{QUEUES}{}", gang(4))).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core.decide(Time(1_000));
    let shortage = core.shortage(&groups(), 1_000, Mib(10_000));
    // Nor of a group that nothing is known of: it might be the same.
    assert_eq!(plan_nodes(&shortage, &few, &UNKNOWN, &core), 0);
    few[0].most = 4;
    assert_eq!(plan_nodes(&shortage, &few, &UNKNOWN, &core), 4);
}

fn plan_nodes(
    shortage: &scheduler_core::scale_up::Shortage,
    templates: &[NodeTemplate],
    unknown: &Unknown,
    core: &Core,
) -> usize {
    plan(shortage, templates, unknown, core.config())
        .nodes
        .len()
}

#[test]
fn a_gang_that_has_room_in_part_brings_what_it_lacks() {
    let lines = "node n1 cpu=64000 memory=274877906944 pods=110 gpus=2 managed\n\
        cards n1 default=mps\n  card G1 product=L4 total=10000\n  card G2 product=L4 total=10000\n\
        group default/g queue=q\n  set default min=4\n\
        pod g0 group=default/g gpus.main=1\npod g1 group=default/g gpus.main=1\n\
        pod g2 group=default/g gpus.main=1\npod g3 group=default/g gpus.main=1\n";
    assert_eq!(cards(&planned(lines, &[template("a", 1, 10_000)])), [1, 1]);
}

#[test]
fn pods_over_quota_bring_no_node() {
    let one = [template("a", 1, 10_000)];
    let small = |tenths: &[u32]| pods(tenths).replace("queue=q", "queue=small");
    assert_eq!(cards(&planned(&small(&[5, 5, 5]), &one)), [1]);
    // GPU memory counts over a card of 10,000 MiB.
    let memory = "pod a queue=small created=1 gpu-memory.main=8000\n\
        pod b queue=small created=2 gpu-memory.main=4000\n";
    assert_eq!(planned(memory, &one).nodes[0].pods.len(), 1);
    // Existing pods count.
    let standing = "node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed\n\
        cards n1 default=mps\n  card G1 product=L4 total=10000\n\
        pod has queue=small gpus.main=1 phase=running on=n1\n  grant main cards=G1 memory=10000 mode=exclusive\n";
    assert_eq!(
        planned(&format!("{standing}{}", small(&[5])), &one).nodes,
        []
    );
    // An elastic group brings what its queue's quota has room for.
    let elastic = "group default/g queue=small\n  set default min=1\n\
        pod g0 group=default/g gpus.main=1\npod g1 group=default/g gpus.main=1\n";
    assert_eq!(cards(&planned(elastic, &one)), [1]);
}

#[test]
fn what_waits_for_something_else_brings_no_node() {
    let one = [template("a", 1, 10_000)];
    let waits = |rules: &str| format!("pod a queue=q gpus.main=1 {rules}\n");
    assert_eq!(cards(&planned(&waits(""), &one)), [1]);
    assert_eq!(planned(&waits("gated"), &one).nodes, []);
    // No group has such nodes: nodes of unknown groups are requested.
    let plan = planned(&waits("selector.group=b"), &one);
    assert_eq!(plan.nodes[0].template, None);
    // The limit of its queue.
    let limited = "queue tight gpu=-1/0/1\npod a queue=tight gpus.main=1\n";
    assert_eq!(planned(limited, &one).nodes, []);
}

#[test]
fn a_node_that_starts_counts_and_one_that_never_comes_does_not() {
    let one = [template("a", 1, 10_000)];
    let starting = "node n1 label.group=a cpu=64000 memory=274877906944 pods=110 \
        not-ready=\"node(s) were not ready\"\n";
    let lines = format!("{starting}{}", pods(&[5, 5, 5]));
    let plan = planned(&lines, &one);
    assert_eq!((cards(&plan), plan.starting.len()), (vec![1], 1));
    // It is asked for as a new one is.
    let starts = &plan.starting[&NodeName::new("n1")];
    assert_eq!(
        (starts.template, starts.cards, starts.pods.len()),
        (Some(0), 1, 2)
    );
    let mut core = Core::new(Config::verified());
    for event in text::read(&format!("{QUEUES}{lines}")).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core.decide(Time(1_000));
    let shortage = core
        .shortage(&groups(), 1_000, Mib(10_000))
        .without(&|_| true);
    assert_eq!(plan_nodes(&shortage, &one, &UNKNOWN, &core), 2);
}

#[test]
fn nodes_that_are_there_count_towards_what_a_group_may_have() {
    let mut few = [template("a", 1, 10_000)];
    few[0].most = 3;
    let groups = Groups {
        described: vec![few[0].known_by.clone()],
        ..groups()
    };
    // One has a card that is taken, one starts, one is another group's.
    let there = "node n1 label.group=a cpu=64000 memory=274877906944 pods=110 gpus=1 managed\n\
        cards n1 default=mps\n  card G1 product=L4 total=10000\n\
        pod has queue=q gpus.main=1 phase=running on=n1\n  \
        grant main cards=G1 memory=10000 mode=exclusive\n\
        node n2 label.group=a cpu=64000 memory=274877906944 pods=110\n\
        node n3 label.group=b cpu=64000 memory=274877906944 pods=110\n";
    let asked = |shares: &[u32]| {
        let mut core = Core::new(Config::verified());
        for event in text::read(&format!("{QUEUES}{there}{}", pods(shares))).unwrap() {
            assert_eq!(core.apply(event), []);
        }
        core.decide(Time(1_000));
        let shortage = core.shortage(&groups, 1_000, Mib(10_000));
        let plan = plan(&shortage, &few, &UNKNOWN, core.config());
        (plan.nodes.len(), plan.starting.len())
    };
    assert_eq!(asked(&[9]), (0, 1));
    assert_eq!(asked(&[9, 9]), (1, 1));
    assert_eq!(asked(&[9, 9, 9]), (1, 1));
}

/// No packing has fewer nodes than the sum of what is asked for.
#[test]
fn a_storm_of_a_thousand_shares_asks_for_no_more_nodes_than_its_sum_needs() {
    let mut lines = String::new();
    let mut sum = 0_u64;
    for at in 0..1_000_u64 {
        let mib = [500, 1_000, 2_000, 2_500, 5_000][usize::try_from(at % 5).unwrap()];
        sum += mib;
        let _ = writeln!(
            lines,
            "pod p{at:04} queue=q created={at} gpu-memory.main={mib}"
        );
    }
    let plan = planned_fast(&lines, &[template("a", 2, 10_000)]);
    let pods: usize = plan.nodes.iter().map(|node| node.pods.len()).sum();
    assert_eq!(pods, 1_000);
    assert_eq!(plan.nodes.len() as u64, sum.div_ceil(20_000));
}

/// Without the recount of every sum.
fn planned_fast(lines: &str, templates: &[NodeTemplate]) -> Plan {
    let mut core = Core::new(Config::default());
    for event in text::read(&format!("{QUEUES}{lines}")).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core.decide(Time(1_000));
    let shortage = core.shortage(&groups(), 1_000, Mib(10_000));
    plan(&shortage, templates, &UNKNOWN, core.config())
}

#[test]
fn a_group_that_nobody_described_is_as_its_last_node() {
    let lines = "node n1 label.pool=l4 label.zone=a cpu=8000 memory=1000000 pods=110 gpus=1 \
        managed taint.node.kubernetes.io/unreachable=:NoExecute taint.gpu=:NoSchedule \
        extended.aliquot.dev/gpu-share=48\n\
        cards n1 default=mps\n  card G1 product=L4 total=10000 mode=mps\n\
        pod has queue=q gpus.main=1 phase=running on=n1\n  \
        grant main cards=G1 memory=10000 mode=exclusive\n\
        node other label.pool=cpu cpu=8000 memory=1000000 pods=110\n\
        pod a queue=q gpu-fraction.main=500000000 tolerates=gpu\n\
        pod b queue=q gpu-fraction.main=500000000\n";
    let mut core = Core::new(Config::verified());
    for event in text::read(&format!("{QUEUES}{lines}")).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core.decide(Time(1_000));
    let shortage = core.shortage(&groups(), 1_000, Mib(10_000));
    let [seen] = shortage.seen.as_slice() else {
        panic!("{:?}", shortage.seen);
    };
    assert_eq!((&*seen.name, seen.cards.len()), ("pool=l4", 1));
    assert_eq!(seen.node.taints.len(), 1);
    assert_eq!(shortage.without_cards.len(), 1);
    let plan = plan(&shortage, &shortage.seen, &UNKNOWN, core.config());
    let asked: Vec<_> = plan.nodes.iter().map(|node| node.template).collect();
    // Only one of them tolerates the taint of that group's nodes.
    assert_eq!(asked, [Some(0), None]);
    // Once described, what it has is what the description says.
    let described = Groups {
        described: vec![seen.known_by.clone()],
        ..groups()
    };
    assert_eq!(core.shortage(&described, 1_000, Mib(0)).seen, []);
}
