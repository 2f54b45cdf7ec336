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
mod packing;
mod slots;
mod some_victim;
mod victim_filter;

use super::Cycle;
use super::scenario::{ProbeDemand, Scenario};
use super::solve::VictimSearch;
use crate::state::State;
use crate::state::keys::{JobKey, SpecKey};
use rustc_hash::FxHashMap;
pub(super) use slots::SlotsDemand;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use victim_filter::PermittedVictims;
pub(super) use victim_filter::VictimFilter;

/// A necessary condition. False: no set of victims helps.
trait Relaxation: Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Before a search: with everything gone that the action's rule lets go.
    fn admits(&mut self, _cycle: &Cycle, _asked: &Asked) -> bool {
        true
    }

    /// In a search: with these victims gone.
    fn admits_set(&mut self, _cycle: &Cycle, _set: &VictimSet) -> bool {
        true
    }

    /// Returns true if the relaxation is kept for the next decision. `began` is [`State::touched`]
    /// when this one began.
    fn end_decision(&mut self, _began: u64) -> bool {
        false
    }
}

/// All relaxations that remember nothing, the cheapest first.
fn list() -> Vec<Box<dyn Relaxation>> {
    vec![
        Box::<losable::Losable>::default(),
        Box::new(some_victim::SomeVictim),
        Box::<emptied::Emptied>::default(),
        Box::new(slots::Slots),
        Box::<packing::Packing>::default(),
    ]
}

/// The names of all of them, as in [`crate::Decision::ruled_out`].
pub fn relaxations() -> impl Iterator<Item = &'static str> {
    list().into_iter().map(|one| one.name())
}

/// What is asked before a search.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Query {
    filter: VictimFilter,
    /// What the first pod asks for: it must be placed before others are tried.
    first: SpecKey,
    /// A pod of the job has a place: consolidation does not move it for itself.
    is_placed: bool,
}

/// A query while it is asked.
struct Asked<'a> {
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

/// A set of victims that is about to be simulated.
pub(super) struct VictimSet<'a> {
    pub search: &'a VictimSearch<'a>,
    pub demand: &'a ProbeDemand,
    pub scenario: &'a Scenario,
}

/// A value, and [`State::settled`] when it was computed.
#[derive(Clone, Copy, Debug)]
struct Cached<T> {
    value: T,
    settled: u64,
}

impl<T> Cached<T> {
    fn of(state: &State, value: T) -> Self {
        Self {
            value,
            settled: state.settled,
        }
    }

    /// Returns true if nothing has changed since.
    fn is_current(&self, state: &State) -> bool {
        self.settled == state.settled
    }
}

/// The relaxation that rules a query out.
type Answers = FxHashMap<Query, Option<&'static str>>;

/// A relaxation, and how often it has said no in this decision.
#[derive(Debug)]
struct Listed {
    relaxation: Box<dyn Relaxation>,
    ruled_out: u64,
}

/// The list, and its answers while nothing changes.
#[derive(Debug)]
pub(super) struct Relaxations {
    list: Vec<Listed>,
    answers: Option<Cached<Answers>>,
}

impl Default for Relaxations {
    fn default() -> Self {
        Self {
            list: (list().into_iter())
                .map(|relaxation| Listed {
                    relaxation,
                    ruled_out: 0,
                })
                .collect(),
            answers: None,
        }
    }
}

impl Relaxations {
    fn keep(&mut self, state: &State, query: Query, answer: Option<&'static str>) {
        if !self
            .answers
            .as_ref()
            .is_some_and(|known| known.is_current(state))
        {
            self.answers = Some(Cached::of(state, Answers::default()));
        }
        if let Some(known) = &mut self.answers {
            known.value.insert(query, answer);
        }
    }

    /// Ends the decision that began at that [`State::touched`]. Returns how often each relaxation has
    /// said no in it. Those that never did are left out.
    pub(super) fn end_decision(&mut self, began: u64) -> BTreeMap<&'static str, u64> {
        self.answers = None;
        let mut ruled_out = BTreeMap::new();
        for (one, fresh) in self.list.iter_mut().zip(list()) {
            let times = std::mem::take(&mut one.ruled_out);
            if times > 0 {
                ruled_out.insert(one.relaxation.name(), times);
            }
            if !one.relaxation.end_decision(began) {
                one.relaxation = fresh;
            }
        }
        ruled_out
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
        let is_placed = self.state.placed_at.contains_key(job);
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
        let mut relaxations = std::mem::take(&mut self.memos.relaxations.list);
        let mut fresh = if verify { list() } else { Vec::new() }.into_iter();
        let mut first = None;
        for listed in &mut relaxations {
            let one = &mut *listed.relaxation;
            let answer = admits(one, self);
            if let Some(mut fresh) = fresh.next()
                && admits(&mut *fresh, self) != answer
            {
                let what = format!(
                    "what the relaxation {:?} remembers holds no more",
                    one.name()
                );
                self.state.contradicts(&what);
            }
            if !answer {
                listed.ruled_out += 1;
                first = first.or(Some(one.name()));
                if !verify {
                    break;
                }
            }
        }
        self.memos.relaxations.list = relaxations;
        first
    }
}
