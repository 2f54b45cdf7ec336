//! Evictions that belong together: what the disruption budgets say of them, asked before the first
//! of them goes, and which pod groups were told.
//!
//! Pods that make room for one workload are of use together only: where one of them is
//! protected, none is evicted. The API server is asked for each with `dryRun`, which takes
//! nothing off a budget; several pods of one budget are counted against what it allows. The
//! answer holds for the moment: a budget that is used up before the evictions are sent
//! refuses the rest of them.

use super::answer::{self, Answer};
use super::context::WriteContext;
use super::eviction::post;
use super::permit::Permit;
use crate::lock::locked;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt as _};
use kube::{Api, ResourceExt as _};
use scheduler_core::ids::GroupName;
use scheduler_core::{Evict, OutcomeResult};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::OnceCell;

/// Between two questions of which the first had no answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Evictions that belong together, and what the budgets say of them once one of them asked.
#[derive(Debug)]
pub(super) struct EvictionBatch {
    evictions: Vec<Evict>,
    given: OnceCell<Result<(), Arc<str>>>,
    /// Groups of which an event says that they lose pods.
    told: Mutex<BTreeSet<GroupName>>,
}

impl EvictionBatch {
    pub(super) fn new(evictions: Vec<Evict>) -> Self {
        Self {
            evictions,
            given: OnceCell::new(),
            told: Mutex::default(),
        }
    }

    /// How many go together, and how many of them are of this group, where its event is yet to
    /// be written: there is one for each group.
    pub(super) fn unreported(&self, group: &GroupName) -> Option<(usize, usize)> {
        let of_group = |evict: &&Evict| evict.group.as_ref() == Some(group);
        let is_new = locked(&self.told).insert(group.clone());
        is_new.then(|| {
            let of_group = self.evictions.iter().filter(of_group).count();
            (self.evictions.len(), of_group)
        })
    }

    /// Whether all of them may go. The first who wants to know asks for all.
    ///
    /// # Errors
    /// The outcome of each: which pod is protected, and why.
    pub(super) async fn given(&self, context: &WriteContext) -> Result<(), OutcomeResult> {
        let [_, _, ..] = self.evictions.as_slice() else {
            // One alone is asked for by its eviction.
            return Ok(());
        };
        let given = self.given.get_or_init(|| self.ask(context)).await;
        given
            .clone()
            .map_err(|why| answer::refused(Arc::clone(&why)))
    }

    async fn ask(&self, context: &WriteContext) -> Result<(), Arc<str>> {
        // The others of the batch wait for the answer without a permit.
        let mut permit = Permit::acquire(&context.permits).await;
        for evict in self
            .evictions
            .iter()
            .filter(|evict| evict.cause.makes_room())
        {
            let api: Api<Pod> = Api::namespaced(context.client.clone(), &evict.namespace);
            let refused = |why: String| {
                let (namespace, name) = (&evict.namespace, &evict.name);
                Err(format!("pod {namespace}/{name} may not be evicted: {why}").into())
            };
            loop {
                match answer::of(post(&api, evict, true)).await {
                    Answer::Done(_) | Answer::Refused(404, _) => break,
                    // Busy, 429: a budget says no, now.
                    Answer::Refused(_, why) | Answer::Busy(why) => return refused(why),
                    Answer::Unknown(why) => tracing::debug!(why, "a budget is asked again"),
                }
                permit.pause(PAUSE).await;
            }
        }
        self.count(context, &mut permit).await
    }

    /// Several pods of one budget: each may go, but may all?
    async fn count(&self, context: &WriteContext, permit: &mut Permit) -> Result<(), Arc<str>> {
        let mut by_namespace: BTreeMap<&Arc<str>, Vec<&Evict>> = BTreeMap::new();
        for evict in self
            .evictions
            .iter()
            .filter(|evict| evict.cause.makes_room())
        {
            by_namespace
                .entry(&evict.namespace)
                .or_default()
                .push(evict);
        }
        for (namespace, evictions) in by_namespace {
            if evictions.len() < 2 {
                continue;
            }
            let budgets: Api<PodDisruptionBudget> =
                Api::namespaced(context.client.clone(), namespace);
            let every = ListParams::default();
            let budgets = answer::read(permit, || budgets.list(&every)).await?;
            if budgets.items.is_empty() {
                continue;
            }
            let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
            let mut pods = Vec::with_capacity(evictions.len());
            for evict in evictions {
                let pod = answer::read(permit, || api.get_metadata_opt(&evict.name)).await?;
                pods.extend(pod.filter(|pod| pod.uid().as_deref() == Some(evict.pod.as_str())));
            }
            for budget in budgets {
                let status = budget.status.as_ref();
                let allowed = status.and_then(|status| status.disruptions_allowed);
                let allowed = allowed.unwrap_or_default();
                let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
                // The API server takes no selector that cannot be read; none selects nothing.
                let Some(selector) = selector.and_then(|one| Selector::try_from(one).ok()) else {
                    continue;
                };
                let count = pods
                    .iter()
                    .filter(|pod| selector.matches(pod.labels()))
                    .count();
                if count > 1 && i64::from(allowed) < i64::try_from(count).unwrap_or(i64::MAX) {
                    let name = budget.name_any();
                    return Err(format!(
                        "PodDisruptionBudget {namespace}/{name} allows {allowed} of {count} evictions"
                    )
                    .into());
                }
            }
        }
        Ok(())
    }
}
