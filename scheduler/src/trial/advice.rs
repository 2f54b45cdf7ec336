//! Changes that would let a pod run: thought of from what hinders it, tried on copies of
//! the core, cheapest first.
//!
//! A change is tried in two steps: first cheaply, whether the pod would fit by itself; then in
//! full, whether the core's next decision places it and no other pod takes the room. A missing
//! object that the pod names comes first, whether or not creating it is enough. The order of the
//! others is: changes without a cost, a smaller request, changes by an admin, losses of another
//! pod, new hardware.

use super::cluster_state::ClusterState;
use scheduler_core::ids::{GroupName, NodeName, QueueName};
use scheduler_core::model::{
    Amount, Ask, Mode, Node, NodeCards, NodeRules, Phase, Pod, Preemptibility, Tolerated,
    Toleration,
};
use scheduler_core::units::{Bound, Mib, NanoGpu, Time};
use scheduler_core::{Action, Core, Event, ReasonKind};
use std::sync::Arc;
use std::time::Instant;

/// Number of changes that are listed.
const MOST: usize = 4;
/// Number of pods that are tried as the one to end.
const MOST_HOLDERS: usize = 200;
/// Fractions are tried in hundredths.
const HUNDREDTH: u64 = 10_000_000;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What to do, as the end of a sentence.
    pub what: String,
    /// A command that does it, where there is one.
    pub command: Option<String>,
    /// True if the change was tried, and places the pod by itself. Otherwise nothing else helps
    /// without it.
    pub suffices: bool,
    /// True if the words name nodes, or pods that may be of another tenant.
    pub names_others: bool,
}

/// A change and what would be known after it.
struct CandidateChange {
    what: String,
    command: Option<String>,
    events: Vec<Event>,
}

impl CandidateChange {
    fn new(what: impl Into<String>, events: Vec<Event>) -> Self {
        Self {
            what: what.into(),
            command: None,
            events,
        }
    }

    fn by(mut self, command: String) -> Self {
        self.command = Some(command);
        self
    }
}

/// A way to look for changes.
type Ideas<'a> = fn(&mut Trial<'a>) -> Vec<CandidateChange>;

