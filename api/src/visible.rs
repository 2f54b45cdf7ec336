//! In untrusted text, the characters that a terminal obeys instead of showing are escaped: control
//! characters, which move the cursor, and characters that reorder a line or have no width, with
//! which one name can look like another. The status page escapes them in the same way.

/// The first entries are `Default_Ignorable_Code_Point` of Unicode 16
/// (`DerivedCoreProperties.txt`), which includes each character of `Bidi_Control`. The last ones
/// are `Line_Separator`, `Paragraph_Separator` and the marks of interlinear annotations. For
/// [`char::is_control`], none of them is a control character.
const UNSEEN: [(char, char); 19] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{202a}', '\u{202e}'),
    ('\u{2060}', '\u{206f}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff0}', '\u{fff8}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0000}', '\u{e0fff}'),
    ('\u{2028}', '\u{2029}'),
    ('\u{fff9}', '\u{fffb}'),
];

/// Returns whether a terminal shows the character in its place.
pub fn is_visible(c: char) -> bool {
    !c.is_control()
        && !UNSEEN
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&c))
}

/// Returns a text in which each invisible character is written as its number, such as `\u{202e}`.
/// Line breaks are invisible characters.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_visible(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_unicode());
        }
    }
    shown
}

/// Returns a text as one line of at most so many bytes, with a blank for each invisible character.
/// A message that quotes a tenant's object may be as long as the object.
pub fn line(text: &str, bytes: usize) -> String {
    text.chars()
        .map(|c| if is_visible(c) { c } else { ' ' })
        .scan(0, |length, c| {
            *length += c.len_utf8();
            (*length <= bytes).then_some(c)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_what_it_shows_stays() {
        for c in [
            '\u{1b}',
            '\u{7}',
            '\n',
            '\u{7f}',
            '\u{9b}',
            '\u{202e}',
            '\u{202d}',
            '\u{2066}',
            '\u{2069}',
            '\u{200e}',
            '\u{200f}',
            '\u{61c}',
            '\u{200b}',
            '\u{2060}',
            '\u{feff}',
            '\u{ad}',
            '\u{2028}',
            '\u{2029}',
            '\u{fff9}',
            '\u{e0041}',
        ] {
            let escaped = format!("a\\u{{{:x}}}b", u32::from(c));
            assert_eq!(visible(&format!("a{c}b")), escaped);
        }
        assert_eq!(line("a\u{202e}\nb", 99), "a  b");
        assert_eq!(line("größer", 4), "grö", "a character is not cut in two");
        let shown = "a-b/c: 15360 MiB, \"größer\" 数 ✓ ⚠ │ e\u{301} שלום";
        assert_eq!(visible(shown), shown);
    }
}
