//! What CSI drivers can do for which nodes: how many volumes they attach to a node at most
//! (`CSINode`), and how much they can still provision there (`CSIStorageCapacity`, where the
//! `CSIDriver` says that it publishes that).

use super::volume::VolumeTerms;
use super::{ListedObjects, World};
use crate::watch::{Seen, limits};
use api::quantity;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity};
use kube::ResourceExt as _;
use scheduler_core::Event;
use scheduler_core::ids::ResourceName;
use scheduler_core::model::{Attachment, Node, NodeTerm, Operator, Requirement};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Csi {
    pub nodes: ListedObjects,
    pub drivers: ListedObjects,
    pub capacities: ListedObjects,
    /// By node: its limits, as resources of the node.
    limits: BTreeMap<String, BTreeMap<ResourceName, u64>>,
    /// Drivers that had a limit on some node. A driver that registers again has none for a moment.
    limited: BTreeSet<String>,
    /// Drivers that publish what they can still provision.
    publishing: BTreeSet<String>,
    /// By storage class, and by namespace and name.
    rooms: BTreeMap<String, BTreeMap<String, StorageCapacity>>,
}

/// Where a volume of so many bytes may be provisioned.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StorageCapacity {
    /// `None`: every node.
    nodes: Option<NodeTerm>,
    most: u64,
}

/// What a claim wants of its storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Provision {
    pub class: String,
    pub size: u64,
}

impl Csi {
    /// The node, with the limits of its drivers.
    pub(super) fn limit(&self, node: &mut Node) {
        let of = self.limits.get(node.name.as_str());
        node.extended
            .extend(of.into_iter().flatten().map(|(k, v)| (k.clone(), *v)));
    }

    /// Whether volumes of that driver count anywhere.
    pub(super) fn is_limited(&self, driver: &str) -> bool {
        self.limited.contains(driver)
    }

    /// Where it can be provisioned, by what the driver has published; `None`: wherever the
    /// class allows it. An empty list: nowhere.
    pub(super) fn rooms(&self, driver: &str, wants: &Provision) -> Option<Vec<NodeTerm>> {
        if !self.publishing.contains(driver) {
            return None;
        }
        let rooms = self.rooms.get(&wants.class).into_iter();
        let rooms = rooms.flat_map(BTreeMap::values);
        let mut terms = Vec::new();
        // Most drivers publish a line per node: as one term they stay as fast as a selector.
        let mut by_key: BTreeMap<Arc<str>, Vec<Arc<str>>> = BTreeMap::new();
        for room in rooms.filter(|room| room.most >= wants.size) {
            let term = room.nodes.as_ref()?;
            match term.labels.as_slice() {
                [
                    Requirement {
                        key,
                        operator: Operator::In(values),
                    },
                ] => {
                    let all = by_key.entry(Arc::clone(key)).or_default();
                    all.extend(values.iter().cloned());
                }
                _ => terms.push(term.clone()),
            }
        }
        terms.extend(by_key.into_iter().map(|(key, values)| NodeTerm {
            labels: vec![Requirement {
                key,
                operator: Operator::In(values),
            }],
            ..NodeTerm::default()
        }));
        Some(terms)
    }

    /// A line about what can be provisioned is another, or gone. Whether a claim that wants so
    /// much may notice.
    fn room(
        &mut self,
        object: &CSIStorageCapacity,
        is_there: bool,
    ) -> impl Fn(&VolumeTerms) -> bool + use<> {
        let class = object.storage_class_name.clone();
        let of_class = self.rooms.entry(class.clone()).or_default();
        let key = key(object);
        let new = is_there.then(|| room(object)).flatten();
        let old = match new.clone() {
            Some(new) => of_class.insert(key, new),
            None => of_class.remove(&key),
        };
        if of_class.is_empty() {
            self.rooms.remove(&class);
        }
        move |say| {
            say.provisions.iter().any(|wants| {
                let enough = |room: &&StorageCapacity| room.most >= wants.size;
                let nodes = |room: &Option<StorageCapacity>| {
                    room.as_ref().filter(enough).map(|one| one.nodes.clone())
                };
                wants.class == class && nodes(&old) != nodes(&new)
            })
        }
    }
}

