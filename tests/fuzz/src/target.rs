//! A fuzz target: one parser, and what must hold of it.

use crate::mutate::Shape;

/// One parser, and what must hold of it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// The parts of its inputs.
    pub shape: Shape,
    /// Words of its language.
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
