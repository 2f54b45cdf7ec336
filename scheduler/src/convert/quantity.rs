//! Kubernetes quantities → whole numbers, exactly.
//!
//! In: a quantity's text. Out: how many units or thousandths it is, or `None` where it is not
//! one. What a pod asks for is rounded up, and an amount beyond all numbers is the largest of
//! them: it must fit nowhere, not everywhere. What a node or volume offers is rounded down.
//! Grammar: `apimachinery/pkg/api/resource/quantity.go`: a decimal number with a binary
//! suffix (`Ki`), a decimal one (`k`, `m`) or an exponent (`e3`).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Kubernetes keeps no more: what comes after is rounded up or cut off.
const PLACES: usize = 18;
/// Ten to this fits into 128 bits.
const DIGITS: usize = 38;
/// Beyond, every number of [`DIGITS`] is nothing or does not fit.
const EXPONENT: i32 = 60;

/// How many thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thousandths {
    /// So many, and a part of one if `true`.
    Whole(u128, bool),
    /// More than 128 bits hold.
    Beyond,
}

/// `None` for what is no quantity and for what is negative.
fn read(quantity: &Quantity) -> Option<Thousandths> {
    let text = quantity.0.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') {
        return None;
    }
    let (part, rest) = part.split_at(part.len().min(PLACES));
    let more = rest.bytes().any(|digit| digit != b'0');
    let (up, down): (u128, u128) = match suffix {
        "n" => (1, 1_000_000),
        "u" => (1, 1_000),
        "m" => (1, 1),
        "" => (1_000, 1),
        "k" => (1_000_000, 1),
        "M" => (1_000_000_000, 1),
        "G" => (1_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000_000, 1),
        "Ki" => (1_000 << 10, 1),
        "Mi" => (1_000 << 20, 1),
        "Gi" => (1_000 << 30, 1),
        "Ti" => (1_000 << 40, 1),
        "Pi" => (1_000 << 50, 1),
        "Ei" => (1_000 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_u128.saturating_pow(exponent.clamp(-EXPONENT, EXPONENT).unsigned_abs());
            if exponent < 0 {
                (1_000, power)
            } else {
                (power.saturating_mul(1_000), 1)
            }
        }
    };
    let digits = format!("{whole}{part}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(Thousandths::Whole(0, more));
    }
    if digits.len() > DIGITS {
        return Some(Thousandths::Beyond);
    }
    let digits: u128 = digits.parse().ok()?;
    let places = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let divisor = places.saturating_mul(down);
    // Many places and a large suffix: only together do they fit.
    let common = greatest_common(up, divisor);
    let (up, divisor) = (up / common, divisor / common);
    let Some(scaled) = digits.checked_mul(up) else {
        return Some(Thousandths::Beyond);
    };
    let more = more || scaled % divisor != 0;
    Some(Thousandths::Whole(scaled / divisor, more))
}

fn greatest_common(one: u128, other: u128) -> u128 {
    if other == 0 {
        one
    } else {
        greatest_common(other, one % other)
    }
}

fn rounded_up(quantity: &Quantity, each: u128) -> Option<u64> {
    Some(match read(quantity)? {
        Thousandths::Whole(count, more) => {
            let up = count.saturating_add(u128::from(more)).div_ceil(each);
            u64::try_from(up).unwrap_or(u64::MAX)
        }
        Thousandths::Beyond => u64::MAX,
    })
}

fn rounded_down(quantity: &Quantity, each: u128) -> Option<u64> {
    match read(quantity)? {
        Thousandths::Whole(count, _) => u64::try_from(count / each).ok(),
        Thousandths::Beyond => None,
    }
}

/// Thousandths, rounded up: what a pod asks for is never made smaller.
pub(super) fn milli_up(quantity: &Quantity) -> Option<u64> {
    rounded_up(quantity, 1)
}

/// Thousandths, rounded down; `None` for what does not fit, too.
pub(super) fn milli_down(quantity: &Quantity) -> Option<u64> {
    rounded_down(quantity, 1)
}

/// Whole units, rounded up: what a pod asks for is never made smaller.
pub(super) fn up(quantity: &Quantity) -> Option<u64> {
    rounded_up(quantity, 1_000)
}

/// Whole units, rounded down: what a node offers is never made larger. `None` for what does
/// not fit, too.
pub(super) fn down(quantity: &Quantity) -> Option<u64> {
    rounded_down(quantity, 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("1", Some(1_000)),
            ("500m", Some(500)),
            ("1.5", Some(1_500)),
            ("0.0001", Some(1)),
            (".5", Some(500)),
            ("2k", Some(2_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1e3", Some(1_000_000)),
            ("1E3", Some(1_000_000)),
            ("15e-1", Some(1_500)),
            ("100n", Some(1)),
            ("+2", Some(2_000)),
            ("-1", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("1Qi", None),
            ("abc", None),
            ("1.1234567890123456789", Some(1_124)),
            ("1e-50", Some(1)),
            ("0e999999999", Some(0)),
            ("1e999999999999", None),
        ] {
            assert_eq!(milli_up(&Quantity(text.to_owned())), expected, "{text}");
        }
    }

    #[test]
    fn requests_round_up_and_offers_round_down() {
        let quantity = Quantity("1500m".to_owned());
        assert_eq!((up(&quantity), down(&quantity)), (Some(2), Some(1)));
    }
    #[test]
    fn an_amount_beyond_all_numbers_fits_nowhere_and_is_offered_by_nobody() {
        for text in ["99999999999999999999999999999999999999999", "1e40", "1e999"] {
            let quantity = Quantity(text.to_owned());
            assert_eq!(
                (up(&quantity), down(&quantity)),
                (Some(u64::MAX), None),
                "{text}"
            );
        }
        // Bytes that a pod may name; in thousandths they have more than 64 bits.
        let memory = Quantity("20Pi".to_owned());
        assert_eq!(
            (up(&memory), down(&memory)),
            (Some(20 << 50), Some(20 << 50))
        );
        let places = Quantity("4.000000000000000001E".to_owned());
        assert_eq!(up(&places), Some(4_000_000_000_000_000_001));
        let cpu = Quantity("9E".to_owned());
        assert_eq!((milli_up(&cpu), milli_down(&cpu)), (Some(u64::MAX), None));
    }

    #[test]
    fn no_part_of_a_thousandth_is_offered() {
        let quantity = Quantity("1.0000001".to_owned());
        assert_eq!(
            (milli_up(&quantity), milli_down(&quantity)),
            (Some(1001), Some(1000))
        );
    }
}