fn key(object: &CSIStorageCapacity) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// `None`: nothing can be provisioned. A selector that cannot be read selects no node.
fn room(object: &CSIStorageCapacity) -> Option<StorageCapacity> {
    let most = object
        .maximum_volume_size
        .as_ref()
        .or(object.capacity.as_ref())?;
    let labels = super::supply::requirements(object.node_topology.clone()?);
    let term = NodeTerm {
        labels,
        ..NodeTerm::default()
    };
    Some(StorageCapacity {
        nodes: (term != NodeTerm::default()).then_some(term),
        most: quantity::down(most)?,
    })
}

impl World {
    pub(super) fn csi_node(&mut self, seen: Seen<CSINode>) -> Vec<Event> {
        let csi = self.storage.csi();
        match seen {
            Seen::Listing => {
                csi.nodes.begin();
                Vec::new()
            }
            Seen::There(node) => {
                let name = node.name_any();
                csi.nodes.there(&name);
                let limits = limits(&node);
                let drivers = node.spec.drivers.iter();
                let limited =
                    drivers.filter(|one| limits.contains_key(&Attachment::limit_of(&one.name)));
                csi.limited.extend(limited.map(|one| one.name.clone()));
                self.limits_changed(name, limits)
            }
            Seen::Gone(node) => {
                let name = node.name_any();
                csi.nodes.names.remove(&name);
                self.limits_changed(name, BTreeMap::new())
            }
            Seen::Listed => {
                let gone = csi.nodes.end();
                let gone = gone.into_iter();
                let events = gone.flat_map(|name| self.limits_changed(name, BTreeMap::new()));
                let mut events: Vec<Event> = events.collect();
                events.extend(self.all_users());
                events
            }
        }
    }

    fn limits_changed(&mut self, name: String, limits: BTreeMap<ResourceName, u64>) -> Vec<Event> {
        let csi = self.storage.csi();
        let before = csi.limits.remove(&name).unwrap_or_default();
        if !limits.is_empty() {
            csi.limits.insert(name.clone(), limits.clone());
        }
        let Some(node) = self.known_nodes.get_mut(&name).filter(|_| before != limits) else {
            return Vec::new();
        };
        node.extended
            .retain(|resource, _| !before.contains_key(resource));
        node.extended.extend(limits);
        vec![Event::Node(node.clone())]
    }

    pub(super) fn csi_driver(&mut self, seen: Seen<CSIDriver>) -> Vec<Event> {
        let csi = self.storage.csi();
        let news = match seen {
            Seen::Listing => {
                csi.drivers.begin();
                false
            }
            Seen::There(driver) => {
                let name = driver.name_any();
                csi.drivers.there(&name);
                if driver.spec.storage_capacity == Some(true) {
                    csi.publishing.insert(name)
                } else {
                    csi.publishing.remove(&name)
                }
            }
            Seen::Gone(driver) => {
                let name = driver.name_any();
                csi.drivers.names.remove(&name);
                csi.publishing.remove(&name)
            }
            Seen::Listed => {
                for name in csi.drivers.end() {
                    csi.publishing.remove(&name);
                }
                return self.all_users();
            }
        };
        if news {
            self.users_if(|_| true);
        }
        Vec::new()
    }

