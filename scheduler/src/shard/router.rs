//! Every fact to the shard that it is about. Pure, but for the loop around it.
//!
//! - Nodes, queues and groups are where their label says.
//! - A pod counts in the shard of its node. While it has no node it is where its group is, else
//!   where its own label says.
//! - What an agent says goes where its node is. Everything else goes to all.
//!
//! An object that moves is removed from one shard before it is added to the other.

use super::pool::Pool;
use crate::stored_pod::StoredPod;
use crate::telemetry::{AgentEvent, AgentEventReceiver, AgentEventSender};
use crate::watch::{Fact, Key, Seen};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use proto::names::kai;
use std::collections::{BTreeMap, BTreeSet};

/// Into one shard.
#[derive(Clone, Debug)]
pub struct Lane {
    /// The API server's.
    pub facts: channel::Sender<Fact>,
    /// The agents'.
    pub heard: AgentEventSender,
}

/// Routes until an input ends or the receiver is gone.
pub async fn run(
    pools: Vec<Pool>,
    mut facts: channel::Receiver<Fact>,
    mut heard: AgentEventReceiver,
    lanes: Vec<Lane>,
) {
    let mut router = Router::new(pools);
    loop {
        let routed = tokio::select! {
            biased;
            fact = facts.recv() => match fact {
                Some(fact) => router.take(fact),
                None => return,
            },
            said = heard.recv() => match said {
                Some(said) => router.hear(said),
                None => return,
            },
        };
        for (shard, item) in routed {
            let Some(lane) = lanes.get(shard) else {
                continue;
            };
            let sent = match item {
                Item::Fact(fact) => lane.facts.send(*fact).is_ok(),
                Item::Heard(said) => lane.heard.send(*said),
            };
            if !sent {
                return;
            }
        }
    }
}

/// One thing for one shard.
#[derive(Clone, Debug)]
enum Item {
    Fact(Box<Fact>),
    Heard(Box<AgentEvent>),
}

type Routed = Vec<(usize, Item)>;

/// Where the objects of one kind are, by name.
#[derive(Debug, Default)]
struct Places {
    of: BTreeMap<String, usize>,
    /// Those that are there and of no shard.
    elsewhere: BTreeSet<String>,
}

impl Places {
    /// Where it was, if that was elsewhere.
    fn put(&mut self, name: &str, shard: Option<usize>) -> Option<usize> {
        let before = match shard {
            Some(shard) => {
                self.elsewhere.remove(name);
                self.of.insert(name.to_owned(), shard)
            }
            None => {
                self.elsewhere.insert(name.to_owned());
                self.of.remove(name)
            }
        };
        before.filter(|before| Some(*before) != shard)
    }

    fn take(&mut self, name: &str) -> Option<usize> {
        self.elsewhere.remove(name);
        self.of.remove(name)
    }
}

/// A pod, and where it was sent.
#[derive(Debug)]
struct RoutedPod {
    shard: Option<usize>,
    node: Option<String>,
    /// `namespace/name` of its group.
    group: Option<String>,
    /// The pod as it was last seen: it is sent again if it moves to another shard.
    pod: StoredPod,
}

#[derive(Debug)]
struct Router {
    pools: Vec<Pool>,
    nodes: Places,
    queues: Places,
    groups: Places,
    pods: BTreeMap<String, RoutedPod>,
    /// UIDs by node, and by group for pods without a node.
    on_node: BTreeMap<String, BTreeSet<String>>,
    in_group: BTreeMap<String, BTreeSet<String>>,
    /// The last report of each agent, and that its stream has ended since.
    said: BTreeMap<String, Vec<AgentEvent>>,
}