/// What helps, the cheapest first. Nothing more is tried after `until`: in a large cluster all
/// trials together may take minutes.
pub fn that_help<'a>(
    core: &'a Core,
    now: Time,
    state: &'a ClusterState,
    pod: &'a Pod,
    kind: Option<ReasonKind>,
    until: Option<Instant>,
) -> Vec<Change> {
    let mut trial = Trial {
        core,
        now,
        probe: core.fork(),
        state,
        pod,
        kind,
        until,
    };
    let mut found = Vec::new();
    let kinds: [(Ideas<'a>, bool); 7] = [
        (Trial::what_it_asks_by_mistake, false),
        (Trial::closed_cards, true),
        (Trial::rules, false),
        (Trial::smaller, false),
        (Trial::queue, false),
        (Trial::a_pod_ends, true),
        (Trial::one_more_node, true),
    ];
    for (ideas, names_others) in kinds {
        for idea in ideas(&mut trial) {
            if found.len() < MOST && !trial.is_late() && trial.places(&idea.events) {
                found.push(Change {
                    what: idea.what,
                    command: idea.command,
                    suffices: true,
                    names_others,
                });
                // One of a kind is enough.
                break;
            }
        }
    }
    if let Some(what) = needed(state, pod, kind)
        && found.iter().all(|change| change.what != what)
    {
        let change = Change {
            what,
            command: None,
            suffices: false,
            names_others: false,
        };
        found.insert(0, change);
    }
    found
}

/// Returns what has to be done before anything else helps, which depends on the kind of the reason.
fn needed(state: &ClusterState, pod: &Pod, kind: Option<ReasonKind>) -> Option<String> {
    match kind? {
        ReasonKind::QueueDoesNotExist => queue_to_create(state, pod),
        ReasonKind::GroupDoesNotExist => {
            let group = pod.group.as_ref()?;
            let there = state.groups.keys().map(GroupName::as_str);
            Some(format!(
                "create the PodGroup {group}{}, or remove the annotation {}",
                did_you_mean(group.as_str(), there),
                proto::names::kai::POD_GROUP
            ))
        }
        ReasonKind::Unschedulable => beyond_every_card(state, pod),
        _ => None,
    }
}

/// Advises to create the queue of the pod, or of its group, if the queue does not exist.
fn queue_to_create(state: &ClusterState, pod: &Pod) -> Option<String> {
    let names = || state.queues.iter().map(|queue| queue.name.as_str());
    let group = pod.group.as_ref();
    let group = group.and_then(|name| state.groups.get_key_value(name));
    if let Some((group, of_group)) = group.filter(|(_, queue)| **queue != pod.queue) {
        let (namespace, name) = group.as_str().split_once('/').unwrap_or_default();
        return Some(format!(
            "name the pod's queue {} in its PodGroup, which names {of_group}: kubectl patch podgroup \
             {name} -n {namespace} --type merge -p '{{\"spec\":{{\"queue\":\"{}\"}}}}'",
            pod.queue, pod.queue
        ));
    }
    let queue = pod.queue.as_str();
    if names().any(|name| name == queue) {
        return None;
    }
    let default = proto::names::kai::DEFAULT_QUEUE;
    let known = match did_you_mean(queue, names()) {
        guess if !guess.is_empty() => guess,
        _ if names().any(|name| name == default) => format!(" ({default} exists)"),
        _ => String::new(),
    };
    Some(format!(
        "create the queue {queue}, or name another in the label {}{known}",
        proto::names::kai::QUEUE_LABEL
    ))
}

/// Advises a smaller request if a container requests more of each card than any card can grant.
fn beyond_every_card(state: &ClusterState, pod: &Pod) -> Option<String> {
    let cards = state.agents.values().flat_map(|agent| &agent.cards);
    let cards = cards.filter(|card| !card.mig && !card.slice);
    let most = cards.map(|card| card.grantable).max()?;
    pod.gpus.iter().find_map(|asked| match &asked.ask {
        Ask::Share(share) => match share.amount {
            Amount::Memory(mib) if mib > most => Some(format!(
                "request at most {} MiB for container {}: no card of this cluster can grant {}",
                most.0, asked.container, mib.0
            )),
            _ => None,
        },
        Ask::Whole(_) => None,
    })
}

/// Returns ` (did you mean team-a?)` with the most similar name, or nothing if no name is similar.
fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let nearest = known
        .map(|known| (strsim::osa_distance(name, known), known))
        .min();
    match nearest {
        // One letter in three may be wrong, and one letter of a short name.
        Some((wrong, known)) if wrong <= (name.chars().count() / 3).max(1) => {
            format!(" (did you mean {known}?)")
        }
        _ => String::new(),
    }
}

struct Trial<'a> {
    core: &'a Core,
    now: Time,
    /// Changed and changed back.
    probe: Core,
    state: &'a ClusterState,
    pod: &'a Pod,
    /// Of the leading reason.
    kind: Option<ReasonKind>,
    until: Option<Instant>,
}

#[allow(clippy::elidable_lifetime_names)] // One lifetime, as the list of kinds needs it.
impl<'a> Trial<'a> {
    /// Whether the pod would fit somewhere, others left aside.
    fn fits(&mut self, pod: &Pod) -> bool {
        self.probe.apply(Event::Pod(Box::new(pod.clone())));
        let fits = self.fits_now();
        self.probe.apply(Event::Pod(Box::new(self.pod.clone())));
        fits
    }