    pub(super) fn csi_capacity(&mut self, seen: Seen<CSIStorageCapacity>) -> Vec<Event> {
        let csi = self.storage.csi();
        match seen {
            Seen::Listing => {
                csi.capacities.begin();
                Vec::new()
            }
            Seen::There(object) => {
                csi.capacities.there(&key(&object));
                let notices = csi.room(&object, true);
                self.users_if(|say| notices(say));
                Vec::new()
            }
            Seen::Gone(object) => {
                csi.capacities.names.remove(&key(&object));
                let notices = csi.room(&object, false);
                self.users_if(|say| notices(say));
                Vec::new()
            }
            Seen::Listed => {
                let gone: BTreeSet<String> = csi.capacities.end().into_iter().collect();
                for of_class in csi.rooms.values_mut() {
                    of_class.retain(|key, _| !gone.contains(key));
                }
                self.all_users()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::convert::World;
    use crate::convert::tests::{settled, there, world};
    use crate::watch::{Fact, Seen};
    use scheduler_core::Event;
    use scheduler_core::model::{Attachment, Node, Operator, Pod};
    use serde_json::{Value, json};

    fn node_of(events: &[Event]) -> Option<&Node> {
        match events {
            [Event::Node(node)] => Some(node),
            [] => None,
            _ => panic!("{events:?}"),
        }
    }

    fn limit(events: &[Event]) -> Option<u64> {
        let name = Attachment::limit_of("disk.example.com");
        node_of(events)?.extended.get(&name).copied()
    }

    fn csi_node(count: Option<i32>) -> Fact {
        let driver =
            json!({"name": "disk.example.com", "nodeID": "n1", "allocatable": {"count": count}});
        Fact::CsiNode(there(
            json!({"metadata": {"name": "n1"}, "spec": {"drivers": [driver]}}),
        ))
    }

    fn node(cpu: &str) -> Fact {
        Fact::Node(there(json!({"metadata": {"name": "n1", "uid": "n1"},
            "status": {"allocatable": {"cpu": cpu, "pods": "10"}}})))
    }

    #[test]
    fn a_node_has_the_limits_of_its_drivers_whichever_is_seen_first() {
        let mut world = world().with_storage_listed();
        assert!(world.take(csi_node(Some(25))).is_empty(), "no node yet");
        assert_eq!(limit(&world.take(node("4"))), Some(25));
        assert!(world.take(csi_node(Some(25))).is_empty(), "no news");
        assert_eq!(limit(&world.take(csi_node(Some(3)))), Some(3));
        assert_eq!(limit(&world.take(node("5"))), Some(3));
        // A driver without a limit, and one that has left the node.
        let events = world.take(csi_node(None));
        assert!(node_of(&events).is_some() && limit(&events).is_none());
        world.take(csi_node(Some(3)));
        world.take(Fact::CsiNode(Seen::Listing));
        let events = world.take(Fact::CsiNode(Seen::Listed));
        assert!(node_of(&events).is_some() && limit(&events).is_none());
    }

    fn class(world: &mut World) {
        let class = json!({"metadata": {"name": "late"}, "provisioner": "disk.example.com",
            "volumeBindingMode": "WaitForFirstConsumer"});
        world.take(Fact::Storage(there(class)));
    }

    fn claim(more: Value) -> Fact {
        let mut claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "uid-c"},
            "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}}}});
        json_patch::merge(&mut claim, &more);
        Fact::Claim(there(claim))
    }

    fn user(scheduler: &str, node: Option<&str>) -> Fact {
        Fact::Pod(there(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"schedulerName": scheduler, "nodeName": node, "containers": [{"name": "main"}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"phase": if node.is_some() { "Running" } else { "Pending" }}})))
    }

    fn pod_of(events: &[Event]) -> Option<&Pod> {
        events.iter().find_map(|event| match event {
            Event::Pod(pod) => Some(&**pod),
            _ => None,
        })
    }

