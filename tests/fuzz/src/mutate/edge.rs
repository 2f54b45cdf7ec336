//! Numbers at which parsers err.

use crate::random::Xoshiro256;

/// Whole numbers at which something changes.
const EDGES: [u64; 22] = [
    0,
    1,
    2,
    99,
    100,
    101,
    255,
    256,
    1023,
    1024,
    65_535,
    65_536,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 44,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

pub(super) fn edge(random: &mut Xoshiro256) -> u64 {
    let edge = random.pick(&EDGES).copied().unwrap_or_default();
    match random.below(4) {
        0 => edge.wrapping_add(1),
        1 => edge.wrapping_sub(1),
        _ => edge,
    }
}
