//! The line format of every socket in the simulation.
//!
//! Owns: encoding and decoding of one message, `verb key=value key=value`, one
//! line each way. Text, so that a person can drive it with `socat`, and so that
//! the NVML stand-in needs no parser worth the name. Values are
//! percent-encoded; a list joins encoded parts with `|` and rows with `,`.
//! Must never: fail on a hostile line otherwise than by an error value.

use std::fmt::{self, Write as _};

/// Longest line that either side accepts, in bytes.
pub const MAX_LINE: usize = 256 * 1024;

/// A request (`alloc gpu=.. mib=..`) or an answer (`ok ..`, `err ..`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The first word of the line.
    pub verb: String,
    fields: Vec<(String, String)>,
}

/// Why a line is no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The line has no first word.
    Empty,
    /// A word after the first has no `=`.
    NoValue(String),
    /// A field that the verb needs is missing or is no such thing as it needs.
    Field(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "empty request"),
            Self::NoValue(word) => write!(f, "`{word}` is not key=value"),
            Self::Field(name) => write!(f, "field `{name}` is missing or malformed"),
        }
    }
}

impl std::error::Error for WireError {}

impl Message {
    /// A message without fields.
    pub fn new(verb: &str) -> Self {
        Self {
            verb: verb.to_owned(),
            fields: Vec::new(),
        }
    }

    /// The answer to a request that was honoured.
    pub fn ok() -> Self {
        Self::new("ok")
    }

    /// The answer to a request that was not: a code of the caller's API, and a sentence.
    pub fn err(code: u32, name: &str, message: &str) -> Self {
        Self::new("err")
            .with("code", code)
            .with("name", name)
            .with("message", message)
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.fields
            .push((key.to_owned(), encode(&value.to_string())));
        self
    }

    /// Adds a field only where there is a value.
    #[must_use]
    pub fn with_some(self, key: &str, value: Option<impl fmt::Display>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Adds a table: rows of parts.
    #[must_use]
    pub fn with_rows(mut self, key: &str, rows: &[Vec<String>]) -> Self {
        let text: Vec<String> = rows
            .iter()
            .map(|row| {
                row.iter()
                    .map(|part| encode(part))
                    .collect::<Vec<_>>()
                    .join("|")
            })
            .collect();
        self.fields.push((key.to_owned(), text.join(",")));
        self
    }

    /// A field's decoded text.
    pub fn get(&self, key: &str) -> Option<String> {
        self.raw(key).map(decode)
    }

    /// A field as a number or other parsed value; missing and malformed are one error.
    pub fn parsed<T: std::str::FromStr>(&self, key: &'static str) -> Result<T, WireError> {
        self.get(key)
            .and_then(|text| text.parse().ok())
            .ok_or(WireError::Field(key))
    }

    /// A field that must be there.
    pub fn need(&self, key: &'static str) -> Result<String, WireError> {
        self.get(key).ok_or(WireError::Field(key))
    }

    /// A table written by [`Message::with_rows`]; empty where the field is absent or empty.
    pub fn rows(&self, key: &str) -> Vec<Vec<String>> {
        match self.raw(key) {
            None | Some("") => Vec::new(),
            Some(text) => text
                .split(',')
                .map(|row| row.split('|').map(decode).collect())
                .collect(),
        }
    }

    /// True for an answer that honours the request.
    pub fn is_ok(&self) -> bool {
        self.verb == "ok"
    }

    /// Reads one line, without its newline.
    pub fn parse(line: &str) -> Result<Self, WireError> {
        let mut words = line.split_ascii_whitespace();
        let verb = words.next().ok_or(WireError::Empty)?.to_owned();
        let mut fields = Vec::new();
        for word in words {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| WireError::NoValue(decode(word)))?;
            fields.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self { verb, fields })
    }

    fn raw(&self, key: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.verb)?;
        for (key, value) in &self.fields {
            write!(f, " {key}={value}")?;
        }
        Ok(())
    }
}

/// Percent-encodes everything that could end a word, a row or a part.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_./:+@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Undoes [`encode`]; a broken escape stays as it is.
pub fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%'
            && let Some(hex) = text.get(at + 1..at + 3)
            && let Ok(byte) = u8::from_str_radix(hex, 16)
        {
            out.push(byte);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_its_line() {
        let message = Message::ok()
            .with("name", "NVIDIA H100 80GB = 1|2,3%\n")
            .with_rows(
                "procs",
                &[
                    vec!["1".into(), "a|b,c".into()],
                    vec!["2".into(), String::new()],
                ],
            );
        let line = message.to_string();
        assert!(!line.contains('\n'));
        let back = Message::parse(&line).unwrap();
        assert_eq!(back, message);
        assert_eq!(back.get("name").unwrap(), "NVIDIA H100 80GB = 1|2,3%\n");
        assert_eq!(
            back.rows("procs"),
            vec![
                vec!["1".to_owned(), "a|b,c".into()],
                vec!["2".into(), String::new()]
            ]
        );
    }

    #[test]
    fn hostile_lines_are_errors_and_nothing_worse() {
        for line in [
            "",
            "   ",
            "alloc mib",
            "alloc =",
            "%",
            "x a=%",
            "x a=%zz%F",
            "x a=\u{1F600}%e2",
        ] {
            if let Ok(message) = Message::parse(line) {
                let _ = message.get("a");
                let _ = message.rows("a");
                assert!(message.parsed::<u64>("a").is_err());
            }
        }
        assert_eq!(Message::parse(" "), Err(WireError::Empty));
        assert_eq!(Message::parse("a b"), Err(WireError::NoValue("b".into())));
    }
}
