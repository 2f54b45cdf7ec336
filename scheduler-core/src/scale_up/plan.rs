//! How many nodes of which group a shortage needs.

use super::groups::{NodeTemplate, Shortage};
use crate::action::Action;
use crate::config::{Config, Placement, Step};
use crate::core::Core;
use crate::event::Event;
use crate::ids::{GpuUuid, GroupName, NodeName, NodeUid, PodUid};
use crate::model::{Amount, Ask, Card, Labels, Node, NodeCards, NodeRules, Phase, Pod, Toleration};
use crate::units::{Bytes, CpuMilli, Mib, NanoGpu, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Prefix of names of planned nodes; Kubernetes' names have no slash.
const NEW: &str = "new/";
/// A multiple of every usual fraction: such a card is as good as any other for fractions.
const UNKNOWN_CARD: Mib = Mib(1_000_000);
/// Largest number of decisions until all pods were tried: if one is cut short, the next continues.
pub(crate) const DECISIONS: u64 = 64;

/// One requested node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Which of the templates. `None`: of a group that nothing is known of; the rules of the
    /// first of [`Self::pods`] say which nodes will do.
    pub template: Option<usize>,
    /// Cards that are needed of it, at most those of the template.
    pub cards: u32,
    /// CPU request of its pods.
    pub cpu: CpuMilli,
    /// Memory request of its pods.
    pub memory: Bytes,
    /// The pods that it is for, in the order in which they were placed.
    pub pods: Vec<PodUid>,
}

/// What [`plan`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Nodes to ask for.
    pub nodes: Vec<NewNode>,
    /// Nodes that are starting, and the pods that they have room for. Each is asked for until
    /// they have their places: an autoscaler takes a node without a placeholder for room for
    /// another one.
    pub starting: BTreeMap<NodeName, NewNode>,
}

/// How many nodes of which group `shortage` needs. Groups are tried in their order: the first
/// takes all pods that it has room for, and what needs several groups at once comes last. A
/// gang gets all the nodes that it needs, or none. `config`: that of the scheduler.
///
/// What no group's node would do for asks for nodes of groups that nothing is known of, by
/// `unknown`. A pod that waits only because a group may have no more nodes asks for none: such a
/// node might be one of that very group.
pub fn plan(
    shortage: &Shortage,
    templates: &[NodeTemplate],
    unknown: &Unknown,
    config: &Config,
) -> Plan {
    let mut plan = Plan::default();
    let mut left = vec![0; templates.len()];
    for (room, template) in left.iter_mut().zip(templates) {
        let there = shortage.there.get(&template.known_by);
        *room = template
            .most
            .saturating_sub(there.copied().unwrap_or_default());
    }
    let mut rounds: Vec<Vec<usize>> = (0..templates.len()).map(|at| vec![at]).collect();
    if templates.len() > 1 {
        rounds.push((0..templates.len()).collect());
    }
    for round in rounds {
        let offer = |most: &dyn Fn(usize) -> u32| {
            let mut site = Site::new(shortage, templates, config, &plan);
            for at in &round {
                if let Some(template) = templates.get(*at) {
                    site.add(*at, template, most(*at));
                }
            }
            let nodes = site.decide();
            (site, nodes)
        };
        let room = |at: usize| left.get(at).copied().unwrap_or(0);
        let (mut site, mut nodes) = offer(&room);
        let (least, enough) = (site.waiting.len(), nodes.len());
        // With room left elsewhere, or packed closer, fewer may do for the same pods.
        if let [at] = round.as_slice() {
            let (mut few, mut many) = (0, u32::try_from(enough).unwrap_or(u32::MAX));
            while few < many {
                let half = few + (many - few) / 2;
                let (tried, found) = offer(&|_| half);
                if tried.waiting.len() <= least {
                    many = u32::try_from(found.len()).unwrap_or(half).min(half);
                    (site, nodes) = (tried, found);
                } else {
                    few = half + 1;
                }
            }
            debug_assert!(nodes.len() <= enough, "of group {at}");
        }
        for node in &nodes {
            if let Some(room) = node.template.and_then(|at| left.get_mut(at)) {
                *room = room.saturating_sub(1);
            }
        }
        plan.nodes.append(&mut nodes);
        plan.starting.append(&mut site.starting);
        if site.waiting.is_empty() {
            return plan;
        }
    }
    let mut placed = placed(&plan);
    if templates.iter().any(|template| template.most < u32::MAX) {
        let mut site = Site::new(shortage, templates, config, &plan);
        for (at, template) in templates.iter().enumerate() {
            site.add(at, template, u32::MAX);
        }
        let held_up = site.decide().into_iter().flat_map(|node| node.pods);
        placed.extend(held_up);
    }
    let mut asked = 0;
    for (devices, pods) in alike(shortage, &placed) {
        let most = unknown.most.saturating_sub(asked);
        let mut nodes = unknown.plan(shortage, &pods, devices, most, config);
        asked = asked.saturating_add(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        plan.nodes.append(&mut nodes);
    }
    plan
}

fn placed(plan: &Plan) -> BTreeSet<PodUid> {
    let nodes = plan.nodes.iter().chain(plan.starting.values());
    nodes.flat_map(|node| &node.pods).cloned().collect()
}

/// Pods of a shortage that may go to the same nodes, by the number of GPUs that such a node needs
/// at least: pods of one group together, by the rules of its first.
fn alike(shortage: &Shortage, but: &BTreeSet<PodUid>) -> Vec<(u32, BTreeSet<PodUid>)> {
    type Rules<'a> = (&'a NodeRules, &'a [Toleration], bool);
    let mut groups: BTreeMap<&GroupName, Rules<'_>> = BTreeMap::new();
    let mut alike: BTreeMap<Rules<'_>, (u32, BTreeSet<PodUid>)> = BTreeMap::new();
    for pod in shortage.waiting().filter(|pod| !but.contains(&pod.uid)) {
        let devices = pod.gpus.iter().map(|ask| match &ask.ask {
            Ask::Whole(cards) => *cards,
            Ask::Share(share) => share.devices,
        });
        // Init containers' cards are lent to the others.
        let devices = devices.max().unwrap_or(0);
        let own: Rules<'_> = (&pod.nodes, &pod.tolerations, devices > 0);
        let rules = match &pod.group {
            Some(group) => *groups.entry(group).or_insert(own),
            None => own,
        };
        let (most, pods) = alike.entry(rules).or_default();
        *most = devices.max(*most);
        pods.insert(pod.uid.clone());
    }
    alike.into_values().collect()
}

/// Nodes of groups of which nothing is known: no template, and no node that ever came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// What a request for GPU memory counts as: KAI's `gpuMemoryToFractionRatio`.
    pub memory_counts_as: NanoGpu,
    /// Most of them that one plan asks for.
    pub most: u32,
}

