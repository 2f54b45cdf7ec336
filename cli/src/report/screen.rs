//! Answers that change: a terminal is redrawn, anything else gets one after the other.

use super::print::say;
use super::{Output, Report};
use crate::failure::Failure;
use std::io::IsTerminal as _;
use std::time::Duration;

/// Flags of every verb whose answer may be followed.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Follow {
    /// Print again whenever the answer changes, until Ctrl-C.
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// With --watch: seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, requires = "watch",
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
}

impl Follow {
    /// Prints what `look` answers: once, or whenever it is another. A look that fails
    /// after the first one is said and tried again.
    pub(crate) async fn print<L>(self, output: Output, mut look: L) -> Result<(), Failure>
    where
        L: AsyncFnMut() -> Result<Report, Failure>,
    {
        if !self.watch {
            return output.print(&look().await?);
        }
        let mut screen = Screen::new();
        let first = look().await?;
        screen.show(&output.render(&first, super::print::colours()))?;
        loop {
            tokio::time::sleep(Duration::from_secs(self.interval)).await;
            let text = match look().await {
                Ok(report) => output.render(&report, super::print::colours()),
                Err(failure) => format!("{} (trying again)\n", failure.sentence),
            };
            screen.show(&text)?;
        }
    }
}

/// Where texts follow each other.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: bool,
    last: Option<String>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            last: None,
        }
    }

    /// Shows a text unless it is the one that stands there.
    pub(crate) fn show(&mut self, text: &str) -> Result<(), Failure> {
        let before = match &self.last {
            Some(last) if last == text => return Ok(()),
            // Up to where the last text began, and everything below is cleared.
            Some(last) if self.terminal && !last.is_empty() => {
                format!("\x1b[{}F\x1b[J", last.lines().count())
            }
            Some(_) if !self.terminal => "\n".to_owned(),
            _ => String::new(),
        };
        self.last = Some(text.to_owned());
        say(&(before + text))
    }
}
