//! A seed → an input that resembles it: what a parser is most likely to get wrong.
//!
//! - `corpus`: the seeds; `edge`: numbers.
//! - `text`: words, numbers and lines of a text; bytes of anything.
//! - `json`: values, keys and subtrees.
//! - `wire`: fields of a protobuf message.

mod corpus;
mod edge;
mod json;
mod text;
mod wire;

pub use corpus::{Corpus, Shape};

use crate::random::Xoshiro256;

/// No mutation makes an input longer: long ones are made on purpose, see
/// [`crate::Target::large`].
const MOST: usize = 8 << 10;

impl Corpus {
    /// From a target's seeds and the words of its language.
    pub fn new(shape: Shape, words: &[&'static str], seeds: Vec<Vec<u8>>) -> Self {
        let values = seeds
            .iter()
            .filter_map(|seed| serde_json::from_slice(seed).ok())
            .collect();
        Self {
            shape,
            words: words.to_vec(),
            seeds,
            values,
        }
    }

    /// The seeds themselves.
    pub fn seeds(&self) -> &[Vec<u8>] {
        &self.seeds
    }

    /// One input.
    pub fn input(&self, random: &mut Xoshiro256) -> Vec<u8> {
        let mut bytes = match self.shape {
            _ if random.one_in(128) => {
                let length = random.below(200);
                (0..length).map(|_| random.byte()).collect()
            }
            Shape::Json if !random.one_in(5) => self.json(random),
            Shape::Wire if !random.one_in(5) => self.wire(random),
            _ => {
                let mut bytes = self.seed(random);
                for _ in 0..rounds(random) {
                    self.bytes(&mut bytes, random);
                }
                bytes
            }
        };
        bytes.truncate(MOST);
        bytes
    }

    fn seed(&self, random: &mut Xoshiro256) -> Vec<u8> {
        random.pick(&self.seeds).cloned().unwrap_or_default()
    }

    fn json(&self, random: &mut Xoshiro256) -> Vec<u8> {
        let mut value = random.pick(&self.values).cloned().unwrap_or_default();
        for _ in 0..rounds(random) {
            json::mutate(&mut value, self, random);
        }
        let mut bytes = serde_json::to_vec(&value).unwrap_or_default();
        if random.one_in(8) {
            self.bytes(&mut bytes, random);
        }
        bytes
    }

    fn wire(&self, random: &mut Xoshiro256) -> Vec<u8> {
        let mut bytes = self.seed(random);
        for _ in 0..rounds(random) {
            wire::mutate(&mut bytes, self, random);
        }
        if random.one_in(8) {
            self.bytes(&mut bytes, random);
        }
        bytes
    }

    /// One step that knows of words and lines, or of nothing but bytes.
    fn bytes(&self, bytes: &mut Vec<u8>, random: &mut Xoshiro256) {
        if random.one_in(12) {
            // The beginning of one, the end of another.
            let other = self.seed(random);
            bytes.truncate(random.below(bytes.len() + 1));
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        } else {
            text::mutate(bytes, &self.words, random);
        }
        bytes.truncate(MOST);
    }

    /// A text that resembles this one, or is a word of the language.
    fn string(&self, text: &str, random: &mut Xoshiro256) -> String {
        let mut bytes = text.as_bytes().to_vec();
        text::mutate(&mut bytes, &self.words, random);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Mostly few.
fn rounds(random: &mut Xoshiro256) -> usize {
    let mut rounds = 1;
    while rounds < 12 && !random.one_in(3) {
        rounds += 1;
    }
    rounds
}