impl Unknown {
    /// Each has as many cards as the largest of these pods needs; one without cards is for one pod.
    fn plan(
        self,
        shortage: &Shortage,
        pods: &BTreeSet<PodUid>,
        devices: u32,
        most: u32,
        config: &Config,
    ) -> Vec<NewNode> {
        let few = Shortage {
            events: shortage
                .events
                .iter()
                .filter_map(|event| self.regardless(event, pods))
                .collect(),
            ..Shortage::default()
        };
        let template = NodeTemplate {
            name: Arc::from("unknown"),
            node: Node {
                cpu: CpuMilli(u64::MAX / 4),
                memory: Bytes(u64::MAX / 4),
                pods: if devices == 0 { 1 } else { u64::MAX / 4 },
                extended: few.extended(),
                ..Node::named("unknown")
            },
            cards: (0..devices)
                .map(|index| Card::named("unknown", index, "", UNKNOWN_CARD.0))
                .collect(),
            default_mode: crate::model::Mode::Mps,
            most,
            known_by: Labels::new(),
        };
        let mut site = Site::new(&few, &[], config, &Plan::default());
        site.add(0, &template, most);
        let nodes = site.decide().into_iter();
        nodes
            .map(|node| NewNode {
                template: None,
                ..node
            })
            .collect()
    }

    /// These pods may go to any node; the others and all nodes are left out.
    fn regardless(self, event: &Event, pods: &BTreeSet<PodUid>) -> Option<Event> {
        match event {
            Event::Node(_) | Event::Cards(_) => None,
            Event::Pod(pod) => {
                let mut pod = pods.contains(&pod.uid).then(|| pod.clone())?;
                pod.nodes = NodeRules::default();
                for ask in &mut pod.gpus {
                    if let Ask::Share(share) = &mut ask.ask {
                        share.amount = self.counted(share.amount);
                        share.burst = None;
                    }
                }
                Some(Event::Pod(pod))
            }
            other => Some(other.clone()),
        }
    }

    fn counted(self, amount: Amount) -> Amount {
        match amount {
            Amount::Memory(_) => Amount::Fraction(self.memory_counts_as),
            fraction @ Amount::Fraction(_) => fraction,
        }
    }
}

/// The settings by which a shortage's pods are placed in their own cluster, closely.
pub(crate) fn trial(config: &Config) -> Config {
    Config {
        actions: vec![Step::Allocate],
        gpu_placement: Placement::Binpack,
        cpu_placement: Placement::Binpack,
        card_placement: None,
        keep_empty_nodes: 0,
        verify: false,
        ..config.clone()
    }
}

/// The shortage's cluster, with nodes of a group on top.
struct Site {
    core: Core,
    waiting: BTreeMap<PodUid, Pod>,
    /// Those of a group, by the number of its template: new ones, and ones that start.
    offered: BTreeMap<NodeName, usize>,
    /// Those that start and have pods.
    starting: BTreeMap<NodeName, NewNode>,
}

