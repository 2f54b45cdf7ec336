//! Kubernetes quantities → whole numbers, exactly.
//!
//! In: a quantity's text. Out: how many units, thousandths or MiB it is, or `None` if it is
//! invalid. Requests are rounded up, and an amount beyond the range is the largest number: it must
//! fit nowhere, not everywhere. The capacity of a node or volume is rounded down. Grammar:
//! `apimachinery/pkg/api/resource/quantity.go`: a decimal number with a binary suffix (`Ki` to
//! `Ei`), a decimal one (`n`, `u`, `m`, `k` to `E`) or an exponent (`e3`, `E-3`).

use crate::units::Mib;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// No number of 128 bits has more.
const MAX_DIGITS: usize = 39;

/// How many of a decimal part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parts {
    /// The whole number, and a fraction if `true`.
    Whole(u128, bool),
    /// More than 128 bits hold.
    Beyond,
}

/// Decimals of a part.
const MILLI: i32 = 3;
const NANO: i32 = 9;

/// In units of this many decimals. `None` for invalid and for negative quantities.
fn read(text: &str, decimals: i32) -> Option<Parts> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') {
        return None;
    }
    // One unit of the number is `factor` times ten to the `exponent`.
    let (factor, exponent): (u64, i32) = match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let digits = times(whole.bytes().chain(part.bytes()), factor);
    if digits.is_empty() {
        return Some(Parts::Whole(0, false));
    }
    let power = exponent
        .saturating_add(decimals)
        .saturating_sub(i32::try_from(part.len()).ok()?);
    let zeros = usize::try_from(power.unsigned_abs()).ok()?;
    if power >= 0 {
        let long = digits.len().saturating_add(zeros) > MAX_DIGITS;
        let tens = 10_u128.checked_pow(power.unsigned_abs());
        let count = count_of(&digits)
            .zip(tens.filter(|_| !long))
            .and_then(|(count, tens)| count.checked_mul(tens));
        return Some(count.map_or(Parts::Beyond, |count| Parts::Whole(count, false)));
    }
    let (count, cut) = digits.split_at(digits.len().saturating_sub(zeros));
    let more = cut.iter().any(|digit| *digit != 0);
    Some(count_of(count).map_or(Parts::Beyond, |count| Parts::Whole(count, more)))
}

/// A decimal number times `factor`, digit by digit, so that none is lost; the highest first,
/// without leading zeros.
fn times(digits: impl DoubleEndedIterator<Item = u8>, factor: u64) -> Vec<u8> {
    let mut product = Vec::new();
    // At most nine times 2^60 and a ninth of that again: it fits.
    let mut carry = 0_u64;
    let mut push = |carry: &mut u64| {
        product.push((*carry % 10) as u8);
        *carry /= 10;
    };
    for digit in digits.rev() {
        carry += u64::from(digit - b'0') * factor;
        push(&mut carry);
    }
    while carry > 0 {
        push(&mut carry);
    }
    while product.last() == Some(&0) {
        product.pop();
    }
    product.reverse();
    product
}

/// `None` for more than 128 bits.
fn count_of(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |number, digit| {
        number.checked_mul(10)?.checked_add(u128::from(*digit))
    })
}

fn rounded_up(text: &str, each: u128) -> Option<u64> {
    Some(match read(text, MILLI)? {
        Parts::Whole(count, more) => {
            let up = count.saturating_add(u128::from(more)).div_ceil(each);
            u64::try_from(up).unwrap_or(u64::MAX)
        }
        Parts::Beyond => u64::MAX,
    })
}

fn rounded_down(text: &str, each: u128) -> Option<u64> {
    match read(text, MILLI)? {
        Parts::Whole(count, _) => u64::try_from(count / each).ok(),
        Parts::Beyond => None,
    }
}

/// Thousandths, rounded up: what a pod asks for is never made smaller.
pub fn milli_up(quantity: &Quantity) -> Option<u64> {
    rounded_up(&quantity.0, 1)
}

/// Thousandths, rounded down; `None` for what does not fit, too.
pub fn milli_down(quantity: &Quantity) -> Option<u64> {
    rounded_down(&quantity.0, 1)
}

/// Whole units, rounded up: what a pod asks for is never made smaller.
pub fn up(quantity: &Quantity) -> Option<u64> {
    rounded_up(&quantity.0, 1_000)
}

/// Whole units, rounded down: what a node offers is never made larger. `None` for what does
/// not fit, too.
pub fn down(quantity: &Quantity) -> Option<u64> {
    rounded_down(&quantity.0, 1_000)
}

/// Whole units of what is counted, such as devices; `None` for parts of one and for what does
/// not fit, too.
pub fn whole(quantity: &Quantity) -> Option<u64> {
    down(quantity).filter(|count| up(quantity) == Some(*count))
}

/// Billionths, Kubernetes' smallest step, below zero too; rounded away from zero, as Kubernetes
/// does. The largest amount where it is beyond all numbers.
pub fn nano(text: &str) -> Option<i128> {
    let (text, sign) = match text.strip_prefix('-') {
        Some(text) if !text.starts_with(['+', '-']) => (text, -1),
        Some(_) => return None,
        None => (text, 1),
    };
    let parts = match read(text, NANO)? {
        Parts::Whole(count, more) => count.saturating_add(u128::from(more)),
        Parts::Beyond => u128::MAX,
    };
    Some(sign * i128::try_from(parts).unwrap_or(i128::MAX))
}

/// Bytes as MiB, rounded up: a request is never made smaller.
pub fn mib_up(text: &str) -> Option<Mib> {
    rounded_up(text, 1_000).map(|bytes| Mib(bytes.div_ceil(1 << 20)))
}

#[cfg(test)]
mod tests;
