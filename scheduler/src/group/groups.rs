//! Makes a pod group, or brings it to what it should be.

use super::write;
use crate::act::answer::{self, Answer};
use api::PodGroup;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Times that a change is computed anew because another came between.
const TRIES: usize = 4;
/// Groups remembered beyond those are forgotten, all at once: then they are read again.
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

/// What was last written of a group, held while it is written.
type Slot = Arc<tokio::sync::Mutex<Option<PodGroup>>>;

/// The groups that were written here.
pub(super) struct Groups {
    client: Client,
    written: Mutex<HashMap<(String, String), Slot>>,
}

impl Groups {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            written: Mutex::default(),
        }
    }

    /// The group is there afterwards, as `wanted`; written once however many pods want it.
    pub(super) async fn ensure(&self, wanted: &PodGroup) -> Result<(), GroupError> {
        let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
        let slot = self.slot((namespace.clone(), name.clone()));
        let mut written = slot.lock().await;
        if written.as_ref() == Some(wanted) {
            return Ok(());
        }
        let known = written.take().is_some();
        self.write(&namespace, &name, wanted, known)
            .await
            .map_err(|why| GroupError::Unwritten { name, why })?;
        *written = Some(wanted.clone());
        Ok(())
    }

    /// It is gone: who wants it makes it anew.
    pub(super) fn forget(&self, namespace: &str, name: &str) {
        self.all().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Any may be gone.
    pub(super) fn forget_all(&self) {
        self.all().clear();
    }

    fn slot(&self, key: (String, String)) -> Slot {
        let mut all = self.all();
        if all.len() >= KEPT {
            // Who holds a slot keeps it; a second one for the same group does no harm.
            all.clear();
        }
        all.entry(key).or_default().clone()
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Slot>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(
        &self,
        namespace: &str,
        name: &str,
        wanted: &PodGroup,
        known: bool,
    ) -> Result<(), String> {
        let api: Api<PodGroup> = Api::namespaced(self.client.clone(), namespace);
        let mut why = String::new();
        // What was written before is most likely there still.
        let mut make = !known;
        for _ in 0..TRIES {
            if make {
                match answer::of(api.create(&PostParams::default(), wanted)).await {
                    Answer::Done(_) => return Ok(()),
                    Answer::Refused(409, said) => why = said,
                    Answer::Refused(_, said) | Answer::Busy(said) | Answer::Unknown(said) => {
                        return Err(said);
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
                    return Err(said);
                }
            };
            make = false;
            let Some(change) = write::change(&found, wanted) else {
                return Ok(());
            };
            let params = PatchParams::default();
            match answer::of(api.patch_metadata(name, &params, &Patch::Merge(change))).await {
                Answer::Done(_) => return Ok(()),
                Answer::Refused(404 | 409, said) => why = said,
                Answer::Refused(_, said) | Answer::Busy(said) | Answer::Unknown(said) => {
                    return Err(said);
                }
            }
        }
        Err(why)
    }
}
