//! Runs in which an autoscaler makes all machines: a storm of shares, and an hour of arrivals and
//! departures. There are no other faults.

use crate::event::WorldEvent;
use crate::run::{panics, watch_panics};
use crate::store::Key;
use crate::time::Ms;
use crate::world::World;
use proto::names::{kai, resource};
use scheduler::Config;
use scheduler_core::ids::ResourceName;
use scheduler_core::model::{Card, Labels, Mode, Node as CoreNode};
use scheduler_core::scale_up::{Groups, NodeTemplate, Unknown, plan};
use scheduler_core::units::{Bytes, CpuMilli, Mib, NanoGpu, Time};
use scheduler_core::{Core, Event, text};
use serde_json::{Value, json};
use std::sync::Arc;

/// Until the scheduler leads.
const QUIET: Ms = 4_000;
/// Time after the last pod within which all machines are removed.
const CLEARED: Ms = 1_800_000;
/// Within this a storm is over.
const STORM: Ms = 900_000;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// A violated condition.
    pub violations: Vec<String>,
    /// Pods that were made.
    pub pods: usize,
    /// Pods that were bound.
    pub bound: usize,
    /// Machines that were asked for.
    pub asked: usize,
    /// Pods that were evicted and made again.
    pub moved: usize,
    /// Machines that were removed.
    pub removed: usize,
    /// Most machines at a time.
    pub most: usize,
    /// Machines at the end.
    pub left: usize,
    /// Placeholders at the end.
    pub placeholders: usize,
    /// Machines that the core's own plan for all pods at once has. 0 where it was not asked.
    pub planned: usize,
    /// The minimum number of machines of any packing: the sum of the requests. 0 as above.
    pub bound_below: usize,
    /// Machine time over the time of the cards that pods asked for, in per cent.
    pub overhead: u64,
    /// Digest of the trace.
    pub digest: String,
}

fn world(seed: u64, scale_down: Option<u64>) -> World {
    watch_panics();
    fastrand::seed(seed);
    let config = Config {
        leader_elect: true,
        cluster_autoscaling: true,
        node_templates: Some(crate::autoscaler::templates()),
        writes_at_once: 64,
        scale_down_delay_s: scale_down,
        ..Config::default()
    };
    let mut world = World::new(seed, config, 1, false);
    world.furnish();
    world.hire();
    world.soon(1, WorldEvent::Start(0));
    world.announce();
    world.run(QUIET);
    world
}

fn outcome(mut world: World) -> Outcome {
    for panic in panics() {
        world.violated(format!("panicked: {panic}"));
    }
    let autoscaler = world.autoscaler.as_ref();
    let (worked, wanted) = autoscaler.map_or((0, 0), |it| (it.worked, it.wanted));
    Outcome {
        pods: world.arrived.len(),
        bound: world.bound.len(),
        asked: autoscaler.map_or(0, |it| it.asked),
        moved: world.made_again.len(),
        removed: autoscaler.map_or(0, |it| it.gone),
        most: autoscaler.map_or(0, |it| it.most),
        left: world.machines(),
        placeholders: world.placeholders(),
        overhead: (worked * 100_000).checked_div(wanted).unwrap_or_default(),
        digest: world.trace.digest(),
        violations: world.violations,
        ..Outcome::default()
    }
}

fn share(world: &mut World, part: &str, lasts: Option<Ms>) {
    let mut annotations = json!({"gpu-fraction": part});
    let mut owners = json!([]);
    if let Some(lasts) = lasts {
        annotations["lasts"] = json!(lasts.to_string());
        annotations["until"] = json!((world.now + lasts).to_string());
        owners = world.make_owner();
    }
    let pod = json!({
        "metadata": {"labels": {kai::QUEUE_LABEL: kai::DEFAULT_QUEUE}, "annotations": annotations,
            "ownerReferences": owners},
        "spec": {
            "schedulerName": kai::SCHEDULER_NAME, "terminationGracePeriodSeconds": 1,
            // Also the taint of a machine that is about to go.
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "i",
                "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}}}],
        },
    });
    world.make_pod("team-a", "s", &pod);
}

/// This number of shares at once, of these fractions of a card, without machines.
pub fn storm(seed: u64, count: usize, parts: &[&str]) -> Outcome {
    let mut world = world(seed, None);
    let mut sum = 0.0;
    for _ in 0..count {
        let part = parts[world.rng.usize(0..parts.len())];
        sum += part.parse::<f64>().unwrap_or_default();
        share(&mut world, part, None);
    }
    world.announce();
    // All of them are known, and none has a machine.
    let until = world.now + 3_000;
    world.run(until);
    let planned = world.planned(count);
    let until = world.now + STORM;
    world.run(until);
    world.check_cards();
    Outcome {
        planned,
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some hundreds"
        )]
        bound_below: (sum - 1e-6).ceil() as usize,
        ..outcome(world)
    }
}

