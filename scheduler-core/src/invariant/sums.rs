//! Every sum, added up again from the tasks, without the code that moves sums.

use crate::ids::{ClaimUid, ResourceName};
use crate::model::{Attachment, Front, HostPort, Preemptibility};
use crate::state::card_use::CardUse;
use crate::state::counted::{CountKey, Who};
use crate::state::extra_use::ExtraUse;
use crate::state::hold::Hold;
use crate::state::keys::{CardKey, NodeKey, QueueKey, TaskKey};
use crate::state::node_use::NodeUse;
use crate::state::queue_use::QueueUse;
use crate::state::rows::TaskRow;
use crate::state::spec::{Spec, whole_gpus};
use crate::state::spec_row::SpecRow;
use crate::state::task_cell::{Status, TaskCell};
use crate::state::way::As;
use crate::state::{State, footprint};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

/// Returns true if the pod counts as non-preemptible. Cores are computed again for this.
fn is_fixed(state: &State, key: TaskKey, row: &TaskRow) -> bool {
    match state.preemptibility(row) {
        Preemptibility::Preemptible => false,
        Preemptibility::SemiPreemptible => {
            row.job.is_some_and(|job| state.core_of(job).contains(&key))
        }
        Preemptibility::NonPreemptible => true,
    }
}

/// What the tasks add up to.
#[derive(Default)]
struct Sums {
    nodes: BTreeMap<NodeKey, NodeUse>,
    extras: BTreeMap<(NodeKey, ResourceName), ExtraUse>,
    cards: BTreeMap<CardKey, CardUse>,
    queues: BTreeMap<QueueKey, QueueUse>,
    /// Pods of domains, where there are any.
    counts: BTreeMap<(CountKey, Arc<str>), ExtraUse>,
    /// Pods that use a volume which is attached.
    attachments: BTreeMap<(NodeKey, Attachment), ExtraUse>,
    /// Pods that use a claim.
    claims: BTreeMap<ClaimUid, u32>,
}

/// Each sum that is another than that of its tasks, a sentence each.
pub(super) fn check(state: &State, wrong: &mut Vec<String>) {
    let sums = Sums::of(state);
    let mut differs = |what: &str, name: &str, is: &dyn Debug, should: &dyn Debug| {
        wrong.push(format!(
            "{what} {name} has {is:?}, its pods have {should:?}"
        ));
    };
    for (key, is) in &state.cells.nodes {
        let should = sums.nodes.get(&key).copied().unwrap_or_default();
        if *is != should {
            let name = state.nodes.get(key).map_or("", |row| row.name.as_str());
            differs("node", name, is, &should);
        }
    }
    for (key, is) in &state.cells.cards {
        let should = sums.cards.get(&key).copied().unwrap_or_default();
        if *is != should {
            let name = state.cards.get(key).map_or("", |row| row.uuid.as_str());
            differs("card", name, is, &should);
        }
    }
    for (key, should) in &sums.extras {
        let is = state.cells.extra.get(key).copied().unwrap_or_default();
        if is != *should {
            let node = state.nodes.get(key.0).map_or("", |row| row.name.as_str());
            differs("resource", &format!("{} of {node}", key.1), &is, should);
        }
    }
    let counted = |extra: &&ExtraUse| **extra != ExtraUse::default();
    let (are, should) = (
        state.cells.extra.len(),
        sums.extras.values().filter(counted).count(),
    );
    if are != should {
        differs("the number of", "resources in use", &are, &should);
    }
    let counts: BTreeMap<(CountKey, Arc<str>), ExtraUse> = state
        .cells
        .pod_counts
        .rows()
        .flat_map(|(key, row)| {
            let domains = row.domains.iter();
            domains.map(move |(domain, used)| ((key, Arc::clone(domain)), *used))
        })
        .collect();
    for row in state.tasks.values() {
        let asks = state.specs.get(row.spec).map(|spec| &spec.spec.others);
        let should = state.others_now(row);
        if asks != Some(&should) {
            differs("pod", &row.uid.to_string(), &asks, &should);
        }
    }
    if counts != sums.counts {
        differs("the counts", "of pods", &counts, &sums.counts);
    }
    let in_use = state.volumes.in_use();
    for (claim, should) in &sums.claims {
        let is = in_use
            .get(claim)
            .map_or(0, |used| used.users.values().sum());
        if is != *should {
            differs("claim", claim.as_str(), &is, should);
        }
    }
    if in_use.len() != sums.claims.len() {
        let (are, should) = (in_use.len(), sums.claims.len());
        differs("the number of", "claims in use", &are, &should);
    }
    let given = state.volumes.given();
    if !state.volumes.are_assigned_once() {
        differs("the claims", "of volumes", &given, &"one volume each");
    }
    // They are rebuilt before they are read.
    if state.changes.queues {
        return;
    }
    for (key, is) in &state.cells.queues {
        let should = sums.queues.get(&key).copied().unwrap_or_default();
        if *is != should {
            let name = state.queues.get(key).map_or("", |row| row.name.as_str());
            differs("queue", name, is, &should);
        }
    }
}

