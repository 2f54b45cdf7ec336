//! Minimum run time: a job that started recently is not evicted, or only down to its minimum (KAI,
//! `plugins/minruntime`).
//!
//! For preemption, the setting of the victim's queue or of its nearest ancestor that has one applies.
//! For reclaim, it is the setting of the victim's ancestor directly below the lowest common ancestor
//! of the two queues, or of the nearest queue above it, unless `reclaimResolveMethod` selects the
//! rule of preemption.

use super::Cycle;
use super::scenario::Scenario;
use crate::config::{Plugin, Resolve};
use crate::state::keys::{JobKey, QueueKey};
use crate::units::Duration;

/// Which action asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeRule {
    Preempt,
    Reclaim,
}

impl Cycle<'_> {
    /// Reports groups whose only placed pod had started before it joined them, and groups whose
    /// members have succeeded and are gone.
    pub(super) fn report_lives(&mut self) {
        let mut unreported = std::mem::take(&mut self.state.outputs.unreported);
        unreported.retain(|name| {
            let key = self.state.job_of(name);
            let Some(row) = key.and_then(|key| self.state.jobs.get(key)) else {
                return false;
            };
            let Some(group) = &row.group else {
                return true;
            };
            if let Some(at) = row.last_start.get()
                && group.last_start.get() < Some(at)
            {
                self.decision.started.push((name.clone(), at));
            }
            if row.owes_succeeded() {
                let known = (name.clone(), row.succeeded().clone());
                self.decision.succeeded.push(known);
            }
            false
        });
        self.state.outputs.unreported = unreported;
    }

    /// True while the victim's time is not over.
    pub(super) fn is_protected(
        &mut self,
        kind: RuntimeRule,
        for_queue: Option<QueueKey>,
        victim: JobKey,
    ) -> bool {
        if !self.config.has(Plugin::MinRuntime) {
            return false;
        }
        let Some((queue, started)) = self
            .state
            .jobs
            .get(victim)
            .and_then(|row| Some((row.queue?, row.last_start.get()?)))
        else {
            return false;
        };
        let until = started.after(match kind {
            RuntimeRule::Preempt => self.preempt_time(queue),
            RuntimeRule::Reclaim => self.reclaim_time(for_queue, queue),
        });
        let protected = self.state.now < until;
        if protected {
            self.wake_at(until);
        }
        protected
    }

    /// No protected victim falls below its minimum. A pod that is already leaving does not count as
    /// active; KAI counts it until it has ended, so that there a second job may take what the first
    /// has left.
    pub(super) fn keeps_protected(
        &mut self,
        kind: RuntimeRule,
        for_queue: Option<QueueKey>,
        scenario: &Scenario,
    ) -> bool {
        scenario.by_job().into_iter().all(|unit| {
            let gang = self.gang(unit.job);
            if !gang.is_elastic() || !self.is_protected(kind, for_queue, unit.job) {
                return true;
            }
            gang.sets.iter().all(|set| {
                let stays = set
                    .tasks
                    .iter()
                    .filter(|(task, status)| status.is_allocated() && !unit.tasks.contains(task));
                set.min as usize <= stays.count()
            })
        })
    }

    fn chain(&self, queue: QueueKey) -> &[QueueKey] {
        self.state
            .queues
            .get(queue)
            .map_or(&[], |row| row.chain.as_slice())
    }

    fn preempt_time(&self, queue: QueueKey) -> Duration {
        self.chain(queue)
            .iter()
            .find_map(|key| {
                self.state
                    .queues
                    .get(*key)?
                    .queue
                    .as_ref()?
                    .preempt_min_runtime
            })
            .unwrap_or(self.config.preempt_min_runtime)
    }

    fn reclaim_time(&self, for_queue: Option<QueueKey>, victim: QueueKey) -> Duration {
        let own = for_queue.map_or(&[][..], |queue| self.chain(queue));
        let chain = self.chain(victim);
        let time = |key: &QueueKey| {
            self.state
                .queues
                .get(*key)?
                .queue
                .as_ref()?
                .reclaim_min_runtime
        };
        let shared = own
            .iter()
            .rev()
            .zip(chain.iter().rev())
            .take_while(|(one, other)| one == other)
            .count();
        let found = if self.config.reclaim_resolve == Resolve::Queue {
            chain.iter().find_map(time)
        } else if shared == 0 {
            // Different tops: they are siblings below nothing.
            chain.last().and_then(time)
        } else {
            let below = chain.len().saturating_sub(shared + 1);
            chain.get(below..).unwrap_or_default().iter().find_map(time)
        };
        found.unwrap_or(self.config.reclaim_min_runtime)
    }
}
