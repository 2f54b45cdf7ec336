//! Label selectors as text, such as `role in (check, probe), !critical`.
//!
//! In: the text of a setting, in the syntax of `kubectl -l`. Out: what the core matches labels with, or
//! what is wrong with the text.

use proto::names::kai;
use scheduler_core::model::{Operator, Requirement};
use std::sync::Arc;

/// The pods that are background work unless a setting says otherwise (KAI 0.18).
pub(crate) fn background() -> Vec<Requirement> {
    vec![Requirement {
        key: Arc::from(kai::BACKGROUND_LABEL),
        operator: Operator::In(vec![Arc::from("true")]),
    }]
}

/// Reads a selector. One without requirements, which would match everything, is an error.
pub(crate) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("the selector is empty, and would match every pod".to_owned());
    }
    let mut all = Vec::new();
    loop {
        // The commas of a list of values separate no requirements.
        let list = rest.find('(').filter(|open| !rest[..*open].contains(','));
        let from = list.map_or(Some(0), |open| rest[open..].find(')').map(|at| open + at));
        let end = from.and_then(|from| rest[from..].find(',').map(|at| from + at));
        let part = &rest[..end.unwrap_or(rest.len())];
        let requirement = requirement(part.trim());
        all.push(
            requirement.ok_or_else(|| format!("{:?} is no requirement of labels", part.trim()))?,
        );
        match end {
            Some(end) => rest = &rest[end + 1..],
            None => return Ok(all),
        }
    }
}

/// The selector as text.
pub(crate) fn text(all: &[Requirement]) -> String {
    let one = |one: &Requirement| match &one.operator {
        Operator::In(values) => format!("{} in ({})", one.key, values.join(",")),
        Operator::NotIn(values) => format!("{} notin ({})", one.key, values.join(",")),
        Operator::Exists => one.key.to_string(),
        Operator::DoesNotExist => format!("!{}", one.key),
        Operator::Above(bound) => format!("{} > {bound}", one.key),
        Operator::Below(bound) => format!("{} < {bound}", one.key),
    };
    all.iter().map(one).collect::<Vec<_>>().join(",")
}

fn requirement(part: &str) -> Option<Requirement> {
    let value = |text: &str| vec![Arc::from(text.trim())];
    let (key, operator) = if let Some((key, of)) = part.split_once("!=") {
        (key, Operator::NotIn(value(of)))
    } else if let Some((key, of)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key, Operator::In(value(of)))
    } else if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')')?.split(',');
        let values: Vec<Arc<str>> = values.map(|of| Arc::from(of.trim())).collect();
        match head.trim_end().rsplit_once(char::is_whitespace)? {
            (key, "in") => (key, Operator::In(values)),
            (key, "notin") => (key, Operator::NotIn(values)),
            _ => return None,
        }
    } else if let Some(key) = part.strip_prefix('!') {
        (key, Operator::DoesNotExist)
    } else {
        (part, Operator::Exists)
    };
    let is_of_label = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let is_label = |text: &str| text.chars().all(is_of_label);
    let values = match &operator {
        Operator::In(values) | Operator::NotIn(values) => values.as_slice(),
        _ => &[],
    };
    let key = key.trim();
    let is_valid = !key.is_empty() && is_label(key) && values.iter().all(|value| is_label(value));
    is_valid.then(|| Requirement {
        key: Arc::from(key),
        operator,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_is_read_as_kubectl_reads_it() {
        for (given, expected) in [
            ("a=b", "a in (b)"),
            ("a == b , c != d", "a in (b),c notin (d)"),
            (
                "x.io/role in (check, probe),!c",
                "x.io/role in (check,probe),!c",
            ),
            ("c, role notin (a)", "c,role notin (a)"),
            ("a=", "a in ()"),
        ] {
            let read = parse(given).map(|all| text(&all));
            assert_eq!(read.as_deref(), Ok(expected), "{given}");
        }
        for wrong in [
            "", " ", "a=b,", "a in b", "a in (b", "=b", "a b", "a of (b)", "a=b=c",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
