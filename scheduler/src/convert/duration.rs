//! Durations in the notation of Go.

use scheduler_core::units::Duration;

/// The longest duration of Go, which keeps 63 bits of nanoseconds.
const MAX_MILLIS: f64 = 9_223_372_036_854.0;

/// Reads a duration of Go (`time.ParseDuration`). One that is negative, unreadable or longer than Go
/// keeps counts as unset. A tenant writes the text, and `kube`'s own parser ends the process at
/// `1h-5m`.
pub(crate) fn duration(text: Option<&str>) -> Option<Duration> {
    let text = text?;
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration(0));
    }
    let of_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut millis = 0.0;
    let mut parts = 0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !of_number(c))?);
        let (unit, after) = after.split_at(after.find(of_number).unwrap_or(after.len()));
        let each = match unit {
            "ns" => 1e-6,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 6e4,
            "h" => 3.6e6,
            _ => return None,
        };
        millis += number.parse::<f64>().ok()? * each;
        rest = after;
        parts += 1;
    }
    (parts > 0 && millis <= MAX_MILLIS).then(|| Duration(whole(millis)))
}

/// Returns the nearest whole number. `None`: the number is negative or not a number.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Saturates.
pub(super) fn whole(amount: f64) -> u64 {
    amount.round().max(0.0) as u64
}
