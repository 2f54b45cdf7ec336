//! Jobs in the order in which they are served: a tree of queues, the best job of the
//! best queue first (KAI, `actions/utils/job_order_by_queue.go`). For victims the same
//! tree the other way round.

mod line;
#[cfg(test)]
mod tests;

use crate::queue_order::{self, Candidate};
use crate::shares::{Shares, Three, plus};
use crate::state::State;
use crate::state::rows::{JobKey, QueueKey};
pub(crate) use line::{Alone, Entry, JobRank, Line};
use line::{order, sorted};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Debug)]
struct Node {
    parent: Option<QueueKey>,
    /// Sorted, the best last. Leaves only.
    jobs: Vec<Entry>,
    /// Jobs of a [`Line`], and how many of them are still in.
    line: Option<(Arc<Vec<Entry>>, usize)>,
    /// A heap, the best first. Inner queues only.
    children: Vec<QueueKey>,
    is_leaf: bool,
    stale: bool,
    /// The first of its children was compared with who comes next, and no other queue has
    /// moved since.
    checked: bool,
    /// What the victims popped so far held.
    popped: Three,
    /// What decides when it is compared, while neither it nor its queue has changed.
    key: Cell<Option<queue_order::Key>>,
}

impl Node {
    /// The best job.
    fn best(&self) -> Option<&Entry> {
        let own = self.jobs.last();
        let waits = self
            .line
            .as_ref()
            .and_then(|(line, left)| line.get(left.checked_sub(1)?));
        match (own, waits) {
            (Some(own), Some(waits)) if waits.rank < own.rank => Some(waits),
            (None, waits) => waits,
            (own, _) => own,
        }
    }

    /// Takes the best job out.
    fn take(&mut self, skip: &Skip) -> Option<Entry> {
        let best = self.best()?.clone();
        self.drop_best(best.job, skip);
        Some(best)
    }

    fn drop_best(&mut self, best: JobKey, skip: &Skip) {
        if self.jobs.last().is_some_and(|own| own.job == best) {
            self.jobs.pop();
        } else if let Some((_, left)) = &mut self.line {
            *left -= 1;
            self.pass_over(skip);
        }
    }

    fn pass_over(&mut self, skip: &Skip) {
        let Some((line, left)) = &mut self.line else {
            return;
        };
        while line
            .get(left.wrapping_sub(1))
            .is_some_and(|entry| skip.skips(entry))
        {
            *left -= 1;
        }
    }
}

/// Jobs of the line that have no place in the tree.
#[derive(Debug, Default)]
struct Skip {
    /// They are in it otherwise, or not at all.
    jobs: BTreeSet<JobKey>,
    /// Whoever is not ready.
    unready: bool,
}

impl Skip {
    fn skips(&self, entry: &Entry) -> bool {
        self.unready && !entry.ready || self.jobs.contains(&entry.job)
    }
}

/// The tree.
#[derive(Debug)]
pub(crate) struct JobQueue {
    victims: bool,
    skip: Skip,
    top: Vec<QueueKey>,
    /// As [`Node::checked`], of those without a parent.
    checked: bool,
    nodes: FxHashMap<QueueKey, Node>,
    /// The queue of the job that was taken last, and what that one wanted.
    taken: Option<(QueueKey, Three)>,
}

impl JobQueue {
    /// An empty tree. `victims`: the worst of all first.
    pub(crate) fn new(victims: bool) -> Self {
        Self {
            victims,
            skip: Skip::default(),
            top: Vec::new(),
            checked: false,
            nodes: FxHashMap::default(),
            taken: None,
        }
    }

    /// Adds many jobs: leaves first, so that queues are compared with their best job.
    pub(crate) fn fill(&mut self, state: &State, shares: &Shares, entries: Vec<Entry>) {
        for (queue, jobs) in sorted(state, entries, self.victims) {
            self.link(state, shares, queue, jobs, None);
        }
    }

    /// Adds all that wait and are ready.
    pub(crate) fn fill_with(&mut self, state: &State, shares: &Shares, line: &Line) {
        self.skip.unready = true;
        for (queue, line) in &line.by_queue {
            self.link(state, shares, *queue, Vec::new(), Some(line));
        }
    }

