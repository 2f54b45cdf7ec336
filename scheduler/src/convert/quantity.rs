//! Kubernetes quantities → whole numbers, exactly.
//!
//! In: a quantity's text. Out: how many units or thousandths it is, or `None` where it is not
//! one. What a pod asks for is rounded up, and an amount beyond all numbers is the largest of
//! them: it must fit nowhere, not everywhere. What a node or volume offers is rounded down.
//! Grammar: `apimachinery/pkg/api/resource/quantity.go`: a decimal number with a binary
//! suffix (`Ki`), a decimal one (`k`, `m`) or an exponent (`e3`).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// No 64-bit number has more: later digits only decide whether there is a remainder. These,
/// times any suffix, fit into 128 bits.
const DIGITS: usize = 20;

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
    // One unit of the number is `factor` times ten to the `exponent`.
    let (factor, exponent): (u128, i32) = match suffix {
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
    let digits = format!("{whole}{part}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(Thousandths::Whole(0, false));
    }
    let (first, rest) = digits.split_at(digits.len().min(DIGITS));
    let more = rest.bytes().any(|digit| digit != b'0');
    let scaled = first.parse::<u128>().ok()?.checked_mul(factor)?;
    let power = exponent
        .saturating_add(3)
        .saturating_add(i32::try_from(rest.len()).ok()?)
        .saturating_sub(i32::try_from(part.len()).ok()?);
    let ten = 10_u128.checked_pow(power.unsigned_abs());
    if power < 0 {
        // A power of ten that overflows 128 bits is larger than `scaled`.
        return Some(ten.map_or(Thousandths::Whole(0, true), |ten| {
            Thousandths::Whole(scaled / ten, more || scaled % ten != 0)
        }));
    }
    let count = ten.and_then(|ten| scaled.checked_mul(ten));
    Some(count.map_or(Thousandths::Beyond, |count| Thousandths::Whole(count, more)))
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
            ("1e-9", Some(1)),
            ("99999999999999999999999999999999999999e-30789", Some(1)),
            ("1000000000000000000000000000000000000e-39", Some(1)),
            ("99999999999999999999999999999999999999e-39", Some(100)),
            ("0.0000000000000000005e19", Some(5_000)),
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
        for (text, up, down) in [
            ("1.0000001", 1001, 1000),
            ("99999999999999999999999999999999999999e-30789", 1, 0),
        ] {
            let quantity = Quantity(text.to_owned());
            assert_eq!(
                (milli_up(&quantity), milli_down(&quantity)),
                (Some(up), Some(down)),
                "{text}"
            );
        }
    }
}
