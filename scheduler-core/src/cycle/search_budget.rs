//! Budgets for searches, with exponential back-off: no search delays the others for long, and none is
//! given up.
//!
//! The number of possible sets of victims grows with the number of victims, and whether a set helps is
//! known only after it was tried. Each search therefore has an allowance of steps. A search that uses
//! it up backs off while others run, and gets twice the allowance next time, up to
//! [`Config::budget`]. Equivalent jobs behind it in the queue wait with it. A decision that has
//! searched a lot leaves the remaining searches to the next decision.
//!
//! Each action has the same part of a decision, so that thousands of jobs for which nothing can be
//! moved do not keep the first of them from reclaiming. No action searches for a job while an earlier
//! one has yet to: nothing is evicted where a move would do.
//!
//! [`Config::budget`]: crate::config::Config::budget

use crate::action::EvictCause;
use crate::config::Step;
use crate::cycle::Cycle;
use crate::cycle::budget::SearchOutcome;
use crate::ids::GroupName;
use crate::state::keys::JobKey;
use crate::state::rows::Rest;
use crate::units::Duration;

/// Steps of a job's first search: less than a second.
const FIRST: u64 = 400_000;

/// A search backs off for this time for each [`FIRST`] that it used,
const PAUSE: Duration = Duration::seconds(5);

/// and at most for this time.
const LONGEST: Duration = Duration::seconds(60);

impl Cycle<'_> {
    /// Searches as far as it may.
    pub(super) fn in_turn(
        &mut self,
        job: JobKey,
        cause: EvictCause,
        search: impl FnOnce(&mut Self) -> bool,
    ) -> SearchOutcome {
        let Some(name) = self.state.jobs.get(job).map(|row| row.name.clone()) else {
            return SearchOutcome::Nothing;
        };
        if self.budget.postponed.contains(&job) {
            return SearchOutcome::Postponed;
        }
        if let Some(until) = self.eviction_pause(job) {
            self.wake_at(until);
            return SearchOutcome::CutShort;
        }
        let key = (name, cause);
        let most = self.config.budget;
        let rest = self.state.pauses.searches.get(&key).copied();
        if let Some(rest) = rest
            && self.state.now < rest.until
        {
            self.wake_at(rest.until);
            return SearchOutcome::CutShort;
        }
        let favoured = self.config.most_favoured;
        let all_favoured = favoured.is_some_and(|most| self.rearranged >= u64::from(most));
        if all_favoured {
            self.decision.cut_short = true;
            return SearchOutcome::CutShort;
        }
        // It had its turn before this decision went on from another.
        if self.turns.searched.contains(&(job, cause)) {
            return SearchOutcome::CutShort;
        }
        if self.budget.is_searched() {
            self.decision.cut_short = true;
            self.budget.search_goes_on = true;
            self.postpone(job);
            return SearchOutcome::Postponed;
        }
        let allowance = rest.map_or(FIRST, |rest| rest.allowance).min(most);
        let before = self.budget.taken();
        self.budget.begin_search(allowance);
        let found = search(self);
        let was_cut = self.budget.end_search(before);
        if found {
            self.state.pauses.searches.remove(&key);
            return SearchOutcome::Room;
        }
        self.turns.searched.insert((job, cause));
        if !was_cut {
            self.state.pauses.searches.remove(&key);
            return SearchOutcome::Nothing;
        }
        self.rest(key, allowance);
        SearchOutcome::CutShort
    }

    /// The job is searched for in the next decision, by this action before any other. What a search
    /// would have moved before the job is placed keeps nothing back.
    pub(super) fn postpone(&mut self, job: JobKey) {
        if self.acting != Step::Allocate {
            self.budget.postponed.insert(job);
        }
    }

    fn rest(&mut self, key: (GroupName, EvictCause), took: u64) {
        let pause = PAUSE.0.saturating_mul((took / FIRST).max(1));
        let until = self.state.now.after(Duration(pause.min(LONGEST.0)));
        let allowance = took.saturating_mul(2).min(self.config.budget);
        self.wake_at(until);
        self.state
            .pauses
            .searches
            .insert(key, Rest { until, allowance });
    }

    /// Forgets those of jobs that wait no longer.
    pub(super) fn prune_search_backoffs(&mut self) {
        if self.state.pauses.searches.is_empty() {
            return;
        }
        let mut search_backoffs = std::mem::take(&mut self.state.pauses.searches);
        search_backoffs.retain(|(name, _), _| {
            let job = self.state.job_of(name);
            job.is_some_and(|job| !self.next_tasks(job).is_empty())
        });
        self.state.pauses.searches = search_backoffs;
    }
}
