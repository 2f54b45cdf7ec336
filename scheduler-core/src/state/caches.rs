//! Values that are computed from the rest of the state and kept for the next decision.

use crate::state::keys::SpecKey;
use crate::state::room::Rooms;
use crate::state::verdicts::VerdictCache;

/// The caches that live between decisions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caches {
    /// Nodes by what they have to give.
    pub rooms: Rooms,
    /// The nodes and requests that verdicts are kept of.
    pub verdicts: VerdictCache,
    /// The request for which the pods of domains were computed last.
    pub searched: Option<SpecKey>,
}
