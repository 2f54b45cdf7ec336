//! Places a job's pods inside a trial: its tree of sub-groups, its topology constraint, and the best
//! node for each pod (KAI, `actions/common/allocate.go`).

use super::Cycle;
use super::find;
use super::reason;
use super::topology::Scores;
use crate::action::ReasonKind;
use crate::capacity::{self, Check};
use crate::fit::{self, Assignment};
use crate::gang::{Gang, Set};
use crate::ids::{NodeName, SetName};
use crate::model::{SubGroup, TopologyRule};
use crate::product_quota;
use crate::reason::WaitReason;
use crate::score::{self, Score};
use crate::state::node_set::NodeSet;
use crate::state::rows::{JobKey, NodeKey, SpecRow, TaskKey};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// Whether pods may be bound now, or are only promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Real,
    Promise,
}

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
        self.scores.clear();
        let wanted = self
            .shares
            .wanted(self.state, tasks, self.shares.largest_card);
        if let Some(why) = capacity::over(self.state, job, wanted, Check::All) {
            return Err(Failure {
                why: Some(why),
                placed: None,
            });
        }
        match &gang.root {
            None => self.place_set(gang.sets.first(), None, tasks, nodes, way),
            Some(root) => self.place_group(gang, &Arc::clone(root), tasks, nodes, way),
        }
        .map_err(|failure| Self::in_gang_words(gang, tasks, failure))
    }

    fn place_group(
        &mut self,
        gang: &Gang,
        group: &SubGroup,
        tasks: &[TaskKey],
        nodes: &NodeSet,
        way: Way,
    ) -> Result<(), Failure> {
        let mut sets = Vec::new();
        names(group, &mut sets, 0);
        let inside: FxHashSet<&str> = sets.into_iter().collect();
        let within: Vec<&Set> = gang
            .sets
            .iter()
            .filter(|set| inside.contains(set.name.as_str()))
            .collect();
        let by_set = self.by_set(tasks);
        let rules: FxHashMap<&SetName, Option<&TopologyRule>> = group
            .sets
            .iter()
            .map(|set| (&set.name, set.topology.as_ref()))
            .collect();
        let name = group
            .name
            .as_ref()
            .map_or("", |name| name.as_str())
            .to_owned();
        self.in_domains(
            &name,
            group.topology.as_ref(),
            &within,
            tasks,
            nodes,
            |cycle, nodes| {
                for inner in gang.ordered_groups(group) {
                    let mut sets = Vec::new();
                    names(inner, &mut sets, 0);
                    let part = part(&by_set, &sets);
                    cycle.place_group(gang, inner, &part, nodes, way)?;
                }
                for set in gang.ordered_sets(group) {
                    let rule = rules.get(&set.name).copied().flatten();
                    let part = part(&by_set, &[set.name.as_str()]);
                    cycle.place_set(Some(set), rule, &part, nodes, way)?;
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
        let within: Vec<&Set> = set.into_iter().collect();
        let name = set.map_or(String::new(), |set| set.name.to_string());
        self.in_domains(&name, rule, &within, tasks, nodes, |cycle, nodes| {
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
    fn in_domains(
        &mut self,
        name: &str,
        rule: Option<&TopologyRule>,
        sets: &[&Set],
        tasks: &[TaskKey],
        nodes: &NodeSet,
        mut place: impl FnMut(&mut Self, &NodeSet) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(rule) = rule.filter(|_| !tasks.is_empty()) else {
            return place(self, nodes);
        };
        let domains = match self.domains(name, rule, sets, tasks, nodes) {
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

    fn by_set(&self, tasks: &[TaskKey]) -> BySet {
        let mut by_set = BySet::default();
        for (at, task) in tasks.iter().enumerate() {
            let name = self
                .state
                .tasks
                .get(*task)
                .and_then(|row| row.facts.set.clone());
            let name = name.unwrap_or_else(crate::gang::default_set);
            by_set.entry(name).or_default().push((at, *task));
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
        let (spec_key, avoid) = (row.spec, row.rare.avoid.clone());
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
        let before = self.decision.steps;
        let looks = self.state.refresh_domains(spec_key);
        self.looked_at(looks / TERMS, false);
        let Some(spec) = self.state.specs.get(spec_key) else {
            return Err(None);
        };
        let deferred = self.deferred.replace(false);
        let mut over = None;
        let all = nodes.len() == self.nodes.len();
        let topology = self.topology_scores(task, &set);
        let indexed =
            nodes.len() > FEW && avoid.is_empty() && topology.is_none() && self.is_sorted_for(spec);
        let best =
            if indexed {
                let among = (!all).then_some(nodes);
                let found = find::best(self, task, spec_key, way, among, &mut over);
                self.looked_at(found.looked_at, shared);
                if self.config.verify
                    && found.best
                        != self.state.specs.get(spec_key).and_then(|spec| {
                            self.best_of(task, spec, nodes, way, None, &[], &mut None)
                        })
                {
                    self.state
                        .contradicts("the index finds another node than looking at each");
                }
                found.best
            } else {
                let best = self.best_of(task, spec, nodes, way, topology, &avoid, &mut over);
                self.looked_at(nodes.len() as u64, shared);
                best
            };
        let is_deferred = self.deferred.get();
        self.deferred.set(deferred || is_deferred);
        // It goes where GPUs are free now, also beyond a quota.
        let waits = |best: &(NodeKey, Assignment)| way == Way::Real && !best.1.now;
        let best = best.filter(|best| !(is_deferred && waits(best)));
        if among_others && way == Way::Real {
            self.grown += LOOK * (self.decision.steps - before);
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
            let nodes = self.state.rooms.nodes(nodes);
            let why = reason::no_fit(self.state, self.config, spec, nodes);
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
    #[allow(clippy::too_many_arguments)]
    fn best_of(
        &self,
        task: TaskKey,
        spec: &SpecRow,
        nodes: &NodeSet,
        way: Way,
        topology: Option<&Scores>,
        avoid: &[NodeName],
        over: &mut Option<Arc<WaitReason>>,
    ) -> Option<(NodeKey, Assignment)> {
        let mut best: Option<((bool, Score), NodeKey, Assignment)> = None;
        for rank in nodes.iter() {
            let Some(key) = self.state.rooms.node(rank) else {
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
                self.fragments.as_ref(),
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
            let held = &self.state.products.of;
            let over = product_quota::over(self.state, held, task, (node, nano));
            if over.is_some() {
                return over;
            }
            if !self.borrows && product_quota::borrows(self.state, task, node, nano) {
                self.deferred.set(true);
                return Some(WaitReason::of(ReasonKind::Unschedulable, ""));
            }
        }
        if spec.share_mib == 0 {
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
        let mut about = why.about.clone();
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
                line: crate::reason::cut(text, crate::explain::MAX_LINE).into(),
                about,
            })),
            placed: None,
        }
    }
}

fn names<'a>(group: &'a SubGroup, into: &mut Vec<&'a str>, depth: u32) {
    if depth > 64 {
        return;
    }
    into.extend(group.sets.iter().map(|set| set.name.as_str()));
    for inner in &group.groups {
        names(inner, into, depth + 1);
    }
}

/// Pods by the name of their set, each with its place among all of them.
type BySet = FxHashMap<SetName, Vec<(usize, TaskKey)>>;

/// The pods of these sets, in their order.
fn part(by_set: &BySet, names: &[&str]) -> Vec<TaskKey> {
    let of = |name: &&str| by_set.get(*name).into_iter().flatten().copied();
    let mut pods: Vec<(usize, TaskKey)> = names.iter().flat_map(of).collect();
    pods.sort_unstable_by_key(|(at, _)| *at);
    pods.into_iter().map(|(_, task)| task).collect()
}
