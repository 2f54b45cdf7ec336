//! Queues and gangs where every answer takes its time.
//!
//! The API server has its own truth: what was decided is done there in some later step, or
//! is refused; the core hears of it later still, of the outcome and of the pod apart, in any
//! order, and of some only when everything else is over. Pods are deleted, end and come back
//! in between, and the core is built again from its snapshot. [`judge`] compares each decision
//! with that truth; once every answer has come, the core equals one that was told only the
//! truth.

mod case;
mod judge;

use super::{QUARTER, resource};
use crate::cases::tried_less;
use case::{Case, Shape, Step, case, is_whole};
use proptest::prelude::*;
use scheduler_core::ids::{DecisionId, GpuUuid, GroupName, PodUid, QueueName, SetName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, Mode, Node, NodeCards, Phase, Placement, Pod, PodGroup, Queue,
    Share,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, NanoGpu, Time};
use scheduler_core::{
    Action, Bind, Config, Core, Decision, Event, EvictCause, EvictRequest, GroupChange, GroupView,
    Outcome, OutcomeResult, Refusal, Step as Does, text,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const CARD: u64 = 1000;

fn placement(pod: &Pod) -> Option<&Placement> {
    match &pod.phase {
        Phase::Bound(at) | Phase::Running(at) | Phase::Releasing(Some(at)) => Some(at),
        _ => None,
    }
}

fn stands(pod: &Pod) -> bool {
    matches!(pod.phase, Phase::Bound(_) | Phase::Running(_))
}

struct World<'a> {
    case: &'a Case,
    core: Core,
    now: u64,
    groups: Vec<Option<PodGroup>>,
    /// With their job and set, as the API server has them.
    pods: BTreeMap<PodUid, (usize, usize, Pod)>,
    /// What the core has yet to be shown of each; `None`: it is gone.
    news: BTreeMap<PodUid, VecDeque<Option<Pod>>>,
    /// Decided and not done.
    undone: Vec<Action>,
    /// Done, and the core does not know.
    answers: Vec<Outcome>,
    /// What the core was shown last.
    seen: BTreeMap<PodUid, Pod>,
    /// The pods that the core was shown as succeeded, whether or not they are gone.
    succeeded: BTreeSet<PodUid>,
    /// Which set of which job a pod is of, gone or not.
    of: BTreeMap<PodUid, (usize, usize)>,
    /// Bindings of which the core does not know that they failed.
    bound: BTreeMap<PodUid, DecisionId>,
    /// The same of evictions.
    leaving: BTreeMap<PodUid, DecisionId>,
    /// Their agent does not honour their grant.
    refused: BTreeSet<PodUid>,
    /// An eviction was refused: the victim keeps a place that its queue counts as free.
    spared: bool,
    /// A binding was refused and may not be tried again, or evictions go on after pauses.
    parked: bool,
    born: u32,
    log: String,
    /// What was made of the changes of groups.
    views: BTreeMap<GroupName, GroupView>,
}

impl<'a> World<'a> {
    fn new(case: &'a Case) -> Self {
        let mut world = World {
            case,
            core: Core::new(Config::verified()),
            now: 0,
            groups: vec![None; case.jobs.len()],
            pods: BTreeMap::new(),
            news: BTreeMap::new(),
            undone: Vec::new(),
            answers: Vec::new(),
            seen: BTreeMap::new(),
            succeeded: BTreeSet::new(),
            of: BTreeMap::new(),
            bound: BTreeMap::new(),
            leaving: BTreeMap::new(),
            refused: BTreeSet::new(),
            spared: false,
            parked: false,
            born: 0,
            log: String::new(),
            views: BTreeMap::new(),
        };
        for event in world.cluster() {
            world.tell(event);
        }
        world
    }

    /// Nodes, cards and queues as they are when nothing ails them.
    fn cluster(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for index in 0..self.case.nodes.len() {
            events.push(Event::Node(self.node(index)));
            events.push(Event::Cards(self.cards(index)));
        }
        for (index, (name, parent, quota, place)) in self.case.queues().into_iter().enumerate() {
            let mut queue = Queue::unlimited(&name);
            queue.parent = parent.map(QueueName::new);
            queue.priority = place.priority;
            queue.created = Time(index as u64);
            let limit = place.over.map_or(Bound::Unlimited, |over| {
                Bound::Exactly((quota + over) * QUARTER)
            });
            let quota = Bound::Exactly(quota * QUARTER);
            queue.gpu = resource(quota, limit, place.weight * 500_000);
            events.push(Event::Queue(queue));
        }
        events
    }

