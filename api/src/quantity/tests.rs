//! Quantities by example, and against a rule that is slow and plain.

use super::*;
use proptest::prelude::*;

fn quantity(text: &str) -> Quantity {
    Quantity(text.to_owned())
}

#[test]
fn quantities_are_read_as_kubernetes_reads_them() {
    for (text, expected) in [
        ("1", Some(1_000)),
        ("500m", Some(500)),
        ("1.5", Some(1_500)),
        ("1.", Some(1_000)),
        ("0.0001", Some(1)),
        (".5", Some(500)),
        ("2k", Some(2_000_000)),
        ("1Ki", Some(1_024_000)),
        ("1.5Gi", Some(1_610_612_736_000)),
        ("1e3", Some(1_000_000)),
        ("1E3", Some(1_000_000)),
        ("1e+3", Some(1_000_000)),
        ("1E", Some(1_000_000_000_000_000_000_000)),
        ("15e-1", Some(1_500)),
        ("100n", Some(1)),
        ("+2", Some(2_000)),
        ("-1", None),
        ("", None),
        (".", None),
        (" 1", None),
        ("1 ", None),
        ("1e", None),
        ("1ee3", None),
        ("1e3i", None),
        ("1Kie3", None),
        ("1K", None),
        ("1mi", None),
        ("++1", None),
        ("1.2.3", None),
        ("1Qi", None),
        ("abc", None),
        ("1.1234567890123456789", Some(1_124)),
        ("1.00000000000000000004Ki", Some(1_024_001)),
        ("1e-50", Some(1)),
        ("1e-9", Some(1)),
        ("99999999999999999999999999999999999999e-30789", Some(1)),
        ("1000000000000000000000000000000000000e-39", Some(1)),
        ("99999999999999999999999999999999999999e-39", Some(100)),
        ("0.0000000000000000005e19", Some(5_000)),
        ("0e999999999", Some(0)),
        ("1e999999999999", None),
    ] {
        let expected = expected.map(|milli: u128| u64::try_from(milli).unwrap_or(u64::MAX));
        assert_eq!(milli_up(&quantity(text)), expected, "{text}");
    }
}

#[test]
fn requests_round_up_and_offers_round_down() {
    let half = quantity("1500m");
    assert_eq!((up(&half), down(&half)), (Some(2), Some(1)));
}

#[test]
fn devices_are_counted_in_whole_numbers_however_they_are_written() {
    for (text, count) in [
        ("2", Some(2)),
        ("2000m", Some(2)),
        ("2.0", Some(2)),
        ("1k", Some(1000)),
        ("0", Some(0)),
        ("1500m", None),
        ("-1", None),
        ("1e40", None),
    ] {
        assert_eq!(whole(&quantity(text)), count, "{text}");
    }
}

#[test]
fn memory_of_a_gpu_is_rounded_up_to_the_mib() {
    for (text, mib) in [
        ("1Mi", 1),
        ("1.5Gi", 1536),
        ("1e9", 954),
        ("1G", 954),
        ("500m", 1),
        ("1048576", 1),
        ("1048577", 2),
        ("1048576.0001", 2),
        ("1Ei", 1 << 40),
        ("0", 0),
    ] {
        assert_eq!(mib_up(text), Some(Mib(mib)), "{text}");
    }
}

#[test]
fn an_amount_beyond_all_numbers_fits_nowhere_and_is_offered_by_nobody() {
    for text in ["99999999999999999999999999999999999999999", "1e40", "1e999"] {
        let much = quantity(text);
        assert_eq!((up(&much), down(&much)), (Some(u64::MAX), None), "{text}");
        assert!(mib_up(text).unwrap() >= Mib(1 << 44), "{text}");
    }
    // Bytes that a pod may name; in thousandths they have more than 64 bits.
    let memory = quantity("20Pi");
    assert_eq!(
        (up(&memory), down(&memory)),
        (Some(20 << 50), Some(20 << 50))
    );
    let places = quantity("4.000000000000000001E");
    assert_eq!(up(&places), Some(4_000_000_000_000_000_001));
    let cpu = quantity("9E");
    assert_eq!((milli_up(&cpu), milli_down(&cpu)), (Some(u64::MAX), None));
}

#[test]
fn no_part_of_a_thousandth_is_offered() {
    for (text, up, down) in [
        ("1.0000001", 1001, 1000),
        ("99999999999999999999999999999999999999e-30789", 1, 0),
    ] {
        let amount = quantity(text);
        assert_eq!(
            (milli_up(&amount), milli_down(&amount)),
            (Some(up), Some(down)),
            "{text}"
        );
    }
}

/// A whole number of any size: decimal digits, the lowest first, none of them leading zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Big(Vec<u8>);

