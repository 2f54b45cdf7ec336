//! One row per node with an agent.

use crate::report::{Cell, Column, Table, Tone};
use api::{GpuNode, Mib};
use kube::ResourceExt as _;

const COLUMNS: &[Column] = &[
    Column::text("node", "NODE"),
    Column::number("gpus", "GPUS"),
    Column::text("product", "PRODUCT"),
    Column::number("grantedMib", "GRANTED MIB"),
    Column::number("freeMib", "FREE MIB"),
    Column::number("shares", "SHARES"),
    Column::text("offering", "OFFERING"),
    Column::text("defaultMode", "DEFAULT MODE").wide(),
    Column::number("grantableMib", "GRANTABLE MIB").wide(),
    Column::text("driver", "DRIVER").wide(),
    Column::text("why", "WHY NOT").wide(),
];

pub(super) fn table(nodes: &[GpuNode]) -> Table {
    let mut table = Table::new(COLUMNS, "no agent has reported yet");
    for node in nodes {
        let status = node.status.clone().unwrap_or_default();
        let condition = status.conditions.iter().find(|c| c.type_ == "Offering");
        let offering = condition.is_some_and(|condition| condition.status == "True");
        // The free memory of a cordoned or unhealthy card is not available.
        let free = status
            .gpus
            .iter()
            .filter(|card| offering && !card.cordoned && card.health == "Healthy")
            .map(|card| card.grantable_mib.saturating_sub(card.granted_mib).0)
            .sum();
        let mode = node.spec.default_mode.unwrap_or(api::Mode::Mps);
        table.row(vec![
            node.name_any().into(),
            status.gpu_count.into(),
            status.product.clone().into(),
            status.granted_mib.into(),
            Mib(free).into(),
            status.share_count.into(),
            Cell::from(offering).tone(if offering { Tone::Good } else { Tone::Bad }),
            mode.as_str().into(),
            status.grantable_mib.into(),
            status.driver_version.clone().into(),
            match condition {
                None => "its agent has not reported yet".into(),
                Some(condition) => condition.message.clone().into(),
            },
        ]);
    }
    table
}
