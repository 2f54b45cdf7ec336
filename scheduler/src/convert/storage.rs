//! What is remembered of claims, volumes and storage classes, and of the pods that wait
//! with some.

use super::csi::{CapacityChange, Csi};
use super::listing::Listing;
use super::recheck::Due;
use super::volume::{Storage, VolumeTerms, claims};
use crate::stored_pod::StoredPod;
use crate::watch::{Key as _, Seen};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod as KubePod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use kube::ResourceExt as _;
use scheduler_core::Event;
use scheduler_core::ids::PodUid;
use scheduler_core::model::{Phase, Pod};
use std::collections::{BTreeMap, BTreeSet};

/// A pod that waits with volumes.
#[derive(Debug)]
struct User {
    pod: StoredPod,
    /// Namespace and name of each of its claims.
    claims: Vec<String>,
    /// The terms of its volumes when the pod was looked at last.
    say: VolumeTerms,
}

/// Pods that are looked at again when what their volumes say may have changed.
#[derive(Debug, Default)]
struct Users {
    /// The pods, by UID.
    pods: BTreeMap<String, User>,
    /// UIDs by the namespace and name of a claim.
    by_claim: BTreeMap<String, BTreeSet<String>>,
}

impl Users {
    fn insert(&mut self, uid: &str, pod: &KubePod, say: VolumeTerms) {
        let claims: Vec<String> = names(pod).collect();
        for claim in &claims {
            let users = self.by_claim.entry(claim.clone()).or_default();
            users.insert(uid.to_owned());
        }
        let pod = StoredPod::of(pod);
        let user = User { pod, claims, say };
        self.pods.insert(uid.to_owned(), user);
    }

    fn remove(&mut self, uid: &str) {
        let Some(user) = self.pods.remove(uid) else {
            return;
        };
        for claim in &user.claims {
            if let Some(users) = self.by_claim.get_mut(claim) {
                users.remove(uid);
                if users.is_empty() {
                    self.by_claim.remove(claim);
                }
            }
        }
    }
}

/// Namespace and name of the pod's claims.
fn names(pod: &KubePod) -> impl Iterator<Item = String> {
    let namespace = pod.namespace().unwrap_or_default();
    let claims = claims(pod).into_iter();
    claims.map(move |(claim, _)| format!("{namespace}/{claim}"))
}

/// Of storage.
#[derive(Debug, Default)]
pub(super) struct StorageObjects {
    storage: Storage,
    claims: Listing,
    volumes: Listing,
    classes: Listing,
    /// True if some of these kinds are not listed, so that no pod's volumes keep it from a node.
    pub(super) unread: bool,
    /// Pods of ours that wait, and all pods with a place whose claims are not seen to be bound.
    users: Users,
}

impl StorageObjects {
    pub(super) fn rolls(&self) -> [(&Listing, &'static str); 6] {
        let csi = &self.storage.csi;
        [
            (&self.claims, "persistentvolumeclaims"),
            (&self.volumes, "persistentvolumes"),
            (&self.classes, "storageclasses"),
            (&csi.nodes, "csinodes"),
            (&csi.drivers, "csidrivers"),
            (&csi.capacities, "csistoragecapacities"),
        ]
    }

    /// Counts each of these kinds as listed.
    pub(super) fn all_listed(&mut self) {
        let csi = &mut self.storage.csi;
        for roll in [
            &mut self.claims,
            &mut self.volumes,
            &mut self.classes,
            &mut csi.nodes,
            &mut csi.drivers,
            &mut csi.capacities,
        ] {
            roll.listed = true;
        }
    }

    fn is_listed(&self) -> bool {
        self.rolls().iter().all(|(roll, _)| roll.listed)
    }

    pub(super) fn csi(&mut self) -> &mut Csi {
        &mut self.storage.csi
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.users.remove(uid);
    }

    /// The pod, if its volumes say something else than when it was looked at last.
    pub(super) fn changed(&self, uid: &str) -> Option<KubePod> {
        let user = self.users.pods.get(uid)?;
        let pod = user.pod.load();
        (self.say(&pod) != user.say.as_found()).then_some(pod)
    }

    /// Returns the terms that the volumes of a pod set.
    fn say(&self, pod: &KubePod) -> VolumeTerms {
        let mut say = self.storage.of(pod);
        if self.unread {
            say.against.clear();
            say.provisions.clear();
        }
        say
    }

    /// The volume that a claim names.
    fn named(&self, claim: &str) -> Option<String> {
        let (namespace, name) = claim.split_once('/')?;
        self.storage.volume_of(namespace, name)
    }

    fn tell<'a>(&mut self, volumes: impl Iterator<Item = &'a String>) -> Vec<Event> {
        volumes
            .filter_map(|volume| self.storage.tell(volume))
            .collect()
    }

