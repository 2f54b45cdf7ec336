//! How much work a decision may do, and how much it has done.
//!
//! The unit is a step: one node that is checked for a pod, or other work that takes about as long. A
//! decision that has placed or searched a lot leaves the rest to the next one.

use crate::config::Config;
use crate::state::keys::JobKey;
use rustc_hash::FxHashSet;

/// Steps that searches may take in a decision. Each action has the same part of them.
const SEARCHES: u64 = 400_000;

/// Steps for placements: about 50 ms, or 4,400 pods of a group of 8,000.
const PLACEMENTS: u64 = 1_000_000;

/// Additional steps for a node with cards that is checked for a share.
const CARDS: u64 = 7;

/// The work that one decision may do, and has done.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Nodes that were checked for pods, and sets of victims that were simulated.
    pub steps: u64,
    /// Other work of searches, in steps: sets that were built, and victims that were checked.
    pub pondered: u64,
    /// Steps of placements: pods of jobs that were placed in part and processed again, and checks of
    /// pods with rules about others.
    pub grown: u64,
    /// True if the placements are spent: the next decision goes on.
    pub goes_on: bool,
    /// True if the searches of an action are spent: the next decision goes on.
    pub search_goes_on: bool,
    /// Jobs that the next decision searches for.
    pub postponed: FxHashSet<JobKey>,
    /// The steps at which the current search is cut short, and whether it was.
    search_until: u64,
    search_cut: bool,
    /// Steps of the searches of the current action, and the number at which it begins no further one.
    pub(super) searched: u64,
    search_quota: u64,
}

impl Budget {
    /// Begins an action. What another action has taken for searches does not count.
    pub(super) fn begin_action(&mut self, config: &Config) {
        let searching = config.actions.iter().filter(|step| step.searches());
        let parts = searching.count().max(1) as u64;
        self.searched = 0;
        self.search_quota = (SEARCHES.min(config.budget) / parts).max(1);
    }

    /// Returns true if the current action begins no further search.
    pub(super) fn is_searched(&self) -> bool {
        self.searched >= self.search_quota
    }

    /// Begins a search, which is cut short after that many steps.
    pub(super) fn begin_search(&mut self, allowance: u64) {
        self.search_until = self.taken().saturating_add(allowance);
        self.search_cut = false;
    }

    /// Ends a search that began when [`Self::taken`] was `before`. Returns true if it was cut short.
    pub(super) fn end_search(&mut self, before: u64) -> bool {
        self.searched += self.taken() - before;
        self.search_cut
    }

    /// Counts nodes that were checked for a pod. For a share, each of their cards counts.
    pub(super) fn looked_at(&mut self, nodes: u64, shared: bool) {
        self.steps += nodes;
        if shared {
            self.pondered += nodes * CARDS;
        }
    }

    /// Returns what this decision took until now, in steps.
    pub(super) fn taken(&self) -> u64 {
        self.steps + self.pondered
    }

    /// Counts other work of a search. Returns true if the search has used its allowance.
    pub(super) fn charge(&mut self, pieces: u64) -> bool {
        self.pondered += pieces;
        self.search_cut |= self.taken() >= self.search_until;
        self.search_cut
    }

    /// Returns true if the placements are spent: the rest is left to the next decision, so that the
    /// results of this one are not delayed.
    pub(super) fn are_placements_spent(&mut self) -> bool {
        self.goes_on = self.grown > PLACEMENTS;
        self.goes_on
    }
}

/// How a search went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchOutcome {
    Room,
    /// There is none.
    Nothing,
    /// Not everything was searched.
    CutShort,
    /// Its turn is in the next decision.
    Postponed,
}