    fn node(&self, index: usize) -> Node {
        let mut node = Node::named(&format!("n{index}"));
        node.cpu = CpuMilli(64_000);
        node.memory = Bytes(64 << 30);
        node.pods = 110;
        node.managed = true;
        node.gpus = self.case.nodes[index];
        node
    }

    fn cards(&self, index: usize) -> NodeCards {
        let each = (0..self.case.nodes[index])
            .map(|card| Card::named(&format!("GPU-{index}-{card}"), card, "T", CARD));
        NodeCards::offered(&format!("n{index}"), Mode::Mps, each)
    }

    fn tell(&mut self, event: Event) {
        self.log
            .push_str(&text::write(std::slice::from_ref(&event)));
        // Of what is gone already there may be news.
        let _ = self.core.apply(event);
        assert_eq!(self.core.violations(), Vec::<String>::new(), "{}", self.log);
    }

    fn arrive(&mut self, job: usize) {
        self.group_comes(job);
        let known = |world: &Self, set: usize| {
            let all = world.pods.values();
            all.filter(|(of, in_set, _)| (*of, *in_set) == (job, set))
                .count()
        };
        for set in 0..self.case.jobs[job].sets().len() {
            while known(self, set) < self.case.jobs[job].pods(set) as usize {
                self.bear(job, set);
            }
        }
    }

    fn group_comes(&mut self, index: usize) {
        let job = &self.case.jobs[index];
        if job.shape == Shape::Alone {
            return;
        }
        let group = PodGroup {
            queue: QueueName::new(format!("q{}", job.leaf)),
            priority: job.priority,
            preemptibility: job.preemptible.into(),
            created: Time(index as u64),
            root: job.tree(),
            ..PodGroup::named(&format!("default/j{index}"), 1)
        };
        self.groups[index] = Some(group.clone());
        self.tell(Event::Group(group));
    }

    fn bear(&mut self, index: usize, set: usize) {
        let job = &self.case.jobs[index];
        let mut pod = Pod::named(&format!("p{:03}", self.born));
        self.born += 1;
        pod.created = Time(self.now);
        pod.queue = QueueName::new(format!("q{}", job.leaf));
        pod.priority = job.priority;
        pod.preemptibility = job.preemptible.into();
        if job.shape != Shape::Alone {
            pod.group = Some(GroupName::new(format!("default/j{index}")));
        }
        if job.sets().len() > 1 {
            pod.sub_group = Some(SetName::new(job.sets()[set]));
        }
        let ask = if job.size >= 4 {
            Ask::Whole(u32::try_from(job.size / 4).unwrap())
        } else {
            Ask::Share(Share::of(Amount::Fraction(NanoGpu(job.size * QUARTER))))
        };
        pod.gpus.push(ContainerAsk::of("main", ask));
        self.of.insert(pod.uid.clone(), (index, set));
        self.pods.insert(pod.uid.clone(), (index, set, pod.clone()));
        self.changed(&pod.uid);
    }

    /// The API server has something new to say of a pod.
    fn changed(&mut self, uid: &PodUid) {
        let pod = self.pods.get(uid).map(|(_, _, pod)| pod.clone());
        self.news.entry(uid.clone()).or_default().push_back(pod);
    }

    fn becomes(&mut self, uid: &PodUid, phase: Phase) {
        if let Some((_, _, pod)) = self.pods.get_mut(uid) {
            pod.phase = phase;
            self.changed(uid);
        }
    }

    fn vanishes(&mut self, uid: &PodUid) {
        if self.pods.remove(uid).is_some() {
            self.changed(uid);
        }
    }

    /// As the API server deletes: a placed pod has its grace period.
    fn deleted(&mut self, uid: &PodUid) {
        match self.pods.get(uid).map(|(_, _, pod)| pod.phase.clone()) {
            Some(Phase::Bound(at) | Phase::Running(at)) => {
                self.becomes(uid, Phase::Releasing(Some(at)));
            }
            Some(Phase::Releasing(_)) | None => {}
            Some(_) => self.vanishes(uid),
        }
    }

