//! Answers that change: a terminal is redrawn in place, anything else gets one after the other.

use super::answer::Report;
use super::print::{Output, colours, say};
use crate::failure::Failure;
use std::borrow::Cow;
use std::io::IsTerminal as _;
use std::time::Duration;

/// A terminal that is no wider is not drawn on: it gets lines.
const NARROW: u16 = 40;

/// Flags of every verb whose answer may be followed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Follow {
    /// Print again whenever the answer changes, until Ctrl-C.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// With --watch: seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, requires = "watch",
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
}

impl Follow {
    /// Prints the result of `look`: once, or whenever it changes. An error after the first success
    /// is printed, and the call is repeated.
    pub(crate) async fn print<L>(self, output: Output, mut look: L) -> Result<(), Failure>
    where
        L: AsyncFnMut() -> Result<Report, Failure>,
    {
        if !self.watch {
            return output.print(&look().await?);
        }
        let mut screen = Screen::new();
        let first = look().await?;
        screen.show(&output.render(&first, colours()))?;
        loop {
            tokio::time::sleep(Duration::from_secs(self.interval)).await;
            let text = match look().await {
                Ok(report) => output.render(&report, colours()),
                Err(failure) => format!("{} (trying again)\n", failure.sentence),
            };
            screen.show(&text)?;
        }
    }
}

/// Width and height of the terminal that standard output is, where it is one to draw on.
pub(crate) fn drawable() -> Option<(u16, u16)> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let size = crossterm::terminal::size().ok();
    size.filter(|(width, height)| *width > NARROW && *height > 4)
}

/// Columns and lines to lay a text out for; 100 and 30 where standard output is no terminal.
pub(crate) fn size() -> (usize, usize) {
    let (width, height) = drawable().unwrap_or((100, 30));
    (width.into(), height.into())
}

/// Where texts follow each other.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    last: Option<String>,
    /// Of the terminal when it was drawn on last, and how many lines that were.
    drawn: Option<((u16, u16), usize)>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Shows a text unless it is already shown.
    pub(crate) fn show(&mut self, text: &str) -> Result<(), Failure> {
        let text = self.next(text, drawable());
        say(&text)
    }

    /// The output for it.
    fn next(&mut self, text: &str, size: Option<(u16, u16)>) -> String {
        let same = self.last.as_deref() == Some(text);
        if same && self.drawn.map(|(old, _)| old) == size {
            return String::new();
        }
        let before = self.drawn;
        let is_first = self.last.replace(text.to_owned()).is_none();
        let Some(size) = size else {
            self.drawn = None;
            return match (same, is_first) {
                (true, _) => String::new(),
                (_, true) => text.to_owned(),
                _ => format!("\n{text}"),
            };
        };
        let fitted = fitted(text, size);
        self.drawn = Some((size, fitted.lines().count()));
        let back = match before {
            // Up to where the last text began, and everything below is cleared.
            Some((old, lines)) if old == size && lines > 0 => format!("\x1b[{lines}F\x1b[J"),
            // The terminal has rewrapped the lines: it is cleared.
            Some((old, _)) if old != size => "\x1b[2J\x1b[H".to_owned(),
            _ => String::new(),
        };
        back + &fitted
    }
}

/// A text that neither wraps nor scrolls on a terminal of that size.
pub(crate) fn fitted(text: &str, (width, height): (u16, u16)) -> String {
    let (width, height) = (usize::from(width), usize::from(height));
    // The cursor needs a line of its own.
    let lines = first_lines(text, height.saturating_sub(1));
    let lines = lines.iter().map(|line| clipped(line, width) + "\n");
    lines.collect()
}

/// At most `most` lines of a text, one at least; where it has more, the last of them says how many.
pub(crate) fn first_lines(text: &str, most: usize) -> Vec<Cow<'_, str>> {
    let most = most.max(1);
    let mut lines: Vec<Cow<'_, str>> = text.lines().map(Cow::Borrowed).collect();
    if lines.len() > most {
        let more = lines.len() - (most - 1);
        lines.truncate(most - 1);
        lines.push(format!("... {more} more lines: make the window taller").into());
    }
    lines
}

/// A line of at most this many columns. Colour codes take none.
pub(crate) fn clipped(line: &str, width: usize) -> String {
    let (mut out, mut columns) = (String::with_capacity(line.len()), 0);
    let mut characters = line.chars();
    let mut coloured = false;
    while let Some(character) = characters.next() {
        if character == '\x1b' {
            coloured = true;
            out.push(character);
            for code in characters.by_ref() {
                out.push(code);
                if code.is_ascii_alphabetic() {
                    break;
                }
            }
            continue;
        }
        if columns == width {
            if coloured {
                out.push_str("\x1b[0m");
            }
            break;
        }
        out.push(character);
        columns += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Option<(u16, u16)> = Some((80, 24));

    #[test]
    fn a_terminal_is_drawn_in_place_and_cleared_when_its_size_changes() {
        let mut screen = Screen::new();
        assert_eq!(screen.next("a\nb\n", WIDE), "a\nb\n");
        assert_eq!(screen.next("a\nb\n", WIDE), "", "it stands there");
        assert_eq!(screen.next("c\n", WIDE), "\x1b[2F\x1b[Jc\n");
        assert_eq!(screen.next("d\n", WIDE), "\x1b[1F\x1b[Jd\n");
        let narrow = Some((50, 24));
        assert_eq!(screen.next("d\n", narrow), "\x1b[2J\x1b[Hd\n");
        assert_eq!(screen.next("d\n", narrow), "");
    }

    #[test]
    fn what_is_no_terminal_to_draw_on_gets_one_text_after_the_other() {
        let mut screen = Screen::new();
        assert_eq!(screen.next("a\n", None), "a\n");
        assert_eq!(screen.next("a\n", None), "");
        assert_eq!(screen.next("b\n", None), "\nb\n");
    }

    #[test]
    fn nothing_wraps_and_nothing_scrolls() {
        let text = format!("{}\n", "x".repeat(100)).repeat(30);
        let shown = fitted(&text, (60, 10));
        assert_eq!(shown.lines().count(), 9);
        assert!(shown.lines().all(|line| line.chars().count() <= 60));
        assert!(
            shown.ends_with("... 22 more lines: make the window taller\n"),
            "{shown}"
        );
        let coloured = "\x1b[31mlonger\x1b[0m tail";
        assert_eq!(clipped(coloured, 4), "\x1b[31mlong\x1b[0m");
        assert_eq!(clipped(coloured, 40), coloured);
        assert_eq!(clipped("░░░", 2), "░░");
    }
}
