//! A line has words, pairs and indented lines; this file splits text into them and prints them.

use super::value::Value;
use std::cell::Cell;
use std::fmt::{self, Display, Write as _};
use std::iter::Peekable;
use std::rc::Rc;

/// Reading gives a value, or says which line is wrong.
pub(super) type Read<T> = Result<T, TextError>;

/// A line could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The first line has number 1.
    pub line: usize,
    /// The sentence says what is wrong.
    pub what: String,
}

impl Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for TextError {}

/// A line owns the lines that are indented below it.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    number: usize,
    pub(super) words: Vec<Word>,
    pub(super) below: Vec<Line>,
}

/// A word is `key=value`, or bare if it has no value.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub key: String,
    pub value: Option<String>,
    /// Reading a word sets this, also if the word was read in a part of the line ([`Line::part`]).
    used: Rc<Cell<bool>>,
}

/// Splits text into lines by indentation.
pub(super) fn parse(text: &str) -> Read<Vec<Line>> {
    let mut lines = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let body = raw.trim_start();
        if body.is_empty() || body.starts_with('#') {
            continue;
        }
        let mut line = Line {
            number: index + 1,
            ..Line::default()
        };
        // The writer never writes one, because it would come back as a space.
        if body.trim_end().contains(char::is_control) {
            return Err(line.error("there is a control character"));
        }
        line.words = words(body.trim_end()).map_err(|what| line.error(what))?;
        lines.push((raw.len() - body.len(), line));
    }
    Ok(nested(&mut lines.into_iter().peekable(), 0))
}

/// Takes the next lines as long as they are indented at least so far, each with those below it.
fn nested(lines: &mut Peekable<impl Iterator<Item = (usize, Line)>>, indent: usize) -> Vec<Line> {
    let mut all = Vec::new();
    while let Some((indent, mut line)) = lines.next_if(|(next, _)| *next >= indent) {
        line.below = nested(lines, indent + 1);
        all.push(line);
    }
    all
}

fn words(body: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut chars = body.chars().peekable();
    while chars.peek().is_some() {
        let mut key = String::new();
        let mut value: Option<String> = None;
        let mut quoted = false;
        while let Some(next) = chars.next() {
            match next {
                ' ' => break,
                '=' if value.is_none() => value = Some(String::new()),
                '"' => {
                    quoted = true;
                    let into = value.as_mut().unwrap_or(&mut key);
                    loop {
                        match chars.next() {
                            None => return Err("a quote is not closed".to_owned()),
                            Some('"') => break,
                            Some('\\') => into.extend(chars.next()),
                            Some(other) => into.push(other),
                        }
                    }
                }
                other => value.as_mut().unwrap_or(&mut key).push(other),
            }
        }
        // An empty name is written as two quotes, which make it a word.
        if quoted || !key.is_empty() || value.is_some() {
            words.push(Word {
                key,
                value,
                used: Rc::default(),
            });
        }
    }
    Ok(words)
}

impl Line {
    pub(super) fn error(&self, what: impl Into<String>) -> TextError {
        TextError {
            line: self.number,
            what: what.into(),
        }
    }

    /// Returns the first word.
    pub(super) fn kind(&self) -> &str {
        self.words.first().map_or("", |word| {
            word.used.set(true);
            &word.key
        })
    }

    /// Returns the n-th word, which must be bare.
    pub(super) fn name(&self, index: usize) -> Read<&str> {
        match self.words.get(index) {
            Some(Word {
                key,
                value: None,
                used,
            }) => {
                used.set(true);
                Ok(key)
            }
            _ => Err(self.error("a name is missing")),
        }
    }

