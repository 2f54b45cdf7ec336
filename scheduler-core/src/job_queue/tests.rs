//! The tree serves jobs in the order of the rule.

use super::*;
use crate::config::Config;
use crate::core::Core;
use crate::gang::AvailabilityTier;
use crate::ids::QueueName;
use crate::state::cell::Cell;
use crate::state::uid::Uid;
use crate::text;
use crate::units::Time;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::fmt::Write as _;

/// Queues in two departments, one of which has a quota for this many GPUs, and below one of them a
/// third. The pods are in the first queues.
fn cluster(quota: u64, pods: usize, queues: usize) -> Core {
    let mut lines = format!(
        "node n1 cpu=8000 memory=8589934592 pods=10 gpus=8\n\
         queue a gpu={quota}000000000/-1/1000000\nqueue b\nqueue c parent=b gpu=1000000000/-1/1000000\n"
    );
    for (index, (queue, parent)) in QUEUES.iter().enumerate() {
        let _ = writeln!(
            lines,
            "queue {queue} parent={parent} gpu={index}000000000/-1/1000000"
        );
    }
    for pod in 0..pods {
        let (queue, _) = QUEUES[pod % queues];
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

const QUEUES: [(&str, &str); 7] = [
    ("a1", "a"),
    ("b1", "b"),
    ("a2", "a"),
    ("c1", "c"),
    ("b2", "b"),
    ("a3", "a"),
    ("c2", "c"),
];

/// Which consumer takes the next job.
#[derive(Clone, Copy)]
enum By {
    /// The tree, which knows what it has compared before.
    Tree,
    /// The tree, and those that are alike are passed over.
    TreePassingAlike,
    /// A tree of those that find a place, beside a line of the others, which are taken one by one.
    Beside,
    /// The same, and the tree passes over the line.
    Own,
    /// The rule: from the top, the queue that goes before each of its siblings with the best
    /// job of its best child.
    Rule,
}

/// A queue's best job by the rule.
fn best_below<'a>(
    state: &State,
    shares: &Shares,
    queue: QueueKey,
    lines: &'a [(QueueKey, Vec<Entry>)],
) -> Option<(QueueKey, &'a Entry)> {
    if let Some((_, line)) = lines.iter().find(|(key, _)| *key == queue) {
        let entry = line.iter().rev().find(|entry| entry.ready)?;
        return Some((queue, entry));
    }
    best_of(state, shares, &state.queues[queue].children, lines)
}

fn best_of<'a>(
    state: &State,
    shares: &Shares,
    level: &[QueueKey],
    lines: &'a [(QueueKey, Vec<Entry>)],
) -> Option<(QueueKey, &'a Entry)> {
    let mut best: Option<(QueueKey, Option<queue_order::Key>, (QueueKey, &Entry))> = None;
    for queue in level {
        let Some((leaf, entry)) = best_below(state, shares, *queue, lines) else {
            continue;
        };
        let candidate = Candidate {
            queue: *queue,
            wanted: entry.wanted,
            lost: [0; 3],
        };
        let key = queue_order::Key::of(state, shares, &candidate);
        let is_before = best.as_ref().is_none_or(|(other, their, _)| {
            queue_order::compare(state, shares, (*queue, key), (*other, *their)) == Ordering::Less
        });
        if is_before {
            best = Some((*queue, key, (leaf, entry)));
        }
    }
    best.map(|(_, _, found)| found)
}

/// Those that find a place, in order.
fn order(core: &mut Core, wants: &[(usize, bool)], queues: usize, by: By) -> Vec<JobKey> {
    turns(core, wants, queues, by).0
}

