//! A fork of the core plays forward the ends of what runs.
//!
//! The clock goes from one known end to the next. There the pods that end succeed, the core decides,
//! and its decisions are carried out. Between two ends the clock stops where the core itself wants to
//! decide again.

use super::estimate::{EndedPod, Estimate, Forecast};
use super::way::{Holder, Way, Ways, asks_for_cards};
use crate::convert::run_time::{Basis, RunTime};
use crate::trial::{self, RECREATED};
use scheduler_core::ids::{GroupName, NodeName, PodUid};
use scheduler_core::model::{Phase, Pod, Preemptibility};
use scheduler_core::units::Time;
use scheduler_core::{Action, Bind, Core, Decision, Event, ReasonKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// Decisions without an action that are taken between two ends. By then a search with backoff has
/// reached its largest number of steps.
const MOST_FRUITLESS: u32 = 16;

/// How long a forecast may take.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The largest number of decisions.
    pub decisions: u32,
    /// The end of the budget by the clock of this machine, which stands still in a simulated world.
    /// There only decisions count.
    pub until: Instant,
}

impl Budget {
    /// Returns the budget of one forecast, which is a second.
    pub fn of_one() -> Self {
        Self {
            decisions: 20_000,
            until: Instant::now() + Duration::from_secs(1),
        }
    }
}

/// Estimates when each pod starts that waits in this core, which is a fork and is used up.
pub fn forecast(
    core: Core,
    run_times: &BTreeMap<PodUid, RunTime>,
    now: Time,
    budget: Budget,
) -> Forecast {
    let made = core.now().max(now);
    let empty = core.fork();
    let mut play = Play::new(core, run_times, made);
    let mut ways = Ways::new(empty, play.holders.keys());
    let at_first = play.holders.clone();
    let cut_short = play.run(budget);
    let mut forecast = Forecast {
        made,
        decisions: play.decisions,
        cut_short,
        ..Forecast::default()
    };
    for uid in &play.waiting {
        let way = ways.of(uid, play.kinds.get(uid).copied(), &at_first);
        let in_way = |holders: &BTreeMap<PodUid, Holder>, known: bool| {
            let in_way = holders.values().filter(|holder| way.has(holder));
            in_way
                .filter(|holder| holder.end.is_some() == known)
                .count()
        };
        let estimate = if let Some(start) = play.starts.get(uid) {
            let known = in_way(&at_first, true);
            Estimate::About {
                time: start.time,
                after: start.after.clone(),
                known,
                of: known + in_way(&at_first, false),
            }
        } else {
            match in_way(&play.holders, false) {
                0 if cut_short => Estimate::NotBefore {
                    time: play.first_end(uid, &way).unwrap_or(made),
                },
                unknown => Estimate::Unknown { unknown },
            }
        };
        forecast.pods.insert(uid.clone(), estimate);
    }
    forecast
}

/// The start of a pod that waits.
struct Start {
    time: Time,
    after: Option<EndedPod>,
}

/// The pods that ended last, at the same time.
#[derive(Default)]
struct LastEnds {
    at: Time,
    pods: Vec<(NodeName, EndedPod)>,
}

struct Play<'a> {
    core: Core,
    run_times: &'a BTreeMap<PodUid, RunTime>,
    now: Time,
    decisions: u32,
    /// Pods that waited at first.
    waiting: BTreeSet<PodUid>,
    /// Pods whose group has others.
    gangs: BTreeSet<PodUid>,
    /// Whether the pods of a group may be evicted.
    preemptible: BTreeMap<GroupName, Preemptibility>,
    starts: BTreeMap<PodUid, Start>,
    /// The kind of the reason why a pod waits after all decisions that are due at first.
    kinds: BTreeMap<PodUid, ReasonKind>,
    holders: BTreeMap<PodUid, Holder>,
    /// The holders after all decisions that are due at first. `None`: these are not all taken.
    settled: Option<BTreeMap<PodUid, Holder>>,
    ends: BTreeSet<(Time, PodUid)>,
    /// Pods that are being deleted. They are taken to be gone soon.
    leaving: BTreeSet<PodUid>,
    ended: LastEnds,
}

