//! A case of the vectors → events for the core.

use crate::recorded::{Case, Expected, NOW, Task, card_name};
use crate::{dra, rules};
use anyhow::{Context as _, bail};
use scheduler_core::ids::{
    GroupName, NodeName, PodUid, QueueName, ResourceName, SetName, TopologyName,
};
use scheduler_core::model::{
    AlignedContainer, Amount, Ask, Card, ContainerAsk, Grace, LEGACY_MIG, Mode, Node, NodeCards,
    NumaZone, Pod, PodGroup, PodSet, Preemptibility, Queue, QueueResource, Share, SubGroup,
    Topology, TopologyManager, TopologyPolicy, TopologyRule, TopologyScope, Weight,
};
use scheduler_core::units::{Bound, Bytes, CpuMilli, Duration, Mib, NanoGpu, Time};
use scheduler_core::{Config, Event, GpuJobOrder, Placement, Resolve, Step};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) fn read(value: &Value) -> anyhow::Result<Case> {
    let mut facts = vec![Event::Tick(Time(NOW))];
    let mut cards = BTreeMap::new();
    for node in list(&value["nodes"]) {
        let name = text(node, "name")?;
        // The GPUs of a case with device claims are devices.
        let gpus = node["gpus"].as_u64().unwrap_or(0);
        let gpus = if value["dra"].is_null() { gpus } else { 0 };
        cards.insert(name.to_owned(), usize::try_from(gpus)?);
        facts.push(Event::Node(self::node(node, name, gpus)));
        facts.push(Event::Cards(NodeCards {
            node: NodeName::new(name),
            default_mode: Mode::TimeSlicing,
            not_offering: None,
            cards: (0..gpus)
                .map(|index| {
                    let total = node["gpu_memory_mib"].as_u64().unwrap_or(100);
                    Card::named(
                        &card_name(name, index as usize),
                        u32::try_from(index).unwrap_or(0),
                        "",
                        total,
                    )
                })
                .collect(),
            topology_manager: zones(value, node)?,
        }));
    }
    for topology in list(&value["topologies"]) {
        facts.push(Event::Topology(Topology {
            name: TopologyName::new(text(topology, "name")?),
            levels: list(&topology["levels"])
                .iter()
                .filter_map(Value::as_str)
                .map(Arc::from)
                .collect(),
            aliases: BTreeMap::new(),
        }));
    }
    for queue in list(&value["queues"]) {
        facts.push(Event::Queue(self::queue(queue)?));
    }
    facts.extend(dra::pools(&value["dra"])?);
    let own: BTreeSet<&str> = list(&value["jobs"])
        .iter()
        .flat_map(|job| list(&job["tasks"]))
        .filter_map(|task| task["uid"].as_str())
        .collect();
    let claims = dra::claims(&value["dra"], &own)?;
    let mut tasks = Vec::new();
    for job in list(&value["jobs"]) {
        facts.push(Event::Group(group(job)?));
        for task in list(&job["tasks"]) {
            let claimed = task;
            let mut task = self::task(job, task)?;
            task.claims = dra::of_task(claimed, &claims, &mut task.pod)?;
            rules::need_known_memory(&mut task.pod, &value["nodes"]);
            tasks.push(task);
        }
    }
    let rounds = match value["mode"].as_str() {
        Some("single") => 1,
        _ => {
            let count = |key: &str| value[key].as_u64().unwrap_or(0);
            usize::try_from(
                count("rounds") + count("rounds_until_match") + count("rounds_after_match"),
            )?
        }
    };
    let accepted = accepted(value);
    Ok(Case {
        config: config(value)?,
        facts,
        tasks,
        rounds,
        accepted,
        cards,
        claims,
    })
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("{key} is missing"))
}

