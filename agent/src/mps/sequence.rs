//! The agent numbers its plans, so that the supervisor can tell a late one.

use tonic::metadata::MetadataMap;

/// The position of a plan among those of its client. Calls of one connection may be handled in another order
/// than they were sent in, also one that its client has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlanSequence {
    /// A random number of the client's process.
    pub(super) client: u128,
    /// The number of the plan, which rises with each call.
    pub(super) plan: u64,
}

impl PlanSequence {
    /// The name of the call's metadata.
    const KEY: &str = "aliquot-plan";

    pub(super) fn mark(self, metadata: &mut MetadataMap) {
        let text = format!("{}/{}", self.client, self.plan);
        if let Ok(value) = text.parse() {
            metadata.insert(Self::KEY, value);
        }
    }

    pub(super) fn of(metadata: &MetadataMap) -> Option<Self> {
        let (client, plan) = metadata.get(Self::KEY)?.to_str().ok()?.split_once('/')?;
        Some(Self {
            client: client.parse().ok()?,
            plan: plan.parse().ok()?,
        })
    }

    /// Returns true if the same client sent the other plan later.
    pub(super) fn is_before(self, other: Self) -> bool {
        self.client == other.client && self.plan < other.plan
    }
}
