//! Cards, from text.

use super::line::Line;
use super::read::{Read, list, mode};
use super::topology_manager::{is_of_node, topology_manager};
use crate::ids::{GpuUuid, NodeName};
use crate::model::{Card, Fence, Mode, NodeCards, Pool};
use crate::units::Mib;
use std::sync::Arc;

pub(super) fn cards(line: &Line) -> Read<NodeCards> {
    Ok(NodeCards {
        node: NodeName::new(line.name(1)?),
        default_mode: line
            .get("default")
            .map_or(Ok(Mode::Mps), |text| mode(line, text))?,
        not_offering: line.get("not-offering").map(Arc::from),
        cards: (line.below.iter())
            .filter(|line| !is_of_node(line))
            .map(card)
            .collect::<Read<_>>()?,
        topology_manager: topology_manager(line)?,
    })
}

fn card(line: &Line) -> Read<Card> {
    if line.kind() != "card" {
        return Err(line.error("a card is wanted"));
    }
    let total = line.number("total")?.unwrap_or(0);
    let reserved: u64 = line.number("reserved")?.unwrap_or(0);
    let mut card = Card::named(
        line.name(1)?,
        line.number("index")?.unwrap_or(0),
        line.get("product").unwrap_or_default(),
        total,
    );
    card.reserved = Mib(reserved);
    card.grantable = Mib(line
        .number("grantable")?
        .unwrap_or(total.saturating_sub(reserved)));
    card.strangers = Mib(line.number("strangers")?.unwrap_or(0));
    card.mode = line.get("mode").map(|text| mode(line, text)).transpose()?;
    if let Some(text) = line.get("switchable") {
        card.switchable = list(Some(text))
            .iter()
            .map(|text| mode(line, text))
            .collect::<Read<_>>()?;
    }
    card.ready = !line.flag("not-ready");
    card.unhealthy = line.get("unhealthy").map(Arc::from);
    card.cordoned = line.flag("cordoned");
    card.mig = line.flag("mig");
    card.slice = line.flag("slice");
    card.client_slots = line.number("slots")?.unwrap_or(card.client_slots);
    card.numa = line.number("numa")?;
    card.nvlink_peers = list(line.get("peers")).iter().map(GpuUuid::new).collect();
    card.nvswitch = line.flag("nvswitch");
    card.allowance = Mib(line.number("allowance")?.unwrap_or(0));
    card.pool = match line.get("pool") {
        None | Some("unknown") => Pool::Unknown,
        Some("whole") => Pool::Whole,
        Some("whole-only") => Pool::WholeOnly,
        Some("shared") => Pool::Shared,
        Some("none") => Pool::None,
        Some(other) => return Err(line.error(format!("{other} is no pool"))),
    };
    card.minimum_fence = line
        .get("minimum-fence")
        .map(|text| Fence::parse(text).ok_or_else(|| line.error(format!("{text} is no fence"))))
        .transpose()?;
    card.driver_limits = line.flag("driver-limits");
    line.finish()?;
    Ok(card)
}
