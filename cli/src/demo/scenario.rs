//! Scenarios: actions, step by step, and the condition that must be true before the next one.
//!
//! Pure: objects and questions to a view. `scenario_runner` performs them.

use crate::view::ClusterView;
use clap::ValueEnum;
use serde_json::{Value, json};

/// Which scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// A tenant takes all it can get, runs into its limit, and its neighbour notices nothing.
    Limit,
    /// A card stops to answer, work goes elsewhere, the card comes back.
    Card,
    /// Urgent work evicts work of lower priority in its queue.
    Preemption,
    /// A whole card is wanted and only parts are free: a share moves.
    Consolidation,
}

/// The observed state of a cluster: the view, and the output of a container.
pub(crate) struct Seen<'a> {
    pub(crate) view: &'a ClusterView,
    /// By pod name.
    pub(crate) log: &'a dyn Fn(&str) -> Option<String>,
}

/// A condition that must become true; returns the line to print.
type Check = fn(&Seen<'_>) -> Option<String>;

/// One thing that happens.
pub(crate) enum ScenarioStep {
    /// Words.
    Say(&'static str),
    /// An object is applied.
    Apply(Value),
    /// A pod of the scenario is deleted.
    Delete(&'static str),
    /// What a person does to a card: `sim-gpu ctl` of the card that this pod holds.
    Card(&'static str, &'static str),
    /// Waits for it, at most for this time.
    Until(&'static str, Check),
    /// The table as it is now.
    Show,
}

impl Scenario {
    /// How many nodes, and cards of each.
    pub(crate) fn size(self) -> (u32, u32) {
        match self {
            Self::Limit | Self::Preemption => (1, 1),
            Self::Card => (1, 2),
            Self::Consolidation => (2, 1),
        }
    }

    /// From its beginning to its end.
    pub(crate) fn steps(self) -> Vec<ScenarioStep> {
        match self {
            Self::Limit => limit(),
            Self::Card => card(),
            Self::Preemption => preemption(),
            Self::Consolidation => consolidation(),
        }
    }
}

fn limit() -> Vec<ScenarioStep> {
    vec![
        ScenarioStep::Say(
            "Two tenants share one card. `polite` is granted 6000 MiB and takes 3000. `greedy` is granted 4000 MiB and takes 250 more, again and again, until it is refused.",
        ),
        ScenarioStep::Apply(share("polite", "6000", &["alloc", "3000", "hold"])),
        ScenarioStep::Until("polite runs", |seen| runs(seen, "polite")),
        ScenarioStep::Apply(share("greedy", "4000", &["grow", "250", "hold"])),
        ScenarioStep::Until("greedy runs into its limit", |seen| {
            let log = (seen.log)("greedy")?;
            refused(&log, "greedy")
        }),
        ScenarioStep::Until("polite still runs, on the same card", |seen| {
            let view = seen.view;
            let same = view.cards_of(NAMESPACE, "polite") == view.cards_of(NAMESPACE, "greedy");
            runs(seen, "polite").filter(|_| same)?;
            Some("polite runs on the same card and is not affected.".to_owned())
        }),
        ScenarioStep::Show,
        ScenarioStep::Say(
            "The pod's condition aliquot.dev/IsolationVerified says how strong its fence is (Hard, Guarded or Watched), what was read back of it, and how far a hostile program would get.",
        ),
    ]
}

/// What a program that took more and more wrote when it was refused.
pub(super) fn refused(log: &str, name: &str) -> Option<String> {
    let line: Value = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find(|line: &Value| line.get("refused_at_mib").is_some())?;
    Some(format!(
        "{name} had {} MiB, context included; the next 250 were refused: {}.",
        line["held_mib"],
        line["name"].as_str().unwrap_or("out of memory"),
    ))
}

fn card() -> Vec<ScenarioStep> {
    vec![
        ScenarioStep::Say("A node with two cards; `first` holds 4000 MiB of one of them."),
        ScenarioStep::Apply(share("first", "4000", &["alloc", "1000", "hold"])),
        ScenarioStep::Until("first runs", |seen| runs(seen, "first")),
        ScenarioStep::Show,
        ScenarioStep::Say("Now that card falls off the bus."),
        ScenarioStep::Card("first", "lost"),
        ScenarioStep::Until("the agent says so", |seen| {
            let mut sick = seen
                .view
                .cards()
                .filter(|(_, card)| card.health == "Unhealthy");
            let (node, card) = sick.next()?;
            Some(format!(
                "GPU {} of {node} is unhealthy: {}.",
                card.index, card.health_reason
            ))
        }),
        ScenarioStep::Say("New pods are placed on the other card."),
        ScenarioStep::Apply(share("second", "4000", &["alloc", "1000", "hold"])),
        ScenarioStep::Until("second runs on the other card", |seen| {
            let view = seen.view;
            runs(seen, "second")?;
            let sound = view
                .cards()
                .find(|(_, card)| card.grants.iter().any(|grant| grant.pod == "demo/second"))?;
            (sound.1.health == "Healthy").then(|| format!("second runs on GPU {}.", sound.1.index))
        }),
        ScenarioStep::Show,
        ScenarioStep::Say(
            "The card is reset. It is trusted again after ten seconds without a fault.",
        ),
        ScenarioStep::Card("first", "restore"),
        ScenarioStep::Until("the card is healthy again", |seen| {
            let mut cards = seen.view.cards();
            let all = cards.all(|(_, card)| card.health == "Healthy");
            all.then(|| "Both cards are healthy.".to_owned())
        }),
        ScenarioStep::Show,
    ]
}

fn preemption() -> Vec<ScenarioStep> {
    vec![
        ScenarioStep::Say(
            "One card. `training` has all of it, with the priority class train (50).",
        ),
        ScenarioStep::Apply(class("train", 50)),
        ScenarioStep::Apply(class("inference", 125)),
        ScenarioStep::Apply(prioritised(whole("training", 1), "train")),
        ScenarioStep::Until("training runs", |seen| runs(seen, "training")),
        ScenarioStep::Show,
        ScenarioStep::Say(
            "`urgent` joins the same queue with the class inference (125) and requests 4000 MiB.",
        ),
        ScenarioStep::Apply(prioritised(
            share("urgent", "4000", &["alloc", "1000", "hold"]),
            "inference",
        )),
        ScenarioStep::Until("training is evicted", |seen| {
            let gone = seen.view.pod(NAMESPACE, "training").is_none();
            gone.then(|| "training is evicted. Its card becomes a shared one.".to_owned())
        }),
        ScenarioStep::Until("urgent runs", |seen| runs(seen, "urgent")),
        ScenarioStep::Show,
        ScenarioStep::Say(
            "training's controller would recreate it now; it would wait, and `aliquot explain` would say for which pod.",
        ),
    ]
}

fn consolidation() -> Vec<ScenarioStep> {
    vec![
        ScenarioStep::Say(
            "Two nodes with a card each, and shares on both: `big-1` and `small` on one, `big-2` on the other.",
        ),
        // Wherever there is room first: the scenario wants one on each node.
        ScenarioStep::Apply(on_node(fraction("big-1", "0.65"), 1)),
        ScenarioStep::Until("big-1 runs", |seen| runs(seen, "big-1")),
        ScenarioStep::Apply(on_node(fraction("big-2", "0.6"), 2)),
        ScenarioStep::Until("big-2 runs", |seen| runs(seen, "big-2")),
        ScenarioStep::Apply(fraction("small", "0.3")),
        ScenarioStep::Until("small runs beside big-1", |seen| {
            runs(seen, "small")?;
            let view = seen.view;
            let beside = view.cards_of(NAMESPACE, "small") == view.cards_of(NAMESPACE, "big-1");
            beside.then(|| "small runs beside big-1.".to_owned())
        }),
        ScenarioStep::Show,
        ScenarioStep::Say(
            "big-1 is done. Now `whole` wants a card of its own: no card is empty, though small would fit beside big-2.",
        ),
        ScenarioStep::Delete("big-1"),
        ScenarioStep::Until("big-1 is gone", |seen| gone(seen, "big-1")),
        ScenarioStep::Apply(whole("whole", 1)),
        ScenarioStep::Until("small is evicted", |seen| {
            gone(seen, "small").map(|_| "The scheduler evicts small, for consolidation. Its controller recreates it; here the scenario does.".to_owned())
        }),
        ScenarioStep::Apply(fraction("small", "0.3")),
        ScenarioStep::Until("small runs beside big-2", |seen| {
            runs(seen, "small")?;
            let view = seen.view;
            let beside = view.cards_of(NAMESPACE, "small") == view.cards_of(NAMESPACE, "big-2");
            beside.then(|| "small runs beside big-2.".to_owned())
        }),
        ScenarioStep::Until("whole runs", |seen| runs(seen, "whole")),
        ScenarioStep::Show,
    ]
}

/// Namespace of the scenarios' pods.
pub(crate) const NAMESPACE: &str = super::walkthrough::NAMESPACE;

fn runs(seen: &Seen<'_>, name: &str) -> Option<String> {
    let view = seen.view;
    let status = view.pod(NAMESPACE, name)?.status.as_ref()?;
    let shown = !view.cards_of(NAMESPACE, name).is_empty();
    (status.phase.as_deref() == Some("Running") && shown).then(|| format!("{name} runs."))
}

fn gone(seen: &Seen<'_>, name: &str) -> Option<String> {
    let there = seen.view.pod(NAMESPACE, name).is_some();
    let holds = !seen.view.cards_of(NAMESPACE, name).is_empty();
    (!there && !holds).then(|| format!("{name} is gone."))
}

fn pod(name: &str, annotations: &Value, limits: &Value, script: &[&str]) -> Value {
    let args = [&["workload"], script].concat();
    super::walkthrough::pod(name, "research", annotations, limits, &args)
}

fn share(name: &str, mib: &str, script: &[&str]) -> Value {
    pod(name, &json!({"gpu-memory": mib}), &json!({}), script)
}

fn fraction(name: &str, part: &str) -> Value {
    pod(
        name,
        &json!({"gpu-fraction": part}),
        &json!({}),
        &["alloc", "512", "hold"],
    )
}

fn whole(name: &str, count: u32) -> Value {
    let limits = json!({"nvidia.com/gpu": count.to_string()});
    pod(name, &json!({}), &limits, &["alloc", "512", "hold"])
}

fn on_node(mut pod: Value, number: u32) -> Value {
    let name = super::cluster::node_name(number);
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": name});
    pod
}

fn prioritised(mut pod: Value, class: &str) -> Value {
    pod["metadata"]["labels"][proto::names::kai::PRIORITY_CLASS_LABEL] = json!(class);
    pod
}

fn class(name: &str, value: i32) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": name}, "value": value})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_story_waits_for_what_it_tells_and_shows_how_it_ends() {
        for scenario in Scenario::value_variants() {
            let steps = scenario.steps();
            let waits = steps
                .iter()
                .filter(|step| matches!(step, ScenarioStep::Until(..)))
                .count();
            let shows = steps
                .iter()
                .filter(|step| matches!(step, ScenarioStep::Show))
                .count();
            assert!(waits >= 3 && shows >= 1, "{scenario:?}");
            // In an empty cluster no condition is true, except that pods are gone.
            let view = ClusterView::default();
            let seen = Seen {
                view: &view,
                log: &|_| None,
            };
            for step in &steps {
                if let ScenarioStep::Until(what, question) = step
                    && !["gone", "evicted", "healthy"]
                        .iter()
                        .any(|word| what.contains(word))
                {
                    assert_eq!(question(&seen), None, "{scenario:?}: {what}");
                }
            }
        }
    }
}
