//! The steps that give a pod its group, each of them one or more API requests: decide the group,
//! create it, and annotate the pod with its name. Also creates a deleted group again.

use super::draft::{Classes, Draft};
use super::groups::{GroupError, Groups};
use super::known::KnownGroups;
use super::member::Membership;
use super::missing::Missing;
use super::need::is_in;
use super::object::{Object, Reference};
use super::owners::{OwnerError, Owners};
use super::rule::{Lookup, LookupResult, RuleContext, RuleError};
use super::rules;
use super::write;
use crate::act::answer::{self, Answer};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use proto::names::kai;
use std::sync::Arc;
use tokio::time::Instant;

/// Why a pod has no group yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GroupingError {
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error("its pod group cannot be written on it: {0}")]
    Pod(String),
    #[error(
        "{0} has the annotation {skip}, and the pod names no PodGroup: set its annotation {group}",
        skip = kai::SKIP_GROUPER, group = kai::POD_GROUP
    )]
    Skipped(Reference),
    #[error("pod groups are not listed yet, and it may be in one")]
    Unlisted,
}

/// What the tasks of all pods share.
#[derive(Clone)]
pub(super) struct Steps {
    pub(super) client: Client,
    pub(super) owners: Arc<Owners>,
    pub(super) groups: Arc<Groups>,
    pub(super) known: KnownGroups,
    pub(super) queue_label: Arc<str>,
    pub(super) deployment_gangs: bool,
}

impl Steps {
    /// Creates the group, or brings it up to date.
    pub(super) async fn make(&self, draft: &Draft) -> Result<(), GroupingError> {
        Ok(self.groups.ensure(&write::group(draft)).await?)
    }

    /// Annotates the pod with its group's name.
    pub(super) async fn write(&self, draft: &Draft, pod: &Object) -> Result<(), GroupingError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), pod.namespace());
        let patch = Patch::Merge(Membership::of(draft, pod, false).patch(pod.uid()));
        let params = PatchParams::default();
        match answer::of(api.patch_metadata(pod.name(), &params, &patch)).await {
            Answer::Done(_) => {
                tracing::debug!(pod = pod.name(), group = draft.name, "grouped");
                Ok(())
            }
            // The pod was deleted: the watch will say so.
            Answer::Refused(404, _) => Ok(()),
            // This includes a conflict. Either another pod has the name now, and the watch will
            // show it; or others updated the pod too often, for which there is no event.
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                Err(GroupingError::Pod(why))
            }
        }
    }

    /// Creates a missing group again if the pod is still in it. A group that a person created is
    /// left to that person: the rules here would give it another name.
    pub(super) async fn mend(
        &self,
        missing: &Missing,
        scheduler: &str,
        classes: &Classes,
    ) -> Result<(), GroupingError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &missing.namespace);
        let pod = match answer::of(api.get_opt(&missing.pod)).await {
            Answer::Done(Some(pod)) => pod,
            Answer::Done(None) => return Ok(()),
            Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => {
                return Err(GroupingError::Pod(why));
            }
        };
        if is_in(&pod, scheduler).as_ref() != Some(&missing.group) {
            return Ok(());
        }
        let pod = Object::of_pod(&pod);
        let draft = match self.draft(&pod, classes, Instant::now()).await {
            // The program that names the group creates it.
            Err(GroupingError::Skipped(_)) => return Ok(()),
            draft => draft?,
        };
        if draft.name == missing.group {
            self.groups.ensure(&write::group(&draft)).await?;
        }
        Ok(())
    }

    /// Reads the owners of the pod, and decides its group.
    pub(super) async fn draft(
        &self,
        pod: &Object,
        classes: &Classes,
        since: Instant,
    ) -> Result<Draft, GroupingError> {
        skipped(pod)?;
        let mut chain = self.owners.chain(pod, since).await?;
        chain.iter().try_for_each(skipped)?;
        let mut pod = pod.clone();
        for object in chain.iter_mut().chain([&mut pod]) {
            object.name_queue_by(&self.queue_label);
        }
        let pod = &pod;
        let mut context = RuleContext {
            pod,
            chain: &chain,
            extra: None,
            classes,
            deployment_gangs: self.deployment_gangs,
        };
        let mut extra = match rules::needed_lookup(context) {
            Some(Lookup::Former { owner }) => {
                let former = self.known.is_former(&owner);
                Some(LookupResult::Former(former.ok_or(GroupingError::Unlisted)?))
            }
            Some(want) => self.owners.extra(pod.namespace(), &want, since).await?,
            None => None,
        };
        if let Some(LookupResult::Object(object)) = &mut extra {
            object.name_queue_by(&self.queue_label);
        }
        context.extra = extra.as_ref();
        Ok(rules::draft(context)?)
    }
}

/// Another program groups this pod, or the pods that this object owns.
fn skipped(object: &Object) -> Result<(), GroupingError> {
    if object.annotation(kai::SKIP_GROUPER) == Some("true") {
        return Err(GroupingError::Skipped(object.reference()));
    }
    Ok(())
}