/// Takes all; a job with a place is counted in its queue, a job without is left out. Those with a
/// place in order, and how many jobs were taken.
fn turns(core: &mut Core, wants: &[(usize, bool)], queues: usize, by: By) -> (Vec<JobKey>, usize) {
    let state = core.state_for_tests();
    state.refresh_queues();
    let uses: Vec<_> = state
        .cells
        .queues
        .iter()
        .map(|(key, used)| (key, *used))
        .collect();
    let shares = Shares::compute(state, 0.0);
    let mut by_queue = Vec::new();
    for (name, _) in QUEUES {
        let key = state.names.queues[&QueueName::new(name)];
        let mut line: Vec<Entry> = wants
            .iter()
            .enumerate()
            .filter(|(index, _)| QUEUES[index % queues].0 == name)
            .map(|(index, (size, _))| Entry {
                job: state.job_of(&format!("pod:p{index:02}").into()).unwrap(),
                rank: JobRank {
                    priority: Reverse(0),
                    availability_tier: AvailabilityTier::Below,
                    size: 0,
                    created: Time(index as u64),
                    uid: Uid::from(""),
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
        by_queue.push((key, line));
    }
    let fits: FxHashMap<JobKey, bool> = wants
        .iter()
        .enumerate()
        .map(|(index, (_, fits))| {
            (
                state.job_of(&format!("pod:p{index:02}").into()).unwrap(),
                *fits,
            )
        })
        .collect();
    by_queue.sort_by_key(|(key, _)| state.queues[*key].name.clone());
    let mut queue = JobQueue::new(false);
    let line = Line {
        by_queue: by_queue
            .iter()
            .map(|(key, line)| (*key, Arc::new(line.clone().into())))
            .collect(),
    };
    if let By::Beside | By::Own = by {
        let entries = by_queue.iter().flat_map(|(_, line)| line);
        let own: Vec<Entry> = entries.filter(|entry| fits[&entry.job]).cloned().collect();
        queue.fill_beside(state, &shares, own, &line);
        queue.arrange(state, &shares);
    } else {
        queue.fill_with(state, &shares, &line);
    }
    let (mut placed, mut turns) = (Vec::new(), 0);
    loop {
        let entry = if let By::Rule = by {
            let top = state.index.top_queues.clone();
            let best = best_of(state, &shares, &top, &by_queue);
            let best = best.map(|(leaf, entry)| (leaf, entry.clone()));
            best.map(|(leaf, entry)| {
                let (_, line) = by_queue.iter_mut().find(|(key, _)| *key == leaf).unwrap();
                line.retain(|other| other.job != entry.job);
                entry
            })
        } else if let By::Own = by {
            queue.pop_own(state, &shares, &mut 0)
        } else {
            queue.pop(state, &shares)
        };
        let Some(entry) = entry else {
            break;
        };
        turns += 1;
        if !fits[&entry.job] {
            if let By::TreePassingAlike = by {
                queue.pass_alike(state, &shares, |_, entry| !fits[&entry.job]);
            }
            continue;
        }
        placed.push(entry.job);
        let leaf = state.jobs[entry.job].queue.unwrap();
        for key in state.queues[leaf].chain.clone() {
            let mut used = state.cells.queues[key];
            used.allocated = plus(used.allocated, entry.wanted);
            state.set(Cell::Queue(key, used));
        }
    }
    for (key, used) in uses {
        state.set(Cell::Queue(key, used));
    }
    (placed, turns)
}

/// A pod that comes to a queue in which thousands of other requests wait does not pay for each.
#[test]
fn jobs_of_one_queue_that_find_nothing_take_one_turn_whatever_they_want() {
    let mut wants: Vec<(usize, bool)> = (0..58).map(|index| (index % 3, false)).collect();
    wants.push((0, true));
    let mut core = cluster(0, wants.len(), 1);
    let (placed, turns) = turns(&mut core, &wants, 1, By::TreePassingAlike);
    assert_eq!((placed.len(), turns), (1, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn jobs_are_taken_in_the_order_of_the_rule(
        quota in 0_u64..8,
        queues in 1..=QUEUES.len(),
        wants in proptest::collection::vec((0_usize..3, proptest::bool::weighted(0.3)), 1..60),
    ) {
        let mut core = cluster(quota, wants.len(), queues);
        let rule = order(&mut core, &wants, queues, By::Rule);
        prop_assert_eq!(&rule, &order(&mut core, &wants, queues, By::Tree));
        prop_assert_eq!(&rule, &order(&mut core, &wants, queues, By::TreePassingAlike));
        let beside = order(&mut core, &wants, queues, By::Beside);
        prop_assert_eq!(beside, order(&mut core, &wants, queues, By::Own));
    }
}
