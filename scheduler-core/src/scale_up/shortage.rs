//! Which pods a new node may help, as a cluster of their own.

use crate::action::ReasonKind;
use crate::cycle::commit;
use crate::cycle::hindrance::hindrance;
use crate::event::Event;
use crate::gang::{self, Pick};
use crate::ids::{NodeName, QueueName};
use crate::model::{
    Card, Mode, Node, NodeCards, Phase, Placement, Pod, PodGroup, Pool, Queue, Taint,
};
use crate::scale_up::groups::{Groups, NodeTemplate, Shortage};
use crate::shares::{QueueAmounts, plus, within};
use crate::snapshot;
use crate::state::State;
use crate::state::keys::{JobKey, NodeKey, QueueKey, TaskKey};
use crate::state::task_cell::Status;
use crate::units::{Mib, NanoGpu, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

/// The queue of all pods of a shortage.
const QUEUE: &str = "scale-up";

/// Most nodes with GPUs left that are checked for gangs of which only a part needs new room. Where
/// pods wait for GPUs, few nodes have some left.
const SPARE: usize = 64;

/// Which pods are in a shortage, and beside which nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    /// All, beside nodes with GPUs left.
    NewNodes(&'a Groups),
    /// Those that ask for MIG slices, beside these nodes too, and whatever their quota.
    Slices(&'a BTreeSet<NodeName>),
}

/// Pods for which the last decision found no room, as long as their queues are within their
/// quota with them: pods over quota bring no node. GPU memory counts over the smallest card, and
/// over one of `card` MiB where there is none. Whole jobs, in the order in which pods wait, until
/// there are `most` pods.
pub(crate) fn shortage(state: &mut State, scope: Scope<'_>, most: usize, card: Mib) -> Shortage {
    state.refresh_rooms();
    let known = match scope {
        Scope::NewNodes(groups) => of_groups(state, groups),
        Scope::Slices(_) => Shortage::default(),
    };
    let smallest = state.cards.values().filter_map(|row| {
        let card = row.card.as_ref().filter(|card| !card.mig)?;
        (card.total.0 > 0).then_some(card.total)
    });
    let card = smallest.min().unwrap_or(card);
    let mut jobs = Vec::new();
    let mut pods = 0;
    let mut asked: BTreeMap<QueueKey, QueueAmounts> = BTreeMap::new();
    let mut looked_at = BTreeSet::new();
    // Most often the first of many are enough: the rest is not sorted.
    let waits = state.index.pending.iter().filter_map(|task| {
        let row = state.tasks.get(*task)?;
        Some(Reverse((state.order(row), *task)))
    });
    let mut waits: BinaryHeap<_> = waits.collect();
    while let Some(Reverse((_, task))) = waits.pop() {
        let Some(job) = waits_for_room(state, task) else {
            continue;
        };
        if !looked_at.insert(job)
            || matches!(scope, Scope::Slices(_)) && !asks_for_slices(state, job)
        {
            continue;
        }
        let tasks = match scope {
            Scope::NewNodes(_) => within_quota(state, job, card, &mut asked),
            // Slices of an idle card are there already: a queue over its quota may have them too.
            Scope::Slices(_) => placed_together(state, job),
        };
        if tasks.is_empty() {
            continue;
        }
        if pods + tasks.len() > most {
            break;
        }
        pods += tasks.len();
        jobs.push((job, tasks));
    }
    if jobs.is_empty() {
        return known;
    }
    let mut events = vec![
        Event::Tick(state.now),
        Event::Queue(Queue::unlimited(QUEUE)),
    ];
    events.extend(state.topologies.values().cloned().map(Event::Topology));
    let mut nodes = spare(state);
    if let Scope::Slices(named) = scope {
        let named = named.iter().filter_map(|name| state.names.nodes.get(name));
        nodes.extend(named.copied());
    }
    for (job, _) in &jobs {
        nodes.extend(stands_on(state, *job));
    }
    let ours: BTreeSet<JobKey> = jobs.iter().map(|(job, _)| *job).collect();
    for key in nodes {
        node(state, key, &mut events);
        standing(state, key, &ours, &mut events);
    }
    let mut rank: Vec<(Reverse<(u128, QueueAmounts)>, usize)> = (jobs.iter().enumerate())
        .map(|(at, (_, tasks))| (Reverse(size(state, tasks, card)), at))
        .collect();
    rank.sort_unstable();
    for (place, (_, at)) in rank.into_iter().enumerate() {
        let Some((job, tasks)) = jobs.get(at) else {
            continue;
        };
        waiting(state, *job, tasks, place, &mut events);
    }
    Shortage {
        events,
        pods,
        ..known
    }
}

/// Nodes of groups that offer no GPU, what the last node of each other group has, and how many
/// nodes there are.
fn of_groups(state: &State, groups: &Groups) -> Shortage {
    let mut without_cards = Vec::new();
    let mut seen = BTreeMap::new();
    let mut there: BTreeMap<_, u32> = BTreeMap::new();
    for key in state.names.nodes.values() {
        let Some(row) = state.nodes.get(*key) else {
            continue;
        };
        let Some(node) = &row.node else {
            continue;
        };
        let described = groups.described(node);
        let name = groups.name(node);
        if let Some(labels) = described {
            *there.entry(labels.clone()).or_default() += 1;
        } else if name.is_none() {
            continue;
        }
        if row.cards.is_empty() && node.gpus == 0 {
            without_cards.push(node.clone());
        } else if let (None, Some(name), Some(agent)) = (described, name, &row.agent) {
            let cards = row.cards.iter();
            let cards = cards.filter_map(|card| state.cards.get(*card)?.card.as_ref());
            let cards = cards.map(idle).collect();
            let template = template(&name, node, cards, agent.default_mode);
            seen.insert(name, template);
        }
    }
    Shortage {
        without_cards,
        seen: seen.into_values().collect(),
        there,
        ..Shortage::default()
    }
}

/// A node like this one, when it comes.
fn template(
    (key, value): &(Arc<str>, Arc<str>),
    node: &Node,
    cards: Vec<Card>,
    default_mode: Mode,
) -> NodeTemplate {
    // Kubernetes' own taints and those of autoscalers describe the state of this node.
    let passing = |taint: &&Taint| {
        let key = &*taint.key;
        let theirs = ["node.kubernetes.io/", "karpenter.sh/"];
        !theirs.iter().any(|prefix| key.starts_with(prefix)) && !key.contains("ClusterAutoscaler")
    };
    NodeTemplate {
        name: Arc::from(format!("{key}={value}")),
        known_by: [(Arc::clone(key), Arc::clone(value))].into_iter().collect(),
        node: Node {
            taints: node.taints.iter().filter(passing).cloned().collect(),
            unschedulable: false,
            not_ready: Vec::new(),
            ..node.clone()
        },
        cards,
        default_mode,
        most: u32::MAX,
    }
}

/// The same card with nothing on it.
fn idle(card: &Card) -> Card {
    Card {
        mode: None,
        ready: true,
        unhealthy: None,
        cordoned: false,
        strangers: Mib(0),
        pool: Pool::Unknown,
        ..card.clone()
    }
}

/// One of the job's pods asks for slices of cards in MIG mode.
fn asks_for_slices(state: &State, job: JobKey) -> bool {
    let tasks = state.jobs.get(job).map(|row| &*row.tasks);
    let mut tasks = tasks.unwrap_or_default().iter();
    tasks.any(|task| {
        let row = state.tasks.get(*task);
        let spec = row.and_then(|row| state.specs.get(row.spec));
        spec.is_some_and(|spec| spec.mig_nano > 0)
    })
}

/// The job of a pod with the reason that it fits nowhere. `None`: it waits for something else.
fn waits_for_room(state: &State, task: TaskKey) -> Option<JobKey> {
    let row = state.tasks.get(task)?;
    let why = state.outputs.said.get(&task)?;
    let fits_nowhere = why.kind == ReasonKind::Unschedulable;
    row.job
        .filter(|_| fits_nowhere && hindrance(state, row).is_none())
}

/// Nothing but room is missing for it.
fn may_be_placed(state: &State, task: TaskKey) -> bool {
    let row = state.tasks.get(task);
    row.is_some_and(|row| hindrance(state, row).is_none())
}

/// The pods of a job that are placed together next.
fn placed_together(state: &State, job: JobKey) -> Vec<TaskKey> {
    gang::of(state, job).next(Pick::Waiting, &|task| may_be_placed(state, task))
}

/// The pods of a job that its queues' quotas have room for beside those of the jobs before it:
/// first what is placed together, then each further one. Empty: not even the former.
fn within_quota(
    state: &State,
    job: JobKey,
    card: Mib,
    asked: &mut BTreeMap<QueueKey, QueueAmounts>,
) -> Vec<TaskKey> {
    let mut tasks = placed_together(state, job);
    if tasks.is_empty() || !ask(state, job, wanted(state, &tasks, card), asked) {
        return Vec::new();
    }
    let all = state.jobs.get(job).map(|row| &*row.tasks);
    for task in all.unwrap_or_default() {
        let is_pending = state.cell(*task).status == Status::Pending;
        if !is_pending || !may_be_placed(state, *task) || tasks.contains(task) {
            continue;
        }
        if !ask(state, job, wanted(state, &[*task], card), asked) {
            break;
        }
        tasks.push(*task);
    }
    tasks
}

fn wanted(state: &State, tasks: &[TaskKey], card: Mib) -> QueueAmounts {
    let mut sum = [0; 3];
    for task in tasks {
        let row = state.tasks.get(*task);
        let Some(spec) = row.and_then(|row| state.specs.get(row.spec)) else {
            continue;
        };
        sum = plus(sum, spec.request());
        let share = spec.share_mib * u128::from(NanoGpu::ONE.0);
        sum[0] += share.checked_div(u128::from(card.0)).unwrap_or(0);
    }
    sum
}

/// The job's largest pod decides its order: large ones leave room for small ones.
fn size(state: &State, tasks: &[TaskKey], card: Mib) -> (u128, QueueAmounts) {
    let each = tasks.iter().map(|task| wanted(state, &[*task], card));
    let largest = each.max().unwrap_or_default();
    let [gpus, ..] = largest;
    (gpus, wanted(state, tasks, card))
}

/// Whether every queue of the job's stays within its quota with that much, which is counted then.
fn ask(
    state: &State,
    job: JobKey,
    wanted: QueueAmounts,
    asked: &mut BTreeMap<QueueKey, QueueAmounts>,
) -> bool {
    let chain = state
        .jobs
        .get(job)
        .and_then(|row| Some(&state.queues.get(row.queue?)?.chain));
    let Some(chain) = chain.filter(|chain| !chain.is_empty()) else {
        return false;
    };
    let with = |queue: &QueueKey, asked: &BTreeMap<QueueKey, QueueAmounts>| {
        let before = asked.get(queue).copied().unwrap_or_default();
        plus(before, wanted)
    };
    let fits = chain.iter().all(|queue| {
        let (Some(row), Some(used)) = (state.queues.get(*queue), state.cells.queues.get(*queue))
        else {
            return false;
        };
        row.queue.as_ref().is_some_and(|row| {
            let sum = plus(used.allocated, with(queue, asked));
            // A resource without a request may already be over quota.
            let sum = [0, 1, 2].map(|index| if wanted[index] == 0 { 0 } else { sum[index] });
            within(sum, row.bound3(|resource| resource.quota))
        })
    });
    if fits {
        for queue in chain {
            let sum = with(queue, asked);
            asked.insert(*queue, sum);
        }
    }
    fits
}

/// The nodes with most GPUs left.
fn spare(state: &State) -> BTreeSet<NodeKey> {
    let rooms = &state.caches.rooms;
    let whole = rooms.by_now.iter().rev().map(|(_, rank)| *rank);
    let shared = rooms.by_most.iter().rev();
    let shared = shared.filter(|(most, _)| *most > 0).map(|(_, rank)| *rank);
    whole
        .take(SPARE)
        .chain(shared.take(SPARE))
        .filter_map(|rank| rooms.node(rank))
        .collect()
}

/// Where pods of the job are.
fn stands_on(state: &State, job: JobKey) -> impl Iterator<Item = NodeKey> {
    let tasks = state.jobs.get(job).map(|row| &*row.tasks);
    let tasks = tasks.unwrap_or_default().iter();
    tasks.filter_map(|task| state.cell(*task).node)
}

fn node(state: &State, key: NodeKey, events: &mut Vec<Event>) {
    let Some(row) = state.nodes.get(key) else {
        return;
    };
    let Some(node) = row.node.clone() else {
        return;
    };
    let cards = row.cards.iter();
    let cards: Vec<_> = cards
        .filter_map(|card| state.cards.get(*card)?.card.clone())
        .collect();
    let agent = row.agent.as_ref();
    let cards = agent.map(|agent| NodeCards {
        node: node.name.clone(),
        default_mode: agent.default_mode,
        not_offering: agent.not_offering.clone(),
        cards,
        topology_manager: row.topology_manager.as_deref().cloned(),
    });
    events.push(Event::Node(node));
    events.extend(cards.map(Event::Cards));
}

/// The pods of a node, bound. Those of other jobs are only there for the resources that they hold.
fn standing(state: &State, key: NodeKey, jobs: &BTreeSet<JobKey>, events: &mut Vec<Event>) {
    for task in state.index.on_node.get(key).into_iter().flatten() {
        let Some(row) = state.tasks.get(*task) else {
            continue;
        };
        let cell = state.cell(*task);
        let Some(mut pod) = snapshot::pod(state, row, &cell) else {
            continue;
        };
        if row.job.is_none_or(|job| !jobs.contains(&job)) {
            pod.group = None;
            pod.sub_group = None;
        }
        if let Phase::Pending = pod.phase {
            let Some(node) = state.nodes.get(key) else {
                continue;
            };
            pod.phase = Phase::Bound(Placement {
                node: node.name.clone(),
                grants: commit::grants(state, cell.holds()),
                decision: None,
                front: cell.front,
            });
        }
        events.push(Event::Pod(Box::new(in_one_queue(pod, 0))));
    }
}

/// The job's group, and its pods that are to be placed.
fn waiting(state: &State, job: JobKey, tasks: &[TaskKey], place: usize, events: &mut Vec<Event>) {
    let Some(row) = state.jobs.get(job) else {
        return;
    };
    if let Some(group) = row.group.as_ref() {
        events.push(Event::Group(PodGroup {
            queue: QueueName::new(QUEUE),
            priority: 0,
            created: Time(place as u64),
            last_start: None,
            stale_since: None,
            parked: None,
            ..group.to_group(row.name.clone())
        }));
    }
    for task in tasks {
        let Some(row) = state.tasks.get(*task) else {
            continue;
        };
        if let Some(pod) = snapshot::pod(state, row, &state.cell(*task)) {
            events.push(Event::Pod(Box::new(in_one_queue(pod, place))));
        }
    }
}

/// Its volumes are left out: where one that is bound can be used is a rule about nodes.
fn in_one_queue(pod: Pod, place: usize) -> Pod {
    Pod {
        queue: QueueName::new(QUEUE),
        priority: 0,
        created: Time(place as u64),
        claims: Vec::new(),
        attachments: Vec::new(),
        ..pod
    }
}
