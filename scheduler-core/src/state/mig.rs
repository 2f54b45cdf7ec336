//! MIG as nodes show it: their strategy, and the names of profiles.

use crate::model::Node;
use crate::units::Mib;

/// How a node offers MIG, by KAI's reading of its labels and resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MigStrategy {
    /// Slices are not offered.
    #[default]
    Off,
    /// It does, and does not say how.
    On,
    /// Its slices look like whole GPUs.
    Single,
    /// By profile.
    Mixed,
}

impl MigStrategy {
    /// Which one, from the node's facts.
    pub(crate) fn of(node: &Node) -> Self {
        let label = |key| node.labels.get(key).map(|value| &**value);
        let on = match label("node-role.kubernetes.io/mig-enabled") {
            // The words that KAI takes for yes.
            Some(value) => ["1", "t", "T", "TRUE", "true", "True"].contains(&value),
            None => node
                .extended
                .iter()
                .any(|(name, count)| name.as_str().starts_with("nvidia.com/mig-") && *count > 0),
        };
        match label("nvidia.com/mig.strategy") {
            _ if !on => Self::Off,
            Some("single") => Self::Single,
            Some("mixed") => Self::Mixed,
            _ => Self::On,
        }
    }
}

/// GPUs that a MIG profile `nvidia.com/mig-<g>g.<m>gb` counts for: its g.
pub(crate) fn mig_slices(name: &str) -> u64 {
    name.strip_prefix("nvidia.com/mig-")
        .and_then(|profile| profile.split_once("g."))
        .and_then(|(slices, _)| slices.parse().ok())
        .unwrap_or(0)
}

/// GPUs that one of an extended resource counts for in queues, beside MIG profiles: AMD's GPUs, as in
/// KAI. Where they are free is counted by resource.
pub(crate) fn gpus_of_others(name: &str) -> u64 {
    u64::from(name == "amd.com/gpu")
}

/// Memory of a MIG profile by its name: its m, which is in GiB, rounded up by a few percent.
pub(super) fn mig_memory(name: &str) -> Mib {
    let profile = name.strip_prefix("nvidia.com/mig-");
    let memory = profile.and_then(|profile| profile.split_once("g."));
    let memory = memory.and_then(|(_, memory)| memory.split_once("gb"));
    let gib: u32 = memory.and_then(|(gib, _)| gib.parse().ok()).unwrap_or(0);
    Mib(u64::from(gib) * 1024)
}
