//! The labels of a pod.

use crate::model::Labels;
use std::sync::Arc;

/// Labels of a pod, in order of their keys: a third of what a map of them would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodLabels(pub(super) Arc<Pairs>);

/// Keys with their values.
pub(super) type Pairs = Box<[(Arc<str>, Arc<str>)]>;

impl PodLabels {
    /// The value of that label.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(known, _)| (**known).cmp(key));
        at.ok().and_then(|at| Some(&*self.0.get(at)?.1))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The same as the event has them.
    pub(crate) fn to_labels(&self) -> Labels {
        self.0.iter().cloned().collect()
    }

    pub(crate) fn are(&self, labels: &Labels) -> bool {
        self.iter().eq(labels.iter())
    }
}
