//! The forks of the core from which start times are estimated, and the use of the estimates.

use super::Cycle;
use crate::forecast::{AGAIN, Fork, PACE};
use scheduler_core::ids::PodUid;
use scheduler_core::units::Time;
use scheduler_core::{Action, Decision};
use tokio::time::Instant;

impl Cycle {
    /// Plans a forecast if pods wait. The cycle calls it when it has
    /// counted the queues.
    pub(super) fn plan_forecast(&mut self, leading: bool) {
        let waits = |queue: &scheduler_core::QueueView| queue.waiting > 0;
        let due = leading
            && self.forecasts.is_some()
            && self.outputs.views.borrow().queues.iter().any(waits);
        let now = Instant::now();
        let next = self.forecasted.map_or(now, |at| (at + PACE).max(now));
        self.forecast_at = due.then_some(next);
    }

    /// Hands on a fork. Nothing is decided while the core is copied, so the time is measured.
    pub(super) fn forecast(&mut self) {
        let begin = Instant::now();
        self.forecasted = Some(begin);
        self.forecast_at = Some(begin + AGAIN);
        let Some(line) = &self.forecasts else {
            return;
        };
        // The last forecast is not done yet.
        let Ok(turn) = line.forks.try_reserve() else {
            return;
        };
        let now = self.clock.now();
        let run_times = self.world.run_times(now);
        if run_times.is_empty() {
            return;
        }
        turn.send(Fork {
            core: self.core.fork(),
            run_times,
            now,
        });
        self.outputs.meters.forked(begin.elapsed());
    }

    /// Returns when the pod is estimated to start, in one line.
    pub(super) fn estimated_start(&self, pod: &PodUid, now: Time) -> Option<String> {
        let estimates = self.forecasts.as_ref()?.estimates.borrow();
        estimates.last.line(pod, now)
    }

    /// Counts how far the estimates were off of the pods that start now.
    pub(super) fn count_errors(&self, decision: &Decision, now: Time) {
        let Some(line) = &self.forecasts else {
            return;
        };
        let estimates = line.estimates.borrow();
        for action in &decision.actions {
            if let Action::Bind(bind) = action
                && let Some(error) = estimates.error(&bind.pod, now)
            {
                self.outputs.meters.estimate_error(error);
            }
        }
    }
}
