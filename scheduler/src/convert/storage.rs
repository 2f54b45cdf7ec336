//! What is remembered of claims, volumes and storage classes, and of the pods that wait
//! with some.

use super::csi::Csi;
use super::volume::{Say, Storage, claims};
use super::{Roll, World};
use crate::watch::Seen;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod as KubePod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use scheduler_core::Event;
use scheduler_core::ids::PodUid;
use scheduler_core::model::{Phase, Pod};
use std::collections::BTreeMap;

/// Of storage.
#[derive(Debug, Default)]
pub(super) struct Known {
    storage: Storage,
    claims: Roll,
    volumes: Roll,
    classes: Roll,
    /// Pods of ours that wait, and all pods with a place whose claims are not seen to be bound,
    /// by UID, and what their volumes say.
    users: BTreeMap<String, (Box<KubePod>, Say)>,
}

impl Known {
    pub(super) fn rolls(&self) -> [(&Roll, &'static str); 6] {
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

    pub(super) fn csi(&mut self) -> &mut Csi {
        &mut self.storage.csi
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.users.remove(uid);
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
}

impl World {
    /// Where the pod's volumes let it go, if it waits; and its claims, as long as they are not
    /// seen to be bound: until then the core keeps what it has given them.
    pub(super) fn narrow(&mut self, pod: &KubePod, converted: &mut Pod) {
        let uid = converted.uid.as_str();
        self.storage.users.remove(uid);
        let waits = converted.phase == Phase::Pending;
        let is_placed = !matches!(
            converted.phase,
            Phase::Pending | Phase::Releasing(None) | Phase::Succeeded | Phase::Failed
        );
        let waits = waits && converted.ours;
        if !(waits || is_placed) || claims(pod).is_empty() {
            return;
        }
        let mut say = self.storage.storage.of(pod);
        converted.attachments = say.attachments.iter().cloned().collect();
        converted.claims.clone_from(&say.claims);
        if !converted.ours {
            // Whoever placed it binds them.
            converted.claims.retain(|claim| claim.exclusive);
        }
        if waits {
            say.narrow(&mut converted.nodes);
            converted.unsupported.extend(say.against.iter().cloned());
        }
        if waits || say.is_open {
            let user = (Box::new(pod.clone()), say);
            self.storage.users.insert(uid.to_owned(), user);
        }
    }

    /// What its volumes have against every node.
    pub fn volumes_against(&self, pod: &PodUid) -> Option<String> {
        let (_, say) = self.storage.users.get(pod.as_str())?;
        (!say.against.is_empty()).then(|| say.against.join(", "))
    }

    pub(super) fn claim(&mut self, seen: Seen<PersistentVolumeClaim>) -> Vec<Event> {
        let key = |claim: &PersistentVolumeClaim| {
            format!(
                "{}/{}",
                claim.namespace().unwrap_or_default(),
                claim.name_any()
            )
        };
        let known = &mut self.storage;
        match seen {
            Seen::Listing => {
                known.claims.begin();
                Vec::new()
            }
            Seen::There(claim) => {
                let name = key(&claim);
                known.claims.there(&name);
                let before = known.named(&name);
                if !known.storage.claim(&claim) {
                    return Vec::new();
                }
                let volumes = [before, known.named(&name)];
                let mut events = known.tell(volumes.iter().flatten());
                events.extend(self.users_of(&[name]));
                events
            }
            Seen::Gone(claim) => {
                let name = key(&claim);
                known.claims.names.remove(&name);
                self.claims_gone(vec![name])
            }
            Seen::Listed => {
                let gone = known.claims.end();
                self.claims_gone(gone)
            }
        }
    }

    fn claims_gone(&mut self, gone: Vec<String>) -> Vec<Event> {
        let known = &mut self.storage;
        let volumes: Vec<String> = gone.iter().filter_map(|name| known.named(name)).collect();
        for (namespace, name) in gone.iter().filter_map(|name| name.split_once('/')) {
            known.storage.claim_gone(namespace, name);
        }
        let mut events = known.tell(volumes.iter());
        events.extend(self.users_of(&gone));
        events
    }

    pub(super) fn volume(&mut self, seen: Seen<PersistentVolume>) -> Vec<Event> {
        let known = &mut self.storage;
        match seen {
            Seen::Listing => {
                known.volumes.begin();
                Vec::new()
            }
            Seen::There(volume) => {
                let name = volume.name_any();
                known.volumes.there(&name);
                known.storage.volume(*volume);
                self.volumes_changed(&[name])
            }
            Seen::Gone(volume) => {
                known.volumes.names.remove(&volume.name_any());
                self.volumes_gone(&[volume.name_any()])
            }
            Seen::Listed => {
                let gone = known.volumes.end();
                self.volumes_gone(&gone)
            }
        }
    }

    fn volumes_gone(&mut self, gone: &[String]) -> Vec<Event> {
        for name in gone {
            self.storage.storage.volume_gone(name);
        }
        self.volumes_changed(gone)
    }

    fn volumes_changed(&mut self, names: &[String]) -> Vec<Event> {
        let mut events = self.storage.tell(names.iter());
        events.extend(self.users_if(|_, say| names.iter().any(|name| say.uses(name))));
        events
    }

    pub(super) fn storage_class(&mut self, seen: Seen<StorageClass>) -> Vec<Event> {
        let known = &mut self.storage;
        let news = match seen {
            Seen::Listing => {
                known.classes.begin();
                false
            }
            Seen::There(class) => {
                known.classes.there(&class.name_any());
                known.storage.class(&class)
            }
            Seen::Gone(class) => {
                known.classes.names.remove(&class.name_any());
                known.storage.class_gone(&class.name_any());
                true
            }
            Seen::Listed => {
                let gone = known.classes.end();
                for name in &gone {
                    known.storage.class_gone(name);
                }
                !gone.is_empty()
            }
        };
        if news {
            self.users_if(|_, _| true)
        } else {
            Vec::new()
        }
    }

    /// Pods that use one of these claims, as they are now.
    fn users_of(&mut self, names: &[String]) -> Vec<Event> {
        let uses = |pod: &KubePod, _: &Say| {
            let namespace = pod.namespace().unwrap_or_default();
            claims(pod)
                .iter()
                .any(|(claim, _)| names.contains(&format!("{namespace}/{claim}")))
        };
        self.users_if(uses)
    }

    /// Of these pods those that what was seen makes another case of.
    pub(super) fn users_if(&mut self, which: impl Fn(&KubePod, &Say) -> bool) -> Vec<Event> {
        let users = self.storage.users.values();
        let says_else = |pod: &KubePod, say: &Say| self.storage.storage.of(pod) != say.as_found();
        let due: Vec<KubePod> = users
            .filter(|(pod, say)| which(pod, say) && says_else(pod, say))
            .map(|(pod, _)| (**pod).clone())
            .collect();
        due.into_iter()
            .flat_map(|pod| self.pod_there(pod))
            .collect()
    }
}