    /// Where the pod's volumes let it go, if it waits; and its claims, as long as they are not
    /// seen to be bound: until then the core keeps what it has given them.
    pub(super) fn narrow(&mut self, pod: &KubePod, converted: &mut Pod) {
        let uid = converted.uid.as_str();
        self.users.remove(uid);
        let waits = converted.phase == Phase::Pending;
        let is_placed = !matches!(
            converted.phase,
            Phase::Pending | Phase::Releasing(None) | Phase::Succeeded | Phase::Failed
        );
        let waits = waits && converted.ours;
        if !(waits || is_placed) || claims(pod).is_empty() {
            return;
        }
        let mut say = self.say(pod);
        converted.attachments = say.attachments.iter().cloned().collect();
        converted.claims.clone_from(&say.claims);
        if !converted.ours {
            // The scheduler that placed it binds them.
            converted.claims.retain(|claim| claim.exclusive);
        }
        if waits {
            say.narrow(&mut converted.nodes);
            converted.unsupported.extend(say.against.iter().cloned());
        }
        if waits || say.is_open {
            self.users.insert(uid, pod, say);
        }
    }

    /// Returns why the pod's volumes rule out every node. `None`: they do not.
    pub(super) fn against(&self, pod: &PodUid) -> Option<String> {
        let say = &self.users.pods.get(pod.as_str())?.say;
        (!say.against.is_empty()).then(|| say.against.join(", "))
    }

    pub(super) fn claim(&mut self, seen: Seen<PersistentVolumeClaim>) -> Due {
        self.claims.note(&seen);
        match seen {
            Seen::There(claim) => {
                let name = claim.key();
                let before = self.named(&name);
                if !self.storage.claim(&claim) {
                    return Due::default();
                }
                let volumes = [before, self.named(&name)];
                let events = self.tell(volumes.iter().flatten());
                Due {
                    later: self.users_of(&name),
                    events,
                    ..Due::default()
                }
            }
            Seen::Gone(name) => {
                let volume = self.named(&name);
                if let Some((namespace, name)) = name.split_once('/') {
                    self.storage.claim_gone(namespace, name);
                }
                let events = self.tell(volume.iter());
                Due {
                    later: self.users_of(&name),
                    events,
                    ..Due::default()
                }
            }
            Seen::Listing => Due::default(),
            Seen::Listed => self.all_users(),
        }
    }

    pub(super) fn volume(&mut self, seen: Seen<PersistentVolume>) -> Due {
        self.volumes.note(&seen);
        let name = match seen {
            Seen::There(volume) => {
                let name = volume.key();
                self.storage.volume(*volume);
                name
            }
            Seen::Gone(name) => {
                self.storage.volume_gone(&name);
                name
            }
            Seen::Listing => return Due::default(),
            Seen::Listed => return self.all_users(),
        };
        Due {
            later: self.users_if(|say| say.uses(&name)),
            events: self.tell([&name].into_iter()),
            ..Due::default()
        }
    }

    pub(super) fn class(&mut self, seen: Seen<StorageClass>) -> Due {
        self.classes.note(&seen);
        let is_news = match seen {
            Seen::There(class) => self.storage.class(&class),
            Seen::Gone(name) => {
                self.storage.class_gone(&name);
                true
            }
            Seen::Listing => false,
            Seen::Listed => return self.all_users(),
        };
        self.all_later(is_news)
    }

