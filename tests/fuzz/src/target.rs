//! A fuzz target: one parser, and what must hold of it.

use crate::mutate::Shape;

/// One parser, and what must hold of it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target.
    pub name: &'static str,
    /// The parts of which inputs are made.
    pub shape: Shape,
    /// The words of the target's language.
    pub words: &'static [&'static str],
    /// Inputs as they are in a cluster.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Inputs of about this many bytes, each the worst of its kind.
    pub large: fn(usize) -> Vec<Vec<u8>>,
    /// How many bytes may be allocated at once for each byte of input.
    pub heap: usize,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
}

/// No long inputs but those that every target has.
pub(crate) fn none(_: usize) -> Vec<Vec<u8>> {
    Vec::new()
}
