//! `aliquot explain POD`: why it waits, card by card, the holders of what it needs, and the
//! cheapest change that would let it run.
//!
//! The changes come from [`scheduler::trial::advice`], as on the status page.
//!
//! Every sentence is the core's own: the same `fit` decides, and a change is only named
//! after the core has placed the pod under it.

use crate::connect::block_on;
use crate::failure::{Failure, Outcome};
use crate::report::{Cell, Column, Output, Report, Table, Tone};
use crate::shadow::{Shadow, Source};
use scheduler::forecast::{Estimate, Forecast};
use scheduler::trial::advice::{self, Change};
use scheduler::trial::{ClusterState, seconds};
use scheduler_core::model::{Phase, Pod};
use scheduler_core::{Action, Explanation, ReasonKind};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;

/// Flags of `aliquot explain`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Which pod.
    #[arg(value_name = "[NAMESPACE/]POD")]
    pod: String,
    /// Namespace of the pod; by default that of the context.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    output: Output,
}

const COLUMNS: &[Column] = &[
    Column::text("node", "NODE"),
    Column::number("gpu", "GPU"),
    Column::number("freeMib", "FREE MIB"),
    Column::text("heldBy", "HELD BY"),
    Column::text("fits", "FITS"),
    Column::text("why", "WHY NOT"),
    Column::text("uuid", "UUID").wide(),
    Column::text("product", "PRODUCT").wide(),
];

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    block_on(async {
        let (namespace, name) = match args.pod.split_once('/') {
            Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
            None => {
                let namespace = match &args.namespace {
                    Some(namespace) => namespace.clone(),
                    None => args.source.namespace().await?,
                };
                (namespace, args.pod.clone())
            }
        };
        let shadow = args.source.load().await?;
        let report = report(&shadow, &namespace, &name)?;
        args.output.print(&report)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn report(shadow: &Shadow, namespace: &str, name: &str) -> Result<Report, Failure> {
    let state = ClusterState::of(shadow.core());
    let mistakes = shadow
        .mistakes
        .get(&(namespace.to_owned(), name.to_owned()));
    let mistakes = mistakes.into_iter().flatten();
    let pod = pod_named(&state, namespace, name).map_err(|failure| {
        // It is there, and this is why the scheduler does not see it.
        let said: Vec<String> = mistakes.clone().map(ToString::to_string).collect();
        match said.as_slice() {
            [] => failure,
            said => Failure::no(format!(
                "{namespace}/{name} gets no GPU: {}",
                said.join("; ")
            )),
        }
    })?;
    if let Some(mut lines) = placed(&state, pod) {
        lines.extend(
            shadow
                .resize(&pod.uid)
                .map(|said| format!("is resized: {said}")),
        );
        let crash = shadow.crashes.get(&pod.uid);
        lines.extend(crash.map(|crash| format!("does not run there: {crash}")));
        let without = mistakes
            .clone()
            .map(|finding| format!("gets no GPU: {finding}"));
        let before = lines.len();
        lines.extend(without);
        let wrong = crash.is_some() || lines.len() > before;
        return Ok(done(pod, &lines, wrong));
    }
    let Some(mut explanation) = shadow.core().explain(&pod.uid) else {
        return Err(Failure::no(format!(
            "{namespace}/{name} is not known to the core"
        )));
    };
    let (verdict, said) = verdict(shadow, pod, &explanation);
    // What only a decision finds out, such as a limit of its queue.
    if let Some((kind, line)) = said.filter(|_| explanation.kind.is_none()) {
        explanation.kind = Some(kind);
        explanation.line = line;
    }
    let changes = match verdict {
        Verdict::Waits => advice::that_help(
            shadow.core(),
            shadow.now,
            &state,
            pod,
            explanation.kind,
            None,
        ),
        Verdict::Soon(_) => Vec::new(),
    };
    let mut forecast = match verdict {
        Verdict::Waits => shadow.forecast(),
        Verdict::Soon(_) => Forecast::default(),
    };
    let (made, start) = (forecast.made, forecast.pods.remove(&pod.uid));
    let mut report = Report::from(cards(&state, &explanation));
    let who = format!("{namespace}/{name}");
    report.above.push(match &verdict {
        Verdict::Soon(how) => Cell::from(format!("{who}: {how}")).tone(Tone::Good),
        Verdict::Waits => {
            let line = match &*explanation.line {
                "" => "it could be placed, but other pods come first",
                // What follows is card by card, as the table below.
                line => line.split(". node ").next().unwrap_or(line),
            };
            Cell::from(format!("{who} waits in queue {}: {line}", pod.queue)).tone(Tone::Warn)
        }
    });
    if verdict == Verdict::Waits {
        let spared = explanation.spared.iter().map(|line| Cell::from(&**line));
        report
            .above
            .extend(spared.map(|cell| cell.tone(Tone::Warn)));
        let start = start.as_ref().map(|start| start.line(made));
        report.above.extend(start.map(Cell::from));
        report.below = advice(&changes);
    }
    report.document = Some(document(
        pod,
        &verdict,
        &explanation,
        &report.table,
        &changes,
        start.as_ref(),
    ));
    Ok(report)
}

/// The pod of that name; of several that had it, the one that is not over.
fn pod_named<'a>(state: &'a ClusterState, namespace: &str, name: &str) -> Result<&'a Pod, Failure> {
    let over = |pod: &Pod| matches!(pod.phase, Phase::Succeeded | Phase::Failed);
    let mut found: Vec<&Pod> = state
        .pods
        .values()
        .filter(|pod| &*pod.namespace == namespace && &*pod.name == name)
        .collect();
    found.sort_by_key(|pod| (over(pod), std::cmp::Reverse(pod.created)));
    let Some(pod) = found.first() else {
        return Err(Failure::no(format!(
            "no pod {name} in namespace {namespace} is this scheduler's, or is on a node"
        )));
    };
    if pod.ours {
        Ok(pod)
    } else {
        Err(Failure::no(format!(
            "{namespace}/{name} is placed by another scheduler: its spec.schedulerName is not this one's"
        )))
    }
}

