//! Numbers that look random and are the same each time: xoshiro256**, seeded by
//! `SplitMix64`. A generator of its own, since an input must stay the same over versions of
//! other crates.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Xoshiro256([u64; 4]);

impl Xoshiro256 {
    /// The stream of this seed, target and index: any one input can be made alone.
    pub fn new(seed: u64, target: &str, index: u64) -> Self {
        let name = target.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut state = seed ^ name ^ index.wrapping_mul(0xd134_2543_de82_ef95);
        Self([(); 4].map(|()| split_mix(&mut state)))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let out = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        out
    }

    /// Less than `end`; 0 where that is 0.
    #[allow(clippy::cast_possible_truncation)] // The high half of a product below end << 64.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.number()) * end as u128) >> 64) as usize
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of these; `None` where there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.number().to_le_bytes()[0]
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
