//! Claims that have devices while all of their pods wait: a binding that is under way, or what a
//! process left that ended before it. Those of the latter lose their devices in time, so that
//! other pods can have them.

use super::objects::DeviceObjects;
use crate::act::answer::LANDING;
use scheduler_core::ids::ClaimUid;
use scheduler_core::units::Time;

/// A claim whose devices are taken from it, if only these wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `metadata.uid`.
    pub uid: ClaimUid,
    /// UIDs of the pods for which it may be reserved.
    pub pods: Vec<String>,
}

/// A write of a process that ended may be carried out so long afterwards; ms.
fn landing() -> u64 {
    u64::try_from(LANDING.as_millis()).unwrap_or(u64::MAX)
}

impl DeviceObjects {
    /// The pods that a claim with devices is reserved for, if all of them wait and one does.
    fn is_stray(&self, name: &str) -> Option<Vec<String>> {
        let claim = self.claims.get(name).filter(|claim| claim.is_allocated())?;
        let waits = |pod: &String| self.users.get(pod).is_some_and(|user| user.waits);
        let consumers: Vec<String> = claim.consumers().cloned().collect();
        let mut users = self.by_claim.get(name).into_iter().flatten();
        (users.any(waits) && consumers.iter().all(waits)).then_some(consumers)
    }

    pub(super) fn judge_stray(&mut self, name: &str, now: Time) {
        if self.is_stray(name).is_none() {
            self.strays.remove(name);
        } else if !self.strays.contains_key(name) {
            self.strays.insert(name.to_owned(), now);
        }
    }

    /// When a claim may have to lose its devices.
    pub(in super::super) fn due(&self) -> Option<Time> {
        let first = self.strays.values().min()?;
        Some(Time(first.0.saturating_add(landing())))
    }
}

impl DeviceObjects {
    /// Claims whose pods wait for so long after they got their devices that no write that would
    /// bind them can still be under way, but for one of this process.
    pub(in crate::convert) fn strays(&mut self, now: Time) -> Vec<Stray> {
        let is_due = |since: &Time| since.0.saturating_add(landing()) <= now.0;
        let due = self.strays.iter().filter(|(_, since)| is_due(since));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        let mut strays = Vec::new();
        for name in due {
            self.strays.remove(&name);
            let Some(pods) = self.is_stray(&name) else {
                continue;
            };
            if let (Some(claim), Some((namespace, own))) =
                (self.claims.get(&name), name.split_once('/'))
            {
                strays.push(Stray {
                    namespace: namespace.to_owned(),
                    name: own.to_owned(),
                    uid: claim.uid.clone(),
                    pods,
                });
            }
            // Until it is seen without.
            self.strays.insert(name, now);
        }
        strays
    }
}
