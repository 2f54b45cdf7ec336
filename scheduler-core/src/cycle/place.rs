//! Places a job's pods inside a trial: its tree of sub-groups, its topology constraint, and the best
//! node for each pod (KAI, `actions/common/allocate.go`).

use crate::action::ReasonKind;
use crate::capacity::{self, Check};
use crate::cycle::hindrance::no_fit;
use crate::cycle::plan::Way;
use crate::cycle::topology::scores::Scores;
use crate::cycle::{Cycle, find};
use crate::fit::{self, Assignment};
use crate::gang::{Branch, Gang, Member, Set};
use crate::model::TopologyRule;
use crate::product_quota;
use crate::reason::WaitReason;
use crate::score::{self, Score};
use crate::state::keys::{JobKey, NodeKey, TaskKey};
use crate::state::node_set::NodeSet;
use crate::state::spec_row::SpecRow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a job was not placed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// `None`: it is not reported, as in a simulation, or waits for the next decision.
    pub why: Option<Arc<WaitReason>>,
    /// How many of its pods were placed before one was not.
    placed: Option<usize>,
}

impl Failure {
    fn unschedulable(line: impl Into<Arc<str>>) -> Self {
        Self {
            why: Some(WaitReason::of(ReasonKind::Unschedulable, line)),
            placed: None,
        }
    }
}

