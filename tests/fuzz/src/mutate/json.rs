//! Values, keys and subtrees of JSON.

use super::{Corpus, edge};
use crate::chance::Chance;
use serde_json::{Map, Number, Value, json};

/// One step somewhere in the tree.
pub(super) fn mutate(root: &mut Value, corpus: &Corpus, chance: &mut Chance) {
    let mut at = root;
    // Down to a leaf half of the time, else to something on the way.
    loop {
        let children = match &*at {
            Value::Object(map) => map.len(),
            Value::Array(list) => list.len(),
            _ => 0,
        };
        if children == 0 || chance.one_in(6) {
            break;
        }
        let which = chance.below(children);
        at = match at {
            Value::Object(map) => map.values_mut().nth(which).expect("counted above"),
            Value::Array(list) => &mut list[which],
            _ => unreachable!("it has children"),
        };
    }
    if chance.one_in(8) {
        *at = other(corpus, chance);
        return;
    }
    match at {
        Value::Object(map) => object(map, corpus, chance),
        Value::Array(list) => array(list, corpus, chance),
        Value::String(text) => {
            *text = if chance.one_in(4) {
                word(corpus, chance)
            } else {
                corpus.string(text, chance)
            }
        }
        Value::Number(number) => *number = near(number, chance),
        Value::Bool(flag) => *flag = !*flag,
        Value::Null => *at = other(corpus, chance),
    }
}

fn object(map: &mut Map<String, Value>, corpus: &Corpus, chance: &mut Chance) {
    let which = chance.below(map.len());
    let key = map.keys().nth(which).cloned();
    match (chance.below(4), key) {
        (0, Some(key)) => {
            map.remove(&key);
        }
        (1, Some(key)) => {
            // Under another name.
            let value = map.remove(&key).unwrap_or_default();
            map.insert(corpus.string(&key, chance), value);
        }
        (2, Some(key)) => {
            // Twice.
            let value = map[&key].clone();
            map.insert(word(corpus, chance), value);
        }
        _ => {
            map.insert(word(corpus, chance), other(corpus, chance));
        }
    }
}

fn array(list: &mut Vec<Value>, corpus: &Corpus, chance: &mut Chance) {
    let (one, to) = (chance.below(list.len()), chance.below(list.len() + 1));
    match chance.below(4) {
        0 if !list.is_empty() => {
            list.remove(one);
        }
        1 | 2 if !list.is_empty() => list.insert(to, list[one].clone()),
        _ => list.insert(to, other(corpus, chance)),
    }
}

fn word(corpus: &Corpus, chance: &mut Chance) -> String {
    chance
        .pick(&corpus.words)
        .copied()
        .unwrap_or_default()
        .to_owned()
}

fn near(number: &Number, chance: &mut Chance) -> Number {
    let old = number.as_u64().unwrap_or(0);
    match chance.below(6) {
        0 => old.wrapping_add(1).into(),
        1 => old.wrapping_sub(1).into(),
        2 => edge(chance).cast_signed().into(),
        3 => Number::from_f64(1e308).unwrap_or(0.into()),
        4 => Number::from_f64(number.as_f64().unwrap_or(1.0) / 3.0).unwrap_or(0.into()),
        _ => edge(chance).into(),
    }
}

/// Something of another kind, or a subtree of another seed.
fn other(corpus: &Corpus, chance: &mut Chance) -> Value {
    match chance.below(10) {
        0 => Value::Null,
        1 => chance.one_in(2).into(),
        2 => edge(chance).into(),
        3 => edge(chance).cast_signed().into(),
        4 => json!(""),
        5 => json!([]),
        6 => json!({}),
        7 => word(corpus, chance).into(),
        8 => edge(chance).to_string().into(),
        _ => {
            let mut part = chance.pick(&corpus.values).unwrap_or(&Value::Null);
            for _ in 0..chance.below(6) {
                let next = match part {
                    Value::Object(map) => map.values().nth(chance.below(map.len())),
                    Value::Array(list) => list.get(chance.below(list.len())),
                    _ => None,
                };
                let Some(next) = next else { break };
                part = next;
            }
            part.clone()
        }
    }
}