    /// Returns whether a bare word comes after the name.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.words
            .iter()
            .skip(1)
            .filter(|word| word.value.is_none() && word.key == key && !word.used.replace(true))
            .count()
            > 0
    }

    /// Returns whether the bare word is there. It does not count as read.
    pub(super) fn has_flag(&self, key: &str) -> bool {
        let mut words = self.words.iter().skip(2);
        words.any(|word| word.value.is_none() && word.key == key)
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.words
            .iter()
            .find(|word| word.key == key && word.value.is_some())
            .and_then(|word| {
                word.used.set(true);
                word.value.as_deref()
            })
    }

    pub(super) fn value<T: Value>(&self, key: &str) -> Read<Option<T>> {
        self.get(key).map(|text| self.parsed(key, text)).transpose()
    }

    pub(super) fn parsed<T: Value>(&self, key: &str, text: &str) -> Read<T> {
        T::parse(text).ok_or_else(|| self.error(T::refusal(key, text)))
    }

    /// Returns the values of `prefix.<rest>=<value>` in order of appearance.
    pub(super) fn prefixed<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.words.iter().filter_map(move |word| {
            let rest = word.key.strip_prefix(prefix)?.strip_prefix('.')?;
            let value = word.value.as_deref()?;
            word.used.set(true);
            Some((rest, value))
        })
    }

    /// Returns all values of a key that may occur several times.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.words.iter().filter_map(move |word| {
            let value = word.value.as_deref().filter(|_| word.key == key)?;
            word.used.set(true);
            Some(value)
        })
    }

    /// Returns the indented lines of one kind.
    pub(super) fn below<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Line> {
        let below = self.below.iter();
        below.filter(move |line| {
            line.words.first().is_some_and(|word| word.key == kind) && line.kind() == kind
        })
    }

    /// Returns a line with that name and the words whose keys end in `.part`.
    pub(super) fn part(&self, part: &str) -> Self {
        let words = self.words.iter().filter_map(|word| {
            let key = word.key.strip_suffix(part)?.strip_suffix('.')?;
            let key = key.to_owned();
            Some(Word {
                key,
                ..word.clone()
            })
        });
        let mut line = Self::of_kind("part");
        line.push_word(part);
        line.words.extend(words);
        Self {
            number: self.number,
            ..line
        }
    }

    /// Refuses words and indented lines that were not read: a misspelt key would silently mean its
    /// default.
    pub(super) fn finish(&self) -> Read<()> {
        let own = self.words.iter().map(|word| (self, word));
        let below = self.below.iter();
        let below = below.filter_map(|line| Some((line, line.words.first()?)));
        match own.chain(below).find(|(_, word)| !word.used.get()) {
            Some((line, word)) => Err(line.error(format!("{} is not known here", word.key))),
            None => Ok(()),
        }
    }

    /// Begins a line that is written.
    pub(super) fn of_kind(kind: &str) -> Self {
        let mut line = Self::default();
        line.push_word(kind);
        line
    }

    pub(super) fn push_word(&mut self, text: impl Into<String>) {
        self.push(text.into(), None);
    }

    pub(super) fn push_pair(&mut self, key: impl Into<String>, value: impl Display) {
        self.push(key.into(), Some(value.to_string()));
    }

    fn push(&mut self, key: String, value: Option<String>) {
        self.words.push(Word {
            key,
            value,
            used: Rc::default(),
        });
    }

    /// Appends the line and what is below it to a text.
    pub(super) fn print(&self, depth: usize, text: &mut String) {
        let _ = writeln!(text, "{:1$}{self}", "", 2 * depth);
        for line in &self.below {
            line.print(depth + 1, text);
        }
    }
}

/// Prints the line alone, without the lines below it.
impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Word { key, value, .. }) in self.words.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { " " })?;
            f.write_str(&quoted(key))?;
            if let Some(value) = value {
                write!(f, "={}", quoted(value))?;
            }
        }
        Ok(())
    }
}

/// Puts a value in quotes if it needs them.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty()
        && !text.starts_with('#')
        && !text.contains(['"', '\\', '='])
        && !text.contains(|c: char| c.is_control() || c.is_whitespace());
    if plain {
        return text.to_owned();
    }
    let mut out = String::from("\"");
    for next in text.chars() {
        match next {
            '"' | '\\' => {
                out.push('\\');
                out.push(next);
            }
            _ if next.is_control() => out.push(' '),
            _ => out.push(next),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_with_white_space_keeps_it() {
        for text in ["a\u{3000}", " a", "a\r"] {
            let line = format!("pod {}\r\n", quoted(text));
            let lines = parse(&line).unwrap();
            assert_eq!(lines[0].name(1), Ok(&*text.replace('\r', " ")));
        }
    }

    #[test]
    fn an_empty_name_is_one_where_it_stands_in_quotes() {
        let lines = parse("pod \"\" ns=a").unwrap();
        assert_eq!(lines[0].name(1), Ok(""));
        assert_eq!(lines[0].get("ns"), Some("a"));
        assert!(parse("pod  ns=a").unwrap()[0].name(1).is_err());
    }
}
