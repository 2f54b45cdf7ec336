//! The only place where sums move: a task goes from one cell to another.

use super::State;
use super::cell::{Amounts, Cell, QueueUse, Status, TaskCell};
use super::rows::{Hold, Spec, TaskKey};
use crate::model::{Ask, Mode};
use crate::units::NanoGpu;

/// Whether a task's amounts come or go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Comes,
    Goes,
}

impl Way {
    fn add(self, sum: u128, amount: u128) -> u128 {
        match self {
            Self::Comes => sum + amount,
            Self::Goes => {
                debug_assert!(sum >= amount, "a sum would fall below zero");
                sum.saturating_sub(amount)
            }
        }
    }

    fn count(self, sum: u32, amount: u32) -> u32 {
        match self {
            Self::Comes => sum.saturating_add(amount),
            Self::Goes => {
                debug_assert!(sum >= amount, "a count would fall below zero");
                sum.saturating_sub(amount)
            }
        }
    }
}

/// Whole GPUs that a spec takes of a node, by the kubelet's rule: the sum of the app
/// containers, or the largest init container where that is more.
pub(crate) fn whole_gpus(spec: &Spec) -> u32 {
    let mut apps = 0_u32;
    let mut inits = 0_u32;
    for ask in &spec.gpus {
        if let Ask::Whole(count) = ask.ask {
            if ask.init {
                inits = inits.max(count);
            } else {
                apps = apps.saturating_add(count);
            }
        }
    }
    apps.max(inits)
}

fn mode_index(mode: Mode) -> usize {
    Mode::ALL
        .iter()
        .position(|candidate| *candidate == mode)
        .unwrap_or_default()
}

impl State {
    /// Moves a task, and every sum with it.
    pub(crate) fn transition(&mut self, key: TaskKey, to: TaskCell) {
        let Some(from) = self.task_cells.get(key).cloned() else {
            return;
        };
        if from == to {
            return;
        }
        self.move_sums(key, &from, Way::Goes);
        self.set(Cell::Task(key, to.clone()));
        self.move_sums(key, &to, Way::Comes);
    }

    fn move_sums(&mut self, key: TaskKey, at: &TaskCell, way: Way) {
        let holding = matches!(
            at.status,
            Status::Assumed | Status::Bound | Status::Running | Status::Releasing
        );
        let (Some(node), true) = (at.node, holding) else {
            return;
        };
        let Some(row) = self.tasks.get(key) else {
            return;
        };
        let Some(spec) = self
            .specs
            .get(row.spec)
            .map(|row| std::sync::Arc::clone(&row.spec))
        else {
            return;
        };
        let job = row.job;
        let preemptible = self.preemptible(row);
        let releasing = at.status == Status::Releasing;

        let counted_gpus = if at.holds().is_empty() {
            u128::from(whole_gpus(&spec))
        } else {
            0
        };
        let mut used = self.node_use.get(node).copied().unwrap_or_default();
        let mut sums = vec![&mut used.used];
        if releasing {
            sums.push(&mut used.releasing);
        }
        for sum in sums {
            *sum = Amounts {
                cpu: way.add(sum.cpu, u128::from(spec.cpu.0)),
                memory: way.add(sum.memory, u128::from(spec.memory.0)),
                pods: way.add(sum.pods, 1),
                gpus: way.add(sum.gpus, counted_gpus),
            };
        }
        self.set(Cell::Node(node, used));

        for (name, amount) in &spec.extended {
            let mut extra = self
                .extra_use
                .get(&(node, name.clone()))
                .copied()
                .unwrap_or_default();
            extra.used = way.add(extra.used, u128::from(*amount));
            if releasing {
                extra.releasing = way.add(extra.releasing, u128::from(*amount));
            }
            self.set(Cell::Extra(node, name.clone(), extra));
        }

        let mut nano = counted_gpus * u128::from(NanoGpu::ONE.0);
        for hold in at.holds().iter().filter(|hold| !hold.lent) {
            nano += u128::from(hold.nano);
            self.move_hold(hold, releasing, way);
        }
        if !releasing {
            self.move_queue(
                job,
                preemptible,
                [nano, u128::from(spec.cpu.0), u128::from(spec.memory.0)],
                way,
            );
        }
    }

    fn move_hold(&mut self, hold: &Hold, releasing: bool, way: Way) {
        let Some(mut used) = self.card_use.get(hold.card).copied() else {
            return;
        };
        used.limits = way.add(used.limits, u128::from(hold.limit.0));
        used.nominal = way.add(used.nominal, u128::from(hold.nominal.0));
        let mode = mode_index(hold.mode);
        used.modes[mode] = way.count(used.modes[mode], 1);
        if releasing {
            used.releasing = way.count(used.releasing, 1);
        }
        self.set(Cell::Card(hold.card, used));
    }

    /// Moves the sums of the job's queue; its ancestors' are added up where needed.
    fn move_queue(
        &mut self,
        job: Option<super::rows::JobKey>,
        preemptible: bool,
        amounts: [u128; 3],
        way: Way,
    ) {
        let Some(queue) = job
            .and_then(|job| self.jobs.get(job))
            .and_then(|job| job.queue)
        else {
            return;
        };
        let Some(mut used) = self.queue_use.get(queue).copied() else {
            return;
        };
        let QueueUse {
            allocated,
            non_preemptible,
        } = &mut used;
        for index in 0..amounts.len() {
            allocated[index] = way.add(allocated[index], amounts[index]);
            if !preemptible {
                non_preemptible[index] = way.add(non_preemptible[index], amounts[index]);
            }
        }
        self.set(Cell::Queue(queue, used));
    }
}

impl super::rows::SpecRow {
    pub(crate) fn new(spec: std::sync::Arc<Spec>) -> Self {
        Self {
            whole: whole_gpus(&spec),
            wants_cards: spec.gpus.iter().any(|ask| match &ask.ask {
                Ask::Whole(count) => *count > 0,
                Ask::Share(_) => true,
            }),
            spec,
            users: 1,
            no_fit: None,
        }
    }
}
