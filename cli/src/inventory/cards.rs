//! One row per card.

use crate::report::{Cell, Column, Table, Tone};
use api::GpuNode;
use api::gpu_node::GpuStatus;
use kube::ResourceExt as _;

const COLUMNS: &[Column] = &[
    Column::text("node", "NODE"),
    Column::number("gpu", "GPU"),
    Column::text("product", "PRODUCT"),
    Column::text("mode", "MODE"),
    Column::text("state", "STATE"),
    Column::number("grantedMib", "GRANTED MIB"),
    Column::number("usedMib", "USED MIB"),
    Column::number("grantableMib", "GRANTABLE MIB"),
    Column::number("shares", "SHARES"),
    Column::number("totalMib", "TOTAL MIB").wide(),
    Column::number("reservedMib", "RESERVED MIB").wide(),
    Column::text("uuid", "UUID").wide(),
    Column::text("pci", "PCI").wide(),
    Column::number("numa", "NUMA").wide(),
    Column::text("mps", "MPS").wide(),
    Column::number("strangers", "STRANGERS").wide(),
    Column::text("switchableModes", "CAN BE").wide(),
    Column::text("why", "WHY").wide(),
];

/// Whether a card can be used, in one word.
pub(super) fn state(card: &GpuStatus) -> (&'static str, Tone) {
    if card.health != "Healthy" {
        ("unhealthy", Tone::Bad)
    } else if card.cordoned {
        ("cordoned", Tone::Warn)
    } else if card.mig_enabled {
        // Its slices have rows of their own.
        ("mig", Tone::Good)
    } else if !card.ready {
        ("not ready", Tone::Warn)
    } else {
        ("ready", Tone::Good)
    }
}

/// Returns the memory in use, as precisely as it is known. The agent publishes steps of a hundredth
/// of the card, and keeps a published value that is at most one step off. The status page has exact
/// values.
pub(super) fn used(card: &GpuStatus) -> String {
    let step = (card.total_mib.0 / 100).max(64);
    let shown = if step >= 100 { 100 } else { 10 };
    match card.used_mib.0 {
        0 => format!("<{}", step + 1),
        used => format!("~{}", (used + shown / 2) / shown * shown),
    }
}

/// Why it is not used as it could be.
fn reason(card: &GpuStatus) -> String {
    let reasons = [&card.health_reason, &card.mig_layout_message];
    let said = reasons.into_iter().find(|reason| !reason.is_empty());
    said.cloned().unwrap_or_default()
}

pub(super) fn table(nodes: &[GpuNode]) -> Table {
    let mut table = Table::new(COLUMNS, "no card is reported");
    for (node, card) in cards_of(nodes) {
        let (word, tone) = state(card);
        let modes: Vec<&str> = card.switchable_modes.iter().map(|m| m.as_str()).collect();
        // A mode belongs to a card in use.
        let mode = card.mode.filter(|_| !card.grants.is_empty());
        table.row(vec![
            node.into(),
            card.index.into(),
            card.product.clone().into(),
            Cell::from(mode.map(api::Mode::as_str)),
            Cell::from(word).tone(tone),
            card.granted_mib.into(),
            Cell::shown(card.used_mib.0, used(card)),
            card.grantable_mib.into(),
            card.grants.len().into(),
            card.total_mib.into(),
            card.reserved_mib.into(),
            card.uuid.clone().into(),
            card.pci.clone().into(),
            card.numa.into(),
            card.mps.clone().into(),
            card.strangers.len().into(),
            Cell::shown(modes.clone(), modes.join(",")),
            reason(card).into(),
        ]);
    }
    table
}

/// Every card, with the name of its node.
pub(crate) fn cards_of(nodes: &[GpuNode]) -> impl Iterator<Item = (String, &GpuStatus)> {
    nodes.iter().flat_map(|node| {
        let status = node.status.as_ref();
        let cards = status
            .map(|status| status.gpus.as_slice())
            .unwrap_or_default();
        cards.iter().map(|card| (node.name_any(), card))
    })
}
