//! What went wrong, as one sentence, and the exit code that says of what kind it is.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done; the answer is yes |
//! | 1 | the answer is no: it does not fit, it is not there, something was found |
//! | 2 | the command line, a file or a name cannot be understood; nothing was done |
//! | 3 | the cluster does not answer, or refuses |

use api::visible::visible;
use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;

/// The answer is no.
pub(crate) const NO: u8 = 1;
/// Invalid input.
pub(crate) const INPUT: u8 = 2;
/// The cluster does not answer, or refuses.
pub(crate) const CLUSTER: u8 = 3;

/// One sentence and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Exit code.
    pub(crate) code: u8,
    /// Without a full stop, on one line.
    pub(crate) sentence: String,
}

/// What a verb ends with.
pub(crate) type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// The answer is no.
    pub(crate) fn no(sentence: impl Display) -> Self {
        Self::of(NO, sentence)
    }

    /// Invalid input.
    pub(crate) fn input(sentence: impl Display) -> Self {
        Self::of(INPUT, sentence)
    }

    /// The cluster does not answer, or refuses.
    pub(crate) fn cluster(sentence: impl Display) -> Self {
        Self::of(CLUSTER, sentence)
    }

    fn of(code: u8, sentence: impl Display) -> Self {
        Self {
            code,
            sentence: one_line(&sentence.to_string()),
        }
    }

    /// Says it on standard error.
    pub(crate) fn end(&self, verb: &str) -> ExitCode {
        let _ = writeln!(std::io::stderr(), "aliquot {verb}: {}", self.sentence);
        ExitCode::from(self.code)
    }
}

/// Joins a text into one line, with single blanks and with invisible characters escaped, because names
/// and an API server's messages are untrusted.
fn one_line(text: &str) -> String {
    let words: Vec<String> = text.split_whitespace().map(visible).collect();
    words.join(" ")
}

/// Ends with the verb's code, or says its failure.
pub(crate) fn end(verb: &str, outcome: Outcome) -> ExitCode {
    outcome.unwrap_or_else(|failure| failure.end(verb))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_whatever_it_was_made_of() {
        let failure = Failure::input("a\n   b\n\nc ");
        assert_eq!((failure.code, failure.sentence.as_str()), (2, "a b c"));
        let failure = Failure::no("pod a\u{1b}[2J/\u{202e}b is\u{9b}not there");
        assert_eq!(
            failure.sentence,
            r"pod a\u{1b}[2J/\u{202e}b is\u{9b}not there"
        );
    }
}
