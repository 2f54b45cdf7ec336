//! Claims on devices for Aliquot and for Kubernetes' structured allocator: on each node, can the
//! claims of a pod have devices there? Where Aliquot would let the pod in, the devices that it
//! would bind it with are checked against the slices, classes and claims.
//!
//! Random clusters as JSON go through the scheduler's conversion into its core, and to
//! `tests/cluster/tools/kubernetes/devices`, which asks the allocator and checks both answers by
//! the same rules, without a search.

use super::program::Program;
use super::seeds::{Seeds, objects};
use aliquot_tests::random_devices;
use anyhow::{Context as _, Result, ensure};
use scheduler::convert::World;
use scheduler::watch::{Fact, Seen};
use scheduler_core::model::{AllocatedDevice, Queue};
use scheduler_core::units::Time;
use scheduler_core::{Action, Config, Core, Event, ReasonKind};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What Kubernetes' side says of a node.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Said {
    can: bool,
    #[serde(default)]
    error: String,
    #[serde(default)]
    gave_up: bool,
    #[serde(default)]
    breaks: String,
    #[serde(default)]
    ours_breaks: String,
    #[serde(default)]
    ours_allowed: bool,
}

/// What Aliquot says of a node: why not, and else devices by claim.
#[derive(Debug)]
struct Ours {
    reasons: Vec<String>,
    devices: Map<String, Value>,
}

/// Whether all agree.
pub(crate) fn compare(seeds: &Seeds) -> Result<bool> {
    let mut kube = Program::start("devices", &["allocate"])?;
    let (mut agreed, mut differed, mut open, mut devices) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut apart: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds.all() {
        let mut cluster = random_devices::cluster(seed);
        let ours = ours(&cluster).with_context(|| format!("seed {seed}"))?;
        let given = ours.iter().filter(|(_, ours)| ours.reasons.is_empty());
        cluster["ours"] = given
            .map(|(node, ours)| (node.clone(), Value::Object(ours.devices.clone())))
            .collect::<Map<_, _>>()
            .into();
        let theirs: BTreeMap<String, Said> = kube.ask(&cluster)?;
        for (node, theirs) in &theirs {
            let ours = ours
                .get(node)
                .with_context(|| format!("no word of {node}"))?;
            let can = ours.reasons.is_empty();
            if let Some(rule) = rule(theirs, ours) {
                *apart.entry(rule).or_default() += 1;
            } else if theirs.can == can && theirs.ours_breaks.is_empty() {
                agreed += 1;
                open += u64::from(can);
                let all = ours.devices.values().filter_map(Value::as_array);
                devices += all.map(|all| all.len() as u64).sum::<u64>();
            } else {
                differed += 1;
                if differed <= 5 {
                    println!("seed {seed}, {node}: Kubernetes {theirs:?}, Aliquot {ours:?}");
                }
            }
        }
    }
    kube.end()?;
    println!("of them {open} where the claims get devices, {devices} in all");
    for (rule, count) in &apart {
        println!("{count:>8}  {rule}");
    }
    let exceptions: u64 = apart.values().sum();
    println!("{agreed} agreed, {exceptions} counted apart, {differed} differed");
    // Rules that cover more hide what they do not mean.
    ensure!(exceptions * 50 <= agreed, "too many were counted apart");
    Ok(differed == 0)
}

/// Why an answer is counted separately: a rule of `docs/claims.md`, or a search that takes too
/// long.
fn rule(theirs: &Said, ours: &Ours) -> Option<&'static str> {
    let can = ours.reasons.is_empty();
    if theirs.can == can || !theirs.ours_breaks.is_empty() {
        return None;
    }
    let says = |words: &str| ours.reasons.iter().any(|why| why.contains(words));
    if can {
        let stopped = theirs.error.is_empty()
            || theirs
                .error
                .contains("a claim constraint would not be satisfied");
        return if theirs.gave_up {
            Some("Kubernetes' search took more than a second")
        } else if theirs.error.contains("CEL runtime error") && theirs.ours_allowed {
            Some("a selector has no answer for a device of another node, in a slice of this one")
        } else if stopped && theirs.ours_allowed {
            Some("Kubernetes' rules allow the devices, and its search does not find them")
        } else {
            None
        };
    }
    if theirs.breaks.contains("two devices with the same") {
        Some("Kubernetes gives devices that distinctAttribute keeps apart")
    } else if theirs.breaks.contains("not in the newest generation") {
        Some("Kubernetes gives a device of an outdated generation")
    } else if theirs.breaks.contains("two devices of one name") {
        Some("Kubernetes gives a device of a pool with two of one name")
    } else if says("CEL runtime error") {
        Some("a selector has no answer for a device that Kubernetes did not come to")
    } else if says("none was found in") {
        Some("Aliquot's search took too many steps")
    } else {
        None
    }
}