impl Cycle<'_> {
    /// Places these pods of the job, all or none. The caller holds the trial.
    pub(super) fn place_job(
        &mut self,
        job: JobKey,
        gang: &Gang,
        tasks: &[TaskKey],
        nodes: &NodeSet,
        way: Way,
    ) -> Result<(), Failure> {
        self.memos.scores.clear();
        let wanted = self
            .shares
            .wanted(self.state, tasks, self.shares.largest_card);
        if let Some(why) = capacity::over(self.state, job, wanted, Check::All) {
            return Err(Failure {
                why: Some(why),
                placed: None,
            });
        }
        match &gang.tree {
            None => self.place_set(gang.sets.first(), None, tasks, nodes, way),
            Some(tree) => {
                let by_set = self.by_set(gang, tasks);
                self.place_branch(gang, tree.root(), (&by_set, tasks), nodes, way)
            }
        }
        .map_err(|failure| Self::in_gang_words(gang, tasks, failure))
    }

    /// Members without one of these pods have nothing to place.
    fn place_branch(
        &mut self,
        gang: &Gang,
        branch: Branch,
        (by_set, tasks): (&BySet, &[TaskKey]),
        nodes: &NodeSet,
        way: Way,
    ) -> Result<(), Failure> {
        let name = branch.group.name.as_ref();
        let within = || {
            let mut sets = Vec::new();
            branch.sets_into(&mut sets);
            // In order of name.
            sets.sort_unstable();
            sets.into_iter().filter_map(|at| gang.set_at(at)).collect()
        };
        let rule = branch.group.topology.as_ref();
        self.in_domains(
            name.map_or("", |name| name.as_str()),
            rule,
            &within,
            tasks,
            nodes,
            |cycle, nodes| {
                let (mut groups, mut sets) = (Vec::new(), Vec::new());
                for member in gang.ordered(branch, |member| by_set.has(*member)) {
                    match member {
                        Member::Group(inner) => groups.push(inner),
                        Member::Set(at, rule) => sets.push((at, rule)),
                    }
                }
                for inner in groups {
                    let part = by_set.part(inner);
                    cycle.place_branch(gang, inner, (by_set, &part), nodes, way)?;
                }
                for (at, rule) in sets {
                    let part = by_set.of_set(at);
                    cycle.place_set(gang.set_at(at), rule, &part, nodes, way)?;
                }
                Ok(())
            },
        )
    }

    fn place_set(
        &mut self,
        set: Option<&Set>,
        rule: Option<&TopologyRule>,
        tasks: &[TaskKey],
        nodes: &NodeSet,
        way: Way,
    ) -> Result<(), Failure> {
        let name = set.map_or("", |set| set.name.as_str());
        let within = || set.into_iter().collect();
        self.in_domains(name, rule, &within, tasks, nodes, |cycle, nodes| {
            for (placed, task) in tasks.iter().enumerate() {
                cycle.place_task(*task, nodes, way).map_err(|why| Failure {
                    why,
                    placed: Some(placed),
                })?;
            }
            Ok(())
        })
    }

    /// Tries one domain after another; what failed in one is undone before the next.
    fn in_domains<'s>(
        &mut self,
        name: &str,
        rule: Option<&TopologyRule>,
        sets: &dyn Fn() -> Vec<&'s Set>,
        tasks: &[TaskKey],
        nodes: &NodeSet,
        mut place: impl FnMut(&mut Self, &NodeSet) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(rule) = rule.filter(|_| !tasks.is_empty()) else {
            return place(self, nodes);
        };
        let domains = match self.domains(name, rule, &sets(), tasks, nodes) {
            Ok(domains) => domains,
            Err(line) => return Err(Failure::unschedulable(line)),
        };
        let mut last = Failure::unschedulable(format!(
            "topology {}, requirement {} couldn't be satisfied",
            rule.topology,
            rule.required.as_deref().unwrap_or_default()
        ));
        for domain in domains.sets(nodes) {
            let mark = self.state.mark();
            match place(self, &domain) {
                Ok(()) => {
                    self.state.keep(mark);
                    return Ok(());
                }
                Err(failure) => {
                    self.state.rollback(mark);
                    last = failure;
                }
            }
        }
        Err(last)
    }

    fn by_set(&self, gang: &Gang, tasks: &[TaskKey]) -> BySet {
        let mut by_set = BySet::default();
        for (turn, task) in tasks.iter().enumerate() {
            let row = self.state.tasks.get(*task);
            if let Some(at) = row.and_then(|row| gang.place_of(row)) {
                by_set.0.entry(at).or_default().push((turn, *task));
            }
        }
        by_set
    }

    /// Puts one pod on the best node, or says why there is none.
    pub(super) fn place_task(
        &mut self,
        task: TaskKey,
        nodes: &NodeSet,
        way: Way,
    ) -> Result<(), Option<Arc<WaitReason>>> {
        /// The cost of a check of a node for a pod with rules about other pods, in checks of a pod
        /// of a large group, which take about the same time.
        const LOOK: u64 = 10;
        /// The number of terms or pods whose check takes as long as that of a node.
        const TERMS: u64 = 4;
        /// Up to this many nodes are checked one by one: the index may have many others before
        /// them.
        const FEW: usize = 8;
        let Some(row) = self.state.tasks.get(task) else {
            return Err(None);
        };
        let (spec_key, avoids) = (row.spec, !row.rare.avoid.is_empty());
        let set = row
            .facts
            .set
            .as_ref()
            .map_or(crate::gang::DEFAULT_SET, |name| name.as_str())
            .to_owned();
        let Some(spec) = self.state.specs.get(spec_key) else {
            return Err(None);
        };
        if way == Way::Real && self.is_infeasible(spec_key) {
            return Err(self.no_fit(spec_key));
        }
        let shared = spec.shares;
        let among_others = spec.spec.others.is_some();
        let before = self.budget.steps;
        let looks = self.state.refresh_domains(spec_key);
        self.budget.looked_at(looks / TERMS, false);
        let Some(spec) = self.state.specs.get(spec_key) else {
            return Err(None);
        };
        let deferred = self.deferred.replace(false);
        let mut over = None;
        let all = nodes.len() == self.nodes.len();
        let topology = self.topology_scores(task, &set);
        let indexed =
            nodes.len() > FEW && !avoids && topology.is_none() && self.is_sorted_for(spec);
        let best = if indexed {
            let among = (!all).then_some(nodes);
            let found = find::best(self, task, spec_key, way, among, &mut over);
            self.budget.looked_at(found.looked_at, shared);
            if self.config.verify
                && found.best
                    != self
                        .state
                        .specs
                        .get(spec_key)
                        .and_then(|spec| self.best_of(task, spec, nodes, way, None, &mut None))
            {
                self.state
                    .contradicts("the index finds another node than looking at each");
            }
            found.best
        } else {
            let best = self.best_of(task, spec, nodes, way, topology, &mut over);
            self.budget.looked_at(nodes.len() as u64, shared);
            best
        };
        let is_deferred = self.deferred.get();
        self.deferred.set(deferred || is_deferred);
        // It goes where GPUs are free now, also beyond a quota.
        let waits = |best: &(NodeKey, Assignment)| way == Way::Real && !best.1.now;
        let best = best.filter(|best| !(is_deferred && waits(best)));
        if among_others && way == Way::Real {
            self.budget.grown += LOOK * (self.budget.steps - before);
        }
        let Some((node, assignment)) = best else {
            if way == Way::Promise {
                return Err(None);
            }
            if over.is_some() {
                return Err(over);
            }
            let Some(spec) = self.state.specs.get(spec_key) else {
                return Err(None);
            };
            if all && !self.state.is_tentative() {
                self.state.refresh_verdicts(self.config);
                return Err(self.no_fit(spec_key));
            }
            let nodes = self.state.caches.rooms.nodes(nodes);
            let why = no_fit(self.state, self.config, spec, nodes);
            return Err(Some(Arc::new(why)));
        };
        if self.assign(task, node, assignment, way) {
            Ok(())
        } else {
            // A victim that comes back: only simulations have any.
            Err(None)
        }
    }

    /// The best of these nodes, each checked.
    fn best_of(
        &self,
        task: TaskKey,
        spec: &SpecRow,
        nodes: &NodeSet,
        way: Way,
        topology: Option<&Scores>,
        over: &mut Option<Arc<WaitReason>>,
    ) -> Option<(NodeKey, Assignment)> {
        let row = self.state.tasks.get(task);
        let avoid = row.map_or(&[][..], |row| &row.rare.avoid);
        let mut best: Option<((bool, Score), NodeKey, Assignment)> = None;
        for rank in nodes.iter() {
            let Some(key) = self.state.caches.rooms.node(rank) else {
                continue;
            };
            let promise = way == Way::Promise;
            let Ok(assignment) = fit::node(self.state, spec, key, self.config, promise) else {
                continue;
            };
            let mut score = score::node(
                self.state,
                self.config,
                spec,
                key,
                &assignment,
                self.memos.fragments.as_ref(),
            );
            score.prefer_domain(topology.and_then(|scores| scores.of(rank)));
            let avoided = !avoid.is_empty()
                && self
                    .state
                    .nodes
                    .get(key)
                    .is_some_and(|row| avoid.contains(&row.name));
            let rank = (!avoided, score);
            // The first of equals: nodes come in order of name.
            if best.as_ref().is_some_and(|best| rank <= best.0) {
                continue;
            }
            if let Some(why) = self.over_capacity_there(task, key, &assignment) {
                *over = Some(why);
                continue;
            }
            best = Some((rank, key, assignment));
        }
        best.map(|(_, key, assignment)| (key, assignment))
    }

    /// GPU memory counts differently on each node, and each node has a product: checked again for
    /// the chosen node.
    pub(super) fn over_capacity_there(
        &self,
        task: TaskKey,
        node: NodeKey,
        assignment: &Assignment,
    ) -> Option<Arc<WaitReason>> {
        let row = self.state.tasks.get(task)?;
        let spec = self.state.specs.get(row.spec)?;
        if self.state.has_product_quotas() {
            let nano = self.state.charge(task, &assignment.holds)[0];
            let held = &self.state.cells.products.of;
            let over = product_quota::over(self.state, held, task, (node, nano));
            if over.is_some() {
                return over;
            }
            if !self.borrows && product_quota::borrows(self.state, task, node, nano) {
                self.deferred.set(true);
                return Some(WaitReason::of(ReasonKind::Unschedulable, ""));
            }
        }
        // The request counts containers that run in turn as if they had the same cards.
        let in_turn = assignment.holds.iter().any(|hold| hold.init);
        if spec.share_mib == 0 && !in_turn {
            return None;
        }
        let wanted = self.state.charge(task, &assignment.holds);
        let why = capacity::over(self.state, row.job?, wanted, Check::All)?;
        Some(Arc::new(WaitReason {
            kind: ReasonKind::Unschedulable,
            line: Arc::clone(&why.line),
            about: why.about.clone(),
        }))
    }

    /// KAI's words around a pod's reason, for a pod alone and for a gang.
    fn in_gang_words(gang: &Gang, tasks: &[TaskKey], failure: Failure) -> Failure {
        let (Some(placed), Some(why)) = (failure.placed, &failure.why) else {
            return failure;
        };
        let line = &why.line;
        let needs = gang.sets.iter().any(|set| set.min > 1)
            && gang.availability_tier() == crate::gang::AvailabilityTier::Below;
        if !needs {
            return failure;
        }
        // How many were placed is a number in the words, and no other reason.
        let mut about = why.about.clone().in_gang_words();
        let text = match gang.sets.as_slice() {
            [only] if only.name.as_str() == crate::gang::DEFAULT_SET => format!(
                "Resources were found for {placed} pods while {} are required for gang scheduling. Additional pods cannot be scheduled due to: {line}",
                only.min
            ),
            sets => {
                // Which sub-group lacks them is a part of the reason.
                about = crate::reason::ReasonKey::Words;
                let failed = tasks
                    .get(placed)
                    .and_then(|task| {
                        sets.iter()
                            .find(|set| set.tasks.iter().any(|(one, _)| one == task))
                    })
                    .or(sets.first());
                format!(
                    "Resources were found for {placed} pods from all sub-groups while sub-group {} requires {} pods for gang scheduling. Additional pods cannot be scheduled in this sub-group due to: {line}",
                    failed.map_or("", |set| set.name.as_str()),
                    failed.map_or(0, |set| set.min)
                )
            }
        };
        Failure {
            why: Some(Arc::new(WaitReason {
                kind: ReasonKind::Unschedulable,
                line: crate::reason::cut(text, crate::action::MAX_LINE).into(),
                about,
            })),
            placed: None,
        }
    }
}

/// Pods by the place of their set among those of the gang, each with its turn among all of them.
#[derive(Default)]
struct BySet(BTreeMap<usize, Vec<(usize, TaskKey)>>);

impl BySet {
    fn of_set(&self, at: usize) -> Vec<TaskKey> {
        let pods = self.0.get(&at).into_iter().flatten();
        pods.map(|(_, task)| *task).collect()
    }

    /// Those of the sets in the group and below it, in their turns.
    fn part(&self, branch: Branch) -> Vec<TaskKey> {
        let mut sets = Vec::new();
        branch.sets_into(&mut sets);
        let pods = sets.iter().filter_map(|at| self.0.get(at)).flatten();
        let mut pods: Vec<(usize, TaskKey)> = pods.copied().collect();
        pods.sort_unstable_by_key(|(turn, _)| *turn);
        pods.into_iter().map(|(_, task)| task).collect()
    }

    /// The member has some of them.
    fn has(&self, member: Member) -> bool {
        match member {
            Member::Set(at, _) => self.0.contains_key(&at),
            Member::Group(branch) => {
                let mut sets = Vec::new();
                branch.sets_into(&mut sets);
                sets.iter().any(|at| self.0.contains_key(at))
            }
        }
    }
}