fn config(value: &Value) -> anyhow::Result<Config> {
    let mut config = Config {
        k_value: 0,
        consolidation_jobs: None,
        staleness_grace: Some(Duration(0)),
        actions: Vec::new(),
        ..Config::verified()
    };
    for action in list(&value["actions"]) {
        config.actions.push(match action.as_str() {
            Some("allocate") => Step::Allocate,
            Some("consolidation") => Step::Consolidation,
            Some("reclaim") => Step::Reclaim,
            Some("preempt") => Step::Preempt,
            Some("stalegangeviction") => Step::StaleGangEviction,
            other => bail!("action {other:?}"),
        });
    }
    for plugin in list(&value["scheduler_conf"]["tiers"])
        .iter()
        .flat_map(|tier| list(&tier["plugins"]))
    {
        match plugin["name"].as_str() {
            Some("nodeplacement") => {
                let spreads = |kind: &str| plugin["arguments"][kind] == "spread";
                if spreads("gpu") {
                    config.gpu_placement = Placement::Spread;
                }
                if spreads("cpu") {
                    config.cpu_placement = Placement::Spread;
                }
            }
            Some("minruntime") => {
                let arguments = &plugin["arguments"];
                let time = |key: &str| arguments[key].as_str().map(go_duration).transpose();
                if let Some(time) = time("defaultReclaimMinRuntime")? {
                    config.reclaim_min_runtime = time;
                }
                if let Some(time) = time("defaultPreemptMinRuntime")? {
                    config.preempt_min_runtime = time;
                }
                if arguments["reclaimResolveMethod"] == "queue" {
                    config.reclaim_resolve = Resolve::Queue;
                }
            }
            Some("proportion") => {
                if let Some(k) = plugin["arguments"]["kValue"].as_str() {
                    config.k_value = whole(k.parse::<f64>()? * 1e9)?;
                }
            }
            Some("gpujoborder") => {
                // KAI takes any other word for the first one.
                let smaller = plugin["arguments"]["mode"] == "prefer-smaller";
                config.gpu_job_order = Some(if smaller {
                    GpuJobOrder::PreferSmaller
                } else {
                    GpuJobOrder::PreferLarger
                });
            }
            Some("gpuspread") => config.card_placement = Some(Placement::Spread),
            Some("gpupack") => config.card_placement = Some(Placement::Binpack),
            _ => {}
        }
    }
    Ok(config)
}

/// Parses durations such as `100s`, `10m` or `1h`; the recorded cases have no other form.
fn go_duration(text: &str) -> anyhow::Result<Duration> {
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        other => bail!("{other} is not a unit of time"),
    };
    Ok(Duration::seconds(number.parse::<u64>()? * seconds))
}

fn node(value: &Value, name: &str, gpus: u64) -> Node {
    let mut node = Node::named(name);
    node.cpu = CpuMilli(value["cpu_milli"].as_u64().unwrap_or(0));
    node.memory = Bytes(value["memory"].as_u64().unwrap_or(0));
    node.pods = value["pods"].as_u64().unwrap_or(110);
    node.managed = true;
    node.gpus = u32::try_from(gpus).unwrap_or(u32::MAX);
    for (key, label) in value["labels"].as_object().into_iter().flatten() {
        node.labels.insert(
            Arc::from(key.as_str()),
            Arc::from(label.as_str().unwrap_or_default()),
        );
    }
    for (key, count) in value["extended"].as_object().into_iter().flatten() {
        node.extended
            .insert(ResourceName::new(key), count.as_u64().unwrap_or(0));
    }
    node
}

/// Two zones of 4 CPUs, as KAI's tests of its numa plugin have them. A recorded case says that a
/// node has zones, and neither these nor the policy: both follow from its decisions. 073 and 076 are
/// one case under `single-numa-node` and under a policy that lets a pod span zones.
fn zones(case: &Value, node: &Value) -> anyhow::Result<Option<TopologyManager>> {
    const SPANS_ZONES: &str = "single_allocate/076";
    if node["numa"] != true {
        return Ok(None);
    }
    let zone = |id| NumaZone {
        id,
        cpus: 4,
        allocatable_cpus: 4,
        memory: Bytes(0),
    };
    Ok(Some(TopologyManager {
        policy: if text(case, "id")? == SPANS_ZONES {
            TopologyPolicy::Restricted
        } else {
            TopologyPolicy::SingleNumaNode
        },
        scope: TopologyScope::Container,
        cpu_manager: true,
        memory_manager: false,
        zones: vec![zone(0), zone(1)],
        used: Vec::new(),
    }))
}

fn queue(value: &Value) -> anyhow::Result<Queue> {
    let mut queue = Queue::unlimited(text(value, "name")?);
    queue.parent = value["parent"].as_str().map(QueueName::new);
    queue.priority = i32::try_from(value["priority"].as_i64().unwrap_or(100))?;
    queue.created = Time(NOW - 100_000_000 + value["created_in_s"].as_u64().unwrap_or(0) * 1000);
    queue.gpu = resource(&value["gpu"], 1e9)?;
    queue.cpu = resource(&value["cpu"], 1.0)?;
    queue.memory = resource(&value["memory"], 1e6)?;
    queue.preempt_min_runtime = duration(value, "preempt_min_runtime_s")?;
    queue.reclaim_min_runtime = duration(value, "reclaim_min_runtime_s")?;
    Ok(queue)
}

/// Rounded. Where less than nothing means something, the caller has looked for it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(value: f64) -> anyhow::Result<u64> {
    if value < 0.0 {
        bail!("{value} is less than nothing");
    }
    Ok(value.round() as u64)
}