/// Arrivals and departures for this time, and then the last departures. `scale_down`: seconds after
/// which nodes are emptied for the autoscaler; a controller makes each pod again that is evicted.
pub fn traffic(seed: u64, lasts: Ms, scale_down: Option<u64>) -> Outcome {
    let mut world = world(seed, scale_down);
    let end = world.now + lasts;
    while world.now < end && world.violations.is_empty() {
        // Busy and quiet quarters of an hour.
        let busy = (world.now / 900_000).is_multiple_of(2);
        let pause = if busy { 6_000 } else { 40_000 };
        for _ in 0..world.rng.usize(1..=3) {
            let parts = ["0.1", "0.25", "0.3", "0.5", "0.75", "0.9"];
            let part = parts[world.rng.usize(0..parts.len())];
            let lasts = 60_000 + world.rng.u64(0..840_000);
            share(&mut world, part, Some(lasts));
        }
        world.announce();
        world.check_cards();
        let until = world.now + pause / 2 + world.rng.u64(0..pause);
        world.run_with_controllers(until);
        world.forget_finished();
    }
    let until = world.now + CLEARED;
    world.run_with_controllers(until);
    outcome(world)
}

impl World {
    /// A Job, as the owner of a pod.
    fn make_owner(&mut self) -> Value {
        let (name, now) = (self.name("job"), self.stamp());
        let key = Key::new("jobs", "team-a", &name);
        let made = self.store.create(&key, json!({"spec": {}}), &now);
        let uid = made
            .map(|job| job["metadata"]["uid"].clone())
            .unwrap_or_default();
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": true}])
    }

    /// Runs, while each evicted pod is made again for the rest of its time.
    fn run_with_controllers(&mut self, until: Ms) {
        // After a violation nothing goes on.
        while self.now < until && self.violations.is_empty() {
            self.run((self.now + 1_000).min(until));
            for (key, pod) in std::mem::take(&mut self.left) {
                let is_over = pod["status"]["phase"] == "Succeeded";
                if is_over || key.namespace != "team-a" || !self.made_again.insert(key.name) {
                    continue;
                }
                let ends: Ms = (pod["metadata"]["annotations"]["until"].as_str())
                    .and_then(|text| text.parse().ok())
                    .unwrap_or_default();
                let lasts = ends.saturating_sub(self.now).max(1_000);
                let annotations = &pod["metadata"]["annotations"];
                let mut again = json!({
                    "metadata": {
                        "labels": {kai::QUEUE_LABEL: kai::DEFAULT_QUEUE},
                        "annotations": {
                            "gpu-fraction": annotations["gpu-fraction"],
                            "until": annotations["until"],
                            "lasts": lasts.to_string(),
                        },
                        "ownerReferences": pod["metadata"]["ownerReferences"],
                    },
                    "spec": pod["spec"],
                });
                again["spec"]["nodeName"] = Value::Null;
                self.make_pod("team-a", "s", &again);
                self.announce();
            }
        }
    }

    /// Finished pods are deleted by their owner.
    fn forget_finished(&mut self) {
        let done: Vec<Key> = (self.store.all("pods", ""))
            .filter(|(_, pod)| pod["status"]["phase"] == "Succeeded")
            .map(|(key, _)| key.clone())
            .collect();
        for key in done {
            self.store.remove(&key);
        }
        self.announce();
    }

    /// Machines that the core asks for, of all that the leader knows now.
    fn planned(&mut self, pods: usize) -> usize {
        let config = self.config.core(7);
        let snapshot = self.leader().and_then(|at| self.snapshot(at));
        let Some(snapshot) = snapshot else {
            self.violated("there is no leader".to_owned());
            return 0;
        };
        let events = match text::read(&snapshot) {
            Ok(events) => events,
            Err(error) => {
                self.violated(format!("the snapshot cannot be read: {error}"));
                return 0;
            }
        };
        let mut core = Core::new(config.clone());
        let mut now = Time(0);
        for event in events {
            if let Event::Tick(at) = &event {
                now = *at;
            }
            core.apply(event);
        }
        core.decide(now);
        let labels: Labels = [(Arc::from("sim.dev/group"), Arc::from("l4"))].into();
        let template = NodeTemplate {
            name: Arc::from("l4"),
            node: CoreNode {
                cpu: CpuMilli(16_000),
                memory: Bytes(64 << 30),
                pods: 30,
                labels: labels.clone(),
                extended: [(ResourceName::new(resource::SHARE), 48)].into(),
                ..CoreNode::named("l4")
            },
            cards: vec![Card::named("l4", 0, "L4", 16_384)],
            default_mode: Mode::Mps,
            most: u32::MAX,
            known_by: labels,
        };
        let groups = Groups {
            keys: Vec::new(),
            described: vec![template.known_by.clone()],
        };
        let unknown = Unknown {
            memory_counts_as: NanoGpu(100_000_000),
            most: 0,
        };
        let shortage = core.shortage(&groups, pods, Mib(16_384));
        plan(&shortage, &[template], &unknown, &config).nodes.len()
    }
}
