//! What is counted of pods: which ones, and in which domains.

use crate::model::PodSelector;
use std::sync::Arc;

slotmap::new_key_type! {
    /// A selector whose pods are counted.
    pub(crate) struct CountKey;
}

/// What is counted, and in which domains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Counted {
    pub who: Who,
    /// `None`: each node is its own domain, by its name.
    pub topology_key: Option<Arc<str>>,
}

/// Which pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// Those that all of these match.
    Matched(Vec<PodSelector>),
    /// Those that have this in their required anti-affinity.
    Avoiding(PodSelector),
    /// Those that prefer such pods near by, or away, with that weight in all.
    Preferring(PodSelector, i32),
}

impl Who {
    pub(super) fn selectors(&self) -> &[PodSelector] {
        match self {
            Self::Matched(all) => all,
            Self::Avoiding(one) | Self::Preferring(one, _) => std::slice::from_ref(one),
        }
    }
}
