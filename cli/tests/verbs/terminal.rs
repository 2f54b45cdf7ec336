//! Verbs on a terminal: live, drawn in place, by keys; and lines where it is narrow or none.

use super::cluster::{Demo, aliquot, until};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::unistd::ttyname;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

struct Terminal {
    child: Child,
    keys: File,
    /// Path of the terminal.
    path: PathBuf,
    /// Everything that was written.
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(command: &mut Command, columns: u16, rows: u16) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let OpenptyResult { master, slave } = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .spawn()
            .unwrap();
        let path = ttyname(&slave).unwrap();
        drop(slave);
        let shown = Arc::new(Mutex::new(String::new()));
        let mut reader = File::from(master.try_clone().unwrap());
        let all = shown.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = reader.read(&mut bytes) {
                if count == 0 {
                    return;
                }
                all.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self {
            child,
            keys: File::from(master),
            path,
            shown,
        }
    }

    fn text(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// What is on the screen since it was drawn last, without colours.
    fn screen(&self) -> String {
        let text = self.text();
        let last = text.rsplit("\x1b[H").next().unwrap_or_default();
        let mut plain = String::new();
        let mut inside = false;
        for character in last.chars() {
            match character {
                '\x1b' => inside = true,
                end if inside => inside = !end.is_ascii_alphabetic(),
                other => plain.push(other),
            }
        }
        plain
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Makes the window another size, as a user does.
    fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let done = Command::new("stty")
            .arg("-F")
            .arg(&self.path)
            .args(["cols", &columns, "rows", &rows])
            .status();
        assert!(done.unwrap().success());
        // The terminal is not the one that controls it: the signal is sent by hand.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGWINCH).unwrap();
    }

    fn sees(&self, words: &str) {
        until(words, || self.screen().contains(words).then_some(()));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn verbs_are_live_on_a_terminal(demo: &Demo) {
    top_is_used_by_keys(demo);
    a_followed_answer_is_drawn_in_place(demo);
}

fn top_is_used_by_keys(demo: &Demo) {
    let mut top = Terminal::start(&mut demo.command(&["top", "--interval", "1"]), 120, 30);
    top.sees("2 nodes  2 cards");
    top.press("2");
    top.sees("OFFERING");
    top.press("\r");
    top.sees("nodes > cards of node-1");
    top.press("\x1b[D");
    top.press("3");
    top.sees("inference");
    top.press("/notebook\r");
    until("the filter", || {
        let screen = top.screen();
        (screen.contains("notebook") && !screen.contains("inference")).then_some(())
    });
    top.press("\r");
    top.sees("shares > demo/notebook");
    top.sees("IsolationVerified False");
    top.press(":wait\r");
    top.sees("later");
    top.press("?");
    top.sees("only rows with this text");
    top.press("q");
    let code = until("the end", || top.child.try_wait().unwrap());
    assert!(code.success());
    assert!(
        top.text().ends_with("\x1b[?25h\x1b[?1049l"),
        "the terminal is given back"
    );
}

fn a_followed_answer_is_drawn_in_place(demo: &Demo) {
    let follow = |columns: u16| {
        let watch = ["cards", "--watch", "--interval", "1"];
        Terminal::start(&mut demo.command(&watch), columns, 30)
    };
    let (wide, narrow) = (follow(100), follow(40));
    for terminal in [&wide, &narrow] {
        until("the cards", || {
            terminal.text().contains("node-2").then_some(())
        });
    }
    demo.told(&["cordon", "node-1"]);
    for terminal in [&wide, &narrow] {
        until("the change", || {
            terminal.text().contains("cordoned").then_some(())
        });
    }
    demo.told(&["uncordon", "node-1"]);
    let (wide, narrow) = (wide.text(), narrow.text());
    assert!(wide.contains("\x1b[3F\x1b[J"), "it is drawn over: {wide:?}");
    assert!(
        !narrow.contains("\x1b[3F"),
        "40 columns get lines: {narrow:?}"
    );
}

#[test]
fn the_demo_is_drawn_in_place_and_follows_the_window() {
    let place = tempfile::Builder::new()
        .prefix("t")
        .tempdir_in("/tmp")
        .unwrap();
    let mut command = aliquot(&["demo"]);
    command.env("TMPDIR", place.path());
    let mut demo = Terminal::start(&mut command, 110, 40);
    let told = |words: &str| until(words, || demo.text().contains(words).then_some(()));
    told("the next 250 were refused: out of memory.");
    told("run on.");
    told("WAITING");
    let text = demo.text();
    let last = text.rsplit("\x1b[J").next().unwrap();
    for words in ["demo/notebook", "█", "░", "demo/later", "WHAT HAPPENED"] {
        assert!(last.contains(words), "{words} is not on\n{last}");
    }
    assert!(last.lines().count() < 40, "it would scroll:\n{last}");
    let before = text.len();
    demo.resize(60, 24);
    until("another picture", || {
        let text = demo.text();
        let news = &text[before..];
        let at = news.find("\x1b[2J\x1b[H")?;
        let wide = news[at..].lines().map(|line| line.chars().count()).max();
        // Colours take no room: a line has a dozen such characters more at most.
        (wide? <= 90 && news[at..].contains("greedy had")).then_some(())
    });
    let pid = demo.child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let code = until("the end", || demo.child.try_wait().unwrap());
    assert!(code.success());
}