impl Site {
    /// With the nodes that are starting, and with those planned so far as full as they are.
    fn new(
        shortage: &Shortage,
        templates: &[NodeTemplate],
        config: &Config,
        before: &Plan,
    ) -> Self {
        let mut site = Self {
            core: Core::new(trial(config)),
            waiting: BTreeMap::new(),
            offered: BTreeMap::new(),
            starting: BTreeMap::new(),
        };
        let placed = placed(before);
        for event in &shortage.events {
            if let Event::Pod(pod) = event {
                if placed.contains(&pod.uid) {
                    continue;
                }
                if matches!(pod.phase, Phase::Pending) {
                    site.waiting.insert(pod.uid.clone(), (**pod).clone());
                }
            }
            site.core.apply(event.clone());
        }
        if before.nodes.is_empty() && before.starting.is_empty() {
            for node in &shortage.without_cards {
                site.begin(node, templates);
            }
        }
        site
    }

    /// A node that is there has what its group's template says.
    fn begin(&mut self, node: &Node, templates: &[NodeTemplate]) {
        let mut templates = templates.iter().enumerate();
        let Some((at, template)) =
            templates.find(|(_, template)| super::groups::has(node, &template.known_by))
        else {
            return;
        };
        // It is not ready, or tainted, because it starts; one that is being removed is neither
        // of its group nor starting.
        let as_it_will_be = Node {
            name: node.name.clone(),
            uid: node.uid.clone(),
            labels: template.node.labels.clone(),
            ..template.node.clone()
        };
        self.offered.insert(node.name.clone(), at);
        self.offer(as_it_will_be, template);
    }

    /// As many nodes as there are pods at most.
    fn add(&mut self, at: usize, template: &NodeTemplate, room: u32) {
        let most = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        for number in 0..room.min(most) {
            let name = NodeName::new(format!("{NEW}{at:04}/{number:06}"));
            self.offered.insert(name.clone(), at);
            let node = Node {
                uid: NodeUid::new(name.as_str()),
                name,
                ..template.node.clone()
            };
            self.offer(node, template);
        }
    }

    fn offer(&mut self, mut node: Node, template: &NodeTemplate) {
        node.managed = true;
        node.gpus = u32::try_from(template.cards.len()).unwrap_or(u32::MAX);
        let name = node.name.clone();
        // Rules about the host's name apply to this node.
        let host = "kubernetes.io/hostname";
        let named = node.labels.iter().filter(|(key, _)| &***key != host);
        let mut labels: Vec<_> = named.map(|(k, v)| (k.clone(), v.clone())).collect();
        labels.push((host.into(), name.as_str().into()));
        node.labels = labels.into_iter().collect();
        self.core.apply(Event::Node(node));
        let cards = template.cards.iter().enumerate();
        let cards = cards.map(|(at, card)| Card {
            uuid: GpuUuid::new(format!("{name}/{at}")),
            ..card.clone()
        });
        self.core.apply(Event::Cards(NodeCards {
            cards: cards.collect(),
            ..NodeCards::offered(name.as_str(), template.default_mode, [])
        }));
    }

    fn decide(&mut self) -> Vec<NewNode> {
        let mut nodes: BTreeMap<NodeName, (NewNode, BTreeSet<GpuUuid>)> = BTreeMap::new();
        for turn in 0..DECISIONS {
            let decision = self.core.decide(Time(turn));
            for action in &decision.actions {
                let Action::Bind(bind) = action else {
                    continue;
                };
                let Some(pod) = self.waiting.remove(&bind.pod) else {
                    continue;
                };
                let Some(template) = self.offered.get(&bind.node) else {
                    continue;
                };
                let entry = nodes.entry(bind.node.clone());
                let (node, cards) = entry.or_insert_with(|| (empty(*template), BTreeSet::new()));
                node.pods.push(bind.pod.clone());
                node.cpu = CpuMilli(node.cpu.0.saturating_add(pod.cpu.0));
                node.memory = Bytes(node.memory.0.saturating_add(pod.memory.0));
                let granted = bind.grants.iter().flat_map(|grant| &grant.cards);
                cards.extend(granted.cloned());
                node.cards = u32::try_from(cards.len()).unwrap_or(u32::MAX);
            }
            if !decision.cut_short {
                break;
            }
        }
        let nodes = nodes.into_iter().map(|(name, (node, _))| (name, node));
        let (new, starting): (BTreeMap<_, _>, _) =
            nodes.partition(|(name, _)| name.as_str().starts_with(NEW));
        self.starting = starting;
        new.into_values().collect()
    }
}

fn empty(template: usize) -> NewNode {
    NewNode {
        template: Some(template),
        cards: 0,
        cpu: CpuMilli(0),
        memory: Bytes(0),
        pods: Vec::new(),
    }
}