    fn is_late(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn fits_now(&self) -> bool {
        let explanation = self.probe.explain(&self.pod.uid);
        explanation.is_some_and(|explanation| explanation.nodes.iter().any(|node| node.fits))
    }

    /// Whether the core's decision after these events gives the pod a place.
    fn places(&self, events: &[Event]) -> bool {
        let mut copy = self.core.fork();
        for event in events {
            copy.apply(event.clone());
        }
        let decision = copy.decide(self.now);
        let bound = decision
            .actions
            .iter()
            .any(|action| matches!(action, Action::Bind(bind) if bind.pod == self.pod.uid));
        bound || decision.promises.iter().any(|p| p.pod == self.pod.uid)
    }

    fn changed(&self, change: impl FnOnce(&mut Pod)) -> Vec<Event> {
        let mut pod = self.pod.clone();
        change(&mut pod);
        vec![Event::Pod(Box::new(pod))]
    }

    /// Gates, a missing queue.
    fn what_it_asks_by_mistake(&mut self) -> Vec<CandidateChange> {
        let mut ideas = Vec::new();
        if self.pod.gated {
            let events = self.changed(|pod| pod.gated = false);
            ideas.push(CandidateChange::new("remove its scheduling gates", events));
        }
        if let Some(what) = queue_to_create(self.state, self.pod) {
            let default = QueueName::new(proto::names::kai::DEFAULT_QUEUE);
            let events = self.changed(|pod| pod.queue = default);
            ideas.push(CandidateChange::new(what, events));
        }
        let several = |ask: &Ask| matches!(ask, Ask::Share(share) if share.devices > 1);
        if self.pod.gpus.iter().any(|asked| several(&asked.ask)) {
            let events = self.changed(|pod| {
                for asked in &mut pod.gpus {
                    if let Ask::Share(share) = &mut asked.ask {
                        share.mode = Some(Mode::TimeSlicing);
                    }
                }
            });
            ideas.push(CandidateChange::new(
                format!(
                    "share its GPUs by time slices (annotation {}: time-slicing), in which a container may have several",
                    proto::names::request::COMPUTE_MODE
                ),
                events,
            ));
        }
        let mode = |ask: &Ask| matches!(ask, Ask::Share(share) if share.mode.is_some());
        if self.pod.gpus.iter().any(|asked| mode(&asked.ask)) {
            let events = self.changed(|pod| {
                for asked in &mut pod.gpus {
                    if let Ask::Share(share) = &mut asked.ask {
                        share.mode = None;
                    }
                }
            });
            ideas.push(CandidateChange::new(
                "remove the sharing mode, so that the node's default applies",
                events,
            ));
        }
        ideas
    }

    /// Cordoned cards and nodes.
    fn closed_cards(&mut self) -> Vec<CandidateChange> {
        let mut ideas = Vec::new();
        for (name, agent) in &self.state.agents {
            for card in agent.cards.iter().filter(|card| card.cordoned) {
                let mut agent = agent.clone();
                for other in &mut agent.cards {
                    other.cordoned &= other.uuid != card.uuid;
                }
                let idea = CandidateChange::new(
                    format!("uncordon GPU {} of node {name}", card.index),
                    vec![Event::Cards(agent)],
                );
                ideas.push(idea.by(format!("aliquot uncordon {name}/{}", card.index)));
            }
        }
        for node in self.state.nodes.values().filter(|node| node.unschedulable) {
            let mut open = node.clone();
            open.unschedulable = false;
            let idea = CandidateChange::new(
                format!("uncordon node {}", node.name),
                vec![Event::Node(open)],
            );
            ideas.push(idea.by(format!("kubectl uncordon {}", node.name)));
        }
        ideas
    }

    /// Selectors, affinities, taints.
    fn rules(&mut self) -> Vec<CandidateChange> {
        let mut ideas = Vec::new();
        if self.pod.nodes != NodeRules::default() {
            let mut free = self.pod.clone();
            free.nodes = NodeRules::default();
            if self.fits(&free) {
                ideas.push(CandidateChange::new(
                    "remove its node selector and node affinity",
                    vec![Event::Pod(Box::new(free))],
                ));
            }
        }
        let tolerant = |pod: &mut Pod, key: Option<Arc<str>>| {
            pod.tolerations.push(Toleration {
                key,
                values: Tolerated::Any,
                effect: None,
            });
        };
        let mut keys: Vec<Arc<str>> = self
            .state
            .nodes
            .values()
            .flat_map(|node| node.taints.iter().map(|taint| Arc::clone(&taint.key)))
            .collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let mut pod = self.pod.clone();
            tolerant(&mut pod, Some(Arc::clone(&key)));
            if self.fits(&pod) {
                ideas.push(CandidateChange::new(
                    format!("add a toleration of the taint {key}"),
                    vec![Event::Pod(Box::new(pod))],
                ));
            }
        }
        ideas
    }

