//! No search holds up everything else, and none is given up.
//!
//! How many sets of victims there are grows with everybody who may go, and whether one of
//! them helps is only known when it was tried. So a search has an allowance of steps. One
//! that is cut short rests for a while, in which others have their turn, and may then take
//! twice as many, up to [`Config::budget`]. The jobs behind it that are its like wait with
//! it. A decision in which many searches were made leaves the rest to the next one.
//!
//! [`Config::budget`]: crate::config::Config::budget

use super::Cycle;
use crate::action::EvictCause;
use crate::ids::GroupName;
use crate::state::rows::{JobKey, Rest};
use crate::units::Duration;

/// Steps of a job's first search: less than a second.
const FIRST: u64 = 400_000;
/// A decision that has taken so many begins no further search.
const DECISION: u64 = 400_000;
/// A search rests so long for each [`FIRST`] that it took,
const PAUSE: Duration = Duration::seconds(5);
/// and at most so long.
const LONGEST: Duration = Duration::seconds(60);

/// As many steps more as a node with cards takes that is looked at for a share.
const CARDS: u64 = 7;

/// How a search went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Room,
    /// There is none.
    Nothing,
    /// It was not looked everywhere.
    CutShort,
}

impl Cycle<'_> {
    /// Searches as far as it may.
    pub(super) fn in_turn(
        &mut self,
        job: JobKey,
        cause: EvictCause,
        search: impl FnOnce(&mut Self) -> bool,
    ) -> Found {
        let Some(name) = self.state.jobs.get(job).map(|row| row.name.clone()) else {
            return Found::Nothing;
        };
        let key = (name, cause);
        let most = self.config.budget;
        let rest = self.state.rests.get(&key).copied();
        if let Some(rest) = rest
            && self.state.now < rest.until
        {
            self.wake_at(rest.until);
            return Found::CutShort;
        }
        let favoured = self.config.most_favoured;
        let all_favoured = favoured.is_some_and(|most| self.rearranged >= u64::from(most));
        if all_favoured {
            self.decision.cut_short = true;
            return Found::CutShort;
        }
        // It had its turn before this decision went on from another.
        if self.turns.searched.contains(&(job, cause)) {
            return Found::CutShort;
        }
        if self.searched >= DECISION.min(most) {
            self.decision.cut_short = true;
            self.search_goes_on = true;
            return Found::CutShort;
        }
        let allowance = rest.map_or(FIRST, |rest| rest.allowance).min(most);
        let before = self.taken();
        self.search_until = before.saturating_add(allowance);
        self.search_cut = false;
        let found = search(self);
        let took = self.taken() - before;
        self.searched += took;
        if found {
            self.state.rests.remove(&key);
            return Found::Room;
        }
        self.turns.searched.insert((job, cause));
        if !self.search_cut {
            self.state.rests.remove(&key);
            return Found::Nothing;
        }
        self.rest(key, allowance);
        Found::CutShort
    }

    /// Counts nodes that were looked at for a pod. For a share it is each of their cards.
    pub(super) fn looked_at(&mut self, nodes: u64, shared: bool) {
        self.decision.steps += nodes;
        if shared {
            self.pondered += nodes * CARDS;
        }
    }

    /// What this decision took, in steps and as much as steps.
    fn taken(&self) -> u64 {
        self.decision.steps + self.pondered
    }

    /// Counts; true when the search that goes on has had its allowance.
    pub(super) fn ponder(&mut self, pieces: u64) -> bool {
        self.pondered += pieces;
        self.search_cut |= self.taken() >= self.search_until;
        self.search_cut
    }

    fn rest(&mut self, key: (GroupName, EvictCause), took: u64) {
        let pause = PAUSE.0.saturating_mul((took / FIRST).max(1));
        let until = self.state.now.after(Duration(pause.min(LONGEST.0)));
        let allowance = took.saturating_mul(2).min(self.config.budget);
        self.wake_at(until);
        self.state.rests.insert(key, Rest { until, allowance });
    }

    /// Forgets those of jobs that wait no longer.
    pub(super) fn wake_the_gone(&mut self) {
        if self.state.rests.is_empty() {
            return;
        }
        let mut rests = std::mem::take(&mut self.state.rests);
        rests.retain(|(name, _), _| {
            let job = self.state.job_of(name);
            job.is_some_and(|job| !self.next_tasks(job).is_empty())
        });
        self.state.rests = rests;
    }
}
