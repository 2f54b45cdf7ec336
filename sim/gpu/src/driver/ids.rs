//! The names that the driver has for processes and cards.

/// A connection: one process's open handle on the driver, its "RM client".
pub type ConnId = u64;

/// A card's index, which is its device minor too. MIG instances have indices after the cards.
pub type CardId = usize;
