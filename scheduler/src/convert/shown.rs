//! A condition of a pod, as the watch shows it. The scheduler compares it with the condition that the
//! pod ought to have, and writes only what differs.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A condition that the watch shows on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// True if the status is `True`.
    pub holds: bool,
    /// The time since when the condition has that status.
    pub since: Timestamp,
    /// A digest of reason and message.
    digest: u64,
}

impl Shown {
    /// Returns the condition of that type. `None`: the pod has none.
    pub(super) fn on(pod: &Pod, kind: &str) -> Option<Self> {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let one = conditions.iter().find(|one| one.type_ == kind)?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(Self {
            holds: one.status == "True",
            since: one
                .last_transition_time
                .as_ref()
                .map_or_else(Timestamp::default, |at| at.0),
            digest: digest(&text(&one.reason), &text(&one.message)),
        })
    }

    /// Returns true if the condition has this status, this reason and this message.
    pub fn says(&self, holds: bool, reason: &str, message: &str) -> bool {
        self.holds == holds && self.digest == digest(reason, message)
    }
}

fn digest(reason: &str, message: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (reason, message).hash(&mut hasher);
    hasher.finish()
}