/// Of this many seconds.
fn duration(value: &Value, key: &str) -> anyhow::Result<Option<Duration>> {
    let seconds = value[key].as_f64();
    seconds
        .map(|seconds| Ok(Duration(whole(seconds * 1000.0)?)))
        .transpose()
}

fn resource(value: &Value, unit: f64) -> anyhow::Result<QueueResource> {
    let amount = |key: &str| value[key].as_f64().unwrap_or(0.0);
    #[allow(clippy::float_cmp)] // It is written as -1.
    let no_bound = |key: &str| amount(key) == -1.0;
    let bound = |key: &str| -> anyhow::Result<Bound> {
        Ok(if no_bound(key) {
            Bound::Unlimited
        } else {
            Bound::Exactly(whole(amount(key) * unit)?)
        })
    };
    // The recorder gives a department its quota as its weight. A queue without a bound on its
    // quota gets all that it asks for before anything is divided by weight: any will do.
    let weight = if no_bound("over_quota_weight") && no_bound("quota") {
        1.0
    } else {
        amount("over_quota_weight")
    };
    Ok(QueueResource {
        quota: bound("quota")?,
        limit: bound("limit")?,
        weight: Weight(whole(weight * 1e6)?),
        usage: whole(amount("usage") * 1e9)?,
    })
}

fn job_name(job: &Value) -> anyhow::Result<GroupName> {
    Ok(GroupName::new(format!(
        "{}/{}",
        job["namespace"].as_str().unwrap_or_default(),
        text(job, "name")?
    )))
}

fn group(job: &Value) -> anyhow::Result<PodGroup> {
    let ago = |key: &str| -> anyhow::Result<Option<Time>> {
        let age = duration(job, key)?;
        Ok(age.map(|age| Time(NOW.saturating_sub(age.0))))
    };
    let staleness_grace = if job["staleness_grace_s"].as_f64().is_some_and(|s| s < 0.0) {
        Some(Grace::Never)
    } else {
        duration(job, "staleness_grace_s")?.map(Grace::For)
    };
    Ok(PodGroup {
        name: job_name(job)?,
        uid: Arc::from(text(job, "name")?),
        queue: QueueName::new(text(job, "queue")?),
        priority: i32::try_from(job["priority"].as_i64().unwrap_or(50))?,
        preemptibility: preemptibility(job)?,
        created: ago("age_s")?.unwrap_or(Time(NOW)),
        root: tree(&job["groups"], None),
        mark_unschedulable: true,
        parked: None,
        last_start: ago("last_start_age_s")?,
        stale_since: ago("stale_age_s")?,
        succeeded: BTreeMap::new(),
        staleness_grace,
        preemption_delay: duration(job, "preemption_delay_s")?.unwrap_or_default(),
        last_evicted: ago("last_eviction_age_s")?,
        never_preempts: false,
    })
}

/// `preemptibility` has one word, in place of the flag `preemptible` of the other jobs.
fn preemptibility(job: &Value) -> anyhow::Result<Preemptibility> {
    match &job["preemptibility"] {
        Value::Null => Ok(job["preemptible"].as_bool().unwrap_or(true).into()),
        word if word == "semi-preemptible" => Ok(Preemptibility::SemiPreemptible),
        other => bail!("{other} is not a preemptibility"),
    }
}

fn tree(value: &Value, name: Option<SetName>) -> SubGroup {
    let min = |value: &Value, key: &str| {
        value[key]
            .as_u64()
            .and_then(|count| u32::try_from(count).ok())
    };
    SubGroup {
        name,
        min_children: min(value, "min_sub_group"),
        topology: rule(&value["topology"]),
        groups: list(&value["sets"])
            .iter()
            .map(|inner| tree(inner, inner["name"].as_str().map(SetName::new)))
            .collect(),
        sets: list(&value["pod_sets"])
            .iter()
            .map(|set| PodSet {
                name: SetName::new(set["name"].as_str().unwrap_or("default")),
                min: min(set, "min").unwrap_or(1),
                topology: rule(&set["topology"]),
            })
            .collect(),
    }
}

fn rule(value: &Value) -> Option<TopologyRule> {
    Some(TopologyRule {
        topology: TopologyName::new(value["topology"].as_str()?),
        required: value["required"].as_str().map(Arc::from),
        preferred: value["preferred"].as_str().map(Arc::from),
    })
}

