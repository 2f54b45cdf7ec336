//! `aliquot cordon` and `uncordon`: whether new work is placed on a card.
//!
//! Writes `GpuNode.spec.gpus[].cordoned`, which is the admin's; needs the right to get and update
//! `gpunodes`. What runs on the card stays. A write that meets another one is read and tried again,
//! so no change is lost.

use crate::connect::{Cluster, ClusterArgs, block_on};
use crate::failure::{Failure, Outcome};
use crate::inventory::chosen;
use crate::report::{Cell, Column, Output, Report, Table};
use api::GpuNode;
use api::gpu_node::{GpuPolicy, GpuStatus};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use std::process::ExitCode;

/// A write is tried so often before the others have won.
const TRIES: usize = 5;

/// Flags of both.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// NODE/GPU by index or UUID, a UUID alone, or NODE for all of its cards.
    #[arg(value_name = "NODE[/GPU]", required = true)]
    targets: Vec<String>,
    /// Print what would be written, and write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    place: ClusterArgs,
    #[command(flatten)]
    output: Output,
}

const COLUMNS: &[Column] = &[
    Column::text("node", "NODE"),
    Column::number("gpu", "GPU"),
    Column::text("uuid", "UUID"),
    Column::text("was", "WAS"),
    Column::text("now", "NOW"),
    Column::number("shares", "SHARES THAT STAY"),
];

