//! What happens in the cluster by itself: kubelets start and end pods, agents report on their
//! machines, Jobs recreate pods, volumes are bound, orphans are collected.

use crate::event::{Task, WorldEvent};
use crate::node::{Link, Node};
use crate::store::{Key, set_condition};
use crate::world::World;
use proto::telemetry::agent_message::Body;
use proto::telemetry::{AgentMessage, Heartbeat};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// Between two heartbeats of an agent.
const HEARTBEAT: u64 = 5000;
/// Between two tries of a kubelet.
const RETRY: u64 = 3000;
/// States that an agent may come back with.
const REMEMBERED: usize = 8;

impl World {
    fn node_at(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// The kubelet learns of a pod that was bound to it.
    pub(crate) fn admit_soon(&mut self, key: &Key, uid: &str, node: &str) {
        let Some(at) = self.node_at(node) else {
            return;
        };
        let pause = 20 + self.rng.u64(0..700);
        self.soon(
            pause,
            WorldEvent::Kubelet(at, key.clone(), uid.to_owned(), Task::Admit),
        );
    }

    /// A pod was deleted; if it is on a machine it ends there first.
    pub(crate) fn leaves(&mut self, key: &Key) {
        let Some(pod) = self.store.get(key) else {
            return;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (uid, node) = (
            text(&pod["metadata"]["uid"]),
            text(&pod["spec"]["nodeName"]),
        );
        let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64();
        let Some(at) = self.node_at(&node) else {
            return;
        };
        if self.autoscaler.is_some() {
            self.left.push((key.clone(), pod.clone()));
        }
        let longest = 1000 * grace.unwrap_or_default();
        let pause = 20 + self.rng.u64(0..=longest);
        self.soon(pause, WorldEvent::Kubelet(at, key.clone(), uid, Task::Stop));
    }

    pub(crate) fn kubelet(&mut self, at: usize, key: &Key, uid: &str, task: Task) {
        let pod = self
            .store
            .get(key)
            .filter(|pod| pod["metadata"]["uid"] == *uid)
            .cloned();
        let Some(pod) = pod else {
            self.freed(at, uid);
            return;
        };
        let again = |task| WorldEvent::Kubelet(at, key.clone(), uid.to_owned(), task);
        if !self.nodes[at].alive {
            self.soon(RETRY, again(task));
            return;
        }
        let leaving = !pod["metadata"]["deletionTimestamp"].is_null();
        let over = ["Succeeded", "Failed"]
            .map(Value::from)
            .contains(&pod["status"]["phase"]);
        match task {
            Task::Stop => {
                self.store.remove(key);
                self.say(|| format!("{} has ended", key.name));
                self.freed(at, uid);
            }
            _ if leaving || over => {}
            Task::Admit => match self.nodes[at].admit(&pod) {
                Ok(()) => {
                    let pause = 50 + self.rng.u64(0..1500);
                    self.soon(pause, again(Task::Start));
                    self.soon(20, WorldEvent::Tell(at));
                }
                Err(why) => {
                    self.say(|| format!("{} is refused: {why}", key.name));
                    self.count("grant refused");
                    let last = why.contains("another") || why.contains("created again");
                    if self.nodes[at].speaks
                        && let Some(refusal) = Node::refusal(&pod, &why, last)
                    {
                        self.nodes[at].refuse(self.now, refusal);
                        if last {
                            self.disown(at, &pod);
                        }
                    }
                    self.soon(RETRY, again(Task::Admit));
                }
            },
            Task::Start => {
                self.store.amend(key, |pod| {
                    pod["status"]["phase"] = json!("Running");
                    set_condition(pod, json!({"type": "Ready", "status": "True"}));
                });
                if let Some(lasts) = pod["metadata"]["annotations"]["lasts"].as_str() {
                    let lasts = lasts.parse().unwrap_or(1000);
                    self.soon(lasts, again(Task::Finish));
                }
            }
            Task::Finish => {
                self.say(|| format!("{} is done", key.name));
                self.store
                    .amend(key, |pod| pod["status"]["phase"] = json!("Succeeded"));
                self.freed(at, uid);
            }
        }
    }

    fn freed(&mut self, at: usize, uid: &str) {
        if self.nodes[at].free(uid) {
            self.soon(20, WorldEvent::Tell(at));
        }
    }

    /// An agent's turn: it sends a heartbeat, and opens ended streams again.
    pub(crate) fn agent(&mut self, at: usize) {
        self.soon(HEARTBEAT, WorldEvent::Agent(at));
        let node = &mut self.nodes[at];
        if !node.alive || !node.speaks {
            node.links.clear();
            return;
        }
        node.links.retain(|_, link| {
            matches!(
                link.ended.try_recv(),
                Err(oneshot::error::TryRecvError::Empty)
            )
        });
        node.say(&Body::Heartbeat(Heartbeat {}));
        let pause = 100 + self.rng.u64(0..1000);
        self.soon(pause, WorldEvent::Connect(at));
    }

    /// Changes are sent.
    pub(crate) fn tell(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.alive || !node.speaks {
            return;
        }
        let state = node.state();
        if node.said.last() != Some(&state) {
            node.said.push(state.clone());
            if node.said.len() > REMEMBERED {
                node.said.remove(0);
            }
        }
        node.say(&Body::State(state));
    }

    /// Streams to the replicas that have none.
    pub(crate) fn connect(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if !node.alive || !node.speaks {
            return;
        }
        let mut missing = false;
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            let Some(process) = &mut replica.process else {
                continue;
            };
            if node.links.contains_key(&number) {
                continue;
            }
            let (to, messages) = mpsc::unbounded_channel();
            let (over, ended) = oneshot::channel();
            if !process.connect(&node.name, messages, over) {
                missing = true;
                continue;
            }
            let first = AgentMessage {
                sequence: 1,
                agent_instance: format!("{}-{}", node.name, node.instance),
                release: String::new(),
                body: Some(Body::State(node.state())),
            };
            let _ = to.send(first);
            let mut sequence = 1;
            for refusal in node.refusals(self.now) {
                sequence += 1;
                let _ = to.send(AgentMessage {
                    sequence,
                    agent_instance: format!("{}-{}", node.name, node.instance),
                    release: String::new(),
                    body: Some(refusal),
                });
            }
            let link = Link {
                to,
                ended,
                sequence,
            };
            node.links.insert(number, link);
        }
        if missing {
            self.soon(1000, WorldEvent::Connect(at));
        }
    }

    /// Pods of machines whose objects were deleted.
    pub(crate) fn collect(&mut self) {
        self.soon(5000, WorldEvent::Collect);
        let gone: Vec<(Key, String)> = self
            .store
            .all("pods", "")
            .filter_map(|(key, pod)| {
                let node = pod["spec"]["nodeName"].as_str()?;
                let there = self.store.get(&Key::new("nodes", "", node)).is_some();
                let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
                (!there).then(|| (key.clone(), uid.to_owned()))
            })
            .collect();
        for (key, uid) in gone {
            self.say(|| format!("{} is collected", key.name));
            self.store.remove(&key);
            for at in 0..self.nodes.len() {
                self.freed(at, &uid);
            }
        }
    }

    /// A Job has as many pods as it wants.
    pub(crate) fn job(&mut self, key: &Key) {
        let Some(job) = self.store.get(key).cloned() else {
            return;
        };
        let wanted = job["spec"]["parallelism"].as_u64().unwrap_or_default();
        let ours =
            |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"];
        let there = self
            .store
            .all("pods", &key.namespace)
            .filter(|(_, pod)| ours(pod) && pod["metadata"]["deletionTimestamp"].is_null())
            .count();
        for _ in u64::try_from(there).unwrap_or(wanted)..wanted {
            let mut pod = job["spec"]["template"].clone();
            pod["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "batch/v1", "kind": "Job", "name": key.name,
                "uid": job["metadata"]["uid"], "controller": true,
            }]);
            self.make_pod(&key.namespace, &format!("{}-pod", key.name), &pod);
        }
        let pause = 500 + self.rng.u64(0..1000);
        self.soon(pause, WorldEvent::Job(key.clone()));
    }

    /// Claims whose node was chosen get a volume there; claims that a volume is kept for get
    /// that one.
    pub(crate) fn volumes(&mut self) {
        self.soon(700, WorldEvent::Volumes);
        let claims: Vec<(Key, Value)> = self
            .store
            .all("persistentvolumeclaims", "")
            .filter(|(_, claim)| claim["spec"]["volumeName"].is_null())
            .map(|(key, claim)| (key.clone(), claim.clone()))
            .collect();
        for (key, claim) in claims {
            let kept = self
                .store
                .all("persistentvolumes", "")
                .find(|(_, volume)| volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]);
            if let Some((volume, _)) = kept {
                let volume = volume.name.clone();
                self.bind_claim(&key, &volume);
                continue;
            }
            let annotations = &claim["metadata"]["annotations"];
            let Some(node) = annotations["volume.kubernetes.io/selected-node"].as_str() else {
                continue;
            };
            if self.bad && self.rng.u32(0..4) == 0 {
                self.count("provisioner gave up");
                self.store.amend(&key, |claim| {
                    claim["metadata"]["annotations"] = json!({});
                });
                continue;
            }
            let name = format!("made-{}", key.name);
            let volume = volume(node, "made", Some((&key, &claim["metadata"]["uid"])));
            let now = self.stamp();
            let made = Key::new("persistentvolumes", "", &name);
            let _ = self.store.create(&made, volume, &now);
            self.bind_claim(&key, &name);
        }
    }

    fn bind_claim(&mut self, key: &Key, volume: &str) {
        self.say(|| format!("claim {} has volume {volume}", key.name));
        self.store.amend(key, |claim| {
            claim["spec"]["volumeName"] = json!(volume);
            claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
            claim["status"] = json!({"phase": "Bound"});
        });
        let volume = Key::new("persistentvolumes", "", volume);
        self.store.amend(&volume, |volume| {
            volume["status"] = json!({"phase": "Bound"});
        });
    }
}

/// A volume on that machine.
pub(crate) fn volume(node: &str, class: &str, of: Option<(&Key, &Value)>) -> Value {
    let mut volume = json!({
        "spec": {
            "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": "/x"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}},
        },
        "status": {"phase": "Available"},
    });
    if let Some((key, uid)) = of {
        volume["spec"]["claimRef"] = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": key.namespace, "name": key.name, "uid": uid,
        });
    }
    volume
}