impl<'a> Play<'a> {
    fn new(core: Core, run_times: &'a BTreeMap<PodUid, RunTime>, now: Time) -> Self {
        let mut play = Self {
            core,
            run_times,
            now,
            decisions: 0,
            waiting: BTreeSet::new(),
            gangs: BTreeSet::new(),
            preemptible: BTreeMap::new(),
            starts: BTreeMap::new(),
            kinds: BTreeMap::new(),
            holders: BTreeMap::new(),
            settled: None,
            ends: BTreeSet::new(),
            leaving: BTreeSet::new(),
            ended: LastEnds::default(),
        };
        let (mut pods, mut binds, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        let mut preemptible = BTreeMap::new();
        let mut members: BTreeMap<GroupName, Vec<PodUid>> = BTreeMap::new();
        play.core.snapshot_to(|event| match event {
            Event::Pod(pod) => {
                if let Some(group) = &pod.group {
                    let members = members.entry(group.clone()).or_default();
                    members.push(pod.uid.clone());
                }
                pods.push(pod);
            }
            Event::Group(group) => drop(preemptible.insert(group.name, group.preemptibility)),
            Event::Assumed(bind) => binds.push(bind),
            Event::Evicting(evicting) => leaving.push(evicting.pod),
            _ => {}
        });
        play.preemptible = preemptible;
        let gangs = members.into_values().filter(|members| members.len() > 1);
        play.gangs = gangs.flatten().collect();
        for pod in pods {
            let end = play.known_end(&pod.uid);
            match &pod.phase {
                Phase::Pending if pod.ours => drop(play.waiting.insert(pod.uid)),
                Phase::Bound(place) | Phase::Running(place) => play.hold(&pod, &place.node, end),
                Phase::Releasing(Some(place)) => {
                    play.hold(&pod, &place.node, Some(now));
                    play.leaving.insert(pod.uid);
                }
                Phase::Stuck(place) => play.hold(&pod, &place.node, None),
                Phase::Pending | Phase::Releasing(None) | Phase::Succeeded | Phase::Failed => {}
            }
        }
        for bind in binds {
            play.waiting.remove(&bind.pod);
            play.place(&bind);
        }
        for uid in leaving {
            if let Some(holder) = play.holders.get_mut(&uid) {
                if let Some(end) = holder.end.replace(now) {
                    play.ends.remove(&(end, uid.clone()));
                }
                play.ends.insert((now, uid.clone()));
                play.leaving.insert(uid);
            }
        }
        play
    }

    /// Returns the run time of a pod. A pod that is created again after an eviction runs as long as the
    /// first one.
    fn run_time(&self, uid: &PodUid) -> Option<RunTime> {
        let first = uid.as_str().trim_end_matches(RECREATED);
        let run = *self.run_times.get(&PodUid::new(first))?;
        let started = run.started.filter(|_| first == uid.as_str());
        Some(RunTime { started, ..run })
    }

    /// Returns when the pod ends. A pod that has run longer than it was expected to has no known end.
    fn known_end(&self, uid: &PodUid) -> Option<Time> {
        let run = self.run_time(uid)?;
        let end = run.end(self.now);
        (run.basis == Basis::Limit || end > self.now).then_some(end.max(self.now))
    }

    /// Notes that a pod holds its place on a node until that end.
    fn hold(&mut self, pod: &Pod, node: &NodeName, end: Option<Time>) {
        self.ends.extend(end.map(|end| (end, pod.uid.clone())));
        let group = pod.group.as_ref();
        let group = group.and_then(|group| self.preemptible.get(group));
        let holder = Holder {
            // Any pod of a semi-preemptible group may be beyond its core.
            preemptible: group.copied().unwrap_or(pod.preemptibility)
                != Preemptibility::NonPreemptible,
            node: node.clone(),
            queue: self.core.queue_of(&pod.uid),
            cards: asks_for_cards(pod),
            end,
        };
        self.holders.insert(pod.uid.clone(), holder);
    }

    /// Notes that a pod is bound.
    fn place(&mut self, bind: &Bind) {
        if let Some(pod) = self.core.pod(&bind.pod) {
            self.hold(&pod, &bind.node, self.known_end(&bind.pod));
        }
    }

    /// Notes what is in the way of the pods that wait before any time has passed.
    fn settle(&mut self) {
        let kind = |uid: &PodUid| Some((uid.clone(), self.core.told_kind(uid)?));
        self.kinds = self.waiting.iter().filter_map(kind).collect();
        self.settled = Some(self.holders.clone());
    }

    /// Returns the time before which the pod cannot start.
    fn first_end(&self, uid: &PodUid, way: &Way) -> Option<Time> {
        let kind = self.kinds.get(uid).copied();
        let alone = !self.gangs.contains(uid);
        way.first_end(kind, alone, self.settled.as_ref()?)
    }

    /// Plays until all pods have started, or no end is known any more. Returns true if the budget ended
    /// before that.
    fn run(&mut self, budget: Budget) -> bool {
        let mut fruitless = 0;
        while self.starts.len() < self.waiting.len() {
            if self.decisions >= budget.decisions || Instant::now() >= budget.until {
                return true;
            }
            let decision = self.core.decide(self.now);
            self.decisions += 1;
            self.note(&decision);
            trial::carry_out(&mut self.core, self.now, &decision);
            self.show_running(&decision);
            if !decision.actions.is_empty() {
                fruitless = 0;
                continue;
            }
            fruitless += 1;
            let goes_on = fruitless < MOST_FRUITLESS;
            if decision.cut_short && goes_on {
                continue;
            }
            if self.settled.is_none() {
                self.settle();
            }
            let again = decision.wake_at.filter(|at| goes_on && *at > self.now);
            let end = self.ends.first().map(|(end, _)| *end);
            let Some(next) = again.into_iter().chain(end).min() else {
                return false;
            };
            self.now = self.now.max(next);
            if self.end_pods() {
                fruitless = 0;
            }
        }
        false
    }

    /// Notes the starts and the evictions of a decision.
    fn note(&mut self, decision: &Decision) {
        for action in &decision.actions {
            match action {
                Action::Bind(bind) => {
                    self.place(bind);
                    if self.waiting.contains(&bind.pod) && !self.starts.contains_key(&bind.pod) {
                        let start = Start {
                            time: self.now,
                            after: self.ended.of(&bind.node),
                        };
                        self.starts.insert(bind.pod.clone(), start);
                    }
                }
                Action::Evict(evict) => {
                    if let Some(holder) = self.holders.remove(&evict.pod)
                        && let Some(end) = holder.end
                    {
                        self.ends.remove(&(end, evict.pod.clone()));
                    }
                }
            }
        }
    }

    /// Lets the pods run that were bound. A pod is left out if it was evicted with the same decision.
    fn show_running(&mut self, decision: &Decision) {
        for action in &decision.actions {
            if let Action::Bind(bind) = action
                && let Some(mut pod) = self.core.pod(&bind.pod)
            {
                pod.phase = Phase::Running(bind.placement());
                self.core.apply(Event::Pod(Box::new(pod)));
            }
        }
    }

    /// Lets the pods succeed whose end has come. Returns true if there were any.
    fn end_pods(&mut self) -> bool {
        let mut any = false;
        while let Some((end, uid)) = self.ends.pop_first() {
            if end > self.now {
                self.ends.insert((end, uid));
                break;
            }
            any = true;
            let holder = self.holders.remove(&uid);
            let (Some(holder), Some(mut pod)) = (holder, self.core.pod(&uid)) else {
                continue;
            };
            let leaves = self.leaving.remove(&uid);
            let run = self.run_time(&uid).filter(|_| !leaves);
            let ended = EndedPod {
                name: format!("{}/{}", pod.namespace, pod.name).into(),
                runs: run.map(|run| (run.length, run.basis)),
            };
            self.ended.push(self.now, holder.node, ended);
            if leaves {
                self.core.apply(Event::PodGone(uid));
            } else {
                pod.phase = Phase::Succeeded;
                self.core.apply(Event::Pod(Box::new(pod.clone())));
            }
            trial::free_claims(&mut self.core, &pod);
        }
        any
    }
}

impl LastEnds {
    /// Adds a pod. Pods that ended earlier are forgotten.
    fn push(&mut self, at: Time, node: NodeName, pod: EndedPod) {
        if self.at != at {
            self.pods.clear();
            self.at = at;
        }
        self.pods.push((node, pod));
    }

    /// Returns one of the pods, of this node if there is one.
    fn of(&self, node: &NodeName) -> Option<EndedPod> {
        let on = self.pods.iter().find(|(on, _)| on == node);
        on.or(self.pods.first()).map(|(_, pod)| pod.clone())
    }
}

#[cfg(test)]
mod tests;
