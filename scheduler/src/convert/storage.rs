//! What is remembered of claims, volumes and storage classes, and of the pods that wait
//! with some.

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
    /// Pods of ours that wait and use claims, by UID, and what their volumes say.
    users: BTreeMap<String, (Box<KubePod>, Say)>,
}

impl Known {
    pub(super) fn rolls(&self) -> [(&Roll, &'static str); 3] {
        [
            (&self.claims, "persistentvolumeclaims"),
            (&self.volumes, "persistentvolumes"),
            (&self.classes, "storageclasses"),
        ]
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.users.remove(uid);
    }
}

impl World {
    /// Where the pod's volumes let it go, if it waits.
    pub(super) fn narrow(&mut self, pod: &KubePod, converted: &mut Pod) {
        let uid = converted.uid.as_str();
        self.storage.users.remove(uid);
        if !converted.ours || converted.phase != Phase::Pending || claims(pod).is_empty() {
            return;
        }
        let mut say = self.storage.storage.of(pod);
        say.narrow(&mut converted.nodes);
        converted.unsupported.extend(say.against.iter().cloned());
        self.storage
            .users
            .insert(uid.to_owned(), (Box::new(pod.clone()), say));
    }

    /// Claims that are to be bound where this pod goes.
    pub fn unbound_claims(&self, pod: &PodUid) -> Vec<String> {
        let user = self.storage.users.get(pod.as_str());
        user.map_or_else(Vec::new, |(_, say)| say.unbound.clone())
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
                if known.storage.claim(&claim) {
                    self.users_of(&[name])
                } else {
                    Vec::new()
                }
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
        for (namespace, name) in gone.iter().filter_map(|name| name.split_once('/')) {
            self.storage.storage.claim_gone(namespace, name);
        }
        self.users_of(&gone)
    }

    pub(super) fn volume(&mut self, seen: Seen<PersistentVolume>) -> Vec<Event> {
        let known = &mut self.storage;
        let news = match seen {
            Seen::Listing => {
                known.volumes.begin();
                false
            }
            Seen::There(volume) => {
                known.volumes.there(&volume.name_any());
                known.storage.volume(&volume)
            }
            Seen::Gone(volume) => {
                known.volumes.names.remove(&volume.name_any());
                known.storage.volume_gone(&volume.name_any());
                true
            }
            Seen::Listed => {
                let gone = known.volumes.end();
                for name in &gone {
                    known.storage.volume_gone(name);
                }
                !gone.is_empty()
            }
        };
        if news { self.all_users() } else { Vec::new() }
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
        if news { self.all_users() } else { Vec::new() }
    }

    /// Pods that use one of these claims, as they are now.
    fn users_of(&mut self, names: &[String]) -> Vec<Event> {
        let uses = |pod: &KubePod| {
            let namespace = pod.namespace().unwrap_or_default();
            claims(pod)
                .iter()
                .any(|(claim, _)| names.contains(&format!("{namespace}/{claim}")))
        };
        self.again(uses)
    }

    /// Pods that what was seen of volumes or classes makes another case of.
    fn all_users(&mut self) -> Vec<Event> {
        self.again(|_| true)
    }

    fn again(&mut self, which: impl Fn(&KubePod) -> bool) -> Vec<Event> {
        let users = self.storage.users.values();
        let due: Vec<KubePod> = users
            .filter(|(pod, say)| which(pod) && self.storage.storage.of(pod) != say.as_found())
            .map(|(pod, _)| (**pod).clone())
            .collect();
        due.into_iter()
            .flat_map(|pod| self.pod_there(pod))
            .collect()
    }
}
