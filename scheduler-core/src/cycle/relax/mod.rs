//! Relaxations: necessary conditions for a search for victims, each much cheaper than the search.
//! A search for which one of them does not hold is skipped, and so is a set of victims within it.
//!
//! The search asks which pods must leave so that a job fits. A relaxation of that problem drops most
//! of its conditions. It answers *no* where even the remaining ones cannot be met, and else
//! *perhaps*. [`list`] has all of them. Each is asked before a search, with the action's own rule
//! for who may go ([`VictimFilter`]), and for each set of victims before it is simulated.
//!
//! 1. A *no* is sound: the full search finds nothing. With [`Config::verify`] every relaxation is
//!    asked, and each *no* is followed by the search; `tests/props.rs` does so in generated
//!    clusters, and requires a *no* of each one in the list.
//! 2. It asks the action's rule, and does not restate it.
//! 3. A *perhaps* costs nothing but time, so a relaxation may take victims for permitted that are
//!    not: pods that are protected for a while, that are being bound, or whose eviction failed.
//! 4. Its answer follows from the [`Query`] and the state alone. So answers are kept within a
//!    decision, while nothing changes ([`Cached`]). One relaxation is kept for the next decision, and
//!    says what that saves ([`emptied`]). With `verify` each answer is compared with that of a
//!    relaxation that remembers nothing.
//!
//! [`Config::verify`]: crate::config::Config::verify

mod emptied;
mod losable;
pub(super) mod memory;
mod packing;
mod permitted;
mod slots;
mod some_victim;
pub(super) mod victim_filter;

use crate::cycle::Cycle;
use crate::cycle::relax::memory::{Answers, Cached, Query, Relaxations};
use crate::cycle::relax::victim_filter::{PermittedVictims, VictimFilter};
use crate::cycle::search::VictimSet;
use crate::state::keys::JobKey;
use std::cell::OnceCell;
use std::fmt::Debug;

/// A necessary condition. False: no set of victims helps.
pub(super) trait Relaxation: Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Before a search: with everything gone that the action's rule lets go.
    fn admits(&mut self, _cycle: &Cycle, _asked: &Asked) -> bool {
        true
    }

    /// In a search: with these victims gone.
    fn admits_set(&mut self, _cycle: &Cycle, _set: &VictimSet) -> bool {
        true
    }
}

/// All relaxations, the cheapest first.
fn list(memory: &mut Relaxations) -> [&mut dyn Relaxation; 5] {
    [
        &mut memory.losable,
        &mut memory.some_victim,
        &mut memory.emptied,
        &mut memory.slots,
        &mut memory.packing,
    ]
}

/// The names of all of them, as in [`crate::Decision::ruled_out`].
pub fn relaxations() -> impl Iterator<Item = &'static str> {
    list(&mut Relaxations::default())
        .map(|one| one.name())
        .into_iter()
}

/// A query while it is asked.
pub(super) struct Asked<'a> {
    query: &'a Query,
    permitted: OnceCell<PermittedVictims>,
}

impl Asked<'_> {
    /// Who may go by the query's filter.
    fn permitted(&self, cycle: &Cycle) -> &PermittedVictims {
        self.permitted
            .get_or_init(|| cycle.permitted_victims(self.query.filter))
    }
}

impl Cycle<'_> {
    /// Returns true if some job that is ready may find room by this action. `of_job` says whether one
    /// job may, by all of the action's rules.
    pub(super) fn any_may_find(&mut self, of_job: impl Fn(&mut Self, JobKey) -> bool) -> bool {
        let kinds = self.ready_kinds();
        kinds.into_iter().any(|job| of_job(self, job))
    }

    /// Which relaxation rules out a search by this rule for the job; `None`: it may find room. Not
    /// inside a trial.
    pub(super) fn search_ruled_out(
        &mut self,
        job: JobKey,
        filter: VictimFilter,
    ) -> Option<&'static str> {
        let is_placed = self.state.index.placed_at.contains_key(job);
        let known = self.known(job);
        let Some(first) = known.first else {
            return Some("nothing to place");
        };
        let query = Query {
            filter,
            first,
            is_placed,
        };
        let current = |known: &&Cached<Answers>| known.is_current(self.state);
        let known = self.memos.relaxations.answers.as_ref().filter(current);
        let is_kept = matches!(filter, VictimFilter::LosersTo(..));
        let known = known.filter(|_| is_kept);
        let known = known.and_then(|known| known.value.get(&query).copied());
        if let Some(answer) = known
            && !self.config.verify
        {
            return answer;
        }
        self.state.refresh_rooms();
        let asked = Asked {
            query: &query,
            permitted: OnceCell::new(),
        };
        let answer = self.ruled_out(|one, cycle| one.admits(cycle, &asked));
        if known.is_some_and(|known| known != answer) {
            self.state
                .contradicts("an answer of the relaxations holds no more");
        }
        // Under the other filters an answer takes no longer than looking it up.
        if is_kept {
            self.memos.relaxations.keep(self.state, query, answer);
        }
        answer
    }

    /// A search by this rule may find room for the job. Not inside a trial.
    pub(super) fn may_find(&mut self, job: JobKey, filter: VictimFilter) -> bool {
        self.search_ruled_out(job, filter).is_none()
    }

    /// Which relaxation shows that the pods do not fit with these victims gone.
    pub(super) fn set_ruled_out(&mut self, set: &VictimSet) -> Option<&'static str> {
        self.ruled_out(|one, cycle| one.admits_set(cycle, set))
    }

    /// The first of the list that says no. With `verify` all are asked, and once more without what
    /// they remember.
    fn ruled_out(
        &mut self,
        admits: impl Fn(&mut dyn Relaxation, &Self) -> bool,
    ) -> Option<&'static str> {
        let verify = self.config.verify;
        let mut memory = std::mem::take(&mut self.memos.relaxations);
        let mut fresh = verify.then(Relaxations::default);
        let mut fresh = fresh.iter_mut().flat_map(list);
        let mut said_no = Vec::new();
        for one in list(&mut memory) {
            let answer = admits(one, self);
            if let Some(fresh) = fresh.next()
                && admits(fresh, self) != answer
            {
                let what = format!(
                    "what the relaxation {:?} remembers holds no more",
                    one.name()
                );
                self.state.contradicts(&what);
            }
            if !answer {
                said_no.push(one.name());
                if !verify {
                    break;
                }
            }
        }
        for name in &said_no {
            *memory.ruled_out.entry(*name).or_default() += 1;
        }
        self.memos.relaxations = memory;
        said_no.first().copied()
    }
}
