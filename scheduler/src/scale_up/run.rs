//! Plans apart from decisions, and has the placeholders that the plan needs.

use super::book::Book;
use super::links::{Asked, Links, Look};
use super::placeholder::{self, Change, Need, Rules, Size};
use crate::off_thread;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use proto::names::scale_up as names;
use scheduler_core::scale_up::{NewNode, NodeTemplate, Plan, plan};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long a listing is used: a person or a node's controller may delete placeholders.
const LIST_AGAIN: Duration = Duration::from_mins(1);
/// After the first failure; doubled up to [`LIST_AGAIN`].
const RETRY: Duration = Duration::from_secs(2);
/// Of a group of which nothing is known.
const NO_GROUP: &str = "no known group";

/// Plans until `stop`, or until the cycle has ended.
pub(crate) async fn run(mut links: Links, stop: CancellationToken) {
    let mut planner = Planner {
        book: Book::default(),
        pods: Api::namespaced(links.client.clone(), names::NAMESPACE),
        there: None,
        retry: RETRY,
    };
    let mut again = None;
    loop {
        let due = async {
            match again {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = links.looks.changed() => if changed.is_err() { return },
            () = due => {}
        }
        let look = links.looks.borrow_and_update().clone();
        let Some(look) = look else {
            // Another replica leads.
            planner.there = None;
            again = None;
            links.meters.asked(&links.pool, std::iter::empty());
            links.asked.send_replace(Asked::default());
            continue;
        };
        let pass = planner.pass(&mut links, look);
        let done = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            done = pass => done,
        };
        again = match done {
            Ok(waits) => {
                planner.retry = RETRY;
                waits.then(|| Instant::now() + LIST_AGAIN)
            }
            Err(error) => {
                links.meters.failed();
                tracing::warn!("requesting nodes: {error}");
                // What of it was written is seen in a listing.
                planner.there = None;
                let pause = planner.retry;
                planner.retry = (pause * 2).min(LIST_AGAIN);
                Some(Instant::now() + pause)
            }
        };
    }
}

struct Planner {
    book: Book,
    pods: Api<Pod>,
    /// Placeholders of this node pool, and when they were listed. `None`: not known.
    there: Option<(Vec<Pod>, Instant)>,
    retry: Duration,
}

impl Planner {
    /// One plan, and the writes that it needs. True if there are placeholders.
    async fn pass(&mut self, links: &mut Links, look: Look) -> Result<bool, String> {
        let Look { shortage, config } = look;
        links.known.see(shortage.seen.clone());
        let shortage = self.book.without_late(shortage, Instant::now());
        let templates = links.known.all();
        let unknown = links.unknown;
        let work = move || {
            let plan = if shortage.pods == 0 {
                Plan::default()
            } else {
                plan(&shortage, &templates, &unknown, &config)
            };
            (shortage, templates, plan)
        };
        let done = off_thread::run(work).await;
        let (shortage, templates, plan) = done.map_err(|error| error.to_string())?;
        let mut needs = Vec::new();
        for node in plan.nodes.iter().chain(plan.starting.values()) {
            let rules = match node.template.and_then(|at| templates.get(at)) {
                Some(template) => Some(Rules::of(template)),
                None => self.rules_of_first(links, node, &shortage).await?,
            };
            // Its first pod went meanwhile: the next look knows.
            let Some(rules) = rules else { continue };
            needs.push(Need {
                group: group(node, &templates).into(),
                rules,
                size: Size::of(node),
            });
        }
        let asked = plan.nodes.iter().flat_map(|node| {
            let group = group(node, &templates);
            node.pods.iter().map(move |pod| (pod, group))
        });
        let told = self.book.tell(asked, &plan.starting, links.wall.now());
        links.asked.send_replace(told);
        let groups = plan.nodes.iter().map(|node| group(node, &templates));
        links.meters.asked(&links.pool, groups);
        self.reconcile(&links.pool, &needs).await?;
        Ok(!needs.is_empty())
    }

    /// Of a group of which nothing is known: where its first pod may go.
    async fn rules_of_first(
        &self,
        links: &Links,
        node: &NewNode,
        shortage: &scheduler_core::scale_up::Shortage,
    ) -> Result<Option<Rules>, String> {
        let Some(first) = node.pods.first() else {
            return Ok(None);
        };
        let Some(pod) = shortage.waiting().find(|pod| pod.uid == *first) else {
            return Ok(None);
        };
        let pods: Api<Pod> = Api::namespaced(links.client.clone(), &pod.namespace);
        let found = pods.get_opt(&pod.name).await;
        let found =
            found.map_err(|error| format!("pod {}/{}: {error}", pod.namespace, pod.name))?;
        let same = |found: &Pod| found.uid().as_deref() == Some(first.as_str());
        Ok(found.filter(same).map(|pod| Rules::like(&pod)))
    }

    /// Makes the missing writes: two for each node that is requested, one when its pods have
    /// their places or it is no longer needed.
    async fn reconcile(&mut self, pool: &str, needs: &[Need]) -> Result<(), String> {
        let is_old = |at: &Instant| at.elapsed() >= LIST_AGAIN;
        let (mut there, at) = match self.there.take() {
            Some((there, at)) if !is_old(&at) => (there, at),
            _ => (self.list(pool).await?, Instant::now()),
        };
        let Change {
            create,
            delete,
            mark,
        } = placeholder::change(pool, needs, &there);
        for name in delete {
            let deleted = self.pods.delete(&name, &DeleteParams::default()).await;
            gone(deleted.map(drop)).map_err(|error| format!("placeholder {name}: {error}"))?;
            there.retain(|pod| pod.name_any() != name);
        }
        for pod in create {
            let name = pod.name_any();
            let made = self.pods.create(&PostParams::default(), &pod).await;
            let made = made.map_err(|error| format!("placeholder {name}: {error}"))?;
            there.push(made);
        }
        for name in mark {
            let status = json!({"status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "represents a node that pending pods of the scheduler need",
            }]}});
            let params = PatchParams::default();
            let patch = Patch::Strategic(&status);
            let marked = self.pods.patch_status(&name, &params, &patch).await;
            let marked = marked.map_err(|error| format!("placeholder {name}: {error}"))?;
            there.retain(|pod| pod.name_any() != name);
            there.push(marked);
        }
        self.there = Some((there, at));
        Ok(())
    }

    async fn list(&self, pool: &str) -> Result<Vec<Pod>, String> {
        let of_pool = ListParams::default().labels(&format!("{}={pool}", names::POOL));
        let listed = self.pods.list(&of_pool).await;
        let listed = listed.map_err(|error| format!("placeholders: {error}"))?;
        let ends = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        Ok(listed.items.into_iter().filter(|pod| !ends(pod)).collect())
    }
}

fn group<'a>(node: &NewNode, templates: &'a [NodeTemplate]) -> &'a str {
    let template = node.template.and_then(|at| templates.get(at));
    template.map_or(NO_GROUP, |template| &*template.name)
}

/// Another client may have deleted it.
fn gone(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result,
    }
}