    pub(super) fn csi_driver(&mut self, seen: Seen<CSIDriver>) -> Due {
        let is_over = matches!(seen, Seen::Listed);
        let is_news = self.csi().driver(seen);
        if is_over {
            return self.all_users();
        }
        self.all_later(is_news)
    }

    pub(super) fn csi_capacity(&mut self, seen: Seen<CSIStorageCapacity>) -> Due {
        let is_over = matches!(seen, Seen::Listed);
        let change = self.csi().capacity(seen);
        if is_over {
            return self.all_users();
        }
        let concerns = |change: CapacityChange| {
            self.users_if(|say| say.provisions.iter().any(|wants| change.concerns(wants)))
        };
        Due {
            later: change.map(concerns).unwrap_or_default(),
            ..Due::default()
        }
    }

    fn all_later(&self, is_news: bool) -> Due {
        Due {
            later: self.users_if(|_| is_news),
            ..Due::default()
        }
    }

    /// Pods that use this claim. Nothing is decided before all is listed, and the last listing looks at
    /// all of them.
    fn users_of(&self, claim: &str) -> BTreeSet<String> {
        let users = self.users.by_claim.get(claim).filter(|_| self.is_listed());
        users.cloned().unwrap_or_default()
    }

    /// Pods for which `which` holds.
    fn users_if(&self, which: impl Fn(&VolumeTerms) -> bool) -> BTreeSet<String> {
        let users = self.users.pods.iter().filter(|_| self.is_listed());
        let users = users.filter(|(_, user)| which(&user.say));
        users.map(|(uid, _)| uid.clone()).collect()
    }