/// The core's word on why a pod waits.
type Said = Option<(ReasonKind, Arc<str>)>;

/// What the next decisions do with the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It gets a place without a change by the user.
    Soon(String),
    /// It does not.
    Waits,
}

fn verdict(shadow: &Shadow, pod: &Pod, explanation: &Explanation) -> (Verdict, Said) {
    if explanation.kind == Some(ReasonKind::Promised) {
        return (Verdict::Soon(explanation.line.to_string()), None);
    }
    let mut copy = shadow.copy();
    let (after, decision) = copy.decide_in_time();
    let decides = match after.0 {
        0 => "the next decision".to_owned(),
        _ => format!("if nothing changes, a decision {} from now", seconds(after)),
    };
    for action in &decision.actions {
        match action {
            Action::Bind(bind) if bind.pod == pod.uid => {
                let how = format!(
                    "{decides} places it on node {}{}",
                    bind.node,
                    gets(&bind.grants)
                );
                return (Verdict::Soon(how), None);
            }
            _ => {}
        }
    }
    let promise = decision.promises.iter().find(|p| p.pod == pod.uid);
    match promise {
        None => {
            let said = decision.reasons.iter().find(|said| said.pod == pod.uid);
            let said = said.map(|said| (said.kind, Arc::clone(&said.line)));
            (Verdict::Waits, said)
        }
        Some(promise) => {
            let evicted: Vec<String> = decision
                .actions
                .iter()
                .filter_map(|action| match action {
                    Action::Evict(evict) => Some(format!("{}/{}", evict.namespace, evict.name)),
                    Action::Bind(_) => None,
                })
                .collect();
            let how = if evicted.is_empty() {
                format!(
                    "it gets a place on node {} when the pods that are leaving there have ended",
                    promise.node
                )
            } else {
                format!(
                    "{decides} evicts {} and gives it a place on node {}",
                    evicted.join(", "),
                    promise.node
                )
            };
            (Verdict::Soon(how), None)
        }
    }
}

fn gets(grants: &[scheduler_core::model::ContainerGrant]) -> String {
    let cell = crate::actions::grants(grants);
    if cell.shown.is_empty() {
        String::new()
    } else {
        format!(", with {}", cell.shown)
    }
}

/// What a pod that does not wait has, or that it is over.
fn placed(state: &ClusterState, pod: &Pod) -> Option<Vec<String>> {
    let (word, placement) = match &pod.phase {
        Phase::Pending => {
            let bind = state.assumed(&pod.uid)?;
            return Some(vec![format!(
                "is being bound to node {}{}",
                bind.node,
                gets(&bind.grants)
            )]);
        }
        Phase::Bound(placement) => ("is bound to node", placement),
        Phase::Running(placement) => ("runs on node", placement),
        Phase::Releasing(Some(placement)) => ("is leaving node", placement),
        Phase::Stuck(placement) => (
            "should have ended and still holds its place on node",
            placement,
        ),
        Phase::Releasing(None) => {
            return Some(vec!["is being deleted and holds nothing".to_owned()]);
        }
        Phase::Succeeded => return Some(vec!["has succeeded and holds nothing".to_owned()]),
        Phase::Failed => return Some(vec!["has failed and holds nothing".to_owned()]),
    };
    Some(vec![format!(
        "{word} {}{}",
        placement.node,
        gets(&placement.grants)
    )])
}

fn done(pod: &Pod, lines: &[String], wrong: bool) -> Report {
    let tone = if wrong { Tone::Bad } else { Tone::Good };
    let who = format!("{}/{}", pod.namespace, pod.name);
    Report {
        above: lines
            .iter()
            .map(|line| Cell::from(format!("{who} {line}")).tone(tone))
            .collect(),
        document: Some(
            json!({"namespace": &*pod.namespace, "pod": &*pod.name, "uid": pod.uid.as_str(),
            "queue": pod.queue.as_str(), "waits": false, "line": lines.join("; ")}),
        ),
        ..Report::default()
    }
}

