//! "Who would give way if I asked for that?"

use super::claims::ClaimTemplates;
use super::pod::{UID, take_pod};
use super::settle::{QUIET, TrialResult, is_placed, settle};
use crate::convert::World;
use proto::names::{kai, request, resource};
use scheduler_core::ids::{PodUid, QueueName};
use scheduler_core::units::Duration;
use scheduler_core::{Action, Core};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A request, in the words of its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `gpu-memory`, MiB.
    pub memory: Option<u64>,
    /// `gpu-fraction`.
    pub fraction: Option<String>,
    /// `nvidia.com/gpu`.
    pub gpus: Option<u32>,
    /// `gpu-fraction-num-devices`.
    pub devices: Option<u32>,
    /// `aliquot.dev/gpu-compute`, per cent.
    pub compute: Option<u32>,
    /// The queue.
    pub queue: String,
    /// Name of the priority class; empty: the default.
    pub class: String,
    /// CPU, as Kubernetes writes it.
    pub cpu: String,
    /// Main memory, as Kubernetes writes it.
    pub main_memory: String,
    /// Labels that the node must have.
    pub node_labels: Vec<(String, String)>,
}

impl Wanted {
    /// A pod with that request.
    pub fn pod(&self, scheduler: &str) -> Value {
        let mut annotations = Map::new();
        let mut limits = Map::new();
        let mut note = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                annotations.insert(key.to_owned(), json!(value));
            }
        };
        note(request::MEMORY, self.memory.map(|mib| mib.to_string()));
        note(request::FRACTION, self.fraction.clone());
        note(request::NUM_DEVICES, self.devices.map(|n| n.to_string()));
        note(request::COMPUTE, self.compute.map(|n| n.to_string()));
        if let Some(gpus) = self.gpus {
            limits.insert(resource::GPU.to_owned(), json!(gpus.to_string()));
        }
        for (name, amount) in [("cpu", &self.cpu), ("memory", &self.main_memory)] {
            let amount = if amount.is_empty() { "0" } else { amount };
            limits.insert(name.to_owned(), json!(amount));
        }
        let selector: Map<String, Value> = self
            .node_labels
            .iter()
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        let mut labels = json!({ kai::QUEUE_LABEL: self.queue });
        if !self.class.is_empty() {
            labels[kai::PRIORITY_CLASS_LABEL] = json!(self.class);
        }
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "default", "generateName": "fit-",
                "annotations": annotations, "labels": labels},
            "spec": {"schedulerName": scheduler, "nodeSelector": selector,
                "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
        })
    }
}

/// A pod that would be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue: String,
    /// `reclaim`, `preempt` or `consolidation`.
    pub cause: &'static str,
    /// It has a place again afterwards.
    pub moves: bool,
}

/// What would come of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIf {
    /// Pods that were asked for.
    pub wanted: u32,
    /// Of them, those that get a place.
    pub placed: u32,
    /// How many go to which node.
    pub nodes: BTreeMap<String, u32>,
    /// The victims, in the order of the decisions.
    pub victims: Vec<Victim>,
    /// How much later than now the last of it is decided.
    pub took: Duration,
    /// A search for room is not at its end yet.
    pub searching: bool,
    /// Why the first that gets no place gets none.
    pub why: Option<String>,
}

/// What would come of `count` pods with this request in the core's cluster; the core is spent.
///
/// # Errors
/// One sentence on why the webhook would refuse such a pod.
pub fn what_if(
    mut core: Core,
    world: &mut World,
    scheduler: &str,
    wanted: &Wanted,
    count: u32,
) -> Result<WhatIf, String> {
    let mut now = core.now();
    // What would happen anyway is not this request's doing.
    settle(&mut core, &mut now, QUIET, |_, _| {});
    let object = wanted.pod(scheduler);
    let mut pods = BTreeSet::new();
    for number in 0..count {
        let taken = take_pod(
            world,
            &object,
            number.into(),
            now,
            &ClaimTemplates::default(),
        )?;
        for event in taken.events {
            core.apply(event);
        }
        pods.insert(taken.uid);
    }
    let mut queues = BTreeMap::new();
    let settled = settle(&mut core, &mut now, QUIET, |core, decision| {
        for action in &decision.actions {
            if let Action::Evict(evict) = action
                && let Some(queue) = core.queue_of(&evict.pod)
            {
                queues.insert(evict.pod.clone(), queue);
            }
        }
    });
    Ok(answer(&settled, &pods, &queues, count))
}

