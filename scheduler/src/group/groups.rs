//! Creates pod groups, brings them up to date, and annotates them.
//!
//! Requests for the same group are sent one after the other. An annotation of a group that is still
//! to be created is written when the group is created.
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
use scheduler_core::ids::GroupName;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

/// How often an update is tried if others change the group at the same time.
const TRIES: usize = 4;
/// How many groups are remembered. One that is forgotten is read again.
const KEPT: usize = 4096;

/// The annotations of a group with their values; `None` removes an annotation.
pub(crate) type Stamps = BTreeMap<&'static str, Option<String>>;

/// Why a group could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GroupError {
    /// The API server rejected it or did not answer. It is tried again.
    #[error("its pod group {name} cannot be written: {why}")]
    Unwritten {
        /// Of the group.
        name: String,
        /// The API server's answer.
        why: String,
    },
}

/// What [`Groups::ensure`] found.
#[derive(Debug)]
enum Written {
    /// The group did not exist and was created.
    Created,
    /// The group existed, and was updated if that was necessary.
    Existed,
}

/// Why a request had no success.
#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    NoAnswer(String),
}

/// What is known of a group. The lock of `written` is held during a request.
#[derive(Debug, Default)]
struct Slot {
    /// The group as it was last written.
    written: tokio::sync::Mutex<Option<PodGroup>>,
    stamps: Mutex<Stamped>,
}

/// The annotations that the group's creation writes, so that they need no request of their own.
#[derive(Debug, Default)]
struct Stamped {
    /// UIDs of the pods for which the group is going to be created; empty once it exists.
    expected: BTreeSet<String>,
    /// The annotations that the creation will write.
    pairs: BTreeMap<String, String>,
    /// The annotations that the creation has written; the next call of [`Groups::stamp`] takes
    /// them.
    taken: BTreeMap<String, String>,
}

impl Slot {
    /// What remains to be known after the group was deleted: nothing, unless it is going to be
    /// created.
    fn unwritten(&self) -> Option<Arc<Self>> {
        let mut stamps = self.stamps();
        (!stamps.expected.is_empty()).then(|| {
            Arc::new(Self {
                written: tokio::sync::Mutex::default(),
                stamps: Mutex::new(std::mem::take(&mut stamps)),
            })
        })
    }

    fn stamps(&self) -> std::sync::MutexGuard<'_, Stamped> {
        locked(&self.stamps)
    }
}

/// What an admission policy may look at: groups that agree in it are all admitted, or all rejected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AdmissionClass {
    namespace: String,
    queue: Option<String>,
    class: Option<String>,
    preemptibility: Option<String>,
    owners: Vec<(String, String)>,
}

impl AdmissionClass {
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
    /// With that many slots, those that are not needed are removed.
    sweep_at: usize,
}

/// The groups that this process wrote.
pub(crate) struct Groups {
    client: Client,
    slots: Mutex<Slots>,
    /// Groups like these were created, and none was rejected since.
    taken: Mutex<HashSet<AdmissionClass>>,
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

    /// [`Groups::ensure`] will be called for this pod. Until then, annotations of the group wait.
    pub(super) fn expect(&self, namespace: &str, name: &str, pod: &str) {
        let slot = self.slot(namespace, name);
        slot.stamps().expected.insert(pod.to_owned());
    }

    /// [`Groups::ensure`] will not be called for this pod after all.
    pub(super) fn unexpect(&self, namespace: &str, name: &str, pod: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(slot) = locked(&self.slots).by_key.get(&key) {
            slot.stamps().expected.remove(pod);
        }
    }

    /// Whether the group is known to exist as `wanted`.
    pub(super) fn is_written(&self, wanted: &PodGroup) -> bool {
        let (namespace, name) = key(wanted);
        let slot = self.slot(&namespace, &name);
        let written = slot.written.try_lock();
        written.is_ok_and(|written| written.as_ref() == Some(wanted))
    }

    /// Whether a group like it was created, and none was rejected since.
    pub(super) fn is_taken(&self, wanted: &PodGroup) -> bool {
        locked(&self.taken).contains(&AdmissionClass::of(wanted))
    }

    fn judged(&self, wanted: &PodGroup, taken: bool) {
        let mut all = locked(&self.taken);
        if all.len() >= KEPT {
            all.clear();
        }
        if taken {
            all.insert(AdmissionClass::of(wanted));
        } else {
            all.remove(&AdmissionClass::of(wanted));
        }
    }

    /// Makes sure that the group exists as `wanted`. It is written once, however many pods need it.
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
            let result = result.map_err(|error| GroupError::Unwritten {
                name: name.clone(),
                why: error.to_string(),
            })?;
            if matches!(result, Written::Existed) {
                with.clear();
            }
            *written = Some(wanted.clone());
        }
        // If the group was forgotten during the request, this is another slot.
        let slot = self.slot(&namespace, &name);
        *slot.stamps() = Stamped {
            taken: with,
            ..Stamped::default()
        };
        Ok(())
    }

    /// Sets or removes annotations of a group, and does nothing if the group does not exist.
    /// Returns false if they were not taken, or if the group is still to be created; the caller
    /// then has to call again.
    pub(crate) async fn stamp(&self, group: &GroupName, wanted: &Stamps) -> bool {
        let Some((namespace, name)) = group.as_str().split_once('/') else {
            return true;
        };
        let slot = self.slot(namespace, name);
        {
            let mut stamps = slot.stamps();
            let taken = std::mem::take(&mut stamps.taken);
            if !stamps.expected.is_empty() {
                let values = wanted.iter().filter_map(|(key, value)| {
                    let value = value.clone()?;
                    Some(((*key).to_owned(), value))
                });
                stamps.pairs = values.collect();
                return false;
            }
            let is_taken =
                |(key, value): (&&str, &Option<String>)| taken.get(*key) == value.as_ref();
            if wanted.iter().all(is_taken) {
                return true;
            }
        }
        let _one_at_a_time = slot.written.lock().await;
        self.patch(namespace, name, &json!(wanted)).await
    }

    async fn patch(&self, namespace: &str, name: &str, annotations: &serde_json::Value) -> bool {
        let api: Api<PodGroup> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let params = PatchParams::default();
        match answer::of(api.patch_metadata(name, &params, &patch)).await {
            Answer::Done(_) | Answer::Refused(404, _) => true,
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                let group = format!("{namespace}/{name}");
                tracing::warn!(group, %annotations, why, "annotations are not written; tried again");
                false
            }
        }
    }

    /// The group was deleted: the next pod that needs it creates it again.
    pub(super) fn forget(&self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let slots = &mut locked(&self.slots).by_key;
        let kept = slots.remove(&key).and_then(|slot| slot.unwritten());
        slots.extend(kept.map(|slot| (key, slot)));
    }

    /// Any group may have been deleted.
    pub(super) fn forget_all(&self) {
        let slots = &mut locked(&self.slots).by_key;
        let old = std::mem::take(slots).into_iter();
        slots.extend(old.filter_map(|(key, slot)| Some((key, slot.unwritten()?))));
    }

    fn slot(&self, namespace: &str, name: &str) -> Arc<Slot> {
        let mut slots = locked(&self.slots);
        if slots.by_key.len() >= slots.sweep_at.max(KEPT) {
            // A request in flight keeps its slot; a second one for the same group is harmless.
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
        // A group that was written before most likely still exists.
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