impl Sums {
    fn of(state: &State) -> Self {
        let mut sums = Self::default();
        for (key, cell) in &state.cells.tasks {
            sums.count(state, key, cell);
        }
        for ((node, attachment), used) in std::mem::take(&mut sums.attachments) {
            let [pods, volumes] = attachment.counted_as();
            let (one, of) = (used.as_one(), sums.extras.entry((node, volumes)));
            let of = of.or_default();
            of.used += one.used;
            of.releasing += one.releasing;
            of.promised += one.promised;
            sums.extras.insert((node, pods), used);
        }
        sums
    }

    fn count(&mut self, state: &State, key: TaskKey, cell: &TaskCell) {
        let Some(row) = state.tasks.get(key) else {
            return;
        };
        let Some(spec) = state.specs.get(row.spec) else {
            return;
        };
        let chain = || {
            let queue = state.queues.get(state.jobs.get(row.job?)?.queue?)?;
            Some(queue.chain.as_slice())
        };
        let holds = cell.holds();
        for _ in cell.places().into_iter().flatten() {
            for claim in &spec.spec.claims {
                *self.claims.entry(claim.uid.clone()).or_default() += 1;
            }
        }
        self.count_pod(state, row, spec, cell);
        if let Some(leaving) = &cell.leaving {
            let place = (leaving.node, leaving.front, leaving.holds());
            self.place(place, &spec.spec, As::Leaving);
        }
        let how = match cell.status {
            Status::Assumed | Status::Bound | Status::Running | Status::Stuck => Some(As::Taken),
            Status::Releasing => Some(As::Leaving),
            Status::Promised => Some(As::Promised),
            Status::Pending | Status::Victim | Status::Done | Status::Detached => None,
        };
        if let (Some(node), Some(how)) = (cell.node, how) {
            self.place((node, cell.front, holds), &spec.spec, how);
            if !row.facts.ours {
                let foreign = &mut self.nodes.entry(node).or_default().foreign;
                add(foreign, state.charge(key, holds));
            }
            if cell.status.is_allocated() {
                for queue in chain().unwrap_or_default() {
                    let of = self.queues.entry(*queue).or_default();
                    add(&mut of.allocated, state.charge(key, holds));
                    if is_fixed(state, key, row) {
                        add(&mut of.non_preemptible, state.charge(key, holds));
                    }
                }
            }
        }
        if cell.status == Status::Pending && !row.gated {
            for queue in chain().unwrap_or_default() {
                let of = self.queues.entry(*queue).or_default();
                add(&mut of.pending, spec.request());
                of.pending_mib += spec.share_mib;
            }
        }
    }

    /// By its labels and by its anti-affinity, whatever is remembered of either.
    fn count_pod(&mut self, state: &State, row: &TaskRow, spec: &SpecRow, cell: &TaskCell) {
        let rules = spec.spec.others.as_ref().map(|others| &others.rules);
        let terms = rules.map_or(&[][..], |rules| rules.anti_affinity.as_slice());
        let preferred = rules.map_or(&[][..], |rules| rules.preferred.as_slice());
        for (key, counted) in state.cells.pod_counts.rows() {
            if !counted.is_counted() {
                continue;
            }
            let what = &counted.what;
            let is_counted = match &what.who {
                Who::Matched(all) => {
                    state
                        .cells
                        .pod_counts
                        .all_take(all, &row.facts.namespace, &row.labels)
                }
                Who::Avoiding(pods) => terms.iter().any(|term| {
                    term.pods == *pods && Some(&term.topology_key) == what.topology_key.as_ref()
                }),
                Who::Preferring(pods, weight) => {
                    let mut same = preferred.iter().filter(|one| {
                        let key = Some(&one.term.topology_key);
                        one.term.pods == *pods && key == what.topology_key.as_ref()
                    });
                    let first = same.next().map(|one| one.weight);
                    first.is_some_and(|first| {
                        first + same.map(|one| one.weight).sum::<i32>() == *weight
                    })
                }
            };
            for (node, how) in cell.taken().filter(|_| is_counted) {
                if let Some(domain) = state.domain(node, what) {
                    count(self.counts.entry((key, domain)).or_default(), how);
                }
            }
        }
    }

