//! One row per container and card.

use super::cards_of;
use crate::report::{Cell, Column, Table, Tone};
use api::GpuNode;

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

pub(super) fn table(nodes: &[GpuNode], namespace: Option<&str>) -> Table {
    let mut rows = Vec::new();
    for (node, card) in cards_of(nodes) {
        for grant in &card.grants {
            let (space, pod) = grant.pod.split_once('/').unwrap_or(("", &grant.pod));
            if namespace.is_some_and(|wanted| wanted != space) {
                continue;
            }
            let percent = u64::from(grant.compute_percent);
            rows.push(vec![
                space.into(),
                pod.into(),
                grant.container.clone().into(),
                node.clone().into(),
                card.index.into(),
                grant.memory_mib.into(),
                Cell::shown(percent, format!("{percent}%")),
                Cell::from(grant.fence.map(api::units::Fence::as_str)),
                Cell::from(grant.reach_mib),
                Cell::from(grant.phase.clone()).tone(match grant.phase.as_str() {
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
