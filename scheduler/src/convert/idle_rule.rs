//! Reads a queue's rule about idle pods from its annotations.

use super::duration::duration;
use api::kai;
use kube::ResourceExt as _;
use proto::names::queue::{IDLE_AFTER, IDLE_EXEMPT_PRIORITY};
use scheduler_core::model::Grace;
use scheduler_core::units::Duration;

/// The shortest time that a rule may set. Agents count whole minutes, and the warning comes after half
/// of the time.
const SHORTEST: Duration = Duration::seconds(120);

/// A queue's rule about idle pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdleRule {
    /// The time without work after which a pod gives way; `None`: the queue has no rule.
    pub(crate) after: Option<Grace>,
    /// Pods of this priority or a higher one never give way.
    pub(crate) exempt_from: Option<i32>,
}

impl IdleRule {
    /// The rule by which no pod gives way.
    pub(crate) const NEVER: Self = Self {
        after: Some(Grace::Never),
        exempt_from: None,
    };

    /// Reads the rule.
    ///
    /// # Errors
    /// Returns a sentence that names the annotation that cannot be read, and how it is written.
    pub(crate) fn of(queue: &kai::Queue) -> Result<Self, String> {
        let annotations = queue.annotations();
        let after = annotations.get(IDLE_AFTER).map(String::as_str);
        let after = match after {
            None => None,
            Some("never") => Some(Grace::Never),
            Some(text) => {
                let length = duration(Some(text)).filter(|length| *length >= SHORTEST);
                Some(Grace::For(length.ok_or_else(|| {
                    format!(
                        "annotation {IDLE_AFTER}: {text:?} is no duration of at least {} minutes: write 30m, 2h or never",
                        SHORTEST.0 / 60_000
                    )
                })?))
            }
        };
        let exempt = annotations.get(IDLE_EXEMPT_PRIORITY);
        if exempt.is_some() && after.is_none() {
            return Err(format!(
                "annotation {IDLE_EXEMPT_PRIORITY} is set without {IDLE_AFTER}: set both on the same queue"
            ));
        }
        let priority = |text: &String| {
            text.parse().map_err(|_| {
                format!(
                    "annotation {IDLE_EXEMPT_PRIORITY}: {text:?} is no priority: write the number of a priority class, such as 125"
                )
            })
        };
        let exempt_from = exempt.map(priority).transpose()?;
        Ok(Self { after, exempt_from })
    }
}
