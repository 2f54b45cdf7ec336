//! Effects of taints, and tolerations, as text and back.

use super::line::Line;
use super::read::Read;
use crate::model::{Effect, Tolerated, Toleration, integer};
use std::sync::Arc;

pub(super) fn effect(line: &Line, text: &str) -> Read<Effect> {
    match text {
        "NoSchedule" => Ok(Effect::NoSchedule),
        "NoExecute" => Ok(Effect::NoExecute),
        "PreferNoSchedule" => Ok(Effect::PreferNoSchedule),
        _ => Err(line.error(format!("{text} is no effect"))),
    }
}

/// `*`, `key`, `key=value`, `key>5`, `key<5`, each with `:Effect` at the end where it is for one only.
pub(super) fn toleration(line: &Line, text: &str) -> Read<Toleration> {
    let (rest, effect) = match text.rsplit_once(':') {
        Some((rest, kind)) => (rest, Some(effect(line, kind)?)),
        None => (text, None),
    };
    let (key, values) = match rest.find(['=', '>', '<']) {
        None => (rest, Tolerated::Any),
        Some(at) => {
            let (key, value) = rest.split_at(at);
            let (how, value) = value.split_at(1);
            let bound = || integer(value).ok_or_else(|| line.error("no integer is tolerated"));
            let values = match how {
                "=" => Tolerated::Equal(Arc::from(value)),
                ">" => Tolerated::Above(bound()?),
                _ => Tolerated::Below(bound()?),
            };
            (key, values)
        }
    };
    Ok(Toleration {
        key: (key != "*").then(|| Arc::from(key)),
        values,
        effect,
    })
}

pub(super) fn effect_text(effect: Effect) -> &'static str {
    match effect {
        Effect::NoSchedule => "NoSchedule",
        Effect::NoExecute => "NoExecute",
        Effect::PreferNoSchedule => "PreferNoSchedule",
    }
}

pub(super) fn toleration_text(toleration: &Toleration) -> String {
    let mut text = toleration.key.as_deref().unwrap_or("*").to_owned();
    let (how, value) = match &toleration.values {
        Tolerated::Any => ("", String::new()),
        Tolerated::Equal(value) => ("=", value.to_string()),
        Tolerated::Above(bound) => (">", bound.to_string()),
        Tolerated::Below(bound) => ("<", bound.to_string()),
    };
    text.push_str(how);
    text.push_str(&value);
    if let Some(kind) = toleration.effect {
        text.push(':');
        text.push_str(effect_text(kind));
    }
    text
}
