//! What a watch tells of an object.

/// What a watch tells of the objects of one kind.
#[derive(Clone, Debug)]
pub enum Seen<K> {
    /// Everything of this kind follows, as [`Seen::There`].
    Listing,
    /// The object is there, as it is now.
    There(Box<K>),
    /// The object with this [`Key`](super::Key) was deleted.
    Gone(String),
    /// The list of this kind is complete. An object that it did not name was told as [`Seen::Gone`].
    Listed,
}
