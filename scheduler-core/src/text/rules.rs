//! Rules about nodes and labels are single words, which this file reads and writes.

use super::value::{Value, values};
use crate::model::{
    DeviceToleration, Effect, NodeTerm, Operator, Requirement, Tolerated, Toleration, integer,
};
use std::sync::Arc;

/// A requirement about the name of a node has this in the place of a label.
const NAME: &str = "@name";

/// The form is `key in a,b; key notin c; key exists; key absent; key > 3; key < 3; @name in n1`.
impl Value for NodeTerm {
    const WHAT: &'static str = "list of requirements";

    fn parse(text: &str) -> Option<Self> {
        let mut term = Self::default();
        let parts = text.split(';').map(str::trim);
        for part in parts.filter(|part| !part.is_empty()) {
            let mut words = part.splitn(3, ' ');
            let key = words.next().unwrap_or_default();
            let operator = words.next().unwrap_or_default();
            let rest = words.next().unwrap_or_default();
            let operator = match operator {
                "in" => Operator::In(values(rest)),
                "notin" => Operator::NotIn(values(rest)),
                "exists" => Operator::Exists,
                "absent" => Operator::DoesNotExist,
                ">" => Operator::Above(rest.parse().ok()?),
                "<" => Operator::Below(rest.parse().ok()?),
                _ => return None,
            };
            let (key, into) = match key {
                NAME => ("metadata.name", &mut term.name),
                key => (key, &mut term.labels),
            };
            into.push(Requirement {
                key: Arc::from(key),
                operator,
            });
        }
        Some(term)
    }

    fn text(&self) -> String {
        let labels = self.labels.iter().map(|one| (&*one.key, &one.operator));
        let names = self.name.iter().map(|one| (NAME, &one.operator));
        let parts = labels.chain(names).map(|(key, operator)| match operator {
            Operator::In(values) => format!("{key} in {}", values.join(",")),
            Operator::NotIn(values) => format!("{key} notin {}", values.join(",")),
            Operator::Exists => format!("{key} exists"),
            Operator::DoesNotExist => format!("{key} absent"),
            Operator::Above(bound) => format!("{key} > {bound}"),
            Operator::Below(bound) => format!("{key} < {bound}"),
        });
        parts.collect::<Vec<_>>().join("; ")
    }
}

/// Values are trimmed, because white space at the end of the last one is not part of it either.
fn values(text: &str) -> Vec<Arc<str>> {
    let values = text.split(',').map(str::trim);
    let named = values.filter(|value| !value.is_empty());
    named.map(Arc::from).collect()
}

values! {
    // The form is that of a term, without names of nodes.
    Vec<Requirement>, NodeTerm::WHAT,
        |text| NodeTerm::parse(text).map(|term| term.labels),
        |labels| NodeTerm { labels: labels.clone(), name: Vec::new() }.text();
    // The weight comes before the term.
    (i32, NodeTerm), NodeTerm::WHAT,
        |text| {
            let (weight, term) = text.split_once(' ').unwrap_or((text, ""));
            Some((weight.parse().ok()?, NodeTerm::parse(term)?))
        },
        |value| format!("{} {}", value.0, value.1.text());
}

/// The form is `*`, `key`, `key=value`, `key>5` or `key<5`, with `:Effect` at the end if it is for
/// one effect.
impl Value for Toleration {
    const WHAT: &'static str = "toleration";

    fn parse(text: &str) -> Option<Self> {
        let (rest, effect) = match text.rsplit_once(':') {
            Some((rest, effect)) => (rest, Some(Effect::parse(effect)?)),
            None => (text, None),
        };
        let (key, values) = match rest.find(['=', '>', '<']) {
            None => (rest, Tolerated::Any),
            Some(at) => {
                let value = &rest[at + 1..];
                let values = match &rest[at..=at] {
                    "=" => Tolerated::Equal(Arc::from(value)),
                    ">" => Tolerated::Above(integer(value)?),
                    _ => Tolerated::Below(integer(value)?),
                };
                (&rest[..at], values)
            }
        };
        Some(Self {
            key: (key != "*").then(|| Arc::from(key)),
            values,
            effect,
        })
    }

    fn text(&self) -> String {
        let key = self.key.as_deref().unwrap_or("*");
        let rest = match &self.values {
            Tolerated::Any => key.to_owned(),
            Tolerated::Equal(value) => format!("{key}={value}"),
            Tolerated::Above(bound) => format!("{key}>{bound}"),
            Tolerated::Below(bound) => format!("{key}<{bound}"),
        };
        let effect = self.effect.map(|effect| format!(":{}", effect.text()));
        rest + &effect.unwrap_or_default()
    }
}

/// The form is that of a pod's toleration, without bounds.
impl Value for DeviceToleration {
    const WHAT: &'static str = Toleration::WHAT;

    fn parse(text: &str) -> Option<Self> {
        let Toleration {
            key,
            values,
            effect,
        } = Toleration::parse(text)?;
        let value = match values {
            Tolerated::Any => None,
            Tolerated::Equal(value) => Some(value),
            Tolerated::Above(_) | Tolerated::Below(_) => return None,
        };
        Some(Self { key, value, effect })
    }

    fn text(&self) -> String {
        let toleration = Toleration {
            key: self.key.clone(),
            values: self.value.clone().map_or(Tolerated::Any, Tolerated::Equal),
            effect: self.effect,
        };
        toleration.text()
    }
}