impl Router {
    fn new(pools: Vec<Pool>) -> Self {
        Self {
            pools,
            nodes: Places::default(),
            queues: Places::default(),
            groups: Places::default(),
            pods: BTreeMap::new(),
            on_node: BTreeMap::new(),
            in_group: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    fn shard_of<K: Resource>(&self, object: &K) -> Option<usize> {
        let labels = object.meta().labels.as_ref();
        self.pools.iter().position(|pool| pool.holds(labels))
    }

    fn all(&self, fact: &Fact) -> Routed {
        let all = 0..self.pools.len();
        all.map(|shard| (shard, Item::Fact(Box::new(fact.clone()))))
            .collect()
    }

    fn take(&mut self, fact: Fact) -> Routed {
        match fact {
            Fact::Node(seen) => self.node(seen),
            Fact::Queue(seen) => {
                let shard = self.shard_now(&seen);
                labelled(&mut self.queues, self.pools.len(), seen, shard, Fact::Queue)
            }
            Fact::Group(seen) => self.group(seen),
            Fact::Pod(seen) => self.pod(seen),
            other => self.all(&other),
        }
    }

    /// The shard of the object, if it is there.
    fn shard_now<K: Resource>(&self, seen: &Seen<K>) -> Option<usize> {
        let Seen::There(object) = seen else {
            return None;
        };
        self.shard_of(&**object)
    }

    fn node(&mut self, seen: Seen<k8s_openapi::api::core::v1::Node>) -> Routed {
        let (name, shard) = (key(&seen), self.shard_now(&seen));
        let before = name
            .as_ref()
            .and_then(|name| self.nodes.of.get(name).copied());
        let count = self.pools.len();
        let mut routed = labelled(&mut self.nodes, count, seen, shard, Fact::Node);
        let Some(name) = name else {
            return routed;
        };
        let now = self.nodes.of.get(&name).copied();
        if now != before {
            if let Some(before) = before {
                let lost = AgentEvent::Lost { node: name.clone() };
                routed.push((before, Item::Heard(Box::new(lost))));
            }
            if let Some(now) = now {
                let said = self.said.get(&name).into_iter().flatten();
                routed.extend(said.map(|said| (now, Item::Heard(Box::new(said.clone())))));
            }
            routed.extend(self.place_all(&name));
        }
        routed
    }

    /// Pods on this node, again.
    fn place_all(&mut self, node: &str) -> Routed {
        let pods = self.on_node.get(node).cloned().unwrap_or_default();
        pods.iter().flat_map(|uid| self.place(uid)).collect()
    }

    fn group(&mut self, seen: Seen<api::PodGroup>) -> Routed {
        let (name, shard) = (key(&seen), self.shard_now(&seen));
        let before = name
            .as_ref()
            .and_then(|name| self.groups.of.get(name).copied());
        let count = self.pools.len();
        let mut routed = labelled(&mut self.groups, count, seen, shard, Fact::Group);
        if let Some(name) = name
            && self.groups.of.get(&name).copied() != before
        {
            let pods = self.in_group.get(&name).cloned().unwrap_or_default();
            routed.extend(pods.iter().flat_map(|uid| self.place(uid)));
        }
        routed
    }

    fn pod(&mut self, seen: Seen<Pod>) -> Routed {
        match seen {
            Seen::There(pod) => {
                let uid = pod.uid().unwrap_or_default();
                let before = self.forget(&uid);
                let (node, group) = (node_of(&pod).map(str::to_owned), group_of(&pod));
                if let Some(node) = &node {
                    let uids = self.on_node.entry(node.clone()).or_default();
                    uids.insert(uid.clone());
                } else if let Some(group) = &group {
                    let uids = self.in_group.entry(group.clone()).or_default();
                    uids.insert(uid.clone());
                }
                let shard = self.pod_shard(&pod, before);
                let mut routed = Routed::new();
                if let Some(before) = before
                    && shard != Some(before)
                {
                    let gone = Fact::Pod(Seen::Gone(uid.clone()));
                    routed.push((before, Item::Fact(Box::new(gone))));
                }
                let routed_pod = RoutedPod {
                    shard,
                    node,
                    group,
                    pod: StoredPod::of(&pod),
                };
                self.pods.insert(uid, routed_pod);
                if let Some(shard) = shard {
                    let there = Fact::Pod(Seen::There(pod));
                    routed.push((shard, Item::Fact(Box::new(there))));
                }
                routed
            }
            Seen::Gone(uid) => {
                let before = self.forget(&uid);
                let gone = |shard| (shard, Item::Fact(Box::new(Fact::Pod(Seen::Gone(uid)))));
                before.map(gone).into_iter().collect()
            }
            listing => self.all(&Fact::Pod(listing)),
        }
    }

    /// The pod as it was last seen, to where it belongs now, if that is elsewhere.
    fn place(&mut self, uid: &str) -> Routed {
        let Some(routed) = self.pods.get(uid) else {
            return Routed::new();
        };
        let (before, pod) = (routed.shard, Box::new(routed.pod.load()));
        let now = self.pod_shard(&pod, before);
        if now == before {
            return Routed::new();
        }
        let gone = before.map(|shard| (shard, Fact::Pod(Seen::Gone(uid.to_owned()))));
        let there = now.map(|shard| (shard, Fact::Pod(Seen::There(pod.clone()))));
        if let Some(routed) = self.pods.get_mut(uid) {
            routed.shard = now;
        }
        gone.into_iter()
            .chain(there)
            .map(|(shard, fact)| (shard, Item::Fact(Box::new(fact))))
            .collect()
    }

    /// With its node. A node that is not known, not yet or no more, takes no pod out of the
    /// shard that it was in: its queue would seem to have room.
    fn pod_shard(&self, pod: &Pod, before: Option<usize>) -> Option<usize> {
        let node = node_of(pod);
        let of_node = node.and_then(|node| self.nodes.of.get(node).copied());
        if of_node.is_some() || node.is_some_and(|node| self.nodes.elsewhere.contains(node)) {
            return of_node;
        }
        let group = group_of(pod).and_then(|group| self.groups.of.get(&group).copied());
        before
            .filter(|_| node.is_some())
            .or(group)
            .or_else(|| self.shard_of(pod))
    }

    /// Where it was.
    fn forget(&mut self, uid: &str) -> Option<usize> {
        let routed = self.pods.remove(uid)?;
        if let Some(node) = &routed.node {
            leave(&mut self.on_node, node, uid);
        }
        if let Some(group) = &routed.group {
            leave(&mut self.in_group, group, uid);
        }
        routed.shard
    }

    fn hear(&mut self, heard: AgentEvent) -> Routed {
        let node = heard.node();
        match &heard {
            AgentEvent::State { .. } => {
                self.said.insert(node.to_owned(), vec![heard.clone()]);
            }
            AgentEvent::Disconnected { .. } => {
                if let Some(said) = self.said.get_mut(node) {
                    said.truncate(1);
                    said.push(heard.clone());
                }
            }
            AgentEvent::Lost { .. } => {
                self.said.remove(node);
            }
            AgentEvent::Refusal { .. } => {}
        }
        let shard = self.nodes.of.get(node).copied();
        shard
            .map(|shard| (shard, Item::Heard(Box::new(heard))))
            .into_iter()
            .collect()
    }
}

fn leave(index: &mut BTreeMap<String, BTreeSet<String>>, key: &str, uid: &str) {
    if let Some(uids) = index.get_mut(key) {
        uids.remove(uid);
        if uids.is_empty() {
            index.remove(key);
        }
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// `namespace/name`.
fn group_of(pod: &Pod) -> Option<String> {
    let group = pod.annotations().get(kai::POD_GROUP)?;
    (!group.is_empty()).then(|| format!("{}/{group}", pod.namespace().unwrap_or_default()))
}

/// The key of the object that a fact is about.
fn key<K: Key>(seen: &Seen<K>) -> Option<String> {
    match seen {
        Seen::There(object) => Some(object.key()),
        Seen::Gone(key) => Some(key.clone()),
        Seen::Listing | Seen::Listed => None,
    }
}

/// A kind whose label says where each object is.
fn labelled<K: Key + Clone>(
    places: &mut Places,
    shards: usize,
    seen: Seen<K>,
    shard: Option<usize>,
    of: fn(Seen<K>) -> Fact,
) -> Routed {
    let one = |shard, seen| (shard, Item::Fact(Box::new(of(seen))));
    match seen {
        Seen::There(object) => {
            let key = object.key();
            let before = places.put(&key, shard);
            let gone = before.map(|before| one(before, Seen::Gone(key)));
            let there = shard.map(|shard| one(shard, Seen::There(object)));
            gone.into_iter().chain(there).collect()
        }
        Seen::Gone(key) => {
            let before = places.take(&key);
            let gone = before.map(|before| one(before, Seen::Gone(key)));
            gone.into_iter().collect()
        }
        listing => (0..shards)
            .map(|shard| one(shard, listing.clone()))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::telemetry::NodeState;
    use serde_json::{Value, json};

    const KEY: &str = "pool";

    fn router() -> Router {
        let of = |value: &str| Pool::Of {
            key: KEY.into(),
            value: value.into(),
        };
        Router::new(vec![of(""), of("a")])
    }

    fn there<K: serde::de::DeserializeOwned>(object: Value) -> Seen<K> {
        Seen::There(serde_json::from_value(object).unwrap())
    }

    fn node(pool: Option<&str>) -> Fact {
        let labels = pool.map(|pool| json!({KEY: pool}));
        Fact::Node(there(json!({"metadata": {"name": "n", "labels": labels}})))
    }

    fn pod(node: Option<&str>, pool: Option<&str>) -> Fact {
        let labels = pool.map(|pool| json!({KEY: pool}));
        Fact::Pod(there(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": labels,
                "annotations": {kai::POD_GROUP: "g"}},
            "spec": {"nodeName": node, "containers": []}})))
    }

    fn group(pool: Option<&str>) -> Fact {
        let labels = pool.map(|pool| json!({KEY: pool}));
        Fact::Group(there(json!({
            "apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup",
            "metadata": {"name": "g", "namespace": "ns", "labels": labels}, "spec": {}})))
    }

    /// `shard kind+` or `shard kind-`, one for each.
    fn shown(routed: Routed) -> Vec<String> {
        let sign = |gone: bool| if gone { '-' } else { '+' };
        let text = |item: Item| match item {
            Item::Fact(fact) => match *fact {
                Fact::Node(seen) => format!("node{}", sign(matches!(seen, Seen::Gone(_)))),
                Fact::Pod(seen) => format!("pod{}", sign(matches!(seen, Seen::Gone(_)))),
                Fact::Group(seen) => format!("group{}", sign(matches!(seen, Seen::Gone(_)))),
                other => format!("{other:?}"),
            },
            Item::Heard(said) => match *said {
                AgentEvent::State { .. } => "state".to_owned(),
                AgentEvent::Disconnected { .. } => "disconnected".to_owned(),
                AgentEvent::Lost { .. } => "lost".to_owned(),
                AgentEvent::Refusal { .. } => "refusal".to_owned(),
            },
        };
        routed
            .into_iter()
            .map(|(shard, item)| format!("{shard} {}", text(item)))
            .collect()
    }

    #[test]
    fn a_node_that_changes_its_pool_takes_its_pods_and_its_agent_along() {
        let mut router = router();
        // Its pod and its agent come before it.
        assert_eq!(shown(router.take(pod(Some("n"), None))), ["0 pod+"]);
        let state = NodeState::default();
        let said = AgentEvent::State {
            node: "n".into(),
            state,
        };
        assert_eq!(shown(router.hear(said)), Vec::<String>::new());
        assert_eq!(shown(router.take(node(None))), ["0 node+", "0 state"]);
        assert_eq!(shown(router.take(node(None))), ["0 node+"]);
        assert_eq!(
            shown(router.take(node(Some("a")))),
            [
                "0 node-", "1 node+", "0 lost", "1 state", "0 pod-", "1 pod+"
            ]
        );
        let ended = AgentEvent::Disconnected { node: "n".into() };
        assert_eq!(shown(router.hear(ended)), ["1 disconnected"]);
        assert_eq!(
            shown(router.take(node(None))),
            [
                "1 node-",
                "0 node+",
                "1 lost",
                "0 state",
                "0 disconnected",
                "1 pod-",
                "0 pod+"
            ]
        );
        router.take(node(Some("a")));
        assert_eq!(
            shown(router.take(node(Some("other")))),
            ["1 node-", "1 lost", "1 pod-"]
        );
    }

    #[test]
    fn a_pod_that_stands_nowhere_is_with_its_group_and_then_with_its_node() {
        let mut router = router();
        router.take(node(None));
        assert_eq!(shown(router.take(pod(None, Some("a")))), ["1 pod+"]);
        assert_eq!(
            shown(router.take(group(None))),
            ["0 group+", "1 pod-", "0 pod+"]
        );
        assert_eq!(
            shown(router.take(group(Some("a")))),
            ["0 group-", "1 group+", "0 pod-", "1 pod+"]
        );
        assert_eq!(
            shown(router.take(pod(Some("n"), Some("a")))),
            ["1 pod-", "0 pod+"]
        );
        let gone = Fact::Pod(Seen::Gone("u".into()));
        assert_eq!(shown(router.take(gone)), ["0 pod-"]);
        assert!(router.on_node.is_empty() && router.in_group.is_empty());
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut router = router();
        router.take(node(None));
        router.take(pod(Some("n"), None));
        let gone = router.take(Fact::Node(Seen::Gone("n".into())));
        // A pod outlives its node for a while, and its queue is charged for it.
        assert_eq!(shown(gone), ["0 node-", "0 lost"]);
        router.take(Fact::Pod(Seen::Gone("u".into())));
        assert!(router.pods.is_empty() && router.on_node.is_empty());
    }
}
