//! `aliquot top`: cards with what is granted, used and free, shares under them, and pending pods.
//!
//! In: `GpuNode`s and pods, by `list` alone. On a terminal it is live: `model` has the state and
//! the effect of keys, `draw` renders it, `terminal` has keyboard and screen. Anything else, and a
//! terminal of 40 columns, gets lines.

mod draw;
mod model;
mod terminal;

use crate::connect::{Cluster, ClusterArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::report::{Format, Output, Report, Screen, drawable, say};
use crate::view::{ClusterView, is_shown};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `aliquot top`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Print once and exit.
    #[arg(long)]
    once: bool,
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Only the pods of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    place: ClusterArgs,
    #[command(flatten)]
    output: Output,
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Outcome {
    block_on(async {
        let cluster = args.place.connect().await?;
        let view = look(args, &cluster).await?;
        let table = matches!(args.output.format, Format::Table | Format::Wide);
        if args.once || !table {
            return say(&text(args, &view));
        }
        let every = Duration::from_secs(args.interval);
        if drawable().is_some() && std::io::stdin().is_terminal() {
            let again = async || look(args, &cluster).await;
            return terminal::run(view, every, again).await;
        }
        let mut screen = Screen::new();
        screen.show(&text(args, &view))?;
        loop {
            tokio::time::sleep(every).await;
            match look(args, &cluster).await {
                Ok(view) => screen.show(&text(args, &view))?,
                Err(failure) => screen.show(&format!("{} (trying again)\n", failure.sentence))?,
            }
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn text(args: &Args, view: &ClusterView) -> String {
    match args.output.format {
        Format::Table | Format::Wide => {
            let (width, _) = crate::report::size();
            view.render(width, crate::report::colours())
        }
        _ => {
            let nodes: Vec<_> = view.nodes.values().cloned().collect();
            let table = crate::inventory::cards_table(&nodes);
            let document = view.document();
            let report = Report {
                document: Some(document),
                ..Report::from(table)
            };
            args.output.render(&report, false)
        }
    }
}

async fn look(args: &Args, cluster: &Cluster) -> Result<ClusterView, Failure> {
    let nodes = crate::inventory::chosen(cluster, &[]).await?;
    let pods: Vec<Pod> = cluster.list_known().await?;
    let wanted = |pod: &Pod| {
        is_shown(pod)
            && args
                .namespace
                .as_ref()
                .is_none_or(|wanted| pod.namespace().as_ref() == Some(wanted))
    };
    Ok(ClusterView {
        nodes: nodes
            .into_iter()
            .map(|node| (node.name_any(), node))
            .collect(),
        pods: pods
            .into_iter()
            .filter(wanted)
            .map(|pod| ((pod.namespace().unwrap_or_default(), pod.name_any()), pod))
            .collect(),
    })
}