fn answer(
    settled: &TrialResult,
    pods: &BTreeSet<PodUid>,
    queues: &BTreeMap<PodUid, QueueName>,
    count: u32,
) -> WhatIf {
    let rounds = &settled.rounds;
    let mut answer = WhatIf {
        wanted: count,
        took: settled.took,
        searching: settled.searching,
        ..WhatIf::default()
    };
    for pod in pods {
        answer.placed += u32::from(is_placed(rounds, pod));
    }
    let mut back = BTreeSet::new();
    for action in rounds.iter().flat_map(|round| &round.actions) {
        match action {
            Action::Bind(bind) if pods.contains(&bind.pod) => {
                *answer.nodes.entry(bind.node.to_string()).or_default() += 1;
            }
            Action::Bind(bind) => {
                back.insert((bind.namespace.clone(), bind.name.clone()));
            }
            Action::Evict(evict) if !evict.pod.as_str().starts_with(UID) => {
                let queue = queues.get(&evict.pod).map(ToString::to_string);
                answer.victims.push(Victim {
                    namespace: evict.namespace.to_string(),
                    name: evict.name.to_string(),
                    queue: queue.unwrap_or_default(),
                    cause: evict.cause.as_str(),
                    moves: false,
                });
            }
            Action::Evict(_) => {}
        }
    }
    for victim in &mut answer.victims {
        let pod = (
            victim.namespace.as_str().into(),
            victim.name.as_str().into(),
        );
        victim.moves = back.contains(&pod);
    }
    let promised = rounds.last().into_iter().flat_map(|last| &last.promises);
    for promise in promised.filter(|promise| pods.contains(&promise.pod)) {
        *answer.nodes.entry(promise.node.to_string()).or_default() += 1;
    }
    let reasons = rounds.iter().flat_map(|round| &round.reasons);
    let mut mine = reasons.filter(|reason| pods.contains(&reason.pod));
    answer.why = mine
        .next_back()
        .filter(|_| answer.placed < count)
        .map(|reason| {
            let line = &reason.line;
            line.split(". node ").next().unwrap_or(line).to_owned()
        });
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use scheduler_core::{Config, text};

    const CLUSTER: &str = "\
tick 100000
node n1 cpu=64000 memory=274877906944 pods=110 gpus=1 managed extended.aliquot.dev/gpu-share=48
cards n1 default=mps
  card GPU-1 product=L4 total=23034 reserved=34
queue rich gpu=1000000000/-1/1000000
queue poor gpu=0/-1/1000000
pod guest ns=team queue=poor created=1 gpus.main=1 phase=running on=n1
  grant main cards=GPU-1 memory=23000 mode=exclusive
";

    fn ask(queue: &str, memory: u64, count: u32) -> Result<WhatIf, String> {
        let mut core = Core::new(Config::default());
        for event in text::read(CLUSTER).unwrap() {
            core.apply(event);
        }
        let mut world = World::new(kai::SCHEDULER_NAME);
        let wanted = Wanted {
            memory: Some(memory),
            queue: queue.to_owned(),
            ..Wanted::default()
        };
        let name = kai::SCHEDULER_NAME;
        what_if(core, &mut world, name, &wanted, count)
    }

    #[test]
    fn who_gives_way_is_named_with_its_queue() {
        let answer = ask("rich", 2000, 2).unwrap();
        assert_eq!((answer.placed, answer.wanted), (2, 2), "{answer:?}");
        assert_eq!(answer.nodes, [("n1".to_owned(), 2)].into());
        let guest = Victim {
            namespace: "team".into(),
            name: "guest".into(),
            queue: "poor".into(),
            cause: "reclaim",
            moves: false,
        };
        assert_eq!(answer.victims, [guest]);
        assert_eq!(answer.why, None);
    }

    #[test]
    fn who_gets_no_place_is_told_why_and_nonsense_is_refused() {
        let answer = ask("poor", 2000, 1).unwrap();
        assert_eq!((answer.placed, answer.victims.len()), (0, 0));
        assert!(answer.why.is_some_and(|why| !why.is_empty()));
        let error = ask("rich", 0, 1).unwrap_err();
        assert!(error.contains("gpu-memory annotation value"), "{error}");
    }
}
