//! What queues hold of single GPU products is what their pods add up to, and no decision brings a
//! queue above its limit of one.

use crate::action::{Action, Decision};
use crate::state::State;
use crate::units::Bound;

pub(super) fn check(state: &State, wrong: &mut Vec<String>) {
    // They are rebuilt before they are read.
    if state.queues_dirty || state.products.dirty {
        return;
    }
    let should = state.sum_products();
    for (key, row) in &state.queues {
        let (is, should) = (state.products.of.get(key), should.get(key));
        if is != should {
            let name = &row.name;
            wrong.push(format!(
                "queue {name} has {is:?} of its products, its pods {should:?}"
            ));
        }
    }
}

pub(super) fn check_decided(state: &State, decision: &Decision, wrong: &mut Vec<String>) {
    for action in &decision.actions {
        let Action::Bind(bind) = action else {
            continue;
        };
        let Some(task) = state.task_of(&bind.pod) else {
            continue;
        };
        let node = state.cell(task).node;
        let Some(product) = node.and_then(|node| state.product_of(node)) else {
            continue;
        };
        for queue in state.queues_of(task) {
            let Some(row) = state.queues.get(*queue) else {
                continue;
            };
            let named = row.queue.as_ref().zip(state.product_at(*queue, product));
            let limit = named.and_then(|(queue, at)| Some(queue.products.get(at)?.limit));
            let held = state.products.of.get(*queue);
            let held = held.zip(named).and_then(|(all, (_, at))| all.get(at));
            if let (Some(Bound::Exactly(limit)), Some(held)) = (limit, held)
                && held.allocated > u128::from(limit)
                && state.charge(task, state.cell(task).holds())[0] > 0
            {
                wrong.push(format!(
                    "pod {} brings queue {} above its limit of {product}",
                    bind.pod, row.name
                ));
            }
        }
    }
}