    fn place(&mut self, (node, front, holds): (NodeKey, Front, &[Hold]), spec: &Spec, how: As) {
        let (taken, leaving) = (how != As::Promised, how == As::Leaving);
        let counts = [taken, leaving, !taken];
        let whole = if holds.is_empty() && front == Front::Plugin {
            whole_gpus(spec)
        } else {
            0
        };
        let of = self.nodes.entry(node).or_default();
        for (sums, counts) in [&mut of.used, &mut of.releasing, &mut of.promised]
            .into_iter()
            .zip(counts)
        {
            if counts {
                sums.cpu += u128::from(spec.cpu.0);
                sums.memory += u128::from(spec.memory.0);
                sums.pods += 1;
                sums.gpus += u128::from(whole);
            }
        }
        for (name, amount) in &spec.extended {
            let of = self.extras.entry((node, name.clone())).or_default();
            for (sum, counts) in [&mut of.used, &mut of.releasing, &mut of.promised]
                .into_iter()
                .zip(counts)
            {
                *sum += if counts { u128::from(*amount) } else { 0 };
            }
        }
        for name in spec.ports.iter().flat_map(HostPort::counted_as) {
            let of = self.extras.entry((node, name)).or_default();
            count(of, how);
        }
        for attachment in &spec.attachments {
            let of = self.attachments.entry((node, attachment.clone()));
            count(of.or_default(), how);
        }
        for (card, takes) in footprint::of_pod(holds) {
            let of = self.cards.entry(card).or_default();
            for (sums, counts) in [&mut of.held, &mut of.releasing, &mut of.promised]
                .into_iter()
                .zip(counts)
            {
                if counts {
                    *sums = sums.plus(takes.sums);
                }
            }
        }
    }
}

fn count(of: &mut ExtraUse, how: As) {
    of.used += u128::from(how != As::Promised);
    of.releasing += u128::from(how == As::Leaving);
    of.promised += u128::from(how == As::Promised);
}

