//! A mistake in a manifest, and the facts about a cluster that are needed to find it.

use proto::names::kai;
use std::collections::BTreeSet;
use std::fmt;

/// A mistake in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path of the field, as in Kubernetes' own errors: `metadata.annotations[gpu-memroy]`.
    pub field: String,
    /// The problem, as the rest of a sentence that begins with the field.
    pub problem: String,
    /// The fix, in the imperative. It is empty if the problem names it.
    pub fix: String,
    /// True if the pod runs without the GPU that its author meant it to have.
    pub costs_the_gpu: bool,
}

impl Finding {
    /// Makes a finding that does not cost the pod its GPU.
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

    /// Marks the finding as one that costs the pod its GPU.
    pub(super) fn without_gpu(mut self) -> Self {
        self.costs_the_gpu = true;
        self
    }
}

/// Writes one line without a full stop, as admission's warnings are.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.problem)?;
        if !self.fix.is_empty() {
            write!(f, ": {}", self.fix)?;
        }
        Ok(())
    }
}

/// The facts about the cluster that the manifest is for.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The `schedulerName` of the pods that the scheduler places.
    pub scheduler: String,
    /// The names of the known priority classes.
    pub classes: BTreeSet<String>,
    /// True if [`Self::classes`] has all classes of the cluster. If it is false, only a class whose
    /// name is nearly that of a known one counts as a mistake.
    pub all_classes: bool,
}

impl Cluster {
    /// Returns the facts if only the scheduler's name is known.
    pub fn of_scheduler(name: &str) -> Self {
        Self {
            scheduler: name.to_owned(),
            classes: kai::PRIORITY_CLASSES.map(str::to_owned).into(),
            all_classes: false,
        }
    }
}