    /// The core is shown the next that happened to a pod.
    fn show(&mut self, uid: &PodUid) {
        let Some(news) = self.news.get_mut(uid) else {
            return;
        };
        let next = news.pop_front();
        if news.is_empty() {
            self.news.remove(uid);
        }
        match next {
            Some(Some(pod)) => {
                if placement(&pod).is_some() {
                    self.bound.remove(uid);
                }
                if pod.phase == Phase::Succeeded {
                    self.succeeded.insert(uid.clone());
                }
                self.seen.insert(uid.clone(), pod.clone());
                self.tell(Event::Pod(Box::new(pod)));
            }
            Some(None) => {
                self.seen.remove(uid);
                self.bound.remove(uid);
                self.leaving.remove(uid);
                self.tell(Event::PodGone(uid.clone()));
            }
            None => {}
        }
    }

    /// What was decided is done, or refused.
    fn does(&mut self, action: &Action, refusal: Option<bool>) {
        let refused = |retryable| OutcomeResult::Refused {
            reason: Arc::from("no"),
            retryable,
        };
        let result = match (action, refusal) {
            (Action::Bind(bind), None) => {
                let waits = self.pods.get(&bind.pod);
                if waits.is_some_and(|(_, _, pod)| pod.phase == Phase::Pending) {
                    self.becomes(&bind.pod, Phase::Bound(bind.placement()));
                    OutcomeResult::Confirmed
                } else {
                    refused(true)
                }
            }
            (Action::Bind(_), Some(retryable)) => {
                self.parked |= !retryable;
                refused(retryable)
            }
            (Action::Evict(_), Some(retryable)) => {
                self.spared = true;
                refused(retryable)
            }
            (Action::Evict(evict), None) => {
                self.deleted(&evict.pod);
                OutcomeResult::Confirmed
            }
        };
        self.answers.push(Outcome {
            decision: action.decision(),
            result,
        });
    }

    fn answer(&mut self, outcome: Outcome) {
        if outcome.result != OutcomeResult::Confirmed {
            self.bound.retain(|_, id| *id != outcome.decision);
            self.leaving.retain(|_, id| *id != outcome.decision);
        }
        self.tell(Event::Outcome(outcome));
    }

    /// The pods with a place, as far as the core knows.
    fn has_place(&self, uid: &PodUid) -> bool {
        let seen = self.seen.get(uid);
        let stands = seen.is_some_and(stands)
            || self.bound.contains_key(uid) && seen.is_some_and(|pod| pod.phase == Phase::Pending);
        stands && !self.leaving.contains_key(uid) && !self.refused.contains(uid)
    }

