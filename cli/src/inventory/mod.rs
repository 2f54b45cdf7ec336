//! `aliquot nodes`, `cards`, `shares`: what the agents say, as tables.
//!
//! In: `GpuNode`s, by `list` alone. Out: reports; pure but for the one list.

mod cards;
mod nodes;
mod shares;

pub(crate) use cards::cards_of;

use crate::connect::{Cluster, ClusterArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::report::{Follow, Output, Report, Table};
use api::GpuNode;
use api::gpu_node::GpuStatus;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use shares::Crashes;
use std::process::ExitCode;

/// Flags of the three.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Only of these nodes.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    #[command(flatten)]
    place: ClusterArgs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    follow: Follow,
}

/// Flags of `aliquot shares`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ShareArgs {
    /// Only of this namespace; else of all.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    common: Args,
}

/// `aliquot nodes`.
pub(crate) fn nodes(args: &Args) -> Outcome {
    run(args, |nodes| Report::from(nodes::table(nodes)))
}

/// `aliquot cards`.
pub(crate) fn cards(args: &Args) -> Outcome {
    run(args, |nodes| Report::from(cards::table(nodes)))
}

/// `aliquot shares`.
pub(crate) fn shares(args: &ShareArgs) -> Outcome {
    let namespace = args.namespace.as_deref();
    let common = &args.common;
    block_on(async {
        let cluster = common.place.connect().await?;
        let look = async || {
            let nodes = chosen(&cluster, &common.nodes).await?;
            let pods = match namespace {
                Some(namespace) => cluster.list_in::<Pod>(namespace).await,
                None => cluster.list::<Pod>().await,
            };
            // A user who may read what agents publish may lack the right to read pods.
            let pods = pods.unwrap_or_default();
            Ok(Report::from(shares::table(
                &nodes,
                namespace,
                &Crashes::of(&pods),
            )))
        };
        common.follow.print(common.output, look).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// One row per card.
pub(crate) fn cards_table(nodes: &[GpuNode]) -> Table {
    cards::table(nodes)
}

/// One row per node.
pub(crate) fn nodes_table(nodes: &[GpuNode]) -> Table {
    nodes::table(nodes)
}

/// One row per container and card.
pub(crate) fn shares_table<'a>(
    nodes: &[GpuNode],
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Table {
    shares::table(nodes, None, &Crashes::of(pods))
}

/// Whether a card can be used, in one word.
pub(crate) fn card_state(card: &GpuStatus) -> &'static str {
    cards::state(card).0
}

/// Returns the memory in use on a card, as precisely as it is known.
pub(crate) fn used(card: &GpuStatus) -> String {
    cards::used(card)
}

fn run(args: &Args, of: impl Fn(&[GpuNode]) -> Report) -> Outcome {
    block_on(async {
        let cluster = args.place.connect().await?;
        let look = async || Ok(of(&chosen(&cluster, &args.nodes).await?));
        args.follow.print(args.output, look).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The `GpuNode`s of these names, or all, in order of name.
pub(crate) async fn chosen(cluster: &Cluster, names: &[String]) -> Result<Vec<GpuNode>, Failure> {
    let mut nodes: Vec<GpuNode> = cluster.list_known().await?;
    for name in names {
        if !nodes.iter().any(|node| node.name_any() == *name) {
            return Err(Failure::no(format!(
                "no agent reports from node {name} (there is no GpuNode of that name)"
            )));
        }
    }
    nodes.retain(|node| names.is_empty() || names.contains(&node.name_any()));
    nodes.sort_by_key(ResourceExt::name_any);
    Ok(nodes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::Format;
    use serde_json::{Value, json};

    /// Two nodes: one with two shares on its first card and a stranger on its second, one
    /// that offers nothing.
    pub(crate) fn nodes() -> Vec<GpuNode> {
        let grant = |pod: &str, mib: u64| {
            json!({"pod": format!("team-a/{pod}"), "podUid": format!("uid-{pod}"), "container": "main",
                "memoryMib": mib, "computePercent": 50, "phase": "Running", "fence": "ClientLimit", "reachMib": 10000})
        };
        let card = |index: u64, more: Value| {
            let mut card = json!({"uuid": format!("GPU-{index}"), "index": index, "product": "NVIDIA L4",
                "totalMib": 23034, "reservedMib": 34, "usedMib": 0, "grantedMib": 0, "grantableMib": 23000,
                "switchableModes": ["exclusive", "mps"], "ready": true, "health": "Healthy", "pci": "00000000:01:00.0"});
            for (key, value) in more.as_object().unwrap() {
                card[key] = value.clone();
            }
            card
        };
        let node = |name: &str, cards: Vec<Value>, offering: &str, message: &str| {
            let held = cards
                .iter()
                .map(|card| card["grantedMib"].as_u64().unwrap())
                .sum::<u64>();
            serde_json::from_value(json!({
                "apiVersion": "aliquot.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": {},
                "status": {"driverVersion": "590.44.01", "gpuCount": cards.len(), "product": "NVIDIA L4",
                    "grantedMib": held, "grantableMib": 23000 * cards.len(), "shareCount": 2, "gpus": cards,
                    "conditions": [{"type": "Offering", "status": offering, "reason": "x", "message": message,
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
            }))
            .unwrap()
        };
        vec![
            node(
                "n1",
                vec![
                    card(
                        0,
                        json!({"grantedMib": 12000, "usedMib": 900, "mode": "mps", "mps": "Ready",
                        "grants": [grant("a", 2000), grant("b", 10000)]}),
                    ),
                    card(
                        1,
                        json!({"usedMib": 500, "grantableMib": 22500, "cordoned": true,
                        "strangers": [{"pid": 77, "command": "python", "memoryMib": 500}]}),
                    ),
                ],
                "True",
                "",
            ),
            node(
                "n2",
                vec![card(
                    2,
                    json!({"health": "Unhealthy", "healthReason": "XID 79"}),
                )],
                "False",
                "another device plugin serves nvidia.com/gpu",
            ),
        ]
    }

    fn printed(report: Report, format: Format) -> String {
        let output = Output {
            format,
            no_headers: false,
        };
        output.render(&report, false)
    }

    #[test]
    fn nodes_say_what_they_hold_and_why_they_offer_nothing() {
        let report = || Report::from(nodes::table(&nodes()));
        assert_eq!(
            printed(report(), Format::Table),
            "\
NODE  GPUS  PRODUCT    GRANTED MIB  FREE MIB  SHARES  OFFERING
n1       2  NVIDIA L4        12000     11000       2  yes
n2       1  NVIDIA L4            0         0       2  no
"
        );
        let wide = printed(report(), Format::Wide);
        assert!(wide.contains("another device plugin serves"), "{wide}");
    }

    #[test]
    fn cards_say_in_one_word_whether_they_can_be_used() {
        assert_eq!(
            printed(Report::from(cards::table(&nodes())), Format::Table),
            "\
NODE  GPU  PRODUCT    MODE  STATE      GRANTED MIB  USED MIB  GRANTABLE MIB  SHARES
n1      0  NVIDIA L4  mps   ready            12000      ~900          23000       2
n1      1  NVIDIA L4  -     cordoned             0      ~500          22500       0
n2      2  NVIDIA L4  -     unhealthy            0      <231          23000       0
"
        );
    }

    #[test]
    fn a_card_in_mig_mode_is_followed_by_its_slices() {
        let mut nodes = nodes();
        let gpus = &mut nodes[0].status.as_mut().unwrap().gpus;
        gpus.truncate(1);
        gpus[0].mode = None;
        let grant = gpus[0].grants.remove(0);
        gpus[0].grants.clear();
        let slice = GpuStatus {
            uuid: "MIG-0".into(),
            product: "NVIDIA L4 MIG 1g.5gb".into(),
            mig_profile: "1g.5gb".into(),
            grants: vec![grant],
            ..gpus[0].clone()
        };
        gpus[0].mig_enabled = true;
        gpus.push(slice);
        let cards = printed(Report::from(cards::table(&nodes[..1])), Format::Table);
        let rows: Vec<Vec<&str>> = (cards.lines().skip(1))
            .map(|line| {
                line.split("  ")
                    .map(str::trim)
                    .filter(|s| !s.is_empty())
                    .collect()
            })
            .collect();
        assert_eq!(rows[0][1..5], ["0", "NVIDIA L4", "-", "mig"]);
        assert_eq!(rows[1][1..5], ["0", "NVIDIA L4 MIG 1g.5gb", "-", "ready"]);
        let shares = printed(
            Report::from(shares::table(&nodes[..1], None, &Crashes::default())),
            Format::Table,
        );
        assert!(shares.contains("team-a"), "{shares}");
    }

    /// The agent still counts the share as held, although the container crashes.
    #[test]
    fn a_container_that_crashes_is_not_said_to_run() {
        let pod = serde_json::from_value(
            json!({"metadata": {"name": "a", "namespace": "team-a", "uid": "uid-a"},
            "status": {"phase": "Running", "containerStatuses": [{"name": "main", "image": "", "imageID": "",
                "ready": false, "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}}),
        );
        let pods: [Pod; 1] = [pod.unwrap()];
        let table = shares_table(&nodes(), &pods);
        let phase = table
            .columns
            .iter()
            .position(|column| column.key == "phase");
        let phases: Vec<&str> = table
            .rows
            .iter()
            .map(|row| row[phase.unwrap()].shown.as_str())
            .collect();
        assert_eq!(
            phases,
            ["CrashLoopBackOff, 9 restarts, last exit code 1", "Running"]
        );
    }

    #[test]
    fn shares_name_pod_card_and_fence() {
        let all = || Report::from(shares::table(&nodes(), None, &Crashes::default()));
        assert_eq!(
            printed(all(), Format::Table),
            "\
NAMESPACE  POD  CONTAINER  NODE  GPU  MEMORY MIB  COMPUTE  FENCE                   REACH MIB  PHASE    COMPLAINT
team-a     a    main       n1      0        2000      50%  Guarded by ClientLimit      10000  Running
team-a     b    main       n1      0       10000      50%  Guarded by ClientLimit      10000  Running
"
        );
        let csv = printed(all(), Format::Csv);
        assert!(
            csv.starts_with("namespace,pod,container,node,gpu,memoryMib,"),
            "{csv}"
        );
        let none = Report::from(shares::table(&nodes(), Some("other"), &Crashes::default()));
        assert_eq!(
            printed(none, Format::Table),
            "no pod holds a share of a GPU\n"
        );
    }
}
