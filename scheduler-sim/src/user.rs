//! What people do: pods, gangs, Jobs, queues, budgets and volumes come and go.

use crate::event::WorldEvent;
use crate::kubelet::volume;
use crate::store::Key;
use crate::world::World;
use kube::CustomResourceExt as _;
use proto::names::queue::QUOTA_BY_PRODUCT;
use proto::names::{kai, object};
use serde_json::{Value, json};

/// Where people's pods are.
pub const NAMESPACES: [&str; 2] = ["team-a", "team-b"];
/// Queues that are there from the beginning: `default-queue` has no bounds.
const QUEUES: [&str; 3] = [kai::DEFAULT_QUEUE, "q1", "q2"];
/// Classes and their values.
const CLASSES: [(&str, i32); 4] = [("low", 20), ("train", 50), ("high", 80), ("build", 100)];
/// More pods than this are not made.
const MOST_PODS: usize = 40;

impl World {
    /// The initial cluster.
    pub(crate) fn furnish(&mut self) {
        let now = self.stamp();
        let mut make = |plural: &str, namespace: &str, name: &str, value: Value| {
            let key = Key::new(plural, namespace, name);
            let _ = self.store.create(&key, value, &now);
        };
        for namespace in ["kube-system", proto::names::NAMESPACE, "team-a", "team-b"] {
            make("namespaces", "", namespace, json!({}));
        }
        for definition in [
            api::Queue::crd(),
            api::PodGroup::crd(),
            api::Topology::crd(),
            api::GpuNode::crd(),
        ] {
            let name = definition.metadata.name.clone().unwrap_or_default();
            make("customresourcedefinitions", "", &name, json!(definition));
        }
        for (class, value) in CLASSES {
            make("priorityclasses", "", class, json!({"value": value}));
        }
        let waits = "WaitForFirstConsumer";
        for (class, provisioner) in [
            ("made", "sim.dev/made"),
            ("local", "kubernetes.io/no-provisioner"),
        ] {
            let class_of = json!({"provisioner": provisioner, "volumeBindingMode": waits});
            make("storageclasses", "", class, class_of);
        }
        for queue in QUEUES {
            make("queues", "", queue, queue_of(-1, -1, 100));
        }
        for at in 0..self.nodes.len() {
            self.furnish_node(at);
            self.soon(10, WorldEvent::Agent(at));
        }
        self.soon(500, WorldEvent::Volumes);
        self.soon(5000, WorldEvent::Collect);
    }

    /// The object of a machine, and that it has an agent.
    pub(crate) fn furnish_node(&mut self, at: usize) {
        let now = self.stamp();
        let name = self.nodes[at].name.clone();
        let key = Key::new("nodes", "", &name);
        let made = self.store.create(&key, self.nodes[at].object(), &now);
        let uid = made
            .map(|node| node["metadata"]["uid"].clone())
            .unwrap_or_default();
        uid.as_str()
            .unwrap_or_default()
            .clone_into(&mut self.nodes[at].uid);
        let _ = self
            .store
            .create(&Key::new("gpunodes", "", &name), json!({"spec": {}}), &now);
    }

    /// A name that nothing else has.
    pub(crate) fn name(&mut self, stem: &str) -> String {
        self.names += 1;
        format!("{stem}-{}", self.names)
    }

    fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.rng.usize(0..of.len())]
    }

    /// Through the webhook, as every pod goes.
    pub(crate) fn make_pod(&mut self, namespace: &str, stem: &str, pod: &Value) {
        let name = self.name(stem);
        let mut pod = pod.clone();
        pod["metadata"]["name"] = json!(name);
        match scheduler::admission::amended(&pod) {
            Ok(amended) => {
                let now = self.stamp();
                let key = Key::new("pods", namespace, &name);
                let _ = self.store.create(&key, amended.pod, &now);
                if self.autoscaler.is_some() {
                    self.arrived.insert(name.clone(), self.now);
                }
                self.say(|| format!("pod {namespace}/{name}"));
            }
            Err(why) => self.violated(format!("the webhook refuses {pod}: {why}")),
        }
    }

    /// A pod that does not exist yet.
    fn draft(&mut self) -> Value {
        let queue = *self.one_of(&QUEUES);
        let class = self.one_of(&CLASSES).0;
        let grace = self.rng.u32(0..6);
        let mut requests = json!({"cpu": "500m", "memory": "256Mi"});
        let mut annotations = json!({});
        match self.rng.u32(0..10) {
            0..=4 => {
                let memory = *self.one_of(&["900", "2500", "4000", "7000", "12000"]);
                annotations["gpu-memory"] = json!(memory);
                if memory == "2500" {
                    annotations["gpu-memory.limit"] = json!("6Gi");
                }
            }
            5 | 6 => {
                annotations["gpu-fraction"] = json!(self.one_of(&["0.1", "0.25", "0.5", "0.75"]));
            }
            7 | 8 => requests["nvidia.com/gpu"] = json!(self.one_of(&["1", "1", "2"])),
            _ => {}
        }
        if annotations["gpu-fraction"].is_string() && self.rng.u32(0..8) == 0 {
            annotations["gpu-fraction-num-devices"] = json!("2");
        }
        if self.rng.u32(0..3) == 0 {
            annotations["lasts"] = json!(self.rng.u64(2000..60_000).to_string());
        }
        let limits = requests["nvidia.com/gpu"]
            .as_str()
            .map_or(json!({}), |count| json!({"nvidia.com/gpu": count}));
        let mut pod = json!({
            "metadata": {
                "labels": {kai::QUEUE_LABEL: queue, kai::PRIORITY_CLASS_LABEL: class},
                "annotations": annotations,
            },
            "spec": {
                "schedulerName": kai::SCHEDULER_NAME, "terminationGracePeriodSeconds": grace,
                "containers": [{"name": "main", "image": "i",
                    "resources": {"requests": requests, "limits": limits}}],
            },
        });
        if self.rng.bool() {
            pod["metadata"]["labels"]["guarded"] = json!("yes");
        }
        pod
    }

    fn pods(&self) -> Vec<Key> {
        self.store
            .all("pods", "")
            .map(|(key, _)| key.clone())
            .collect()
    }

    fn some(&mut self, plural: &str) -> Option<Key> {
        let all: Vec<Key> = self
            .store
            .all(plural, "")
            .map(|(key, _)| key.clone())
            .collect();
        (!all.is_empty()).then(|| self.one_of(&all).clone())
    }

    /// One action of a user.
    pub(crate) fn act(&mut self) {
        let full = self.pods().len() >= MOST_PODS;
        match self.rng.u32(0..40) {
            0..=11 if !full => self.make_single(),
            12..=14 if !full => self.make_gang(),
            15..=16 if !full => self.make_job(),
            17 if !full => self.make_with_volume(),
            18..=26 => self.delete_pod(),
            27 => self.delete("podgroups"),
            28 => self.delete_job(),
            29..=31 => self.change_queue(),
            32 => self.lose_queue(),
            33 => self.delete("persistentvolumeclaims"),
            34 => self.make_budget(),
            35 => self.delete("poddisruptionbudgets"),
            36 => self.make_volume(),
            37 => self.delete("persistentvolumes"),
            38 => self.change_pod(),
            _ => self.change_class(),
        }
    }

    fn make_single(&mut self) {
        let namespace = *self.one_of(&NAMESPACES);
        let pod = self.draft();
        self.make_pod(namespace, "p", &pod);
    }

    fn make_gang(&mut self) {
        let namespace = *self.one_of(&NAMESPACES);
        let name = self.name("g");
        let least = self.rng.u32(2..5);
        let more = u32::from(self.rng.u32(0..4) == 0);
        let mut pod = self.draft();
        let group = json!({"spec": {
            "minMember": least,
            "queue": pod["metadata"]["labels"][kai::QUEUE_LABEL],
            "priorityClassName": pod["metadata"]["labels"][kai::PRIORITY_CLASS_LABEL],
        }});
        let now = self.stamp();
        let _ = self
            .store
            .create(&Key::new("podgroups", namespace, &name), group, &now);
        self.say(|| format!("gang {namespace}/{name} of {least}"));
        pod["metadata"]["annotations"][kai::POD_GROUP] = json!(name);
        for _ in 0..least + more {
            self.make_pod(namespace, &name, &pod);
        }
    }

    fn make_job(&mut self) {
        let namespace = *self.one_of(&NAMESPACES);
        let name = self.name("job");
        let mut template = self.draft();
        if let Some(annotations) = template["metadata"]["annotations"].as_object_mut() {
            annotations.remove("lasts");
        }
        let count = self.rng.u32(1..4);
        let mut annotations = json!({});
        if self.rng.bool() {
            annotations[kai::BATCH_MIN_MEMBER] = json!(count.to_string());
        }
        let job = json!({
            "metadata": {"annotations": annotations, "labels": template["metadata"]["labels"]},
            "spec": {"parallelism": count, "template": template},
        });
        let now = self.stamp();
        let key = Key::new("jobs", namespace, &name);
        let _ = self.store.create(&key, job, &now);
        self.say(|| format!("job {namespace}/{name} of {count}"));
        self.soon(50, WorldEvent::Job(key));
    }

    fn make_with_volume(&mut self) {
        let namespace = *self.one_of(&NAMESPACES);
        let class = *self.one_of(&["made", "local"]);
        let name = self.name("claim");
        let claim = json!({
            "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "5Gi"}}},
            "status": {"phase": "Pending"},
        });
        let now = self.stamp();
        let key = Key::new("persistentvolumeclaims", namespace, &name);
        let _ = self.store.create(&key, claim, &now);
        if class == "local" {
            self.make_volume();
        }
        let mut pod = self.draft();
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        self.make_pod(namespace, "p", &pod);
    }

    fn make_volume(&mut self) {
        let node = self.rng.usize(0..self.nodes.len());
        let node = self.nodes[node].name.clone();
        let name = self.name("pv");
        let now = self.stamp();
        let key = Key::new("persistentvolumes", "", &name);
        let _ = self.store.create(&key, volume(&node, "local", None), &now);
        self.say(|| format!("volume {name} on {node}"));
    }

    fn make_budget(&mut self) {
        let namespace = *self.one_of(&NAMESPACES);
        let name = self.name("budget");
        let least = self.rng.u32(0..3);
        let budget = json!({"spec": {
            "minAvailable": least, "selector": {"matchLabels": {"guarded": "yes"}}}});
        let now = self.stamp();
        let _ = self.store.create(
            &Key::new("poddisruptionbudgets", namespace, &name),
            budget,
            &now,
        );
        self.say(|| format!("budget {namespace}/{name} of {least}"));
    }

    fn delete(&mut self, plural: &str) {
        if let Some(key) = self.some(plural) {
            self.say(|| format!("{plural} {} is deleted", key.name));
            self.store.remove(&key);
        }
    }

    fn delete_pod(&mut self) {
        if let Some(key) = self.some("pods") {
            self.delete_this(&key);
        }
    }

    /// As `kubectl delete pod` does.
    pub(crate) fn delete_this(&mut self, key: &Key) {
        let now = self.stamp();
        self.say(|| format!("{} is deleted", key.name));
        let already = self
            .store
            .get(key)
            .is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
        if !already && self.store.delete(key, &Value::Null, &now).is_ok() {
            self.leaves(key);
        }
    }

    fn delete_job(&mut self) {
        let Some(job) = self.some("jobs") else {
            return;
        };
        self.say(|| format!("job {} is deleted", job.name));
        let uid = self
            .store
            .remove(&job)
            .map(|job| job["metadata"]["uid"].clone());
        let pods: Vec<Key> = self
            .store
            .all("pods", &job.namespace)
            .filter(|(_, pod)| Some(&pod["metadata"]["ownerReferences"][0]["uid"]) == uid.as_ref())
            .map(|(key, _)| key.clone())
            .collect();
        for pod in pods {
            self.delete_this(&pod);
        }
    }

    fn change_queue(&mut self) {
        let name = *self.one_of(&QUEUES[1..]);
        let (quota, limit) = *self.one_of(&[(-1, -1), (1, 3), (2, -1), (0, 2), (0, -1)]);
        let priority = *self.one_of(&[50, 100, 150]);
        let key = Key::new("queues", "", name);
        self.say(|| format!("queue {name}: quota {quota}, limit {limit}, priority {priority}"));
        let queue = queue_of(quota, limit, priority);
        if self.store.get(&key).is_none() {
            let now = self.stamp();
            let _ = self.store.create(&key, queue, &now);
        } else {
            self.store.amend(&key, |found| {
                found["spec"] = queue["spec"].clone();
                found["metadata"]["annotations"] = queue["metadata"]["annotations"].clone();
            });
        }
    }

    fn lose_queue(&mut self) {
        let name = *self.one_of(&QUEUES[1..]);
        self.say(|| format!("queue {name} is deleted"));
        self.store.remove(&Key::new("queues", "", name));
    }

    fn change_pod(&mut self) {
        let queue = *self.one_of(&QUEUES);
        if let Some(key) = self.some("pods") {
            self.say(|| format!("{} wants queue {queue}", key.name));
            self.store.amend(&key, |pod| {
                pod["metadata"]["labels"][kai::QUEUE_LABEL] = json!(queue);
            });
        }
    }

    fn change_class(&mut self) {
        let value = self.rng.i32(1..120);
        let key = Key::new("priorityclasses", "", "train");
        self.say(|| format!("class train is {value}"));
        self.store
            .amend(&key, |class| class["value"] = json!(value));
    }

    /// Nothing is protected any more.
    pub(crate) fn lift_budgets(&mut self) {
        while let Some(key) = self.some("poddisruptionbudgets") {
            self.store.remove(&key);
        }
    }

    /// Everything that people made is taken away.
    pub(crate) fn clear_away(&mut self) {
        for plural in ["jobs", "poddisruptionbudgets", "podgroups"] {
            while let Some(key) = self.some(plural) {
                self.store.remove(&key);
            }
        }
        for pod in self.pods() {
            self.delete_this(&pod);
        }
        self.announce();
    }

    /// The scheduler's own: never deleted.
    pub fn lease() -> Key {
        Key::new("leases", proto::names::NAMESPACE, object::LEASE)
    }
}

fn queue_of(quota: i32, limit: i32, priority: i32) -> Value {
    let all = json!({"quota": -1, "limit": -1});
    // With some quotas comes one of a product, and with one what cannot be read.
    let products = match (quota, limit) {
        (1, _) => json!({QUOTA_BY_PRODUCT: r#"{"L4": {"quota": 1, "limit": 2}}"#}),
        (2, _) => json!({QUOTA_BY_PRODUCT: r#"{"T4": {"limit": 1}, "L4": {"quota": 0.5}}"#}),
        (0, -1) => {
            json!({QUOTA_BY_PRODUCT: r#"{"L4": {"quota": -7}, "T4": {"quotaMib": 0, "limitMib": 20000}}"#})
        }
        _ => json!({}),
    };
    json!({"metadata": {"annotations": products}, "spec": {
        "priority": priority,
        "resources": {"cpu": all, "memory": all,
            "gpu": {"quota": quota, "limit": limit, "overQuotaWeight": 1}},
    }})
}