    /// The largest request that fits.
    fn smaller(&mut self) -> Vec<CandidateChange> {
        let [asked] = self.pod.gpus.as_slice() else {
            return Vec::new();
        };
        let asked = asked.ask.clone();
        let with = |trial: &Self, ask: Ask| {
            let mut pod = trial.pod.clone();
            if let Some(first) = pod.gpus.first_mut() {
                first.ask = ask;
            }
            pod
        };
        let (what, ask) = match asked {
            Ask::Whole(count) => {
                let fewer = (1..count).rev().find(|fewer| {
                    let pod = with(self, Ask::Whole(*fewer));
                    self.fits(&pod)
                });
                let Some(fewer) = fewer else {
                    return Vec::new();
                };
                (
                    format!("request nvidia.com/gpu: {fewer} instead of {count}"),
                    Ask::Whole(fewer),
                )
            }
            Ask::Share(share) => {
                let of = |amount: u64| {
                    let mut share = share.clone();
                    share.amount = match share.amount {
                        Amount::Memory(_) => Amount::Memory(Mib(amount)),
                        Amount::Fraction(_) => Amount::Fraction(NanoGpu(amount * HUNDREDTH)),
                    };
                    Ask::Share(share)
                };
                let most = match share.amount {
                    Amount::Memory(mib) => mib.0,
                    Amount::Fraction(nano) => nano.0.div_ceil(HUNDREDTH),
                };
                let largest = largest(most.saturating_sub(1), |amount| {
                    let pod = with(self, of(amount));
                    self.fits(&pod)
                });
                if largest == 0 {
                    return Vec::new();
                }
                let what = match share.amount {
                    Amount::Memory(mib) => {
                        format!("request gpu-memory: \"{largest}\" instead of \"{}\"", mib.0)
                    }
                    Amount::Fraction(_) => {
                        format!("request gpu-fraction: \"0.{largest:02}\" instead")
                    }
                };
                (what, of(largest))
            }
        };
        let pod = with(self, ask);
        vec![CandidateChange::new(what, vec![Event::Pod(Box::new(pod))])]
    }

    /// Limits and quotas of its queue and the queues above.
    fn queue(&mut self) -> Vec<CandidateChange> {
        let views = self.probe.queues();
        let mut chain = Vec::new();
        let mut next = Some(self.pod.queue.clone());
        while let Some(name) = next.take() {
            let view = views.iter().find(|view| view.queue == name);
            if let Some(view) = view.filter(|_| chain.len() <= views.len()) {
                chain.push(view);
                next.clone_from(&view.parent);
            }
        }
        let raised = |name: &QueueName, quota: bool| {
            let queue = self.state.queues.iter().find(|queue| queue.name == *name)?;
            let mut queue = queue.clone();
            for resource in [&mut queue.gpu, &mut queue.cpu, &mut queue.memory] {
                if quota {
                    resource.quota = Bound::Unlimited;
                } else {
                    resource.limit = Bound::Unlimited;
                }
            }
            for row in &mut queue.products {
                if quota {
                    row.quota = row.quota.map(|_| Bound::Unlimited);
                } else {
                    row.limit = Bound::Unlimited;
                }
            }
            Some(Event::Queue(queue))
        };
        let mut ideas = Vec::new();
        match self.kind {
            Some(ReasonKind::OverLimit) => {
                for view in &chain {
                    let events: Vec<Event> = raised(&view.queue, false).into_iter().collect();
                    ideas.push(CandidateChange::new(
                        format!("raise the limit of the queue {}", view.queue),
                        events,
                    ));
                }
                let all = chain.iter().filter_map(|view| raised(&view.queue, false));
                let names: Vec<&str> = chain.iter().map(|view| view.queue.as_str()).collect();
                ideas.push(CandidateChange::new(
                    format!("raise the limits of the queues {}", names.join(", ")),
                    all.collect(),
                ));
            }
            Some(ReasonKind::NonPreemptibleOverQuota) => {
                let events = self.changed(|pod| pod.preemptibility = Preemptibility::Preemptible);
                ideas.push(CandidateChange::new(
                    format!(
                        "let it be preemptible (label {}: preemptible), which may go over quota",
                        proto::names::kai::PREEMPTIBILITY_LABEL
                    ),
                    events,
                ));
                let all = chain.iter().filter_map(|view| raised(&view.queue, true));
                let names: Vec<&str> = chain.iter().map(|view| view.queue.as_str()).collect();
                ideas.push(CandidateChange::new(
                    format!("raise the quota of {}", names.join(" and ")),
                    all.collect(),
                ));
            }
            _ => {}
        }
        ideas
    }

