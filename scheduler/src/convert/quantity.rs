//! Kubernetes quantities → whole numbers, exactly.
//!
//! In: a quantity's text. Out: how many thousandths it is, or `None` where it is not one.
//! Grammar: `apimachinery/pkg/api/resource/quantity.go`: a decimal number with a binary
//! suffix (`Ki`), a decimal one (`k`, `m`) or an exponent (`e3`).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Thousandths, rounded up as Kubernetes rounds; `None` for what is no quantity, is
/// negative, or does not fit.
pub(super) fn milli(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || part.contains('.') || part.len() > 18 {
        return None;
    }
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
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
            let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 {
                (1_000, power)
            } else {
                (power.checked_mul(1_000)?, 1)
            }
        }
    };
    let places = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let scaled = digits.checked_mul(up)?;
    let divisor = places.checked_mul(down)?;
    u64::try_from(scaled.div_ceil(divisor)).ok()
}

/// Whole units, rounded up: what a pod asks for is never made smaller.
pub(super) fn up(quantity: &Quantity) -> Option<u64> {
    milli(quantity).map(|milli| milli.div_ceil(1000))
}

/// Whole units, rounded down: what a node offers is never made larger.
pub(super) fn down(quantity: &Quantity) -> Option<u64> {
    milli(quantity).map(|milli| milli / 1000)
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
            ("99999999999999999999999999999999999999999", None),
            ("9E", None),
        ] {
            assert_eq!(milli(&Quantity(text.to_owned())), expected, "{text}");
        }
    }

    #[test]
    fn requests_round_up_and_offers_round_down() {
        let quantity = Quantity("1500m".to_owned());
        assert_eq!((up(&quantity), down(&quantity)), (Some(2), Some(1)));
    }
}
