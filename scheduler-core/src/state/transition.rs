//! The only place where sums move: a task goes from one cell to another.

use crate::ids::{DecisionId, ResourceName};
use crate::model::{Attachment, Front, HostPort, Preemptibility};
use crate::state::card_use::CardSums;
use crate::state::cell::Cell;
use crate::state::core_pods::CorePod;
use crate::state::hold::Hold;
use crate::state::keys::{CardKey, JobKey, NodeKey, QueueKey, TaskKey};
use crate::state::node_use::Amounts;
use crate::state::queue_use::Charged;
use crate::state::spec::{Spec, counted_gpus};
use crate::state::task_cell::{Status, TaskCell};
use crate::state::way::{As, Way};
use crate::state::{DetachedPod, State, footprint};
use crate::units::NanoGpu;
use std::sync::Arc;

impl State {
    /// Moves a task, and every sum with it.
    pub(crate) fn transition(&mut self, key: TaskKey, to: TaskCell) {
        let Some(from) = self.cells.tasks.get(key).cloned() else {
            return;
        };
        if from == to {
            return;
        }
        let wrong = std::cell::Cell::new(false);
        let (out, into) = (
            Way {
                comes: false,
                wrong: &wrong,
            },
            Way {
                comes: true,
                wrong: &wrong,
            },
        );
        self.move_sums(key, &from, out);
        self.move_sums(key, &to, into);
        // Most moves within a node, as to the cards that are chosen, are none for queues.
        let (had, has) = (self.charged_at(key, &from), self.charged_at(key, &to));
        if had != has {
            self.move_allocated(key, had, out);
            self.move_allocated(key, has, into);
        }
        if from.places() != to.places() && !self.move_claims(key, from.places(), to.places()) {
            wrong.set(true);
        }
        self.move_devices(key, &from, &to);
        if wrong.get() {
            self.contradicts("more was to leave a sum than it had, or to enter than it can hold");
        }
        self.set(Cell::Task(key, to));
        self.move_core(key);
    }

    /// Brings the core of a pod's job up to date after the pod has moved.
    fn move_core(&mut self, task: TaskKey) {
        let Some(row) = self.tasks.get(task) else {
            return;
        };
        if let Some(job) = row.job
            && self.preemptibility(row) == Preemptibility::SemiPreemptible
        {
            self.refresh_core(job);
        }
    }

    /// Brings the core of a job up to date, and with it the sums of non-preemptible pods of its queues.
    /// The core depends on where the job's pods are, and on how many of them have succeeded.
    pub(crate) fn refresh_core(&mut self, job: JobKey) {
        let core: Vec<CorePod> = self
            .core_of(job)
            .into_iter()
            .filter_map(|task| {
                let (node, charge) = self.charged_at(task, self.cells.tasks.get(task)?)?;
                Some(CorePod { task, node, charge })
            })
            .collect();
        let had: Arc<[CorePod]> = self.cells.cores.get(job).cloned().unwrap_or_default();
        if *had == *core {
            return;
        }
        let wrong = std::cell::Cell::new(false);
        let way = |comes| Way {
            comes,
            wrong: &wrong,
        };
        for pod in had.iter().filter(|pod| !core.contains(pod)) {
            self.move_charge(pod.task, (pod.node, pod.charge), Charged::Fixed, way(false));
        }
        for pod in core.iter().filter(|pod| !had.contains(pod)) {
            self.move_charge(pod.task, (pod.node, pod.charge), Charged::Fixed, way(true));
        }
        if wrong.get() {
            self.contradicts("a core was to leave a sum that did not have it");
        }
        let core = Some(core).filter(|core| !core.is_empty());
        self.set(Cell::Core(job, core.map(Arc::from)));
    }

    /// Gives the place of an assumed task its decision. No sum depends on it.
    pub(crate) fn name_decision(&mut self, key: TaskKey, decision: DecisionId) {
        if let Some(cell) = self.cells.tasks.get(key) {
            let decision = Some(Box::new(decision));
            let cell = TaskCell {
                decision,
                ..cell.clone()
            };
            self.set(Cell::Task(key, cell));
        }
    }

    /// Something in here contradicts itself: a defect of this crate. It is kept for
    /// [`crate::Core::violations`], and decisions go on.
    pub(crate) fn contradicts(&mut self, what: &str) {
        /// Enough to see what is wrong.
        const MOST: usize = 64;
        if self.outputs.contradictions.len() < MOST && !self.outputs.contradictions.contains(what) {
            self.outputs.contradictions.insert(what.to_owned());
        }
    }

