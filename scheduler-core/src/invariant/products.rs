//! What queues hold of single GPU products is what their pods add up to, and no decision brings a
//! queue above its limit of one.

use crate::action::{Action, Decision};
use crate::state::State;

pub(super) fn check(state: &State, wrong: &mut Vec<String>) {
    // They are rebuilt before they are read.
    if state.changes.queues || state.cells.products.dirty {
        return;
    }
    let should = state.sum_products();
    for (key, row) in &state.queues {
        let (is, should) = (state.cells.products.of.get(key), should.get(key));
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
        let Some(product) = node.and_then(|node| Some(&state.product_of(node)?.name)) else {
            continue;
        };
        for queue in state.queues_of(task) {
            let Some(row) = state.queues.get(*queue) else {
                continue;
            };
            let named = state.product_at(*queue, product);
            let named = row.queue.as_ref().zip(named);
            let named = named.and_then(|(queue, (at, _))| Some((queue.products.get(at)?, at)));
            let held = state.cells.products.of.get(*queue);
            let held = held.zip(named).and_then(|(all, (_, at))| all.get(at));
            let limit = named.and_then(|(row, _)| row.unit.billionths(row.limit));
            if let (Some(limit), Some(held)) = (limit, held)
                && held.allocated > limit
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

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::core::Core;
    use crate::text;
    use crate::units::Time;

    /// `a` holds two of three, on the way to its limit.
    const CLUSTER: &str = "
node n1 cpu=8000 memory=8589934592 pods=10 gpus=4 label.nvidia.com/gpu.product=L4
queue top product.L4=/3000000000
queue q parent=top product.L4=1000000000/2000000000 product.T4=/0
pod a queue=q cpu=100 gpus.main=2 phase=running on=n1
pod b queue=q cpu=100 gpus.main=1 created=1
";

    fn core() -> Core {
        let mut core = Core::new(Config::default());
        for event in text::read(CLUSTER).unwrap() {
            assert!(core.apply(event).is_empty());
        }
        let decision = core.decide(Time(1));
        assert!(decision.actions.is_empty(), "b is beyond the limit");
        core
    }

    #[test]
    fn a_sum_that_its_pods_do_not_add_up_to_is_found() {
        let mut core = core();
        assert_eq!(core.violations(), Vec::<String>::new());
        let state = core.state_for_tests();
        let key = state.names.queues["q"];
        state.cells.products.of[key][0].allocated -= 1;
        let wrong = core.violations();
        assert!(
            wrong[0].starts_with("queue q has Some([ProductUse"),
            "{wrong:?}"
        );
        // It is rebuilt before it is read.
        core.state_for_tests().cells.products.dirty = true;
        assert_eq!(core.violations(), Vec::<String>::new());
        core.decide(Time(2));
        assert_eq!(core.violations(), Vec::<String>::new());
    }

    #[test]
    fn a_binding_beyond_a_limit_is_found() {
        let mut core = core();
        // A defect that counts less than there is.
        let state = core.state_for_tests();
        for name in ["top", "q"] {
            let key = state.names.queues[name];
            state.cells.products.of[key][0].allocated = 0;
        }
        state.changes.capacity_grew();
        let decision = core.decide(Time(2));
        assert_eq!(decision.actions.len(), 1);
        let state = core.state_for_tests();
        state.cells.products.of = state.sum_products();
        let mut wrong = Vec::new();
        super::check_decided(state, &decision, &mut wrong);
        assert_eq!(wrong, ["pod b brings queue q above its limit of L4"]);
    }
}
