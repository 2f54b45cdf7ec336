//! One row per container and card.

use super::cards::cards_of;
use crate::report::{Cell, Column, Table, Tone};
use api::GpuNode;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;

const COLUMNS: &[Column] = &[
    Column::text("namespace", "NAMESPACE"),
    Column::text("pod", "POD"),
    Column::text("container", "CONTAINER"),
    Column::text("node", "NODE"),
    Column::number("gpu", "GPU"),
    Column::number("memoryMib", "MEMORY MIB"),
    Column::number("computePercent", "COMPUTE"),
    Column::text("fence", "FENCE"),
    Column::number("reachMib", "REACH MIB"),
    Column::text("phase", "PHASE"),
    Column::text("complaint", "COMPLAINT"),
    Column::number("requestMib", "KEPT MIB").wide(),
    Column::text("mode", "MODE").wide(),
    Column::text("uuid", "UUID").wide(),
    Column::text("podUid", "POD UID").wide(),
];

/// Why containers do not run, by their pod's UID and their name. The agent does not know it: for
/// the agent, a container that waits to be started again still has its share.
#[derive(Debug, Default)]
pub(super) struct Crashes(BTreeMap<(String, String), String>);

impl Crashes {
    pub(super) fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let each = |pod: &'a Pod| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let containers = scheduler::crash::containers(pod);
            containers.map(move |(name, words)| ((uid.clone(), name.to_owned()), words))
        };
        Self(pods.into_iter().flat_map(each).collect())
    }
}

pub(super) fn table(nodes: &[GpuNode], namespace: Option<&str>, crashes: &Crashes) -> Table {
    let mut rows = Vec::new();
    for (node, card) in cards_of(nodes) {
        for grant in &card.grants {
            let (space, pod) = grant.pod.split_once('/').unwrap_or(("", &grant.pod));
            if namespace.is_some_and(|wanted| wanted != space) {
                continue;
            }
            let percent = u64::from(grant.compute_percent);
            let container = (grant.pod_uid.clone(), grant.container.clone());
            let phase = crashes.0.get(&container).unwrap_or(&grant.phase);
            rows.push(vec![
                space.into(),
                pod.into(),
                grant.container.clone().into(),
                node.clone().into(),
                card.index.into(),
                grant.memory_mib.into(),
                Cell::shown(percent, format!("{percent}%")),
                Cell::from(grant.fence.map(api::units::Fence::words)),
                Cell::from(grant.reach_mib),
                Cell::from(phase.clone()).tone(match phase.as_str() {
                    "Running" => Tone::Good,
                    _ => Tone::Warn,
                }),
                Cell::from(grant.complaint.clone()).tone(Tone::Bad),
                grant.request_mib.unwrap_or(grant.memory_mib).into(),
                Cell::from(card.mode.map(api::Mode::as_str)),
                card.uuid.clone().into(),
                grant.pod_uid.clone().into(),
            ]);
        }
    }
    rows.sort_by(|one: &Vec<Cell>, other| {
        let key = |row: &[Cell]| -> Vec<String> {
            row.iter().take(5).map(|cell| cell.shown.clone()).collect()
        };
        key(one).cmp(&key(other))
    });
    let mut table = Table::new(COLUMNS, "no pod holds a share of a GPU");
    table.rows = rows;
    table
}