    /// A listing is over: all who are another case now.
    pub(super) fn all_users(&self) -> Due {
        let users = self.users.pods.keys().filter(|_| self.is_listed());
        Due {
            now: users.filter_map(|uid| self.changed(uid)).collect(),
            ..Due::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::tests::{gone, pod, settled, there, world};
    use crate::watch::Fact;
    use serde_json::{Value, json};

    /// The events about volumes: which claim each is kept for, or that it is gone.
    fn told(events: &[Event]) -> Vec<String> {
        let told = events.iter().filter_map(|event| match event {
            Event::Volume(volume) => Some(match &volume.kept_for {
                None => format!("{} is free", volume.name),
                Some(claim) => format!("{} is kept for {}", volume.name, claim.name),
            }),
            Event::VolumeGone(name) => Some(format!("{name} is gone")),
            _ => None,
        });
        told.collect()
    }

    /// How many claims a pod's event has that are bound where it goes.
    fn claims_told(events: &[Event]) -> Option<usize> {
        events.iter().rev().find_map(|event| match event {
            Event::Pod(pod) => Some(pod.claims.len()),
            _ => None,
        })
    }

    #[test]
    fn a_pod_is_looked_at_again_when_its_claims_are_and_only_then() {
        let mut world = world().with_storage_listed();
        let mut pod = pod("u1", None, 0);
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        let uid = PodUid::new("u1");
        settled(&mut world, Fact::Pod(there(pod)));
        assert_eq!(
            world.volumes_against(&uid).as_deref(),
            Some("persistentvolumeclaim \"c\" not found")
        );
        let class = json!({"metadata": {"name": "late"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"});
        assert_eq!(settled(&mut world, Fact::Storage(there(class))).len(), 0);
        let claim = |name: &str| json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"storageClassName": "late"}});
        assert_eq!(
            settled(&mut world, Fact::Claim(there(claim("other")))).len(),
            0
        );
        let events = settled(&mut world, Fact::Claim(there(claim("c"))));
        assert!(
            matches!(events.as_slice(), [Event::Pod(pod)] if pod.unsupported.is_empty()),
            "{events:?}"
        );
        assert!(
            matches!(events.as_slice(), [Event::Pod(pod)] if &*pod.claims[0].name == "ns/c"),
            "{events:?}"
        );
        settled(&mut world, Fact::Claim(gone(claim("c"))));
        assert!(world.volumes_against(&uid).is_some());
        settled(
            &mut world,
            Fact::Pod(gone(json!({"metadata": {"uid": "u1"}}))),
        );
        assert_eq!(settled(&mut world, Fact::Claim(there(claim("c")))).len(), 0);
    }

    /// What the core has given to a claim it keeps until the claim is seen to be bound, also when
    /// the pod is seen bound first.
    #[test]
    fn a_claim_is_the_pods_until_it_is_seen_bound_and_a_volume_is_offered_until_it_is() {
        let mut world = world().with_storage_listed();
        let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer"});
        settled(&mut world, Fact::Storage(there(class)));
        let volume = |more: Value| {
            let mut volume = json!({"metadata": {"name": "pv"}, "status": {"phase": "Available"},
                "spec": {"storageClassName": "local", "capacity": {"storage": "2Gi"}}});
            json_patch::merge(&mut volume, &more);
            Fact::Volume(there(volume))
        };
        assert_eq!(
            told(&settled(&mut world, volume(json!({})))),
            ["pv is free"]
        );
        let own = json!({"spec": {"storageClassName": "local", "resources": {"requests": {"storage": "1Gi"}}}});
        let claim = |more: Value| {
            let mut claim = own.clone();
            claim["metadata"] = json!({"name": "c", "namespace": "ns", "uid": "uid-c"});
            json_patch::merge(&mut claim, &more);
            Fact::Claim(there(claim))
        };
        settled(&mut world, claim(json!({})));
        let mut pod = pod("u1", None, 0);
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        assert_eq!(
            claims_told(&settled(&mut world, Fact::Pod(there(pod.clone())))),
            Some(1)
        );
        // The pod's watch is ahead of the volume's and the claim's.
        pod["spec"]["nodeName"] = json!("n1");
        assert_eq!(
            claims_told(&settled(&mut world, Fact::Pod(there(pod.clone())))),
            Some(1)
        );
        pod["status"]["phase"] = json!("Running");
        assert_eq!(
            claims_told(&settled(&mut world, Fact::Pod(there(pod)))),
            Some(1)
        );
        let kept = json!({"claimRef": {"namespace": "ns", "name": "c", "uid": "uid-c"}});
        let events = settled(&mut world, volume(json!({ "spec": kept })));
        assert_eq!(told(&events), ["pv is kept for ns/c"]);
        let named = json!({"spec": {"volumeName": "pv"}});
        assert_eq!(claims_told(&settled(&mut world, claim(named))), Some(0));
        let bound = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv"}});
        assert_eq!(claims_told(&settled(&mut world, claim(bound))), Some(0));
        let named = json!({"spec": {"volumeName": "pv"}});
        assert_eq!(
            claims_told(&settled(&mut world, claim(named))),
            None,
            "looked at again"
        );
        let bound = json!({"spec": kept, "status": {"phase": "Bound"}});
        assert_eq!(told(&settled(&mut world, volume(bound))), ["pv is gone"]);
    }

    /// As a scheduler starts: each pod is looked at once more, not for each of its objects.
    #[test]
    fn pods_that_were_seen_before_their_claims_are_looked_at_once_all_are_known() {
        let mut world = world();
        let mut pod = pod("u1", Some("n1"), 0);
        pod["spec"]["schedulerName"] = json!("default-scheduler");
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        world.take(Fact::Pod(there(pod)));
        let claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "uid-c",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOncePod"]}});
        let volume = json!({"metadata": {"name": "pv"}});
        let rest = [
            Fact::Claim(there(claim)),
            Fact::Volume(there(volume)),
            Fact::Claim(Seen::Listed),
            Fact::Volume(Seen::Listed),
            Fact::Storage(Seen::Listed),
            Fact::CsiNode(Seen::Listed),
            Fact::CsiDriver(Seen::Listed),
        ];
        for fact in rest {
            assert_eq!(world.take(fact), []);
        }
        let events = world.take(Fact::CsiCapacity(Seen::Listed));
        let [Event::Pod(known)] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert!(known.claims[0].exclusive, "{known:?}");
        assert!(
            world.storage.users.pods.is_empty(),
            "there is nothing more to know"
        );
        assert!(world.storage.users.by_claim.is_empty());
    }
}
