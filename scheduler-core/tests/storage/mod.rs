//! Claims and volumes of the properties' worlds.

use scheduler_core::ids::ClaimUid;
use scheduler_core::model::{
    Attachment, Claim, Node, NodeTerm, Operator, Pod, Requirement, Shape, Volume, Want,
};
use scheduler_core::units::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

const DRIVER: &str = "csi.example.com";

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
        exclusive: which == 5,
        bound: false,
    }
}

/// Gives the pod volumes of which some nodes take few.
pub(crate) fn attach(pod: &mut Pod, size: u64) {
    let attachment = |which: u64| Attachment {
        driver: Arc::from(DRIVER),
        claim: Arc::from(format!("default/a{which}")),
    };
    let of = BTreeSet::from([size % 5, size / 5 % 5]);
    pod.attachments = of.into_iter().map(attachment).collect();
}

/// How many volumes are attached to it at most.
pub(crate) fn limit(node: &mut Node, index: u8) {
    if index != 1 {
        let limit = Attachment::limit_of(DRIVER);
        node.extended.insert(limit, 2 + u64::from(index));
    }
}

/// kube-scheduler's `NodeVolumeLimits`, and `VolumeRestrictions` of claims that one pod uses.
pub(crate) fn keeps_away(there: &[(&Pod, &Node)], pod: &Pod, node: &Node) -> Option<&'static str> {
    let on_node = there.iter().filter(|(_, at)| at.name == node.name);
    let mut all: BTreeSet<&Attachment> = on_node.flat_map(|(pod, _)| &pod.attachments).collect();
    let before = all.len();
    all.extend(&pod.attachments);
    let most = node.extended.get(&Attachment::limit_of(DRIVER));
    if all.len() > before && most.is_some_and(|most| all.len() as u64 > *most) {
        return Some("too many volumes are attached");
    }
    let in_use = |claim: &Claim| {
        let uses = |other: &Pod| other.claims.iter().any(|other| other.uid == claim.uid);
        claim.exclusive && there.iter().any(|(other, _)| uses(other))
    };
    let taken = pod.claims.iter().any(in_use);
    taken.then_some("its claim is another pod's")
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
