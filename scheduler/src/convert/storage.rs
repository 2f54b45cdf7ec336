//! What is remembered of claims, volumes and storage classes, and of the pods that wait
//! with some.

use super::volume::{Say, Storage, Volumes, claims};
use super::{Roll, World};
use crate::watch::Seen;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod as KubePod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use scheduler_core::ids::PodUid;
use scheduler_core::model::{Node, Phase, Pod};
use scheduler_core::{Bind, Event, Outcome, OutcomeResult};
use std::collections::{BTreeMap, BTreeSet};

/// Of storage.
#[derive(Debug, Default)]
pub(super) struct Known {
    storage: Storage,
    claims: Roll,
    volumes: Roll,
    classes: Roll,
    /// Pods of ours that wait and use claims, by UID, and what their volumes say.
    users: BTreeMap<String, (Box<KubePod>, Say)>,
    /// Classes of volumes that were given since others were told.
    given: BTreeSet<String>,
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
        let mut say = self.storage.storage.of(pod, &self.known_nodes);
        say.narrow(&mut converted.nodes);
        converted.unsupported.extend(say.against.iter().cloned());
        self.storage
            .users
            .insert(uid.to_owned(), (Box::new(pod.clone()), say));
    }

    /// What is to be done about the pod's volumes before it is bound; those that it is given
    /// are nobody else's from now on ([`Self::others_told`]). The error says why it cannot go
    /// there.
    pub fn give_volumes(&mut self, bind: &Bind) -> Result<Volumes, String> {
        let Some((_, say)) = self.storage.users.get(bind.pod.as_str()) else {
            return Ok(Volumes::default());
        };
        let given = self
            .storage
            .storage
            .give(say, bind.decision, bind.node.as_str());
        if say.draws() {
            self.storage.given.extend(say.drawn().iter().cloned());
        }
        given
    }

    /// Pods for which volumes that others were given are gone.
    pub fn others_told(&mut self) -> Vec<Event> {
        let given = std::mem::take(&mut self.storage.given);
        if given.is_empty() {
            return Vec::new();
        }
        self.again(|_, say| say.depends(None, &given))
    }

    /// An action ended: volumes that it was to get may be free again.
    pub fn ended(&mut self, outcome: &Outcome) -> Vec<Event> {
        let confirmed = outcome.result == OutcomeResult::Confirmed;
        let supply = &mut self.storage.storage.supply;
        let free = supply.ended(outcome.decision, confirmed);
        if free.is_empty() {
            return Vec::new();
        }
        self.again(|_, say| say.depends(None, &free))
    }

    /// Which volumes the node can use.
    pub(super) fn volumes_reach(&mut self, node: &Node) -> Vec<Event> {
        let news = self.storage.storage.supply.node(node);
        self.drawers(news)
    }

    pub(super) fn volumes_out_of_reach(&mut self, node: &str) -> Vec<Event> {
        let news = self.storage.storage.supply.node_gone(node);
        self.drawers(news)
    }

    fn drawers(&mut self, news: bool) -> Vec<Event> {
        if news {
            self.again(|_, say| say.draws())
        } else {
            Vec::new()
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
        match seen {
            Seen::Listing => {
                known.volumes.begin();
                Vec::new()
            }
            Seen::There(volume) => {
                let name = volume.name_any();
                known.volumes.there(&name);
                let news = known.storage.supply.volume(&volume, &self.known_nodes);
                // While they are listed for the first time nothing is decided: once is enough.
                let Some(classes) = news.filter(|_| known.volumes.listed) else {
                    return Vec::new();
                };
                self.again(|_, say| say.depends(Some(&name), &classes))
            }
            Seen::Gone(volume) => {
                known.volumes.names.remove(&volume.name_any());
                self.volumes_gone(&[volume.name_any()])
            }
            Seen::Listed => {
                let first = !known.volumes.listed;
                let gone = known.volumes.end();
                if first {
                    self.all_users()
                } else {
                    self.volumes_gone(&gone)
                }
            }
        }
    }

    fn volumes_gone(&mut self, gone: &[String]) -> Vec<Event> {
        let supply = &mut self.storage.storage.supply;
        let left = gone.iter().filter_map(|name| supply.volume_gone(name));
        let classes: BTreeSet<String> = left.collect();
        self.again(|_, say| gone.iter().any(|name| say.depends(Some(name), &classes)))
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
        let uses = |pod: &KubePod, _: &Say| {
            let namespace = pod.namespace().unwrap_or_default();
            claims(pod)
                .iter()
                .any(|(claim, _)| names.contains(&format!("{namespace}/{claim}")))
        };
        self.again(uses)
    }

    /// Pods that what was seen of volumes or classes makes another case of.
    fn all_users(&mut self) -> Vec<Event> {
        self.again(|_, _| true)
    }

    fn again(&mut self, which: impl Fn(&KubePod, &Say) -> bool) -> Vec<Event> {
        let users = self.storage.users.values();
        let says_else = |pod: &KubePod, say: &Say| {
            self.storage.storage.of(pod, &self.known_nodes) != say.as_found()
        };
        let due: Vec<KubePod> = users
            .filter(|(pod, say)| which(pod, say) && says_else(pod, say))
            .map(|(pod, _)| (**pod).clone())
            .collect();
        due.into_iter()
            .flat_map(|pod| self.pod_there(pod))
            .collect()
    }
}
