//! Cuts a sentence into lines that fit a screen.

/// The columns of the narrowest terminal that people use.
const WIDTH: usize = 80;

/// Returns the text as lines of at most 80 columns, each with so many blanks in front. A word that is
/// longer than a line is cut into pieces, because a name may be as long as its object.
pub(crate) fn wrapped(text: &str, indent: usize) -> Vec<String> {
    let room = WIDTH.saturating_sub(indent).max(1);
    let mut lines: Vec<String> = Vec::new();
    let mut line: Vec<char> = Vec::new();
    let mut end = |line: &mut Vec<char>| {
        let text: String = line.drain(..).collect();
        lines.push(format!("{}{text}", " ".repeat(indent)));
    };
    for word in text.split_whitespace() {
        let word: Vec<char> = word.chars().collect();
        for piece in word.chunks(room) {
            if !line.is_empty() && line.len() + 1 + piece.len() > room {
                end(&mut line);
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.extend(piece);
        }
    }
    if !line.is_empty() {
        end(&mut line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_screen_and_no_word_is_lost() {
        let long = "x".repeat(200);
        let text = format!("  a few  words, {} and {long} end ", "many ".repeat(30));
        for indent in [0, 2, 79, 200] {
            let lines = wrapped(&text, indent);
            let room = 80_usize.saturating_sub(indent).max(1);
            assert!(
                lines
                    .iter()
                    .all(|line| line.chars().count() <= indent + room)
            );
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(letters(&lines.join("\n")), letters(&text));
        }
        assert_eq!(wrapped("a b", 2), ["  a b"]);
        assert_eq!(wrapped(" ", 2), [""; 0]);
    }
}
