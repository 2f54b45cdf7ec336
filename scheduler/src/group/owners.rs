//! Reads the owners of a pod, up to the top.
//!
//! An owner that is read after a pod was seen has the state in which the pod was created, or a newer
//! one. So one read serves all pods that were seen before it began, and none that came later.

use super::native;
use super::object::{Object, Reference};
use super::rule::{Lookup, LookupResult};
use crate::act::answer::{self, Answer};
use crate::lock::locked;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::discovery::{self, Scope, pinned_kind};
use kube::{Api, Client};
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use tokio::time::Instant;

/// A longer chain is taken for a cycle.
const MOST_OWNERS: usize = 16;
/// The number of owners that are kept. Of more, the one that was used least recently is read again.
const KEPT: NonZeroUsize = NonZeroUsize::new(2048).expect("it is not zero");

/// Why the owners of a pod are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OwnerError {
    /// It was deleted, or another object has its name now. The pod will be deleted too.
    #[error("its owner {0} is not there")]
    Gone(Reference),
    /// It has several owners, and none of them is its controller: it is unclear which one counts.
    #[error("{0} has more than one owner, and none that controls it")]
    Many(Reference),
    /// It is among its own owners.
    #[error("{0} owns itself")]
    Ring(Reference),
    /// There was no answer, or an unusable one. A later request may succeed.
    #[error("{what} cannot be read: {why}")]
    Unread {
        /// The requested object.
        what: String,
        /// The API server's answer.
        why: String,
    },
}

/// What one read found.
#[derive(Clone, Debug)]
enum Found {
    There(Object),
    /// We have no permission to read it.
    Hidden,
    Missing,
}

type Key = (String, Reference);

/// Owners as they were last read, and the resources of their kinds.
pub(super) struct Owners {
    client: Client,
    kinds: Mutex<HashMap<(String, String), (ApiResource, Scope)>>,
    kept: Mutex<LruCache<Key, (Instant, Object)>>,
}

impl Owners {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            kinds: Mutex::default(),
            kept: Mutex::new(LruCache::new(KEPT)),
        }
    }

    /// The owners from the nearest to the top, each as it was at `since` or later. The chain ends
    /// before an owner that we have no permission to read.
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

    /// What else a rule needs to read. `None`: the object does not exist.
    pub(super) async fn extra(
        &self,
        namespace: &str,
        want: &Lookup,
        since: Instant,
    ) -> Result<Option<LookupResult>, OwnerError> {
        match want {
            Lookup::Object {
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
                    Found::There(object) => Some(LookupResult::Object(Box::new(object))),
                    Found::Hidden | Found::Missing => None,
                })
            }
            Lookup::Native { name } => {
                let Some(api_version) = self.native().await? else {
                    return Ok(None);
                };
                let reference = Reference {
                    api_version,
                    kind: native::KIND.to_owned(),
                    name: name.clone(),
                    uid: String::new(),
                };
                Ok(match self.read(namespace, &reference, since).await? {
                    Found::There(object) => Some(LookupResult::Object(Box::new(object))),
                    Found::Hidden | Found::Missing => None,
                })
            }
            // Known from the watch.
            Lookup::Former { .. } => Ok(None),
            Lookup::Pod { labels } => {
                let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
                let params = ListParams::default().labels(labels);
                match answer::of(api.list_metadata(&params)).await {
                    Answer::Done(pods) => Ok(Some(LookupResult::Pod(
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
            // Another object with the same name is not the owner. Of others only the name is known.
            Found::There(object) if !reference.uid.is_empty() && object.uid() != reference.uid => {
                Found::Missing
            }
            Found::There(object) => {
                locked(&self.kept).put(key, (begun, object.clone()));
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
            Answer::Done(Some(mut object)) => {
                // No rule reads them, and they are half of what an owner is in memory.
                object.metadata.managed_fields = None;
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

    /// The newest version in which Kubernetes' own pod groups are served; `None`: they are not.
    async fn native(&self) -> Result<Option<String>, OwnerError> {
        let key = (native::GROUP.to_owned(), native::KIND.to_owned());
        if let Some((resource, _)) = locked(&self.kinds).get(&key) {
            return Ok(Some(resource.api_version.clone()));
        }
        match answer::of(discovery::group(&self.client, native::GROUP)).await {
            Answer::Done(group) => {
                let mut kinds = group
                    .versions()
                    .flat_map(|of| group.versioned_resources(of));
                let found = kinds.find(|(resource, _)| resource.kind == native::KIND);
                Ok(found.map(|(resource, capabilities)| {
                    let version = resource.api_version.clone();
                    let known = (resource, capabilities.scope);
                    let mut kinds = locked(&self.kinds);
                    kinds.insert((version.clone(), native::KIND.to_owned()), known.clone());
                    kinds.insert(key, known);
                    version
                }))
            }
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                Err(OwnerError::Unread {
                    what: format!("the kinds of {}", native::GROUP),
                    why,
                })
            }
        }
    }

    /// The resource of a kind; `None` if the server does not serve it.
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

/// The owner of an owner.
fn next_above(owner: &Object) -> Result<Option<Reference>, OwnerError> {
    let owners = owner.owners();
    if owners.len() > 1 && !owner.is_controlled() {
        return Err(OwnerError::Many(owner.reference()));
    }
    Ok(owners.into_iter().next())
}
