//! Makes a pod group, or brings it to what it should be; stamps it.
//!
//! One write of a group after the other. A stamp of a group that is still to be made is a part
//! of what is made.
//!
//! The API server's admission policies decide whether a group may exist: they may restrict the
//! queues of a namespace, for example. A group that was created shows that others like it are
//! admitted too, so only the first of them is waited for. An update shows nothing of the kind: a
//! policy may check the queue only where an update changes it.

use super::write;
use crate::act::answer::{self, Answer};
use crate::lock::locked;
use api::PodGroup;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

/// Times that a change is computed anew because another came between.
const TRIES: usize = 4;
/// Groups remembered beyond those are forgotten: then they are read again.
const KEPT: usize = 4096;

/// Why a group is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GroupError {
    /// Refused, or no answer; it is tried again.
    #[error("its pod group {name} cannot be written: {why}")]
    Unwritten {
        /// Of the group.
        name: String,
        /// What the API server said.
        why: String,
    },
}

/// How a group came to be as it should be.
#[derive(Debug)]
enum Written {
    /// The API server accepted it as a new object.
    Created,
    /// It existed already, and was changed where that was needed.
    Existed,
}

/// Why a write did not come about.
#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    NoAnswer(String),
}

/// What is known of a group; its first field is held while it is written.
#[derive(Debug, Default)]
struct Slot {
    /// What was last written.
    written: tokio::sync::Mutex<Option<PodGroup>>,
    stamps: Mutex<Stamps>,
}

/// Annotations that are written with the group, as long as somebody is going to make it.
#[derive(Debug, Default)]
struct Stamps {
    /// For which pods, by UID. None once the group was made.
    expected: BTreeSet<String>,
    pairs: BTreeMap<String, String>,
}

impl Slot {
    /// The same of a group that is not there; nothing where nobody is going to make it.
    fn unwritten(&self) -> Option<Arc<Self>> {
        let mut stamps = self.stamps();
        (!stamps.expected.is_empty()).then(|| {
            Arc::new(Self {
                written: tokio::sync::Mutex::default(),
                stamps: Mutex::new(std::mem::take(&mut stamps)),
            })
        })
    }

    fn stamps(&self) -> std::sync::MutexGuard<'_, Stamps> {
        locked(&self.stamps)
    }
}

/// What a policy may judge a group by: groups that agree in it are taken or refused alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Like {
    namespace: String,
    queue: Option<String>,
    class: Option<String>,
    preemptibility: Option<String>,
    owners: Vec<(String, String)>,
}

impl Like {
    fn of(group: &PodGroup) -> Self {
        let owners = group.owner_references().iter();
        Self {
            namespace: group.namespace().unwrap_or_default(),
            queue: group.spec.queue.clone(),
            class: group.spec.priority_class_name.clone(),
            preemptibility: group.spec.preemptibility.clone(),
            owners: owners
                .map(|owner| (owner.api_version.clone(), owner.kind.clone()))
                .collect(),
        }
    }
}

/// Namespace and name.
pub(super) type Key = (String, String);

#[derive(Debug, Default)]
struct Slots {
    by_key: HashMap<Key, Arc<Slot>>,
    /// So many, and what is not needed is forgotten.
    sweep_at: usize,
}

/// The groups that were written here.
pub(crate) struct Groups {
    client: Client,
    slots: Mutex<Slots>,
    /// Groups like those were created, and none was refused since.
    taken: Mutex<HashSet<Like>>,
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = &locked(&self.slots).by_key;
        f.debug_struct("Groups")
            .field("slots", slots)
            .finish_non_exhaustive()
    }
}