    /// The pod that holds least and whose end makes room.
    fn a_pod_ends(&mut self) -> Vec<CandidateChange> {
        let mut holders: Vec<(u64, &Pod)> = self
            .state
            .pods
            .values()
            .filter(|pod| matches!(pod.phase, Phase::Bound(_) | Phase::Running(_)))
            .filter_map(|pod| {
                let (_, grants) = self.state.placement(pod)?;
                let held = grants
                    .iter()
                    .map(|grant| grant.memory.0.saturating_mul(grant.cards.len() as u64))
                    .fold(0_u64, u64::saturating_add);
                (held > 0).then_some((held, pod))
            })
            .collect();
        holders.sort_by_key(|(held, pod)| (*held, std::cmp::Reverse(pod.created), pod.uid.clone()));
        let mut ideas = Vec::new();
        for (held, holder) in holders.into_iter().take(MOST_HOLDERS) {
            if self.is_late() {
                break;
            }
            self.probe.apply(Event::PodGone(holder.uid.clone()));
            let fits = self.fits_now();
            self.probe.apply(Event::Pod(Box::new(holder.clone())));
            if fits {
                let name = format!("{}/{}", holder.namespace, holder.name);
                ideas.push(CandidateChange::new(
                    format!(
                        "wait for the end of {name} (queue {}, {held} MiB), or end it",
                        holder.queue
                    ),
                    vec![Event::PodGone(holder.uid.clone())],
                ));
            }
        }
        ideas
    }

    /// A node like one that there is, empty.
    fn one_more_node(&mut self) -> Vec<CandidateChange> {
        let mut kinds: Vec<(&Node, Option<&NodeCards>)> = Vec::new();
        for (name, node) in &self.state.nodes {
            let agent = self.state.agents.get(name);
            let products = |agent: Option<&NodeCards>| -> Vec<Arc<str>> {
                let cards = agent
                    .map(|agent| agent.cards.as_slice())
                    .unwrap_or_default();
                cards.iter().map(|card| Arc::clone(&card.product)).collect()
            };
            let known = kinds
                .iter()
                .any(|(_, other)| products(*other) == products(agent));
            if !known {
                kinds.push((node, agent));
            }
        }
        let ideas = kinds.into_iter().filter_map(|(node, agent)| {
            let mut fresh = node.clone();
            fresh.name = NodeName::new("aliquot-one-more-node");
            fresh.unschedulable = false;
            fresh.not_ready.clear();
            let mut events = vec![Event::Node(fresh.clone())];
            if let Some(agent) = agent {
                let mut agent = agent.clone();
                agent.node = fresh.name.clone();
                for (at, card) in agent.cards.iter_mut().enumerate() {
                    card.uuid = format!("GPU-one-more-{at}").into();
                    card.grantable = card.total.less(card.reserved);
                    card.strangers = Mib(0);
                    card.mode = None;
                    card.unhealthy = None;
                    card.cordoned = false;
                    card.ready = true;
                    card.nvlink_peers.clear();
                }
                // What it shows of whole GPUs follows from how it would be used.
                fresh.gpus = u32::try_from(agent.cards.len()).ok()?;
                events = vec![Event::Node(fresh), Event::Cards(agent)];
            }
            Some(CandidateChange::new(
                format!("one more node like {}, empty", node.name),
                events,
            ))
        });
        ideas.collect()
    }
}

/// The largest number up to `most` for which `fits` holds, where what fits still fits when
/// it is smaller; 0 when none does.
fn largest(most: u64, mut fits: impl FnMut(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::{did_you_mean, largest};

    #[test]
    fn a_name_is_guessed_only_if_it_is_similar() {
        let known = || ["team-a", "research", "default-queue"].into_iter();
        assert_eq!(did_you_mean("teem-a", known()), " (did you mean team-a?)");
        assert_eq!(
            did_you_mean("researc", known()),
            " (did you mean research?)"
        );
        assert_eq!(did_you_mean("product", known()), "");
        assert_eq!(did_you_mean("x", std::iter::empty()), "");
    }

    #[test]
    fn the_largest_that_fits_is_found() {
        for (most, limit) in [
            (0, 0),
            (1, 0),
            (1, 1),
            (100, 0),
            (100, 37),
            (100, 100),
            (100, 200),
        ] {
            assert_eq!(largest(most, |amount| amount <= limit), most.min(limit));
        }
    }
}
