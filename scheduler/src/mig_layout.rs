//! Other slices of cards in MIG mode for pods that wait for one.
//!
//! In: what a cycle has found no room for, and the cards. Plans apart from decisions. Out:
//! `GpuNode.spec.gpus[].migLayout`, one of the admin's `migLayouts`; the node's agent destroys and
//! creates the slices, and the pods are placed once these are there. A crash leaves a layout that is
//! written or not: the next leader sees which.

use crate::act::answer::{self, Answer};
use crate::clock::Wall;
use crate::convert::mig::{in_words, layout_of};
use crate::off_thread;
use api::GpuNode;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use scheduler_core::ids::{GpuUuid, NodeName, PodUid};
use scheduler_core::mig_layout::{LayoutChoice, LayoutPlan, MigCard, Slices, plan};
use scheduler_core::scale_up::Shortage;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pods in one check, the first in the queue: each layout that is tried places them all.
pub(crate) const MOST_PODS: usize = 200;
/// Least time between two choices for one card. The pods that the first was for have been placed by
/// then.
const REST: Duration = Duration::from_secs(30);

/// What one cycle has no room for.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) shortage: Shortage,
    pub(crate) cards: Vec<MigCard>,
    pub(crate) config: scheduler_core::Config,
}

/// The pods that have room on a card that is being given other slices, with that in one sentence.
pub(crate) type Asked = BTreeMap<PodUid, Arc<str>>;

/// The cycle's end.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) looks: watch::Sender<Option<Look>>,
    pub(crate) asked: watch::Receiver<Asked>,
}

/// The planner's.
pub(crate) struct Links {
    looks: watch::Receiver<Option<Look>>,
    asked: watch::Sender<Asked>,
    /// Writes only while leading.
    client: kube::Client,
    wall: Wall,
}

impl Line {
    /// One with its other end.
    pub(crate) fn new(client: kube::Client, wall: Wall) -> (Self, Links) {
        let (looks, looks_in) = watch::channel(None);
        let (asked_out, asked) = watch::channel(Asked::new());
        let links = Links {
            looks: looks_in,
            asked: asked_out,
            client,
            wall,
        };
        (Self { looks, asked }, links)
    }
}

impl Links {
    /// Of the pods that `asked` does not have, nothing is said any more.
    fn tell(&self, asked: Asked) {
        self.asked.send_if_modified(|told| {
            let is_other = *told != asked;
            *told = asked;
            is_other
        });
    }
}

/// A choice that was written lately.
struct Chosen {
    at: Instant,
    /// What its pods are told.
    line: Arc<str>,
    pods: Vec<PodUid>,
}

/// By card.
type Lately = BTreeMap<GpuUuid, Chosen>;

/// Plans until `stop`, or until the cycle has ended.
pub(crate) async fn run(mut links: Links, stop: CancellationToken) {
    let mut lately = Lately::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = links.looks.changed() => if changed.is_err() { return },
        }
        let look = links.looks.borrow_and_update().clone();
        let Some(look) = look else {
            links.tell(Asked::new());
            continue;
        };
        lately.retain(|_, chosen| chosen.at.elapsed() < REST);
        let waiting: BTreeSet<PodUid> =
            look.shortage.waiting().map(|pod| pod.uid.clone()).collect();
        let mut plan = LayoutPlan::default();
        let mut cards = Vec::new();
        if !waiting.is_empty() {
            (cards, plan) = planned(look, &lately).await;
        }
        for choice in plan.choices {
            let Some(slices) = slices_of(&cards, &choice) else {
                continue;
            };
            let written = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                written = write(&links.client, &choice, slices) => written,
            };
            let (node, card, words) = (&choice.node, &choice.card, in_words(slices));
            if let Err(error) = written {
                // The next look sees what is there.
                tracing::warn!(%node, %card, slices = %words, error, "no MIG layout was written");
                continue;
            }
            let pods = choice.pods.len();
            tracing::info!(%node, %card, slices = %words, pods, "a MIG layout was chosen");
            let line = format!("{}, since {}", line(node, card, slices), links.wall.now());
            let chosen = Chosen {
                at: Instant::now(),
                line: line.into(),
                pods: choice.pods,
            };
            lately.insert(choice.card, chosen);
        }
        let mut asked = told(&cards, &plan.awaiting, &lately);
        // What no longer waits needs nothing.
        asked.retain(|pod, _| waiting.contains(pod));
        links.tell(asked);
    }
}

/// What `explain` says to each pod for which a card has room soon. When a layout was written is
/// known only of the choices of this process, not of an admin's or an earlier leader's.
fn told(cards: &[MigCard], awaiting: &BTreeMap<PodUid, usize>, lately: &Lately) -> Asked {
    let chosen = lately.values();
    let mut asked: Asked = chosen
        .flat_map(|chosen| {
            chosen
                .pods
                .iter()
                .map(|pod| (pod.clone(), chosen.line.clone()))
        })
        .collect();
    for (pod, at) in awaiting {
        let Some(card) = cards.get(*at) else {
            continue;
        };
        let known = lately.get(&card.card).map(|chosen| chosen.line.clone());
        let line = known.unwrap_or_else(|| line(&card.node, &card.card, &card.slices).into());
        asked.insert(pod.clone(), line);
    }
    asked
}

