//! What one container of a pod holds of one card.

use crate::ids::ContainerName;
use crate::model::{Amount, Mode};
use crate::state::keys::CardKey;
use crate::units::{Mib, Percent};
use std::sync::Arc;

/// What a task holds of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub container: ContainerName,
    /// True if the container is an init container, which ends before the next container starts (see
    /// [`super::footprint`]).
    pub init: bool,
    pub card: CardKey,
    /// What is kept for it.
    pub limit: Mib,
    /// Its limit, where that is more.
    pub burst: Option<Mib>,
    /// What it is nominally worth; the whole card for whole use.
    pub nominal: Mib,
    pub nano: u64,
    pub compute: Percent,
    pub mode: Mode,
    pub note: Option<Arc<str>>,
    /// What it asked for, where that is not its limit.
    pub asked: Option<Amount>,
}

impl Hold {
    /// What an MPS server or the driver holds it to.
    pub(crate) fn top(&self) -> Mib {
        self.burst.unwrap_or(self.limit)
    }
}
