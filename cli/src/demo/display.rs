//! Where the demo is shown: a picture that is drawn in place on a terminal, a log elsewhere.

use super::log::changes;
use super::print::{picture, say};
use crate::report::{Screen, drawable, first_lines, size};
use crate::view::ClusterView;
use api::visible::visible;
use std::time::Instant;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Lines of what happened that are shown below the picture at most.
const MOST: usize = 8;
/// And at least, where there are as many.
const LEAST: usize = 3;
/// Lines of the log that are kept.
const KEPT: usize = 100;

/// See the module.
pub(super) struct Display {
    begin: Instant,
    /// Nothing is shown before the end.
    silent: bool,
    head: String,
    screen: Screen,
    view: ClusterView,
    log: Vec<String>,
    /// The terminal has another size.
    sizes: Option<Signal>,
}

impl Display {
    /// With nothing on it but its head.
    pub(super) fn new(begin: Instant, silent: bool, head: String) -> Self {
        if !silent && drawable().is_none() {
            say(&format!("{head}\n"));
        }
        Self {
            begin,
            silent,
            head,
            screen: Screen::new(),
            view: ClusterView::default(),
            log: Vec::new(),
            sizes: signal(SignalKind::window_change()).ok(),
        }
    }

    /// The view is this now.
    pub(super) fn see(&mut self, view: &ClusterView) -> anyhow::Result<()> {
        let lines = changes(&self.view, view);
        self.view = view.clone();
        for line in lines {
            self.note(&line);
        }
        self.draw()
    }

    /// Something happened that no view shows.
    pub(super) fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        self.note(line);
        self.draw()
    }

    fn note(&mut self, line: &str) {
        let line = visible(line);
        let line = format!("{:>6.1} s  {line}", self.begin.elapsed().as_secs_f64());
        if !self.silent && drawable().is_none() {
            say(&format!("{line}\n"));
        }
        self.log.push(line);
        if self.log.len() > KEPT {
            self.log.remove(0);
        }
    }

    /// Draws everything, where it is drawn.
    pub(super) fn draw(&mut self) -> anyhow::Result<()> {
        if self.silent || drawable().is_none() {
            return Ok(());
        }
        let text = text(&self.head, &picture(&self.view), &self.log, size().1);
        let shown = self.screen.show(&text);
        shown.map_err(|failure| anyhow::anyhow!(failure.sentence))
    }

    /// Returns when the terminal has another size.
    pub(super) async fn resized(&mut self) {
        match &mut self.sizes {
            Some(sizes) => {
                sizes.recv().await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Head, picture, and of what happened as much as there is room for; the last of it is shown in
/// any case.
fn text(head: &str, picture: &str, log: &[String], height: usize) -> String {
    let mut text = format!("{head}\n");
    // The log has a blank line and a title above it, and the cursor a line below it.
    let below = log.len().min(LEAST) + 3;
    let room = height.saturating_sub(text.lines().count() + below);
    for line in first_lines(picture, room) {
        text.push_str(&line);
        text.push('\n');
    }
    if !log.is_empty() {
        let room = height.saturating_sub(text.lines().count() + 3);
        let room = room.clamp(LEAST, MOST);
        text.push_str("\nWHAT HAPPENED\n");
        for line in &log[log.len().saturating_sub(room)..] {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_what_happened_is_shown_as_far_as_there_is_room() {
        let log: Vec<String> = (0..20).map(|at| format!("line {at}")).collect();
        let long = text("head\n", "card\n", &log, 50);
        assert_eq!(
            long.lines().filter(|line| line.starts_with("line")).count(),
            MOST
        );
        assert!(long.ends_with("line 19\n"));
        let short = text("head\n", &"card\n".repeat(30), &log, 24);
        assert_eq!(
            short
                .lines()
                .filter(|line| line.starts_with("line"))
                .count(),
            3
        );
        assert_eq!(text("head\n", "card\n", &[], 24), "head\n\ncard\n");
    }
}