fn add(sums: &mut [u128; 3], amounts: [u128; 3]) {
    for (sum, amount) in sums.iter_mut().zip(amounts) {
        *sum += amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::core::Core;
    use crate::ids::{GpuUuid, VolumeName};
    use crate::text;

    const CLUSTER: &str = "
node n1 cpu=8000 memory=8589934592 pods=10 managed extended.x=4
cards n1 default=mps
  card GPU-1 total=1000
node n2 cpu=8000 memory=8589934592 pods=10 gpus=4
queue department
queue team parent=department
pod runs queue=team cpu=100 memory=1024 extended.x=1 gpu-memory.main=100 non-preemptible on=n1
  grant main cards=GPU-1 memory=100 mode=mps
pod leaves queue=team cpu=200 memory=1024 extended.x=1 gpu-memory.main=200 phase=releasing on=n1
  grant main cards=GPU-1 memory=200 mode=mps
pod stays queue=team cpu=300 memory=1024 gpu-memory.main=300 phase=stuck on=n1
  grant main cards=GPU-1 memory=300 mode=mps
pod promised queue=team cpu=200 memory=1024 extended.x=1 gpu-memory.main=200
pod waits queue=team cpu=400 memory=1024 gpus.main=1 gpu-memory.side=400
pod claims queue=team cpu=100 on=n2
  claim c name=default/c size=10
volume v size=10
pod stranger foreign cpu=500 memory=1024 gpus.main=1 on=n2
";

    /// Of each kind that a sum counts there is a pod.
    fn core() -> Core {
        let mut core = Core::new(Config::verified());
        for event in text::read(CLUSTER).unwrap() {
            assert_eq!(core.apply(event), []);
        }
        let state = core.state_for_tests();
        state.refresh_queues();
        let (leaves, promised) = (
            state.task_of("leaves").unwrap(),
            state.task_of("promised").unwrap(),
        );
        let place = state.cell(leaves);
        state.transition(
            promised,
            TaskCell {
                status: Status::Promised,
                ..place
            },
        );
        assert_eq!(core.violations(), Vec::<String>::new());
        core
    }

    fn node<'a>(state: &'a mut State, name: &str) -> &'a mut NodeUse {
        let key = state.names.nodes[name];
        &mut state.cells.nodes[key]
    }

    fn extra(state: &mut State) -> &mut ExtraUse {
        let key = (state.names.nodes["n1"], ResourceName::new("x"));
        state.cells.extra.get_mut(&key).unwrap()
    }

    fn card(state: &mut State) -> &mut CardUse {
        let node = state.names.nodes["n1"];
        let key = state.names.cards.on(&GpuUuid::new("GPU-1"), node).unwrap();
        &mut state.cells.cards[key]
    }

    fn queue<'a>(state: &'a mut State, name: &str) -> &'a mut QueueUse {
        let key = state.names.queues[name];
        &mut state.cells.queues[key]
    }

    /// What is corrupted, how, and how the sentence about it begins.
    type Case = (&'static str, fn(&mut State), &'static str);

    const CASES: &[Case] = &[
        (
            "CPU in use",
            |state| node(state, "n1").used.cpu += 1,
            "node n1 has ",
        ),
        (
            "memory in use",
            |state| node(state, "n1").used.memory -= 1,
            "node n1 has ",
        ),
        (
            "pods in use",
            |state| node(state, "n1").used.pods -= 1,
            "node n1 has ",
        ),
        (
            "whole GPUs in use",
            |state| node(state, "n2").used.gpus = 0,
            "node n2 has ",
        ),
        (
            "CPU on its way out",
            |state| node(state, "n1").releasing.cpu -= 1,
            "node n1 has ",
        ),
        (
            "promised memory",
            |state| node(state, "n1").promised.memory -= 1,
            "node n1 has ",
        ),
        (
            "GPUs of foreign pods",
            |state| node(state, "n2").foreign[0] = 0,
            "node n2 has ",
        ),
        (
            "CPU of foreign pods",
            |state| node(state, "n2").foreign[1] += 1,
            "node n2 has ",
        ),
        (
            "another resource in use",
            |state| extra(state).used -= 1,
            "resource x of n1 has ",
        ),
        (
            "another resource on its way out",
            |state| extra(state).releasing = 0,
            "resource x of n1 has ",
        ),
        (
            "another resource, promised",
            |state| extra(state).promised += 1,
            "resource x of n1 has ",
        ),
        (
            "another resource, forgotten",
            |state| state.cells.extra.clear(),
            "resource x of n1 has ",
        ),
        (
            "another resource that no pod has",
            |state| {
                let key = (state.names.nodes["n2"], ResourceName::new("x"));
                let used = *extra(state);
                state.cells.extra.insert(key, used);
            },
            "the number of resources in use has ",
        ),
        (
            "a card's memory in use",
            |state| card(state).held.limits -= 1,
            "card GPU-1 has ",
        ),
        (
            "a card's nominal memory in use",
            |state| card(state).held.nominal += 1,
            "card GPU-1 has ",
        ),
        (
            "the squares of a card's limits",
            |state| card(state).held.squares = 0,
            "card GPU-1 has ",
        ),
        (
            "a card's modes",
            |state| card(state).held.modes.reverse(),
            "card GPU-1 has ",
        ),
        (
            "a card's memory on its way out",
            |state| card(state).releasing.limits = 0,
            "card GPU-1 has ",
        ),
        (
            "a card's memory, promised",
            |state| card(state).promised.limits = 0,
            "card GPU-1 has ",
        ),
        (
            "a claim in use",
            |state| state.volumes.forget_use("c"),
            "claim c has ",
        ),
        (
            "a claim that no pod uses",
            |state| state.volumes.use_twice("c", "d"),
            "the number of claims in use has ",
        ),
        (
            "a volume that two claims have",
            |state| {
                let (claim, node) = (ClaimUid::new("c"), state.names.nodes["n2"]);
                state.give(&claim, node, Some(&VolumeName::new("v")));
                state.volumes.use_twice("c", "d");
            },
            "the claims of volumes has ",
        ),
        (
            "what a queue has",
            |state| queue(state, "team").allocated[0] += 1,
            "queue team has ",
        ),
        (
            "what a queue above it has",
            |state| queue(state, "department").allocated[1] -= 1,
            "queue department has ",
        ),
        (
            "what a queue has that is not preemptible",
            |state| queue(state, "team").non_preemptible[2] = 0,
            "queue team has ",
        ),
        (
            "what a queue waits for",
            |state| queue(state, "team").pending[0] = 0,
            "queue team has ",
        ),
        (
            "the GPU memory that a queue above it waits for",
            |state| queue(state, "department").pending_mib = 0,
            "queue department has ",
        ),
    ];

    #[test]
    fn a_sum_that_is_not_what_its_pods_add_up_to_is_named() {
        for (what, corrupt, words) in CASES {
            let mut core = core();
            corrupt(core.state_for_tests());
            let wrong = core.violations();
            assert!(
                wrong.iter().any(|line| line.starts_with(*words)),
                "{what}: {wrong:?}"
            );
        }
    }

    #[test]
    fn sums_of_queues_that_are_to_be_rebuilt_are_not_compared() {
        let mut core = core();
        let state = core.state_for_tests();
        state.changes.queues = true;
        queue(state, "team").allocated[0] += 1;
        assert_eq!(core.violations(), Vec::<String>::new());
    }
}