    fn move_sums(&mut self, key: TaskKey, at: &TaskCell, way: Way) {
        let Some((spec, job, ours)) = self.tasks.get(key).and_then(|row| {
            let spec = self.specs.get(row.spec)?;
            Some((Arc::clone(&spec.spec), row.job, row.facts.ours))
        }) else {
            return;
        };
        if let Some(leaving) = &at.leaving {
            let place = (leaving.node, leaving.front, leaving.holds());
            self.move_place(place, &spec, As::Leaving, way);
        }
        for (node, how) in at.taken() {
            self.move_counts(key, node, how, way);
        }
        if let (Some(node), Some(how)) = (at.node, at.status.counts_as()) {
            self.move_place((node, at.front, at.holds()), &spec, how, way);
            if !ours {
                self.move_foreign(key, node, at.holds(), way);
            }
        }
        // KAI's `Gated` is no `Pending`: it is no claim to a fair share yet.
        if at.status == Status::Pending && self.tasks.get(key).is_some_and(|row| !row.gated) {
            self.move_pending(key, job, way);
        }
    }

    fn move_place(
        &mut self,
        (node, front, holds): (NodeKey, Front, &[Hold]),
        spec: &Spec,
        how: As,
        way: Way,
    ) {
        let counted = u128::from(counted_gpus(spec, front, holds));
        let mut used = self.cells.nodes.get(node).copied().unwrap_or_default();
        let change = |sum: &mut Amounts| {
            way.add(&mut sum.cpu, u128::from(spec.cpu.0));
            way.add(&mut sum.memory, u128::from(spec.memory.0));
            way.add(&mut sum.pods, 1);
            way.add(&mut sum.gpus, counted);
        };
        match how {
            As::Taken => change(&mut used.used),
            As::Leaving => {
                change(&mut used.used);
                change(&mut used.releasing);
            }
            As::Promised => change(&mut used.promised),
        }
        self.set(Cell::Node(node, used));
        for (name, amount) in &spec.extended {
            self.move_extra(node, name.clone(), u128::from(*amount), how, way);
        }
        for name in spec.ports.iter().flat_map(HostPort::counted_as) {
            self.move_extra(node, name, 1, how, way);
        }
        for attachment in &spec.attachments {
            self.move_attachment(node, attachment, how, way);
        }
        for (card, takes) in footprint::of_pod(holds) {
            self.move_card(card, takes.sums, how, way);
        }
    }

    fn move_extra(&mut self, node: NodeKey, name: ResourceName, amount: u128, how: As, way: Way) {
        let key = (node, name);
        let mut extra = self.cells.extra.get(&key).copied().unwrap_or_default();
        extra.add(amount, how, way);
        self.set(Cell::Extra(key.0, key.1, extra));
    }

    /// The pods that use the volume, and whether it counts towards the limit of the node.
    fn move_attachment(&mut self, node: NodeKey, attachment: &Attachment, how: As, way: Way) {
        let [pods, volumes] = attachment.counted_as();
        let use_of = |state: &Self, name: &ResourceName| {
            let used = state.cells.extra.get(&(node, name.clone()));
            used.copied().unwrap_or_default()
        };
        let before = use_of(self, &pods).as_one();
        self.move_extra(node, pods.clone(), 1, how, way);
        let after = use_of(self, &pods).as_one();
        if before == after {
            return;
        }
        let mut all = use_of(self, &volumes);
        for (sum, (before, after)) in [
            (&mut all.used, (before.used, after.used)),
            (&mut all.releasing, (before.releasing, after.releasing)),
            (&mut all.promised, (before.promised, after.promised)),
        ] {
            *sum = (*sum + after).saturating_sub(before);
        }
        self.set(Cell::Extra(node, volumes, all));
    }

    fn move_foreign(&mut self, key: TaskKey, node: NodeKey, holds: &[Hold], way: Way) {
        let amounts = self.charge(key, holds);
        let mut used = self.cells.nodes.get(node).copied().unwrap_or_default();
        for (sum, amount) in used.foreign.iter_mut().zip(amounts) {
            way.add(sum, amount);
        }
        self.set(Cell::Node(node, used));
    }

    fn move_card(&mut self, card: CardKey, takes: CardSums, how: As, way: Way) {
        let Some(mut used) = self.cells.cards.get(card).copied() else {
            return;
        };
        let change = |sums: &mut CardSums| {
            way.add(&mut sums.limits, takes.limits);
            way.add(&mut sums.tops, takes.tops);
            way.add(&mut sums.nominal, takes.nominal);
            sums.squares = if way.comes {
                sums.squares.wrapping_add(takes.squares)
            } else {
                sums.squares.wrapping_sub(takes.squares)
            };
            for (count, holds) in sums.modes.iter_mut().zip(takes.modes) {
                way.count(count, holds);
            }
        };
        match how {
            As::Taken => change(&mut used.held),
            As::Leaving => {
                change(&mut used.held);
                change(&mut used.releasing);
            }
            As::Promised => change(&mut used.promised),
        }
        self.set(Cell::Card(card, used));
    }

