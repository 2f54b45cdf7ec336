//! One mistake, and what must be known of a cluster to find it.

use proto::names::kai;
use std::collections::BTreeSet;
use std::fmt;

/// A mistake of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The field as Kubernetes' own errors write it: `metadata.annotations[gpu-memroy]`.
    pub field: String,
    /// What is wrong with the field: the rest of a sentence that begins with it.
    pub problem: String,
    /// What to write instead, in the imperative. Empty where the problem says it.
    pub fix: String,
    /// Whether the pod runs without the GPU that its author meant.
    pub costs_the_gpu: bool,
}

impl Finding {
    /// A finding of a pod that keeps its GPU.
    pub fn new(
        field: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
            fix: fix.into(),
            costs_the_gpu: false,
        }
    }

    /// The same, of a pod that gets no GPU because of it.
    pub(super) fn without_gpu(mut self) -> Self {
        self.costs_the_gpu = true;
        self
    }
}

/// One line without a full stop, as admission's warnings have it.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)?;
        if !self.fix.is_empty() {
            write!(f, ": {}", self.fix)?;
        }
        Ok(())
    }
}

/// What is known of the cluster that the manifest is for.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The `schedulerName` of the pods that the scheduler places.
    pub scheduler: String,
    /// The priority classes that are known.
    pub classes: BTreeSet<String>,
    /// Whether [`Self::classes`] has all classes of the cluster. If not, only a class whose name
    /// is nearly that of a known one counts as a mistake.
    pub all_classes: bool,
}

impl Cluster {
    /// Returns a cluster of which only the scheduler's name is known.
    pub fn of_scheduler(name: &str) -> Self {
        Self {
            scheduler: name.to_owned(),
            classes: kai::PRIORITY_CLASSES.map(str::to_owned).into(),
            all_classes: false,
        }
    }
}