impl Big {
    fn of(text: &str) -> Self {
        let mut digits: Vec<u8> = text.bytes().rev().map(|digit| digit - b'0').collect();
        while digits.last() == Some(&0) {
            digits.pop();
        }
        Self(digits)
    }

    fn tens(&self, zeros: usize) -> Self {
        let text: String = self.0.iter().rev().map(ToString::to_string).collect();
        Self::of(&format!("{text}{}", "0".repeat(zeros)))
    }

    fn times(&self, small: u64) -> Self {
        let mut out = Vec::new();
        let mut carry = 0_u128;
        for digit in &self.0 {
            carry += u128::from(*digit) * u128::from(small);
            out.push(u8::try_from(carry % 10).unwrap());
            carry /= 10;
        }
        while carry > 0 {
            out.push(u8::try_from(carry % 10).unwrap());
            carry /= 10;
        }
        while out.last() == Some(&0) {
            out.pop();
        }
        Self(out)
    }

    fn is_below(&self, other: &Self) -> bool {
        let key = |big: &Self| (big.0.len(), big.0.iter().rev().copied().collect::<Vec<_>>());
        key(self) < key(other)
    }
}

/// A number without its sign and what its suffix multiplies it with: by two to `two`, then by
/// ten to `ten`.
fn suffixes() -> impl Strategy<Value = (String, u32, i32)> {
    let binary = prop::sample::select(vec!["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]);
    let decimal = prop::sample::select(vec!["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]);
    prop_oneof![
        binary.prop_map(|suffix| {
            let at = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
                .iter()
                .position(|one| *one == suffix);
            (
                suffix.to_owned(),
                10 * (u32::try_from(at.unwrap()).unwrap() + 1),
                0,
            )
        }),
        decimal.prop_map(|suffix| {
            let all = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
            let at = all.iter().position(|one| *one == suffix).unwrap();
            (suffix.to_owned(), 0, 3 * (i32::try_from(at).unwrap() - 3))
        }),
        (prop::sample::select(vec!["e", "E", "e+"]), 0..60_i32).prop_map(|(e, ten)| (
            format!("{e}{ten}"),
            0,
            ten
        )),
        (1..60_i32).prop_map(|ten| (format!("e-{ten}"), 0, -ten)),
    ]
}

proptest! {
    /// `q` thousandths are the largest number that is no more than the quantity, and the smallest
    /// that is no less: computed by multiplication, which needs no rounding.
    #[test]
    fn each_quantity_is_rounded_as_the_slow_rule_says(
        whole in "[0-9]{0,25}",
        part in "[0-9]{0,25}",
        (suffix, two, ten) in suffixes(),
        sign in prop::sample::select(vec!["", "+"]),
    ) {
        prop_assume!(!whole.is_empty() || !part.is_empty());
        let text = format!("{sign}{whole}.{part}{suffix}");
        let digits = format!("{whole}{part}");
        let power = 3 + ten - i32::try_from(part.len()).unwrap();
        let zeros = usize::try_from(power.unsigned_abs()).unwrap();
        // The quantity in thousandths is `number` divided by `by`.
        let scaled = Big::of(&digits).times(1 << two);
        let one = Big::of("1");
        let (number, by) = if power < 0 {
            (scaled, one.tens(zeros))
        } else {
            (scaled.tens(zeros), one)
        };
        for each in [1_u64, 1_000] {
            let by = by.times(each);
            let down = rounded_down(&text, u128::from(each));
            let up = rounded_up(&text, u128::from(each)).expect("it is a quantity");
            match down {
                Some(down) => {
                    prop_assert!(!number.is_below(&by.times(down)), "{text}: {down} is too much");
                    let next = down.checked_add(1).map(|next| by.times(next));
                    prop_assert!(next.is_none_or(|next| number.is_below(&next)), "{text}: {down} is too little");
                }
                None => prop_assert!(!number.is_below(&by.times(u64::MAX)), "{text} fits"),
            }
            if up < u64::MAX {
                prop_assert!(!by.times(up).is_below(&number), "{text}: {up} is too little");
            }
            if let Some(less) = up.checked_sub(1) {
                prop_assert!(by.times(less).is_below(&number), "{text}: {up} is too much");
            }
        }
    }
}

#[test]
fn billionths_are_exact_and_may_be_negative() {
    for (text, billionths) in [
        ("1", 1_000_000_000),
        ("-1.5", -1_500_000_000),
        ("1n", 1),
        ("0.1n", 1),
        ("-0.1n", -1),
        ("2Gi", 2 * (1 << 30) * 1_000_000_000),
        ("1e40", i128::MAX),
    ] {
        assert_eq!(nano(text), Some(billionths), "{text}");
    }
    for text in ["", "--1", "-+1", "1Q"] {
        assert_eq!(nano(text), None, "{text}");
    }
}