/// One row per card, and per node that will not do whatever its cards say.
fn cards(state: &ClusterState, explanation: &Explanation) -> Table {
    let mut table = Table::new(COLUMNS, "the cluster has no nodes");
    for node in &explanation.nodes {
        let reasons: Vec<&str> = node.reasons.iter().map(|reason| &**reason).collect();
        let reasons = reasons.join(", ");
        let cards = state.cards(&node.node);
        let fits = |fits: bool| Cell::from(fits).tone(if fits { Tone::Good } else { Tone::Plain });
        if cards.is_empty() {
            table.row(vec![
                node.node.to_string().into(),
                Cell::from(None::<u32>),
                Cell::from(None::<u64>),
                Cell::shown(Value::Array(Vec::new()), ""),
                fits(node.fits),
                reasons.into(),
                "".into(),
                "".into(),
            ]);
            continue;
        }
        for held in cards {
            let said = node.cards.iter().find_map(|line| {
                let rest = line.strip_prefix(held.card.uuid.as_str())?;
                let why = rest.split_once(": ").map_or(rest, |(_, why)| why);
                Some(why.to_owned())
            });
            let holders: Vec<Value> = held
                .holders
                .iter()
                .map(|(pod, mib)| json!({"pod": pod, "memoryMib": mib.0}))
                .collect();
            let shown: Vec<String> = held
                .holders
                .iter()
                .map(|(pod, mib)| format!("{pod} {}", mib.0))
                .collect();
            // A card without a reason fits by itself, but its node may not fit. For a card in MIG
            // mode only the number of its slices is known, by profile and for the whole node.
            let uncounted = held.card.mig && said.is_none() && node.fits;
            let why = match said {
                Some(why) if node.reasons.len() > 1 => format!("{why}; {reasons}"),
                Some(why) => why,
                None if node.fits => String::new(),
                None => reasons.clone(),
            };
            table.row(vec![
                node.node.to_string().into(),
                held.card.index.into(),
                held.free().0.into(),
                Cell::shown(holders, shown.join(", ")),
                if uncounted {
                    Cell::from(None::<bool>)
                } else {
                    fits(node.fits && why.is_empty())
                },
                why.into(),
                held.card.uuid.to_string().into(),
                held.card.product.to_string().into(),
            ]);
        }
    }
    table
}

fn advice(changes: &[Change]) -> Vec<Cell> {
    let Some(first) = changes.first() else {
        return vec!["No single change that was tried would let it run.".into()];
    };
    let sentence = if first.suffices {
        format!("The cheapest change that lets it run: {}", first.what)
    } else {
        format!("Before anything else helps: {}", first.what)
    };
    let mut lines = vec![Cell::from(sentence).tone(Tone::Good)];
    lines.extend(
        first
            .command
            .iter()
            .map(|command| Cell::from(format!("    {command}"))),
    );
    if changes.len() > 1 {
        lines.push("Also:".into());
    }
    for change in changes.iter().skip(1) {
        lines.push(format!("  - {}", change.what).into());
        lines.extend(
            change
                .command
                .iter()
                .map(|command| Cell::from(format!("    {command}"))),
        );
    }
    lines
}

fn document(
    pod: &Pod,
    verdict: &Verdict,
    explanation: &Explanation,
    table: &Table,
    changes: &[Change],
    start: Option<&Estimate>,
) -> Value {
    let nodes: Vec<Value> = explanation
        .nodes
        .iter()
        .map(|node| {
            let reasons: Vec<&str> = node.reasons.iter().map(|reason| &**reason).collect();
            json!({"node": node.node.as_str(), "fits": node.fits, "reasons": reasons})
        })
        .collect();
    let changes: Vec<Value> = changes
        .iter()
        .map(|change| json!({"what": change.what, "command": change.command}))
        .collect();
    json!({
        "namespace": &*pod.namespace,
        "pod": &*pod.name,
        "uid": pod.uid.as_str(),
        "queue": pod.queue.as_str(),
        "waits": *verdict == Verdict::Waits,
        "kind": explanation.kind.map(ReasonKind::as_str),
        "line": match verdict {
            Verdict::Soon(how) => how.as_str(),
            Verdict::Waits => &explanation.line,
        },
        "nodes": nodes,
        "spared": explanation.spared.iter().map(|line| &**line).collect::<Vec<_>>(),
        "cards": table.objects(),
        "changes": changes,
        "estimatedStart": start.map(estimated_start),
    })
}

/// The estimate of a start, for programs. Times are in milliseconds since 1970.
fn estimated_start(start: &Estimate) -> Value {
    match start {
        Estimate::About {
            time,
            after,
            known,
            of,
        } => json!({
            "kind": "about", "timeMs": time.0, "after": after.as_ref().map(|pod| &*pod.name),
            "knownRunTimes": known, "podsInTheWay": of,
        }),
        Estimate::NotBefore { time } => json!({"kind": "not-before", "timeMs": time.0}),
        Estimate::Unknown { unknown } => {
            json!({"kind": "unknown", "unknownRunTimes": unknown})
        }
    }
}

#[cfg(test)]
mod tests;
