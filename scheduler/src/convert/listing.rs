//! The listings of one kind of objects.

use crate::watch::Seen;

/// How far the listings of one kind are.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    /// A listing has ended: all objects of the kind are known.
    pub listed: bool,
    /// What is known may be older than what counts, until a listing that begins from now on has ended.
    pub behind: ListingState,
}

/// Whether a listing is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ListingState {
    #[default]
    No,
    /// The listing has not begun.
    Waits,
    /// The listing has begun.
    Lists,
}

impl Listing {
    /// Takes in that a listing begins or ends.
    pub(super) fn note<K>(&mut self, seen: &Seen<K>) {
        match seen {
            Seen::Listing if self.behind == ListingState::Waits => {
                self.behind = ListingState::Lists;
            }
            Seen::Listed => {
                self.listed = true;
                if self.behind == ListingState::Lists {
                    self.behind = ListingState::No;
                }
            }
            Seen::Listing | Seen::There(_) | Seen::Gone(_) => {}
        }
    }
}
