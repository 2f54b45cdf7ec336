//! A told story, performed: its beats one after the other, against the running cluster.

use super::cluster::Hands;
use super::say;
use super::tale::{Beat, NAMESPACE, Seen, Tale};
use crate::manifest;
use crate::view::Scene;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::sync::watch as channel;

/// Longest wait for one beat.
const PATIENCE: Duration = Duration::from_mins(1);
/// What containers write is looked at again after so long.
const AGAIN: Duration = Duration::from_millis(200);

/// Tells it to its end: exit code 0, or 1 with the beat that did not come.
pub(super) async fn tell(
    tale: Tale,
    client: &Client,
    hands: &Hands,
    mut seen: channel::Receiver<Scene>,
) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    for queue in super::story::queues() {
        manifest::apply(client, &queue).await?;
    }
    for beat in tale.beats() {
        match beat {
            Beat::Say(words) => say(&format!("{words}\n")),
            Beat::Show => say(&format!(
                "\n{}\n",
                super::picture(&seen.borrow_and_update())
            )),
            Beat::Apply(object) => {
                manifest::apply(client, &object).await?;
            }
            Beat::Delete(name) => {
                let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
                pods.delete(name, &DeleteParams::default())
                    .await
                    .with_context(|| format!("pod {name} cannot be deleted"))?;
            }
            Beat::Card(pod, verb) => {
                let (node, index) =
                    home(&seen.borrow(), pod).with_context(|| format!("{pod} is on no card"))?;
                hands.card(&node, index, verb).await?;
            }
            Beat::Until(what, question) => {
                match tokio::time::timeout(PATIENCE, until(question, hands, &mut seen)).await {
                    Ok(told) => say(&format!(
                        "  {:>4.1} s  {}\n",
                        begin.elapsed().as_secs_f64(),
                        told?
                    )),
                    Err(_) => {
                        say(&format!("\n{}\n", super::picture(&seen.borrow())));
                        super::complain(&format!(
                            "aliquot demo: the story stops here: {what} did not come within {} s",
                            PATIENCE.as_secs()
                        ));
                        return Ok(ExitCode::FAILURE);
                    }
                }
            }
        }
    }
    say("The end.\n");
    Ok(ExitCode::SUCCESS)
}

async fn until(
    question: fn(&Seen<'_>) -> Option<String>,
    hands: &Hands,
    seen: &mut channel::Receiver<Scene>,
) -> anyhow::Result<String> {
    loop {
        let scene = seen.borrow_and_update().clone();
        let log = |name: &str| hands.log(&scene, name);
        if let Some(told) = question(&Seen {
            scene: &scene,
            log: &log,
        }) {
            return Ok(told);
        }
        tokio::select! {
            changed = seen.changed() => changed?,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// Node and index of the first card that a pod holds, or held last.
fn home(scene: &Scene, pod: &str) -> Option<(String, u32)> {
    let name = format!("{NAMESPACE}/{pod}");
    let mut cards = scene.cards();
    let held = cards.find(|(_, card)| card.grants.iter().any(|grant| grant.pod == name));
    let sick = || scene.cards().find(|(_, card)| card.health != "Healthy");
    held.or_else(sick)
        .map(|(node, card)| (node.clone(), card.index))
}
