//! Jobs in the order in which they are served: a tree of queues, the best job of the
//! best queue first (KAI, `actions/utils/job_order_by_queue.go`). For victims the same
//! tree the other way round.

use crate::gang::Growth;
use crate::queue_order::{self, Candidate};
use crate::shares::{Shares, Three, plus};
use crate::state::State;
use crate::state::rows::{JobKey, QueueKey, TaskKey};
use crate::units::Time;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Order of jobs in one queue: smaller goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobRank {
    pub priority: Reverse<i32>,
    pub growth: Growth,
    pub created: Time,
    pub uid: Arc<str>,
}

/// A job in the queue, whole or with some of its pods only.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub job: JobKey,
    pub rank: JobRank,
    /// What it wants next; nothing for a victim.
    pub wanted: Three,
    /// What it holds, where it is a victim.
    pub held: Three,
    /// The pods it stands for; `None`: all.
    pub part: Option<Arc<[TaskKey]>>,
}

#[derive(Debug)]
struct Node {
    parent: Option<QueueKey>,
    /// Sorted, the best last. Leaves only.
    jobs: Vec<Entry>,
    /// A heap, the best first. Inner queues only.
    children: Vec<QueueKey>,
    is_leaf: bool,
    stale: bool,
    /// What the victims popped so far held.
    popped: Three,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct JobQueue {
    victims: bool,
    top: Vec<QueueKey>,
    nodes: BTreeMap<QueueKey, Node>,
}

impl JobQueue {
    /// An empty tree. `victims`: the worst of all first.
    pub(crate) fn new(victims: bool) -> Self {
        Self {
            victims,
            top: Vec::new(),
            nodes: BTreeMap::new(),
        }
    }

    /// Adds many jobs: leaves first, so that queues are compared with their best job.
    pub(crate) fn fill(&mut self, state: &State, shares: &Shares, entries: Vec<Entry>) {
        let mut by_queue: BTreeMap<QueueKey, Vec<Entry>> = BTreeMap::new();
        for entry in entries {
            if let Some(queue) = state.jobs.get(entry.job).and_then(|job| job.queue) {
                by_queue.entry(queue).or_default().push(entry);
            }
        }
        // In order of name, not of keys.
        let mut queues: Vec<QueueKey> = by_queue.keys().copied().collect();
        queues.sort_by_key(|key| state.queues.get(*key).map(|row| row.name.clone()));
        for queue in queues {
            let Some(mut jobs) = by_queue.remove(&queue) else {
                continue;
            };
            let victims = self.victims;
            jobs.sort_by(|one, other| order(victims, &other.rank, &one.rank));
            self.link(state, shares, queue, jobs);
        }
    }

    /// Adds one job, or puts one back.
    pub(crate) fn push(&mut self, state: &State, shares: &Shares, entry: Entry) {
        let Some(queue) = state.jobs.get(entry.job).and_then(|job| job.queue) else {
            return;
        };
        let victims = self.victims;
        if let Some(node) = self.nodes.get_mut(&queue) {
            let at = node.jobs.partition_point(|other| {
                order(victims, &other.rank, &entry.rank) == Ordering::Greater
            });
            node.jobs.insert(at, entry);
        } else {
            self.link(state, shares, queue, vec![entry]);
        }
        self.mark(queue);
    }

    /// A new leaf and what is missing above it.
    fn link(&mut self, state: &State, shares: &Shares, queue: QueueKey, jobs: Vec<Entry>) {
        let Some(row) = state.queues.get(queue) else {
            return;
        };
        // Only leaf queues hold jobs; a queue that is not there, or goes round, none.
        if !row.children.is_empty() || row.chain.is_empty() {
            return;
        }
        let chain = row.chain.clone();
        self.nodes.insert(
            queue,
            Node {
                parent: chain.get(1).copied(),
                jobs,
                children: Vec::new(),
                is_leaf: true,
                stale: false,
                popped: [0; 3],
            },
        );
        for (index, key) in chain.iter().enumerate() {
            let parent = chain.get(index + 1).copied();
            match parent {
                None => {
                    self.top.push(*key);
                    let mut top = std::mem::take(&mut self.top);
                    self.sift_up(state, shares, &mut top);
                    self.top = top;
                    return;
                }
                Some(parent) => {
                    let known = self.nodes.contains_key(&parent);
                    if !known {
                        self.nodes.insert(
                            parent,
                            Node {
                                parent: chain.get(index + 2).copied(),
                                jobs: Vec::new(),
                                children: Vec::new(),
                                is_leaf: false,
                                stale: false,
                                popped: [0; 3],
                            },
                        );
                    }
                    let mut children = self.take_children(parent);
                    children.push(*key);
                    self.sift_up(state, shares, &mut children);
                    self.put_children(parent, children);
                    if known {
                        return;
                    }
                }
            }
        }
    }

