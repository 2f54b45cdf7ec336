//! Lines of text ↔ words, pairs and indented lines.

use std::fmt;

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// From 1.
    pub line: usize,
    /// One sentence.
    pub what: String,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for TextError {}

/// One line and the lines indented below it.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub number: usize,
    pub words: Vec<Word>,
    pub below: Vec<Line>,
}

/// `key=value`, or a bare word.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub key: String,
    pub value: Option<String>,
    used: std::cell::Cell<bool>,
}

/// Splits text into lines by indentation.
pub(super) fn parse(text: &str) -> Result<Vec<Line>, TextError> {
    let mut open: Vec<(usize, Line)> = Vec::new();
    let mut done = Vec::new();
    let close = |open: &mut Vec<(usize, Line)>, done: &mut Vec<Line>, to: usize| {
        while open.last().is_some_and(|(indent, _)| *indent >= to) {
            if let Some((_, line)) = open.pop() {
                match open.last_mut() {
                    Some((_, parent)) => parent.below.push(line),
                    None => done.push(line),
                }
            }
        }
    };
    for (index, raw) in text.lines().enumerate() {
        let body = raw.trim_start();
        if body.is_empty() || body.starts_with('#') {
            continue;
        }
        let indent = raw.len() - body.len();
        close(&mut open, &mut done, indent);
        let error = |what| TextError {
            line: index + 1,
            what,
        };
        // None is ever written: it would come back as a space.
        if body.trim_end().contains(char::is_control) {
            return Err(error("there is a control character".to_owned()));
        }
        let words = words(body.trim_end()).map_err(error)?;
        open.push((
            indent,
            Line {
                number: index + 1,
                words,
                below: Vec::new(),
            },
        ));
    }
    close(&mut open, &mut done, 0);
    Ok(done)
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
        // An empty name is quoted.
        if quoted || !key.is_empty() || value.is_some() {
            words.push(Word {
                key,
                value,
                used: std::cell::Cell::new(false),
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

    /// The first word.
    pub(super) fn kind(&self) -> &str {
        self.words.first().map_or("", |word| {
            word.used.set(true);
            &word.key
        })
    }

    /// The n-th word, which must be bare.
    pub(super) fn name(&self, index: usize) -> Result<&str, TextError> {
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

    /// A bare word after the name.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.words
            .iter()
            .skip(1)
            .filter(|word| word.value.is_none() && word.key == key && !word.used.replace(true))
            .count()
            > 0
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

    pub(super) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, TextError> {
        self.get(key)
            .map(|text| {
                text.parse()
                    .map_err(|_| self.error(format!("{key} is not a number: {text}")))
            })
            .transpose()
    }

    /// Values of `prefix.<rest>=<value>`, in order of appearance.
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

    /// All values of a key that may occur several times.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.words.iter().filter_map(move |word| {
            let value = word.value.as_deref().filter(|_| word.key == key)?;
            word.used.set(true);
            Some(value)
        })
    }

    /// A misspelt key would silently mean its default.
    pub(super) fn finish(&self) -> Result<(), TextError> {
        match self.words.iter().find(|word| !word.used.get()) {
            Some(word) => Err(self.error(format!("{} is not known here", word.key))),
            None => Ok(()),
        }
    }
}

/// A value, in quotes where it needs them.
pub(super) fn quoted(text: &str) -> String {
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
            // One line stays one line, whatever ends one on the way.
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
