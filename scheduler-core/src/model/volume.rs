//! Volumes that are there, claims that are bound where their first pod goes, and volumes that
//! are attached to the nodes of their pods.

use super::{Labels, Node, NodeTerm, Requirement};
use crate::ids::{ClaimUid, ResourceName, VolumeName};
use crate::units::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a volume has, and what a claim wants of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Its storage class; empty: none.
    pub class: Arc<str>,
    /// A volume's capacity, rounded down; a claim's request, rounded up.
    pub size: Bytes,
    /// `spec.accessModes`.
    pub modes: BTreeSet<Arc<str>>,
    /// `volumeMode: Block`.
    pub block: bool,
    /// `spec.volumeAttributesClassName`; empty: none.
    pub attributes: Arc<str>,
}

/// A `PersistentVolume` to which a claim may still come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `metadata.name`.
    pub name: VolumeName,
    /// What it has.
    pub shape: Shape,
    /// `metadata.labels`, for the selectors of claims.
    pub labels: Labels,
    /// `spec.claimRef`; `None`: any claim that it suits may have it.
    pub kept_for: Option<ClaimRef>,
    /// `spec.nodeAffinity`: one of these must hold for the node; `None`: every node.
    pub nodes: Option<Vec<NodeTerm>>,
}

impl Volume {
    /// One of that name that every node can use.
    pub fn named(name: &str) -> Self {
        Self {
            name: VolumeName::new(name),
            shape: Shape::default(),
            labels: Labels::new(),
            kept_for: None,
            nodes: None,
        }
    }

    /// Whether it is for some nodes alone, and this is one of them.
    pub(crate) fn is_local_to(&self, node: &Node) -> bool {
        let terms = self.nodes.as_ref();
        terms.is_some_and(|terms| terms.iter().any(|term| term.matches(node)))
    }

    /// Whether it would do for a claim: Kubernetes' rules of static binding. A volume that is
    /// kept for a claim need not match the claim's selector.
    pub(crate) fn suits(&self, want: &Want) -> bool {
        let (has, wants) = (&self.shape, &want.shape);
        has.class == wants.class
            && has.size >= wants.size
            && wants.modes.is_subset(&has.modes)
            && has.block == wants.block
            && has.attributes == wants.attributes
            && (self.kept_for.is_some()
                || want
                    .selector
                    .iter()
                    .all(|requirement| requirement.holds_in(&self.labels)))
    }
}

/// The claim that a volume is kept for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// `namespace/name`.
    pub name: Arc<str>,
    /// `None`: whichever claim has that name.
    pub uid: Option<ClaimUid>,
}

impl ClaimRef {
    pub(crate) fn is(&self, claim: &Claim) -> bool {
        self.name == claim.name && self.uid.as_ref().is_none_or(|uid| *uid == claim.uid)
    }
}

/// A claim of a pod that is not bound yet, and whose class waits for its first consumer: it
/// is bound on the node on which the first of its pods is placed, and its other pods can only
/// be placed there. Or one that a single pod uses at a time, bound or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// `metadata.uid`.
    pub uid: ClaimUid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Which volumes will do; `None`: one is provisioned, or it is bound.
    pub wants: Option<Want>,
    /// `ReadWriteOncePod`: a second pod of the cluster waits until the first has ended.
    pub exclusive: bool,
    /// It is bound: nothing is done about it where its pod goes.
    pub bound: bool,
}

/// A volume that a CSI driver attaches to the node of its pod, which counts towards the number
/// that the driver attaches to that node at most: the node's resource
/// `attachable-volumes-csi-DRIVER` ([`super::Node::extended`]). A node without that resource
/// has no limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment {
    /// The CSI driver's name.
    pub driver: Arc<str>,
    /// The claim, `namespace/name`: all pods of a node that use it share one attachment.
    pub claim: Arc<str>,
}

impl Attachment {
    /// The node's resource that limits the driver's attachments, as kube-scheduler's
    /// `NodeVolumeLimits` names it.
    pub fn limit_of(driver: &str) -> ResourceName {
        ResourceName::new(format!("attachable-volumes-csi-{driver}"))
    }

    /// Under which names it is counted on a node: the pods that use the volume, and the
    /// driver's volumes.
    pub(crate) fn counted_as(&self) -> [ResourceName; 2] {
        let Self { driver, claim } = self;
        [
            ResourceName::new(format!("attachment/{driver}/{claim}")),
            Self::limit_of(driver),
        ]
    }
}

/// What a claim wants of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Want {
    /// At least that.
    pub shape: Shape,
    /// `spec.selector`: all must hold for the volume's labels.
    pub selector: Vec<Requirement>,
}