    fn take_children(&mut self, key: QueueKey) -> Vec<QueueKey> {
        self.nodes
            .get_mut(&key)
            .map(|node| std::mem::take(&mut node.children))
            .unwrap_or_default()
    }

    fn put_children(&mut self, key: QueueKey, children: Vec<QueueKey>) {
        if let Some(node) = self.nodes.get_mut(&key) {
            node.children = children;
        }
    }

    fn mark(&mut self, queue: QueueKey) {
        let mut at = Some(queue);
        while let Some(key) = at {
            let Some(node) = self.nodes.get_mut(&key) else {
                return;
            };
            node.stale = true;
            at = node.parent;
        }
    }

    /// The next job.
    pub(crate) fn pop(&mut self, state: &State, shares: &Shares) -> Option<Entry> {
        let mut level = std::mem::take(&mut self.top);
        self.settle(state, shares, &mut level);
        let mut at = level.first().copied();
        self.top = level;
        while let Some(key) = at {
            if self.nodes.get(&key)?.is_leaf {
                break;
            }
            let mut children = self.take_children(key);
            self.settle(state, shares, &mut children);
            at = children.first().copied();
            self.put_children(key, children);
        }
        let leaf = at?;
        let node = self.nodes.get_mut(&leaf)?;
        let entry = node.jobs.pop()?;
        if self.victims {
            node.popped = plus(node.popped, entry.held);
        }
        if node.jobs.is_empty() {
            self.prune(state, shares, leaf);
        } else {
            self.mark(leaf);
        }
        Some(entry)
    }

    /// Takes an emptied queue, and every ancestor that it empties, out.
    fn prune(&mut self, state: &State, shares: &Shares, leaf: QueueKey) {
        let mut at = leaf;
        loop {
            let parent = self.nodes.get(&at).and_then(|node| node.parent);
            self.nodes.remove(&at);
            let mut level = match parent {
                Some(parent) => self.take_children(parent),
                None => std::mem::take(&mut self.top),
            };
            if let Some(index) = level.iter().position(|key| *key == at) {
                level.swap_remove(index);
                if index == 0 {
                    self.sift_down(state, shares, &mut level);
                }
            }
            let emptied = level.is_empty();
            match parent {
                Some(parent) => {
                    self.put_children(parent, level);
                    if emptied {
                        at = parent;
                        continue;
                    }
                    self.mark(parent);
                }
                None => self.top = level,
            }
            return;
        }
    }

    /// Puts what changed at the head in its place until the head is as it should be.
    fn settle(&mut self, state: &State, shares: &Shares, level: &mut [QueueKey]) {
        while let Some(head) = level.first().copied() {
            let Some(node) = self.nodes.get_mut(&head) else {
                return;
            };
            if !std::mem::take(&mut node.stale) {
                return;
            }
            self.sift_down(state, shares, level);
        }
    }

    /// The best job below a queue, and what of it matters to order.
    fn candidate(&self, key: QueueKey) -> Candidate {
        let mut at = key;
        while let Some(node) = self.nodes.get(&at) {
            if let Some(entry) = node.jobs.last() {
                return Candidate {
                    queue: key,
                    wanted: entry.wanted,
                    lost: plus(node.popped, entry.held),
                };
            }
            match node.children.first() {
                Some(child) => at = *child,
                None => break,
            }
        }
        Candidate {
            queue: key,
            wanted: [0; 3],
            lost: [0; 3],
        }
    }

    fn goes_first(&self, state: &State, shares: &Shares, one: QueueKey, other: QueueKey) -> bool {
        let order =
            queue_order::compare(state, shares, &self.candidate(one), &self.candidate(other));
        if self.victims {
            order == Ordering::Greater
        } else {
            order == Ordering::Less
        }
    }

    fn sift_up(&self, state: &State, shares: &Shares, heap: &mut [QueueKey]) {
        let mut index = heap.len().saturating_sub(1);
        while index > 0 {
            let parent = (index - 1) / 2;
            if !self.goes_first(state, shares, heap[index], heap[parent]) {
                break;
            }
            heap.swap(index, parent);
            index = parent;
        }
    }

    fn sift_down(&self, state: &State, shares: &Shares, heap: &mut [QueueKey]) {
        let mut index = 0;
        loop {
            let left = 2 * index + 1;
            if left >= heap.len() {
                return;
            }
            let right = left + 1;
            let best =
                if right < heap.len() && self.goes_first(state, shares, heap[right], heap[left]) {
                    right
                } else {
                    left
                };
            if !self.goes_first(state, shares, heap[best], heap[index]) {
                return;
            }
            heap.swap(index, best);
            index = best;
        }
    }
}

fn order(victims: bool, one: &JobRank, other: &JobRank) -> Ordering {
    if victims {
        other.cmp(one)
    } else {
        one.cmp(other)
    }
}