/// Runs `cordon`, or `uncordon` where `cordoned` is false.
pub(crate) fn run(args: &Args, cordoned: bool) -> Outcome {
    block_on(async {
        let cluster = args.place.connect().await?;
        let nodes = chosen(&cluster, &[]).await?;
        // All targets are understood before the first is written.
        let mut cards: Vec<(String, GpuStatus)> = Vec::new();
        for target in &args.targets {
            for found in find(&nodes, target)? {
                if !cards.iter().any(|(_, card)| card.uuid == found.1.uuid) {
                    cards.push(found);
                }
            }
        }
        let mut table = Table::new(COLUMNS, "no card");
        let word = |cordoned: bool| if cordoned { "cordoned" } else { "open" };
        for node in &nodes {
            let name = node.name_any();
            let mine: Vec<&GpuStatus> = cards
                .iter()
                .filter(|(of, _)| *of == name)
                .map(|(_, card)| card)
                .collect();
            if mine.is_empty() {
                continue;
            }
            if !args.dry_run {
                write(&cluster, &name, &mine, cordoned).await?;
            }
            for card in mine {
                let was = policy(node, &card.uuid).is_some_and(|policy| policy.cordoned);
                table.row(vec![
                    name.clone().into(),
                    card.index.into(),
                    card.uuid.clone().into(),
                    word(was).into(),
                    Cell::from(word(cordoned)),
                    card.grants.len().into(),
                ]);
            }
        }
        args.output.print(&Report::from(table))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn policy<'a>(node: &'a GpuNode, uuid: &str) -> Option<&'a GpuPolicy> {
    node.spec.gpus.iter().find(|policy| policy.uuid == uuid)
}

/// The cards that a target means.
fn find(nodes: &[GpuNode], target: &str) -> Result<Vec<(String, GpuStatus)>, Failure> {
    let (node, gpu) = match target.split_once('/') {
        Some((node, gpu)) => (Some(node), Some(gpu)),
        None if target.starts_with("GPU-") => (None, Some(target)),
        None => (Some(target), None),
    };
    if node == Some("") || gpu == Some("") {
        return Err(Failure::input(format!(
            "`{target}` is no card: NODE/INDEX, NODE/UUID, UUID, or NODE for all of its cards"
        )));
    }
    let mut found = Vec::new();
    let mut known = Vec::new();
    for object in nodes {
        let name = object.name_any();
        if node.is_some_and(|wanted| wanted != name) {
            continue;
        }
        let status = object.status.as_ref();
        for card in status.map(|s| s.gpus.as_slice()).unwrap_or_default() {
            let index = card.index.to_string();
            if gpu.is_none_or(|gpu| gpu == index || gpu == card.uuid) {
                found.push((name.clone(), card.clone()));
            }
            known.push(index);
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    Err(Failure::no(match (node, gpu) {
        (Some(node), _) if !nodes.iter().any(|object| object.name_any() == node) => {
            format!("no agent reports from node {node} (there is no GpuNode of that name)")
        }
        (Some(node), Some(gpu)) => format!(
            "node {node} has no GPU {gpu}; it has {}",
            if known.is_empty() {
                "none".to_owned()
            } else {
                known.join(", ")
            }
        ),
        _ => format!("no node reports a GPU {target}"),
    }))
}

/// Writes the object as the API server has it, because it may have fields that this release does
/// not know.
async fn write(
    cluster: &Cluster,
    name: &str,
    cards: &[&GpuStatus],
    cordoned: bool,
) -> Result<(), Failure> {
    let kind = ApiResource::erase::<GpuNode>(&());
    let api: Api<DynamicObject> = Api::all_with(cluster.client.clone(), &kind);
    let failed = |error: &kube::Error| cluster.failure("gpunodes", error);
    for _ in 0..TRIES {
        let mut object = api.get(name).await.map_err(|error| failed(&error))?;
        let before = object.data.pointer("/spec/gpus").and_then(Value::as_array);
        let before = before.cloned().unwrap_or_default();
        let mut policies = before.clone();
        for card in cards {
            set(&mut policies, &card.uuid, cordoned);
        }
        if policies == before {
            return Ok(());
        }
        object.data["spec"]["gpus"] = Value::Array(policies);
        match api.replace(name, &PostParams::default(), &object).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed(&error)),
        }
    }
    Err(Failure::cluster(format!(
        "GpuNode {name} was changed by others each time; nothing was written, try again"
    )))
}

/// Sets one card's policy, and removes it if no field of it has an effect any more.
fn set(policies: &mut Vec<Value>, uuid: &str, cordoned: bool) {
    let known = policies.iter_mut().find(|policy| policy["uuid"] == uuid);
    match known {
        Some(policy) => policy["cordoned"] = cordoned.into(),
        None if cordoned => policies.push(json!({"uuid": uuid, "cordoned": true})),
        None => {}
    }
    policies.retain(|policy| policy["uuid"] != uuid || says_something(policy));
}

fn says_something(policy: &Value) -> bool {
    let fields = policy.as_object().into_iter().flatten();
    fields
        .filter(|(key, _)| *key != "uuid")
        .any(|(_, value)| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(values) => !values.is_empty(),
            _ => true,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::nodes;

    #[test]
    fn a_card_is_meant_by_index_uuid_or_its_node() {
        let uuids = |target: &str| -> Result<Vec<String>, String> {
            match find(&nodes(), target) {
                Ok(found) => Ok(found.into_iter().map(|(_, card)| card.uuid).collect()),
                Err(failure) => Err(failure.sentence),
            }
        };
        for (target, expected) in [
            ("n1/1", vec!["GPU-1"]),
            ("n1/GPU-0", vec!["GPU-0"]),
            ("GPU-2", vec!["GPU-2"]),
            ("n1", vec!["GPU-0", "GPU-1"]),
        ] {
            assert_eq!(uuids(target).unwrap(), expected, "{target}");
        }
        for (target, words) in [
            ("n3/0", "no agent reports from node n3"),
            ("n1/7", "node n1 has no GPU 7; it has 0, 1"),
            ("GPU-9", "no node reports a GPU GPU-9"),
            ("n1/", "`n1/` is no card"),
            ("/0", "`/0` is no card"),
        ] {
            let error = uuids(target).unwrap_err();
            assert!(error.starts_with(words), "{target}: {error}");
        }
    }

    #[test]
    fn a_policy_keeps_what_else_it_says_and_goes_when_it_says_nothing() {
        let newer = json!({"uuid": "GPU-0", "ofALaterRelease": {"a": 1}, "cordoned": false});
        let mut policies = vec![newer.clone()];
        set(&mut policies, "GPU-0", true);
        set(&mut policies, "GPU-1", true);
        assert!(policies.iter().all(|policy| policy["cordoned"] == true));
        assert_eq!(policies[0]["ofALaterRelease"], newer["ofALaterRelease"]);
        set(&mut policies, "GPU-0", false);
        set(&mut policies, "GPU-1", false);
        set(&mut policies, "GPU-5", false);
        assert_eq!(policies, [newer]);
        let mut silent = vec![json!({"uuid": "GPU-2", "cordoned": true, "migLayouts": []})];
        set(&mut silent, "GPU-2", false);
        assert_eq!(silent, [] as [Value; 0]);
    }
}