    /// What a place counts for in queues: its cards as they were granted, or the whole
    /// GPUs that are only counted; MIG profiles by their slices.
    pub(crate) fn charge(&self, key: TaskKey, holds: &[Hold]) -> [u128; 3] {
        let Some(spec) = self.tasks.get(key).and_then(|row| self.specs.get(row.spec)) else {
            return [0; 3];
        };
        let one = u128::from(NanoGpu::ONE.0);
        let gpus: u128 = if holds.is_empty() {
            u128::from(spec.gpus()) * one
        } else {
            footprint::of_pod(holds).map(|(_, takes)| takes.nano).sum()
        };
        let claims = spec.device_nano - u128::from(spec.either) * one;
        [
            gpus + spec.mig_nano + claims,
            u128::from(spec.spec.cpu.0),
            u128::from(spec.spec.memory.0),
        ]
    }

    /// Where its queues are charged for it, and what.
    fn charged_at(&self, key: TaskKey, at: &TaskCell) -> Option<(NodeKey, [u128; 3])> {
        let how = at.status.counts_as()?;
        if how == As::Leaving || at.status == Status::Stuck {
            return None;
        }
        Some((at.node?, self.charge(key, at.holds())))
    }

    fn move_allocated(&mut self, key: TaskKey, charged: Option<(NodeKey, [u128; 3])>, way: Way) {
        let (Some(charged), Some(row)) = (charged, self.tasks.get(key)) else {
            return;
        };
        // What counts as non-preemptible of a semi-preemptible job follows from its core.
        let counts = match self.preemptibility(row) {
            Preemptibility::NonPreemptible => Charged::AllocatedAndFixed,
            Preemptibility::Preemptible | Preemptibility::SemiPreemptible => Charged::Allocated,
        };
        self.move_charge(key, charged, counts, way);
    }

    fn move_charge(
        &mut self,
        key: TaskKey,
        (node, amounts): (NodeKey, [u128; 3]),
        counts: Charged,
        way: Way,
    ) {
        let job = self.tasks.get(key).and_then(|row| row.job);
        if self.has_product_quotas() {
            let chain: Vec<QueueKey> = (0..).map_while(|at| self.on_chain(job, at)).collect();
            self.move_products(key, node, (amounts[0], counts), &chain, way);
        }
        for at in 0.. {
            let Some(queue) = self.on_chain(job, at) else {
                break;
            };
            let Some(mut used) = self.cells.queues.get(queue).copied() else {
                continue;
            };
            for (index, amount) in amounts.into_iter().enumerate() {
                if counts != Charged::Fixed {
                    way.add(&mut used.allocated[index], amount);
                }
                if counts != Charged::Allocated {
                    way.add(&mut used.non_preemptible[index], amount);
                }
            }
            self.set(Cell::Queue(queue, used));
        }
    }

    fn move_pending(&mut self, key: TaskKey, job: Option<JobKey>, way: Way) {
        let Some((amounts, mib)) = self
            .tasks
            .get(key)
            .and_then(|row| self.specs.get(row.spec))
            .map(|spec| (spec.request(), spec.share_mib))
        else {
            return;
        };
        for at in 0.. {
            let Some(queue) = self.on_chain(job, at) else {
                break;
            };
            let Some(mut used) = self.cells.queues.get(queue).copied() else {
                continue;
            };
            for (index, amount) in amounts.into_iter().enumerate() {
                way.add(&mut used.pending[index], amount);
            }
            way.add(&mut used.pending_mib, mib);
            self.set(Cell::Queue(queue, used));
        }
    }

    /// The queue of a job (0), or its ancestor at that distance.
    fn on_chain(&self, job: Option<JobKey>, at: usize) -> Option<QueueKey> {
        let queue = self.jobs.get(job?)?.queue?;
        self.queues.get(queue)?.chain.get(at).copied()
    }

    /// Takes a pod out of every sum, so that facts may change on which they depend.
    pub(crate) fn detach(&mut self, task: TaskKey) -> DetachedPod {
        let (given, picked) = (self.claims_of(task), self.picked_for(task));
        let cell = self.cell(task);
        self.transition(task, TaskCell::of(Status::Detached));
        DetachedPod {
            task,
            cell,
            given,
            picked,
        }
    }

    /// Puts it back where it was.
    pub(crate) fn put_back(&mut self, lifted: DetachedPod) {
        let cell = lifted.cell.clone();
        self.transition(lifted.task, cell);
        self.give_back(lifted.given, &lifted.cell);
        self.pick_again(lifted.picked, &lifted.cell);
    }
}
