//! Cards of nodes that have no agent, as an agent would show them: from the labels of GPU
//! feature discovery. Pure.
//!
//! The card of another scheduler's pod is not recorded anywhere. The pods of one of KAI's GPU
//! groups are on one card, and every other pod is on a card of its own. So the number of cards and
//! the free memory of each are right, and their names are invented.

use proto::names::{grant, resource};
use scheduler_core::Event;
use scheduler_core::ids::{GpuUuid, NodeName, PodUid, ResourceName};
use scheduler_core::model::{
    Amount, Ask, Card, ContainerAsk, ContainerGrant, Mode, Node, NodeCards, Phase, Placement, Pod,
};
use scheduler_core::units::{Mib, Percent};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// GPU feature discovery: cards of a node, MiB of each, their name.
const COUNT: &str = "nvidia.com/gpu.count";
const MEMORY: &str = "nvidia.com/gpu.memory";
const PRODUCT: &str = "nvidia.com/gpu.product";
/// Where KAI's reservation pods are: each represents a card that its group shares.
const RESERVATIONS: &str = "kai-resource-reservation";
/// Tokens that an agent would show for each card.
const TOKENS: u64 = 48;
/// More cards than any node has.
const MOST_CARDS: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeHardware {
    count: u32,
    total: Mib,
    product: Arc<str>,
}

/// The holders of a node's cards.
#[derive(Debug, Default)]
struct Table {
    hardware: Option<NodeHardware>,
    /// Pods without a grant, as they came.
    standing: BTreeMap<PodUid, Box<Pod>>,
    whole: BTreeMap<PodUid, Vec<u32>>,
    groups: BTreeMap<Arc<str>, u32>,
}

/// Cards of all nodes without an agent.
#[derive(Debug, Default)]
pub(super) struct EstimatedCards {
    tables: BTreeMap<NodeName, Table>,
    stands: BTreeMap<PodUid, NodeName>,
}

impl EstimatedCards {
    /// The event for the core in its place.
    pub(super) fn take(&mut self, event: Event) -> Vec<Event> {
        match event {
            Event::Node(node) => self.node(node),
            Event::NodeGone(name) => {
                self.tables.remove(&name);
                vec![Event::NodeGone(name)]
            }
            Event::Pod(pod) => vec![Event::Pod(Box::new(self.pod(*pod)))],
            Event::PodGone(uid) => {
                self.leave(&uid);
                vec![Event::PodGone(uid)]
            }
            other => vec![other],
        }
    }

    fn node(&mut self, mut node: Node) -> Vec<Event> {
        let table = self.tables.entry(node.name.clone()).or_default();
        let hardware = if node.managed { None } else { hardware(&node) };
        let changed = table.hardware != hardware;
        table.hardware.clone_from(&hardware);
        let Some(hardware) = hardware else {
            return vec![Event::Node(node)];
        };
        let name = node.name.clone();
        node.managed = true;
        let tokens = TOKENS.saturating_mul(u64::from(hardware.count));
        node.extended
            .insert(ResourceName::new(resource::SHARE), tokens);
        let mut events = vec![Event::Node(node)];
        if changed {
            events.push(Event::Cards(cards(&name, &hardware)));
            let standing: Vec<Box<Pod>> = table.standing.values().cloned().collect();
            events.extend(
                standing
                    .into_iter()
                    .map(|pod| Event::Pod(Box::new(self.pod(*pod)))),
            );
        }
        events
    }

    fn pod(&mut self, mut pod: Pod) -> Pod {
        if &*pod.namespace == RESERVATIONS {
            pod.gpus.clear();
        }
        let place = match &pod.phase {
            Phase::Bound(place)
            | Phase::Running(place)
            | Phase::Stuck(place)
            | Phase::Releasing(Some(place))
                if place.grants.is_empty() && !pod.gpus.is_empty() =>
            {
                place.clone()
            }
            _ => {
                self.leave(&pod.uid);
                return pod;
            }
        };
        self.stands.insert(pod.uid.clone(), place.node.clone());
        let table = self.tables.entry(place.node.clone()).or_default();
        table
            .standing
            .insert(pod.uid.clone(), Box::new(pod.clone()));
        let grants = table.grants(&place.node, &pod);
        let place = Placement { grants, ..place };
        pod.phase = match pod.phase {
            Phase::Bound(_) => Phase::Bound(place),
            Phase::Running(_) => Phase::Running(place),
            Phase::Stuck(_) => Phase::Stuck(place),
            _ => Phase::Releasing(Some(place)),
        };
        pod
    }