fn task(job: &Value, value: &Value) -> anyhow::Result<Task> {
    let uid = text(value, "uid")?;
    let mut pod = Pod::named(uid);
    pod.uid = PodUid::new(uid);
    pod.namespace = Arc::from(job["namespace"].as_str().unwrap_or_default());
    pod.group = Some(job_name(job)?);
    pod.queue = QueueName::new(text(job, "queue")?);
    pod.sub_group = value["sub_group"].as_str().map(SetName::new);
    pod.cpu = CpuMilli(value["cpu_milli"].as_u64().unwrap_or(0));
    pod.memory = Bytes(value["memory"].as_u64().unwrap_or(0));
    for (key, label) in value["labels"].as_object().into_iter().flatten() {
        pod.labels.insert(
            Arc::from(key.as_str()),
            Arc::from(label.as_str().unwrap_or_default()),
        );
    }
    for (profile, count) in value["mig"].as_object().into_iter().flatten() {
        pod.extended
            .insert(ResourceName::new(profile), count.as_u64().unwrap_or(0));
    }
    pod.task_order.place = task_order(value);
    if value["legacy_mig"] == true {
        pod.unsupported.push(Arc::from(LEGACY_MIG));
    }
    pod.nodes.terms = rules::terms(&value["affinity"])?;
    rules::pods(&value["affinity"], &mut pod)?;
    pod.tolerations = rules::tolerations(&value["tolerations"]);
    let devices = u32::try_from(value["gpu_devices"].as_u64().unwrap_or(1))?;
    let share = |amount| {
        Ask::Share(Share {
            amount,
            burst: None,
            devices,
            compute: None,
            mode: None,
        })
    };
    let whole_gpus = value["gpus"].as_u64().unwrap_or(0);
    let ask = if let Some(part) = value["gpu_fraction"].as_f64() {
        Some(share(Amount::Fraction(NanoGpu(whole(part * 1e9)?))))
    } else if let Some(mib) = value["gpu_memory_mib"].as_u64() {
        Some(share(Amount::Memory(Mib(mib))))
    } else {
        (whole_gpus > 0).then(|| Ask::Whole(u32::try_from(whole_gpus).unwrap_or(u32::MAX)))
    };
    let shares = match &ask {
        Some(Ask::Share(share)) => usize::try_from(share.devices)?,
        _ => 0,
    };
    pod.gpus
        .extend(ask.map(|ask| ContainerAsk::of("main", ask)));
    if value["qos"] == "Guaranteed" && pod.cpu.0.is_multiple_of(1000) {
        pod.aligned.push(AlignedContainer {
            cpus: u32::try_from(pod.cpu.0 / 1000)?,
            memory: pod.memory,
            gpus: u32::try_from(whole_gpus)?,
            ..AlignedContainer::default()
        });
    }
    let status = text(value, "status")?.to_owned();
    pod.gated = status == "Gated" || status == "Pending" && job["not_ready"] == true;
    Ok(Task {
        pod,
        status,
        node: value["node"].as_str().map(str::to_owned),
        groups: list(&value["gpu_groups"])
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        whole: usize::try_from(whole_gpus)?,
        shares,
        delete_on_evict: job["delete_on_evict"] == true,
        claims: Vec::new(),
    })
}

/// A larger `kai.scheduler/task-priority` comes first
fn task_order(task: &Value) -> i32 {
    match task["labels"]["kai.scheduler/task-priority"].as_str() {
        Some(text) => text.parse::<i32>().map_or(i32::MAX, i32::saturating_neg),
        None => i32::MAX - 1,
    }
}

fn expected(value: &Value) -> Expected {
    Expected {
        status: value["status"].as_str().unwrap_or_default().to_owned(),
        node: value["node"].as_str().map(str::to_owned),
        groups: value["gpu_groups"].as_array().map(|groups| {
            groups
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        }),
        core: None,
    }
}

/// The accepted states, each with its own cores.
fn accepted(value: &Value) -> Vec<BTreeMap<String, Expected>> {
    let mut job_of: BTreeMap<&str, &str> = BTreeMap::new();
    for job in list(&value["jobs"]) {
        let uids = list(&job["tasks"])
            .iter()
            .filter_map(|task| task["uid"].as_str());
        job_of.extend(uids.map(|uid| (uid, job["name"].as_str().unwrap_or_default())));
    }
    let states = list(&value["accepted"]).iter().enumerate();
    let states = states.map(|(at, state)| {
        let cores = &value["core_pods"][at];
        let tasks = state.as_object().into_iter().flatten();
        let tasks = tasks.map(|(uid, state)| {
            let core = job_of
                .get(uid.as_str())
                .and_then(|job| cores[job].as_array());
            let expected = Expected {
                core: core.map(|core| core.contains(&Value::from(uid.as_str()))),
                ..expected(state)
            };
            (uid.clone(), expected)
        });
        tasks.collect()
    });
    states.collect()
}
