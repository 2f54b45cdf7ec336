//! Fuzz targets: the parsers of everything that a tenant or a node can write.
//!
//! A [`Target`] is a function of bytes that panics where a parser breaks a promise: what it
//! read, written and read again, is the same; no amount is larger than was asked for; what
//! was signed is accepted to the byte or not at all. What runs them counts the memory
//! and the time that they take.
//!
//! - [`targets`]: the targets by name.
//! - [`mutate`]: seeds → inputs that resemble them; [`large`]: long ones; [`random`].
//!
//! `tests/inputs` runs them.
#![forbid(unsafe_code)]
#![allow(
    clippy::missing_panics_doc,
    clippy::expect_used,
    reason = "a target says what is wrong by a panic"
)]

pub mod large;
pub mod mutate;
pub mod random;
mod target;
pub mod targets;

pub use mutate::{Corpus, Shape};
pub use random::Xoshiro256;
pub use target::Target;
pub use targets::TARGETS;

/// Runs the target of that name.
///
/// # Panics
/// Where something does not hold, and where there is no such target.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(input);
}
