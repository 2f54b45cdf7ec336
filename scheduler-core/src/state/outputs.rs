//! The last reports to the shell, and the reports that it still has to get.

use crate::ids::GroupName;
use crate::reason::WaitReason;
use crate::state::changed_groups::ChangedGroups;
use crate::state::keys::TaskKey;
use crate::state::status_log::StatusLog;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The reports of one core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs {
    /// The reason that was reported last for each pod that waits.
    pub said: FxHashMap<TaskKey, Arc<WaitReason>>,
    pub status_log: StatusLog,
    pub changed_groups: ChangedGroups,
    /// Groups of which the next decision still has to tell the shell something: their start, if
    /// their only placed pod had started before it joined them, or how many of their members have
    /// succeeded and are gone. A group stays here while its object is missing.
    pub unreported: BTreeSet<GroupName>,
    /// Contradictions found, each once.
    pub contradictions: BTreeSet<String>,
}
