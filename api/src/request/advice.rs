//! A refusal ends with what to write in place of the value, because KAI's sentence names neither
//! the value nor the unit.

use crate::quantity;
use crate::units::Mib;

/// Returns what to write in place of a refused `gpu-memory` value.
pub(super) fn memory(text: &str) -> String {
    match mib(text) {
        Some(Mib(mib)) => format!("write \"{mib}\" for {mib} MiB"),
        None => "write the number of MiB in digits alone, such as \"2000\"".to_owned(),
    }
}

/// Returns the amount that the text most likely stands for: it is a quantity with a unit, or a
/// number that does not consist of digits alone.
fn mib(text: &str) -> Option<Mib> {
    let text: String = text.split_whitespace().collect();
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    if has_unit {
        let text = text.strip_suffix(['B', 'b']).unwrap_or(&text);
        let bytes = text.ends_with(|c: char| c.is_ascii_alphabetic());
        return quantity::mib_up(text).filter(|mib| bytes && *mib > Mib(0));
    }
    let number: f64 = text.parse().ok()?;
    // Larger values of an `f64` may not be exact, and no GPU has as much memory.
    if !(number > 0.0 && number < 1e15) {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The check above bounds it.
    let mib = number.ceil() as u64;
    Some(Mib(mib))
}

/// Returns the quantity that a text without its unit most likely stands for.
pub(super) fn unit(text: &str) -> String {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number {
        format!("{text}Mi")
    } else {
        "2Gi".to_owned()
    }
}

/// Returns what to write in place of a refused `gpu-fraction`, or of another part of a GPU.
pub(super) fn fraction(text: &str) -> String {
    match part(text) {
        Some(part) if part > 0.0 && part < 1.0 => format!("write \"{part}\""),
        Some(part) if part >= 1.0 => {
            "for whole GPUs use the limit nvidia.com/gpu in place of the annotation".to_owned()
        }
        _ => "write a number between 0 and 1, such as \"0.5\"".to_owned(),
    }
}

/// Returns what to write in place of a refused part of a GPU's compute, which may be all of it.
pub(super) fn compute(text: &str) -> String {
    match part(text) {
        Some(part) if part > 0.0 && part <= 1.0 => format!("write \"{part}\""),
        _ => "write a number such as \"0.25\" for a quarter".to_owned(),
    }
}

fn part(text: &str) -> Option<f64> {
    let text = text.trim();
    let number = |text: &str| text.trim().replace(',', ".").parse::<f64>().ok();
    if let Some(percent) = text.strip_suffix('%') {
        return Some(number(percent)? / 100.0);
    }
    if let Some((above, below)) = text.split_once('/') {
        return Some(number(above)? / number(below)?);
    }
    number(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_most_likely_meant_is_named() {
        for (text, said) in [
            ("2Gi", "write \"2048\" for 2048 MiB"),
            ("2GiB", "write \"2048\" for 2048 MiB"),
            ("2 GiB", "write \"2048\" for 2048 MiB"),
            ("2GB", "write \"1908\" for 1908 MiB"),
            ("2000Mi", "write \"2000\" for 2000 MiB"),
            (" 2000", "write \"2000\" for 2000 MiB"),
            ("+2000", "write \"2000\" for 2000 MiB"),
            ("2000.0", "write \"2000\" for 2000 MiB"),
            ("2e3", "write \"2000\" for 2000 MiB"),
        ] {
            assert_eq!(memory(text), said, "{text}");
        }
        for text in [
            "0",
            "-2000",
            "",
            "abc",
            "2B",
            "NaN",
            "inf",
            "1e99",
            "0Gi",
            "２０００",
        ] {
            assert!(memory(text).ends_with("such as \"2000\""), "{text}");
        }
        for (text, said) in [
            ("50%", "write \"0.5\""),
            ("0,5", "write \"0.5\""),
            ("1/2", "write \"0.5\""),
            ("1/0", "for whole GPUs"),
            ("1.5", "for whole GPUs"),
            ("1", "for whole GPUs"),
            ("0", "such as \"0.5\""),
            ("half", "such as \"0.5\""),
            ("NaN", "such as \"0.5\""),
        ] {
            assert!(fraction(text).contains(said), "{text}: {}", fraction(text));
        }
        assert_eq!(compute("100%"), "write \"1\"");
        assert!(compute("150%").contains("0.25"));
    }

    /// The value that the advice names must be accepted itself.
    #[test]
    fn advice_for_memory_is_a_value_that_is_taken() {
        for text in ["2Gi", "2GB", "1e3", "17.2", "900M"] {
            let advice = memory(text);
            let value = advice.split('"').nth(1).unwrap();
            assert!(super::super::number::mib(value).is_some(), "{advice}");
        }
    }
}
