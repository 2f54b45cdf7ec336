//! What a control daemon answers, protocol 2. Pure.
//!
//! In: the lines that it printed. Out: their content; `None` for an unknown form.

use super::machine::ServerStatus;
use api::Mib;
use proto::mps::Client;
use std::fmt;
use std::str::FromStr;

/// A value that is set.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A memory limit of one device.
    Memory(Mib),
    /// An active thread percentage.
    Percent(u8),
}

/// What reads back of a value, in terms of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// At least so much, and less than 1 GiB more.
    Memory(Mib),
    /// Exactly that.
    Percent(u8),
}

impl Value {
    /// What an answer says of it; `None`: the answer is of another value, or of another form.
    pub fn read(self, lines: &[String]) -> Option<Answered> {
        let line = single(lines)?;
        match self {
            Self::Memory(wanted) => {
                let answer = memory(line).filter(|answer| answer.may_be(wanted))?;
                Some(Answered::Memory(answer.floor()))
            }
            Self::Percent(wanted) => {
                let answer = percent(line).filter(|answer| *answer == wanted)?;
                Some(Answered::Percent(answer))
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(memory) => memory.fmt(f),
            Self::Percent(percent) => write!(f, "{percent} %"),
        }
    }
}

/// A memory limit as a daemon prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Printed {
    /// To the MiB.
    Exact(Mib),
    /// In whole GiB, rounded down: what `3840M` reads back as on real ones is `3G`.
    WholeGib(u64),
}

impl Printed {
    /// The smallest limit that is printed so.
    pub fn floor(self) -> Mib {
        match self {
            Self::Exact(mib) => mib,
            Self::WholeGib(gib) => Mib(gib << 10),
        }
    }

    fn may_be(self, wanted: Mib) -> bool {
        match self {
            Self::Exact(mib) => mib == wanted,
            Self::WholeGib(gib) => wanted.0 >> 10 == gib,
        }
    }
}

/// `3G`, `2000M`, `2000MB`.
pub fn memory(text: &str) -> Option<Printed> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = number(digits)?;
    match &text[digits.len()..] {
        "G" | "GB" if number < 1 << 20 => Some(Printed::WholeGib(number)),
        "M" | "MB" => Some(Printed::Exact(Mib(number))),
        _ => None,
    }
}

/// `50.0`.
pub fn percent(text: &str) -> Option<u8> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let whole: u8 = number(whole)?;
    (number(part) == Some(0) && whole <= 100).then_some(whole)
}

pub fn pids(lines: &[String]) -> Option<Vec<u32>> {
    lines.iter().map(|line| number(line)).collect()
}

/// Digits alone: a sign is no part of what a daemon prints.
pub(super) fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A status, then client pids.
pub fn server(server: u32, lines: &[String]) -> Option<(ServerStatus, Vec<Client>)> {
    let (first, rest) = lines.split_first()?;
    let status = match first.as_str() {
        "INITIALIZING" => ServerStatus::Initializing,
        "ACTIVE" => ServerStatus::Active,
        "FAULT" => ServerStatus::Fault,
        _ => return None,
    };
    let clients = pids(rest)?
        .into_iter()
        .map(|pid| Client {
            pid,
            server_pid: server,
        })
        .collect();
    Some((status, clients))
}

pub(super) fn single(lines: &[String]) -> Option<&str> {
    match lines {
        [line] => Some(line),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn memory_answers_are_read_in_every_form_that_was_seen() {
        let table = [
            ("2000M", Some(Printed::Exact(Mib(2000)))),
            ("2000MB", Some(Printed::Exact(Mib(2000)))),
            ("3G", Some(Printed::WholeGib(3))),
            ("", None),
            ("G", None),
            ("-1M", None),
            ("+3G", None),
            ("3.5G", None),
            ("2000", None),
            ("set to 3G", None),
            ("99999999999999999999G", None),
            ("18446744073709551615G", None),
        ];
        for (text, answer) in table {
            assert_eq!(memory(text), answer, "{text}");
        }
    }

    #[test]
    fn whole_gib_stand_for_every_limit_they_round_down_from() {
        let answer = Printed::WholeGib(3);
        assert!(answer.may_be(Mib(3072)) && answer.may_be(Mib(3840)) && answer.may_be(Mib(4095)));
        assert!(!answer.may_be(Mib(3071)) && !answer.may_be(Mib(4096)));
        assert_eq!(answer.floor(), Mib(3072));
    }

    #[test]
    fn percentages_are_whole_or_nothing() {
        assert_eq!(percent("50.0"), Some(50));
        assert_eq!(percent("100"), Some(100));
        for noise in [
            "",
            "50.5",
            "50.",
            "+50",
            "101.0",
            "-1",
            "nan",
            "Unknown command",
        ] {
            assert_eq!(percent(noise), None, "{noise}");
        }
    }

    #[test]
    fn a_servers_answer_is_its_status_and_its_clients() {
        let client = |pid| Client { pid, server_pid: 7 };
        assert_eq!(
            server(7, &lines("ACTIVE\n42\n43")),
            Some((ServerStatus::Active, vec![client(42), client(43)]))
        );
        assert_eq!(
            server(7, &lines("FAULT")),
            Some((ServerStatus::Fault, vec![]))
        );
        for noise in [
            "",
            "42",
            "Server 7 not found",
            "ACTIVE\nnone",
            "ACTIVE\n+42",
        ] {
            assert_eq!(server(7, &lines(noise)), None, "{noise}");
        }
    }
}
