//! `aliquot plan`: what a cluster without Aliquot would gain from it, and what its policies would refuse.
//!
//! - `holders`: pods that hold whole GPUs, and how much memory of them they used; `packing`: the cards
//!   on which they would fit as shares.
//!
//! Reads nodes, pods and namespaces, and Prometheus where its address is given. It needs nothing of
//! Aliquot in the cluster, and writes nothing.

mod holders;
mod packing;

use crate::connect::{ClusterArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::report::{Cell, Column, Output, Report, Table, Tone};
use crate::shadow::clock;
use api::guard::{HOST_PATHS, POLICIES};
use api::owner::controller;
use holders::{Fleet, Holder, Used};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::ResourceExt as _;
use packing::Packing;
use scheduler::prometheus::{Sample, client};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

/// Timeout for the query of Prometheus.
const PATIENCE: Duration = Duration::from_mins(1);
/// Refused workloads of which the reason is printed.
const REASONS: usize = 10;

/// Flags of `aliquot plan`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: ClusterArgs,
    /// Prometheus with the metrics of NVIDIA's DCGM exporter; without it, the memory that pods use is
    /// unknown.
    #[arg(long, value_name = "URL")]
    prometheus: Option<String>,
    /// With --prometheus: the hours of which the highest use counts.
    #[arg(long, value_name = "HOURS", default_value_t = 24,
        value_parser = clap::value_parser!(u32).range(1..=720), requires = "prometheus")]
    last: u32,
    /// Per cent of memory that a share has beyond what its pod used.
    #[arg(long, value_name = "PERCENT", default_value_t = 25,
        value_parser = clap::value_parser!(u64).range(0..=1000))]
    headroom: u64,
    #[command(flatten)]
    output: Output,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    block_on(async {
        let cluster = args.place.connect().await?;
        let (nodes, pods, namespaces) = tokio::try_join!(
            cluster.list::<Node>(),
            cluster.list::<Pod>(),
            cluster.list_names::<Namespace>()
        )?;
        let used = match &args.prometheus {
            Some(url) => Some(used(url, args.last).await?),
            None => None,
        };
        let exempt = namespaces
            .iter()
            .filter(|one| {
                let label = one.labels().get(proto::names::guard::LABEL);
                label.is_some_and(|value| value == proto::names::guard::EXEMPT)
            })
            .map(kube::ResourceExt::name_any)
            .chain(["kube-system".to_owned(), proto::names::NAMESPACE.to_owned()])
            .collect();
        let fleet = Fleet::of(&nodes, &pods, used.as_ref());
        let refused = refused(&pods, &exempt);
        args.output.print(&report(args, &fleet, &refused))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The labels of a sample, behind a Prometheus that honours the exporter's labels and behind one that
/// does not.
#[derive(Debug, Deserialize)]
struct Labels {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    pod: String,
    #[serde(default)]
    exported_namespace: String,
    #[serde(default)]
    exported_pod: String,
}

/// Returns the most memory that each pod used of one card.
async fn used(url: &str, hours: u32) -> Result<Used, Failure> {
    let prometheus = client(url).map_err(|why| {
        Failure::input(format!(
            "--prometheus (such as http://localhost:9090): {why}"
        ))
    })?;
    let query = format!(
        "max by (namespace, pod, exported_namespace, exported_pod) (max_over_time(DCGM_FI_DEV_FB_USED[{hours}h]))"
    );
    let asked = tokio::time::timeout(PATIENCE, prometheus.instant::<Labels>(&query, clock()));
    let samples = asked.await.map_err(|_| {
        Failure::cluster(format!(
            "Prometheus did not answer within {} s",
            PATIENCE.as_secs()
        ))
    })?;
    let samples = samples.map_err(Failure::cluster)?;
    if samples.is_empty() {
        return Err(Failure::no(format!(
            "Prometheus at {} has no DCGM_FI_DEV_FB_USED of the last {hours} h: is the DCGM exporter scraped?",
            prometheus.shown()
        )));
    }
    let mut used = Used::new();
    for (pod, mib) in samples.into_iter().filter_map(of_sample) {
        // An exporter that was started again is another series of the same pod.
        let most = used.entry(pod).or_default();
        *most = mib.max(*most);
    }
    Ok(used)
}

fn of_sample(sample: Sample<Labels>) -> Option<((String, String), u64)> {
    let Labels {
        namespace,
        pod,
        exported_namespace,
        exported_pod,
    } = sample.metric;
    // The exporter's own pod is in `pod` where its labels were renamed.
    let key = if exported_pod.is_empty() {
        (namespace, pod)
    } else {
        (exported_namespace, exported_pod)
    };
    let mib: f64 = sample.value.1.parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "MiB of a card, not negative"
    )]
    let mib = mib.clamp(0.0, 1e12).ceil() as u64;
    (!key.1.is_empty()).then_some((key, mib))
}

/// The number of refused pods, by workload and reason.
type Refused = BTreeMap<(String, String), u64>;

/// Returns the workloads whose pods the policies would refuse if they were created again.
fn refused(pods: &[Pod], exempt: &BTreeSet<String>) -> Refused {
    let mut refused = Refused::new();
    for pod in pods.iter().filter(|pod| holders::is_live(pod)) {
        let namespace = pod.namespace().unwrap_or_default();
        if exempt.contains(&namespace) {
            continue;
        }
        let Some(refusal) = api::guard::refusal(pod) else {
            continue;
        };
        // KAI's webhook writes variables and a runtime class into the pods of its shares; under Aliquot
        // they have none.
        if api::guard::requests_share(pod) && refusal.policy != HOST_PATHS {
            continue;
        }
        let name = match controller(pod) {
            Some(owner) => format!("{namespace}/{} ({})", owner.name, owner.kind),
            None => format!("{namespace}/{}", pod.name_any()),
        };
        *refused.entry((name, refusal.why)).or_default() += 1;
    }
    refused
}