/// The scheduler with a cluster, and with a pod that comes to it and has these claims.
fn core(cluster: &Value, only: Option<&str>) -> Result<Core> {
    let mut world = World::new("kai-scheduler").with_storage_listed();
    let mut core = Core::new(Config::default());
    core.apply(Event::Queue(Queue::unlimited("default-queue")));
    let mut facts: Vec<Fact> = Vec::new();
    let namespace = json!([{ "metadata": { "name": "default" } }]);
    let there = |object| Seen::There(object);
    facts.extend(
        objects(&namespace)?
            .into_iter()
            .map(|one| Fact::Namespace(there(one))),
    );
    for node in objects(&cluster["nodes"])? {
        facts.push(Fact::Node(Seen::There(node)));
    }
    for slice in objects(&cluster["slices"])? {
        facts.push(Fact::DeviceSlice(Seen::There(slice)));
    }
    for class in objects(&cluster["classes"])? {
        facts.push(Fact::DeviceClass(Seen::There(class)));
    }
    for claim in objects(&cluster["claims"])? {
        facts.push(Fact::DeviceClaim(Seen::There(claim)));
    }
    let claims = cluster["wanted"].as_array().into_iter().flatten();
    let claims: Vec<Value> = claims
        .map(|name| json!({ "name": name, "resourceClaimName": name }))
        .collect();
    let selector = only.map(|node| json!({ "kubernetes.io/hostname": node }));
    let pods = json!([{ "metadata": { "name": "pod", "namespace": "default", "uid": "pod" },
        "spec": { "schedulerName": "kai-scheduler", "nodeSelector": selector,
            "resourceClaims": claims, "containers": [{ "name": "main" }] } }]);
    for pod in objects(&pods)? {
        facts.push(Fact::Pod(Seen::There(pod)));
    }
    for fact in facts {
        for event in world.take(fact) {
            core.apply(event);
        }
    }
    // Selectors are evaluated, and the pod is tried again.
    for _ in 0..3 {
        for event in world.elapse(Time(0)) {
            core.apply(event);
        }
    }
    Ok(core)
}

fn ours(cluster: &Value) -> Result<BTreeMap<String, Ours>> {
    let explanation = core(cluster, None)?.explain(&"pod".into());
    let explanation = explanation.context("the pod is not known")?;
    // It waits, whatever the node.
    let waits = (explanation.kind == Some(ReasonKind::Unsupported)).then_some(&explanation.line);
    let mut all = BTreeMap::new();
    for verdict in explanation.nodes {
        let node = verdict.node.to_string();
        let reasons = verdict.reasons.iter().chain(waits);
        let mut reasons: Vec<String> = reasons.map(ToString::to_string).collect();
        let mut devices = Map::new();
        if verdict.fits && reasons.is_empty() {
            devices = bound(cluster, &node)?;
        } else if reasons.is_empty() {
            reasons.push("for no reason".to_owned());
        }
        all.insert(node, Ours { reasons, devices });
    }
    Ok(all)
}

/// What the scheduler binds the pod with, where it can go to that node alone.
fn bound(cluster: &Value, node: &str) -> Result<Map<String, Value>> {
    let mut core = core(cluster, Some(node))?;
    let decision = core.decide(Time(0));
    let bind = decision.actions.iter().find_map(|action| match action {
        Action::Bind(bind) => Some(bind),
        Action::Evict(_) => None,
    });
    let bind = bind.with_context(|| format!("{node} would do, and nothing is bound"))?;
    ensure!(*bind.node.to_string() == *node, "bound to {}", bind.node);
    let claims = bind.devices.iter().filter_map(|claim| {
        let name = claim.name.rsplit('/').next()?;
        let devices = claim.devices.iter().enumerate().map(result);
        Some((name.to_owned(), devices.collect()))
    });
    Ok(claims.collect())
}

/// As a claim's status has it.
fn result((at, device): (usize, &AllocatedDevice)) -> Value {
    let (pool, name) = device.device.split().unzip();
    let mut result = json!({ "request": *device.request, "device": name,
        "driver": pool.as_ref().map(|pool| pool.driver.to_string()),
        "pool": pool.as_ref().map(|pool| pool.pool.to_string()) });
    if device.admin {
        result["adminAccess"] = json!(true);
    }
    if let Some(consumed) = &device.consumed {
        let amounts = consumed.iter();
        let amounts: BTreeMap<String, String> = amounts
            .map(|(name, amount)| (name.to_string(), amount.to_string()))
            .collect();
        result["shareID"] = json!(format!("{at}"));
        result["consumedCapacity"] = json!(amounts);
    }
    result
}
