//! Pauses between evictions for a job that gains nothing by them.
//!
//! Pods are evicted so that another job, the beneficiary, can start. A third job may take the freed
//! room first, or the victims may come back and have the beneficiary evicted in turn. KAI's rules
//! alone allow both without end. So the state records the last decision that evicted for a job: how
//! many active pods the job had then, and how many such decisions in a row gained it none. Until it
//! has more, no pod is evicted for it before a pause has passed, which doubles each time. Whatever
//! else happens in the cluster does not shorten the pause; in a large cluster something always does.
//! A queue that changes ends the pauses, since other jobs may be entitled now; the next are as long
//! as they would have been.

use crate::action::Action;
use crate::cycle::Cycle;
use crate::cycle::plan::is_new;
use crate::state::State;
use crate::state::job_row::JobRow;
use crate::state::keys::JobKey;
use crate::state::rows::Evicted;
use crate::state::task_cell::{Status, TaskCell};
use crate::units::{Duration, Time};
use std::collections::BTreeSet;

/// The first pause: KAI decides once a second, so evictions that gain something are not slower.
const FIRST: Duration = Duration::seconds(1);

/// The longest, and how long nothing may be evicted for a job before it counts from the start: not
/// longer, since tenants whose pods do not end could have other tenants wait for it.
const LONGEST: Duration = Duration::seconds(10 * 60);

/// The last evictions for that job, while no more are allowed.
fn paused(state: &State, job: JobKey) -> Option<Evicted> {
    if state.pauses.evicted.is_empty() {
        return None;
    }
    let row = state.jobs.get(job)?;
    let last = state.pauses.evicted.get(&row.name)?;
    // A later search of this decision may still take a place that the decision gave.
    let active = active(state, row, |cell| !is_new(cell));
    (state.now < last.until && active <= last.active).then_some(*last)
}

/// The line about the pause for a job that evictions have gained nothing.
pub(crate) fn pause_line(state: &State, job: JobKey) -> Option<String> {
    let last = paused(state, job).filter(|last| last.times > 1)?;
    let (times, pause) = (last.times, pause_after(last.times).0 / 1000);
    Some(format!(
        "pods were evicted for this workload {times} times in a row, and it runs no more pods than before: no pod is evicted for it for {pause} s"
    ))
}

/// The pause after as many decisions in a row that evicted and gained the job nothing.
fn pause_after(times: u32) -> Duration {
    let doublings = times.saturating_sub(1).min(32);
    Duration(FIRST.0.saturating_mul(1 << doublings).min(LONGEST.0))
}

/// How many pods of a job have a place that counts.
fn active(state: &State, row: &JobRow, counts: impl Fn(&TaskCell) -> bool) -> u32 {
    let active = row.tasks.iter().filter(|task| {
        let cell = state.cell(**task);
        let has_place = matches!(
            cell.status,
            Status::Assumed | Status::Bound | Status::Running
        );
        has_place && counts(&cell)
    });
    u32::try_from(active.count()).unwrap_or(u32::MAX)
}

impl Cycle<'_> {
    /// Until when no pod is evicted for that job; `None`: evictions are allowed.
    pub(super) fn eviction_pause(&self, job: JobKey) -> Option<Time> {
        paused(self.state, job).map(|last| last.until)
    }

    /// Records for which jobs this decision evicts.
    pub(super) fn remember_evictions(&mut self) {
        let favoured: BTreeSet<_> = (self.decision.actions.iter())
            .filter_map(|action| match action {
                Action::Evict(evict) => evict.in_favour_of.clone(),
                Action::Bind(_) => None,
            })
            .collect();
        if favoured.is_empty() {
            return;
        }
        let now = self.state.now;
        self.state
            .pauses
            .evicted
            .retain(|_, last| now < last.until.after(LONGEST));
        for name in favoured {
            let job = self.state.job_of(&name);
            let Some(row) = job.and_then(|job| self.state.jobs.get(job)) else {
                continue;
            };
            let active = active(self.state, row, |_| true);
            let last = self.state.pauses.evicted.get(&name);
            let times = last
                .filter(|last| active <= last.active)
                .map_or(1, |last| last.times.saturating_add(1));
            let until = now.after(pause_after(times));
            let last = Evicted {
                active,
                times,
                until,
            };
            self.state.pauses.evicted.insert(name, last);
        }
    }
}
