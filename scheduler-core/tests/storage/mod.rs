//! Claims and volumes of the properties' worlds.

use scheduler_core::ids::ClaimUid;
use scheduler_core::model::{Claim, NodeTerm, Operator, Requirement, Shape, Volume, Want};
use scheduler_core::units::Bytes;
use std::sync::Arc;

/// A claim that some pods share: it wants a volume, or one is provisioned for it.
pub(crate) fn claim(which: u8) -> Claim {
    let shape = Shape {
        size: Bytes(u64::from(which) * 5),
        ..Shape::default()
    };
    Claim {
        uid: ClaimUid::new(format!("c{which}")),
        name: Arc::from(format!("default/c{which}")),
        wants: (which % 4 < 3).then_some(Want {
            shape,
            selector: Vec::new(),
        }),
    }
}

/// Two for each node, and one that every node can use.
pub(crate) fn volumes() -> impl Iterator<Item = Volume> {
    let local = (0..3).flat_map(|node| [(Some(node), 10), (Some(node), 20)]);
    local.chain([(None, 30)]).map(|(node, size)| {
        let mut volume = Volume::named(&match node {
            Some(node) => format!("v{node}-{size}"),
            None => "everywhere".to_owned(),
        });
        volume.shape.size = Bytes(size);
        volume.nodes = node.map(|node| {
            let name = Arc::from(format!("n{node}"));
            vec![NodeTerm {
                name: vec![Requirement {
                    key: Arc::from("metadata.name"),
                    operator: Operator::In(vec![name]),
                }],
                ..NodeTerm::default()
            }]
        });
        volume
    })
}
