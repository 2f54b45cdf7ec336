//! What the core keeps of the pods of a large group follows them, and whatever else it depends on.
#![allow(clippy::unwrap_used)] // A test from its first line to its last.

use scheduler_core::units::Time;
use scheduler_core::{Config, Core, text};
use std::fmt::Write as _;

/// Three sub-groups of six pods, of which each needs two. Eight pods have room.
fn cluster() -> String {
    let mut lines = String::from("queue q\nnode n cpu=64000 pods=110 gpus=8\n");
    lines.push_str(&group(2));
    for set in ["a", "b", "c"] {
        for index in 0..6 {
            let gated = if index == 5 { " gated" } else { "" };
            let _ = writeln!(lines, "{}{gated}", pod(set, index));
        }
    }
    lines
}

fn group(min: u32) -> String {
    let mut lines = String::from("group default/large queue=q\n");
    for set in ["a", "b", "c"] {
        let _ = writeln!(lines, "  set {set} min={min}");
    }
    lines
}

fn pod(set: &str, index: u32) -> String {
    format!("pod {set}-{index} group=default/large set={set} gpus.main=1")
}

fn tell(core: &mut Core, lines: &str) {
    for event in text::read(lines).unwrap() {
        assert_eq!(core.apply(event), [], "{lines}");
    }
}

/// With `verify`, the core reads all pods of the group again and compares.
#[test]
fn what_is_kept_of_a_large_group_is_what_all_of_its_pods_say() {
    let mut core = Core::new(Config::verified());
    tell(&mut core, &cluster());
    assert_eq!(core.decide(Time(1_000)).actions.len(), 8);
    let room = "node n2 cpu=64000 pods=110 gpus=1\n";
    let changes = [
        ("a gate is lifted", pod("b", 5)),
        (
            "a pod is in another sub-group",
            pod("c", 4).replace("set=c", "set=a"),
        ),
        (
            "a pod asks for more",
            pod("c", 3).replace("main=1", "main=2"),
        ),
        ("a pod goes", "pod-gone c-2\n".to_owned()),
        ("a pod comes", pod("b", 6)),
        ("each sub-group needs more", group(4)),
    ];
    for (what, event) in changes {
        tell(&mut core, &event);
        core.decide(Time(2_000));
        assert_eq!(core.violations(), Vec::<String>::new(), "{what}");
    }
    tell(&mut core, room);
    core.decide(Time(3_000));
    assert_eq!(core.violations(), Vec::<String>::new(), "a node comes");
}

/// Kubernetes lets 256 pods use a claim. If a gang of three did not wait, two of its pods would be
/// bound and later evicted as stale.
#[test]
fn a_gang_waits_whole_for_a_claim_that_has_no_room_for_all_of_it() {
    let claim =
        "  devices shared name=default/shared\n    request gpu filter=gpu nano=1000000000\n";
    for users in [253, 254] {
        let mut core = Core::new(Config::verified());
        let mut lines = String::from(
            "queue q\nnode n cpu=640000 memory=274877906944 pods=1000\nnode m cpu=640000 memory=274877906944 pods=1000\n\
             devices gpu.example.com/one\n  device gpu-0 node=n selected=gpu gpu\n",
        );
        let allocated = |consumers| {
            format!(
                "allocated shared consumers={consumers} term=\"@name in n\"\n  device gpu.example.com/one/gpu-0 request=gpu\n"
            )
        };
        lines.push_str(&allocated(users));
        for index in 0..users {
            let _ = write!(
                lines,
                "pod user-{index} queue=q cpu=10 phase=running on=n\n{claim}"
            );
        }
        lines.push_str("group default/gang queue=q min=3\n");
        for index in 0..3 {
            let _ = write!(lines, "pod gang-{index} group=default/gang cpu=10\n{claim}");
        }
        tell(&mut core, &lines);
        let decision = core.decide(Time(1_000));
        let bound = if users == 253 { 3 } else { 0 };
        assert_eq!(
            decision.actions.len(),
            bound,
            "{}",
            text::decision(&decision)
        );
        if bound == 0 {
            let why = &decision.reasons[0].line;
            assert!(why.contains("a claim is used by 256 pods"), "{why}");
            tell(&mut core, &format!("pod-gone user-0\n{}", allocated(253)));
            assert_eq!(core.decide(Time(2_000)).actions.len(), 3);
        }
    }
}