fn line(node: &NodeName, card: &GpuUuid, slices: &Slices) -> String {
    let slices = in_words(slices);
    format!("card {card} of node {node} is being given {slices}")
}

/// The plan, and the cards that it is of. One for which a choice was made lately rests.
async fn planned(look: Look, lately: &Lately) -> (Vec<MigCard>, LayoutPlan) {
    let mut cards = look.cards;
    for card in &mut cards {
        if lately.contains_key(&card.card) {
            card.layouts.clear();
        }
    }
    let work = move || {
        let plan = plan(&look.shortage, &cards, &look.config);
        (cards, plan)
    };
    off_thread::run(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "no MIG layouts were planned");
        (Vec::new(), LayoutPlan::default())
    })
}

fn slices_of<'a>(cards: &'a [MigCard], choice: &LayoutChoice) -> Option<&'a Slices> {
    let card = cards.iter().find(|card| card.card == choice.card)?;
    card.layouts.get(choice.layout)
}

/// Writes the choice, unless the object was changed meanwhile. The patch changes one field, because
/// the object may have others that this release does not know.
async fn write(
    client: &kube::Client,
    choice: &LayoutChoice,
    slices: &Slices,
) -> Result<(), String> {
    let nodes: Api<GpuNode> = Api::all(client.clone());
    let name = choice.node.as_str();
    let object = answered(answer::of(nodes.get(name)).await)?;
    let layout = layout_of(slices);
    let mut cards = object.spec.gpus.iter().enumerate();
    let card = cards.find(|(_, card)| card.uuid == choice.card.as_str());
    let (at, card) = card.ok_or("the card is not in spec.gpus any more")?;
    // As the admin has written it: policies compare the two.
    let allowed = card
        .mig_layouts
        .iter()
        .find(|allowed| is_same(allowed, &layout));
    let allowed = allowed.ok_or("the layout is not among migLayouts any more")?;
    let patch = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version()},
        {"op": "add", "path": format!("/spec/gpus/{at}/migLayout"), "value": allowed},
    ]);
    let patch: json_patch::Patch = serde_json::from_value(patch).map_err(|e| e.to_string())?;
    let (params, patch) = (PatchParams::default(), Patch::<()>::Json(patch));
    answered(answer::of(nodes.patch(name, &params, &patch)).await).map(drop)
}

fn answered<T>(answer: Answer<T>) -> Result<T, String> {
    match answer {
        Answer::Done(value) => Ok(value),
        Answer::Refused(_, why) | Answer::Busy(why) | Answer::Unknown(why) => Err(why),
    }
}

/// Zeros, and how the attribute of a profile is joined to its name, mean nothing.
fn is_same(allowed: &BTreeMap<String, u32>, layout: &BTreeMap<String, u32>) -> bool {
    let some = allowed.iter().filter(|(_, count)| **count > 0);
    let names: BTreeMap<String, u32> = some
        .map(|(profile, count)| (profile.replace('+', "."), *count))
        .collect();
    names == *layout
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use kube::CustomResourceExt as _;
    use kube::api::PostParams;
    use kube::core::{ApiResource, DynamicObject};
    use scheduler_core::ids::ResourceName;
    use sim_cluster::api_server::{ApiServer, Config};

    /// A scheduler that is rolled back to an earlier release must not erase an admin's settings.
    #[tokio::test]
    async fn a_layout_is_written_and_fields_of_later_releases_stay() {
        let server = ApiServer::bind(Config::default()).await.unwrap();
        let client = kube::Client::try_from(server.handle().config()).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let params = PostParams::default();
        definitions.create(&params, &GpuNode::crd()).await.unwrap();
        let nodes: Api<DynamicObject> =
            Api::all_with(client.clone(), &ApiResource::erase::<GpuNode>(&()));
        let layout = json!({"1g.10gb": 2});
        let node = json!({
            "apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n"},
            "spec": {"ofALaterRelease": 1, "gpus": [
                {"uuid": "GPU-0", "alsoOfOne": true},
                {"uuid": "GPU-1", "migLayouts": [layout], "alsoOfOne": true},
            ]},
        });
        let node: DynamicObject = serde_json::from_value(node).unwrap();
        nodes.create(&params, &node).await.unwrap();
        let choice = |card: &str| LayoutChoice {
            node: "n".into(),
            card: GpuUuid::new(card),
            layout: 0,
            pods: Vec::new(),
        };
        let slices = Slices::from([(ResourceName::new("nvidia.com/mig-1g.10gb"), 2)]);
        write(&client, &choice("GPU-1"), &slices).await.unwrap();
        let mut wanted = node.data["spec"].clone();
        wanted["gpus"][1]["migLayout"] = layout;
        assert_eq!(nodes.get("n").await.unwrap().data["spec"], wanted);
        let error = write(&client, &choice("GPU-0"), &slices).await;
        assert!(error.unwrap_err().contains("not among migLayouts"));
        stop.cancel();
    }
}
