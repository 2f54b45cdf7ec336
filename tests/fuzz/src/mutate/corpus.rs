//! The seeds of one target, from which inputs are made.

use serde_json::Value;

/// The parts of a target's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Lines and words.
    Text,
    /// JSON.
    Json,
    /// A protobuf message.
    Wire,
}

/// Seeds of one target, as they are mutated.
#[derive(Debug)]
pub struct Corpus {
    pub(super) shape: Shape,
    pub(super) words: Vec<&'static str>,
    pub(super) seeds: Vec<Vec<u8>>,
    pub(super) values: Vec<Value>,
}
