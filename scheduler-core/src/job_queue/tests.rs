//! The shortcuts of the tree take nobody out of turn.

use super::*;
use crate::config::Config;
use crate::core::Core;
use crate::gang::Growth;
use crate::ids::QueueName;
use crate::state::cell::Cell;
use crate::text;
use crate::units::Time;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::fmt::Write as _;

/// Queues in two departments, one of which has a quota for so many GPUs.
fn cluster(quota: u64, pods: usize) -> Core {
    let mut lines = format!(
        "node n1 cpu=8000 memory=8589934592 pods=10 gpus=8\n\
         queue a gpu={quota}000000000/-1/1000000\nqueue b\n"
    );
    for (index, queue) in QUEUES.iter().enumerate() {
        let parent = ["a", "b"][index % 2];
        let _ = writeln!(
            lines,
            "queue {queue} parent={parent} gpu={index}000000000/-1/1000000"
        );
    }
    for pod in 0..pods {
        let queue = QUEUES[pod % QUEUES.len()];
        let _ = writeln!(
            lines,
            "pod p{pod:02} queue={queue} gpus.main=1 created={pod}"
        );
    }
    let mut core = Core::new(Config::verified());
    for event in text::read(&lines).unwrap() {
        assert_eq!(core.apply(event), []);
    }
    core
}

const QUEUES: [&str; 5] = ["a1", "b1", "a2", "b2", "a3"];

/// What is said after a job that found nothing.
#[derive(Clone, Copy)]
enum After {
    Nothing,
    NothingMoved,
    PassAlike,
}

/// Takes all out; who finds a place is counted in its queue, who does not is left out.
fn order(core: &mut Core, wants: &[(usize, bool)], after: After) -> Vec<JobKey> {
    let state = core.state_for_tests();
    state.refresh_queues();
    let uses: Vec<_> = state
        .queue_use
        .iter()
        .map(|(key, used)| (key, *used))
        .collect();
    let shares = Shares::compute(state, 0.0);
    let mut by_queue = Vec::new();
    for name in QUEUES {
        let key = state.queue_names[&QueueName::new(name)];
        let mut line: Vec<Entry> = wants
            .iter()
            .enumerate()
            .filter(|(index, _)| QUEUES[index % QUEUES.len()] == name)
            .map(|(index, (size, _))| Entry {
                job: state.job_names[format!("pod:p{index:02}").as_str()],
                rank: JobRank {
                    priority: Reverse(0),
                    growth: Growth::Below,
                    created: Time(index as u64),
                    uid: Arc::from(""),
                },
                wanted: [[1, 0, 0], [2, 500, 0], [5, 0, 1 << 20]][*size]
                    .map(|part: u128| part * 1_000_000_000),
                held: [0; 3],
                part: None,
                ready: index % 7 != 3,
                alone: None,
            })
            .collect();
        line.sort_by(|one, other| other.rank.cmp(&one.rank));
        by_queue.push((key, Arc::new(line)));
    }
    let fits: FxHashMap<JobKey, bool> = wants
        .iter()
        .enumerate()
        .map(|(index, (_, fits))| (state.job_names[format!("pod:p{index:02}").as_str()], *fits))
        .collect();
    by_queue.sort_by_key(|(key, _)| state.queues[*key].name.clone());
    let mut queue = JobQueue::new(false);
    queue.fill_with(state, &shares, &Line { by_queue });
    let mut placed = Vec::new();
    while let Some(entry) = queue.pop(state, &shares) {
        if !fits[&entry.job] {
            match after {
                After::Nothing => {}
                After::NothingMoved => queue.nothing_moved(),
                After::PassAlike => {
                    queue.pass_alike(state, &shares, |_, entry| !fits[&entry.job]);
                }
            }
            continue;
        }
        placed.push(entry.job);
        let leaf = state.jobs[entry.job].queue.unwrap();
        for key in state.queues[leaf].chain.clone() {
            let mut used = state.queue_use[key];
            used.allocated = plus(used.allocated, entry.wanted);
            state.set(Cell::Queue(key, used));
        }
    }
    for (key, used) in uses {
        state.set(Cell::Queue(key, used));
    }
    placed
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn who_is_passed_over_makes_no_other_order(
        quota in 0_u64..8,
        wants in proptest::collection::vec((0_usize..3, proptest::bool::weighted(0.3)), 1..60),
    ) {
        let mut core = cluster(quota, wants.len());
        let plain = order(&mut core, &wants, After::Nothing);
        prop_assert_eq!(&plain, &order(&mut core, &wants, After::NothingMoved));
        prop_assert_eq!(&plain, &order(&mut core, &wants, After::PassAlike));
    }
}
