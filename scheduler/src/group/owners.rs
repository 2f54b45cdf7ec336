//! Reads what owns a pod, up to the top.
//!
//! An owner that was read after a pod was seen says what held when the pod was made, or
//! something newer: so one read serves all pods that were seen before it began, and none
//! that came later.

use super::object::{Object, Reference};
use super::rules::{Extra, Want};
use crate::act::answer::{self, Answer};
use crate::lock::locked;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};
use std::collections::HashMap;
use std::sync::Mutex;
use tokio::time::Instant;

/// Longer chains are rings.
const MOST_OWNERS: usize = 16;
/// Objects kept beyond those are forgotten, all at once.
const KEPT: usize = 2048;

/// Why an owner is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OwnerError {
    /// It is gone, or another has its name now; the pod will go, too.
    #[error("its owner {0} is not there")]
    Gone(Reference),
    /// Two owners, and none of them controls it: nobody can say which one counts.
    #[error("{0} has more than one owner, and none that controls it")]
    Many(Reference),
    /// An owner of its own, some steps up.
    #[error("{0} owns itself")]
    Ring(Reference),
    /// No answer, or a strange one; another time there may be one.
    #[error("{what} cannot be read: {why}")]
    Unread {
        /// What was asked for.
        what: String,
        /// What the API server said.
        why: String,
    },
}

/// What one read found.
#[derive(Clone, Debug)]
enum Found {
    There(Object),
    /// We may not look.
    Hidden,
    Missing,
}

type Key = (String, Reference);

/// Owners, as they were read last, and which resources their kinds are.
pub(super) struct Owners {
    client: Client,
    kinds: Mutex<HashMap<(String, String), (ApiResource, Scope)>>,
    kept: Mutex<HashMap<Key, (Instant, Object)>>,
}

impl Owners {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            kinds: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// From the nearest to the top, each as it was at `since` or later. What may not be read
    /// ends the chain below it.
    pub(super) async fn chain(
        &self,
        pod: &Object,
        since: Instant,
    ) -> Result<Vec<Object>, OwnerError> {
        let mut chain: Vec<Object> = Vec::new();
        let mut next = pod.owners().into_iter().next();
        while let Some(reference) = next {
            if chain.len() == MOST_OWNERS {
                return Err(OwnerError::Ring(reference));
            }
            match self.read(pod.namespace(), &reference, since).await? {
                Found::There(owner) => {
                    next = next_above(&owner)?;
                    chain.push(owner);
                }
                Found::Hidden => break,
                Found::Missing => return Err(OwnerError::Gone(reference)),
            }
        }
        Ok(chain)
    }

    /// What a rule asks to see. A missing object is none.
    pub(super) async fn extra(
        &self,
        namespace: &str,
        want: &Want,
    ) -> Result<Option<Extra>, OwnerError> {
        match want {
            Want::Object {
                api_version,
                kind,
                name,
            } => {
                let reference = Reference {
                    api_version: (*api_version).to_owned(),
                    kind: (*kind).to_owned(),
                    name: name.clone(),
                    uid: String::new(),
                };
                Ok(match self.get(namespace, &reference).await? {
                    Found::There(object) => Some(Extra::Object(Box::new(object))),
                    Found::Hidden | Found::Missing => None,
                })
            }
            Want::Pod { labels } => {
                let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
                let params = ListParams::default().labels(labels);
                match answer::of(api.list_metadata(&params)).await {
                    Answer::Done(pods) => Ok(Some(Extra::Pod(
                        pods.items
                            .iter()
                            .any(|pod| pod.metadata.deletion_timestamp.is_none()),
                    ))),
                    Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                        Err(OwnerError::Unread {
                            what: format!("pods with {labels}"),
                            why,
                        })
                    }
                }
            }
        }
    }

    async fn read(
        &self,
        namespace: &str,
        reference: &Reference,
        since: Instant,
    ) -> Result<Found, OwnerError> {
        let key = (namespace.to_owned(), reference.clone());
        if let Some((read, object)) = locked(&self.kept).get(&key)
            && *read >= since
        {
            return Ok(Found::There(object.clone()));
        }
        let begun = Instant::now();
        let found = self.get(namespace, reference).await?;
        Ok(match found {
            // Made anew under the same name: not the owner.
            Found::There(object) if object.uid() != reference.uid => Found::Missing,
            Found::There(object) => {
                let mut kept = locked(&self.kept);
                if kept.len() >= KEPT {
                    kept.clear();
                }
                kept.insert(key, (begun, object.clone()));
                Found::There(object)
            }
            other => other,
        })
    }

    async fn get(&self, namespace: &str, reference: &Reference) -> Result<Found, OwnerError> {
        let unread = |why: String| OwnerError::Unread {
            what: reference.to_string(),
            why,
        };
        let Some((resource, scope)) = self.kind(reference).await? else {
            return Ok(Found::Missing);
        };
        let api: Api<DynamicObject> = match scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
        };
        match answer::of(api.get_opt(&reference.name)).await {
            Answer::Done(Some(object)) => {
                let mut value =
                    serde_json::to_value(&object).map_err(|error| unread(error.to_string()))?;
                value["apiVersion"] = reference.api_version.clone().into();
                value["kind"] = reference.kind.clone().into();
                Ok(Found::There(Object::new(value)))
            }
            Answer::Done(None) => Ok(Found::Missing),
            Answer::Refused(403, _) => Ok(Found::Hidden),
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => Err(unread(why)),
        }
    }

    /// Which resource a kind is; `None` where the server does not serve it.
    async fn kind(
        &self,
        reference: &Reference,
    ) -> Result<Option<(ApiResource, Scope)>, OwnerError> {
        let key = (reference.api_version.clone(), reference.kind.clone());
        if let Some(known) = locked(&self.kinds).get(&key) {
            return Ok(Some(known.clone()));
        }
        let gvk = GroupVersionKind::gvk(reference.group(), reference.version(), &reference.kind);
        match answer::of(pinned_kind(&self.client, &gvk)).await {
            Answer::Done((resource, capabilities)) => {
                let known = (resource, capabilities.scope);
                locked(&self.kinds).insert(key, known.clone());
                Ok(Some(known))
            }
            Answer::Refused(404, _) => Ok(None),
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                Err(OwnerError::Unread {
                    what: format!("kind {}", reference.kind),
                    why,
                })
            }
        }
    }
}

/// Who owns an owner.
fn next_above(owner: &Object) -> Result<Option<Reference>, OwnerError> {
    let owners = owner.owners();
    if owners.len() > 1 && !owner.is_controlled() {
        return Err(OwnerError::Many(owner.reference()));
    }
    Ok(owners.into_iter().next())
}
