//! A queue's rule about idle pods, by its annotations.

use super::duration::duration;
use api::kai;
use kube::ResourceExt as _;
use proto::names::queue::{IDLE_AFTER, IDLE_EXEMPT_PRIORITY};
use scheduler_core::model::Grace;
use scheduler_core::units::Duration;

/// The shortest rule. Agents count whole minutes, and a pod has half of the time between the warning and
/// its end.
const SHORTEST: Duration = Duration::seconds(120);

/// What a queue says of idle pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdleRule {
    /// Without work for so long they give way; `None`: the queue says nothing.
    pub(crate) after: Option<Grace>,
    /// Pods of this priority or a higher one do not.
    pub(crate) exempt_from: Option<i32>,
}

impl IdleRule {
    /// Nobody gives way.
    pub(crate) const NEVER: Self = Self {
        after: Some(Grace::Never),
        exempt_from: None,
    };

    /// Reads the rule. `Err`: which annotation cannot be read, and how it is written.
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