    fn sets(&self, job: usize, has: impl Fn(&PodUid) -> bool) -> BTreeMap<&'static str, u32> {
        let mut sets = BTreeMap::new();
        let members = self.of.iter().filter(|(_, (of, _))| *of == job);
        for (_, (_, set)) in members.filter(|(uid, _)| has(uid)) {
            *sets.entry(self.case.jobs[job].sets()[*set]).or_default() += 1;
        }
        sets
    }

    fn decide(&mut self, later: u64) -> Decision {
        self.now += later;
        let decision = self.core.decide(Time(self.now));
        let said = text::decision(&decision);
        let now = self.now;
        self.log.extend(["decide ", &now.to_string(), "\n", &said]);
        assert_eq!(self.core.violations(), Vec::<String>::new(), "{}", self.log);
        self.judge(&decision);
        // Some wait until the next time.
        let most = if self.now.is_multiple_of(3) {
            1
        } else {
            usize::MAX
        };
        self.take_changed_groups(most);
        for action in &decision.actions {
            match action {
                Action::Bind(bind) => self.bound.insert(bind.pod.clone(), bind.decision),
                Action::Evict(evict) => self.leaving.insert(evict.pod.clone(), evict.decision),
            };
        }
        self.undone.extend(decision.actions.iter().cloned());
        decision
    }

    fn take_changed_groups(&mut self, most: usize) {
        for change in self.core.take_changed_groups(most) {
            match change {
                GroupChange::Changed(view) => self.views.insert(view.group.clone(), *view),
                GroupChange::Gone(name) => self.views.remove(&name),
            };
        }
    }

    fn nth(&self, which: u8, is: impl Fn(&Pod) -> bool) -> Option<PodUid> {
        let all = self.pods.values().map(|(_, _, pod)| pod);
        let all: Vec<&Pod> = all.filter(|pod| is(pod)).collect();
        let at = usize::from(which) % all.len().max(1);
        all.get(at).map(|pod| pod.uid.clone())
    }

    fn step(&mut self, step: Step) {
        let which = usize::from(step.which);
        match step.what % 32 {
            0..=4 => self.arrive(which % self.case.jobs.len()),
            5..=10 => {
                self.decide(u64::from(step.size) / 2);
            }
            11..=15 if !self.undone.is_empty() => {
                let action = self.undone.remove(which % self.undone.len());
                let refusal = step
                    .size
                    .is_multiple_of(6)
                    .then_some(!step.size.is_multiple_of(4));
                self.does(&action, refusal);
            }
            16..=18 if !self.answers.is_empty() => {
                let answer = self.answers.remove(which % self.answers.len());
                self.answer(answer);
            }
            19..=23 if !self.news.is_empty() => {
                let uid = self.news.keys().nth(which % self.news.len()).cloned();
                self.show(&uid.unwrap());
            }
            24 => {
                if let Some(uid) = self.nth(step.which, |pod| matches!(pod.phase, Phase::Bound(_)))
                    && let Phase::Bound(at) = self.pods[&uid].2.phase.clone()
                {
                    self.becomes(&uid, Phase::Running(at));
                }
            }
            25 | 26 => {
                let leaves = |pod: &Pod| matches!(pod.phase, Phase::Releasing(_));
                if let Some(uid) = self.nth(step.which, leaves) {
                    self.vanishes(&uid);
                }
            }
            27 => {
                if let Some(uid) = self.nth(step.which, |_| true) {
                    self.deleted(&uid);
                }
            }
            28 => {
                let runs = |pod: &Pod| matches!(pod.phase, Phase::Running(_));
                if let Some(uid) = self.nth(step.which, runs) {
                    let ended = [Phase::Succeeded, Phase::Failed];
                    self.becomes(&uid, ended[usize::from(step.size % 2)].clone());
                }
            }
            29 => self.restart(),
            30 | 31 if self.case.rude => self.is_rude(step),
            _ => {}
        }
        self.check();
    }

    /// What nodes, agents and people do to a scheduler.
    fn is_rude(&mut self, step: Step) {
        let index = usize::from(step.which) % self.case.nodes.len();
        let name = format!("n{index}");
        let at = self.seen.values().filter(|pod| stands(pod));
        let at = at.map(|pod| (pod.uid.clone(), placement(pod).cloned()));
        let standing: Vec<_> = at.collect();
        let one = standing.get(usize::from(step.which) % standing.len().max(1));
        match (step.size % 8, one) {
            (0, _) => self.tell(Event::AgentLost(name.as_str().into())),
            (1, _) => self.tell(Event::NodeGone(name.as_str().into())),
            (2, _) => self.tell(Event::Node(self.node(index))),
            (3, _) => self.tell(Event::Cards(self.cards(index))),
            (4, _) => {
                let job = usize::from(step.which) % self.groups.len();
                match self.groups[job].take() {
                    Some(group) => self.tell(Event::GroupGone(group.name)),
                    None => self.group_comes(job),
                }
            }
            (5, _) => {
                let mut cards = self.cards(index);
                let card = usize::from(step.size / 8) % cards.cards.len();
                cards.cards[card].unhealthy = Some(Arc::from("XID 79"));
                self.tell(Event::Cards(cards));
            }
            (6, Some((uid, Some(at)))) => self.tell(Event::EvictRequest(EvictRequest {
                pod: uid.clone(),
                node: at.node.clone(),
                reason: Arc::from("XID 79"),
            })),
            (7, Some((uid, Some(at)))) => {
                let last_word = step.size % 16 > 8;
                if last_word {
                    self.refused.insert(uid.clone());
                }
                self.tell(Event::Refusal(Refusal {
                    pod: uid.clone(),
                    node: at.node.clone(),
                    decision: at.decision,
                    reason: Arc::from("the card has less"),
                    last_word,
                }));
            }
            _ => {}
        }
    }

    /// Goes on with a core that knows the other one's snapshot alone.
    fn restart(&mut self) {
        let written = text::write(&self.core.snapshot());
        let mut again = Core::new(Config::verified());
        for event in text::read(&written).unwrap() {
            let _ = again.apply(event);
        }
        assert_eq!(text::write(&again.snapshot()), written, "{}", self.log);
        assert_eq!(again.queues(), self.core.queues(), "{}", self.log);
        // A binding that was seen before its answer came is none of the snapshot's.
        let open = self.core.open_decisions();
        assert!(again.open_decisions() <= open, "{}", self.log);
        self.log.push_str("a new core\n");
        self.core = again;
    }

    /// Everything that is under way is done and told, and whatever is missing comes back.
    fn catch_up(&mut self) {
        for action in std::mem::take(&mut self.undone) {
            self.does(&action, None);
        }
        // In turns: an answer, then a pod, then an answer.
        while !self.answers.is_empty() || !self.news.is_empty() {
            if let Some(answer) = self.answers.pop() {
                self.answer(answer);
            }
            if let Some(uid) = self.news.keys().next().cloned() {
                self.show(&uid);
            }
            self.check();
        }
    }

    fn tidy(&mut self) {
        let pods: Vec<Pod> = self.pods.values().map(|(_, _, pod)| pod.clone()).collect();
        for pod in pods {
            match pod.phase {
                Phase::Releasing(_) => self.vanishes(&pod.uid),
                Phase::Bound(at) => self.becomes(&pod.uid, Phase::Running(at)),
                _ => {}
            }
        }
        for job in 0..self.case.jobs.len() {
            // A single pod that is recreated is a new job without an eviction history: with such
            // pods the same evictions may repeat without end.
            let alone = self.case.jobs[job].shape == Shape::Alone;
            if !alone || self.of.values().all(|(of, _)| *of != job) {
                self.arrive(job);
            }
        }
        self.catch_up();
    }

    /// Until nothing is left to do.
    fn come_to_rest(&mut self) {
        for event in self.cluster() {
            self.tell(event);
        }
        self.catch_up();
        let mut evictions: BTreeMap<Option<GroupName>, BTreeSet<u64>> = BTreeMap::new();
        for round in 0..90 {
            self.tidy();
            let decision = self.decide(100_000);
            if decision.actions.is_empty() {
                return;
            }
            for action in decision.actions.iter().filter(|_| round >= 60) {
                if let Action::Evict(evict) = action {
                    let of = evictions.entry(evict.in_favour_of.clone()).or_default();
                    of.insert(self.now);
                }
            }
            self.catch_up();
        }
        // Where queues that come first take the room each time, evictions for a workload go on, in
        // the end ten minutes after one another (`cycle/history.rs`): at most six in 3,000 s.
        let rare = !evictions.is_empty() && evictions.values().all(|at| at.len() <= 6);
        assert!(self.parked || rare, "it goes on for ever\n{}", self.log);
        self.parked = true;
    }

    /// A core that was never told of anything but what there is.
    fn newborn(&self, actions: &[Does]) -> Core {
        let mut core = Core::new(Config {
            actions: actions.to_vec(),
            ..Config::verified()
        });
        for event in self.cluster() {
            core.apply(event);
        }
        for group in self.groups.iter().flatten() {
            core.apply(Event::Group(group.clone()));
        }
        for (_, _, pod) in self.pods.values() {
            core.apply(Event::Pod(Box::new(pod.clone())));
        }
        core
    }
}

