//! Runs a scenario: its steps one after the other, against the running cluster.

use super::cluster::HardwareControl;
use super::print::{complain, picture, say};
use super::scenario::{NAMESPACE, Scenario, ScenarioStep, Seen};
use crate::manifest;
use crate::view::ClusterView;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::sync::watch as channel;

/// Longest wait for one step.
const PATIENCE: Duration = Duration::from_mins(1);
/// Interval at which the output of containers is read.
const AGAIN: Duration = Duration::from_millis(200);

/// Runs it to its end: exit code 0, or 1 with the step that did not happen.
pub(super) async fn tell(
    scenario: Scenario,
    client: &Client,
    hardware: &HardwareControl,
    mut seen: channel::Receiver<ClusterView>,
) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    for queue in super::walkthrough::queues() {
        manifest::apply(client, &queue).await?;
    }
    for step in scenario.steps() {
        match step {
            ScenarioStep::Say(words) => say(&format!("{words}\n")),
            ScenarioStep::Show => say(&format!("\n{}\n", picture(&seen.borrow_and_update()))),
            ScenarioStep::Apply(object) => {
                manifest::apply(client, &object).await?;
            }
            ScenarioStep::Delete(name) => {
                let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
                pods.delete(name, &DeleteParams::default())
                    .await
                    .with_context(|| format!("pod {name} cannot be deleted"))?;
            }
            ScenarioStep::Card(pod, verb) => {
                let (node, index) =
                    home(&seen.borrow(), pod).with_context(|| format!("{pod} is on no card"))?;
                hardware.card(&node, index, verb).await?;
            }
            ScenarioStep::Until(what, question) => {
                match tokio::time::timeout(PATIENCE, until(question, hardware, &mut seen)).await {
                    Ok(told) => say(&format!(
                        "  {:>4.1} s  {}\n",
                        begin.elapsed().as_secs_f64(),
                        told?
                    )),
                    Err(_) => {
                        say(&format!("\n{}\n", picture(&seen.borrow())));
                        complain(&format!(
                            "aliquot demo: the scenario stops here: {what} did not happen within {} s",
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
    hardware: &HardwareControl,
    seen: &mut channel::Receiver<ClusterView>,
) -> anyhow::Result<String> {
    loop {
        let view = seen.borrow_and_update().clone();
        let log = |name: &str| hardware.log(&view, name);
        if let Some(told) = question(&Seen {
            view: &view,
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
fn home(view: &ClusterView, pod: &str) -> Option<(String, u32)> {
    let name = format!("{NAMESPACE}/{pod}");
    let mut cards = view.cards();
    let held = cards.find(|(_, card)| card.grants.iter().any(|grant| grant.pod == name));
    let sick = || view.cards().find(|(_, card)| card.health != "Healthy");
    held.or_else(sick)
        .map(|(node, card)| (node.clone(), card.index))
}
