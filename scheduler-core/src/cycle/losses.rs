//! What queues would lose to a reclaim, in the pieces in which it is judged, and what they hold by
//! places that the same decision has given.
//!
//! Input: the cells inside a trial, after all pods were placed again. Output: numbers for
//! [`super::reclaim`], which judges them.

use super::Cycle;
use super::plan::is_new;
use super::scenario::Scenario;
use crate::product_quota::ProductAmounts;
use crate::shares::{QueueAmounts, plus};
use crate::state::keys::{NodeKey, QueueKey, TaskKey};
use crate::state::products::ProductAmount;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What queues hold by the places that the current decision has given, or promised.
#[derive(Default)]
pub(super) struct NewPlaces {
    pub amounts: BTreeMap<QueueKey, QueueAmounts>,
    pub products: BTreeMap<QueueKey, ProductAmounts>,
}

/// What queues lose.
pub(super) type VictimChunks = Vec<(QueueKey, Losses)>;

/// What one queue loses.
#[derive(Default)]
pub(super) struct Losses {
    /// Chunks in the order in which they are judged.
    pub chunks: Vec<Chunk>,
    /// GPUs of victims that get others, of another product.
    pub exchanged: ProductAmounts,
}

/// Victims that are judged together.
#[derive(Default)]
pub(super) struct Chunk {
    pub lost: QueueAmounts,
    /// Of it, GPUs of products. Empty where no queue names any.
    pub products: ProductAmounts,
    /// Some pod of it had its place before this decision.
    pub runs: bool,
}

impl Chunk {
    fn add(&mut self, other: Self) {
        self.lost = plus(self.lost, other.lost);
        self.runs |= other.runs;
        for (product, lost) in other.products {
            *self.products.entry(product).or_default() += lost;
        }
    }
}

/// Victims that would really leave, by queue: extra pods one by one, cores whole.
pub(super) fn chunks(cycle: &Cycle, scenario: &Scenario) -> VictimChunks {
    let mut by_queue: VictimChunks = Vec::new();
    for unit in scenario.by_job() {
        let Some(queue) = cycle.state.jobs.get(unit.job).and_then(|row| row.queue) else {
            continue;
        };
        let gang = cycle.gang(unit.job);
        let (mut single, mut core): (Vec<Chunk>, Option<Chunk>) = (Vec::new(), None);
        let mut exchanged = ProductAmounts::new();
        for set in &gang.sets {
            let of_set = unit
                .tasks
                .iter()
                .filter(|task| set.tasks.iter().any(|(one, _)| one == *task));
            for (index, task) in of_set.enumerate() {
                let cell = cycle.state.cell(*task);
                let leaving = cell.leaving.as_ref();
                let holds = leaving.map_or(&[][..], |leaving| leaving.holds());
                let lost = cycle.state.charge(*task, holds);
                let had = leaving.map(|leaving| leaving.node);
                let had = had.and_then(|node| product_at(cycle, *task, node, lost[0]));
                // A pod with another place does not count as lost.
                if cell.status.is_allocated() {
                    let has = cell
                        .node
                        .and_then(|node| product_at(cycle, *task, node, lost[0]));
                    if let Some((product, lost)) = had.filter(|had| Some(had) != has.as_ref()) {
                        *exchanged.entry(product).or_default() += lost;
                    }
                    continue;
                }
                let chunk = Chunk {
                    lost,
                    products: had.into_iter().collect(),
                    runs: !is_new(&cell),
                };
                // What leaves of a semi-preemptible job is never part of its core, unless it is idle.
                let keeps_core =
                    cycle.is_semi_preemptible(unit.job) && !cycle.state.gives_way(unit.job);
                if index < set.min as usize && !keeps_core {
                    core.get_or_insert_default().add(chunk);
                } else {
                    single.push(chunk);
                }
            }
        }
        single.extend(core);
        if single.is_empty() && exchanged.is_empty() {
            continue;
        }
        let at = by_queue.iter().position(|(known, _)| *known == queue);
        let at = at.unwrap_or_else(|| {
            by_queue.push((queue, Losses::default()));
            by_queue.len() - 1
        });
        let losses = &mut by_queue[at].1;
        losses.chunks.extend(single);
        for (product, lost) in exchanged {
            *losses.exchanged.entry(product).or_default() += lost;
        }
    }
    by_queue
}

/// So much of the node's product. `None`: no queue names any, or it is not known.
fn product_at(
    cycle: &Cycle,
    task: TaskKey,
    node: NodeKey,
    nano: u128,
) -> Option<(Arc<str>, ProductAmount)> {
    let counts = nano > 0 && cycle.state.has_product_quotas();
    let product = cycle.state.product_of(node).filter(|_| counts)?;
    let amount = cycle.state.product_amount(task, product, nano);
    Some((Arc::clone(&product.name), amount))
}

impl Cycle<'_> {
    /// The places that this decision has given so far, and how many pods were looked at. A victim that
    /// is moved has its place from before.
    pub(super) fn new_places(&self) -> (NewPlaces, u64) {
        let (mut new, mut places) = (NewPlaces::default(), 0);
        for task in self.plan.places() {
            places += 1;
            let cell = self.state.cell(task);
            if !is_new(&cell) && cell.leaving.is_some() {
                continue;
            }
            let leaving = cell.leaving.as_ref();
            let holds = leaving.map_or(cell.holds(), |leaving| leaving.holds());
            let amounts = self.state.charge(task, holds);
            let node = leaving.map(|leaving| leaving.node).or(cell.node);
            let product = node.and_then(|node| product_at(self, task, node, amounts[0]));
            for queue in self.state.queues_of(task) {
                let sum = new.amounts.entry(*queue).or_default();
                *sum = plus(*sum, amounts);
                if let Some((product, amount)) = &product {
                    let of = new.products.entry(*queue).or_default();
                    *of.entry(Arc::clone(product)).or_default() += *amount;
                }
            }
        }
        (new, places)
    }
}

/// What a job gets of each product with the places that these pods have.
pub(super) fn gains(cycle: &Cycle, tasks: &[TaskKey]) -> ProductAmounts {
    let mut gains = ProductAmounts::new();
    for task in tasks.iter().filter(|_| cycle.state.has_product_quotas()) {
        let cell = cycle.state.cell(*task);
        let node = cell.node.filter(|_| cell.status.is_allocated());
        let nano = cycle.state.charge(*task, cell.holds())[0];
        if let Some((product, gain)) = node.and_then(|node| product_at(cycle, *task, node, nano)) {
            *gains.entry(product).or_default() += gain;
        }
    }
    gains
}
