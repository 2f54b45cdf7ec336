//! Text of others on one line of ours: a tenant's, the kernel's, a program's.
//!
//! In: any text. Out: one line that ends up in logs, events and status.

/// At most `most` characters of it, with a space for each control character and none around
/// it.
pub fn one_line(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let line: String = text.trim().chars().map(plain).take(most).collect();
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_comes_in_is_one_short_line() {
        for (text, line) in [
            ("py\u{7}thon\n", "py thon"),
            ("  a\nb\r\n", "a b"),
            ("two\u{7}", "two"),
            ("0123456789", "01234567"),
            ("äöüäöüäöü", "äöüäöüäö"),
            ("\n\n", ""),
        ] {
            assert_eq!(one_line(text, 8), line, "{text:?}");
        }
    }
}
