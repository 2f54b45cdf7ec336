//! The agent as Kubernetes' DRA driver `aliquot.dev`: shares by `ResourceClaim`, under any
//! scheduler. The second front of the one ledger; off unless `--dra` is given.
//!
//! - [`mod@slice`]: pure: the node's state → what its `ResourceSlice` says.
//! - [`publish`]: keeps that object.
//! - [`registration`]: how the kubelet finds the driver.
//! - `authority`: what the kubelet's registration calls lack.
//! - [`request`]: pure: an allocated claim and its pod → what the ledger is asked for.
//! - `walls`: pure: which pods must not have a share.
//! - [`status`]: what claims say of their devices.
//! - [`health`]: what pods say of their cards.
//! - [`driver`]: the two calls of the kubelet's DRA service.
//!
//! Where a card's share stands is the ledger's: a claim's share is a share, with its UID as
//! the name of its allocation, so that nothing else has to be remembered.

mod authority;
pub mod driver;
pub mod health;
pub mod publish;
pub mod registration;
pub mod request;
pub mod slice;
pub mod status;
mod walls;

use crate::inventory::Card;
use crate::node::State;
use api::Mode;

/// The mode that a claim's share on this card gets: that of the shares that are there, else
/// the admin's for card or node, else the first that the card can be shared in. `None`: none.
pub fn mode_of(state: &State, card: &Card) -> Option<Mode> {
    let shared = |mode: &Mode| *mode != Mode::Exclusive && card.switchable.contains(mode);
    let policy = state.policy.as_ref();
    let default = policy.and_then(|policy| policy.spec.default_mode);
    [
        state.ledger.mode_of(&card.uuid),
        card.only_mode,
        default,
        Some(Mode::Mps),
    ]
    .into_iter()
    .flatten()
    .chain(card.switchable.iter().copied())
    .find(shared)
}