    #[test]
    fn volumes_of_every_schedulers_pods_count_where_their_driver_has_a_limit() {
        for (scheduler, at) in [("default-scheduler", Some("n1")), ("kai-scheduler", None)] {
            let mut world = world().with_storage_listed();
            class(&mut world);
            settled(&mut world, claim(json!({})));
            let events = settled(&mut world, user(scheduler, at));
            assert!(pod_of(&events).unwrap().attachments.is_empty(), "no limit");
            settled(&mut world, csi_node(Some(25)));
            let events = settled(&mut world, user(scheduler, at));
            let [one] = pod_of(&events).unwrap().attachments.as_slice() else {
                panic!("{events:?}");
            };
            assert_eq!((&*one.driver, &*one.claim), ("disk.example.com", "ns/c"));
            // The volume says for itself whose it is; its claim was not bound before.
            let volume = json!({"metadata": {"name": "pv"}, "spec": {"csi": {"driver": "other", "volumeHandle": "h"}}});
            settled(&mut world, Fact::Volume(there(volume)));
            let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                "spec": {"volumeName": "pv"}});
            let events = settled(&mut world, claim(bound));
            assert!(
                pod_of(&events).unwrap().attachments.is_empty(),
                "{events:?}"
            );
        }
    }

    #[test]
    fn a_claim_of_one_pod_at_a_time_is_in_use_as_long_as_any_schedulers_pod_is_there() {
        let mut world = world().with_storage_listed();
        class(&mut world);
        let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]}});
        world.take(Fact::Volume(there(json!({"metadata": {"name": "pv"}}))));
        world.take(claim(bound));
        for scheduler in ["default-scheduler", "kai-scheduler"] {
            let events = world.take(user(scheduler, Some("n1")));
            let [claim] = pod_of(&events).unwrap().claims.as_slice() else {
                panic!("{events:?}");
            };
            assert!(
                claim.exclusive && claim.bound && claim.wants.is_none(),
                "{claim:?}"
            );
        }
    }

    #[test]
    fn a_pod_goes_where_its_volume_can_be_provisioned_and_waits_where_it_cannot() {
        let mut world = world().with_storage_listed();
        class(&mut world);
        settled(&mut world, claim(json!({})));
        let room = |name: &str, size: &str, zone: &str| {
            let nodes = json!({"matchLabels": {"zone": zone}});
            Fact::CsiCapacity(there(
                json!({"metadata": {"name": name, "namespace": "csi"},
                "storageClassName": "late", "capacity": size, "nodeTopology": nodes}),
            ))
        };
        settled(&mut world, room("a", "20Gi", "a"));
        let events = settled(&mut world, user("kai-scheduler", None));
        assert_eq!(
            pod_of(&events).unwrap().nodes.terms,
            None,
            "its driver says nothing"
        );
        let driver =
            json!({"metadata": {"name": "disk.example.com"}, "spec": {"storageCapacity": true}});
        let zones = |events: &[Event]| {
            let terms = pod_of(events)?.nodes.terms.as_ref()?;
            let [term] = terms.as_slice() else {
                panic!("{terms:?}")
            };
            match &term.labels[0].operator {
                Operator::In(zones) => Some(zones.join(" ")),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(
            zones(&settled(&mut world, Fact::CsiDriver(there(driver)))).unwrap(),
            "a"
        );
        assert_eq!(
            zones(&settled(&mut world, room("b", "10Gi", "b"))).unwrap(),
            "a b"
        );
        // As much as before for this claim; then too little.
        assert!(settled(&mut world, room("b", "11Gi", "b")).is_empty());
        assert_eq!(
            zones(&settled(&mut world, room("b", "9Gi", "b"))).unwrap(),
            "a"
        );
        let events = settled(&mut world, room("a", "9Gi", "a"));
        let why = pod_of(&events).unwrap().unsupported.join(" ");
        assert!(why.contains("did not have enough free storage"), "{why}");
        let largest = json!({"metadata": {"name": "a", "namespace": "csi"}, "storageClassName": "late",
            "capacity": "1Ti", "maximumVolumeSize": "9Gi", "nodeTopology": {}});
        assert!(
            world
                .take(Fact::CsiCapacity(there(largest.clone())))
                .is_empty()
        );
        let mut everywhere = largest;
        everywhere["maximumVolumeSize"] = json!(null);
        let events = settled(&mut world, Fact::CsiCapacity(there(everywhere)));
        assert_eq!(pod_of(&events).unwrap().nodes.terms, None);
        settled(&mut world, Fact::CsiCapacity(Seen::Listing));
        let events = settled(&mut world, Fact::CsiCapacity(Seen::Listed));
        assert!(
            !pod_of(&events).unwrap().unsupported.is_empty(),
            "{events:?}"
        );
    }
}
