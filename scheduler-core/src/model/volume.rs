//! Volumes that are there, and claims that are bound where their first pod goes.

use super::{Labels, Node, NodeTerm, Requirement};
use crate::ids::{ClaimUid, VolumeName};
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

/// A claim of a pod that is not bound yet, and whose class waits for its first consumer. It
/// is bound on the node on which the first of its pods is placed, and its other pods can only
/// be placed there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// `metadata.uid`.
    pub uid: ClaimUid,
    /// `namespace/name`.
    pub name: Arc<str>,
    /// Which volumes will do; `None`: one is provisioned.
    pub wants: Option<Want>,
}

/// What a claim wants of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Want {
    /// At least that.
    pub shape: Shape,
    /// `spec.selector`: all must hold for the volume's labels.
    pub selector: Vec<Requirement>,
}