const COLUMNS: &[Column] = &[
    Column::text("namespace", "NAMESPACE"),
    Column::text("pod", "POD"),
    Column::text("node", "NODE").wide(),
    Column::text("product", "PRODUCT"),
    Column::number("gpus", "GPUS"),
    Column::number("usedMib", "USED MIB"),
    Column::number("cardMib", "OF MIB"),
    Column::number("shareMib", "SHARE MIB"),
];

fn report(args: &Args, fleet: &Fleet, refused: &Refused) -> Report {
    let share = |holder: &Holder| holder.share(args.headroom);
    let packing = Packing::of(&fleet.holders, args.headroom);
    let mut table = Table::new(COLUMNS, "no pod holds a GPU");
    let mut holders: Vec<&Holder> = fleet.holders.iter().collect();
    // The pod that would free most memory comes first.
    holders.sort_by_key(|one| {
        let free = share(one).map(|share| one.card_mib.unwrap_or(0).saturating_sub(share));
        (std::cmp::Reverse(free), &one.namespace, &one.pod)
    });
    for one in holders {
        let share = share(one);
        table.row(vec![
            one.namespace.clone().into(),
            one.pod.clone().into(),
            one.node.clone().into(),
            Cell::from(one.product.clone()),
            one.gpus.into(),
            Cell::from(one.used_mib),
            Cell::from(one.card_mib),
            Cell::from(share).tone(if share.is_some() {
                Tone::Good
            } else {
                Tone::Dim
            }),
        ]);
    }
    let mut report = Report::from(table);
    report.above = above(args, fleet, &packing);
    report.below = below(refused);
    report.document = Some(json!({
        "nodes": fleet.nodes, "nodesWithSharedGpus": fleet.sharing, "nodesWithMig": fleet.mig, "podsWithShares": fleet.shares, "gpus": fleet.gpus, "held": fleet.held, "podsWithoutKnownUse": packing.unknown,
        "shares": packing.shares, "cardsForShares": packing.cards,
        "pods": report.table.objects(),
        "refused": refused.iter().map(|((workload, why), pods)| json!({"workload": workload, "pods": pods, "why": why})).collect::<Vec<_>>(),
    }));
    report
}

fn above(args: &Args, fleet: &Fleet, packing: &Packing) -> Vec<Cell> {
    let mut lines = vec![Cell::from(format!(
        "{} on which pods get GPUs of their own, with {}; {} hold {} of them",
        count(fleet.nodes, "node"),
        count(fleet.gpus, "GPU"),
        count(fleet.holders.len() as u64, "pod"),
        fleet.held
    ))];
    let mut note = |number: u64, of: &str, what: &str| {
        if number > 0 {
            lines.push(Cell::from(format!("{}{what}", count(number, of))));
        }
    };
    note(
        fleet.sharing,
        "node",
        " not counted: several pods get the same GPU there (time-slicing, MPS or another plugin)",
    );
    note(
        fleet.mig,
        "node",
        " not counted: the GPUs there are MIG slices",
    );
    note(
        fleet.shares,
        "pod",
        " with a share already, by KAI's annotations",
    );
    if fleet.nodes + fleet.sharing + fleet.mig == 0 {
        lines.push(Cell::from(
            "no device plugin counts GPUs in this cluster (nvidia.com/gpu); those that DRA hands out are not counted",
        ));
    }
    if packing.shares > packing.cards {
        let line = format!(
            "{} used at most half of their GPU's memory in the last {} h; with shares of that and {} % more, they fit on {} in place of {}, by GPU memory alone",
            count(packing.shares, "pod"),
            args.last,
            args.headroom,
            count(packing.cards, "GPU"),
            packing.shares
        );
        lines.push(Cell::from(line).tone(Tone::Good));
    } else if args.prometheus.is_some() && packing.unknown < fleet.holders.len() as u64 {
        lines.push(Cell::from(
            "shares would free no GPU: too few pods have one GPU and used at most half of its memory",
        ));
    }
    if args.prometheus.is_none() {
        lines.push(
            Cell::from(
                "the memory that pods use is unknown: give --prometheus URL (of a Prometheus that scrapes NVIDIA's DCGM exporter)",
            )
            .tone(Tone::Warn),
        );
    } else if packing.unknown > 0 {
        lines.push(Cell::from(format!(
            "the use of {} is unknown; they keep their GPUs",
            count(packing.unknown, "pod")
        )));
    }
    lines
}

fn below(refused: &Refused) -> Vec<Cell> {
    let judged = POLICIES.join(", ");
    let mut lines = Vec::new();
    if refused.is_empty() {
        lines.push(Cell::from(format!(
            "of the policies {judged}, none would refuse an existing pod"
        )));
    } else {
        lines.push(
            Cell::from(format!(
                "the policies {judged} would refuse {} when they are created again, unless their namespaces have the label {}={}:",
                count(refused.values().sum(), "existing pod"),
                proto::names::guard::LABEL,
                proto::names::guard::EXEMPT
            ))
            .tone(Tone::Warn),
        );
        let shown = refused.iter().take(REASONS);
        lines.extend(shown.map(|((workload, why), pods)| {
            Cell::from(format!("  {workload}, {}: {why}", count(*pods, "pod")))
        }));
        if refused.len() > REASONS {
            lines.push(Cell::from(format!(
                "  and {} more (-o json)",
                refused.len() - REASONS
            )));
        }
    }
    lines.push(Cell::from(
        "to try one node, and how to go back: docs/evaluate.md",
    ));
    lines
}

fn count(number: u64, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