proptest! {
    #![proptest_config(tried_less(256))]

    /// However late answers come: no card and no queue ever has more than it may, no gang is
    /// begun by halves, and in the end the core knows what is, and nothing else.
    #[test]
    fn answers_may_come_late_and_in_any_order(case in case()) {
        let mut world = World::new(&case);
        for step in &case.steps {
            world.step(*step);
        }
        world.come_to_rest();
        prop_assert_eq!(world.core.open_decisions(), 0, "{}", world.log);
        world.take_changed_groups(usize::MAX);
        let views: Vec<GroupView> = world.views.values().cloned().collect();
        prop_assert_eq!(views, world.core.groups(), "{}", world.log);
        let mut newborn = world.newborn(&[Does::Allocate]);
        prop_assert_eq!(newborn.queues(), world.core.queues(), "{}", world.log);
        let groups = |core: &Core| {
            let mut groups = core.groups();
            for group in &mut groups {
                group.reason = None;
                group.over = None;
            }
            groups
        };
        prop_assert_eq!(groups(&newborn), groups(&world.core), "{}", world.log);
        // Nothing is withheld from a job because of past events.
        if !world.parked {
            let decision = newborn.decide(Time(world.now));
            prop_assert!(decision.actions.is_empty(), "{}\n{}", text::decision(&decision), world.log);
        }
    }
}
