//! A program's wall clock goes as the file says, and changes while the program runs; its
//! other clocks do not.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

const HOUR: i64 = 3600;
const ANSWER: &str = "wall ";

/// Cargo builds it beside the tests.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libsim_clock.so")
}

/// In place: a process that has mapped it must not see it shorter.
fn set(file: &Path, seconds: i64) {
    let file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(file)
        .unwrap();
    file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// Says what it sees for each line that it is sent; sent none, it sees nothing.
#[test]
fn two_readings_are_as_far_apart_as_the_other_clock_says() {
    let mut last = None;
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        println!("{ANSWER}{}", now());
        let at = Instant::now();
        assert!(
            last.is_none_or(|last| at >= last && at - last < std::time::Duration::from_mins(1))
        );
        last = Some(at);
    }
}

#[test]
fn a_program_that_runs_sees_its_wall_clock_step() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("clock");
    set(&file, HOUR);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("two_readings_are_as_far_apart_as_the_other_clock_says")
        .env("LD_PRELOAD", library())
        .env("ALIQUOT_SIM_CLOCK", &file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ask = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    for ahead in [HOUR, -HOUR, 0] {
        set(&file, ahead);
        writeln!(ask, "what time is it").unwrap();
        let told: i64 = loop {
            let line = answers.next().unwrap().unwrap();
            if let Some((_, told)) = line.split_once(ANSWER) {
                break told.parse().unwrap();
            }
        };
        let off = told - now() - ahead;
        assert!((-2..=2).contains(&off), "{ahead} ahead: off by {off}");
    }
    drop(ask);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_a_file_it_is_the_machines() {
    let output = Command::new("date")
        .arg("+%s")
        .env("LD_PRELOAD", library())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let told: i64 = told.trim().parse().unwrap();
    assert!((told - now()).abs() <= 2);
}
