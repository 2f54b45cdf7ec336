//! Jobs in the order in which they are served: a tree of queues, the best job of the best queue first
//! (KAI, `actions/utils/job_order_by_queue.go`). Victims are taken from the same tree in reverse
//! order.

mod line;
#[cfg(test)]
mod tests;

use crate::queue_order::{self, Candidate};
use crate::shares::{QueueAmounts, Shares, plus};
use crate::state::State;
use crate::state::keys::{JobKey, QueueKey};
pub(crate) use line::{Entry, JobRank, Line, QueueLine, SingletonClass};
use line::{order, sorted};
use rustc_hash::FxHashMap;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A queue that has jobs in the tree, or an ancestor of one.
#[derive(Debug, Default)]
struct Node {
    parent: Option<QueueKey>,
    /// Sorted, the best last. Leaves only.
    jobs: Vec<Entry>,
    /// Jobs of a [`Line`], and how many of them are still in.
    line: Option<(Arc<QueueLine>, usize)>,
    /// A heap, the best first. Inner queues only.
    children: Vec<Sibling>,
    /// What the victims popped so far held.
    popped: QueueAmounts,
    /// What its key among its siblings was computed of.
    basis: Option<KeyInputs>,
}

/// A queue in a heap of siblings, with its key: to look it up for each comparison was a fifth of
/// a decision.
#[derive(Clone, Copy, Debug)]
struct Sibling {
    queue: QueueKey,
    key: Option<queue_order::Key>,
}

impl Sibling {
    /// Not in its place yet.
    fn new(queue: QueueKey) -> Self {
        Self { queue, key: None }
    }
}

/// What the key of a queue is computed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyInputs {
    has: QueueAmounts,
    wanted: QueueAmounts,
    lost: QueueAmounts,
}

impl Node {
    /// The best job.
    fn best(&self) -> Option<&Entry> {
        let own = self.jobs.last();
        let waits = self
            .line
            .as_ref()
            .and_then(|(line, left)| line.entries().get(left.checked_sub(1)?));
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
            .entries()
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
    /// Jobs that are not ready.
    unready: bool,
}

impl Skip {
    fn skips(&self, entry: &Entry) -> bool {
        self.unready && !entry.ready || self.jobs.contains(&entry.job)
    }
}

/// The tree. Between two calls every level is a heap under the keys that its queues have by the
/// state, but for the queue of the job that was taken last: the effect on that queue is computed
/// when the next job is taken.
#[derive(Debug)]
pub(crate) struct JobQueue {
    victims: bool,
    skip: Skip,
    top: Vec<Sibling>,
    nodes: FxHashMap<QueueKey, Node>,
    /// The queue of the job that was taken last, or the nearest of its ancestors that has
    /// jobs left.
    taken: Option<QueueKey>,
    /// What that job wanted, where its queue has jobs left.
    wanted: Option<QueueAmounts>,
    /// Queues with jobs beside a line.
    beside: Vec<QueueKey>,
}

impl JobQueue {
    /// An empty tree. `victims`: the worst of all first.
    pub(crate) fn new(victims: bool) -> Self {
        Self {
            victims,
            skip: Skip::default(),
            top: Vec::new(),
            nodes: FxHashMap::default(),
            taken: None,
            wanted: None,
            beside: Vec::new(),
        }
    }

    /// Adds many jobs to an empty tree.
    pub(crate) fn fill(&mut self, state: &State, shares: &Shares, entries: Vec<Entry>) {
        for (queue, jobs) in sorted(state, entries, self.victims) {
            self.link(state, queue, jobs, None);
        }
        self.arrange(state, shares);
    }

    /// Adds all that wait and are ready to an empty tree.
    pub(crate) fn fill_with(&mut self, state: &State, shares: &Shares, line: &Line) {
        self.skip.unready = true;
        for (queue, line) in &line.by_queue {
            self.link(state, *queue, Vec::new(), Some(line));
        }
        self.arrange(state, shares);
    }

