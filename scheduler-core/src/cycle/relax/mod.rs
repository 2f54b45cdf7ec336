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
//! 4. Its answer follows from the [`Query`] and the state alone. So answers are kept while nothing
//!    changes. What one remembers beyond that is [`Cached`], and with `verify` its answer is
//!    compared with that of one that remembers nothing.
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
use crate::config::Step;
use crate::state::State;
use crate::state::rows::{JobKey, NodeKey, SpecKey};
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

    /// The decision that began at that [`State::touched`] ends. Only what depends on nodes alone
    /// is kept.
    fn end_decision(&mut self, _began: u64) {}
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

/// A value, and what was the case when it was computed.
#[derive(Clone, Copy, Debug)]
struct Cached<T> {
    value: T,
    settled: u64,
    touched: u64,
}

impl<T> Cached<T> {
    fn of(state: &State, value: T) -> Self {
        Self {
            value,
            settled: state.settled,
            touched: state.touched,
        }
    }

    /// Nothing that was kept has changed since: for what depends on anything.
    fn is_current(&self, state: &State) -> bool {
        self.settled == state.settled
    }

    /// The node has not changed since: for what depends on one node alone.
    fn is_unchanged(&self, state: &State, node: NodeKey) -> bool {
        let row = state.nodes.get(node);
        row.is_some_and(|row| row.generation <= self.touched)
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

    /// The decision that began at that [`State::touched`] ends. How often each said no in it.
    pub(super) fn end_decision(&mut self, began: u64) -> BTreeMap<&'static str, u64> {
        self.answers = None;
        let mut ruled_out = BTreeMap::new();
        for one in &mut self.list {
            one.relaxation.end_decision(began);
            let times = std::mem::take(&mut one.ruled_out);
            if times > 0 {
                ruled_out.insert(one.relaxation.name(), times);
            }
        }
        ruled_out
    }
}

/// What the answers for all jobs together depend on, but for the jobs themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depends {
    /// Nodes, placed pods, and what queues hold.
    nodes: u64,
    /// Of reclaim alone.
    shares: u64,
    volumes: u64,
    /// What queues may have of single products.
    products: u64,
}

impl Cycle<'_> {
    /// Some job that is ready may find room by this action. `of_job`: whether that one may, by all
    /// of the action's rules. Where none could in the last decision, and nothing has changed on
    /// which that depends, only jobs that have changed since are asked, and those of queues whose
    /// fair share has.
    pub(super) fn any_may_find(&mut self, of_job: impl Fn(&mut Self, JobKey) -> bool) -> bool {
        self.refresh_waiting();
        let depends = Depends {
            nodes: self.state.nodes_moved,
            shares: match self.acting {
                Step::Reclaim => self.shares.version,
                _ => 0,
            },
            volumes: self.state.volumes_version,
            products: self.state.products.version,
        };
        let is_barren = self.barren.remove(&self.acting) == Some(depends);
        self.young = false;
        let mut may_find = is_barren && {
            let changed = self.ready_changed();
            changed.into_iter().any(|job| of_job(self, job))
        };
        if !is_barren || self.config.verify {
            let all = self.ready_kinds();
            let any = all.into_iter().any(|job| of_job(self, job));
            if is_barren && any && !may_find {
                self.state
                    .contradicts("a job may find room by an action that was barren");
            }
            may_find = any;
        }
        // Those will be older.
        if !may_find && !self.young {
            self.barren.insert(self.acting, depends);
        }
        may_find
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
        let known = self.relaxations.answers.as_ref().filter(current);
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
            self.relaxations.keep(self.state, query, answer);
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
        let mut relaxations = std::mem::take(&mut self.relaxations.list);
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
        self.relaxations.list = relaxations;
        first
    }
}
