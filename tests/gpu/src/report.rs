//! What came of each claim and each question, as Markdown.
//!
//! Pure. In: [`Part`]s. Out: a page with a table on top and a transcript below.

use std::fmt::Write as _;

/// What came of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As claimed.
    Holds(String),
    /// Not as claimed.
    Differs(String),
    /// A question's answer; nothing was claimed.
    Answer(String),
    /// This machine cannot be checked, and why.
    NotAsked(String),
}

/// One claim or question.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// A sentence, or a question.
    pub(crate) text: String,
    pub(crate) verdict: Verdict,
    pub(crate) transcript: Vec<String>,
}

impl Verdict {
    fn word(&self) -> &'static str {
        match self {
            Self::Holds(_) => "holds",
            Self::Differs(_) => "DIFFERS",
            Self::Answer(_) => "answer",
            Self::NotAsked(_) => "not asked",
        }
    }

    fn said(&self) -> &str {
        match self {
            Self::Holds(text) | Self::Differs(text) | Self::Answer(text) | Self::NotAsked(text) => {
                text
            }
        }
    }
}

/// One line for a terminal.
pub(crate) fn line(part: &Part) -> String {
    format!(
        "{:<9} {}\n          {}",
        part.verdict.word(),
        part.text,
        part.verdict.said()
    )
}

/// The page.
pub(crate) fn page(title: &str, facts: &[(&str, String)], parts: &[Part]) -> String {
    let mut page = format!("# {title}\n\n| | |\n|---|---|\n");
    for (name, value) in facts {
        let _ = writeln!(page, "| {name} | {} |", cell(value));
    }
    page.push_str("\n| | claim or question | what was seen |\n|---|---|---|\n");
    for part in parts {
        let _ = writeln!(
            page,
            "| {} | {} | {} |",
            part.verdict.word(),
            cell(&part.text),
            cell(part.verdict.said())
        );
    }
    page.push_str("\n## Transcript\n");
    for part in parts.iter().filter(|part| !part.transcript.is_empty()) {
        let _ = write!(page, "\n### {}\n\n```text\n", part.text);
        for line in &part.transcript {
            let _ = writeln!(page, "{line}");
        }
        page.push_str("```\n");
    }
    page
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_what_differs_and_shows_what_was_run() {
        let part = Part {
            text: "a | b".into(),
            verdict: Verdict::Differs("x\ny".into()),
            transcript: vec!["$ nvidia-smi".into()],
        };
        let page = page("T", &[("driver", "1".into())], &[part]);
        assert!(page.contains("| DIFFERS | a \\| b | x y |"), "{page}");
        assert!(page.contains("```text\n$ nvidia-smi\n```"), "{page}");
    }
}
