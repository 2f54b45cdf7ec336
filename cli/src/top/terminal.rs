//! Keyboard and screen of a terminal: the only part that touches them.
//!
//! However it ends, the terminal is as it was: the guard gives it back.

use super::draw;
use super::model::{Key, Model};
use crate::failure::Failure;
use crate::report::{colours, say};
use crate::view::ClusterView;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::terminal;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// If standard error is the same terminal, its output is shown afterwards.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal while it is ours.
struct Guard;

impl Guard {
    fn take() -> Result<Self, Failure> {
        terminal::enable_raw_mode()
            .map_err(|error| Failure::no(format!("the terminal cannot be used: {error}")))?;
        let guard = Self;
        say(ENTER)?;
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = say(LEAVE);
        let _ = terminal::disable_raw_mode();
    }
}

/// A key or another size.
enum Input {
    Key(Key),
    Resize,
}

/// Shows the cluster until the user ends it; `look` is called at intervals.
pub(super) async fn run<L>(view: ClusterView, every: Duration, look: L) -> Result<(), Failure>
where
    L: AsyncFn() -> Result<ClusterView, Failure>,
{
    let guard = Guard::take()?;
    let (out, mut inputs) = mpsc::unbounded_channel();
    // It ends with the process, or with the first input after its reader has ended.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let Some(input) = input(event) else { continue };
            if out.send(input).is_err() {
                return;
            }
        }
    });
    let mut model = Model::new(view);
    let mut due = Instant::now() + every;
    let mut looking = None;
    loop {
        show(&mut model)?;
        if looking.is_none() && Instant::now() >= due {
            looking = Some(Box::pin(look()));
        }
        let rests = looking.is_none();
        let looked = async {
            match &mut looking {
                Some(looking) => looking.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            input = inputs.recv() => match input {
                Some(Input::Key(key)) if !model.key(key) => break,
                Some(_) => {}
                None => break,
            },
            view = looked => {
                looking = None;
                due = Instant::now() + every;
                match view {
                    Ok(view) => model.look(view),
                    Err(failure) => model.said = Some(format!("{} (trying again)", failure.sentence)),
                }
            }
            () = tokio::time::sleep_until(due), if rests => {}
        }
    }
    drop(guard);
    Ok(())
}

fn show(model: &mut Model) -> Result<(), Failure> {
    let (width, height) = terminal::size().unwrap_or((80, 24));
    let lines = draw::lines(model, width.into(), height.into(), colours());
    let mut text = String::from("\x1b[H");
    for (at, line) in lines.iter().enumerate() {
        if at > 0 {
            text.push_str("\r\n");
        }
        text.push_str(line);
        text.push_str("\x1b[K");
    }
    text.push_str("\x1b[J");
    say(&text)
}

fn input(event: Event) -> Option<Input> {
    match event {
        Event::Resize(..) => Some(Input::Resize),
        Event::Key(KeyEvent {
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            code,
            modifiers,
            ..
        }) => key(code, modifiers).map(Input::Key),
        _ => None,
    }
}

fn key(code: KeyCode, modifiers: KeyModifiers) -> Option<Key> {
    Some(match code {
        KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(character) => Key::Char(character),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter | KeyCode::Right => Key::Enter,
        KeyCode::Esc | KeyCode::Left => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
