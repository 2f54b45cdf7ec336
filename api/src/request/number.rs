//! Numbers in annotations: as KAI reads them.

use crate::units::Mib;

/// Parts of a card's compute in a per cent.
const NANO_PER_PERCENT: u64 = 10_000_000;
/// As KAI takes them of a limit.
const LIMIT_DIGITS: usize = 5;

/// Go's `ParseUint(text, 10, 64)`: digits alone; and not 0.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|value| *value > 0)
}

pub(super) fn mib(text: &str) -> Option<Mib> {
    digits(text).map(Mib)
}

pub(super) fn positive(text: &str) -> Option<u32> {
    digits(text).and_then(|value| u32::try_from(value).ok())
}

/// A number in (0, 1) in billionths, rounded to the nearest, never to 0 or 1.
pub(super) fn fraction(text: &str) -> Option<u64> {
    let value: f64 = text.parse().ok()?;
    if !(value > 0.0 && value < 1.0) {
        return None;
    }
    Some(nano(value).clamp(1, 999_999_999))
}

/// A number in (0, 1] in per cent, rounded down, never to 0: MPS reads 0 as no ceiling.
pub(super) fn percent(text: &str) -> Option<u8> {
    let value: f64 = text.parse().ok()?;
    if !(value > 0.0 && value <= 1.0) {
        return None;
    }
    let percent = (nano(value) / NANO_PER_PERCENT).clamp(1, 100);
    u8::try_from(percent).ok()
}

/// Of a number in (0, 1].
fn nano(value: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    // In (0, 1e9] by the callers' checks.
    let nano = (value * 1e9).round() as u64;
    nano
}

/// Whether a limit has no more digits after its point than KAI takes.
pub(super) fn is_short(text: &str) -> bool {
    text.split_once('.')
        .is_none_or(|(_, part)| part.len() <= LIMIT_DIGITS)
}