    /// The same with a line of waiting jobs, and these jobs beside it, which are not taken from the
    /// line. Only for [`Self::pop_own`]: trees of queues with none of these are left out.
    pub(crate) fn fill_beside(
        &mut self,
        state: &State,
        shares: &Shares,
        entries: Vec<Entry>,
        line: &Line,
    ) {
        self.skip.jobs = entries.iter().map(|entry| entry.job).collect();
        let root = |key: QueueKey| state.queues.get(key)?.chain.last().copied();
        let own = sorted(state, entries, false);
        self.beside = own.iter().map(|(key, _)| *key).collect();
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
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((one, _)), Some((other, _))) => name(*one).cmp(&name(*other)),
            };
            let jobs = (order != Ordering::Greater).then(|| own.next()).flatten();
            let waits = (order != Ordering::Less).then(|| line.next()).flatten();
            let queue = match (&jobs, waits) {
                (Some((queue, _)), _) | (None, Some((queue, _))) => *queue,
                (None, None) => break,
            };
            let jobs = jobs.map(|(_, jobs)| jobs).unwrap_or_default();
            self.link(state, queue, jobs, waits.map(|(_, line)| line));
        }
        self.beside.retain(|leaf| self.nodes.contains_key(leaf));
        if self.beside.len() > 1 {
            self.arrange(state, shares);
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
            self.link(state, queue, vec![entry], None);
        }
        self.rekey(state, shares, queue);
    }

    /// A new leaf and its missing ancestors, not in their places yet.
    fn link(
        &mut self,
        state: &State,
        queue: QueueKey,
        jobs: Vec<Entry>,
        line: Option<&Arc<QueueLine>>,
    ) {
        let Some(row) = state.queues.get(queue) else {
            return;
        };
        // Only leaf queues hold jobs; a missing queue, or one in a cycle of parents, holds none.
        if !row.children.is_empty() || row.chain.is_empty() {
            return;
        }
        let mut leaf = Node {
            parent: row.chain.get(1).copied(),
            jobs,
            line: line.map(|line| (Arc::clone(line), line.entries().len())),
            ..Node::default()
        };
        leaf.pass_over(&self.skip);
        if leaf.best().is_none() {
            return;
        }
        self.nodes.insert(queue, leaf);
        for (index, key) in row.chain.iter().enumerate() {
            let Some(parent) = row.chain.get(index + 1) else {
                self.top.push(Sibling::new(*key));
                return;
            };
            let known = self.nodes.contains_key(parent);
            let node = self.nodes.entry(*parent).or_insert_with(|| Node {
                parent: row.chain.get(index + 2).copied(),
                ..Node::default()
            });
            node.children.push(Sibling::new(*key));
            if known {
                return;
            }
        }
    }

    /// Puts all queues into their places, the lowest levels first: a queue is compared with
    /// the best job of its best child.
    pub(crate) fn arrange(&mut self, state: &State, shares: &Shares) {
        self.arrange_level(state, shares, None);
    }

    fn arrange_level(&mut self, state: &State, shares: &Shares, parent: Option<QueueKey>) {
        let mut level = self.take_level(parent);
        for sibling in &mut level {
            self.arrange_level(state, shares, Some(sibling.queue));
            self.refresh_key(state, shares, sibling);
        }
        for end in 1..=level.len() {
            self.sift_up(state, shares, &mut level[..end]);
        }
        self.put_level(parent, level);
    }

    /// The children of a queue, or the queues without a parent, to be put back.
    fn take_level(&mut self, parent: Option<QueueKey>) -> Vec<Sibling> {
        match parent {
            None => std::mem::take(&mut self.top),
            Some(parent) => self
                .nodes
                .get_mut(&parent)
                .map(|node| std::mem::take(&mut node.children))
                .unwrap_or_default(),
        }
    }

    fn put_level(&mut self, parent: Option<QueueKey>, level: Vec<Sibling>) {
        match parent {
            None => self.top = level,
            Some(parent) => {
                if let Some(node) = self.nodes.get_mut(&parent) {
                    node.children = level;
                }
            }
        }
    }

    /// Computes the key of a queue. False if it has not changed.
    fn refresh_key(&mut self, state: &State, shares: &Shares, sibling: &mut Sibling) -> bool {
        let queue = sibling.queue;
        let basis = self.basis(state, queue);
        let Some(node) = self.nodes.get_mut(&queue) else {
            return false;
        };
        if node.basis.replace(basis) == Some(basis) {
            return false;
        }
        let candidate = Candidate {
            queue,
            wanted: basis.wanted,
            lost: basis.lost,
        };
        sibling.key = queue_order::Key::of(state, shares, &candidate);
        true
    }

    /// A queue's allocation, and what the best job below it wants or loses: by the key of its best
    /// child, which was computed before it. A new search for that job from each level would cost
    /// the depth of the tree squared.
    fn basis(&self, state: &State, queue: QueueKey) -> KeyInputs {
        let mut basis = KeyInputs {
            has: state
                .cells
                .queues
                .get(queue)
                .map(|used| used.allocated)
                .unwrap_or_default(),
            wanted: [0; 3],
            lost: [0; 3],
        };
        let Some(node) = self.nodes.get(&queue) else {
            return basis;
        };
        if let Some(entry) = node.best() {
            basis.wanted = entry.wanted;
            basis.lost = plus(node.popped, entry.held);
        } else if let Some(below) = node
            .children
            .first()
            .and_then(|child| self.nodes.get(&child.queue)?.basis)
        {
            basis.wanted = below.wanted;
            basis.lost = below.lost;
        }
        basis
    }

    /// A job of the queue came, went or was placed: it and its ancestors are put into their
    /// places.
    fn rekey(&mut self, state: &State, shares: &Shares, queue: QueueKey) {
        let mut at = Some(queue);
        while let Some(key) = at
            && let Some(parent) = self.nodes.get(&key).map(|node| node.parent)
        {
            let mut level = self.take_level(parent);
            let index = level.iter().position(|sibling| sibling.queue == key);
            let sibling = index.and_then(|index| level.get_mut(index));
            let moved = sibling.is_some_and(|sibling| self.refresh_key(state, shares, sibling));
            if let Some(index) = index.filter(|_| moved) {
                self.sift_up(state, shares, &mut level[..=index]);
                self.sift_down(state, shares, &mut level, index);
            }
            self.put_level(parent, level);
            // What a queue has moves with what its ancestors have.
            if !moved {
                return;
            }
            at = parent;
        }
    }

    /// The next job.
    pub(crate) fn pop(&mut self, state: &State, shares: &Shares) -> Option<Entry> {
        self.wanted = None;
        if let Some(queue) = self.taken.take() {
            self.rekey(state, shares, queue);
        }
        debug_assert!(self.is_in_order(state), "a queue is out of place");
        let mut leaf = self.top.first()?.queue;
        while let Some(child) = self.nodes.get(&leaf)?.children.first() {
            leaf = child.queue;
        }
        let node = self.nodes.get_mut(&leaf)?;
        let entry = node.take(&self.skip)?;
        if self.victims {
            node.popped = plus(node.popped, entry.held);
        }
        if node.best().is_none() {
            self.taken = self.prune(state, shares, leaf);
        } else {
            self.taken = Some(leaf);
            self.wanted = Some(entry.wanted);
        }
        Some(entry)
    }

    /// The job that was taken last found nothing, and nothing has moved since. Those behind it
    /// that would find nothing either by `finds_nothing` are taken out too, as long as it would be
    /// their turn, one after the other: while they want the same, or no other queue has jobs. Only
    /// for waiting jobs.
    pub(crate) fn pass_alike(
        &mut self,
        state: &State,
        shares: &Shares,
        mut finds_nothing: impl FnMut(QueueKey, &Entry) -> bool,
    ) {
        let (Some(leaf), Some(wanted)) = (self.taken, self.wanted) else {
            return;
        };
        let one_leaf = self.has_one_leaf();
        let Some(node) = self.nodes.get_mut(&leaf) else {
            return;
        };
        while let Some(best) = node.best()
            && (one_leaf || best.wanted == wanted)
            && finds_nothing(leaf, best)
        {
            let job = best.job;
            node.drop_best(job, &self.skip);
        }
        if node.best().is_none() {
            self.taken = self.prune(state, shares, leaf);
            self.wanted = None;
        }
    }

    /// One queue alone has jobs: they follow each other.
    fn has_one_leaf(&self) -> bool {
        let mut level = &self.top;
        while let [only] = level.as_slice()
            && let Some(node) = self.nodes.get(&only.queue)
        {
            if node.children.is_empty() {
                return true;
            }
            level = &node.children;
        }
        false
    }

    /// The next of the jobs that are in the tree beside a line. Those of the line before it take
    /// their turns and get nothing, and so do all behind them that want the same; how many turns
    /// were taken is added to `turns`. Where the jobs left are all of one queue, their ranks alone
    /// decide: the line is passed over.
    pub(crate) fn pop_own(
        &mut self,
        state: &State,
        shares: &Shares,
        turns: &mut u64,
    ) -> Option<Entry> {
        loop {
            match self.beside.as_slice() {
                [] => return None,
                [leaf] => return self.nodes.get_mut(leaf)?.jobs.pop(),
                _ => {}
            }
            *turns += 1;
            let entry = self.pop(state, shares)?;
            if self.skip.jobs.contains(&entry.job) {
                let nodes = &self.nodes;
                let has_own = |leaf: &QueueKey| {
                    let node: Option<&Node> = nodes.get(leaf);
                    node.is_some_and(|node| !node.jobs.is_empty())
                };
                self.beside.retain(has_own);
                return Some(entry);
            }
            self.pass_run(state, shares);
        }
    }

    /// The job that was taken last gets nothing, and neither do those in line behind it that want
    /// the same, up to the first that is in the tree otherwise.
    fn pass_run(&mut self, state: &State, shares: &Shares) {
        let (Some(leaf), Some(wanted)) = (self.taken, self.wanted) else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&leaf) else {
            return;
        };
        if let Some((line, left)) = &mut node.line
            && let Some(last) = left.checked_sub(1)
            && (line.entries().get(last)).is_some_and(|next| next.wanted == wanted)
        {
            let after = node.jobs.last().map_or(0, |own| {
                let entries = line.entries();
                entries.partition_point(|entry| entry.rank > own.rank)
            });
            *left = line.run(last).max(after).min(*left);
            node.pass_over(&self.skip);
        }
        if node.best().is_none() {
            self.taken = self.prune(state, shares, leaf);
            self.wanted = None;
        }
    }

    /// Takes an emptied queue, and every ancestor that it empties, out. The nearest ancestor
    /// that is left.
    fn prune(&mut self, state: &State, shares: &Shares, leaf: QueueKey) -> Option<QueueKey> {
        let mut at = leaf;
        loop {
            let parent = self.nodes.remove(&at).and_then(|node| node.parent);
            let mut level = self.take_level(parent);
            if let Some(index) = level.iter().position(|sibling| sibling.queue == at) {
                level.swap_remove(index);
                if index < level.len() {
                    self.sift_up(state, shares, &mut level[..=index]);
                    self.sift_down(state, shares, &mut level, index);
                }
            }
            let emptied = level.is_empty();
            self.put_level(parent, level);
            match parent {
                Some(parent) if emptied => at = parent,
                parent => return parent,
            }
        }
    }

    /// Every level is a heap under the keys that its queues have now. What decides between
    /// equal keys need not be an order: of allocatable shares, each may be the smaller one in
    /// some resource.
    fn is_in_order(&self, state: &State) -> bool {
        let is_current = |sibling: &Sibling| {
            let known = self.nodes.get(&sibling.queue).and_then(|node| node.basis);
            known == Some(self.basis(state, sibling.queue))
        };
        let goes_first = |one: &Sibling, other: &Sibling| match (one.key, other.key) {
            (Some(one), Some(other)) if self.victims => one.cmp(&other).is_gt(),
            (Some(one), Some(other)) => one.cmp(&other).is_lt(),
            _ => false,
        };
        let levels = self.nodes.values().map(|node| &node.children);
        levels.chain([&self.top]).all(|level| {
            level.iter().all(is_current)
                && (1..level.len()).all(|at| !goes_first(&level[at], &level[(at - 1) / 2]))
        })
    }

    fn goes_first(&self, state: &State, shares: &Shares, one: &Sibling, other: &Sibling) -> bool {
        let (one, other) = ((one.queue, one.key), (other.queue, other.key));
        let order = queue_order::compare(state, shares, one, other);
        if self.victims {
            order == Ordering::Greater
        } else {
            order == Ordering::Less
        }
    }

    /// Puts the last of the heap where it belongs.
    fn sift_up(&self, state: &State, shares: &Shares, heap: &mut [Sibling]) {
        let mut index = heap.len().saturating_sub(1);
        while index > 0 {
            let parent = (index - 1) / 2;
            if !self.goes_first(state, shares, &heap[index], &heap[parent]) {
                break;
            }
            heap.swap(index, parent);
            index = parent;
        }
    }

    fn sift_down(&self, state: &State, shares: &Shares, heap: &mut [Sibling], from: usize) {
        let mut index = from;
        loop {
            let left = 2 * index + 1;
            if left >= heap.len() {
                return;
            }
            let right = left + 1;
            let best = if right < heap.len()
                && self.goes_first(state, shares, &heap[right], &heap[left])
            {
                right
            } else {
                left
            };
            if !self.goes_first(state, shares, &heap[best], &heap[index]) {
                return;
            }
            heap.swap(index, best);
            index = best;
        }
    }
}