impl Groups {
    /// None yet.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            slots: Mutex::default(),
            taken: Mutex::default(),
        }
    }

    /// [`Groups::ensure`] will be called for this pod: until then the group's stamps wait for it.
    pub(super) fn expect(&self, namespace: &str, name: &str, pod: &str) {
        let slot = self.slot(namespace, name);
        slot.stamps().expected.insert(pod.to_owned());
    }

    /// It will not be called for this pod, or has been: stamps wait for others at most.
    pub(super) fn unexpect(&self, namespace: &str, name: &str, pod: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(slot) = locked(&self.slots).by_key.get(&key) {
            slot.stamps().expected.remove(pod);
        }
    }

    /// It is known to be there as `wanted`.
    pub(super) fn is_written(&self, wanted: &PodGroup) -> bool {
        let (namespace, name) = key(wanted);
        let slot = self.slot(&namespace, &name);
        let written = slot.written.try_lock();
        written.is_ok_and(|written| written.as_ref() == Some(wanted))
    }

    /// The API server created one like it, and has refused none since.
    pub(super) fn is_taken(&self, wanted: &PodGroup) -> bool {
        locked(&self.taken).contains(&Like::of(wanted))
    }

    fn judged(&self, wanted: &PodGroup, taken: bool) {
        let mut all = locked(&self.taken);
        if all.len() >= KEPT {
            all.clear();
        }
        if taken {
            all.insert(Like::of(wanted));
        } else {
            all.remove(&Like::of(wanted));
        }
    }

    /// The group is there afterwards, as `wanted`; written once however many pods want it.
    pub(super) async fn ensure(&self, wanted: &PodGroup) -> Result<(), GroupError> {
        let (namespace, name) = key(wanted);
        let slot = self.slot(&namespace, &name);
        let mut written = slot.written.lock().await;
        let mut with = BTreeMap::new();
        if written.as_ref() != Some(wanted) {
            let known = written.take().is_some();
            with = slot.stamps().pairs.clone();
            let mut stamped = wanted.clone();
            stamped.annotations_mut().extend(with.clone());
            let result = self.write(&namespace, &name, &stamped, known).await;
            match &result {
                Ok(Written::Created) => self.judged(wanted, true),
                Err(Unwritten::Refused(_)) => self.judged(wanted, false),
                Ok(Written::Existed) | Err(Unwritten::NoAnswer(_)) => {}
            }
            result.map_err(|error| GroupError::Unwritten {
                name: name.clone(),
                why: error.to_string(),
            })?;
            *written = Some(wanted.clone());
        }
        let late = {
            // The one that new stamps go to: it is another where the group was forgotten since.
            let slot = self.slot(&namespace, &name);
            let mut stamps = slot.stamps();
            stamps.expected.clear();
            let mut all = std::mem::take(&mut stamps.pairs);
            all.retain(|key, value| with.get(key) != Some(value));
            all
        };
        for (key, value) in late {
            self.patch(&namespace, &name, &key, Some(&value)).await;
        }
        Ok(())
    }

    /// Sets an annotation of a group, or takes it away. A group that is not there has none.
    pub(crate) async fn stamp(&self, namespace: &str, name: &str, key: &str, value: Option<&str>) {
        let slot = self.slot(namespace, name);
        {
            let mut stamps = slot.stamps();
            if !stamps.expected.is_empty() {
                let key = key.to_owned();
                match value {
                    Some(value) => stamps.pairs.insert(key, value.to_owned()),
                    None => stamps.pairs.remove(&key),
                };
                return;
            }
        }
        let _one_at_a_time = slot.written.lock().await;
        self.patch(namespace, name, key, value).await;
    }

    async fn patch(&self, namespace: &str, name: &str, key: &str, value: Option<&str>) {
        let api: Api<PodGroup> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let params = PatchParams::default();
        match answer::of(api.patch_metadata(name, &params, &patch)).await {
            Answer::Done(_) | Answer::Refused(404, _) => {}
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                tracing::warn!(group = %format!("{namespace}/{name}"), key, why, "an annotation is not written");
            }
        }
    }

    /// It is gone: who wants it makes it anew.
    pub(super) fn forget(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let slots = &mut locked(&self.slots).by_key;
        let kept = slots.remove(&key).and_then(|slot| slot.unwritten());
        slots.extend(kept.map(|slot| (key, slot)));
    }

    /// Any may be gone.
    pub(super) fn forget_all(&self) {
        let slots = &mut locked(&self.slots).by_key;
        let old = std::mem::take(slots).into_iter();
        slots.extend(old.filter_map(|(key, slot)| Some((key, slot.unwritten()?))));
    }

    fn slot(&self, namespace: &str, name: &str) -> Arc<Slot> {
        let mut slots = locked(&self.slots);
        if slots.by_key.len() >= slots.sweep_at.max(KEPT) {
            // Who holds a slot keeps it; a second one for the same group does no harm.
            slots
                .by_key
                .retain(|_, slot| !slot.stamps().expected.is_empty());
            slots.sweep_at = 2 * slots.by_key.len();
        }
        let key = (namespace.to_owned(), name.to_owned());
        Arc::clone(slots.by_key.entry(key).or_default())
    }

    async fn write(
        &self,
        namespace: &str,
        name: &str,
        wanted: &PodGroup,
        known: bool,
    ) -> Result<Written, Unwritten> {
        let api: Api<PodGroup> = Api::namespaced(self.client.clone(), namespace);
        let mut why = String::new();
        // What was written before is most likely there still.
        let mut make = !known;
        for _ in 0..TRIES {
            if make {
                match answer::of(api.create(&PostParams::default(), wanted)).await {
                    Answer::Done(_) => return Ok(Written::Created),
                    Answer::Refused(409, said) => why = said,
                    Answer::Refused(_, said) => return Err(Unwritten::Refused(said)),
                    Answer::Busy(said) | Answer::Unknown(said) => {
                        return Err(Unwritten::NoAnswer(said));
                    }
                }
            }
            let found = match answer::of(api.get_opt(name)).await {
                Answer::Done(Some(found)) => found,
                Answer::Done(None) => {
                    make = true;
                    continue;
                }
                Answer::Refused(_, said) | Answer::Busy(said) | Answer::Unknown(said) => {
                    return Err(Unwritten::NoAnswer(said));
                }
            };
            make = false;
            let Some(change) = write::change(&found, wanted) else {
                return Ok(Written::Existed);
            };
            let params = PatchParams::default();
            match answer::of(api.patch_metadata(name, &params, &Patch::Merge(change))).await {
                Answer::Done(_) => return Ok(Written::Existed),
                Answer::Refused(404 | 409, said) => why = said,
                Answer::Refused(_, said) => return Err(Unwritten::Refused(said)),
                Answer::Busy(said) | Answer::Unknown(said) => {
                    return Err(Unwritten::NoAnswer(said));
                }
            }
        }
        Err(Unwritten::NoAnswer(why))
    }
}

pub(super) fn key(group: &PodGroup) -> Key {
    (group.namespace().unwrap_or_default(), group.name_any())
}