    fn leave(&mut self, uid: &PodUid) {
        let Some(node) = self.stands.remove(uid) else {
            return;
        };
        if let Some(table) = self.tables.get_mut(&node) {
            table.standing.remove(uid);
            table.whole.remove(uid);
            let used: BTreeSet<&str> = table
                .standing
                .values()
                .flat_map(|pod| groups(pod))
                .collect();
            let unused = |group: &Arc<str>| !used.contains(&**group);
            let gone: Vec<Arc<str>> = table.groups.keys().filter(|g| unused(g)).cloned().collect();
            for group in gone {
                table.groups.remove(&group);
            }
        }
    }
}

impl Table {
    fn grants(&mut self, node: &NodeName, pod: &Pod) -> Vec<ContainerGrant> {
        let Some(hardware) = self.hardware.clone() else {
            return Vec::new();
        };
        let mut own = self.whole.remove(&pod.uid).unwrap_or_default().into_iter();
        let mut held = Vec::new();
        let mut grants = Vec::new();
        for ask in &pod.gpus {
            let cards: Vec<u32> = match &ask.ask {
                Ask::Whole(count) => {
                    let mut cards = Vec::new();
                    for _ in 0..*count {
                        let Some(card) = own.next().or_else(|| self.free(&hardware, &held)) else {
                            break;
                        };
                        held.push(card);
                        cards.push(card);
                    }
                    cards
                }
                Ask::Share(share) => {
                    let names: Vec<Arc<str>> = groups(pod).map(Arc::from).collect();
                    let wanted = usize::try_from(share.devices).unwrap_or(1);
                    names
                        .into_iter()
                        .take(wanted)
                        .filter_map(|group| match self.groups.get(&group) {
                            Some(card) => Some(*card),
                            None => {
                                let card = self.free(&hardware, &held)?;
                                self.groups.insert(group, card);
                                Some(card)
                            }
                        })
                        .collect()
                }
            };
            if cards.is_empty() {
                return Vec::new();
            }
            grants.push(granted(node, ask, &cards, &hardware));
        }
        if !held.is_empty() {
            self.whole.insert(pod.uid.clone(), held);
        }
        grants
    }

    /// The first free card.
    fn free(&self, hardware: &NodeHardware, held: &[u32]) -> Option<u32> {
        let taken: BTreeSet<u32> = self
            .whole
            .values()
            .flatten()
            .chain(self.groups.values())
            .chain(held)
            .copied()
            .collect();
        (0..hardware.count).find(|card| !taken.contains(card))
    }
}

/// KAI's groups of a pod: one label, or one for each device.
fn groups(pod: &Pod) -> impl Iterator<Item = &str> {
    let of_groups = pod.labels.iter().filter(|(key, _)| is_group_label(key));
    of_groups.map(|(_, value)| value.as_ref())
}

fn hardware(node: &Node) -> Option<NodeHardware> {
    let label = |key: &str| node.labels.get(key).map(AsRef::as_ref);
    let total: u64 = label(MEMORY)?.parse().ok().filter(|total| *total > 0)?;
    let count = match label(COUNT) {
        Some(count) => count.parse().ok()?,
        None => node.gpus,
    };
    (count > 0).then(|| NodeHardware {
        count: count.min(MOST_CARDS),
        total: Mib(total),
        product: Arc::from(label(PRODUCT).unwrap_or("GPU")),
    })
}

fn uuid(node: &NodeName, card: u32) -> GpuUuid {
    GpuUuid::from(format!("{node}#{card}"))
}

fn cards(node: &NodeName, hardware: &NodeHardware) -> NodeCards {
    let card = |index| {
        Card::named(
            uuid(node, index).as_str(),
            index,
            &hardware.product,
            hardware.total.0,
        )
    };
    NodeCards {
        node: node.clone(),
        default_mode: Mode::Mps,
        not_offering: None,
        cards: (0..hardware.count).map(card).collect(),
        topology_manager: None,
    }
}

fn granted(
    node: &NodeName,
    ask: &ContainerAsk,
    cards: &[u32],
    hardware: &NodeHardware,
) -> ContainerGrant {
    let (memory, mode) = match &ask.ask {
        Ask::Whole(_) => (hardware.total, Mode::Exclusive),
        Ask::Share(share) => {
            let memory = match share.amount {
                Amount::Memory(memory) => memory,
                Amount::Fraction(part) => {
                    let part = u128::from(hardware.total.0) * u128::from(part.0) / 1_000_000_000;
                    Mib(u64::try_from(part).unwrap_or(u64::MAX))
                }
            };
            (memory, share.mode.unwrap_or(Mode::Mps))
        }
    };
    ContainerGrant {
        container: ask.container.clone(),
        cards: cards.iter().map(|card| uuid(node, *card)).collect(),
        memory,
        burst: None,
        compute: Percent::FULL,
        mode,
        note: None,
        asked: match &ask.ask {
            Ask::Share(share) => Some(share.amount),
            Ask::Whole(_) => None,
        },
    }
}

/// The labels that say which sharers are on one card.
fn is_group_label(key: &str) -> bool {
    key.strip_prefix(grant::GPU_GROUP)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
