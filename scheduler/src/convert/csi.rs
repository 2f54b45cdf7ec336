//! What CSI drivers can do for which nodes: how many volumes they attach to a node at most
//! (`CSINode`), and how much they can still provision there (`CSIStorageCapacity`, where the
//! `CSIDriver` says that it publishes that).

use super::listing::Listing;
use crate::watch::{Key as _, Seen, limits};
use api::quantity;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity};
use scheduler_core::ids::ResourceName;
use scheduler_core::model::{Attachment, Node, NodeTerm, Operator, Requirement};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Csi {
    pub nodes: Listing,
    pub drivers: Listing,
    pub capacities: Listing,
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

    /// Takes in the drivers of a node. Returns the limits that the node had, by its name, where they are
    /// others now.
    pub(super) fn node(
        &mut self,
        seen: Seen<CSINode>,
    ) -> Option<(String, BTreeMap<ResourceName, u64>)> {
        self.nodes.note(&seen);
        let (name, limits) = match seen {
            Seen::There(node) => {
                let limits = limits(&node);
                let drivers = node.spec.drivers.iter();
                let limited =
                    drivers.filter(|one| limits.contains_key(&Attachment::limit_of(&one.name)));
                self.limited.extend(limited.map(|one| one.name.clone()));
                (node.key(), limits)
            }
            Seen::Gone(name) => (name, BTreeMap::new()),
            Seen::Listing | Seen::Listed => return None,
        };
        let before = self.limits.remove(&name).unwrap_or_default();
        let is_same = before == limits;
        if !limits.is_empty() {
            self.limits.insert(name.clone(), limits);
        }
        (!is_same).then_some((name, before))
    }

    /// Takes in a driver. Returns whether it publishes what it can provision, or no longer does.
    pub(super) fn driver(&mut self, seen: Seen<CSIDriver>) -> bool {
        self.drivers.note(&seen);
        match seen {
            Seen::There(driver) if driver.spec.storage_capacity == Some(true) => {
                self.publishing.insert(driver.key())
            }
            Seen::There(driver) => self.publishing.remove(&driver.key()),
            Seen::Gone(name) => self.publishing.remove(&name),
            Seen::Listing | Seen::Listed => false,
        }
    }

    /// Takes in a line about what can be provisioned.
    pub(super) fn capacity(&mut self, seen: Seen<CSIStorageCapacity>) -> Option<CapacityChange> {
        self.capacities.note(&seen);
        match seen {
            Seen::There(object) => {
                let class = object.storage_class_name.clone();
                let (key, new) = (object.key(), capacity(&object));
                let of_class = self.rooms.entry(class.clone()).or_default();
                let old = match new.clone() {
                    Some(new) => of_class.insert(key, new),
                    None => of_class.remove(&key),
                };
                self.rooms.retain(|_, of_class| !of_class.is_empty());
                Some(CapacityChange { class, old, new })
            }
            Seen::Gone(key) => {
                let mut classes = self.rooms.iter_mut();
                let (class, old) = classes
                    .find_map(|(class, of_class)| Some((class.clone(), of_class.remove(&key)?)))?;
                self.rooms.retain(|_, of_class| !of_class.is_empty());
                let (old, new) = (Some(old), None);
                Some(CapacityChange { class, old, new })
            }
            Seen::Listing | Seen::Listed => None,
        }
    }
}

/// A line about what can be provisioned of a class, before and after a change.
#[derive(Debug)]
pub(super) struct CapacityChange {
    class: String,
    old: Option<StorageCapacity>,
    new: Option<StorageCapacity>,
}

impl CapacityChange {
    /// Whether a claim that wants so much may notice.
    pub(super) fn concerns(&self, wants: &Provision) -> bool {
        let enough = |room: &&StorageCapacity| room.most >= wants.size;
        let nodes = |room: &Option<StorageCapacity>| {
            room.as_ref().filter(enough).map(|one| one.nodes.clone())
        };
        wants.class == self.class && nodes(&self.old) != nodes(&self.new)
    }
}

/// `None`: nothing can be provisioned. A selector that cannot be read selects no node.
fn capacity(object: &CSIStorageCapacity) -> Option<StorageCapacity> {
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
        let events = world.take(Fact::CsiNode(Seen::Gone("n1".into())));
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
        let gone = Seen::Gone("csi/a".into());
        let events = settled(&mut world, Fact::CsiCapacity(gone));
        assert!(
            !pod_of(&events).unwrap().unsupported.is_empty(),
            "{events:?}"
        );
    }
}
