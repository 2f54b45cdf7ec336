//! Shares that come one after the other, while the agents of their nodes say what has become of the
//! cards: a burst opens no more cards than the same pods in one decision.

use scheduler_core::ids::GpuUuid;
use scheduler_core::{Action, Core, text};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The MiB of a card.
const CARD: u64 = 1000;

/// What an agent says of its node. A card with a share has the mode of the share, and no whole GPU is
/// left of it.
fn cards(node: usize, count: u8, opened: &BTreeSet<GpuUuid>) -> String {
    let mut told = format!("cards n{node} default=mps\n");
    for card in 0..count {
        let name = format!("GPU-{node}-{card}");
        let is_open = opened.contains(&GpuUuid::new(&name));
        let state = if is_open {
            "mode=mps pool=shared"
        } else {
            "pool=whole"
        };
        let _ = writeln!(told, "  card {name} index={card} total={CARD} {state}");
    }
    told
}

fn tell(core: &mut Core, told: &str) {
    for event in text::read(told).unwrap() {
        let _ = core.apply(event);
    }
}

/// Returns the cards that hold shares, and the number of pods that were placed. `sizes` are in MiB, in
/// the order in which the pods were created. With `at_once` all of them are there before the first
/// decision.
pub(crate) fn opened(nodes: &[u8], sizes: &[u16], at_once: bool) -> (BTreeSet<GpuUuid>, usize) {
    let mut core = Core::new(scheduler_core::Config::verified());
    let mut opened = BTreeSet::new();
    let mut placed = 0;
    tell(&mut core, "queue q\n");
    for (node, count) in nodes.iter().enumerate() {
        let gpus = format!("cpu=64000 memory=68719476736 pods=110 gpus={count}");
        tell(&mut core, &format!("node n{node} {gpus} managed\n"));
        tell(&mut core, &cards(node, *count, &opened));
    }
    let mut now = 1000;
    let mut decide = |core: &mut Core| {
        now += 100;
        for action in core.decide(scheduler_core::units::Time(now)).actions {
            let Action::Bind(bind) = action else { continue };
            placed += 1;
            opened.extend(bind.grants.iter().flat_map(|grant| grant.cards.clone()));
            tell(core, &format!("outcome {} confirmed\n", bind.decision));
        }
        for (node, count) in nodes.iter().enumerate() {
            tell(core, &cards(node, *count, &opened));
        }
    };
    for (index, size) in sizes.iter().enumerate() {
        let size = u64::from(*size) % CARD + 1;
        let pod = format!("pod p{index:02} queue=q created={index} gpu-memory.main={size}\n");
        tell(&mut core, &pod);
        if !at_once {
            decide(&mut core);
        }
    }
    decide(&mut core);
    decide(&mut core);
    (opened, placed)
}