    /// The same with a line of waiting jobs, less those in `skip`. Only for the order of
    /// `entries`: trees of queues with none of these are left out, who have no say in it.
    pub(crate) fn fill_beside(
        &mut self,
        state: &State,
        shares: &Shares,
        entries: Vec<Entry>,
        line: &Line,
        skip: BTreeSet<JobKey>,
    ) {
        self.skip.jobs = skip;
        let root = |key: QueueKey| state.queues.get(key)?.chain.last().copied();
        let own = sorted(state, entries, false);
        let roots: BTreeSet<QueueKey> = own.iter().filter_map(|(key, _)| root(*key)).collect();
        let mut own = own.into_iter().peekable();
        let mut line = line
            .by_queue
            .iter()
            .filter(|(key, _)| root(*key).is_some_and(|root| roots.contains(&root)))
            .peekable();
        let name = |key: QueueKey| state.queues.get(key).map(|row| &row.name);
        loop {
            let order = match (own.peek(), line.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((one, _)), Some((other, _))) => name(*one).cmp(&name(*other)),
            };
            let jobs = (order != Ordering::Greater).then(|| own.next()).flatten();
            let waits = (order != Ordering::Less).then(|| line.next()).flatten();
            let queue = match (&jobs, waits) {
                (Some((queue, _)), _) | (None, Some((queue, _))) => *queue,
                (None, None) => return,
            };
            let jobs = jobs.map(|(_, jobs)| jobs).unwrap_or_default();
            self.link(state, shares, queue, jobs, waits.map(|(_, line)| line));
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
            self.link(state, shares, queue, vec![entry], None);
        }
        self.mark(queue);
    }

    /// A new leaf and what is missing above it.
    fn link(
        &mut self,
        state: &State,
        shares: &Shares,
        queue: QueueKey,
        jobs: Vec<Entry>,
        line: Option<&Arc<Vec<Entry>>>,
    ) {
        let Some(row) = state.queues.get(queue) else {
            return;
        };
        // Only leaf queues hold jobs; a queue that is not there, or goes round, none.
        if !row.children.is_empty() || row.chain.is_empty() {
            return;
        }
        let mut leaf = Node {
            parent: row.chain.get(1).copied(),
            jobs,
            line: line.map(|line| (Arc::clone(line), line.len())),
            children: Vec::new(),
            is_leaf: true,
            stale: false,
            checked: false,
            popped: [0; 3],
            key: Cell::new(None),
        };
        leaf.pass_over(&self.skip);
        if leaf.best().is_none() {
            return;
        }
        let chain = row.chain.clone();
        self.nodes.insert(queue, leaf);
        for (index, key) in chain.iter().enumerate() {
            let parent = chain.get(index + 1).copied();
            match parent {
                None => {
                    self.checked = false;
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
                                line: None,
                                children: Vec::new(),
                                is_leaf: false,
                                stale: false,
                                checked: false,
                                popped: [0; 3],
                                key: Cell::new(None),
                            },
                        );
                    }
                    if let Some(node) = self.nodes.get_mut(&parent) {
                        node.checked = false;
                    }
                    let mut children = self.take_children(parent);
                    children.push(*key);
                    self.sift_up(state, shares, &mut children);
                    let stands = children.first() == Some(key);
                    self.put_children(parent, children);
                    if known && stands {
                        self.uncheck_above(parent);
                    }
                    if known {
                        return;
                    }
                }
            }
        }
    }

    /// The children of a queue, to be put back once some came, went or moved.
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
            node.key.set(None);
            at = node.parent;
        }
    }

    /// The next job.
    pub(crate) fn pop(&mut self, state: &State, shares: &Shares) -> Option<Entry> {
        let mut level = std::mem::take(&mut self.top);
        self.checked |= self.settle(state, shares, &mut level);
        let mut at = level.first().copied();
        self.top = level;
        while let Some(key) = at {
            if self.nodes.get(&key)?.is_leaf {
                break;
            }
            let mut children = self.take_children(key);
            let before = children.first().copied();
            let compared = self.settle(state, shares, &mut children);
            at = children.first().copied();
            self.put_children(key, children);
            if let Some(node) = self.nodes.get_mut(&key) {
                node.checked |= compared;
            }
            if at != before {
                self.uncheck_above(key);
            }
        }
        let leaf = at?;
        let node = self.nodes.get_mut(&leaf)?;
        let entry = node.take(&self.skip)?;
        if self.victims {
            node.popped = plus(node.popped, entry.held);
        }
        self.taken = None;
        if node.best().is_none() {
            self.prune(state, shares, leaf);
        } else {
            self.taken = Some((leaf, entry.wanted));
            self.mark(leaf);
        }
        Some(entry)
    }

    /// Another of its children stands for this queue than when it was compared.
    fn uncheck_above(&mut self, queue: QueueKey) {
        let mut at = Some(queue);
        while let Some(key) = at {
            let Some(node) = self.nodes.get(&key) else {
                return;
            };
            node.key.set(None);
            at = node.parent;
            match at.and_then(|parent| self.nodes.get_mut(&parent)) {
                Some(parent) => parent.checked = false,
                None => self.checked = false,
            }
        }
    }

    /// Nothing has moved since the last job was taken: its queue stays where it is if its
    /// next job wants the same. Only for waiting jobs.
    pub(crate) fn nothing_moved(&mut self) {
        let Some((leaf, wanted)) = self.taken.take() else {
            return;
        };
        let next = self.nodes.get(&leaf).and_then(Node::best);
        if self.victims || next.is_none_or(|next| next.wanted != wanted) {
            return;
        }
        // All of them stood at the head of their level.
        let mut at = Some(leaf);
        while let Some(key) = at
            && let Some(parent) = self.nodes.get(&key).map(|node| node.parent)
        {
            let checked = match parent {
                Some(parent) => self.nodes.get(&parent).is_some_and(|node| node.checked),
                None => self.checked,
            };
            if let Some(node) = self.nodes.get_mut(&key) {
                node.stale &= !checked;
            }
            at = parent;
        }
    }

    /// The job that was taken last found nothing. Those behind it that want the same, and
    /// would find nothing either by `finds_nothing`, are taken too as long as it is their
    /// turn. Only for waiting jobs.
    pub(crate) fn pass_alike(
        &mut self,
        state: &State,
        shares: &Shares,
        mut finds_nothing: impl FnMut(QueueKey, &Entry) -> bool,
    ) {
        let Some((leaf, wanted)) = self.taken else {
            return;
        };
        self.nothing_moved();
        if self.is_stale(leaf) {
            return;
        }
        let Some(node) = self.nodes.get_mut(&leaf) else {
            return;
        };
        while let Some(best) = node.best()
            && best.wanted == wanted
            && finds_nothing(leaf, best)
        {
            let job = best.job;
            node.drop_best(job, &self.skip);
        }
        match node.best() {
            None => self.prune(state, shares, leaf),
            Some(best) if best.wanted != wanted => self.mark(leaf),
            Some(_) => {}
        }
    }

    /// The queue, or one above it, is to be compared before the next job is taken.
    fn is_stale(&self, queue: QueueKey) -> bool {
        let mut at = Some(queue);
        while let Some(node) = at.and_then(|key| self.nodes.get(&key)) {
            if node.stale {
                return true;
            }
            at = node.parent;
        }
        false
    }

    /// Other queues than that of the job that was taken last have moved.
    pub(crate) fn others_moved(&mut self) {
        self.checked = false;
        for node in self.nodes.values_mut() {
            node.checked = false;
            node.key.set(None);
        }
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
            match parent.map(|parent| self.nodes.get_mut(&parent)) {
                Some(Some(node)) => node.checked = false,
                Some(None) => {}
                None => self.checked = false,
            }
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

    /// Puts what changed at the head in its place until the head is as it should be. True
    /// when it was compared with who comes next.
    fn settle(&mut self, state: &State, shares: &Shares, level: &mut [QueueKey]) -> bool {
        let mut compared = false;
        while let Some(head) = level.first().copied()
            && let Some(node) = self.nodes.get_mut(&head)
            && std::mem::take(&mut node.stale)
        {
            self.sift_down(state, shares, level);
            compared = true;
        }
        compared
    }

    /// The best job below a queue, and what of it matters to order.
    fn candidate(&self, key: QueueKey) -> Candidate {
        let mut at = key;
        while let Some(node) = self.nodes.get(&at) {
            if let Some(entry) = node.best() {
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

    fn key(&self, state: &State, shares: &Shares, queue: QueueKey) -> Option<queue_order::Key> {
        let node = self.nodes.get(&queue)?;
        let key = || queue_order::Key::of(state, shares, &self.candidate(queue));
        if node.key.get().is_none() {
            node.key.set(key());
        }
        debug_assert_eq!(node.key.get(), key(), "what decides of a queue has changed");
        node.key.get()
    }

    fn goes_first(&self, state: &State, shares: &Shares, one: QueueKey, other: QueueKey) -> bool {
        let key = |queue| (queue, self.key(state, shares, queue));
        let order = queue_order::compare(state, shares, key(one), key(other));
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
