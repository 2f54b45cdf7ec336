//! Undo restores what a trial has changed.

use super::*;
use crate::config::Config;
use crate::core::Core;
use crate::state::task_cell::Leaving;
use crate::text;
use std::sync::Arc;

const CLUSTER: &str = "
node n1 cpu=8000 memory=8589934592 pods=10 managed extended.x=4
cards n1 default=mps
  card GPU-1 total=1000
volume v size=10
devices drv/pool
  device d1 node=n1 selected=f
  device d2 node=n1 selected=f
queue q
pod a queue=q cpu=100 extended.x=1 gpu-memory.main=100
  claim c name=default/c size=10
  devices e name=default/e own
    request r filter=f
pod b queue=q cpu=100 extended.x=1 gpu-memory.main=100 on=n1
  grant main cards=GPU-1 memory=100 mode=mps
";

/// Every scheduling field, and the indexes that follow them.
fn fields(state: &State) -> String {
    let mut extra: Vec<_> = state
        .cells
        .extra
        .iter()
        .map(|entry| format!("{entry:?}"))
        .collect();
    extra.sort();
    let mut placed_at: Vec<_> = state.index.placed_at.iter().collect();
    placed_at.sort_by_key(|(job, _)| *job);
    format!(
        "{:?} {:?} {:?} {:?} {extra:?} {:?} {:?} {:?} {placed_at:?} {} {:?} {:?}",
        state.cells.tasks,
        state.cells.nodes,
        state.cells.cards,
        state.cells.queues,
        state.index.pending.iter().copied().collect::<Vec<_>>(),
        state.index.on_node,
        state.index.standing,
        state.cells.overallocated,
        state.volumes,
        state.devices.in_order(),
    )
}

#[test]
fn undo_restores_every_field_in_nested_trials() {
    let mut core = Core::new(Config::verified());
    for event in text::read(CLUSTER).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    let state = core.state_for_tests();
    state.cells.deciding = true;
    let (a, b) = (state.task_of("a").unwrap(), state.task_of("b").unwrap());
    let before = fields(state);
    let outer = state.mark();
    let b_cell = state.cell(b);
    state.transition(
        b,
        TaskCell {
            status: Status::Releasing,
            ..b_cell.clone()
        },
    );
    let between = fields(state);
    let inner = state.mark();
    state.transition(
        a,
        TaskCell {
            status: Status::Bound,
            ..b_cell
        },
    );
    state.transition(b, TaskCell::of(Status::Done));
    assert_ne!(fields(state), between);
    state.rollback(inner);
    assert_eq!(fields(state), between);
    let kept = state.mark();
    state.transition(b, TaskCell::of(Status::Pending));
    state.keep(kept);
    assert_ne!(fields(state), between);
    state.rollback(outer);
    assert_eq!(fields(state), before);
    assert!(!state.in_trial());
    assert_eq!(core.violations(), Vec::<String>::new());
}

#[test]
fn generations_rise_on_the_way_back_too() {
    let mut core = Core::new(Config::verified());
    for event in text::read(CLUSTER).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    let state = core.state_for_tests();
    let node = state.names.nodes["n1"];
    let b = state.task_of("b").unwrap();
    let mark = state.mark();
    state.transition(b, TaskCell::of(Status::Pending));
    let during = state.nodes[node].generation;
    state.rollback(mark);
    assert!(state.nodes[node].generation > during);
}

proptest::proptest! {
    /// Nested trials of any moves, undone or kept: undone ones leave nothing behind.
    #[test]
    fn any_undo_restores_every_field(steps in proptest::collection::vec((0_u8..9, 0_usize..2), 1..40)) {
        let mut core = Core::new(Config::verified());
        for event in text::read(CLUSTER).unwrap() {
            assert_eq!(core.apply(event), []);
        }
        let state = core.state_for_tests();
        state.cells.deciding = true;
        let tasks = [state.task_of("a").unwrap(), state.task_of("b").unwrap()];
        let placed = state.cell(tasks[1]);
        let start = fields(state);
        let mut open: Vec<(Mark, String)> = vec![(state.mark(), start)];
        for (what, which) in steps {
            let cell = state.cell(tasks[which]);
            let to = match what {
                0 => {
                    let before = fields(state);
                    open.push((state.mark(), before));
                    continue;
                }
                1 | 2 if open.len() > 1 => {
                    let (mark, before) = open.pop().unwrap();
                    if what == 1 {
                        state.rollback(mark);
                        proptest::prop_assert_eq!(fields(state), before);
                    } else {
                        state.keep(mark);
                    }
                    continue;
                }
                3 => TaskCell::of(Status::Pending),
                4 => TaskCell { status: Status::Releasing, ..placed.clone() },
                5 => TaskCell { status: Status::Promised, ..placed.clone() },
                6 => TaskCell::of(Status::Done),
                7 if cell.leaving.is_none() && cell.node.is_some() => TaskCell {
                    leaving: Some(Arc::new(Leaving {
                        was: cell.status,
                        node: cell.node.unwrap(),
                        front: cell.front,
                        holds: cell.holds.clone(),
                        decision: None,
                    })),
                    ..TaskCell::of(Status::Victim)
                },
                _ => placed.clone(),
            };
            state.transition(tasks[which], to);
        }
        while let Some((mark, before)) = open.pop() {
            state.rollback(mark);
            proptest::prop_assert_eq!(fields(state), before);
        }
    }
}

#[test]
fn a_group_has_changed_when_a_trial_is_kept_and_not_before() {
    let mut core = Core::new(Config::verified());
    let group = "queue q\ngroup default/g queue=q\npod a group=default/g\n";
    for event in text::read(group).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core.take_changed_groups(usize::MAX);
    let state = core.state_for_tests();
    let (a, g) = (
        state.task_of("a").unwrap(),
        state.job_of(&"default/g".into()),
    );
    for kept in [false, true] {
        let outer = state.mark();
        let inner = state.mark();
        state.transition(a, TaskCell::of(Status::Done));
        state.keep(inner);
        assert_eq!(state.next_changed_group(), None);
        if kept {
            state.keep(outer);
        } else {
            state.rollback(outer);
        }
        assert_eq!(state.next_changed_group(), g.filter(|_| kept));
    }
}
